// What /proc says of a thread or a process.
//
// Owner:     base. Header only. Callers: any thread; a tracer of stopped processes too, which has no libc.
// Never:     libc, allocates, touches errno.
#pragma once

#include <fcntl.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/sys.h"

namespace ckpt {

// A file or directory of /proc, open for reading.
class ProcFile {
 public:
  // "/proc/PID" + name, or "/proc/PID/task/TID" + name
  ProcFile(int pid, const char* name, int tid = 0) {
    char path[96] = "/proc/", *at = append(path + 6, pid);
    if (tid != 0) at = append(append(at, "/task/"), tid);
    *append(at, name) = '\0';
    fd_ = static_cast<int>(sys::call(__NR_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0L));
  }
  ~ProcFile() {
    if (fd_ >= 0) sys::call(__NR_close, fd_);
  }
  ProcFile(const ProcFile&) = delete;
  ProcFile& operator=(const ProcFile&) = delete;
  int fd() const { return fd_; }

 private:
  static char* append(char* at, const char* word) {
    while (*word != '\0') *at++ = *word++;
    return at;
  }
  static char* append(char* at, int number) {
    char digits[16];
    int n = 0;
    do digits[n++] = static_cast<char>('0' + number % 10);
    while ((number /= 10) != 0);
    while (n > 0) *at++ = digits[--n];
    return at;
  }
  int fd_;
};

// The first number of a text, behind spaces and tabs. 0: there is none.
inline uint64_t to_number(std::string_view text, unsigned base) {
  uint64_t value = 0;
  text.remove_prefix(std::min(text.size(), text.find_first_not_of(" \t")));
  for (const char c : text) {
    const unsigned digit = c >= '0' && c <= '9'   ? static_cast<unsigned>(c - '0')
                           : c >= 'a' && c <= 'f' ? static_cast<unsigned>(c - 'a') + 10
                                                  : 99;
    if (digit >= base) break;
    value = value * base + digit;
  }
  return value;
}

// A small file of /proc about a thread; what does not fit is left out, and so are the groups in a status
// file: of a user of a directory service they may be hundreds, ahead of what is looked for.
class ProcText {
 public:
  ProcText(int pid, int tid, const char* name) {
    const ProcFile file(pid, name, tid);
    if (file.fd() < 0) return;
    char piece[kPiece];
    for (long n = kPiece; n == kPiece;) {  // less: the end
      n = sys::call(__NR_read, file.fd(), piece, sizeof(piece));
      for (long i = 0; i < n; ++i) add(piece[i]);
    }
  }
  std::string_view text() const { return {text_, length_}; }
  // The number behind a key. 0: it is not there.
  uint64_t number(std::string_view key, unsigned base) const {
    const size_t at = text().find(key);
    return at == text().npos ? 0 : to_number(text().substr(at + key.size()), base);
  }
  // Of a status file.
  char state() const {
    const size_t at = text().find("\nState:\t");
    return at == text().npos ? '\0' : text_[at + 8];
  }

 private:
  static constexpr long kPiece = 2048;

  void add(char c) {
    if (in_groups_ && c != '\n') return;
    in_groups_ = false;
    if (length_ == sizeof(text_)) return;
    text_[length_++] = c;
    in_groups_ = c == '\t' && text().ends_with("\nGroups:\t");
  }

  char text_[4096];
  size_t length_ = 0;
  bool in_groups_ = false;
};

}  // namespace ckpt
