#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <vector>

#include "base/checks/named_points.h"
#include "base/memory/bytes.h"
#include "restart/descriptors/builder.h"
#include "restart/files/file_to_come.h"

// Files that were written since the checkpoint: what was changed in place is put back where its bytes are
// known, and what was appended is cut off.

namespace ckpt {
namespace {

constexpr size_t kLongestName = 160;         // of a file's, in that of what is saved aside
constexpr int kMostAside = 16;               // of the states of one file that an image replaced
constexpr uint64_t kMostPutBack = 16 << 20;  // bytes: what is kept beside images (docs/descriptors.md)

// Their times say nothing.
bool is_made_by_the_kernel(std::string_view path) {
  return path.starts_with("/proc/") || path.starts_with("/sys/");
}

std::string base_name(std::string_view path) {
  size_t slash = path.rfind('/');
  return std::string(slash == std::string_view::npos ? path : path.substr(slash + 1));
}

int64_t mtime_ns(const struct stat& st) {
  return int64_t{st.st_mtim.tv_sec} * 1'000'000'000 + st.st_mtim.tv_nsec;
}

bool is_unchanged(const struct stat& st, const OpenFileRecord& r) {
  return static_cast<uint64_t>(st.st_size) == r.size && mtime_ns(st) == r.mtime_ns;
}

// As it was, so that another restart from this image does not find it changed.
void set_time(int fd, const OpenFileRecord& r) {
  const timespec times[2] = {{0, UTIME_OMIT}, {r.mtime_ns / 1'000'000'000, r.mtime_ns % 1'000'000'000}};
  futimens(fd, times);
}

// So many bytes from the beginning. False: there are fewer, or they cannot be read.
bool read_all(int fd, std::vector<std::byte>& bytes) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t n = pread(fd, bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
    if (n <= 0) return false;
    done += static_cast<size_t>(n);
  }
  return true;
}

}  // namespace

bool DescriptorBuilder::has_contents(const ParsedOpenFile& file) const {
  const auto& r = file.record;
  return static_cast<OpenFileKind>(r.kind) == OpenFileKind::kRegular && S_ISREG(r.mode) &&
         (r.flags & kOpenFileDeleted) == 0 && (r.flags & kOpenFileContents) != 0;
}

// Of the checkpoint: in the image, or in a copy beside it. Nothing: they are not known.
std::optional<FileBytes> DescriptorBuilder::bytes_at_checkpoint(const ParsedOpenFile& file) const {
  const auto& r = file.record;
  FileBytes then(r.size, r.size > kMostPutBack);  // a longer one is in an image only if it is sparse
  if (has_contents(file) && (r.flags & kOpenFileWhole) != 0) {
    for (const auto& c : meta_.contents) {
      if (c.record.open_file == 0 || c.record.object != r.object || c.record.offset > r.size ||
          c.bytes.size() > r.size - c.record.offset)
        continue;
      then.add(c.record.offset, c.bytes);
    }
    then.sort();
    return then;
  }
  const std::string copy = saved_copy(file);
  if (copy.empty() || r.size > kMostPutBack) return std::nullopt;
  std::vector<std::byte> bytes(r.size);
  const ScopedFd fd(open(copy.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd.valid() || !read_all(fd.get(), bytes)) return std::nullopt;
  then.take(std::move(bytes));
  return then;
}

// The very file, and the program may write to it.
bool DescriptorBuilder::can_put_back(const ParsedOpenFile& file) const {
  const auto& r = file.record;
  const std::string path = name_to_open(file);
  struct stat st;
  return is_writable(r) && opened_by_path(file) && S_ISREG(r.mode) && !is_made_by_the_kernel(path) &&
         stat(path.c_str(), &st) == 0 && S_ISREG(st.st_mode) && st.st_ino == r.inode &&
         ((r.flags & kOpenFileWhole) != 0 || !saved_copy(file).empty()) &&
         faccessat(AT_FDCWD, path.c_str(), R_OK | W_OK, AT_EACCESS) == 0;
}

void DescriptorBuilder::name_changes(std::set<std::string, std::less<>>& names) const {
  struct stat st;
  for (const auto& file : meta_.open_files) {
    if (!can_put_back(file)) continue;
    std::string path = name_to_open(file);
    if (stat(path.c_str(), &st) == 0 && !is_unchanged(st, file.record)) names.insert(std::move(path));
  }
}

bool DescriptorBuilder::is_mapped_private(std::string_view path) const {
  return std::any_of(meta_.mappings.begin(), meta_.mappings.end(), [&](const ParsedMapping& m) {
    return m.path == path && static_cast<MappingKind>(m.record.kind) == MappingKind::kFilePrivate &&
           (m.record.flags & kMapFileDeleted) == 0;
  });
}

Result<void> DescriptorBuilder::put_back_changes() {
  std::set<uint64_t> done;
  for (const auto& file : meta_.open_files) {
    if (done.count(file.record.object) != 0 || !can_put_back(file)) continue;
    done.insert(file.record.object);
    const std::string path = name_to_open(file);
    struct stat st;
    // Not opened for nothing: that breaks leases, and a program that goes back has its.
    if (stat(path.c_str(), &st) == 0 && !is_unchanged(st, file.record)) CKPT_TRY(put_back(file, path));
  }
  return {};
}

// Appended bytes are left to cut_grown_files().
Result<void> DescriptorBuilder::put_back(const ParsedOpenFile& file, const std::string& path) {
  const auto& r = file.record;
  struct stat st {};
  // A file that is shorter now has holes where the program knows bytes.
  auto leave = [&](const char* what) -> Result<void> {
    if (static_cast<uint64_t>(st.st_size) < r.size) {
      return make_error(
          ExitCode::kFileChanged, errno,
          "{} has become shorter than at the checkpoint, and {} ({}): put back a copy of that time", path,
          what, errno_name(errno));
    }
    if (is_mapped_private(path)) {
      return make_error(
          ExitCode::kFileChanged, errno,
          "{}, which the program had mapped, was written since the checkpoint, and {} ({}): put "
          "back a copy of that time",
          path, what, errno_name(errno));
    }
    said_not_put_back_.insert(r.object);
    say("{} was written since the checkpoint, and {} ({}): the program goes on with what it holds now", path,
        what, errno_name(errno));
    return {};
  };
  const ScopedFd fd(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOCTTY | O_NOFOLLOW));
  if (!fd.valid() || fstat(fd.get(), &st) != 0) {
    (void)stat(path.c_str(), &st);
    return leave("cannot be opened to be put back");
  }
  if (!S_ISREG(st.st_mode) || st.st_ino != r.inode) return {};  // another one by now
  const auto then = bytes_at_checkpoint(file);
  if (!then) return leave("what it held cannot be read");
  const auto now = static_cast<uint64_t>(st.st_size);
  const int same = then->are_in(fd.get());
  if (same < 0) return leave("cannot be read");
  if (now >= r.size && same == 1) {
    if (now == r.size) set_time(fd.get(), r);
    return {};
  }
  auto saved = save_aside(file, fd.get(), 0, std::min(now, r.size), "changed");
  if (!saved.ok()) {
    const int e = saved.error().sys_errno;
    errno = e;
    if (e == EROFS || e == EACCES || e == EPERM) return leave("nothing can be written beside the image");
    return saved.error();
  }
  has_changed_files_ = true;
  points::at("restart.saved");
  if (!then->put_into(fd.get())) {
    return make_error(
        ExitCode::kFileChanged, errno,
        "{} was changed since the checkpoint and cannot be put back ({}): what it held is in {}", path,
        errno_name(errno), *saved);
  }
  points::at("restart.written");
  if (now <= r.size) set_time(fd.get(), r);
  say("{} was changed in place since the checkpoint: it is as it was then, what it held is in {}", path,
      *saved);
  return {};
}

Result<void> DescriptorBuilder::cut_grown_files() {
  std::set<uint64_t> done;
  for (const auto& file : meta_.open_files) {
    const auto& r = file.record;
    if (!opened_by_path(file) || !S_ISREG(r.mode) || is_place_only(r)) continue;
    struct stat st;
    const std::string path = name_to_open(file);
    if (stat(path.c_str(), &st) != 0) continue;  // check() has just opened it
    const uint64_t now = static_cast<uint64_t>(st.st_size);
    if (!is_writable(r) && now < r.size) {
      say("{} has {} bytes, at the checkpoint it had {}; the program only reads it", path, now, r.size);
    }
    if (now == r.size && mtime_ns(st) != r.mtime_ns && !is_made_by_the_kernel(path) &&
        !said_not_put_back_.contains(r.object) && done.insert(r.object).second) {
      say("{} was written since the checkpoint, its length is the same: the program goes on with what it "
          "holds now",
          path);
    }
    if (!is_writable(r) || now <= r.size || !done.insert(r.object).second) continue;
    ScopedFd fd(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOCTTY));
    if (!fd.valid()) fd.reset(open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY));
    if (!fd.valid()) {
      return make_error(ExitCode::kPermission, errno,
                        "{} has grown and cannot be opened to cut it back ({}): restart as a user who may "
                        "write it, or cut it back to {} bytes (truncate)",
                        path, errno_name(errno), r.size);
    }
    auto tail = save_aside(file, fd.get(), r.size, now, "tail");
    if (!tail.ok()) return tail.error();
    has_changed_files_ = true;
    say("{} has grown since the checkpoint: cut back to {} bytes, the other {} are in {}", file.path, r.size,
        now - r.size, *tail);
    if (ftruncate(fd.get(), static_cast<off_t>(r.size)) != 0) {
      return make_error(ExitCode::kFileChanged, errno,
                        "{} has grown by {} bytes and cannot be cut back ({}): cut it to {} bytes", path,
                        now - r.size, errno_name(errno), r.size);
    }
    points::at("restart.cut");
    set_time(fd.get(), r);
  }
  return {};
}

// Nothing the program or anybody wrote since the checkpoint is thrown away. fd: of the file, open for
// writing. Returns the name of the new file.
Result<std::string> DescriptorBuilder::save_aside(const ParsedOpenFile& file, int fd, uint64_t from,
                                                  uint64_t to, std::string_view what) {
  const auto& r = file.record;
  const std::string stem =
      fmt::format("{}/{}.{}.{}-{}", options_.image_directory, base_name(file.path).substr(0, kLongestName),
                  r.inode, what, options_.sequence);
  std::string name = stem;
  FileToCome saved = FileToCome::regular(name);
  auto fail = [&](int e, const char* how) {
    return make_error(
        ExitCode::kIo, e,
        "{} was written since the checkpoint, and its bytes {} to {} cannot be {} {} ({}): make room there",
        file.path, from, to, how, name, errno_name(e));
  };
  if (!saved.valid()) return fail(errno, "saved to");
  points::at("restart.saving");
  // Opened only for writing, a file cannot be read through the same descriptor.
  const bool readable = (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR;
  const ScopedFd in(readable ? -1 : open(name_to_open(file).c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
  if (!readable && !in.valid()) return fail(errno, "read for");
  const int source = readable ? fd : in.get();
  bool reading = false;
  if (const int e = copy_with_holes(source, from, to - from, saved.fd(), &reading); e != 0)
    return fail(e, reading ? "read for" : "written to");
  if (fsync(saved.fd()) != 0) return fail(errno, "written to");
  const bool may_replace =
      what != "tail";      // a program that goes back again and again may change a file as often
  for (int n = 2;; ++n) {  // those of earlier restarts from this image stay as they are
    if (saved.take_name()) return name;
    if (errno != EEXIST) return fail(errno, "saved to");
    if (n <= kMostAside || !may_replace)
      name = fmt::format("{}.{}", stem, n);
    else if (unlink(name.c_str()) != 0)
      return fail(errno, "saved to");
    saved.ask_for(name.substr(name.rfind('/') + 1));
  }
}

}  // namespace ckpt
