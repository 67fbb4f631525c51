#include "restart/job/birth_plan.h"

#include <algorithm>
#include <map>

namespace ckpt {
namespace {

class Planner {
 public:
  Planner(const Manifest& manifest, OuterIds outer, const std::function<int()>& free_pid)
      : manifest_(manifest), outer_(outer), free_pid_(free_pid) {}

  Result<BirthPlan> plan() {
    add_members();
    CKPT_TRY(add_dead_leaders());
    plan_.planter_pid = free_pid_();
    plan_.clock_pid = free_pid_();
    for (int i : children_first()) CKPT_TRY(find_parent(i));
    place_session_helpers();
    for (int i = 0; i < count(); ++i) bear(i);
    CKPT_TRY(check_adoptions());
    return std::move(plan_);
  }

 private:
  int count() const { return static_cast<int>(plan_.births.size()); }
  Birth& birth(int i) { return plan_.births[static_cast<size_t>(i)]; }

  int add(Birth b) {
    by_pid_[b.pid] = count();
    plan_.births.push_back(std::move(b));
    natural_.push_back(kPlanter);
    needs_.push_back(kFree);
    before_.push_back(false);
    return count() - 1;
  }

  int session_of(int sid) const { return sid == 0 || sid == outer_.sid ? 0 : sid; }
  int group_of(int pgid) const { return pgid == 0 || pgid == outer_.pgid ? 0 : pgid; }

  void add_members() {
    for (size_t i = 0; i < manifest_.members.size(); ++i) {
      const ManifestMember& m = manifest_.members[i];
      const bool zombie = m.state == MemberState::kZombie;
      if (zombie && is_orphan(m)) continue;  // its adopter reaps it
      Birth b;
      b.kind = zombie ? BirthKind::kZombie : BirthKind::kMember;
      b.member = static_cast<int>(i);
      b.pid = m.pid;
      b.sid = session_of(m.sid);
      b.pgid = group_of(m.pgid);
      add(b);
    }
    for (int i = 0; i < count(); ++i) {
      const ManifestMember& m = manifest_.members[static_cast<size_t>(birth(i).member)];
      if (!is_orphan(m)) natural_[static_cast<size_t>(i)] = by_pid_.at(m.ppid);
    }
  }
  bool is_orphan(const ManifestMember& m) const { return m.orphan || manifest_.member(m.ppid) == nullptr; }

  // Helpers in place of the leaders of sessions and groups that live on without them.
  Result<void> add_dead_leaders() {
    const int members = count();
    for (int i = 0; i < members; ++i) {
      const int sid = birth(i).sid;
      if (sid == 0 || by_pid_.count(sid) != 0) continue;
      Birth helper;
      helper.kind = BirthKind::kHelper;
      helper.pid = helper.sid = helper.pgid = sid;
      session_helpers_.push_back(add(helper));
    }
    for (int i = 0; i < members; ++i) {
      const int pgid = birth(i).pgid, sid = birth(i).sid;
      if (pgid == 0) continue;
      const auto leader = by_pid_.find(pgid);
      if (leader != by_pid_.end()) {
        const Birth& l = birth(leader->second);
        if (l.sid == sid && l.pgid == pgid) continue;
        return make_error(ExitCode::kImageDamaged, 0,
                          "the manifest has process {} in group {} of another session, or without its leader",
                          birth(i).pid, pgid);
      }
      Birth helper;
      helper.kind = BirthKind::kHelper;
      helper.pid = helper.pgid = pgid;
      helper.sid = sid;
      const int added = add(helper);
      birth(added).parent = sid == 0 ? kPlanter : by_pid_.at(sid);
    }
    return {};
  }

  // Members and zombies, each after all of its children.
  std::vector<int> children_first() {
    std::vector<std::vector<int>> children(static_cast<size_t>(count()));
    std::vector<int> order;
    for (int i = 0; i < count(); ++i) {
      if (birth(i).member < 0) continue;
      if (natural_[static_cast<size_t>(i)] < 0) {
        order.push_back(i);
      } else {
        children[static_cast<size_t>(natural_[static_cast<size_t>(i)])].push_back(i);
      }
    }
    for (size_t at = 0; at < order.size(); ++at) {
      const auto& mine = children[static_cast<size_t>(order[at])];
      order.insert(order.end(), mine.begin(), mine.end());
    }
    std::reverse(order.begin(), order.end());
    return order;
  }

  // Which session must it be born in? kFree: any will do, since it makes its own.
  int born_in(int i) const {
    const Birth& b = plan_.births[static_cast<size_t>(i)];
    return b.leads_session() ? needs_[static_cast<size_t>(i)] : b.sid;
  }

  // A parent was there before its children. So it was not born in a session whose leader is below it.
  bool leader_is_below(int session, int parent) const {
    const auto leader = by_pid_.find(session);
    int steps = 0;
    for (int p = leader != by_pid_.end() ? leader->second : kPlanter; p >= 0 && ++steps <= count();
         p = natural_[static_cast<size_t>(p)]) {
      if (p == parent) return true;
    }
    return false;
  }

  // It was begun by a process that is gone, so where is not known: perhaps below the parent.
  bool leader_is_gone(int session) const {
    return session != 0 && plan_.births[static_cast<size_t>(by_pid_.at(session))].kind == BirthKind::kHelper;
  }

  Result<void> find_parent(int i) {
    const int session = born_in(i), parent = natural_[static_cast<size_t>(i)];
    birth(i).parent = parent;
    if (parent < 0) {
      if (session != kFree && session != 0) via_.push_back(i);
      return {};
    }
    if (session == kFree || session == birth(parent).sid) return {};
    int& needed = needs_[static_cast<size_t>(parent)];
    if (birth(parent).leads_session() && !leader_is_below(session, parent)) {
      if (needed != kFree && needed != session && leader_is_gone(needed) && !leader_is_gone(session)) {
        bear_by_helpers(parent);
        needed = kFree;
      }
      if (needed == kFree || needed == session) {
        needed = session;
        before_[static_cast<size_t>(i)] = true;
        return {};
      }
    }
    if (session == 0) return cannot_be(birth(i));
    via_.push_back(i);
    return {};
  }

  // Those children of parent that it was to bear before it leads its session.
  void bear_by_helpers(int parent) {
    for (int i = 0; i < count(); ++i) {
      if (natural_[static_cast<size_t>(i)] != parent || !before_[static_cast<size_t>(i)]) continue;
      before_[static_cast<size_t>(i)] = false;
      via_.push_back(i);
    }
  }

  // A session whose leader is gone begins below the process that is to adopt its members.
  void place_session_helpers() {
    for (int helper : session_helpers_) {
      int parent = kNobody;
      for (int i : via_) {
        if (born_in(i) != birth(helper).sid) continue;
        const int adopter = natural_[static_cast<size_t>(i)];
        parent = parent == kNobody || parent == adopter ? adopter : kPlanter;
      }
      birth(helper).parent = parent == kNobody ? kPlanter : parent;
    }
    for (int i : via_) {
      const int leader = by_pid_.at(born_in(i));
      birth(i).adopter = natural_[static_cast<size_t>(i)];
      if (birth(i).adopter >= 0) birth(birth(i).adopter).adopts = true;
      if (birth(leader).kind == BirthKind::kHelper) {
        birth(i).parent = leader;
        continue;
      }
      Birth between;
      between.kind = BirthKind::kHelper;
      between.pid = free_pid_();
      between.sid = birth(leader).sid;
      between.pgid = birth(leader).pgid == birth(leader).sid ? birth(leader).pgid : 0;
      between.parent = leader;
      birth(i).parent = add(between);
    }
  }

  void bear(int i) {
    const int parent = birth(i).parent;
    if (parent == kPlanter) {
      plan_.first.push_back(i);
    } else if (before_[static_cast<size_t>(i)] && birth(i).adopter == kNobody) {
      birth(parent).before.push_back(i);
    } else {
      birth(parent).after.push_back(i);
    }
  }

  // The kernel gives an orphan to its nearest ancestor that adopts: that must be the adopter of the plan.
  Result<void> check_adoptions() {
    for (int i = 0; i < count(); ++i) {
      const Birth& b = birth(i);
      int steps = 0;
      for (int p = b.parent; p >= 0; p = birth(p).parent) {
        if (++steps > count()) return cannot_be(b);
      }
      if (b.adopter == kNobody) continue;
      int found = birth(b.parent).parent;
      while (found >= 0 && !birth(found).adopts) found = birth(found).parent;
      if (found != b.adopter) return cannot_be(b);
    }
    return {};
  }

  static Error cannot_be(const Birth& b) {
    return make_error(
        ExitCode::kUnavailable, 0,
        "process {} cannot have its parent and its session {} again: no process is in a place to "
        "bear it",
        b.pid, b.sid);
  }

  static constexpr int kFree = -1;

  const Manifest& manifest_;
  OuterIds outer_;
  const std::function<int()>& free_pid_;
  BirthPlan plan_;
  std::map<int, int> by_pid_;
  // By birth:
  std::vector<int> natural_;  // the parent that it has in the end
  std::vector<int> needs_;    // of a leader: the session in which it must be born, for its children's sake
  std::vector<bool> before_;
  std::vector<int> via_;  // births that a helper bears
  std::vector<int> session_helpers_;
};

}  // namespace

std::vector<int> BirthPlan::pids() const {
  std::vector<int> result;
  for (const Birth& b : births) result.push_back(b.pid);
  return result;
}

int BirthPlan::final_parent(int birth) const {
  const Birth& b = births[static_cast<size_t>(birth)];
  return b.adopter == kNobody ? b.parent : b.adopter;
}

Result<BirthPlan> plan_births(const Manifest& manifest, OuterIds outer,
                              const std::function<int()>& free_pid) {
  return Planner(manifest, outer, free_pid).plan();
}

}  // namespace ckpt
