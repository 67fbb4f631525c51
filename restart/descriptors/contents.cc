#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <bit>

#include "base/memory/bytes.h"
#include "restart/descriptors/builder.h"
#include "restart/files/removed_names.h"

// Files without a name, and memfds: made anew with their contents.

namespace ckpt {
namespace {

// Flags that fcntl(F_SETFL) changes.
constexpr uint32_t kSettable = O_APPEND | O_NONBLOCK | O_NOATIME | O_ASYNC | O_DIRECT;

Error cannot_make(const ParsedOpenFile& file, int e) {
  return make_error(ExitCode::kIo, e,
                    "{} (a file without a name, {} bytes) cannot be made again ({}): make room in /tmp",
                    file.path, file.record.size, errno_name(e));
}

std::string directory_of(std::string_view path) {
  size_t slash = path.rfind('/');
  return slash == std::string_view::npos || slash == 0 ? "/" : std::string(path.substr(0, slash));
}

bool is_of_tmpfile(const ParsedOpenFile& file) {
  return (file.record.open_flags & O_TMPFILE) == O_TMPFILE && (file.record.open_flags & O_PATH) == 0;
}

// An inode without a name in `directory`. access: O_RDWR, or O_WRONLY.
ScopedFd unnamed_file(const std::string& directory, int access) {
  ScopedFd fd(open(directory.c_str(), O_TMPFILE | access | O_CLOEXEC, 0600));
  if (fd.valid() || (errno != EOPNOTSUPP && errno != EISDIR)) return fd;
  std::string name = directory + "/.ckpt-restored-XXXXXX";
  fd.reset(mkostemp(name.data(), O_CLOEXEC));
  if (fd.valid()) unlink(name.c_str());
  return fd;
}

}  // namespace

// Another open file of the same inode, with its own flags.
Result<ScopedFd> DescriptorBuilder::open_again(const ParsedOpenFile& file, int fd, int flags) {
  ScopedFd again(open(fmt::format("/proc/self/fd/{}", fd).c_str(), flags));
  if (!again.valid() && errno == EPERM)
    again.reset(open(fmt::format("/proc/self/fd/{}", fd).c_str(), flags & ~O_NOATIME));
  if (!again.valid()) {
    return make_error(ExitCode::kSystem, errno, "{} cannot be opened through /proc ({}): is /proc mounted?",
                      file.path, errno_name(errno));
  }
  return again;
}

// Contents are recorded with one of the open files of an inode.
Result<void> DescriptorBuilder::fill(const ParsedOpenFile& file, int fd) {
  for (const auto& c : meta_.contents) {
    if (c.record.open_file == 0 || c.record.object != file.record.object) continue;
    for (size_t done = 0; done < c.bytes.size();) {
      ssize_t n = pwrite(fd, c.bytes.data() + done, c.bytes.size() - done,
                         static_cast<off_t>(c.record.offset + done));
      if (n < 0 && errno == EINVAL && file.record.value != 0) {  // hugetlbfs has no write(2)
        const size_t length =
            (c.bytes.size() + file.record.value - 1) / file.record.value * file.record.value;
        const uint64_t start = c.record.offset / file.record.value * file.record.value;
        void* p = mmap(nullptr, length + file.record.value, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                       static_cast<off_t>(start));
        if (p == MAP_FAILED) return cannot_make(file, errno);
        std::memcpy(static_cast<char*>(p) + (c.record.offset - start), c.bytes.data(), c.bytes.size());
        munmap(p, length + file.record.value);
        break;
      }
      if (n <= 0) return cannot_make(file, n == 0 ? ENOSPC : errno);
      done += static_cast<size_t>(n);
    }
  }
  return {};
}

void DescriptorBuilder::put_attributes(const ParsedOpenFile& file, int fd) const {
  for_each_detail<AttributeDetail>(
      file, OpenFileDetail::kAttribute, [&](const AttributeDetail& a, Blob rest) {
        if (rest.size() < size_t{a.name_len} + a.value_len) return;
        const std::string name(reinterpret_cast<const char*>(rest.data()), a.name_len);
        if (fsetxattr(fd, name.c_str(), rest.data() + a.name_len, a.value_len, 0) != 0) {
          say("{}: its extended attribute {} cannot be set again ({})",
              describe(file, first_descriptor(file)), name, errno_name(errno));
        }
      });
}

Result<ScopedFd> DescriptorBuilder::make_deleted_file(const ParsedOpenFile& file) {
  const auto& r = file.record;
  int object = options_.working->find_object(r.object);
  if (object < 0) {
    // F_GETFL tells which one has made the file (O_TMPFILE).
    const ParsedOpenFile* maker = nullptr;
    for (const ParsedOpenFile& f : meta_.open_files) {
      if (f.record.object == r.object && is_of_tmpfile(f)) maker = &f;
    }
    const int access = maker == nullptr ? O_RDWR : static_cast<int>(maker->record.open_flags) & O_ACCMODE;
    ScopedFd fd;
    for (const auto& directory : {directory_of(file.path), options_.image_directory, std::string("/tmp")}) {
      fd = unnamed_file(directory, access);
      if (fd.valid()) break;
    }
    if (!fd.valid()) return cannot_make(file, errno);
    if (maker != nullptr) {
      auto made = options_.working->park(std::move(fd), "a file without a name");
      if (!made) return made.error();
      makers_[maker->record.id] = *made;
      auto again = open_again(file, *made, O_RDWR | O_CLOEXEC);
      if (!again) return again;
      fd = std::move(*again);
    }
    if (ftruncate(fd.get(), static_cast<off_t>(r.size)) != 0) return cannot_make(file, errno);
    CKPT_TRY(fill(file, fd.get()));
    auto parked = options_.working->add_object(r.object, std::move(fd), "a file without a name");
    if (!parked) return parked.error();
    object = *parked;
  }
  Result<ScopedFd> again = ScopedFd();
  if (const auto maker = makers_.find(r.id); maker != makers_.end()) {
    again->reset(fcntl(maker->second, F_DUPFD_CLOEXEC, 0));
    if (!again->valid() || fcntl(again->get(), F_SETFL, static_cast<int>(r.open_flags & kSettable)) != 0)
      return cannot_make(file, errno);
  } else {
    again = open_again(file, object, reopen_flags(r) & ~O_NOFOLLOW);
  }
  if (!again) return again;
  put_attributes(file, object);
  // If we may not give the file away, it stays ours.
  if ((r.flags & kOpenFileOwner) != 0)
    (void)!fchown(object, static_cast<uid_t>(r.value), static_cast<gid_t>(r.value >> 32));
  const timespec times[2] = {{0, UTIME_OMIT}, {r.mtime_ns / 1'000'000'000, r.mtime_ns % 1'000'000'000}};
  futimens(object, times);
  // Permissions last: they do not matter to descriptors that are open.
  fchmod(object, r.mode & 07777);
  lseek(again->get(), static_cast<off_t>(r.offset), SEEK_SET);
  return again;
}

Result<ScopedFd> DescriptorBuilder::make_deleted_directory(const ParsedOpenFile& file) {
  const auto& r = file.record;
  int object = options_.working->find_object(r.object);
  if (object < 0) {
    ScopedFd fd = make_removed_directory(std::string(file.path));
    for (const auto& elsewhere : {options_.image_directory, std::string("/tmp")}) {
      if (fd.valid()) break;
      fd = make_removed_directory(elsewhere + "/.ckpt-restored", Links::kFollowed);
      if (fd.valid()) {
        say("{}, a removed directory, cannot be made again where it was: the directory above it is {} now",
            file.path, elsewhere);
      }
    }
    if (!fd.valid()) return cannot_make(file, errno);
    auto parked = options_.working->add_object(r.object, std::move(fd), "a removed directory");
    if (!parked) return parked.error();
    object = *parked;
    // If we may not give it away, it stays ours.
    if ((r.flags & kOpenFileOwner) != 0)
      (void)!fchown(object, static_cast<uid_t>(r.value), static_cast<gid_t>(r.value >> 32));
    const timespec times[2] = {{0, UTIME_OMIT}, {r.mtime_ns / 1'000'000'000, r.mtime_ns % 1'000'000'000}};
    futimens(object, times);
  }
  // Its owner may have shut itself out since it opened the directory.
  fchmod(object, 0700);
  auto again = open_again(file, object, reopen_flags(r) & ~O_NOFOLLOW);
  fchmod(object, r.mode & 07777);
  return again;
}

Result<void> DescriptorBuilder::enter_directory(const ParsedOpenFile& file, int fd) {
  if (fchdir(fd) == 0) return {};
  // Its owner may have shut itself out since it entered the directory.
  const int object = options_.working->find_object(file.record.object);
  if (object >= 0 && errno == EACCES) {
    fchmod(object, 0700);
    const int r = fchdir(object);
    fchmod(object, file.record.mode & 07777);
    if (r == 0) return {};
  }
  return make_error(ExitCode::kSystem, errno,
                    "the program's working directory {}, which had been removed, cannot be entered ({})",
                    file.path, errno_name(errno));
}

Result<ScopedFd> DescriptorBuilder::make_deleted_link(const ParsedOpenFile& file) {
  const auto& r = file.record;
  int object = options_.working->find_object(r.object);
  if (object < 0) {
    std::string target;
    for_each_detail<LinkTargetDetail>(
        file, OpenFileDetail::kLinkTarget, [&](const LinkTargetDetail& d, Blob rest) {
          target.assign(reinterpret_cast<const char*>(rest.data()), std::min<size_t>(d.length, rest.size()));
        });
    ScopedFd fd = make_removed_link(std::string(file.path), target);
    for (const auto& elsewhere : {options_.image_directory, std::string("/tmp")}) {
      if (!fd.valid()) fd = make_removed_link(elsewhere + "/.ckpt-restored", target, Links::kFollowed);
    }
    if (!fd.valid()) return cannot_make(file, errno);
    // If we may not give it away, it stays ours.
    if ((r.flags & kOpenFileOwner) != 0)
      (void)!fchownat(fd.get(), "", static_cast<uid_t>(r.value), static_cast<gid_t>(r.value >> 32),
                      AT_EMPTY_PATH);
    const timespec times[2] = {{0, UTIME_OMIT}, {r.mtime_ns / 1'000'000'000, r.mtime_ns % 1'000'000'000}};
    utimensat(fd.get(), "", times, AT_EMPTY_PATH);
    auto parked = options_.working->add_object(r.object, std::move(fd), "a symbolic link without a name");
    if (!parked) return parked.error();
    object = *parked;
  }
  return open_again(file, object, reopen_flags(r) & ~O_NOFOLLOW);
}

Result<ScopedFd> DescriptorBuilder::make_memfd(const ParsedOpenFile& file) {
  const auto& r = file.record;
  int object = options_.working->find_object(r.object);
  if (object < 0) {
    unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
    if (r.value > kPageSize && std::has_single_bit(r.value)) {
      flags |= MFD_HUGETLB | (static_cast<unsigned>(std::countr_zero(r.value)) << MAP_HUGE_SHIFT);
    }
    ScopedFd fd(memfd_create(std::string(file.path).c_str(), flags));
    if (!fd.valid()) return cannot_make(file, errno);
    fchmod(fd.get(), r.mode & 07777);
    if (ftruncate(fd.get(), static_cast<off_t>(r.size)) != 0) return cannot_make(file, errno);
    CKPT_TRY(fill(file, fd.get()));
    put_attributes(file, fd.get());
    auto parked = options_.working->add_object(r.object, std::move(fd), "a memfd");
    if (!parked) return parked.error();
    object = *parked;
  }
  // An open(2) for writing counts as a writer, which keeps the file from being executed (ETXTBSY); the open
  // file of memfd_create(2) does not.
  if ((r.open_flags & O_ACCMODE) == O_RDWR && created_memfds_.insert(r.object).second) {
    ScopedFd created(fcntl(object, F_DUPFD_CLOEXEC, 0));
    if (!created.valid() || fcntl(created.get(), F_SETFL, static_cast<int>(r.open_flags & kSettable)) != 0)
      return cannot_make(file, errno);
    lseek(created.get(), static_cast<off_t>(r.offset), SEEK_SET);
    return created;
  }
  auto again = open_again(file, object, reopen_flags(r) & ~O_NOFOLLOW);
  if (again) lseek(again->get(), static_cast<off_t>(r.offset), SEEK_SET);
  return again;
}

}  // namespace ckpt
