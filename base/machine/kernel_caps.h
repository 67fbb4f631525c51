// What the running kernel and this process's rights allow: every probe in one struct.
//
// Owner:     base. userfaultfd_probe.cc may run in the victim (raw calls, no allocation);
//            kernel_caps.cc is for ordinary programs: it forks.
// Callers:   probe_userfaultfd, open_userfaultfd: any thread. probe_kernel_caps and the single
//            probes: one thread of an ordinary program.
// Never:     leaves a descriptor, a child or a namespace behind.
// Quirks and kernel versions behind each: docs/kernel_notes.md.
#pragma once

#include <linux/userfaultfd.h>

#include <cstdint>

namespace ckpt {

// UFFD_FEATURE_* bits that kernels have and older headers do not name.
inline constexpr uint64_t kUffdFeatureWpUnpopulated = 1u << 13;  // Linux 6.4
inline constexpr uint64_t kUffdFeaturePoison = 1u << 14;         // Linux 6.6
inline constexpr uint64_t kUffdFeatureWpAsync = 1u << 15;        // Linux 6.7
inline constexpr uint64_t kUffdFeatureMove = 1u << 16;           // Linux 6.8

// The features that mode realtime asks UFFDIO_API for, no more and no less
// (libckpt_rt/protect/write_protect.cc). Linux 5.19.
inline constexpr uint64_t kUffdFeaturesOfRealtime =
    UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_EVENT_REMOVE | UFFD_FEATURE_WP_HUGETLBFS_SHMEM;

enum class UserfaultfdAccess : uint32_t {
  kNone = 0,          // no userfaultfd at all
  kUserModeOnly = 1,  // faults of the kernel on the program's behalf fail with EFAULT instead of waiting
  kFull = 2,          // every fault waits: what mode realtime needs
};

// What gave full access.
enum class UserfaultfdGrant : uint32_t { kNothing = 0, kCapabilityOrSysctl = 1, kDevice = 2 };

struct UserfaultfdProbe {
  UserfaultfdAccess access = UserfaultfdAccess::kNone;
  UserfaultfdGrant grant = UserfaultfdGrant::kNothing;
  uint64_t features = 0;    // UFFD_FEATURE_* the kernel offers
  int syscall_error = 0;    // errno of the full userfaultfd(2), 0 if it worked
  int device_error = 0;     // errno of opening /dev/userfaultfd, 0 if it worked or was not needed
  int user_mode_error = 0;  // errno with UFFD_USER_MODE_ONLY, 0 if it worked or was not needed

  bool allows_realtime() const {
    return access == UserfaultfdAccess::kFull &&
           (features & kUffdFeaturesOfRealtime) == kUffdFeaturesOfRealtime;
  }
  // Faults handled by the thread that writes: no right is needed.
  bool allows_in_thread() const {
    constexpr uint64_t kNeeded = UFFD_FEATURE_SIGBUS | UFFD_FEATURE_PAGEFAULT_FLAG_WP;
    return access != UserfaultfdAccess::kNone && (features & kNeeded) == kNeeded;
  }
};

// Tries full access by system call, then by /dev/userfaultfd, then user mode only. UFFDIO_API has not
// been called on the result. flags: O_CLOEXEC, O_NONBLOCK. Returns the descriptor or -errno; `probe`
// may be nullptr. Victim-safe.
int open_userfaultfd(int flags, UserfaultfdProbe* probe);

// The same, and asks for the features. Leaves no descriptor. Victim-safe.
UserfaultfdProbe probe_userfaultfd();

// The answer of one probe: error is 0 when it works, else the errno that the kernel gave.
struct ProbeResult {
  int error = 0;
  bool ok() const { return error == 0; }
};

ProbeResult probe_pagemap_scan();                    // ioctl PAGEMAP_SCAN on one's own memory, Linux 6.7
ProbeResult probe_io_uring();                        // io_uring_setup(2); kernel.io_uring_disabled, seccomp
ProbeResult probe_user_namespace();                  // a child enters a new user namespace and maps its ids
ProbeResult probe_pid_namespace();                   // the same, with a new pid namespace
ProbeResult probe_time_namespace();                  // the same, with a new time namespace with offsets
ProbeResult probe_set_tid();                         // clone3(2) with set_tid in the present pid namespace
ProbeResult probe_set_tid_in_namespace();            // the same in a new user and pid namespace
ProbeResult probe_pidfd_getfd();                     // a descriptor taken from a child
ProbeResult probe_kcmp();                            // KCMP_FILE on one's own descriptors
ProbeResult probe_syscall_dispatch();                // Syscall User Dispatch (prctl(2)), Linux 5.11
ProbeResult probe_set_mm_map();                      // prctl(PR_SET_MM, PR_SET_MM_MAP) with one's own values
ProbeResult probe_set_exe();                         // and with an exe_fd, which needs CAP_CHECKPOINT_RESTORE
ProbeResult probe_ptrace_child();                    // a child is seized
ProbeResult probe_direct_io(const char* directory);  // O_DIRECT write of a nameless file there

struct KernelCaps {
  UserfaultfdProbe userfaultfd;
  ProbeResult pagemap_scan, io_uring, user_namespace, pid_namespace, time_namespace;
  ProbeResult set_tid, set_tid_in_namespace, pidfd_getfd, kcmp, syscall_dispatch, set_mm_map, set_exe,
      ptrace_child;
};
KernelCaps probe_kernel_caps();

}  // namespace ckpt
