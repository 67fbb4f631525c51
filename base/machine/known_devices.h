// Devices whose state is not in the process: what they are, and what to do about it.
//
// Owner: base. Callers: libckpt_rt, also while threads stand; ckpt, ahead of a job. Never: allocates.
#pragma once

#include <string_view>

namespace ckpt {

struct KnownDevice {
  std::string_view start;  // of its path
  const char* what;
  const char* why;
  // Messages go through it: who has it open cannot go on without it. Of others only what is mapped counts.
  bool carries_messages = false;
};

inline constexpr const char* kWayRoundFabrics =
    "its queues are in the adapter; have MPI use TCP: OMPI_MCA_pml=^ucx,cm "
    "OMPI_MCA_btl=^openib,uct,ofi,usnic "
    "OMPI_MCA_osc=^ucx OMPI_MCA_coll=^hcoll (Open MPI), UCX_TLS=tcp,self,sysv,posix,cma FI_PROVIDER=tcp "
    "(MPICH)";
inline constexpr const char* kWayRoundSharedCopies =
    "it is memory of other processes; have MPI copy otherwise: OMPI_MCA_btl_vader_single_copy_mechanism=cma "
    "(Open MPI 4), OMPI_MCA_smsc=^xpmem,knem (Open MPI 5), UCX_TLS=tcp,self,sysv,posix,cma (MPICH)";
inline constexpr const char* kGraphics =
    "its memory is not the process's: take checkpoints before it is opened";

inline constexpr KnownDevice kKnownDevices[] = {
    {"/dev/infiniband/", "an InfiniBand adapter", kWayRoundFabrics, true},
    {"/dev/hfi1", "an Omni-Path adapter", kWayRoundFabrics, true},
    {"/dev/cxi", "a Slingshot adapter", kWayRoundFabrics, true},
    {"/dev/xpmem", "memory of other processes by XPMEM", kWayRoundSharedCopies, true},
    {"/dev/knem", "memory of other processes by KNEM", kWayRoundSharedCopies, true},
    {"/dev/nvidia", "a graphics processor", kGraphics},
    {"/dev/kfd", "a graphics processor", kGraphics},
    {"/dev/dri/", "a graphics processor", kGraphics},
    {"/dev/vfio/", "a device that reads memory itself", "its state is in the device"},
    {"/dev/kvm", "a virtual machine", "its state is in the kernel"},
};

// nullptr: it is none of these.
inline const KnownDevice* known_device(std::string_view path) {
  for (const KnownDevice& known : kKnownDevices) {
    if (path.starts_with(known.start)) return &known;
  }
  return nullptr;
}

}  // namespace ckpt
