#include "image/format/io_error.h"

#include <errno.h>
#include <sys/resource.h>

#include "base/sys.h"
#include "base/preload_rules.h"

namespace ckpt {

namespace {

uint64_t file_size_limit() {
  rlimit limit{};
  sys::call(__NR_prlimit64, 0L, static_cast<long>(RLIMIT_FSIZE), 0L, &limit);
  return limit.rlim_cur;
}

}  // namespace

ShownPath shown_path(const char* path) {
  ShownPath shown;
  size_t n = std::strlen(path);
  if (n <= kShownPath) {
    std::memcpy(shown.text, path, n + 1);
    return shown;
  }
  size_t head = 40, tail = kShownPath - head - 3;
  std::memcpy(shown.text, path, head);
  std::memcpy(shown.text + head, "...", 3);
  std::memcpy(shown.text + head + 3, path + n - tail, tail + 1);
  return shown;
}

Error image_io_error(const char* doing, const char* path, long error) {
  int e = static_cast<int>(error < 0 ? -error : error);
  ShownPath shown = shown_path(path);
  // A keeper's directory has no other name (cluster/keeper/keeper_memory.h).
  const bool in_keeper = std::strncmp(path, "/keeper:", 8) == 0;
  switch (e) {
    case ENOSPC:
      if (in_keeper) {
        return make_error(
            ExitCode::kIo, e,
            "cannot {} {}: the keeper's memory is used up (ENOSPC); start it with more (ckpt keeper start "
            "--memory), or keep fewer images",
            doing, shown.text + 1);
      }
      return make_error(ExitCode::kIo, e,
                        "cannot {} {}: no space left on its file system (ENOSPC); free some, or set CKPT_DIR "
                        "to another file system",
                        doing, shown.text);
    case EDQUOT:
      return make_error(ExitCode::kIo, e,
                        "cannot {} {}: your disk quota is used up (EDQUOT); free some, or set CKPT_DIR to "
                        "another file system",
                        doing, shown.text);
    case EFBIG:
      return make_error(ExitCode::kIo, e,
                        "cannot {} {}: larger than a file may be (EFBIG; limit {} bytes); raise it with "
                        "'ulimit -f' or use another file system",
                        doing, shown.text, file_size_limit());
    case EIO:
      return make_error(
          ExitCode::kIo, e,
          "cannot {} {}: the device reports an error (EIO); see the kernel log, set CKPT_DIR to "
          "another disk",
          doing, shown.text);
    case EROFS:
      return make_error(ExitCode::kCannotCreate, e,
                        "cannot {} {}: its file system is read-only (EROFS); set CKPT_DIR to another one",
                        doing, shown.text);
    case EACCES:
    case EPERM:
      return make_error(ExitCode::kPermission, e,
                        "cannot {} {}: not allowed ({}); set CKPT_DIR to a directory of your own", doing,
                        shown.text, errno_name(e));
    case EMFILE:
    case ENFILE:
      return make_error(ExitCode::kCannotCreate, e,
                        "cannot {} {}: no free descriptor ({}); raise 'ulimit -n' or close files", doing,
                        shown.text, errno_name(e));
    case ENAMETOOLONG:
      return make_error(ExitCode::kCannotCreate, e,
                        "cannot {} {}: name too long (ENAMETOOLONG); set CKPT_DIR to a shorter path", doing,
                        shown.text);
    case EEXIST:
      return make_error(ExitCode::kCannotCreate, e,
                        "cannot {} {}: it is there already (EEXIST); move it away or use another directory",
                        doing, shown.text);
    default:
      return make_error(ExitCode::kIo, e, "cannot {} {}: {} ({}); set CKPT_DIR to another directory", doing,
                        shown.text, errno_name(e), e);
  }
}

}  // namespace ckpt
