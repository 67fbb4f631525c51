// One process at a time looks at a socket, or a terminal. A look sets options for a moment (SO_PEEK_OFF, the
// keys of a terminal, ...), and several processes may have the same one: of a job all look at the same
// instant.
//
// The turn is a lock of fcntl(2) on the file itself: it needs no place that all of them can reach, is known
// to the kernel by the agent's own descriptor table, and goes with a process that is killed.
//
// Owner:     libckpt_rt, on the agent's stack. Callers: the agent, in the stop, on a duplicate that
//            it closes when the turn is over.
// Never:     waits longer than kLongestTurn for others: threads stand.
#pragma once

#include <cstdint>

namespace ckpt {

class FileTurn {
 public:
  static constexpr int64_t kLongestTurn = 5'000'000'000;  // ns

  // Waits for it. other: a second socket of which it is the turn as well, -1 none.
  explicit FileTurn(int socket, int other = -1);
  ~FileTurn();
  FileTurn(const FileTurn&) = delete;
  FileTurn& operator=(const FileTurn&) = delete;

  // False: another process keeps it, and what would be seen is half of what that one has set.
  bool taken() const { return taken_; }

 private:
  int sockets_[2];
  bool taken_;
};

}  // namespace ckpt
