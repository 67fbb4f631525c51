#include "libckpt_rt/checkpoint/stages/files/temporary_files.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/stat.h>
#include <sys/inotify.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "base/checks/check.h"
#include "base/clock.h"
#include "base/files/directory_scan.h"
#include "base/sys.h"
#include "image/format/saved_file_names.h"
#include "libckpt_rt/core/kernel/task_list.h"
#include "libckpt_rt/core/process/beginning.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {

constexpr uint32_t kMostEntries = 4'000;              // of the directory
constexpr uint32_t kMostFiles = 1'000, kInStop = 64;  // a link takes some 10 µs
constexpr uint32_t kLooksForEach = 4;  // files of others among those that are saved; one takes 2 µs
constexpr size_t kEnvironment = 64 << 10;
constexpr int64_t kQuiet = 20'000'000;  // ns: times of files are those of the last tick
constexpr uint32_t kMostEvents = 64;    // a look at one takes some 3 µs
constexpr uint32_t kMostOfAll = kMostFiles + kMostEvents + kInStop;
constexpr uint32_t kCame = IN_CREATE | IN_MOVED_TO, kWent = IN_DELETE | IN_MOVED_FROM;
constexpr uint64_t kRoomForOurs = 256;  // descriptors
constexpr int64_t kSmall = 8 << 10;     // bytes of a directory: listed in some 50 µs

constexpr unsigned char kRegular = 8, kUnknown = 0;  // DT_REG, DT_UNKNOWN

int64_t ns_of(const struct timespec& t) { return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec; }

// As it was when the program began. NUL-terminated.
const char* directory_of_temporary_files(Arena& arena) {
  constexpr std::string_view kName = "TMPDIR=";
  char* text = static_cast<char*>(arena.allocate(kEnvironment, 1));
  const long n = text == nullptr ? 0 : read_small_file("/proc/self/environ", text, kEnvironment);
  for (long at = 0; at < n;) {
    const auto* end = static_cast<const char*>(std::memchr(text + at, '\0', static_cast<size_t>(n - at)));
    if (end == nullptr) break;
    const std::string_view variable(text + at, static_cast<size_t>(end - (text + at)));
    if (variable.starts_with(kName) && variable.size() > kName.size() && variable[kName.size()] == '/')
      return text + at + kName.size();
    at = end - text + 1;
  }
  return "/tmp";
}

}  // namespace

void TemporaryFiles::look(Arena& arena, uint64_t device, SavedFilesDirectory& saved) {
  arena_ = &arena;
  device_ = device;
  seen_ = ArenaVector<uint64_t>(arena);
  files_ = ArenaVector<File>(arena);
  path_ = directory_of_temporary_files(arena);
  inode_ = 0;
  struct stat st;
  if (std::string_view(path_).size() > 3000 || !files_.reserve(kMostOfAll)) return;
  const ScopedFd directory = open_directory(&st);
  if (!directory.valid() || st.st_dev != device_) return;
  inode_ = st.st_ino;
  if (st.st_size > kSmall) watch_changes();
  changed_ns_ = ns_of(st.st_mtim);
  looked_ns_ = now_ns(CLOCK_REALTIME);
  scan(directory.get(), saved, kMostFiles);
}

bool TemporaryFiles::has_changed() const {
  struct stat st;
  if (inode_ == 0 || sys::call(__NR_newfstatat, AT_FDCWD, path_, &st, 0L) != 0 || st.st_ino != inode_)
    return false;
  return ns_of(st.st_mtim) != changed_ns_ || changed_ns_ >= looked_ns_ - kQuiet;
}

// To list a large directory takes milliseconds, in the stop. So the kernel notes what changes until then. A
// small one is listed: a watch delays the end of the checkpoint. So is that of a program at its limit of
// descriptors, where there is no room for one of ours.
void TemporaryFiles::watch_changes() {
  struct rlimit limit {};
  const long fd = sys::call(__NR_inotify_init1, static_cast<long>(IN_NONBLOCK | IN_CLOEXEC));
  changes_ = ScopedFd(static_cast<int>(fd));
  if (!changes_.valid()) return;
  if (sys::call(__NR_prlimit64, 0L, static_cast<long>(RLIMIT_NOFILE), 0L, &limit) != 0 ||
      static_cast<uint64_t>(fd) + kRoomForOurs > limit.rlim_cur ||
      (watch_ = sys::call(__NR_inotify_add_watch, changes_.get(), path_, kCame | kWent | IN_ONLYDIR)) < 0)
    changes_.reset();
}

// The kernel takes some 8 ms to take a watch apart, and closing the descriptor waits for it: begun when the
// stop is over, that is over when the checkpoint ends.
void TemporaryFiles::end_watch() {
  if (changes_.valid()) sys::call(__NR_inotify_rm_watch, changes_.get(), watch_);
}

// False: too much has changed, or the kernel has not noted it.
bool TemporaryFiles::follow_changes(int directory, SavedFilesDirectory& saved) {
  if (!changes_.valid()) return false;
  alignas(inotify_event) char buffer[8192];
  uint32_t events = 0;
  for (;;) {
    const long n = sys::call(__NR_read, changes_.get(), buffer, sizeof(buffer));
    if (n <= 0) return n == -EAGAIN;
    for (long at = 0; at < n;) {
      const auto* event = reinterpret_cast<const inotify_event*>(buffer + at);
      at += static_cast<long>(sizeof(*event)) + event->len;
      if ((event->mask & IN_Q_OVERFLOW) != 0 || ++events > kMostEvents) return false;
      if ((event->mask & IN_ISDIR) != 0 || event->len == 0) continue;
      if ((event->mask & kWent) != 0) forget(directory, saved, event->name);
      if ((event->mask & kCame) != 0) save(directory, saved, event->name, 0);
    }
  }
}

void TemporaryFiles::forget(int directory, SavedFilesDirectory& saved, const char* name) {
  for (File& file : files_) {
    if (std::strcmp(file.name, name) == 0) forget_if_gone(directory, saved, file);
  }
}

void TemporaryFiles::forget_if_gone(int directory, SavedFilesDirectory& saved, File& file) {
  struct stat st;
  const bool there = sys::call(__NR_newfstatat, directory, file.name, &st, AT_SYMLINK_NOFOLLOW) == 0;
  if ((there && st.st_ino == file.inode) || !saved.open()) return;
  file.is_gone = true;
  sys::call(__NR_unlinkat, saved.fd(), saved_name_file(device_, file.inode).text, 0L);
  saved.note_change();
}

// It may have got another name.
bool TemporaryFiles::has_lost_name(uint64_t inode) const {
  for (const File& file : files_) {
    if (file.is_gone && file.inode == inode) return true;
  }
  return false;
}

void TemporaryFiles::look_again(SavedFilesDirectory& saved) {
  if (has_changed()) take_changes(saved);
}

void TemporaryFiles::take_changes(SavedFilesDirectory& saved) {
  struct stat st;
  const ScopedFd directory = open_directory(&st);
  if (!directory.valid() || st.st_dev != device_ || st.st_ino != inode_) return;
  if (follow_changes(directory.get(), saved)) return;
  for (File& file : files_) forget_if_gone(directory.get(), saved, file);
  scan(directory.get(), saved, kInStop);
}

// Not held between the two looks: a program at its limit of descriptors has room for few of ours.
ScopedFd TemporaryFiles::open_directory(struct stat* st) const {
  ScopedFd fd(
      static_cast<int>(sys::call(__NR_openat, AT_FDCWD, path_, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0L)));
  if (fd.valid() && sys::call(__NR_fstat, fd.get(), st) != 0) fd.reset();
  return fd;
}

void TemporaryFiles::scan(int directory, SavedFilesDirectory& saved, uint32_t most) {
  const size_t known = seen_.size();
  const size_t files = files_.size();
  alignas(8) char buffer[8192];
  sys::call(__NR_lseek, directory, 0L, SEEK_SET);
  bool goes_on = true;
  for (uint32_t entries = 0; goes_on && entries < kMostEntries;) {
    const long n = sys::call(__NR_getdents64, directory, buffer, sizeof(buffer));
    if (n <= 0) break;
    for (long at = 0; goes_on && at < n; ++entries) {
      const auto* entry = reinterpret_cast<const DirectoryEntry*>(buffer + at);
      at += entry->bytes;
      if ((entry->type != kRegular && entry->type != kUnknown) ||
          (std::binary_search(seen_.begin(), seen_.begin() + known, entry->inode) &&
           !has_lost_name(entry->inode)))
        continue;
      goes_on = files_.size() - files < most && seen_.size() - known < kLooksForEach * most &&
                seen_.push_back(entry->inode);
      if (goes_on) save(directory, saved, entry->name, entry->inode);
    }
  }
  std::sort(seen_.begin(), seen_.end());
}

void TemporaryFiles::save(int directory, SavedFilesDirectory& saved, const char* name, uint64_t inode) {
  struct statx st {};
  if (sys::call(__NR_statx, directory, name, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS | STATX_BTIME, &st) != 0)
    return;
  const int64_t born = st.stx_btime.tv_sec * 1'000'000'000 + st.stx_btime.tv_nsec;
  const bool ours = S_ISREG(st.stx_mode) && st.stx_uid == static_cast<uint32_t>(sys::call(__NR_geteuid));
  if (!ours || (st.stx_mask & STATX_BTIME) == 0 || born < job_began_ns() ||
      (inode != 0 && st.stx_ino != inode) || !saved.open())
    return;
  // A file that is not in the list would come back at a restart, although the program has removed it.
  if (files_.size() == kMostOfAll) return;
  inode = st.stx_ino;
  const long linked =
      sys::call(__NR_linkat, directory, name, saved.fd(), saved_file_name(device_, inode, false).text, 0L);
  if (linked != 0 && linked != -EEXIST) return;
  saved.note_change();
  const uint32_t names = st.stx_nlink - (linked == -EEXIST ? 1 : 0);
  // The name by which the program knows the file, behind a letter: whether it had another name.
  const size_t before = std::strlen(path_), length = std::strlen(name);
  char* text = static_cast<char*>(arena_->allocate(before + length + 3, 1));
  if (text == nullptr) return;
  text[0] = names > 1 ? kSavedManyNames : kSavedOneName;
  std::memcpy(text + 1, path_, before);
  text[before + 1] = '/';
  std::memcpy(text + before + 2, name, length + 1);
  if (sys::call(__NR_symlinkat, text, saved.fd(), saved_name_file(device_, inode).text) == 0)
    CHECK(files_.push_back({inode, text + before + 2}));
}

}  // namespace ckpt
