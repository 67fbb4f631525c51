#include "cli/keeper/part_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <memory>
#include <vector>

#include "base/clock.h"
#include "cli/keeper/exchange_process.h"
#include "cli/text/failure.h"
#include "image/read/manifest.h"
#include "job/directory/directory_lock.h"
#include "job/directory/job_directory.h"

namespace ckpt::cli {

namespace {

constexpr int64_t kLockNs = 60'000'000'000;

bool is_there(int directory, const std::string& name) {
  return faccessat(directory, name.c_str(), F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

// A process that counts checkpoints there, or makes one of one host alone, holds this lock.
struct LockedKeeper {
  ScopedFd directory;
  job::DirectoryLock lock;
};
Result<LockedKeeper> lock_keeper(int directory) {
  LockedKeeper own{ScopedFd(openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC)), {}};
  const int64_t until = now_ns() + kLockNs;
  while (own.directory.valid() && !own.lock.try_take(own.directory.get())) {
    if (now_ns() > until)
      return failure(ExitCode::kTimeout, "the keeper", "a checkpoint is being taken there all the time",
                     "try again");
    (void)poll(nullptr, 0, 1);
  }
  return own;
}

}  // namespace

ScopedFd open_nameless(int directory) {
  return ScopedFd(openat(directory, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
}

bool give_name(const ScopedFd& file, int directory, const std::string& name) {
  unlinkat(directory, name.c_str(), 0);
  const std::string path = fmt::format("/proc/self/fd/{}", file.get());
  return linkat(AT_FDCWD, path.c_str(), directory, name.c_str(), AT_SYMLINK_FOLLOW) == 0;
}

void remove_stale_checks(int directory) {
  const int again = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(again < 0 ? nullptr : fdopendir(again), closedir);
  std::vector<std::string> stale;
  while (dir != nullptr) {
    const dirent* entry = readdir(dir.get());
    if (entry == nullptr) break;
    const std::string name = entry->d_name;
    for (const std::string suffix : {".checks", ".words"}) {
      if (!name.ends_with(suffix)) continue;
      const std::string part = name.substr(0, name.size() - suffix.size()) + std::string(kJobSuffix);
      // In this order: what is computed may get its own name, in place of the temporary one, in between.
      if (!is_there(directory, temporary_of(part)) && !is_there(directory, part)) stale.push_back(name);
    }
  }
  for (const std::string& name : stale) unlinkat(directory, name.c_str(), 0);
}

std::string temporary_of(const std::string& name) { return "." + name + ".tmp"; }

Result<ScopedFd> begin_part(int directory, const std::string& name) {
  job::ParsedJobName parsed{};
  if (!job::parse_job_name(name, &parsed) || parsed.temporary)
    return failure(ExitCode::kImageDamaged, name, "is no name of a part", "use an older checkpoint");
  const job::JobName names = job::compose_job_name(parsed.comm, parsed.sequence);
  if (name != names.text || temporary_of(name) != names.temporary)
    return failure(ExitCode::kImageDamaged, name, "is no name of a part", "use an older checkpoint");
  const auto alone = lock_keeper(directory);
  if (!alone.ok()) return alone.error();
  if (!job::remove_dead_job(directory, names.temporary))
    return failure(ExitCode::kUnavailable, name, "is being made here by another job",
                   "take another host, or wait for that job's checkpoint");
  ScopedFd lock;
  auto made = job::make_temporary(directory, names, &lock);
  if (!made.ok()) return made.error();
  return lock;
}

}  // namespace ckpt::cli
