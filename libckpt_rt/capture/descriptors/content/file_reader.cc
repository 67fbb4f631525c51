#include "libckpt_rt/capture/descriptors/content/file_reader.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <optional>

#include "base/raii_fd.h"
#include "image/format/object_number.h"
#include "libckpt_rt/capture/descriptors/table/notes.h"
#include "libckpt_rt/core/kernel/descriptor_info.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {
namespace {

// Puts the offset of an open file back that the search for its data moves.
class ScopedOffset {
 public:
  explicit ScopedOffset(int fd) : fd_(fd), offset_(sys::call(__NR_lseek, fd, 0L, SEEK_CUR)) {}
  ScopedOffset(const ScopedOffset&) = delete;
  ~ScopedOffset() {
    if (offset_ >= 0) sys::call(__NR_lseek, fd_, offset_, SEEK_SET);
  }

 private:
  int fd_;
  long offset_;
};

}  // namespace

bool FileReader::is_mapped(const CapturedDescriptor& d) const {
  for (const MappedFileRange& m : mapped_) {
    if (m.device == d.now.device && m.inode == d.now.inode) return true;
  }
  return false;
}

int FileReader::open(const CapturedDescriptor& d, bool& shares_offset) {
  shares_offset = d.has_lease;
  if (d.has_lease) return access_.borrow(d);
  TaskPath path(access_.tid_of(d), "fd", d.fd);
  constexpr int kFlags = O_RDONLY | O_NONBLOCK | O_CLOEXEC;
  long fd = -EPERM;
  if (S_ISREG(d.now.mode)) fd = sys::call(__NR_openat, AT_FDCWD, path.c_str(), kFlags | O_NOATIME, 0);
  if (sys::failed(fd)) fd = sys::call(__NR_openat, AT_FDCWD, path.c_str(), kFlags, 0);
  // A file that we may not open again, but that the program has open for reading.
  shares_offset = sys::failed(fd) && (d.now.open_flags & O_ACCMODE) != O_WRONLY;
  if (shares_offset) fd = access_.borrow(d);
  return static_cast<int>(fd);
}

Result<void> FileReader::copy(const CapturedDescriptor& d, DescriptorContents& to, uint64_t most) {
  bool shares_offset = false;
  ScopedFd file(open(d, shares_offset));
  auto cannot = [&](long error) {
    return make_error(ExitCode::kIo, static_cast<int>(error), "{}", errno_name(static_cast<int>(error)));
  };
  if (!file.valid()) return cannot(file.get());
  // A program that runs would read and write at the offset that the search for data has left.
  if (shares_offset && !access_.stands()) return cannot(-EBUSY);
  std::optional<ScopedOffset> scoped;
  if (shares_offset) scoped.emplace(file.get());
  uint64_t at = 0, left = most;
  const size_t first = to.size();
  while (at < d.now.size) {
    long data = sys::call(__NR_lseek, file.get(), at, SEEK_DATA);
    if (data == -ENXIO) break;
    if (sys::failed(data)) data = static_cast<long>(at);
    long hole = sys::call(__NR_lseek, file.get(), data, SEEK_HOLE);
    uint64_t start = static_cast<uint64_t>(data);
    uint64_t end = sys::failed(hole) || static_cast<uint64_t>(hole) > d.now.size
                       ? d.now.size
                       : static_cast<uint64_t>(hole);
    for (const auto& m : mapped_) {
      if (m.device != d.now.device || m.inode != d.now.inode) continue;
      if (m.offset <= start && start < m.offset + m.length) start = m.offset + m.length;
      if (start < m.offset && m.offset < end) end = m.offset;
    }
    if (start >= end) {
      at = start > end ? start : end;
      continue;
    }
    if (most != kAny && (end - start > left || to.size() - first == kMostPieces)) return cannot(-EFBIG);
    left -= end - start;
    std::byte* bytes = take_memory(end - start);
    if (bytes == nullptr) return cannot(-ENOMEM);
    uint64_t have = 0;
    while (have < end - start) {
      long n = sys::call(__NR_pread64, file.get(), bytes + have, end - start - have, start + have);
      if (n < 0) return cannot(n);
      if (n == 0) break;  // cut off meanwhile: only while the program runs, and then not used
      have += static_cast<uint64_t>(n);
    }
    if (!to.push_back({0, object_number(d.now.device, d.now.inode), start, bytes, have}))
      return arena_full(files_.arena());
    at = end;
  }
  return {};
}

// Of the memory that was touched ahead of the stop, if there is enough of it.
std::byte* FileReader::take_memory(uint64_t bytes) {
  if (bytes > ahead_.size()) return static_cast<std::byte*>(files_.arena().allocate(bytes));
  std::byte* taken = ahead_.data();
  ahead_ = ahead_.subspan(bytes);
  return taken;
}

// bytes: of files that were being written while others were copied.
void FileReader::get_memory_ahead(uint64_t bytes) {
  files_.arena().populate(bytes);
  auto* memory = static_cast<std::byte*>(files_.arena().allocate(bytes));
  if (memory != nullptr) ahead_ = {memory, bytes};
}

}  // namespace ckpt
