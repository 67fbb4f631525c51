#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/ioctl.h>
#include <sys/statfs.h>

#include <algorithm>
#include <climits>
#include <optional>

#include "base/clock.h"
#include "base/raii_fd.h"
#include "libckpt_rt/capture/descriptors/descriptors.h"
#include "libckpt_rt/capture/descriptors/table/notes.h"
#include "libckpt_rt/core/preload_rules.h"

// Bytes that exist nowhere else: those of files without a name, of memfds and of pipes.
//
// Small files are copied in the stop. Large ones are copied while the program still runs, and the
// copy is taken if the stop finds size and times unchanged; else the file is copied again, in the stop.
// Files with a name that the program may change in place: named_content.cc.

namespace ckpt {
namespace {

constexpr uint64_t kEarlyBytes = 256 << 10;
// ns: some file systems stamp files by a clock that is coarser than the kernel's ticks.
constexpr int64_t kTimeStampDoubt = 20'000'000;

// With a name in /dev/shm, which the program may remove at any time. Larger ones are mapped, as a rule, and
// their memory is in the image.
bool is_small_shared_memory(const CapturedDescriptor& d) {
  constexpr std::string_view kPlace = "/dev/shm/";
  constexpr uint64_t kSmall = 64 << 10;
  const std::string_view path(d.path, d.path_len);
  return d.kind == OpenFileKind::kRegular && (d.flags & kOpenFileDeleted) == 0 && d.now.size <= kSmall &&
         path.starts_with(kPlace) && path.find('/', kPlace.size()) == path.npos;
}

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

// A description of our own, whose offset is not the program's. Where the file may not be opened again, or
// opening would break the program's lease, it is a duplicate, which shares the program's offset.
int DescriptorCapture::open_for_reading(const CapturedDescriptor& d, bool& shares_offset) {
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

// Appends what the file holds, without holes and without what the memory half saves. Fails with
// kIo when the bytes cannot be had.
Result<void> DescriptorCapture::copy_file(const CapturedDescriptor& d, DescriptorContents& to) {
  bool shares_offset = false;
  ScopedFd file(open_for_reading(d, shares_offset));
  auto cannot = [&](long error) {
    return make_error(ExitCode::kIo, static_cast<int>(error), "{}", errno_name(static_cast<int>(error)));
  };
  if (!file.valid()) return cannot(file.get());
  // A program that runs would read and write at the offset that the search for data has left.
  if (shares_offset && !access_.stands()) return cannot(-EBUSY);
  std::optional<ScopedOffset> scoped;
  if (shares_offset) scoped.emplace(file.get());
  uint64_t at = 0;
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

// Inodes of files that this process maps shared: their bytes can change while their times do not. False: not
// known.
bool DescriptorCapture::list_mapped_shared() {
  ScopedFd maps(static_cast<int>(
      sys::call(__NR_openat, AT_FDCWD, TaskPath(access_.tid(), "maps").c_str(), O_RDONLY | O_CLOEXEC, 0)));
  if (!maps.valid()) return false;
  size_t have = 0;
  for (;;) {
    long n = sys::call(__NR_read, maps.get(), access_.text().data() + have, access_.text().size() - have);
    if (n < 0) return false;
    if (n == 0) return true;
    have += static_cast<size_t>(n);
    // "start-end perms offset dev inode path": whole lines only.
    std::string_view text(access_.text().data(), have), line;
    size_t whole = text.rfind('\n') + 1;
    std::string_view rest = text.substr(whole);
    text = text.substr(0, whole);
    while (next_line(text, line)) {
      size_t perms = line.find(' ');
      uint64_t number = 0;
      if (perms == std::string_view::npos || line.size() < perms + 5 || line[perms + 4] != 's') continue;
      size_t device = line.find(':', perms);
      if (device == std::string_view::npos) continue;
      size_t blank = line.find(' ', device);
      if (blank != std::string_view::npos && number_after(line.substr(blank), " ", 10, number) &&
          !mapped_shared_.push_back(number))
        return false;
    }
    have = rest.size();
    std::memmove(access_.text().data(), rest.data(), have);
  }
}

// Taken in the stop if nothing has changed by then. False: not copied.
Result<bool> DescriptorCapture::copy_early(const CapturedDescriptor& d) {
  struct statfs fs {};
  sys::call(__NR_statfs, TaskPath(access_.tid(), "fd", d.fd).c_str(), &fs);
  if (fs.f_type == TMPFS_MAGIC ||
      std::find(mapped_shared_.begin(), mapped_shared_.end(), d.now.inode) != mapped_shared_.end())
    return false;
  struct stat st;
  // The clock by which files are stamped: it stands still between two ticks, and while the host runs
  // something else.
  const int64_t begin = now_ns(CLOCK_REALTIME_COARSE);
  if (stat_descriptor(access_.tid(), d.fd, st) < 0 || st.st_ino != d.now.inode || st.st_dev != d.now.device)
    return false;
  EarlyCopy copy{};
  copy.device = d.now.device;
  copy.inode = d.now.inode;
  copy.size = static_cast<uint64_t>(st.st_size);
  copy.links = static_cast<uint32_t>(st.st_nlink);
  copy.mtime_ns = int64_t{st.st_mtim.tv_sec} * 1'000'000'000 + st.st_mtim.tv_nsec;
  copy.ctime_ns = int64_t{st.st_ctim.tv_sec} * 1'000'000'000 + st.st_ctim.tv_nsec;
  // Being written now. Some file systems count whole seconds, or two.
  const int64_t doubt = copy.mtime_ns % 1'000'000'000 == 0 ? 2'000'000'000 : kTimeStampDoubt;
  if (copy.mtime_ns > begin - doubt) return false;
  copy.first = early_contents_.size();
  CapturedDescriptor now = d;
  now.now.size = copy.size;
  if (!copy_file(now, early_contents_)) {
    early_contents_.truncate(copy.first);
    return false;
  }
  copy.count = early_contents_.size() - copy.first;
  if (!early_.push_back(copy)) return arena_full(files_.arena());
  return true;
}

Result<void> DescriptorCapture::copy_large_early() {
  uint64_t room = contents_room_ = room_for_contents(), being_written = 0;
  ahead_ = {};
  bool looked = false, known = false;  // at what is mapped
  for (size_t i = 0; i < files_.order().size(); ++i) {
    const CapturedDescriptor& d = files_.in_order(i);
    if (!files_.begins_inode(i)) continue;  // another open of the same file
    const bool nameless = d.kind == OpenFileKind::kRegular && (d.flags & kOpenFileDeleted) != 0;
    if (nameless ? d.now.size < kEarlyBytes : d.now.size > room || !can_change_in_place(i)) continue;
    if (!looked) known = list_mapped_shared();
    looked = true;
    Result<bool> copied = false;
    if (known && !d.has_lease) copied = copy_early(d);
    if (!copied.ok()) return copied.error();
    if (nameless) continue;
    room -= d.now.size;
    if (!*copied) being_written += d.now.size;
  }
  if (being_written != 0) get_memory_ahead(being_written);
  return {};
}

bool DescriptorCapture::take_early_copy(const CapturedDescriptor& d) {
  // The early copies were made in the order of devices and inodes.
  const auto* copy = std::lower_bound(early_.begin(), early_.end(), d, [](const EarlyCopy& a, const auto& b) {
    return a.device != b.now.device ? a.device < b.now.device : a.inode < b.now.inode;
  });
  if (copy == early_.end() || copy->device != d.now.device || copy->inode != d.now.inode) return false;
  // The program may set mtime back, so ctime counts as well. A saved file of another member gives this one a
  // further name, which changes ctime too.
  const bool same = copy->ctime_ns == d.now.ctime_ns || copy->links != d.now.links;
  if (copy->size != d.now.size || copy->mtime_ns != d.now.mtime_ns || !same) return false;
  for (size_t i = 0; i < copy->count; ++i) {
    DescriptorContent c = early_contents_[copy->first + i];
    c.open_file = d.open_file;
    if (!contents_.push_back(c)) return false;
  }
  return true;
}

// Of a file without a name, which will be another one: attributes of the program's own, and an access list.
Result<void> DescriptorCapture::take_attributes(CapturedDescriptor& d) {
  constexpr size_t kLongestValue = 64 << 10;  // XATTR_SIZE_MAX
  TaskPath path(access_.tid_of(d), "fd", d.fd);
  const long size = sys::call(__NR_listxattr, path.c_str(), 0L, 0L);
  if (size <= 0) return {};
  auto* names = static_cast<char*>(files_.arena().allocate(static_cast<size_t>(size), 1));
  if (names == nullptr) return arena_full(files_.arena());
  const long n = sys::call(__NR_listxattr, path.c_str(), names, size);
  if (n <= 0) return {};
  ByteWriter out(files_.arena());
  out.raw(d.details, d.details_len);
  std::string_view left(names, static_cast<size_t>(n));
  while (!left.empty()) {
    const std::string_view name = left.substr(0, left.find('\0'));
    left.remove_prefix(std::min(name.size() + 1, left.size()));
    if (!name.starts_with("user.") && name != "system.posix_acl_access") continue;
    if (attribute_ == nullptr) attribute_ = static_cast<std::byte*>(files_.arena().allocate(kLongestValue));
    std::byte* const value = attribute_;
    if (value == nullptr) return arena_full(files_.arena());
    const long length = sys::call(__NR_getxattr, path.c_str(), name.data(), value, kLongestValue);
    if (length < 0) {
      CKPT_TRY(notes_.add(kChanged, "descriptor {} ({}): the attribute {} cannot be read ({}), and is lost",
                          d.fd, d.path, name, errno_name(static_cast<int>(length))));
      continue;
    }
    const AttributeDetail attribute{static_cast<uint32_t>(name.size()), static_cast<uint32_t>(length)};
    const uint64_t bytes = sizeof(attribute) + name.size() + static_cast<uint64_t>(length);
    out.put(DetailHeader{static_cast<uint32_t>(OpenFileDetail::kAttribute),
                         static_cast<uint32_t>((bytes + 7) & ~uint64_t{7})});
    out.put(attribute);
    out.raw(reinterpret_cast<const std::byte*>(name.data()), name.size());
    out.raw(value, static_cast<size_t>(length));
    out.pad_to(8);
  }
  if (!out.ok()) return arena_full(files_.arena());
  d.details = out.span().data();
  d.details_len = static_cast<uint32_t>(out.size());
  return {};
}

Result<void> DescriptorCapture::copy_contents_stopped() {
  size_t too_long = 0;
  const CapturedDescriptor* first_too_long = nullptr;
  for (size_t i = 0; i < files_.order().size(); ++i) {
    CapturedDescriptor& d = files_.in_order(i);
    if (!files_.begins_inode(i)) continue;
    Result<void> copied;
    const size_t before = contents_.size();
    if (d.kind == OpenFileKind::kPipe || d.kind == OpenFileKind::kFifo) {
      copied = copy_pipe(i);
    } else if (d.kind == OpenFileKind::kMessageQueue) {
      CKPT_TRY(copy_messages(i));
      continue;
    } else if (const bool changes = may_overwrite(i), whole = changes && take_room(d.now.size);
               whole || is_small_shared_memory(d)) {
      // sem_open(3), for example, removes the name that its file had at first.
      bool had = take_early_copy(d);
      if (!had) {
        contents_.truncate(before);
        had = copy_file(d, contents_).ok();
      }
      if (!had) {
        contents_.truncate(before);
        continue;
      }
      for (const uint32_t k : files_.same_inode(i))
        files_.entries()[k].flags |= kOpenFileContents | (whole ? kOpenFileWhole : 0u);
      for (size_t c = before; c < contents_.size(); ++c) contents_[c].open_file = d.open_file;
      continue;
    } else if (changes) {
      if (++too_long == 1) first_too_long = &d;
    } else if (d.kind == OpenFileKind::kMemfd ||
               (d.kind == OpenFileKind::kRegular && (d.flags & kOpenFileDeleted) != 0)) {
      CKPT_TRY(take_attributes(d));
      if (d.now.size == 0 || take_early_copy(d)) continue;
      contents_.truncate(before);
      copied = copy_file(d, contents_);
      for (size_t c = before; c < contents_.size(); ++c) contents_[c].open_file = d.open_file;
    }
    if (copied) continue;
    contents_.truncate(before);
    CKPT_TRY(notes_.add(kChanged,
                        "descriptor {} ({}): its {} bytes cannot be read ({}); after restart it gives errors",
                        d.fd, d.path, d.now.size, copied.error().message()));
    // All that lead to this inode.
    for (const uint32_t k : files_.same_inode(i)) files_.entries()[k].kind = OpenFileKind::kOther;
  }
  close_copy_pipe();
  return too_long == 0 ? Result<void>() : note_too_long(too_long, *first_too_long);
}

// tee(2) copies references to a pipe's buffers into a pipe of ours, which is then read: the program's
// bytes stay where they are. Packets (O_DIRECT) stay apart: one read gives one packet. Only these reads tell
// which bytes are packets, since another process may write them. A byte of ours behind them shows where the
// last ends.
Result<void> DescriptorCapture::copy_pipe(size_t first_in_order) {
  const CapturedDescriptor& head = files_.in_order(first_in_order);
  auto for_all_ends = [&](auto visit) {
    for (const uint32_t i : files_.same_inode(first_in_order)) visit(files_.entries()[i]);
  };
  uint32_t ends = 0, size = 0;
  int queued = 0;
  const CapturedDescriptor* reader = nullptr;
  for_all_ends([&](CapturedDescriptor& d) {
    ends |= d.flags;
    if ((d.flags & kOpenFilePipeReadEnd) != 0) reader = &d;
    size = d.now.pipe_size;
    queued = d.now.queued;
  });
  auto cannot = [&](long error) {
    return make_error(ExitCode::kIo, static_cast<int>(error), "{}", errno_name(static_cast<int>(error)));
  };
  // The bytes in a FIFO belong to who reads it.
  if ((ends & kOpenFilePipeReadEnd) == 0) return {};
  if (size != 0 && queued == 0) return {};
  ScopedFd in(access_.borrow(*reader));
  bool shares_offset = false;  // a pipe has none
  if (!in.valid()) in.reset(open_for_reading(head, shares_offset));
  if (!in.valid()) return cannot(in.get());
  if (size == 0) {  // the sample could not tell
    long r = sys::call(__NR_fcntl, in.get(), F_GETPIPE_SZ, 0);
    if (r < 0) return cannot(r);
    size = static_cast<uint32_t>(r);
    for_all_ends([&](CapturedDescriptor& d) { d.now.pipe_size = size; });
    if ((r = sys::call(__NR_ioctl, in.get(), FIONREAD, &queued)) < 0) return cannot(r);
    if (queued == 0) return {};
  }

  // One pipe of ours serves for all: reading it has left it empty.
  long r = 0;
  if (copy_pipe_[0] < 0) {
    if ((r = sys::call(__NR_pipe2, copy_pipe_, O_NONBLOCK | O_CLOEXEC)) < 0) return cannot(r);
    r = sys::call(__NR_fcntl, copy_pipe_[1], F_GETPIPE_SZ, 0);
    copy_pipe_size_ = r < 0 ? 0 : static_cast<uint32_t>(r);
  }
  if (copy_pipe_size_ < size) {
    if ((r = sys::call(__NR_fcntl, copy_pipe_[1], F_SETPIPE_SZ, size)) < 0) return cannot(r);
    copy_pipe_size_ = static_cast<uint32_t>(r);
  }
  auto* bytes = static_cast<std::byte*>(files_.arena().allocate(static_cast<size_t>(queued) + 1));
  if (bytes == nullptr) return cannot(-ENOMEM);
  r = sys::call(__NR_tee, in.get(), copy_pipe_[1], INT_MAX, 2 /* SPLICE_F_NONBLOCK */);
  if (r < 0) return cannot(r);
  const bool whole = r == queued;
  const uint64_t object = object_number(head.now.device, head.now.inode);
  const auto all = static_cast<uint64_t>(queued);
  uint64_t have = 0, number = 0;
  bool marked = false;
  while (have < all) {
    marked = marked || sys::call(__NR_write, copy_pipe_[1], "", 1L) == 1;  // full: before the next read, then
    const uint64_t wanted = all - have + (marked ? 1 : 0);
    const long n = sys::call(__NR_read, copy_pipe_[0], bytes + have, wanted);
    if (n <= 0) break;
    const bool packet = static_cast<uint64_t>(n) < wanted;
    const uint64_t length = std::min(static_cast<uint64_t>(n), all - have);
    const uint64_t place = packet ? kPipePacket | number++ : kPipeStream;
    if (!contents_.push_back({head.open_file, object, place, bytes + have, length}))
      return arena_full(files_.arena());
    have += static_cast<uint64_t>(n);
  }
  if (marked && have == all) have += sys::call(__NR_read, copy_pipe_[0], bytes + have, 1L) == 1 ? 1 : 0;
  if (!whole || have != all + (marked ? 1 : 0)) {
    close_copy_pipe();  // bytes may be left in it
    return cannot(-EIO);
  }
  return {};
}

void DescriptorCapture::close_copy_pipe() {
  for (int& fd : copy_pipe_) {
    if (fd >= 0) sys::call(__NR_close, fd);
    fd = -1;
  }
}

}  // namespace ckpt
