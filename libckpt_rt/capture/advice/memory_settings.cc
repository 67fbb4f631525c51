#include "libckpt_rt/capture/advice/memory_settings.h"

#include <fcntl.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>

#include "base/memory/large_table.h"
#include "base/memory/own_place.h"
#include "base/protocol/restart_protocol.h"
#include "base/raii_fd.h"
#include "base/sys.h"
#include "libckpt_rt/capture/advice/settings_reach.h"
#include "libckpt_rt/capture/memory/lost_mappings.h"
#include "libckpt_rt/capture/memory/page_scan.h"
#include "libckpt_rt/capture/process/process_state.h"
#include "libckpt_rt/core/threads/thread_context.h"
#include "libckpt_rt/core/preload_rules.h"

#ifndef __NR_mseal
#define __NR_mseal 462
#endif

namespace ckpt::memory_settings {

namespace {

constexpr long kGuardInstall = 102;  // MADV_GUARD_INSTALL, Linux 6.13

template <typename T>
struct Parts {
  uint32_t count;
  bool more;  // than there is room for
  T all[kMost];

  T* add() {
    if (count == kMost) {
      more = true;
      return nullptr;
    }
    return &all[count++];
  }
};

struct PolicyOfPart {
  AddrRange range;
  MemoryPolicy policy;
};

CKPT_LARGE_TABLE constinit Parts<AddrRange> guards{}, seals{};
CKPT_LARGE_TABLE constinit Parts<PolicyOfPart> policies{};

// False: the kernel does not tell (Linux 6.13 and 6.14 know guard regions, and show them to nobody), or
// pagemap is not open.
bool find_guards(int pagemap, AddrRange range) {
  AddrRange run{};
  for (; !range.empty() && !guards.more; range.start = run.end) {
    const long found = first_guard(pagemap, range, &run);
    if (found != 1) return found == 0;
    AddrRange* last = guards.count != 0 ? &guards.all[guards.count - 1] : nullptr;
    if (last != nullptr && last->end == run.start)
      last->end = run.end;
    else if (AddrRange* next = guards.add(); next != nullptr)
      *next = run;
  }
  return true;
}

bool kernel_knows_guards() {
  const long page = map_own(kPageSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
  if (sys::failed(page)) return true;
  const bool knows = sys::call(__NR_madvise, page, kPageSize, kGuardInstall) == 0;
  sys::call(__NR_munmap, page, kPageSize);
  return knows;
}

// The kernel answers with the thread's policy where a mapping has none: the agent has none meanwhile.
void find_policy(const Mapping& m) {
  if (policies_reach.common(m.range).empty()) return;
  MemoryPolicy policy;
  constexpr long kMaxNode = MemoryPolicy::kMostNodes + 1;
  if (sys::call(__NR_get_mempolicy, &policy.mode, policy.nodes, kMaxNode, m.range.start.value,
                long{MPOL_F_ADDR}) != 0 ||
      policy.mode == MPOL_DEFAULT)
    return;
  if (PolicyOfPart* next = policies.add(); next != nullptr) *next = {m.range, policy};
}

bool is_of_program(const Mapping& m) {
  return m.kind != MappingKind::kLibraryOwned && m.kind != MappingKind::kVdso;
}

}  // namespace

bool capture_stopped(std::span<const Mapping> mappings) {
  guards.count = seals.count = policies.count = 0;
  guards.more = seals.more = policies.more = false;
  bool guards_are_hidden = false;
  ScopedFd pagemap;
  auto look_for_guards = [&](const Mapping& m) {
    // Where libc was called is looked at alone: of a large mapping that is most of the time saved.
    AddrRange where = guards_reach.common(m.range);
    if (where.empty() && (m.map_flags & kMapGuarded) != 0) where = m.range;
    if (where.empty() || guards_are_hidden) return;
    if (!pagemap.valid()) {
      pagemap = ScopedFd(
          static_cast<int>(sys::call(__NR_openat, AT_FDCWD, "/proc/self/pagemap", O_RDONLY | O_CLOEXEC, 0L)));
    }
    if (!find_guards(pagemap.get(), where)) guards_are_hidden = true;
  };
  const bool asks_for_policies = !policies_reach.empty() && !is_filtered();
  if (asks_for_policies) sys::call(__NR_set_mempolicy, long{MPOL_DEFAULT}, 0L, 0L);
  for (const Mapping& m : mappings) {
    if (!is_of_program(m)) continue;
    look_for_guards(m);
    if (asks_for_policies) find_policy(m);
    if ((m.map_flags & kMapSealed) == 0) continue;
    if (AddrRange* next = seals.add(); next != nullptr) *next = m.range;
  }
  // A program that has asked for some in vain, of an older kernel, loses none.
  if (guards_are_hidden && kernel_knows_guards()) guards.more = true;
  return !guards.more && !seals.more && !policies.more;
}

uint32_t say_again() {
  uint32_t notes = 0;
  for (uint32_t i = 0; i < policies.count; ++i) {
    const PolicyOfPart& p = policies.all[i];
    if (sys::call(__NR_mbind, p.range.start.value, p.range.size(), long{p.policy.mode}, p.policy.nodes,
                  long{MemoryPolicy::kMostNodes + 1}, long{MPOL_MF_MOVE}) != 0)
      notes |= kNoteMemoryPolicy;
  }
  for (uint32_t i = 0; i < guards.count; ++i) {
    if (sys::call(__NR_madvise, guards.all[i].start.value, guards.all[i].size(), kGuardInstall) != 0)
      notes |= kNoteGuards;
  }
  // Last: what is sealed takes none of the above.
  for (uint32_t i = 0; i < seals.count; ++i) {
    if (sys::call(__NR_mseal, seals.all[i].start.value, seals.all[i].size(), 0L) != 0) notes |= kNoteSeals;
  }
  return notes;
}

}  // namespace ckpt::memory_settings
