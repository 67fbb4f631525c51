// ckpt keeper-save: this host's part of a checkpoint over hosts, from its keeper's memory to a disk.
#include <errno.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/checks/named_points.h"
#include "cli/hosts/job/hosts_manifest.h"
#include "cli/keeper/disk/save_checkpoint.h"
#include "cli/keeper/exchange_process.h"
#include "cli/text/failure.h"
#include "cluster/keeper/low_priority.h"
#include "image/read/manifest.h"
#include "image/read/sources/reading_key.h"

namespace ckpt::cli {

namespace {

Result<Json> save(const Json& plan) {
  auto part = find_part_in_keeper(plan.at("part").get<std::string>());
  if (!part.ok()) return part.error();
  if (auto key = use_key_file(plan.value("key_file", "")); !key.ok()) return key.error();
  const std::string to = plan.at("to");
  for (size_t at = to.find('/', 1); at != std::string::npos; at = to.find('/', at + 1))
    mkdir(to.substr(0, at).c_str(), 0700);
  if (mkdir(to.c_str(), 0700) != 0 && errno != EEXIST)
    return failure(ExitCode::kCannotCreate, to, fmt::format("cannot be made ({})", errno_name(errno)),
                   "see --dir");
  points::at("save.begun");
  // None is given up here: the head knows which count.
  auto saved = save_checkpoint(fmt::format("/proc/self/fd/{}", part->directory.get()), part->name, to, 0);
  if (!saved.ok()) return saved.error();
  points::at("save.named");
  const std::string path = to + "/" + part->name;
  return Json{{"say", "done"}, {"part", path}, {"checksum", checksum_of_file(path + "/" + kManifestName)}};
}

}  // namespace

ExitCode run_save() {
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);
  Json plan;
  if (isatty(STDIN_FILENO) != 0 || !read_line(STDIN_FILENO, plan, 60'000))
    return report(failure(ExitCode::kUsage, "keeper-save", "is started by an agent",
                          "use ckpt run --hosts --disk-every"));
  keeper::take_low_priority();
  // As in ckpt keeper-exchange: of the host of that number, at that checkpoint.
  static const std::string self =
      fmt::format("host{}.{}", plan.value("self", 0), plan.value("id", uint64_t{0}));
  static const int pid = getpid();
  if (const char* point = getenv("CKPT_TEST_POINT")) points::want(point, self.c_str(), &pid);
  Result<Json> done = make_error(ExitCode::kUsage, 0, "keeper-save: got a plan that it does not understand");
  try {
    done = save(plan);
  } catch (const std::exception& e) {
    done = make_error(ExitCode::kUsage, 0, "keeper-save: got what it does not understand ({})", e.what());
  }
  write_line(STDIN_FILENO, done.ok() ? *done : message_of_error(done.error()));
  return done.ok() ? ExitCode::kOk : done.error().code;
}

}  // namespace ckpt::cli
