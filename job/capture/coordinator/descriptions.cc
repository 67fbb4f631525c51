#include "job/capture/coordinator/descriptions.h"

#include <errno.h>
#include <linux/kcmp.h>

#include <algorithm>

#include "base/clock.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::job {

namespace {

struct Use {
  const OpenFileKey* key;
  uint32_t member;
};

// What can be seen without asking the kernel.
int order_of(const OpenFileKey& a, const OpenFileKey& b) {
  auto three = [](auto x, auto y) { return x < y ? -1 : x > y ? 1 : 0; };
  if (int c = three(a.inode, b.inode)) return c;
  if (int c = three(a.device, b.device)) return c;
  if (int c = three(a.kind, b.kind)) return c;
  return three(a.open_flags, b.open_flags);
}

int thread_with(std::span<const MemberFiles> members, const Use& use) {
  return use.key->tid != 0 ? use.key->tid : members[use.member].tid;
}

Error full() {
  return make_error(ExitCode::kInternal, ENOMEM, "no memory for the list of shared descriptors");
}

}  // namespace

Result<void> find_shared(std::span<const MemberFiles> members, int64_t until_ns, Arena& arena,
                         ArenaVector<SharedUse>& shared) {
  ArenaVector<Use> uses(arena);
  for (uint32_t m = 0; m < members.size(); ++m) {
    for (const OpenFileKey& key : members[m].files) {
      if (!uses.push_back({&key, m})) return full();
    }
  }
  std::sort(uses.begin(), uses.end(), [](const Use& a, const Use& b) {
    const int c = order_of(*a.key, *b.key);
    return c != 0 ? c < 0 : a.member < b.member;
  });
  // Of uses that look alike: one of each description, in the kernel's order.
  struct Class {
    Use first;
    uint32_t group;  // 0: only one use so far
  };
  ArenaVector<Class> classes(arena);
  uint32_t groups = 0;
  for (size_t begin = 0, end; begin < uses.size(); begin = end) {
    for (end = begin + 1; end < uses.size() && order_of(*uses[begin].key, *uses[end].key) == 0;) ++end;
    if (uses[begin].member == uses[end - 1].member) continue;  // one member's: it has told them apart itself
    classes.clear();
    for (size_t i = begin; i < end; ++i) {
      const Use& use = uses[i];
      size_t low = 0, high = classes.size();
      bool found = false;
      if (now_ns() > until_ns)
        return make_error(ExitCode::kTimeout, 0,
                          "the processes of the job have {} open files that look alike: which of them are "
                          "one could not be told in "
                          "time (CKPT_STOP_TIMEOUT); the checkpoint was given up",
                          end - begin);
      while (low < high && !found) {
        const size_t middle = (low + high) / 2;
        const Use& other = classes[middle].first;
        // Two open files of one member are different: their order is still needed.
        const long r = sys::call(__NR_kcmp, thread_with(members, other), thread_with(members, use), KCMP_FILE,
                                 other.key->fd, use.key->fd);
        if (r < 0) {
          return make_error(ExitCode::kUnavailable, static_cast<int>(r),
                            "cannot tell whether processes {} and {} share an open file: kcmp(2) is refused "
                            "({}); make them dumpable, or allow kcmp in the container",
                            members[other.member].pid, members[use.member].pid,
                            errno_name(static_cast<int>(r)));
        }
        if (r == 0) {
          Class& same = classes[middle];
          if (same.group == 0) {
            same.group = ++groups;
            if (!shared.push_back({same.first.member, same.first.key->open_file, same.group})) return full();
          }
          if (!shared.push_back({use.member, use.key->open_file, same.group})) return full();
          found = true;
        } else if (r == 1) {  // other before use
          low = middle + 1;
        } else {
          high = middle;
        }
      }
      if (found) continue;
      if (!classes.push_back({use, 0})) return full();
      for (size_t k = classes.size() - 1; k > low; --k) std::swap(classes[k], classes[k - 1]);
    }
  }
  std::sort(shared.begin(), shared.end(), [](const SharedUse& a, const SharedUse& b) {
    return a.group != b.group ? a.group < b.group : a.member < b.member;
  });
  return {};
}

}  // namespace ckpt::job
