#include "libckpt_rt/checkpoint/stages/files/file_saver.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/stat.h>

#include <algorithm>
#include <string_view>

#include "base/checks/named_points.h"
#include "base/clock.h"
#include "image/write/directory/saved_files.h"
#include "libckpt_rt/capture/descriptors/descriptors.h"
#include "libckpt_rt/capture/descriptors/kinds/file_systems.h"
#include "libckpt_rt/capture/memory/memory_map.h"
#include "libckpt_rt/core/directory/log.h"
#include "libckpt_rt/core/kernel/descriptor_info.h"
#include "libckpt_rt/core/kernel/task_list.h"
#include "libckpt_rt/core/process/beginning.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {

constexpr uint64_t kMostCopied = 16 << 20, kMostCopiedInAll = 64 << 20;  // bytes
// A copy of a file that was written just before is not the file of any instant.
constexpr int64_t kQuiet = 20'000'000;  // ns
// A link takes some 10 µs.
constexpr uint32_t kMostInStop = 100;

int64_t ns_of(const struct timespec& t) { return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec; }

// A file that a program removes or replaces is, as a rule, one that the program has written or made.
bool is_wanted(uint32_t mode, uint64_t links, int64_t changed_ns, uint32_t open_flags, SavedFiles how) {
  if (!S_ISREG(mode) || links == 0 || (open_flags & O_PATH) != 0) return false;
  return how != SavedFiles::kAuto || (open_flags & O_ACCMODE) != O_RDONLY || changed_ns >= job_began_ns();
}

}  // namespace

void FileSaver::open(Arena& arena, int directory, const char* image, SavedFiles how) {
  arena_ = &arena;
  directory_.be_in(directory, saved_files_directory_of(image));
  how_ = how;
  seen_ = ArenaVector<File>(arena);
  struct stat images;
  device_ = sys::call(__NR_fstat, directory, &images) == 0 ? images.st_dev : 0;
  job_began_ns();  // looked up while it runs
}

// made: the file has a link more.
bool FileSaver::link(const char* path, const Kept& file, bool* made) {
  if (how_ == SavedFiles::kCopies || device_ != file.device || !directory_.open()) return false;
  const SavedFileName name = saved_file_name(file.name_device, file.inode, false);
  const long r = sys::call(__NR_linkat, AT_FDCWD, path, directory_.fd(), name.text, AT_SYMLINK_FOLLOW);
  if (r != 0 && r != -EEXIST) return false;
  // While the program runs, another file may have come to that number since it was looked at.
  struct stat linked;
  const bool right =
      sys::call(__NR_newfstatat, directory_.fd(), name.text, &linked, AT_SYMLINK_NOFOLLOW) == 0 &&
      linked.st_dev == file.device && linked.st_ino == file.inode;
  if (!right && r == 0) sys::call(__NR_unlinkat, directory_.fd(), name.text, 0L);
  if (r == 0) directory_.note_change();
  *made = right && r == 0;
  return right;
}

void FileSaver::save(int tid, int fd) {
  struct stat st;
  FdInfo info;
  char text[1024];
  if (stat_descriptor(tid, fd, st) != 0 || !S_ISREG(st.st_mode)) return;
  if (read_fdinfo(tid, fd, text, *arena_, info) < 0 ||
      !is_wanted(st.st_mode, st.st_nlink, ns_of(st.st_ctim), info.flags, how_))
    return;
  save_at(TaskPath(tid, "fd", fd).c_str(), st, st.st_dev);
}

void FileSaver::save_at(const char* path, const struct stat& st, uint64_t name_device) {
  bool made;
  if (link(path, {st.st_dev, st.st_ino, name_device}, &made)) {
    // A file that the list has no room for is linked once more in the stop, which finds its name taken.
    (void)seen_.push_back({name_device, st.st_ino});
    return;
  }
  if (!directory_.open()) {
    ++not_covered_;
    return;
  }
  if (is_made_by_the_kernel(path)) return;
  if (how_ == SavedFiles::kLinks || copy(path, st, name_device) == Copy::kFailed) ++not_covered_;
}

namespace {

// Until a copy would be one of the file as it is, if nobody writes it; no longer than most_ns. How long that
// was.
int64_t await_quiet(const struct stat& st, int64_t most_ns) {
  const int64_t ns = std::min(ns_of(st.st_mtim) + kQuiet - now_ns(CLOCK_REALTIME) + 1, most_ns);
  if (ns <= 0) return 0;
  const timespec moment{0, ns};
  sys::call(__NR_nanosleep, &moment, nullptr);
  return ns;
}

}  // namespace

void FileSaver::save_mapped(const MemoryMap& map, int log) {
  if (how_ == SavedFiles::kNone || arena_ == nullptr) return;
  not_covered_ = 0;
  const size_t known = seen_.size();
  int64_t left_ns = kQuiet;
  ArenaVector<File> looked_at(*arena_);
  for (const Mapping& m : map.mappings()) {
    // What the program may write, and the image has all of, is made again.
    const bool is_made_again = m.whole && (m.map_flags & kMapMayWrite) != 0;
    const bool is_of_file =
        m.kind == MappingKind::kFilePrivate || (m.kind == MappingKind::kFileShared && !is_made_again);
    if (!is_of_file || (m.map_flags & kMapFileDeleted) != 0 || m.path[0] != '/') continue;
    const File file{m.device, m.inode};
    if (std::binary_search(seen_.begin(), seen_.begin() + known, file) ||
        std::find(looked_at.begin(), looked_at.end(), file) != looked_at.end())
      continue;
    if (!looked_at.push_back(file)) break;
    // Not its device, which is another one in the list of mappings on some file systems. Programs and
    // libraries are older than the job, whatever is to be kept of open files.
    struct stat st;
    if (sys::call(__NR_newfstatat, AT_FDCWD, m.path, &st, AT_SYMLINK_NOFOLLOW) == 0 && st.st_ino == m.inode &&
        is_wanted(st.st_mode, st.st_nlink, ns_of(st.st_ctim), O_RDONLY, SavedFiles::kAuto)) {
      // Written a moment ago, and mapped to be read: it is not looked at again when the image is durable.
      const bool is_copied =
          how_ == SavedFiles::kCopies || (how_ == SavedFiles::kAuto && st.st_dev != device_);
      if (is_copied) left_ns -= await_quiet(st, left_ns);
      save_at(m.path, st, m.device);
    }
  }
  directory_.close();
  std::sort(seen_.begin(), seen_.end());
  say_what_is_not_covered(log, "mapped");
}

void FileSaver::make_durable(int log) {
  if (const long r = directory_.make_durable(); sys::failed(r)) {
    log_format(log, "the names of files that are kept beside the image may be lost at a power failure ({})",
               errno_name(static_cast<int>(r)));
  }
}

void FileSaver::save_all(int log, Time time) {
  if (how_ == SavedFiles::kNone || arena_ == nullptr) return;
  time_ = time;
  not_covered_ = 0;
  seen_.clear();
  ArenaVector<int> fds(*arena_);
  const int tid = sys::getpid();
  if (list_descriptors(tid, fds) < 0) {
    log_format(log,
               "the open files cannot be listed: those opened lately are not kept beside the image "
               "(CKPT_FILES={}), and a restart needs them as they are",
               saved_files_name(how_));
    return;
  }
  for (size_t i = 0; i < fds.size(); ++i) save(tid, fds[i]);
  directory_.close();
  std::sort(seen_.begin(), seen_.end());
  say_what_is_not_covered(log, "open");
}

void FileSaver::say_what_is_not_covered(int log, const char* which) const {
  if (not_covered_ == 0) return;
  log_format(log,
             "{} {} files are not kept beside the image (CKPT_FILES={}): a restart needs them as they are",
             not_covered_, which, saved_files_name(how_));
}

void FileSaver::save_temporary() {
  if (how_ != SavedFiles::kAuto && how_ != SavedFiles::kLinks) return;
  temporary_.look(*arena_, device_, directory_);
  directory_.close();
}

void FileSaver::save_new(std::span<CapturedDescriptor> entries) {
  if (how_ == SavedFiles::kNone || how_ == SavedFiles::kCopies || arena_ == nullptr) return;
  temporary_.look_again(directory_);
  save_opened(entries);
  directory_.close();
}

void FileSaver::save_opened(std::span<CapturedDescriptor> entries) {
  uint32_t most = kMostInStop;
  for (CapturedDescriptor& d : entries) {
    if (!S_ISREG(d.now.mode) || d.in_flight || d.now.device != device_) continue;
    if (!is_wanted(d.now.mode, d.now.links, d.now.ctime_ns, d.now.open_flags, how_)) continue;
    const File file{d.now.device, d.now.inode};
    if (std::binary_search(seen_.begin(), seen_.end(), file)) continue;
    if (most == 0) return;
    --most;
    bool made = false;
    (void)link(TaskPath(sys::getpid(), "fd", d.fd).c_str(), {file.device, file.inode, file.device}, &made);
    if (made) ++d.now.links;
  }
}

// Copied under another name, so that a file which has its name is whole and durable.
FileSaver::Copy FileSaver::copy(const char* path, const struct stat& st, uint64_t name_device) {
  const auto size = static_cast<uint64_t>(st.st_size);
  const SavedFileName name = saved_file_name(name_device, st.st_ino, true);
  if (sys::call(__NR_faccessat, directory_.fd(), name.text, 0L) == 0) return Copy::kMade;
  if (size > kMostCopied || copied_ + size > kMostCopiedInAll ||
      ns_of(st.st_mtim) > now_ns(CLOCK_REALTIME) - kQuiet)
    return Copy::kFailed;
  SavedFileName under_way = copy_under_way(name, 0);
  Copy made = copy_under(path, st, under_way.text);
  if (made == Copy::kUnderWay && time_ == Time::kLast) {
    under_way = copy_under_way(name, sys::getpid());
    made = copy_under(path, st, under_way.text);
    if (made == Copy::kUnderWay) return Copy::kFailed;  // of a process with our number somewhere else
  }
  return made == Copy::kMade ? publish(under_way.text, name.text) : made;
}

FileSaver::Copy FileSaver::copy_under(const char* path, const struct stat& st, const char* name) {
  const auto size = static_cast<uint64_t>(st.st_size);
  const ScopedFd from(
      static_cast<int>(sys::call(__NR_openat, AT_FDCWD, path, O_RDONLY | O_NONBLOCK | O_CLOEXEC, 0L)));
  if (!from.valid()) return Copy::kFailed;
  struct stat opened;
  if (sys::call(__NR_fstat, from.get(), &opened) != 0 || opened.st_dev != st.st_dev ||
      opened.st_ino != st.st_ino)
    return Copy::kFailed;
  const ScopedFd to(static_cast<int>(sys::call(__NR_openat, directory_.fd(), name,
                                               O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600L)));
  if (!to.valid()) return to.get() == -EEXIST ? Copy::kUnderWay : Copy::kFailed;
  directory_.note_change();
  points::at("member.copies");
  bool whole = sys::call(__NR_ioctl, to.get(), FICLONE, from.get()) == 0;
  if (!whole) {
    uint64_t left = size;
    while (left > 0) {
      const long n = sys::call(__NR_sendfile, to.get(), from.get(), 0L, left);
      if (n <= 0) break;
      left -= static_cast<uint64_t>(n);
    }
    whole = left == 0;
    copied_ += size;
  }
  struct stat after;
  const timespec times[2] = {st.st_atim, st.st_mtim};
  whole = whole && sys::call(__NR_fstat, from.get(), &after) == 0 && after.st_size == st.st_size &&
          ns_of(after.st_mtim) == ns_of(st.st_mtim) &&
          sys::call(__NR_fchmod, to.get(), st.st_mode & 0777) == 0 &&
          sys::call(__NR_utimensat, to.get(), 0L, times, 0L) == 0 && sys::call(__NR_fsync, to.get()) == 0;
  if (!whole) sys::call(__NR_unlinkat, directory_.fd(), name, 0L);
  return whole ? Copy::kMade : Copy::kFailed;
}

// Another process may have been faster: its copy is as good.
FileSaver::Copy FileSaver::publish(const char* made, const char* name) {
  const int at = directory_.fd();
  long r = sys::call(__NR_renameat2, at, made, at, name, static_cast<long>(RENAME_NOREPLACE));
  if (r == -EINVAL || r == -ENOSYS) r = sys::call(__NR_renameat, at, made, at, name);
  if (r != 0) sys::call(__NR_unlinkat, at, made, 0L);
  return r == 0 || r == -EEXIST ? Copy::kMade : Copy::kFailed;
}

}  // namespace ckpt
