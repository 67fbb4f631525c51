// ckpt backtrace: what one thread of any process is doing. libckpt_rt runs it when a thread does not
// stop in time; it is then a child of the program it looks at.
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include <memory>

#include "cli/ask/commands.h"
#include "cli/ask/target.h"
#include "cli/starting/run_command.h"
#include "cli/text/failure.h"

namespace ckpt::cli {

namespace {

struct BacktraceOptions {
  std::string pid, tid;
};

// Does not return: this process becomes ckpt-backtrace.
Error backtrace(const BacktraceOptions& o) {
  auto pid = parse_pid(o.pid);
  if (!pid.ok()) return pid.error();
  auto tid = o.tid.empty() ? pid : parse_pid(o.tid);
  if (!tid.ok()) return tid.error();
  if (access(fmt::format("/proc/{}/task/{}", *pid, *tid).c_str(), F_OK) != 0) {
    return failure(ExitCode::kNoProcess, fmt::format("{}/{}", *pid, *tid), "no such thread",
                   "see /proc/PID/task");
  }
  const std::string program = command_path("ckpt-backtrace"), pid_text = std::to_string(*pid),
                    tid_text = std::to_string(*tid);
  execl(program.c_str(), program.c_str(), pid_text.c_str(), tid_text.c_str(), nullptr);
  return failure(ExitCode::kNotFound, program, fmt::format("cannot be run: {}", strerror(errno)),
                 "install it, and libunwind-ptrace, beside ckpt");
}

}  // namespace

void add_backtrace(CLI::App& app, ExitCode& exit) {
  CLI::App* command = app.add_subcommand("backtrace", "show what a thread of a process is doing");
  auto o = std::make_shared<BacktraceOptions>();
  command->add_option("PID", o->pid, "process id")->required();
  command->add_option("TID", o->tid, "thread id (default: the main thread)");
  command->footer(
      "The thread stands still for the moment. Works with any process, preloaded or not.\n"
      "Exit codes: 0 done, 64 wrong arguments, 66 ckpt-backtrace is not installed, 67 no such thread, 75 it "
      "does\n"
      "not stop, 77 not permitted.");
  command->callback([o, &exit] { exit = report(backtrace(*o)); });
}

}  // namespace ckpt::cli
