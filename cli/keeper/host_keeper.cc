#include "cli/keeper/host_keeper.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "base/protocol/keeper_protocol.h"
#include "cli/hosts/job/hosts_manifest.h"
#include "cli/keeper/part_words.h"
#include "cli/keeper/start_keeper.h"
#include "image/format/keeper_client.h"
#include "image/read/manifest.h"
#include "job/directory/job_directory.h"

namespace ckpt::cli {

namespace {

// The keeper outlives the job, so the keeper must not be below the agent, which ends all that is.
Result<void> start_host_keeper(const std::string& path, uint64_t bytes) {
  const size_t end = keeper_part(path), slash = path.substr(0, end).rfind('/') + 1;
  KeeperSettings settings;
  settings.name = path.substr(slash, end - slash - kKeeperSuffix.size());
  settings.memory_bytes = bytes;
  prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0);
  auto started = ensure_keeper(settings);
  prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
  return started;
}

std::vector<std::string> names_in(int directory) {
  const int again = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(again < 0 ? nullptr : fdopendir(again), closedir);
  std::vector<std::string> names;
  while (dir != nullptr) {
    const dirent* entry = readdir(dir.get());
    if (entry == nullptr) break;
    names.emplace_back(entry->d_name);
  }
  return names;
}

// As hold_image() holds them: by a shared lock of an image.
bool is_read(int directory) {
  for (const std::string& name : names_in(directory)) {
    if (!name.ends_with(".ckpt")) continue;
    const ScopedFd image(openat(directory, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (image.valid() && flock(image.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return true;
  }
  return false;
}

}  // namespace

ReachedPart reach_part(const std::string& part) {
  ReachedPart reached;
  if (keeper_part(part) == 0) {
    reached.path = part;
  } else if (auto found = find_part_in_keeper(part); found.ok()) {
    reached.part = std::move(*found);
    reached.path = reached.part.path();
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
  auto opened = open_keeper_directory(images.name);
  if (!opened.ok()) return opened.error();
  images.keeper_directory = std::move(*opened);
  images.path = fmt::format("/proc/self/fd/{}", images.keeper_directory.get());
  return images;
}

Json has_part(const Json& question) {
  const std::string part = question.value("part", "");
  if (keeper_part(part) != 0) {
    if (auto r = start_host_keeper(part, question.value("memory", uint64_t{0})); !r.ok())
      return message_of_exchange(message_of_error(r.error()));
  }
  const ReachedPart reached = reach_part(part);
  const std::string sum = checksum_of_file(reached.path + "/" + kManifestName);
  Json answer{{"say", "have"}, {"there", !sum.empty() && sum == question.value("checksum", "")}};
  // How much more it takes. The remains of an attempt go with the next one: how much is free is not known
  // before.
  struct statvfs fs;
  const int directory = reached.part.directory.get();
  if (reached.part.directory.valid() && fstatvfs(directory, &fs) == 0 &&
      faccessat(directory, ("." + reached.part.name + ".tmp").c_str(), F_OK, AT_SYMLINK_NOFOLLOW) != 0)
    answer["free"] = fs.f_bavail * fs.f_frsize;
  return answer;
}

void give_up_parts(const std::string& images, const std::string& job, const std::vector<std::string>& stay) {
  ScopedFd directory;
  if (keeper_part(images) == 0) {
    directory.reset(open(images.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
  } else if (auto in_keeper = open_keeper_directory(images); in_keeper.ok()) {
    directory = std::move(*in_keeper);
  }
  if (!directory.valid()) return;
  std::vector<std::string> going;
  for (const std::string& name : names_in(directory.get())) {
    job::ParsedJobName parsed{};
    if (!job::parse_job_name(name, &parsed) || parsed.temporary) continue;
    if (std::find(stay.begin(), stay.end(), images + "/" + name) != stay.end()) continue;
    const std::string path = fmt::format("/proc/self/fd/{}/{}", directory.get(), name);
    auto manifest = read_manifest(path);
    const ScopedFd inside(
        openat(directory.get(), name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (manifest.ok() && job.starts_with(manifest->job) && inside.valid() && !is_read(inside.get()))
      going.push_back(name);
  }
  // Increments go before what they are increments to.
  std::sort(going.rbegin(), going.rend());
  for (const std::string& name : going) {
    job::remove_job_directory(directory.get(), name.c_str());
    for (const std::string& file : {checks_of(name), words_of_part(name)})
      unlinkat(directory.get(), file.c_str(), 0);
  }
}

}  // namespace ckpt::cli
