#include "job/directory/directory_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <cstring>
#include <string_view>

#include "base/files/lines.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::job {

namespace {

constexpr const char* kFile = ".job-lock";

bool is_taken(int file, int how) {
  return sys::call(__NR_flock, file, static_cast<long>(how | LOCK_NB)) == -EWOULDBLOCK;
}

// Not one that somebody else has put there.
ScopedFd open_file(int directory, long how) {
  const long fd = sys::call(__NR_openat, directory, kFile, how | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600L);
  ScopedFd file(sys::failed(fd) ? -1 : static_cast<int>(fd));
  struct stat of_file {
  }, of_directory{};
  if (!file.valid() || sys::call(__NR_fstat, file.get(), &of_file) != 0 ||
      sys::call(__NR_fstat, directory, &of_directory) != 0)
    return ScopedFd();
  const bool ours = of_file.st_uid == 0 || of_file.st_uid == of_directory.st_uid ||
                    of_file.st_uid == static_cast<uint32_t>(sys::call(__NR_geteuid));
  return S_ISREG(of_file.st_mode) && ours ? std::move(file) : ScopedFd();
}

uint64_t number_at(std::string_view text) {
  uint64_t value = 0;
  for (size_t i = 0; i < text.size() && text[i] >= '0' && text[i] <= '9'; ++i)
    value = value * 10 + static_cast<uint64_t>(text[i] - '0');
  return value;
}

// The user who has started it: a set-user-ID program has the lock of whoever runs it. -1: it has ended; -2:
// nobody says.
int64_t user_of(uint64_t pid) {
  constexpr std::string_view kUser = "\nUid:\t";
  char path[48] = {}, text[1024];
  fmt::format_to_n(path, sizeof(path) - 1, "/proc/{}/status", pid);
  const long fd = sys::call(__NR_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0L);
  const ScopedFd file(sys::failed(fd) ? -1 : static_cast<int>(fd));
  const long n = file.valid() ? sys::call(__NR_read, file.get(), text, sizeof(text)) : -1;
  if (n > 0) {
    const std::string_view read(text, static_cast<size_t>(n));
    const size_t at = read.find(kUser);
    if (at != read.npos) return static_cast<int64_t>(number_at(read.substr(at + kUser.size())));
  }
  return sys::call(__NR_kill, static_cast<long>(pid), 0L) == -ESRCH ? -1 : -2;
}

bool may_write(int64_t user, const struct stat& directory) {
  return user == -2 || user == 0 || user == static_cast<int64_t>(directory.st_uid) ||
         (user >= 0 && (directory.st_mode & (S_IWGRP | S_IWOTH)) != 0);
}

// A line of /proc/locks: "1: FLOCK  ADVISORY  WRITE 1234 fd:01:5678 0 EOF". Of a process in another pid
// namespace it is not there: then nothing is known.
bool have_only_strangers_it(int directory) {
  struct stat st {};
  if (sys::call(__NR_fstat, directory, &st) != 0) return false;
  char wanted[64] = {};
  const auto end = fmt::format_to_n(wanted, sizeof(wanted) - 1, " {:02x}:{:02x}:{} ", major(st.st_dev),
                                    minor(st.st_dev), st.st_ino);
  const std::string_view object(wanted, end.size);
  const long fd = sys::call(__NR_openat, AT_FDCWD, "/proc/locks", O_RDONLY | O_CLOEXEC, 0L);
  const ScopedFd list(sys::failed(fd) ? -1 : static_cast<int>(fd));
  if (!list.valid()) return false;
  bool any = false, only_strangers = true;
  for_each_line<4096>(list.get(), [&](std::string_view line) {
    const size_t at = line.find(object);
    if (at == line.npos || line.find(" FLOCK ") == line.npos || line.find(" -> ") != line.npos) return true;
    const size_t before = line.rfind(' ', at - 1);
    any = true;
    only_strangers = before != line.npos && !may_write(user_of(number_at(line.substr(before + 1))), st);
    return only_strangers;
  });
  return any && only_strangers;
}

}  // namespace

bool DirectoryLock::try_take(int directory) {
  if (!is_taken(directory, LOCK_EX)) {
    const ScopedFd file = open_file(directory, O_RDONLY);
    if (!file.valid() || !is_taken(file.get(), LOCK_SH)) return true;
    release(directory);
    return false;
  }
  if (!have_only_strangers_it(directory)) return false;
  ScopedFd file = open_file(directory, O_RDWR | O_CREAT);
  if (!file.valid() || is_taken(file.get(), LOCK_EX)) return false;
  if (is_taken(directory, LOCK_EX) && !have_only_strangers_it(directory)) return false;
  file_ = std::move(file);
  return true;
}

void DirectoryLock::release(int directory) {
  sys::call(__NR_flock, directory, static_cast<long>(LOCK_UN));
  file_.reset();
}

}  // namespace ckpt::job
