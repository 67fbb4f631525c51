#include "image/format/encryption/image_key.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <sys/stat.h>

#include "base/raii_fd.h"
#include "image/format/io_error.h"
#include "base/preload_rules.h"

namespace ckpt {

namespace {

constexpr size_t kLeast = 32, kMost = 4096;  // bytes of the file

int hex_digit(uint8_t c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// 64 digits, and perhaps a line end, become 32 bytes; all else stays as it is.
size_t without_hex(uint8_t* text, size_t n) {
  size_t digits = n;
  while (digits > 0 && (text[digits - 1] == '\n' || text[digits - 1] == '\r')) digits--;
  if (digits != 2 * sizeof(ImageKey)) return n;
  for (size_t i = 0; i < digits; i++) {
    if (hex_digit(text[i]) < 0) return n;
  }
  for (size_t i = 0; i < digits / 2; i++) {
    text[i] = static_cast<uint8_t>(hex_digit(text[2 * i]) << 4 | hex_digit(text[2 * i + 1]));
  }
  return digits / 2;
}

Error refused(const char* path, const char* what) {
  return make_error(ExitCode::kPermission, 0, "{}: no key: {}", shown_path(path).text, what);
}

}  // namespace

void prepare_ciphers() {
  // Where it fails, the portable code stays in use: slower, and right.
  if (sodium_init() < 0) return;
}

void wipe(void* memory, size_t bytes) { sodium_memzero(memory, bytes); }

Result<void> read_key_file(const char* path, ImageKey& key) {
  long opened = sys::call(__NR_openat, static_cast<long>(AT_FDCWD), path,
                          O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0L);
  if (sys::failed(opened)) {
    const int e = static_cast<int>(-opened);
    return make_error(
        e == ENOENT || e == ENOTDIR ? ExitCode::kNotFound : ExitCode::kPermission, e,
        "{}: the key file cannot be opened ({}); make one with: (umask 077; head -c 32 /dev/urandom > FILE)",
        shown_path(path).text, errno_name(e));
  }
  ScopedFd file(static_cast<int>(opened));
  struct stat st;
  long r = sys::call(__NR_newfstatat, file.get(), "", &st, static_cast<long>(AT_EMPTY_PATH));
  if (sys::failed(r) || !S_ISREG(st.st_mode)) return refused(path, "not a regular file");
  if (st.st_uid != static_cast<uint32_t>(sys::call(__NR_geteuid))) {
    return refused(path, "it belongs to somebody else; make one of your own");
  }
  if ((st.st_mode & 07177) != 0) {
    return make_error(
        ExitCode::kPermission, 0,
        "{}: no key: others may read or write it (mode {:04o}); chmod 600 it, or make a new one",
        shown_path(path).text, st.st_mode & 07777);
  }
  uint8_t text[kMost + 1];
  size_t n = 0;
  while (n < sizeof(text)) {
    r = sys::call(__NR_read, file.get(), text + n, sizeof(text) - n);
    if (r == -EINTR) continue;
    if (r <= 0) break;
    n += static_cast<size_t>(r);
  }
  Result<void> result;
  const size_t content = without_hex(text, n);
  if (sys::failed(r)) {
    result = make_error(ExitCode::kIo, static_cast<int>(r), "{}: the key file cannot be read ({})",
                        shown_path(path).text, errno_name(static_cast<int>(r)));
  } else if (n > kMost) {
    result = refused(path, "longer than 4096 bytes; a key is 32 random bytes, or 64 hexadecimal digits");
  } else if (content < kLeast) {
    result = refused(path, "shorter than 32 bytes; a key is 32 random bytes, or 64 hexadecimal digits");
  } else {
    crypto_generichash(key.bytes, sizeof(key.bytes), text, content, nullptr, 0);
  }
  wipe(text, sizeof(text));
  return result;
}

}  // namespace ckpt
