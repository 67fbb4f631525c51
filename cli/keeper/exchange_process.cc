#include "cli/keeper/exchange_process.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/protocol/keeper_protocol.h"
#include "cli/text/failure.h"
#include "image/format/keeper_client.h"
#include "image/read/manifest.h"

namespace ckpt::cli {

std::string PartInKeeper::path() const { return fmt::format("/proc/self/fd/{}/{}", directory.get(), name); }

Result<PartInKeeper> find_part_in_keeper(const std::string& path) {
  const size_t bytes = keeper_part(path);
  const std::string name = bytes == 0 || bytes >= path.size() ? "" : path.substr(bytes + 1);
  if (name.empty() || name.find('/') != std::string::npos || name[0] == '.' || !name.ends_with(kJobSuffix))
    return failure(ExitCode::kUsage, path, "is no part in a keeper's memory", "report it");
  auto directory = open_keeper_directory(path);
  if (!directory.ok()) return directory.error();
  return PartInKeeper{std::move(*directory), name};
}

std::string checks_of(const std::string& part) {
  return part.substr(0, part.size() - kJobSuffix.size()) + ".checks";
}

Result<void> ExchangeProcess::begin(const Json& plan) {
  id_ = plan.value("id", uint64_t{0});
  // A lost part is computed at the job's priority: a process that has taken a low one cannot go back.
  const bool stays = life_ == Life::kStays && !plan.contains("lost");
  const bool there = stays && stays_ && !works_ && socket_.valid() && write_line(socket_.get(), plan);
  if (!there) {
    end();
    CKPT_TRY(start());
    if (!write_line(socket_.get(), plan)) {
      end();
      return failure(ExitCode::kSystem, command_, "cannot be started", "raise ulimit -u");
    }
  }
  works_ = true;
  stays_ = stays;
  return {};
}

Result<void> ExchangeProcess::start() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return failure(ExitCode::kSystem, command_, strerror(errno), "raise ulimit -n");
  socket_.reset(ends[0]);
  const ScopedFd theirs(ends[1]);
  char self[PATH_MAX];
  const ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
  self[n > 0 ? n : 0] = '\0';
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    // By it a process is known as one of the job, which would have to be saved.
    unsetenv("CKPT_JOB");
    dup2(theirs.get(), STDIN_FILENO);
    char* const argv[] = {self, const_cast<char*>(command_), nullptr};
    execv(self, argv);
    _exit(127);
  }
  // Nobody reaps it before this returns.
  child_.reset(child < 0 ? -1 : static_cast<int>(syscall(SYS_pidfd_open, child, 0)));
  if (child_.valid()) return {};
  end();
  return failure(ExitCode::kSystem, command_, "cannot be started", "raise ulimit -u");
}

void ExchangeProcess::go(const Json& all) {
  if (socket_.valid()) write_line(socket_.get(), all);
}

Json ExchangeProcess::hear() {
  Json line;
  if (read_line(socket_.get(), line, 10'000) && line.is_object()) {
    const std::string say = line.value("say", "");
    if (say == "done" && stays_)
      works_ = false;
    else if (say == "done" || say == "failed")
      end();
    return line;
  }
  const bool idle = !works_;
  end();
  if (idle) return {};
  return {{"say", "failed"}, {"code", 70}, {"text", fmt::format("{} ended without a word", command_)}};
}

Json message_of_exchange(Json line, uint64_t id) {
  line["id"] = id;
  const std::string say = line.value("say", "");
  if (say == "failed") {
    line["of"] = "exchange";
  } else {
    line["say"] = "exchange_" + say;
  }
  return line;
}

Json message_of_save(Json line, uint64_t id) {
  line["id"] = id;
  if (line.value("say", "") == "failed")
    line["of"] = "save";
  else
    line["say"] = "saved";
  return line;
}

Json message_of_back(Json line, uint64_t id) {
  line["id"] = id;
  line["say"] = "back_" + line.value("say", "failed");
  return line;
}

Json message_of_error(const Error& error) {
  return {{"say", "failed"},
          {"code", static_cast<int>(error.code)},
          {"errno", error.sys_errno},
          {"text", std::string(error.message())}};
}

// The agent reaps the process with its other children (Agent::look_for_end).
void ExchangeProcess::end() {
  if (socket_.valid() && child_.valid()) syscall(SYS_pidfd_send_signal, child_.get(), SIGKILL, nullptr, 0);
  socket_.reset();
  child_.reset();
  works_ = stays_ = false;
}

}  // namespace ckpt::cli
