// Becoming the saved user: part of the freestanding restorer.
//
// Owner:     restart. Included by restorer.cc only.
// Callers:   the restorer, on the only thread, when nothing more needs a right except what the library
//            does (RestorerArgs::extra_capabilities).
// Never:     goes on with more rights than the saved process had, but for those: a failure to
//            give up a user id ends the restart.
#pragma once

#include <linux/capability.h>
#include <linux/prctl.h>

#include "base/sys.h"
#include "restart/restorer/restorer_args.h"

namespace ckpt {
namespace {

inline long set_ids(const RestorerArgs& a) {
  if (a.set_groups != 0) {
    long r = sys::call(__NR_setgroups, a.group_count, a.groups);
    if (sys::failed(r)) return r;
  }
  long r = sys::call(__NR_setresgid, a.gid[0], a.gid[1], a.gid[2]);
  if (sys::failed(r)) return r;
  sys::call(__NR_setfsgid, a.gid[3]);
  r = sys::call(__NR_setresuid, a.uid[0], a.uid[1], a.uid[2]);
  if (sys::failed(r)) return r;
  sys::call(__NR_setfsuid, a.uid[3]);
  return 0;
}

inline long become_saved_user(const RestorerArgs& a, uint32_t& notes) {
  if (a.change_capabilities != 0) {
    for (int bit = 0; bit < 64; ++bit) {
      if ((a.drop_bounding >> bit & 1) == 0) continue;
      if (sys::failed(sys::call(__NR_prctl, PR_CAPBSET_DROP, bit, 0L, 0L, 0L)))
        notes |= kNoteCapabilitiesRefused;
    }
    // Otherwise leaving uid 0 would take the capability that the library still needs.
    sys::call(__NR_prctl, PR_SET_KEEPCAPS, 1L, 0L, 0L, 0L);
  }
  if (a.change_ids != 0) {
    long r = set_ids(a);
    if (sys::failed(r)) return r;
  }
  if (a.change_capabilities == 0) return 0;
  sys::call(__NR_prctl, PR_SET_KEEPCAPS, 0L, 0L, 0L, 0L);
  struct {
    uint32_t version;
    int32_t pid;
  } header{_LINUX_CAPABILITY_VERSION_3, 0};
  struct {
    uint32_t effective, permitted, inheritable;
  } data[2];
  const uint64_t effective = a.library.cap_effective | a.extra_capabilities;
  const uint64_t permitted = a.library.cap_permitted | a.extra_capabilities;
  for (int i = 0; i < 2; ++i) {
    data[i].effective = static_cast<uint32_t>(effective >> (32 * i));
    data[i].permitted = static_cast<uint32_t>(permitted >> (32 * i));
    data[i].inheritable = static_cast<uint32_t>(a.library.cap_inheritable >> (32 * i));
  }
  return sys::call(__NR_capset, &header, data);
}

}  // namespace
}  // namespace ckpt
