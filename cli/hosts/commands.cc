// ckpt hosts, and the commands that other parts of ckpt start: ckpt agent, keeper-exchange, keeper-save,
// back-part, check-part, restart-hosts.
#include <memory>

#include "cli/back/job/job_back.h"
#include "cli/hosts/agent/agent_guard.h"
#include "cli/hosts/agent/agent_warden.h"
#include "cli/hosts/commands.h"
#include "cli/hosts/hosts.h"
#include "cli/hosts/job/hosts_run.h"
#include "cli/hosts/job/slurm.h"
#include "cli/hosts/restart/part_look.h"
#include "cli/keeper/exchange_process.h"
#include "cli/text/failure.h"

namespace ckpt::cli {

namespace {

struct HostsOptions {
  std::string hosts, launch = kDefaultLaunch, checkpoint, spares;
  std::vector<std::string> restart_words;
  bool json = false, recover = false, check = false;
};

Result<std::vector<std::string>> hosts_named(HostsOptions& o, bool repeats) {
  if (o.hosts == kNoHosts)
    return failure(ExitCode::kUsage, "--hosts none", "is for ckpt run: a job is started on this host alone",
                   "name hosts, h1,h2");
  CKPT_TRY(name_hosts(o.hosts, o.launch));
  return split_hosts(o.hosts, repeats);
}

}  // namespace

void add_hosts(CLI::App& app, ExitCode& exit) {
  auto o = std::make_shared<HostsOptions>();
  CLI::App* command = app.add_subcommand(
      "hosts", "look whether a job can be spread over hosts: who is there, clocks, libraries");
  command->add_option("HOSTS", o->hosts, "h1,h2,h3; allocation: those that Slurm has given")->required();
  command->add_option(
      "--launch", o->launch,
      "how agents are started there; {host} is the host (default: ssh -o BatchMode=yes {host})");
  command->add_flag("--json", o->json, "print it as JSON");
  command->footer(
      "Exit codes: 0 they fit together, 64 wrong arguments, 68 another ckpt or C library on one of them, 69 "
      "one is not\nthere, 75 no answer in time.");
  command->callback([o, &exit] {
    HostsRun run;
    auto hosts = hosts_named(*o, false);
    if (hosts.ok()) run.hosts = *hosts;
    run.launch = o->launch;
    exit = hosts.ok() ? look_at_hosts(run, o->json) : report(hosts.error());
  });

  // Not for users. The head starts agent by --launch, the agent starts agent-warden, agent-guard,
  // keeper-exchange, keeper-save and back-part, and ckpt-restart --hosts starts restart-hosts.
  CLI::App* agent = app.add_subcommand("agent", "of a job over several hosts, on each of them")->group("");
  agent->callback([&exit] { exit = run_agent(); });
  struct WardenOptions {
    std::string job, host;
    int agent = 0, patience_ms = 0;
  };
  auto w = std::make_shared<WardenOptions>();
  CLI::App* warden = app.add_subcommand("agent-warden", "beside an agent, with --recover")->group("");
  warden->add_option("JOB", w->job)->required();
  warden->add_option("HOST", w->host)->required();
  warden->add_option("AGENT", w->agent)->required();
  warden->add_option("PATIENCE", w->patience_ms)->required();
  warden->callback([w, &exit] { exit = run_agent_warden(w->job, w->host, w->agent, w->patience_ms); });
  CLI::App* guard = app.add_subcommand("agent-guard", "beside an agent, with --recover")->group("");
  guard->add_option("PATIENCE", w->patience_ms)->required();
  guard->callback([w, &exit] { exit = run_agent_guard(w->patience_ms); });
  CLI::App* exchange = app.add_subcommand("keeper-exchange", "of redundancy, on each host")->group("");
  exchange->callback([&exit] { exit = run_exchange(); });
  CLI::App* save = app.add_subcommand("keeper-save", "of --disk-every, on each host")->group("");
  save->callback([&exit] { exit = run_save(); });
  CLI::App* back =
      app.add_subcommand("back-part", "of ckpt back over several hosts, on each of them")->group("");
  back->callback([&exit] { exit = run_back_part(); });
  CLI::App* look = app.add_subcommand("check-part", "of ckpt-restart --check, on each host")->group("");
  look->callback([&exit] { exit = run_look(); });
  auto r = std::make_shared<HostsOptions>();
  CLI::App* restart = app.add_subcommand("restart-hosts", "what ckpt-restart --hosts does")->group("");
  restart->add_option("CHECKPOINT", r->checkpoint)->required();
  restart->add_option("--hosts", r->hosts);
  restart->add_option("--with", r->restart_words)->allow_extra_args(false);
  restart->add_option("--launch", r->launch);
  restart->add_option("--spare", r->spares);
  restart->add_flag("--recover", r->recover);
  restart->add_flag("--check", r->check);
  restart->callback([r, &exit] {
    HostsRun run;
    // Not in a task of srun, of which there are many: each would bring the job back.
    if (r->hosts.empty() && may_use_allocation()) r->hosts = kAllocation;
    if (r->hosts.empty()) {
      exit = report(failure(ExitCode::kUsage, r->checkpoint, "is of a job over several hosts",
                            "name hosts for it, --hosts h1,h2"));
      return;
    }
    auto hosts = hosts_named(*r, true);
    if (hosts.ok()) run.hosts = *hosts;
    run.launch = r->launch;
    run.restart_words = r->restart_words;
    run.recover = r->recover || !r->spares.empty();
    if (hosts.ok() && !r->spares.empty()) {
      auto spares = split_hosts(r->spares, false);
      if (spares.ok())
        run.spares = *spares;
      else
        hosts = spares.error();
    }
    exit = !hosts.ok() ? report(hosts.error())
           : r->check  ? check_over_hosts(r->checkpoint, run)
                       : restart_over_hosts(r->checkpoint, run);
  });
}

}  // namespace ckpt::cli
