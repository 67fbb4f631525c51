#include "image/read/sources/image_spool.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>

#include "image/format/image_format.h"
#include "image/format/io_error.h"

namespace ckpt {

namespace {

constexpr size_t kStep = 1 << 20;

// From a pipe, which gives its bytes once. Not constinit: clang makes no std::string without code.
std::string peeked;

Result<ScopedFd> nameless_file(const std::string& directory) {
  int fd = open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL)) {
    std::string name = directory + "/ckpt-image-XXXXXX";
    fd = mkostemp(name.data(), O_CLOEXEC);
    if (fd >= 0) unlink(name.c_str());
  }
  if (fd >= 0) return ScopedFd(fd);
  return make_error(
      ExitCode::kCannotCreate, errno,
      "{}: no file for the image from standard input can be made there ({}); set TMPDIR to a directory "
      "that you may write",
      shown_path(directory.c_str()).text, errno_name(errno));
}

Result<void> write_all(int fd, const std::byte* data, size_t bytes, const std::string& directory,
                       uint64_t before) {
  while (bytes > 0) {
    ssize_t n = write(fd, data, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      return make_error(
          ExitCode::kIo, n < 0 ? errno : ENOSPC,
          "{}: no room for the image from standard input after {} MiB ({}); set TMPDIR to a directory "
          "with room",
          shown_path(directory.c_str()).text, before >> 20, errno_name(n < 0 ? errno : ENOSPC));
    }
    data += n;
    bytes -= static_cast<size_t>(n);
  }
  return {};
}

Error unreadable() {
  return make_error(ExitCode::kIo, errno, "{}: cannot be read ({}); pipe an image into it", kStandardInput,
                    errno_name(errno));
}

Result<ScopedFd> copy_of_stream() {
  const char* wanted = getenv("TMPDIR");
  const std::string directory = wanted != nullptr && *wanted != '\0' ? wanted : "/tmp";
  auto file = nameless_file(directory);
  if (!file.ok()) return file.error();
  std::unique_ptr<std::byte[]> buffer(new std::byte[kStep]);
  for (uint64_t all = 0;;) {
    size_t have = std::min(peeked.size(), kStep);
    std::memcpy(buffer.get(), peeked.data(), have);
    peeked.clear();
    while (have < kStep) {
      ssize_t n = read(STDIN_FILENO, buffer.get() + have, kStep - have);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return unreadable();
      if (n == 0) break;
      have += static_cast<size_t>(n);
    }
    // Before disks are filled with something else.
    if (all == 0 &&
        (have < sizeof(kHeaderMagic) || std::memcmp(buffer.get(), kHeaderMagic, sizeof(kHeaderMagic)) != 0)) {
      return have == 0 ? make_error(ExitCode::kImageDamaged, 0,
                                    "{}: empty; did the command before the pipe fail?", kStandardInput)
                       : make_error(ExitCode::kImageDamaged, 0,
                                    "{}: not a ckpt_rt image; pipe one into it, as 'ckpt cat' does",
                                    kStandardInput);
    }
    CKPT_TRY(write_all(file->get(), buffer.get(), have, directory, all));
    all += have;
    if (have < kStep) return file;
  }
}

}  // namespace

bool standard_input_is_at_start() {
  struct stat st;
  return fstat(STDIN_FILENO, &st) == 0 && S_ISREG(st.st_mode) && lseek(STDIN_FILENO, 0, SEEK_CUR) == 0;
}

Result<std::string> peek_standard_input(size_t bytes) {
  if (isatty(STDIN_FILENO) != 0) {
    return make_error(ExitCode::kUsage, 0, "{}: a terminal; pipe an image into it", kStandardInput);
  }
  char first[64];
  bytes = std::min(bytes, sizeof(first));
  if (standard_input_is_at_start()) {
    const ssize_t n = pread(STDIN_FILENO, first, bytes, 0);
    if (n < 0) return unreadable();
    return std::string(first, static_cast<size_t>(n));
  }
  while (peeked.size() < bytes) {
    const ssize_t n = read(STDIN_FILENO, first, bytes - peeked.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return unreadable();
    if (n == 0) break;
    peeked.append(first, static_cast<size_t>(n));
  }
  return peeked;
}

Result<ScopedFd> spool_standard_input() {
  struct stat st;
  if (isatty(STDIN_FILENO) != 0) {
    return make_error(ExitCode::kUsage, 0, "{}: a terminal; pipe an image into it", kStandardInput);
  }
  if (fstat(STDIN_FILENO, &st) != 0) return unreadable();
  ScopedFd image;
  if (standard_input_is_at_start()) {
    image.reset(fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3));
    if (!image.valid()) return unreadable();
  } else {
    auto copy = copy_of_stream();
    if (!copy.ok()) return copy;
    image = std::move(*copy);
    lseek(image.get(), 0, SEEK_SET);
    if (dup2(image.get(), STDIN_FILENO) < 0) return unreadable();
  }
  return image;
}

Result<void> leave_standard_input() {
  ScopedFd nothing(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (nothing.valid() && dup2(nothing.get(), STDIN_FILENO) == STDIN_FILENO) return {};
  return make_error(ExitCode::kSystem, errno, "/dev/null: cannot be opened ({}); mount /dev",
                    errno_name(errno));
}

}  // namespace ckpt
