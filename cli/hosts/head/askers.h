// Who has asked the head for something: users here, users on the job's hosts through their agents, signals,
// the clock. The head serves the askers one after the other, and answers each once.
//
// Owner: cli, the head. One thread. Callers: the head's loop.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "base/raii_fd.h"
#include "base/result.h"
#include "cli/hosts/crew/crew.h"
#include "cli/hosts/head/moving.h"
#include "cli/hosts/restart/going_back.h"

namespace ckpt::cli {

struct Asker {
  int host = -1;  // through this host's agent; -1: here
  int number = 0;
  ScopedFd connection = {};  // here
  bool silent = false;       // a signal, the clock: told on standard error when it fails
  std::string leave_out = {};
  std::optional<MoveWish> move = {};     // ckpt migrate
  std::optional<std::string> back = {};  // ckpt back: to which checkpoint
};

// {"code", "error"}, as the asker's command reports it.
Json answer_of_error(const Error& error);

class Askers {
 public:
  explicit Askers(Crew& crew) : crew_(crew) {}

  void add_silent();
  // Over a connection of this host, which is read.
  void add(ScopedFd connection);
  void add(int host, const Json& question);
  bool waiting() const { return !waiting_.empty(); }

  // The one that is served; nullptr: none.
  Asker* served() { return served_ ? &*served_ : nullptr; }
  void serve_next();
  void answer(Json what);
  // Answers one that has asked on a host of the job, whose agent is about to end; others have their answer
  // later.
  void answer_on_host(Json what);
  // Its agent is about to end: those that have asked there are answered by nobody.
  void forget_host(int host);
  // For an answer that comes when this head's crew is another one.
  std::function<void(const Json&)> take_connection();
  // The job is about to end, or to go on elsewhere.
  void answer_all(const Json& what);

 private:
  void tell(const Asker& asker, Json what);

  Crew& crew_;
  std::deque<Asker> waiting_;
  std::optional<Asker> served_;
};

}  // namespace ckpt::cli
