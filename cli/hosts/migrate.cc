// ckpt migrate: asks the head of a job over several hosts to have the processes of one host go on elsewhere.
#include <memory>

#include "cli/ask/asker.h"
#include "cli/hosts/commands.h"
#include "cli/hosts/job/ask_job.h"
#include "cli/text/failure.h"
#include "cli/text/human.h"
#include "cli/text/json_lines.h"
#include "cli/text/text_out.h"

namespace ckpt::cli {

namespace {

struct MigrateOptions {
  std::string pid, from, to;
  int rank = -1;
  bool json = false;
};

Result<void> migrate(const MigrateOptions& o) {
  auto pid = parse_pid(o.pid);
  if (!pid.ok()) return pid.error();
  auto said = answer_of_job_over_hosts(
      *pid, o.pid, {{"leave_out", ""}, {"move", {{"from", o.from}, {"to", o.to}, {"rank", o.rank}}}});
  if (!said.ok()) return said.error();
  if (!said->has_value())
    return failure(ExitCode::kNoProcess, o.pid, "belongs to no job over several hosts",
                   "name a process of one, or its ckpt run --hosts");
  const Json& answer = **said;
  if (o.json) {
    print_json(answer);
    return {};
  }
  const std::string from = answer.value("from", ""), to = answer.value("to", "");
  fmt::print("the processes of {} {} {}\n  {:<24}{}\n", printable(from),
             answer.contains("stood_ns") ? "are now on" : "have ended, and come back on", printable(to),
             "checkpoint", printable(answer.value("checkpoint", "")));
  if (answer.contains("stood_ns"))
    fmt::print("  {:<24}{}\n", "those of other hosts",
               answer.contains("in_place") ? "stayed" : "were restarted");
  if (answer.contains("stood_ns"))
    fmt::print("  {:<24}{}\n", "the job stood", human_duration(answer.value("stood_ns", int64_t{0})));
  return {};
}

}  // namespace

void add_migrate(CLI::App& app, ExitCode& exit) {
  CLI::App* command =
      app.add_subcommand("migrate", "of a job over several hosts: the processes of one host go on elsewhere");
  auto o = std::make_shared<MigrateOptions>();
  command
      ->add_option("PID", o->pid,
                   "a process of the job on this host, all of which go; or its ckpt run --hosts, with --from")
      ->required();
  command->add_option("--to", o->to, "the host to which they go")->required();
  auto* from = command->add_option("--from", o->from, "the host whose processes go (default: this one)");
  command->add_option("--rank", o->rank, "of MPI: the processes of the host on which this rank is")
      ->check(CLI::NonNegativeNumber)
      ->excludes(from);
  command->add_flag("--json", o->json, "print where they are, and how long the job stood, as JSON");
  command->footer(
      "All processes of the job stand until it is over. Those of the other hosts stay, and get new "
      "connections "
      "to the new\nhost; where that cannot be, they are restarted where they were.\n"
      "Exit codes: 0 they are there, 64 wrong arguments, 67 no such job, 68 the new host has another ckpt or "
      "C library,\n"
      "69 a host is not there, 70 given up, 74 read or write error, 75 no answer in time, 76 state that "
      "cannot come back,\n"
      "78 images in the memory of keepers; others are those of ckpt-restart on the new host. After an error "
      "the job goes on\n"
      "where it was, unless the message says otherwise.");
  command->callback([o, &exit] {
    auto done = migrate(*o);
    exit = done.ok() ? ExitCode::kOk : report(done.error());
  });
}

}  // namespace ckpt::cli
