// The processes of this host on their way through one checkpoint. A thread asks their coordinator, as
// `ckpt now` asks, and passes on its steps as events.
//
// Owner: cli, the agent. Callers: the agent's thread; the thread inside ends before the object does.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/protocol/control_protocol.h"
#include "base/raii_fd.h"
#include "cli/ask/asker.h"
#include "cluster/protocol/steps.h"

namespace ckpt::cli {

struct LocalEvent {
  cluster::Step step = cluster::Step::kNone;  // kNone: it is over, or
  bool posted = false;                        // plug-ins have posted, and wait for what others have
  bool reconnected = false;    // all have new sockets in place of those to a host that was left
  bool stuck = false;          // or one could not get them: all stand until they are ended
  Answer lines;                // said on the way to the step, or at the end
  std::optional<Error> error;  // at the end
};

class LocalCheckpoint {
 public:
  LocalCheckpoint();
  ~LocalCheckpoint() { join(); }
  LocalCheckpoint(const LocalCheckpoint&) = delete;

  void begin(int pid, const HostsPart& part, const std::string& leave_out);
  // kStepContinue, kStepGiveUp, kStepKeep, kStepReconnect: for the step at which it waits, or the next that
  // it comes to. Processes that are stuck are told nothing before join().
  void tell(char how, const std::string& more = "");
  // Readable while there are events.
  int fd() const { return event_fd_.get(); }
  std::vector<LocalEvent> take();
  void join();

 private:
  void put(LocalEvent event);

  ScopedFd event_fd_;
  std::thread thread_;
  std::mutex lock_;
  std::condition_variable told_;
  std::vector<LocalEvent> events_;
  std::optional<std::string> answer_;
  bool ends_ = false;
};

}  // namespace ckpt::cli
