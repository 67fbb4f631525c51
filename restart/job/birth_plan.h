// How the processes of a job come into being: which process forks which, in which session, and which is the
// parent of each in the end.
//
// Owner:     restart. Callers: ckpt-restart, before anything is touched; one thread.
// Never:     makes a process: this is arithmetic on the manifest.
// A session and a process group are inherited by fork, or made by their leader. So a process must be forked
// by a process that is in its session at that moment: by its parent, before or after that calls setsid. If
// the parent is in another session, a helper in the right session forks it, and exits, so that its adopter
// gets it. A helper also leads a session or group whose leader is gone.
//
//   planter (a child of ckpt-restart or of the namespace's init; it exits, and these adopt)
//      ├── root ── ...
//      └── orphans, helpers
#pragma once

#include <functional>
#include <vector>

#include "image/read/manifest.h"

namespace ckpt {

inline constexpr int kPlanter =
    -1;  // as a parent: the planter; as an adopter: the process that adopts from it
inline constexpr int kNobody = -2;

enum class BirthKind { kMember, kZombie, kHelper };

struct Birth {
  BirthKind kind = BirthKind::kMember;
  int member = -1;  // index in Manifest::members; -1: a helper
  int pid = 0;
  int sid = 0, pgid = 0;           // 0: those of ckpt-restart
  int parent = kPlanter;           // forks it: index of a birth
  int adopter = kNobody;           // its parent in the end, if that is another
  bool adopts = false;             // a subreaper until all are where they belong
  std::vector<int> before, after;  // births by this process, before and after it leads its session

  bool leads_session() const { return sid != 0 && sid == pid; }
  bool leads_group() const { return pgid != 0 && pgid == pid; }
  bool stays() const { return kind == BirthKind::kMember; }
};

struct BirthPlan {
  std::vector<Birth> births;
  std::vector<int> first;  // by the planter
  int planter_pid = 0, clock_pid = 0;
  std::vector<int> pids() const;  // that must be free: of all births

  // The parent in the end: index of a birth; kPlanter: the process that adopts from the planter.
  int final_parent(int birth) const;
};

// Which session and group of the saved ones are now ckpt-restart's; 0: none.
struct OuterIds {
  int sid = 0, pgid = 0;
};

// free_pid gives a number that no process has and none is to have. Errors: kUnavailable, a tree that cannot
// be made so.
Result<BirthPlan> plan_births(const Manifest& manifest, OuterIds outer, const std::function<int()>& free_pid);

}  // namespace ckpt
