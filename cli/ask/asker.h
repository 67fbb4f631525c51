// The asker's side of base/protocol/control_protocol.h: one question to one preloaded program.
//
// Owner: cli. Ordinary code, one thread; a program in another network namespace is reached through a socket
//        made by a forked child. Callers: `ckpt now`, `stat`, `back`, `check`.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/protocol/control_protocol.h"
#include "base/result.h"
#include "cli/ask/target.h"

namespace ckpt::cli {

struct AskLimits {
  // Until the program says hello. Without total_ns it has longer while it takes a checkpoint for
  // someone else: requests are served one after another.
  int64_t answer_ns = 10'000'000'000;
  int64_t total_ns = 0;  // until the answer is complete; 0: as long as it takes
};

// `timeout`: what the user gave as --timeout. An empty text changes nothing.
Result<void> set_timeout(const std::string& timeout, AskLimits& limits);

// Of a checkpoint.
struct AskOptions {
  bool only = false;         // of this process alone
  std::string leave_out;     // as LeaveOutList
  bool back_of_job = false;  // of kBack: a checkpoint of the job that has not begun makes way
  // The process is stopped, and traced meanwhile: says by which signal it is. Set by ask() itself.
  std::function<int()> stop_signal = {};
  // As one host's part of a job over several: at_step is called at each step and says how it goes on
  // (kStepContinue, ..., and what belongs to it). `lines` has what the program said since the step before.
  const HostsPart* part = nullptr;
  std::function<std::string(const std::string& step,
                            const std::vector<std::pair<std::string, std::string>>& lines)>
      at_step = {};
};

// "key value" in the order of arrival; keys may repeat ("note").
using Answer = std::vector<std::pair<std::string, std::string>>;

// The first value of a key, or "" / 0.
std::string text_of(const Answer& answer, const std::string& key);
uint64_t number_of(const Answer& answer, const std::string& key);

using OnProgress = std::function<void(uint64_t done, uint64_t total)>;

// Of what is not done with a stopped process (SIGSTOP, a terminal's stop).
Result<void> refuse_stopped(const Target& target);

// Queues the signal, accepts the program's connection, asks, and collects the answer. An "error" line
// comes back as that Error; a program that dies, hangs up or says nothing in time as kNoProcess,
// kInternal or kTimeout.
Result<Answer> ask(const Target& target, ControlOperation operation, const AskLimits& limits,
                   const OnProgress& on_progress, const AskOptions& options = {});

// The same in two steps, for an operation that says more in between: the connection once it is asked, and the
// lines that follow.
Result<ScopedFd> call(const Target& target, ControlOperation operation, const AskLimits& limits,
                      const AskOptions& options = {});
Result<Answer> read_answer(const Target& target, int connection, const AskLimits& limits,
                           const OnProgress& on_progress, const AskOptions& options = {});
// Exactly so many bytes of it, in limits.answer_ns.
Result<void> read_exactly(const Target& target, int connection, const AskLimits& limits, void* out,
                          size_t bytes);
// A socket that hands descriptors to the program, once: at the abstract address "NAME.COOKIE". Only the
// program is let in.
Result<ScopedFd> listen_near(const Target& target, const char* name, uint64_t cookie);
Result<ScopedFd> accept_from(const Target& target, int listener, const AskLimits& limits);

}  // namespace ckpt::cli
