// ckpt-restart --check of a job over several hosts: each part is looked at on the host on which it would come
// back.
#include <fmt/ranges.h>
#include <signal.h>
#include <sys/wait.h>

#include "base/protocol/keeper_protocol.h"
#include "cli/hosts/crew/crew.h"
#include "cli/hosts/head/head.h"
#include "cli/hosts/hosts.h"
#include "cli/hosts/job/hosts_manifest.h"
#include "cli/hosts/placing.h"
#include "cli/hosts/restart/part_look.h"
#include "cli/starting/run_command.h"
#include "cli/text/failure.h"
#include "cli/text/text_out.h"

namespace ckpt::cli {

namespace {

constexpr int64_t kWordOfPartNs = 30'000'000'000;

// Who is there, libraries, and whether each part is the one that the checkpoint names.
Result<void> look_for_parts(const HostsManifest& manifest, const std::vector<std::string>& where,
                            const HostsRun& run) {
  std::vector<std::string> names;
  for (const auto& part : manifest.parts) names.push_back(part.host);
  Crew crew(names, where, run.launch, manifest.run.value("silence_ms", run.silence_ms));
  CKPT_TRY(crew.assemble());
  CKPT_TRY(crew.check_alike());
  for (size_t i = 0; i < manifest.parts.size(); ++i) {
    const HostsManifest::Part& part = manifest.parts[i];
    crew.tell(static_cast<int>(i), {{"say", "have"}, {"part", part.directory}, {"checksum", part.checksum}});
  }
  auto have = crew.expect_all("have", kWordOfPartNs);
  if (!have.ok()) return have.error();
  crew.dismiss();
  for (size_t i = 0; i < manifest.parts.size(); ++i) {
    if ((*have)[i].value("there", false)) continue;
    return failure(ExitCode::kNotFound, where[i],
                   fmt::format("the part of {} is not there, or is another than the checkpoint names: {}",
                               manifest.parts[i].host, manifest.parts[i].directory),
                   "bring it there (ckpt gather), or name the host that has it");
  }
  return {};
}

Result<void> check_part(const HostsManifest::Part& part, const std::string& host, const HostsRun& run) {
  auto task = task_of_look(part.directory, run.restart_words);
  if (!task.ok()) return task.error();
  auto said = run_command(words_of_look(run.launch, host), true, task->get());
  if (!said.ok()) return said.error();
  if (said->status == 0) return {};
  const int code = WIFEXITED(said->status) ? WEXITSTATUS(said->status) : 128 + WTERMSIG(said->status);
  std::string why = said->errors.substr(0, said->errors.find('\n'));
  for (const std::string_view name : {"ckpt-restart: ", "ckpt: "}) {
    if (why.starts_with(name)) why.erase(0, name.size());
  }
  return make_error(static_cast<ExitCode>(code), 0, "{}: the processes of {} cannot be restarted there: {}",
                    host, part.host, why);
}

}  // namespace

ExitCode check_over_hosts(const std::string& checkpoint, const HostsRun& run) {
  std::string path;
  auto manifest = read_hosts_checkpoint(checkpoint, &path);
  if (!manifest.ok()) return report(manifest.error());
  const std::vector<std::string> where = place_parts(manifest->parts.size(), run.hosts);
  // Parts in keepers' memory may have to be made again first, and a look for them starts a keeper.
  for (const auto& p : manifest->parts) {
    if (!manifest->redundancy.empty() || keeper_part(p.directory) != 0)
      return report(failure(ExitCode::kUnsupported, path, "has its parts in keepers' memory",
                            "ckpt show says which are there"));
  }
  // Only while agents are there, which are to end with this command.
  sigset_t before;
  sigprocmask(SIG_BLOCK, nullptr, &before);
  block_signals();
  const Result<void> found = look_for_parts(*manifest, where, run);
  sigprocmask(SIG_SETMASK, &before, nullptr);
  if (!found.ok()) return report(found.error());
  for (size_t i = 0; i < where.size(); ++i) {
    if (auto r = check_part(manifest->parts[i], where[i], run); !r.ok()) return report(r.error());
  }
  fmt::print("{}: all that a restart needs is on {}\n", printable(path),
             printable(fmt::format("{}", fmt::join(where, ", "))));
  return ExitCode::kOk;
}

}  // namespace ckpt::cli
