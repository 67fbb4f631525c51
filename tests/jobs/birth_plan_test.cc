// Who is born by whom: trees as manifests have them, and what the kernel would make of the plan.
#include "restart/job/birth_plan.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace ckpt {
namespace {

ManifestMember member(int pid, int ppid, int pgid, int sid, bool orphan = false) {
  ManifestMember m;
  m.pid = pid;
  m.ppid = ppid;
  m.pgid = pgid;
  m.sid = sid;
  m.orphan = orphan;
  m.name = "p" + std::to_string(pid);
  m.image = m.name + ".ckpt";
  return m;
}

Manifest manifest(std::vector<ManifestMember> members) {
  Manifest result;
  result.members = std::move(members);
  result.root = result.members.front().pid;
  return result;
}

Result<BirthPlan> plan(const Manifest& m) {
  int next = 1000;
  const ManifestMember& root = m.members.front();
  return plan_births(m, {root.sid == root.pid ? 0 : root.sid, root.pgid == root.pid ? 0 : root.pgid},
                     [next]() mutable { return next++; });
}

// Plays the plan as the kernel would, and compares parents, sessions and groups with the manifest's.
class Kernel {
 public:
  Kernel(const Manifest& m, const BirthPlan& p) : manifest_(m), plan_(p) {
    for (int i : p.first) bear(i, kPlanter, 0, 0);
    for (size_t i = 0; i < p.births.size(); ++i) {
      const Birth& b = p.births[i];
      if (b.leads_group() && !b.leads_session()) group_[static_cast<int>(i)] = b.pid;
    }
    for (size_t i = 0; i < p.births.size(); ++i) join(static_cast<int>(i));
  }

  void check() const {
    EXPECT_EQ(session_.size(), plan_.births.size()) << "each is born once";
    for (size_t n = 0; n < plan_.births.size(); ++n) {
      const int i = static_cast<int>(n);
      const Birth& b = plan_.births[n];
      if (b.member < 0) continue;
      const ManifestMember& m = manifest_.members[static_cast<size_t>(b.member)];
      EXPECT_EQ(session_.at(i), b.sid) << m.pid;
      EXPECT_EQ(group_.at(i), b.pgid) << m.pid;
      const int parent = parent_after_exits(i);
      if (m.orphan) {
        EXPECT_EQ(parent, kPlanter) << m.pid;
      } else if (manifest_.member(m.ppid) != nullptr) {
        ASSERT_GE(parent, 0) << m.pid;
        EXPECT_EQ(plan_.births[static_cast<size_t>(parent)].pid, m.ppid);
      }
    }
  }

 private:
  void bear(int i, int parent, int session, int group) {
    ASSERT_EQ(session_.count(i), 0u);
    const Birth& b = plan_.births[static_cast<size_t>(i)];
    parent_[i] = parent;
    for (int c : b.before) bear(c, i, session, group);
    if (b.leads_session()) session = group = b.pid;
    session_[i] = session;
    group_[i] = group;
    for (int c : b.after) bear(c, i, session, group);
  }

  void join(int i) {
    const Birth& b = plan_.births[static_cast<size_t>(i)];
    if (b.pgid == 0 || group_[i] == b.pgid) return;
    bool led = false;  // in the same session, as setpgid wants it
    for (size_t l = 0; l < plan_.births.size(); ++l) {
      led = led || (plan_.births[l].pid == b.pgid && session_[static_cast<int>(l)] == session_[i]);
    }
    EXPECT_TRUE(led) << b.pid << " in group " << b.pgid;
    group_[i] = b.pgid;
  }

  int parent_after_exits(int i) const {
    int p = parent_.at(i);
    if (p < 0 || plan_.births[static_cast<size_t>(p)].kind != BirthKind::kHelper) return p;
    for (p = parent_.at(p); p >= 0; p = parent_.at(p)) {
      if (plan_.births[static_cast<size_t>(p)].adopts) return p;
    }
    return kPlanter;
  }

  const Manifest& manifest_;
  const BirthPlan& plan_;
  std::map<int, int> parent_, session_, group_;
};

void expect_possible(const Manifest& m) {
  auto p = plan(m);
  ASSERT_TRUE(p.ok()) << p.error().text;
  std::set<int> pids;
  for (int pid : p->pids()) EXPECT_TRUE(pids.insert(pid).second) << pid << " twice";
  Kernel(m, *p).check();
}

TEST(BirthPlan, one) { expect_possible(manifest({member(10, 1, 9, 9)})); }

TEST(BirthPlan, pipelineInTheSessionOfAShell) {
  expect_possible(
      manifest({member(10, 1, 10, 9), member(11, 10, 10, 9), member(12, 10, 10, 9), member(13, 12, 10, 9)}));
}

TEST(BirthPlan, groupWhoseLeaderIsGone) {
  expect_possible(manifest({member(10, 1, 10, 9), member(12, 10, 11, 9), member(13, 10, 11, 9)}));
}

TEST(BirthPlan, shellWithJobs) {
  expect_possible(manifest({member(10, 1, 10, 9), member(20, 10, 20, 20), member(21, 20, 21, 20),
                            member(22, 20, 21, 20), member(23, 20, 23, 20), member(24, 23, 23, 20)}));
}

TEST(BirthPlan, daemonWhoseSessionLeaderIsGone) {
  expect_possible(manifest({member(10, 1, 10, 9), member(21, 1, 20, 20, true), member(22, 21, 20, 20),
                            member(23, 1, 20, 20, true)}));
}

TEST(BirthPlan, orphanInTheSessionOfAMember) {
  expect_possible(manifest({member(10, 1, 10, 9), member(20, 10, 20, 20), member(22, 1, 20, 20, true),
                            member(23, 1, 23, 20, true)}));
}

TEST(BirthPlan, childOfTheOlderSession) {
  // 10 bore 11 in the restarter's session, then led its own.
  expect_possible(
      manifest({member(5, 1, 5, 4), member(10, 5, 10, 10), member(11, 10, 5, 4), member(12, 10, 10, 10)}));
}

TEST(BirthPlan, olderSessionsInAChain) {
  expect_possible(manifest({member(5, 1, 5, 4), member(10, 5, 10, 10), member(11, 10, 11, 11),
                            member(12, 11, 5, 4), member(13, 11, 11, 11)}));
}

TEST(BirthPlan, subreaperOfAProcessInAnotherSession) {
  expect_possible(manifest({member(10, 1, 10, 9), member(11, 10, 11, 11), member(15, 10, 11, 11)}));
}

TEST(BirthPlan, subreaperOfASessionWhoseLeaderIsGone) {
  expect_possible(manifest({member(10, 1, 10, 9), member(15, 10, 14, 14), member(16, 15, 16, 14)}));
}

TEST(BirthPlan, zombiesLeadSessions) {
  Manifest m = manifest({member(10, 1, 10, 9), member(12, 10, 12, 12), member(13, 10, 12, 12)});
  m.members[1].state = MemberState::kZombie;
  m.members[1].image.clear();
  expect_possible(m);
}

TEST(BirthPlan, subreaperThatLeadsASessionItself) {
  // 15 was born in the session of 11, which lives or has ended, and was adopted by 10.
  Manifest m = manifest({member(10, 1, 10, 10), member(11, 10, 11, 11), member(15, 10, 11, 11)});
  expect_possible(m);
  m.members[1].state = MemberState::kZombie;
  m.members[1].image.clear();
  expect_possible(m);
  expect_possible(manifest({member(10, 1, 10, 10), member(11, 10, 11, 10), member(12, 11, 12, 12),
                            member(15, 10, 12, 12), member(16, 15, 16, 12)}));
  // A child of its older session, and one of a session whose leader is gone.
  expect_possible(
      manifest({member(5, 1, 5, 4), member(10, 5, 10, 10), member(11, 10, 5, 4), member(15, 10, 14, 14)}));
  expect_possible(
      manifest({member(5, 1, 5, 4), member(10, 5, 10, 10), member(15, 10, 14, 14), member(11, 10, 5, 4)}));
}

TEST(BirthPlan, parentThatWasInAnotherSessionBefore) {
  expect_possible(manifest(
      {member(10, 1, 10, 9), member(11, 10, 11, 11), member(12, 10, 12, 12), member(13, 11, 12, 12)}));
}

TEST(BirthPlan, refusesWhatCannotBe) {
  // 13 is in the session of 12, below whom its parent 11 never was.
  Manifest m =
      manifest({member(10, 1, 10, 9), member(11, 10, 10, 9), member(12, 10, 12, 12), member(13, 11, 12, 12)});
  auto p = plan(m);
  ASSERT_FALSE(p.ok());
  EXPECT_EQ(p.error().code, ExitCode::kUnavailable);
}

}  // namespace
}  // namespace ckpt
