#include "cli/keeper/host_keeper.h"

#include <sys/prctl.h>
#include <unistd.h>

#include "base/protocol/keeper_protocol.h"
#include "cli/keeper/start_keeper.h"
#include "image/format/keeper_client.h"
#include "image/read/manifest.h"

namespace ckpt::cli {

namespace {

// It outlives the job, so it must not be below the agent, which ends all that is.
Result<void> start_host_keeper(const std::string& path, uint64_t bytes) {
  const size_t end = keeper_part(path), slash = path.substr(0, end).rfind('/') + 1;
  KeeperWishes wishes;
  wishes.name = path.substr(slash, end - slash - kKeeperSuffix.size());
  wishes.memory_bytes = bytes;
  prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0);
  auto started = ensure_keeper(wishes);
  prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
  return started;
}

}  // namespace

ReachedPart reach_part(const std::string& part) {
  ReachedPart reached;
  if (keeper_part(part) == 0) {
    reached.path = part;
  } else if (auto found = find_kept_part(part); found.ok()) {
    reached.kept = std::move(*found);
    reached.path = reached.kept.path();
  }
  return reached;
}

Result<HostImages> images_of_host(const std::string& directory, const Json& start) {
  HostImages images{directory, directory, {}};
  if (const std::string part = start.value("part", ""); keeper_part(part) != 0)
    images.name = part.substr(0, keeper_part(part));
  if (start.contains("keeper")) images.name = keeper_path(geteuid(), start["keeper"].get<std::string>()).text;
  if (keeper_part(images.name) == 0) return images;
  CKPT_TRY(start_host_keeper(images.name, start.value("keeper_bytes", uint64_t{0})));
  auto opened = open_kept_directory(images.name);
  if (!opened.ok()) return opened.error();
  images.kept = std::move(*opened);
  images.path = fmt::format("/proc/self/fd/{}", images.kept.get());
  return images;
}

Json has_part(const Json& question) {
  const std::string part = question.value("part", "");
  if (keeper_part(part) != 0) {
    if (auto r = start_host_keeper(part, question.value("memory", uint64_t{0})); !r.ok())
      return said_in_exchange(said_of(r.error()));
  }
  const ReachedPart reached = reach_part(part);
  const std::string sum = checksum_of_file(reached.path + "/" + kManifestName);
  return {{"say", "have"}, {"there", !sum.empty() && sum == question.value("checksum", "")}};
}

}  // namespace ckpt::cli
