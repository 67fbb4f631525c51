// What the processes of one restart tell ckpt-restart: notes and failures in words, and what became
// of the program.
//
// Owner:     restart. One sequenced-packet socket pair. At one end is ckpt-restart; at the other, all
//            together: the init of a new pid namespace, the program's process until the restorer runs, and of
//            a job the planter and all processes that it makes. ckpt-restart sends kProceed and kDetach.
// Callers:   one thread of each of these processes.
// Never:     blocks the writer: a message is one packet, and there are few.
// The stages that the restorer and the library reach go through another pipe (RestartStatus), since
// neither can make words.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string_view>
#include <utility>

#include "base/protocol/restart_protocol.h"
#include "base/raii_fd.h"
#include "base/result.h"

namespace ckpt {

enum class ReportKind : uint32_t {
  kNote =
      1,  // text: a line for the user; value 1: for now, while something is waited for, not for when all runs
  kError = 2,    // text, code: the restart failed
  kStage = 3,    // value: RestartStage reached
  kProgram = 4,  // value: the program's pid as it sees itself; with a pidfd
  kStopped = 5,  // value: signal that stopped the program
  kEnded = 6,    // value: wait status of the program
  kProceed = 7,  // to init: the user and group maps are written
  kDetach = 8,   // to init: live on without ckpt-restart
  kBorn = 9,     // of a job. value: the birth; with a pidfd
  kClocks = 10,  // of a job, with a descriptor: the offsets of its time namespace, to be written
};

struct Report {
  ReportKind kind = ReportKind::kNote;
  int32_t code = 0;
  int32_t sys_errno = 0;
  int32_t value = 0;
  int32_t who = -1;  // birth in the job, -1: no process of it
  char text[1024] = {};
};

class ReportChannel {
 public:
  ReportChannel() = default;
  explicit ReportChannel(ScopedFd fd) : fd_(std::move(fd)) {}

  int fd() const { return fd_.get(); }
  void close() { fd_.reset(); }
  // In a process of a job: who says what is said from now on.
  void speak_as(int32_t who) { who_ = who; }
  void move_to(int fd) {
    fd_.release();
    fd_ = ScopedFd(fd);
  }

  void note(std::string_view text, bool at_once = false);
  void error(const Error& error);
  void send(ReportKind kind, int32_t value, int pidfd = -1);

  // Waits for the next message. nullopt at the end (every writer is gone), which also closes our end: it
  // would stay readable; or with dont_wait when there is none. `pidfd` receives a descriptor that came with
  // it.
  std::optional<Report> receive(ScopedFd* pidfd, bool dont_wait);
  // take(Report&, ScopedFd pidfd) for each message that has come.
  template <typename Take>
  void receive_all(Take take) {
    while (fd() >= 0) {
      ScopedFd pidfd;
      auto report = receive(&pidfd, true);
      if (!report) return;
      take(*report, std::move(pidfd));
    }
  }

 private:
  ScopedFd fd_;
  int32_t who_ = -1;
};

// Both ends, close-on-exec.
Result<std::pair<ReportChannel, ReportChannel>> make_report_channel();

}  // namespace ckpt
