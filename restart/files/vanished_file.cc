#include "restart/files/vanished_file.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <span>
#include <vector>

#include "base/raii_fd.h"
#include "image/read/saved_memory.h"
#include "restart/files/file_to_come.h"

namespace ckpt {
namespace {

constexpr size_t kAtOnce = 1 << 20;  // bytes

bool is_shared_file(const ParsedMapping& m) {
  return static_cast<MappingKind>(m.record.kind) == MappingKind::kFileShared;
}

bool shows_all(const ParsedMapping& m) {
  return m.record.file_offset == 0 && m.record.object_size <= m.record.end - m.record.start;
}

// Paths of mappings are the kernel's: there was no link in them.
ScopedFd open_directory(const std::string& path) {
  open_how how{};
  how.flags = O_DIRECTORY | O_PATH | O_CLOEXEC;
  how.resolve = RESOLVE_NO_SYMLINKS;
  return ScopedFd(static_cast<int>(syscall(SYS_openat2, AT_FDCWD, path.c_str(), &how, sizeof(how))));
}

Result<void> give_to(int fd, const std::string& path, const ProcessRecord& p) {
  if (geteuid() != 0 || fchown(fd, p.uid[1], p.gid[1]) == 0) return {};
  return make_error(ExitCode::kFileChanged, errno, "{} cannot be given to its owner ({})", path,
                    errno_name(errno));
}

bool may_be_trusted(const struct stat& st, const ProcessRecord& p) {
  const bool of_others = st.st_uid != 0 && st.st_uid != p.uid[1] && st.st_uid != geteuid();
  return !of_others && ((st.st_mode & 022) == 0 || (st.st_mode & S_ISVTX) != 0);
}

// Missing directories above it are made too, each in a directory in which no other user can replace it.
Result<int> open_or_make_directory(const std::string& path, const ProcessRecord& p) {
  ScopedFd fd = open_directory(path);
  if (!fd.valid() && errno == ENOENT && path != "/") {
    const size_t slash = path.rfind('/');
    auto opened = open_or_make_directory(slash == 0 ? "/" : path.substr(0, slash), p);
    if (!opened.ok()) return opened.error();
    const ScopedFd above(*opened);
    FileToCome made = FileToCome::folder(above.get(), path.substr(slash + 1));
    if (made.valid()) CKPT_TRY(give_to(made.fd(), path, p));
    // EEXIST: by another process of the job, on another host.
    if (made.valid() && (made.take_name() || errno == EEXIST)) fd = open_directory(path);
  }
  if (!fd.valid())
    return make_error(ExitCode::kFileChanged, errno,
                      "{} is gone and cannot be made again ({}): put it back where it was", path,
                      errno_name(errno));
  struct stat st;
  if (fstat(fd.get(), &st) != 0)
    return make_error(ExitCode::kIo, errno, "cannot stat {} ({})", path, errno_name(errno));
  if (!may_be_trusted(st, p)) {
    return make_error(
        ExitCode::kFileChanged, 0,
        "a file in {} is gone and is not made again, since others may write there: put the old file back",
        path);
  }
  return fd.release();
}

// All of it, from the image; pages that the image does not have are zeros. The time of its last change as it
// was.
Result<void> fill(int fd, const ParsedMapping& m, const ImageChain& image) {
  const MappingRecord& r = m.record;
  SavedMemory memory(image);
  std::vector<std::byte> bytes(kAtOnce);
  for (const SavedMemory::Contents& part : memory.contents_of(m)) {
    const uint64_t end = std::min(part.range.end.value - r.start, r.object_size);
    for (uint64_t at = part.range.start.value - r.start; at < end;) {
      std::span<std::byte> now(bytes.data(), std::min<uint64_t>(kAtOnce, end - at));
      CKPT_TRY(memory.read(part.from + (at - (part.range.start.value - r.start)), now));
      const ssize_t n = pwrite(fd, now.data(), now.size(), static_cast<off_t>(at));
      if (n <= 0) {
        return make_error(ExitCode::kIo, errno, "{} was gone and cannot be given its content ({})", m.path,
                          errno_name(errno));
      }
      at += static_cast<uint64_t>(n);
    }
  }
  if (r.file_mtime_ns != 0) {
    const timespec at{r.file_mtime_ns / 1'000'000'000, r.file_mtime_ns % 1'000'000'000};
    const timespec times[2] = {at, at};
    futimens(fd, times);
  }
  return {};
}

// kFileChanged also: there is one now.
Result<void> make_again(const ParsedMapping& m, const ImageChain& image) {
  const ProcessRecord& process = image.meta().process.record;
  const std::string path(m.path);
  const size_t slash = path.rfind('/');
  auto opened = open_or_make_directory(slash == 0 ? "/" : path.substr(0, slash), process);
  if (!opened.ok()) return opened.error();
  ScopedFd directory(*opened);
  FileToCome file = FileToCome::regular(directory.get(), path.substr(slash + 1));
  const bool made = file.valid() && ftruncate(file.fd(), static_cast<off_t>(m.record.object_size)) == 0;
  if (made && !is_filled_by_mapping(m)) CKPT_TRY(fill(file.fd(), m, image));
  if (made) CKPT_TRY(give_to(file.fd(), path, process));
  if (made && file.take_name()) return {};
  return make_error(ExitCode::kFileChanged, errno,
                    "{} is gone and cannot be made again ({}): put it back where it was", path,
                    errno_name(errno));
}

}  // namespace

Result<int> open_directory_of(const std::string& file, const ProcessRecord& process) {
  return open_or_make_directory(file.substr(0, std::max<size_t>(1, file.rfind('/'))), process);
}

Result<void> make_directory_of(const std::string& file, const ProcessRecord& process) {
  const std::string path = file.substr(0, std::max<size_t>(1, file.rfind('/')));
  if (!file.starts_with('/') || access(path.c_str(), F_OK) == 0) return {};
  auto opened = open_or_make_directory(path, process);
  if (!opened.ok()) return opened.error();
  const ScopedFd made(*opened);
  return {};
}

Result<void> make_fifo_again(const std::string& path, uint32_t mode, const ProcessRecord& process) {
  const size_t slash = path.rfind('/');
  auto opened = open_or_make_directory(slash == 0 ? "/" : path.substr(0, slash), process);
  if (!opened.ok()) return opened.error();
  const ScopedFd directory(*opened);
  FileToCome fifo = FileToCome::fifo(directory.get(), path.substr(slash + 1));
  const std::string made = fmt::format("/proc/self/fd/{}", fifo.fd());
  if (!fifo.valid() || chmod(made.c_str(), mode & 07777) != 0)
    return make_error(ExitCode::kFileChanged, errno,
                      "{} was a FIFO at the checkpoint and cannot be made again ({}): make it (mkfifo)", path,
                      errno_name(errno));
  if (geteuid() == 0 && fchownat(fifo.fd(), "", process.uid[1], process.gid[1], AT_EMPTY_PATH) != 0)
    return make_error(ExitCode::kFileChanged, errno, "{} cannot be given to its owner ({})", path,
                      errno_name(errno));
  if (fifo.take_name()) return {};
  return make_error(ExitCode::kFileChanged, errno, "{} cannot be given its name ({})", path,
                    errno_name(errno));
}

bool is_shared_memory_file(const ParsedMapping& m) {
  return m.path.starts_with("/dev/shm/") && is_shared_file(m);
}

bool can_be_made_again(const ParsedMapping& m) {
  if (!is_shared_file(m) || (m.record.flags & kMapFileDeleted) != 0) return false;
  if (!m.path.starts_with('/') || m.path.find("/../") != m.path.npos) return false;
  const bool whole = (m.record.flags & kMapWhole) != 0 && shows_all(m);
  return whole || (is_shared_memory_file(m) && is_filled_by_mapping(m));
}

bool is_filled_by_mapping(const ParsedMapping& m) { return (m.record.flags & kMapMayWrite) != 0; }

void add_returning_files(const ImageMeta& meta, ReturningFiles& files) {
  for (const ParsedMapping& m : meta.mappings) {
    if (!can_be_made_again(m)) continue;
    const std::string path(m.path);
    if (access(path.c_str(), F_OK) != 0 && errno == ENOENT) files[path] |= shows_all(m);
  }
}

bool any_is_filled_now(const ImageMeta& meta) {
  ReturningFiles gone;
  add_returning_files(meta, gone);
  return std::any_of(meta.mappings.begin(), meta.mappings.end(), [&](const ParsedMapping& m) {
    return can_be_made_again(m) && !is_filled_by_mapping(m) && gone.contains(m.path);
  });
}

Result<void> make_returning_files(const ImageChain& image, Filled filled,
                                  const std::function<void(std::string_view)>& say) {
  const ImageMeta& meta = image.meta();
  ReturningFiles gone;
  add_returning_files(meta, gone);
  for (const ParsedMapping& m : meta.mappings) {
    if (!can_be_made_again(m) || is_filled_by_mapping(m) != (filled == Filled::kByMapping)) continue;
    if (gone.erase(std::string(m.path)) == 0) continue;
    CKPT_TRY(make_again(m, image));
    if (say) say(fmt::format("{} was gone: made again with what the program had mapped of it", m.path));
  }
  return {};
}

}  // namespace ckpt
