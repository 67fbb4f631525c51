#include "restart/plan/credentials.h"

#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "base/machine/capabilities.h"
#include "base/sys.h"

namespace ckpt {
namespace {

uint64_t own_bounding_set() {
  uint64_t bounding = 0;
  for (int bit = 0; bit < 64; ++bit) {
    if (prctl(PR_CAPBSET_READ, bit, 0, 0, 0) == 1) bounding |= uint64_t{1} << bit;
  }
  return bounding;
}

const char* limit_name(uint32_t resource) {
  static const char* const kNames[16] = {"cpu (ulimit -t)", "fsize (-f)", "data (-d)",   "stack (-s)",
                                         "core (-c)",       "rss",        "nproc (-u)",  "nofile (-n)",
                                         "memlock (-l)",    "as (-v)",    "locks (-x)",  "sigpending (-i)",
                                         "msgqueue (-q)",   "nice (-e)",  "rtprio (-r)", "rttime (-R)"};
  return resource < 16 ? kNames[resource] : "?";
}

}  // namespace

void plan_limits(const ImageMeta& meta, RestorerArgs& args, ReportChannel& report) {
  args.limit_count = 0;
  for (uint32_t i = 0; i < 16; ++i) {
    uint64_t soft = meta.limits.soft[i], hard = meta.limits.hard[i];
    rlimit64 now{};
    if (sys::failed(sys::call(__NR_prlimit64, 0L, i, 0L, &now))) continue;
    // The restarted program is allowed what it was allowed before: both limits rise now and fall in the
    // restorer.
    rlimit64 raised{std::max<uint64_t>(now.rlim_cur, soft), std::max<uint64_t>(now.rlim_max, hard)};
    if (sys::failed(sys::call(__NR_prlimit64, 0L, i, &raised, 0L))) {
      if (soft > now.rlim_max) {
        report.note(fmt::format("the limit {} was {}, here it cannot be more than {}", limit_name(i), soft,
                                static_cast<uint64_t>(now.rlim_max)));
      }
      hard = std::min<uint64_t>(hard, now.rlim_max);
      soft = std::min<uint64_t>(soft, hard);
      raised = {std::max<uint64_t>(now.rlim_cur, soft), now.rlim_max};
      sys::call(__NR_prlimit64, 0L, i, &raised, 0L);
    }
    args.limits[args.limit_count++] = {i, 0, soft, hard};
  }
}

namespace {

// A user namespace made without privilege forbids setgroups(2) for good (user_namespaces(7)); the groups
// are then those of the user that made it.
bool may_set_groups() {
  std::ifstream file("/proc/self/setgroups");
  std::string word;
  return !(file >> word) || word != "deny";
}

}  // namespace

void plan_credentials(const ImageMeta& meta, bool in_new_user, RestorerArgs& args, ReportChannel& report) {
  const ProcessRecord& p = meta.process.record;
  uid_t r, e, s;
  getresuid(&r, &e, &s);
  gid_t rg, eg, sg;
  getresgid(&rg, &eg, &sg);
  bool same =
      r == p.uid[0] && e == p.uid[1] && s == p.uid[2] && rg == p.gid[0] && eg == p.gid[1] && sg == p.gid[2];
  const Capabilities own = own_capabilities();
  const uint64_t bounding = own_bounding_set();
  constexpr uint64_t kSetIds = uint64_t{1} << CAP_SETUID | uint64_t{1} << CAP_SETGID;
  bool may_set = !in_new_user && (own.effective & kSetIds) == kSetIds;
  if (may_set) {
    args.change_ids = 1;
    args.set_groups = may_set_groups() ? 1 : 0;
    for (int i = 0; i < 4; ++i) {
      args.uid[i] = p.uid[i];
      args.gid[i] = p.gid[i];
    }
    args.group_count = static_cast<uint32_t>(meta.process.groups.size());
  } else if (!same) {
    report.note(fmt::format("the program ran as user {} group {}, it comes back as user {} group {}",
                            p.uid[1], p.gid[1], e, eg));
  }

  // Never more than the saved process had, never more than we have.
  uint64_t permitted = p.cap_permitted & own.permitted;
  uint64_t effective = p.cap_effective & permitted;
  uint64_t inheritable = p.cap_inheritable & (own.inheritable | own.permitted) & bounding;
  // A process that leaves user 0 loses all of them, unless PR_SET_KEEPCAPS is on.
  bool stays = permitted == own.permitted && effective == own.effective && inheritable == own.inheritable &&
               (same || args.change_ids == 0);
  constexpr uint64_t kDropBounding = uint64_t{1} << CAP_SETPCAP;
  args.drop_bounding = (own.effective & kDropBounding) != 0 ? bounding & ~p.cap_bounding : 0;
  args.change_capabilities = !stays || args.drop_bounding != 0;
  // To choose thread ids, for their nice values and scheduling, and for oom_score_adj: often set by a service
  // manager that then became the program's user. And other threads than the first may be other users, with
  // more capabilities.
  args.extra_capabilities = own.permitted;
  args.library.set_capabilities = args.change_capabilities != 0 ? kSetsCapabilities : 0u;
  if (args.change_ids != 0 && args.set_groups != 0) args.library.set_capabilities |= kChoosesUsers;
  args.library.cap_permitted = permitted;
  args.library.cap_effective = effective;
  args.library.cap_inheritable = inheritable;
}

}  // namespace ckpt
