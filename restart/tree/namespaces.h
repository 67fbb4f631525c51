// Which namespaces the restarted program needs, and how they are made.
//
// Owner:     restart. Callers: choose_namespaces, first_tid_in_use and write_id_maps: ckpt-restart;
//            mount_proc: the first process of the new namespaces; prepare_time_namespace: the program's
//            process while it is still ckpt-restart's code; of a job, the keeper of the clocks (planter.cc).
//
// The old thread ids must be had again: libc keeps them in locks, and so do programs. Where they are
// free and we may choose ids, the program comes back in the present pid namespace. Else it gets a pid
// namespace of its own, and a user namespace with it when we have no rights here.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/raii_fd.h"
#include "base/result.h"

namespace ckpt {

enum class NamespacePolicy { kAuto, kNever, kAlways };

struct NamespaceChoice {
  bool new_pid = false;
  bool new_user = false;
  std::string reason;  // why a new pid namespace, for -v
};

// tids: all ids that must be free: of threads, lost children, and helpers of a job; in any order.
Result<NamespaceChoice> choose_namespaces(const std::vector<int>& tids, NamespacePolicy policy);

// The first of tids that is in use here (a thread, a process group), or 0.
int first_tid_in_use(const std::vector<int>& tids);

// From outside: our own effective ids become `uid` and `gid` inside. A caller that has just entered a user
// namespace has other ids now: it passes the ids from before as outer_uid, outer_gid.
Result<void> write_id_maps(pid_t child, uint32_t uid, uint32_t gid);
Result<void> write_id_maps(pid_t child, uint32_t uid, uint32_t gid, uint32_t outer_uid, uint32_t outer_gid);

// Inside a new mount namespace: /proc of the new pid namespace. False: not allowed here.
bool mount_proc();

struct TimeNamespace {
  ScopedFd offsets;  // /proc/self/timens_offsets, to be written before entering
  ScopedFd entry;    // for setns
  int64_t outer_monotonic_ns = 0, outer_boottime_ns = 0;  // offsets of the namespace we are in
  bool prepared() const { return entry.valid(); }
};

// Makes a time namespace that the caller may enter later by setns, once its offsets are written.
// Not prepared: not allowed.
TimeNamespace prepare_time_namespace();

}  // namespace ckpt
