#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/checks/named_points.h"
#include "base/memory/bytes.h"
#include "image/format/saved_file_names.h"
#include "restart/descriptors/builder.h"
#include "restart/descriptors/old_names.h"
#include "restart/files/file_to_come.h"
#include "restart/files/vanished_file.h"

// Files that were removed or replaced since the checkpoint, and are kept beside the image.

namespace ckpt {
namespace {

bool is_regular(const ParsedOpenFile& file) {
  return static_cast<OpenFileKind>(file.record.kind) == OpenFileKind::kRegular &&
         (file.record.flags & kOpenFileDeleted) == 0 && S_ISREG(file.record.mode);
}

bool lead_to_one_file(const std::string& path, const std::string& link) {
  struct stat one, other;
  return stat(path.c_str(), &one) == 0 && lstat(link.c_str(), &other) == 0 && one.st_dev == other.st_dev &&
         one.st_ino == other.st_ino;
}

}  // namespace

// Empty: there is none.
std::string DescriptorBuilder::saved_link(const ParsedOpenFile& file) const {
  if (options_.saved_files.empty() || !is_regular(file)) return {};
  const auto& r = file.record;
  std::string path = options_.saved_files + "/" + saved_file_name(r.device, r.inode, false).text;
  struct stat st;
  // Not its device: since a reboot, or in a container started again, the file system may have another number.
  return lstat(path.c_str(), &st) == 0 && S_ISREG(st.st_mode) && st.st_ino == r.inode ? path : std::string();
}

// Only one of the contents at the checkpoint.
std::string DescriptorBuilder::saved_copy(const ParsedOpenFile& file) const {
  if (options_.saved_files.empty() || !is_regular(file)) return {};
  const auto& r = file.record;
  std::string path = options_.saved_files + "/" + saved_file_name(r.device, r.inode, true).text;
  struct stat st;
  const bool good = lstat(path.c_str(), &st) == 0 && S_ISREG(st.st_mode) &&
                    static_cast<uint64_t>(st.st_size) == r.size &&
                    int64_t{st.st_mtim.tv_sec} * 1'000'000'000 + st.st_mtim.tv_nsec == r.mtime_ns;
  return good ? path : std::string();
}

std::string DescriptorBuilder::name_to_open(const ParsedOpenFile& file) const {
  std::string path(file.path);
  const std::string link = saved_link(file);
  return !link.empty() && !lead_to_one_file(path, link) ? link : path;
}

// Its own name leads nowhere, or to another file, and that is no matter.
bool DescriptorBuilder::is_saved(const ParsedOpenFile& file) const {
  if (is_of_process(file)) return false;
  const std::string path(file.path);
  if (const std::string link = saved_link(file); !link.empty()) return !lead_to_one_file(path, link);
  struct stat st;
  return stat(path.c_str(), &st) != 0 && (has_contents(file) || !saved_copy(file).empty());
}

// A directory that is open, and has been removed since. The files that the program knows in it are gone as
// well.
bool DescriptorBuilder::is_lost_directory(const ParsedOpenFile& file) const {
  struct stat st;
  return static_cast<OpenFileKind>(file.record.kind) == OpenFileKind::kDirectory && opened_by_path(file) &&
         !is_of_process(file) && file.path.starts_with("/") &&
         lstat(std::string(file.path).c_str(), &st) != 0 && errno == ENOENT;
}

bool DescriptorBuilder::make_of_contents(const ParsedOpenFile& file) {
  const auto& r = file.record;
  FileToCome fresh = FileToCome::regular(std::string(file.path));
  if (!fresh.valid()) return false;
  const int fd = fresh.fd();
  const timespec times[2] = {{0, UTIME_OMIT}, {r.mtime_ns / 1'000'000'000, r.mtime_ns % 1'000'000'000}};
  const bool sized = ftruncate(fd, static_cast<off_t>(r.size)) == 0;
  points::at("restart.filling");
  const bool made = sized && fill(file, fd).ok() && futimens(fd, times) == 0;
  // If we may not give the file away, it stays ours. The mode comes last: a set-user-ID bit must never make
  // the file run as another user than the saved owner.
  const bool has_owner = (r.flags & kOpenFileOwner) != 0;
  const bool is_theirs =
      has_owner && fchown(fd, static_cast<uid_t>(r.value), static_cast<gid_t>(r.value >> 32)) == 0;
  const mode_t mode = r.mode & (is_theirs || !has_owner ? 07777 : 0777);
  return made && fchmod(fd, mode) == 0 && fresh.take_name();
}

Result<void> DescriptorBuilder::put_back_files() {
  std::set<std::string_view> done;
  for (const auto& file : meta_.open_files) {
    struct stat now;
    if (static_cast<OpenFileKind>(file.record.kind) == OpenFileKind::kFifo && S_ISFIFO(file.record.mode) &&
        (file.record.flags & kOpenFileDeleted) == 0 && stat(std::string(file.path).c_str(), &now) != 0 &&
        errno == ENOENT && !is_of_process(file)) {
      CKPT_TRY(make_fifo_again(std::string(file.path), file.record.mode, meta_.process.record));
      say("{} was gone: it is there again", file.path);
    }
    if (is_lost_directory(file) && done.insert(file.path).second) {
      CKPT_TRY(make_directory_again(std::string(file.path), file.record.mode, meta_.process.record));
      say("{} was gone: it is there again, empty", file.path);
    }
    if (!is_regular(file) || !is_saved(file) || !done.insert(file.path).second) continue;
    const std::string path(file.path), link = saved_link(file), copy = saved_copy(file);
    struct stat st;
    if (lstat(path.c_str(), &st) == 0) {
      // A file that the program only reads may have been replaced for it to read.
      if (!link.empty() && is_writable(file.record)) {
        auto aside = take_name_back({link, path, options_.image_directory, options_.sequence,
                                     options_.taken_ns, (file.record.flags & kOpenFileOneName) != 0},
                                    options_.say);
        if (!aside.ok()) return aside.error();
        if (!aside->empty()) {
          say("{} is another file than at the checkpoint: the one that it was has its name again, the other "
              "one is now {}",
              path, *aside);
          continue;
        }
      }
      say("{} is another file than at the checkpoint: the program goes on with the one that it had, which "
          "has no name "
          "there",
          path);
      continue;
    }
    CKPT_TRY(make_directory_of(path, meta_.process.record));
    if (!link.empty() && (file.record.flags & kOpenFileOneName) != 0)
      CKPT_TRY(separate_from_new_name(link, path, options_.say));
    const bool back = !link.empty()        ? ::link(link.c_str(), path.c_str()) == 0
                      : has_contents(file) ? make_of_contents(file)
                                           : copy_file(copy, path, file.record.mode);
    if (back) {
      say("{} was gone: it is there again", path);
    } else if (link.empty()) {
      return make_error(ExitCode::kFileChanged, errno,
                        "{} was removed and cannot be put back ({}): make its directory again", path,
                        errno_name(errno));
    } else {
      say("{} was gone and cannot get its name back ({}): the program goes on with the file", path,
          errno_name(errno));
    }
  }
  return options_.saved_files.empty() ? Result<void>()
                                      : put_back_temporary(options_.saved_files, options_.say);
}

}  // namespace ckpt
