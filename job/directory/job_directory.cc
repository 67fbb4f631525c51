#include "job/directory/job_directory.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>

#include "base/files/directory_scan.h"
#include "base/locks/lock_ranks.h"
#include "base/memory/arena.h"
#include "image/format/image_probe.h"
#include "image/format/io_error.h"
#include "image/format/saved_file_names.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::job {

namespace {

constexpr long kOpenDirectory = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;

ScopedFd open_directory(int at, const char* name) {
  const long fd = sys::call(__NR_openat, at, name, kOpenDirectory, 0L);
  return ScopedFd(sys::failed(fd) ? -1 : static_cast<int>(fd));
}

// O_NONBLOCK: what lies there under an image's name may be a FIFO.
ScopedFd open_image(int directory, const char* name) {
  const long fd = sys::call(__NR_openat, directory, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0L);
  return ScopedFd(sys::failed(fd) ? -1 : static_cast<int>(fd));
}

struct Checkpoint {
  uint64_t sequence;
  bool stays;
  char name[96];
};

// Locked alone while the checkpoint is removed (job_hold.h).
ScopedFd open_manifest(int directory) {
  const long fd =
      sys::call(__NR_openat, directory, kManifestName, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0L);
  return ScopedFd(sys::failed(fd) ? -1 : static_cast<int>(fd));
}

// On a file system without locks nobody holds anything.
bool is_locked_by_others(int file, int how) {
  return sys::call(__NR_flock, file, static_cast<long>(how | LOCK_NB)) == -EWOULDBLOCK;
}

// Does the head of its manifest name this job?
bool is_of_job(int directory, const char* job_digits) {
  const ScopedFd file = open_manifest(directory);
  if (!file.valid()) return false;
  char head[256];
  const long n = sys::call(__NR_read, file.get(), head, sizeof(head));
  return n > 0 && std::string_view(head, static_cast<size_t>(n)).find(std::string_view(job_digits, 32)) !=
                      std::string_view::npos;
}

// The sequences of other checkpoints whose images those of this one are increments to. False: some image does
// not say it: it is damaged, or encrypted and `key` is not its key.
template <typename Visit>
bool each_parent(int directory, const ImageKey* key, Visit visit) {
  bool all = true;
  const long r = scan_directory(directory, [&](std::string_view name) {
    if (!name.ends_with(".ckpt")) return;
    const ScopedFd file = open_image(directory, name.data());
    auto brief = probe_image(file.get(), name.data(), key);
    all = all && brief.ok();
    if (brief.ok() && brief->parent.sequence != 0) visit(brief->parent.sequence);
  });
  return all && !sys::failed(r);
}

// Held by hold_image() (image_directory.h): a restart reads it, or an increment to it is being written.
bool is_held(int directory) {
  bool held = false;
  scan_directory(directory, [&](std::string_view name) {
    if (held || !name.ends_with(".ckpt")) return;
    const ScopedFd file = open_image(directory, name.data());
    held = file.valid() && is_locked_by_others(file.get(), LOCK_EX);
  });
  return held;
}

// All that is in a directory of ours: images, and one directory with the files that are kept beside them.
// Members of other users may have made directories in either, however deep. Such a one is moved up, and its
// entries go like the others: a chain of them takes no stack.
class Removal {
 public:
  explicit Removal(int top) : top_(top) {}
  void run() {
    constexpr int kMostPasses = 4096;  // who has one of them open may go on for ever
    sys::call(__NR_fchmod, top_, 0700L);
    for (int i = 0; i < kMostPasses && (i == 0 || has_moved_); ++i) {
      has_moved_ = false;
      scan_directory(top_, [&](std::string_view entry) {
        if (entry == "." || entry == "..") return;
        if (sys::call(__NR_unlinkat, top_, entry.data(), 0L) == -EISDIR) remove_directory(entry.data());
      });
    }
  }

 private:
  void remove_directory(const char* name) {
    {
      const ScopedFd inside = open_directory(top_, name);
      if (!inside.valid()) return;
      scan_directory(inside.get(), [&](std::string_view entry) {
        if (entry == "." || entry == "..") return;
        if (sys::call(__NR_unlinkat, inside.get(), entry.data(), 0L) != -EISDIR) return;
        if (sys::call(__NR_unlinkat, inside.get(), entry.data(), static_cast<long>(AT_REMOVEDIR)) != 0)
          move_up(inside.get(), entry.data());
      });
    }
    sys::call(__NR_unlinkat, top_, name, static_cast<long>(AT_REMOVEDIR));
  }

  void move_up(int from, const char* name) {
    constexpr int kTries = 8;  // a name may be there already
    for (int i = 0; i < kTries; ++i) {
      char to[32] = {};
      fmt::format_to_n(to, sizeof(to) - 1, ".removed-{}", ++number_);
      if (sys::call(__NR_renameat2, from, name, top_, to, static_cast<long>(RENAME_NOREPLACE)) != 0) continue;
      has_moved_ = true;
      return;
    }
  }

  const int top_;
  uint32_t number_ = 0;
  bool has_moved_ = false;
};

}  // namespace

bool is_one_made(int directory) {
  bool made = false;
  scan_directory(directory, [&](std::string_view name) {
    ParsedJobName parsed;
    if (made || !parse_job_name(name, &parsed)) return;
    const ScopedFd one = open_directory(directory, name.data());
    made = one.valid() && is_locked_by_others(one.get(), LOCK_SH);
  });
  return made;
}

Result<uint64_t> next_job_sequence(int directory) {
  uint64_t highest = 0;
  const long r = scan_directory(directory, [&](std::string_view name) {
    ParsedJobName parsed;
    if (parse_job_name(name, &parsed)) highest = std::max(highest, parsed.sequence);
  });
  if (sys::failed(r)) {
    return make_error(ExitCode::kIo, static_cast<int>(r),
                      "cannot list the image directory ({}); see CKPT_DIR", errno_name(static_cast<int>(r)));
  }
  if (highest == kMostJobSequence) {
    return make_error(
        ExitCode::kIo, EOVERFLOW,
        "the image directory has a checkpoint with the number {}, after which none can come: rename or "
        "remove it, or choose another directory (CKPT_DIR)",
        highest);
  }
  return highest + 1;
}

namespace {
constexpr const char* kStreamed = ".streamed";
}

Result<uint64_t> next_streamed_sequence(int directory) {
  auto next = next_job_sequence(directory);
  if (!next.ok()) return next;
  const long fd =
      sys::call(__NR_openat, directory, kStreamed, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0L);
  if (sys::failed(fd)) return next;
  const ScopedFd file(static_cast<int>(fd));
  char digits[24] = {};
  const long n = sys::call(__NR_read, file.get(), digits, sizeof(digits) - 1);
  uint64_t last = 0;
  for (long i = 0; i < n && digits[i] >= '0' && digits[i] <= '9'; ++i)
    last = last * 10 + static_cast<uint64_t>(digits[i] - '0');
  return std::max(*next, last + 1);
}

Result<void> note_streamed(int directory, uint64_t sequence) {
  const long fd = sys::call(__NR_openat, directory, kStreamed,
                            O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600L);
  if (sys::failed(fd)) return image_io_error("create", kStreamed, fd);
  const ScopedFd file(static_cast<int>(fd));
  char digits[24];
  const auto end = fmt::format_to_n(digits, sizeof(digits), "{:020}\n", sequence);
  const long n = sys::call(__NR_pwrite64, file.get(), digits, end.size, 0L);
  return n == static_cast<long>(end.size) ? Result<void>()
                                          : image_io_error("write", kStreamed, n < 0 ? n : -ENOSPC);
}

Result<ScopedFd> make_temporary(int directory, const JobName& name, ScopedFd* lock) {
  const long made = sys::call(__NR_mkdirat, directory, name.temporary, 0700L);
  if (sys::failed(made)) return image_io_error("create", name.temporary, made);
  ScopedFd fd = open_directory(directory, name.temporary);
  if (lock != nullptr) {
    *lock = open_directory(directory, name.temporary);
    lock_ranks::waits_for(LockRank::kJobDirectory);
    if (lock->valid()) sys::call(__NR_flock, lock->get(), static_cast<long>(LOCK_EX));
  }
  if (!fd.valid() || (lock != nullptr && !lock->valid()))
    return image_io_error("open", name.temporary, -ENOENT);
  sys::call(__NR_fchmod, fd.get(), 0700L);  // the umask may have taken bits away
  return fd;
}

namespace {

// Files that are kept beside the images: their names. Each copy was made durable by the member that made it.
long make_saved_files_durable(int temporary) {
  const SavedFileName name = saved_files_directory_of(kJobSavedFiles);
  const long fd = sys::call(__NR_openat, temporary, name.text, kOpenDirectory, 0L);
  if (fd == -ENOENT) return 0;
  // It could be another user's, or no descriptor be left.
  if (sys::failed(fd)) return sys::call(__NR_syncfs, temporary);
  const ScopedFd saved(static_cast<int>(fd));
  // Of members that ended while they copied.
  scan_directory(saved.get(), [&](std::string_view entry) {
    if (entry.ends_with(kCopyUnderWaySuffix)) sys::call(__NR_unlinkat, saved.get(), entry.data(), 0L);
  });
  return sys::call(__NR_fsync, saved.get());
}

}  // namespace

Result<void> commit_directory(int directory, int temporary, const JobName& name) {
  // Images of members that ended while they wrote them: nobody else removes those, and blocks are reserved
  // for each.
  scan_directory(temporary, [&](std::string_view entry) {
    if (entry.ends_with(".ckpt.tmp")) sys::call(__NR_unlinkat, temporary, entry.data(), 0L);
  });
  long r = make_saved_files_durable(temporary);
  if (!sys::failed(r)) r = sys::call(__NR_fsync, temporary);
  if (sys::failed(r)) return image_io_error("make durable (fsync)", name.temporary, r);
  r = sys::call(__NR_renameat2, directory, name.temporary, directory, name.text,
                static_cast<long>(RENAME_NOREPLACE));
  if (r == -EINVAL || r == -ENOSYS)  // a file system without it: with the lock nobody makes the name
    r = sys::call(__NR_renameat, directory, name.temporary, directory, name.text);
  if (sys::failed(r)) return image_io_error("rename the finished checkpoint to", name.text, r);
  r = sys::call(__NR_fsync, directory);
  if (sys::failed(r)) {
    // The next power failure could take the name back, so it must not be seen.
    sys::call(__NR_renameat, directory, name.text, directory, name.temporary);
    return image_io_error("make durable (fsync of the directory)", name.text, r);
  }
  return {};
}

void remove_job_directory(int directory, const char* name) {
  {
    const ScopedFd inside = open_directory(directory, name);
    if (!inside.valid()) return;
    // The manifest first: what is half removed is no checkpoint.
    sys::call(__NR_unlinkat, inside.get(), kManifestName, 0L);
    Removal(inside.get()).run();
  }
  sys::call(__NR_unlinkat, directory, name, static_cast<long>(AT_REMOVEDIR));
}

uint32_t remove_dead_jobs(int directory) {
  uint32_t removed = 0;
  scan_directory(directory, [&](std::string_view name) {
    ParsedJobName parsed;
    if (parse_job_name(name, &parsed) && parsed.temporary && remove_dead_job(directory, name.data()))
      ++removed;
  });
  return removed;
}

bool remove_dead_job(int directory, const char* temporary) {
  const ScopedFd one = open_directory(directory, temporary);
  if (one.valid() && is_locked_by_others(one.get(), LOCK_EX)) return false;
  remove_job_directory(directory, temporary);
  return true;
}

Result<PrunedJobs> prune_jobs(int directory, const uint8_t job[16], uint32_t keep, const ImageKey* key) {
  PrunedJobs pruned;
  Arena arena;
  if (!arena.reserve(4 << 20)) {
    return make_error(
        ExitCode::kSystem, ENOMEM,
        "old checkpoints are not removed: no memory for their list; raise the limit (ulimit -v)");
  }
  ArenaVector<Checkpoint> list(arena);
  const JobText digits = job_text(job);
  bool room = true;
  const long r = scan_directory(directory, [&](std::string_view name) {
    ParsedJobName parsed;
    if (!room || !parse_job_name(name, &parsed) || parsed.temporary ||
        name.size() >= sizeof(Checkpoint::name))
      return;
    const ScopedFd inside = open_directory(directory, name.data());
    if (!inside.valid() || !is_of_job(inside.get(), digits.text)) return;
    Checkpoint one{parsed.sequence, false, {}};
    name.copy(one.name, sizeof(one.name) - 1);
    room = list.push_back(one);
  });
  if (sys::failed(r) || !room) {
    return make_error(ExitCode::kIo, static_cast<int>(r),
                      "old checkpoints are not removed: cannot list them ({})",
                      errno_name(static_cast<int>(r)));
  }
  std::sort(list.begin(), list.end(),
            [](const Checkpoint& a, const Checkpoint& b) { return a.sequence < b.sequence; });
  // From the newest down: a checkpoint that stays keeps its parents, which are older, and increments go
  // before what they are increments to.
  bool sure = true;  // which parents what stays has
  for (size_t i = list.size(); i-- > 0;) {
    const Checkpoint& one = list[i];
    const ScopedFd inside = open_directory(directory, one.name);
    if (!inside.valid()) continue;
    const ScopedFd manifest = open_manifest(inside.get());
    const bool stays = one.stays || !sure || keep == 0 || list.size() - i <= keep || is_held(inside.get()) ||
                       (manifest.valid() && is_locked_by_others(manifest.get(), LOCK_EX));
    if (!stays) {
      remove_job_directory(directory, one.name);
      ++pruned.removed;
      continue;
    }
    ++pruned.kept;
    sure &= each_parent(inside.get(), key, [&](uint64_t sequence) {
      for (Checkpoint& other : list) other.stays = other.stays || other.sequence == sequence;
    });
  }
  return pruned;
}

}  // namespace ckpt::job
