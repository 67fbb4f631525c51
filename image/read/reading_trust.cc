#include "image/read/reading_trust.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "image/format/io_error.h"

namespace ckpt {

namespace {

bool own_only = false;

Result<void> check(const struct stat& st, const char* kind, const std::string& path) {
  const ShownPath shown = shown_path(path.c_str());
  if (st.st_uid != geteuid() && st.st_uid != 0) {
    return make_error(
        ExitCode::kPermission, 0,
        "{}{} belongs to user {}, who decides what it runs: restart as that user, or with --trust", kind,
        shown.text, st.st_uid);
  }
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

}  // namespace ckpt
