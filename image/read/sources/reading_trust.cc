#include "image/read/sources/reading_trust.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <string_view>

#include "image/format/io_error.h"
#include "image/format/saved_file_names.h"

namespace ckpt {

namespace {

constinit bool own_only = false;

Result<void> check_owner(const struct stat& st, const char* kind, const std::string& path) {
  if (st.st_uid == geteuid() || st.st_uid == 0) return {};
  return make_error(
      ExitCode::kPermission, 0,
      "{}{} belongs to user {}, who decides what it runs: restart as that user, or with --trust", kind,
      shown_path(path.c_str()).text, st.st_uid);
}

Result<void> check(const struct stat& st, const char* kind, const std::string& path) {
  CKPT_TRY(check_owner(st, kind, path));
  const ShownPath shown = shown_path(path.c_str());
  // In a directory like /tmp others may make files, but not put them in the place of ours.
  if ((st.st_mode & (S_IWGRP | S_IWOTH)) != 0 && !(S_ISDIR(st.st_mode) && (st.st_mode & S_ISVTX) != 0)) {
    return make_error(
        ExitCode::kPermission, 0,
        "{}{} may be written by others (mode {:o}), who then decide what it runs: chmod go-w, or --trust",
        kind, shown.text, st.st_mode & 07777);
  }
  return {};
}

}  // namespace

void trust_own_images_only() { own_only = true; }

Result<void> check_trust(int fd, const std::string& path) {
  struct stat st;
  if (!own_only) return {};
  if (fstat(fd, &st) != 0)
    return make_error(ExitCode::kIo, errno, "cannot stat {} ({})", shown_path(path.c_str()).text,
                      errno_name(errno));
  CKPT_TRY(check(st, "", path));
  const size_t slash = path.rfind('/');
  return check_directory_trust(slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash));
}

Result<void> check_directory_trust(const std::string& directory) {
  struct stat st;
  if (!own_only) return {};
  if (stat(directory.c_str(), &st) != 0) {
    return make_error(ExitCode::kIo, errno, "cannot stat {} ({})", shown_path(directory.c_str()).text,
                      errno_name(errno));
  }
  return check(st, "the directory ", directory);
}

Result<void> check_trust_in_saved_files(const std::string& directory) {
  if (!own_only || directory.empty()) return {};
  const ShownPath shown = shown_path(directory.c_str());
  const int fd = open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0 && errno == ENOENT) return {};
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(fd < 0 ? nullptr : fdopendir(fd), closedir);
  struct stat st;
  if (listing == nullptr || fstat(fd, &st) != 0) {
    return make_error(ExitCode::kPermission, errno,
                      "{}, which is to have files kept beside the image, is no directory that can be read "
                      "({}): remove it, or restart with --trust",
                      shown.text, errno_name(errno));
  }
  CKPT_TRY(check_owner(st, "the directory ", directory));
  // Also not as in /tmp: whoever can make a file there can make a copy that the program never had.
  if ((st.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return make_error(
        ExitCode::kPermission, 0,
        "the directory {} may be written by others (mode {:o}), who then decide what comes back: chmod "
        "go-w, or --trust",
        shown.text, st.st_mode & 07777);
  }
  while (const dirent* entry = readdir(listing.get())) {
    // A hard link is the file itself, whosever it is. A name says where a file is put, and a copy what is in
    // it.
    const std::string_view name(entry->d_name);
    if (!name.ends_with(kSavedCopySuffix) && !name.ends_with(kSavedNameSuffix)) continue;
    if (fstatat(fd, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0) continue;  // then there is none
    CKPT_TRY(check_owner(st, "the saved file ", directory + "/" + entry->d_name));
  }
  return {};
}

}  // namespace ckpt
