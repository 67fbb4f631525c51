#include "job/capture/members/members.h"

#include <algorithm>

#include "job/identity/own_job.h"
#include "libckpt_rt/core/hooks.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::job {

namespace {

bool has(const ArenaVector<Listed>& members, int pid) {
  return std::any_of(members.begin(), members.end(), [&](const Listed& m) { return m.look.pid == pid; });
}

// The process above in the tree that is a member, or 0.
int member_above(const ProcessLook& look, const Identity& job, const JobText& digits) {
  if (look.ppid <= 1 && look.ppid != job.root) return 0;
  const int named = environment_names_job(look.ppid, digits.text);
  if (named == 1) return look.ppid;
  if (named == 0) return 0;
  return mappings_name_job(look.ppid, digits.text) ? look.ppid : 0;
}

bool add_tree(const Listed& top, Arena& arena, ArenaVector<Listed>& members) {
  if (has(members, top.look.pid)) return true;
  const size_t first = members.size();
  if (!members.push_back(top)) return false;
  ArenaVector<int> children(arena);
  for (size_t i = first; i < members.size(); ++i) {
    if (members[i].look.ended()) continue;
    children.clear();
    if (!list_children(members[i].look.pid, children)) return false;
    for (int child : children) {
      Listed one;
      if (has(members, child) || !look_at(child, one.look)) continue;
      if (!members.push_back(one)) return false;
    }
  }
  return true;
}

}  // namespace

bool list_members(const Identity& job, int own_pid, Arena& arena, ArenaVector<Listed>& members) {
  const JobText digits = job_text(job.id);
  members.clear();
  ProcessLook top;
  if (!look_at(own_pid, top)) return true;
  // Up to the topmost member above us.
  constexpr int kMostLevels = 4096;
  for (int level = 0; level < kMostLevels; ++level) {
    const int above = top.pid == job.root ? 0 : member_above(top, job, digits);
    ProcessLook look;
    if (above == 0 || !look_at(above, look)) break;
    top = look;
  }
  if (!add_tree({top, top.pid != job.root}, arena, members)) return false;
  // The first preloaded process may have gone, and so may any between it and us; then others have been
  // adopted where the topmost was, or above.
  ArenaVector<int> children(arena);
  for (int ancestor = top.ppid, level = 0; ancestor > 0 && level < kMostLevels; ++level) {
    children.clear();
    if (!list_children(ancestor, children)) return false;
    for (int child : children) {
      if (child == top.pid || has(members, child)) continue;
      const bool is_root = child == job.root;
      const int named = environment_names_job(child, digits.text);
      if (named == 0 || (named < 0 && !mappings_name_job(child, digits.text))) continue;
      Listed one;
      if (!look_at(child, one.look)) continue;
      one.orphan = !is_root;
      if (!add_tree(one, arena, members)) return false;
    }
    ProcessLook look;
    if (!look_at(ancestor, look)) break;
    ancestor = look.ppid;
  }
  return true;
}

int hidden_root(const Identity& job, int own_pid, const ArenaVector<Listed>& members) {
  if (job.root == own_pid || has(members, job.root)) return 0;
  constexpr int kMostLevels = 4096;
  int pid = own_pid;
  for (int level = 0; level < kMostLevels && pid > 0; ++level) {
    ProcessLook look;
    if (!look_at(pid, look)) return 0;
    if (pid == job.root) return look.ended() ? 0 : pid;
    pid = look.ppid;
  }
  return 0;
}

bool is_alone(const Identity& job, int own_pid) {
  if (job.root == 0) return true;
  Arena arena;
  if (!arena.reserve(8 << 20)) return true;
  // relaxed: hints; a child that is there is seen.
  const bool childless = !hooks::has_forked.load(std::memory_order_relaxed) &&
                         !hooks::has_spawned.load(std::memory_order_relaxed);
  if (job.root == own_pid && !own_job.inherited && childless) {
    ArenaVector<int> children(arena);
    return list_children(own_pid, children) && children.empty();
  }
  ArenaVector<Listed> members(arena);
  return list_members(job, own_pid, arena, members) && members.size() <= 1 &&
         hidden_root(job, own_pid, members) == 0;
}

}  // namespace ckpt::job
