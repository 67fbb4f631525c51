#include "libckpt_rt/core/kernel/proc_text.h"

#include <errno.h>
#include <fcntl.h>

#include <algorithm>
#include <cstring>

#include "base/raii_fd.h"
#include "base/sys.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

Error cannot_open(const char* what, int error) {
  const int e = error < 0 ? -error : error;
  const char* remedy = e == EMFILE || e == ENFILE ? ": no free descriptor; raise 'ulimit -n'"
                       : what[0] == '/'           ? "; mount /proc"
                                                  : "";
  return make_error(ExitCode::kSystem, e, "cannot open {} ({}){}", what, errno_name(e), remedy);
}

size_t numbers(std::string_view line, unsigned base, uint64_t* out, size_t max) {
  size_t count = 0;
  bool in_number = false, negative = false;
  for (char c : line) {
    unsigned digit = c >= '0' && c <= '9'   ? static_cast<unsigned>(c - '0')
                     : c >= 'a' && c <= 'f' ? static_cast<unsigned>(c - 'a' + 10)
                                            : 99u;
    if (digit < base) {
      if (!in_number) {
        if (count == max) return count;
        out[count++] = 0;
        in_number = true;
      }
      out[count - 1] = out[count - 1] * base + digit;
    } else {
      if (in_number && negative) out[count - 1] = -out[count - 1];
      in_number = false;
      negative = c == '-';
    }
  }
  if (in_number && negative) out[count - 1] = -out[count - 1];
  return count;
}

namespace {

// Visits the lines of a file, each in one piece or, where it is longer than the text, in several:
// visit(piece, whether the piece begins the line). False: it cannot be read.
template <typename Visit>
bool scan_lines(const char* path, Visit visit) {
  const ScopedFd file(static_cast<int>(sys::call(__NR_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0L)));
  if (!file.valid()) return false;
  char text[4096];
  size_t have = 0;
  bool begins = true, any = false;
  for (;;) {
    const long n = sys::call(__NR_read, file.get(), text + have, sizeof(text) - have);
    if (n < 0) return false;
    if (n == 0) return any;
    any = true;
    have += static_cast<size_t>(n);
    std::string_view rest(text, have);
    for (size_t end; (end = rest.find('\n')) != rest.npos; rest.remove_prefix(end + 1)) {
      visit(rest.substr(0, end), begins);
      begins = true;
    }
    if (rest.size() == sizeof(text)) {
      visit(rest, begins);
      begins = false;
      rest.remove_prefix(rest.size());
    }
    have = rest.size();
    std::memmove(text, rest.data(), have);
  }
}

}  // namespace

bool read_status(const char* path, std::span<StatusField> fields) {
  return scan_lines(path, [&](std::string_view piece, bool begins) {
    for (StatusField& field : fields) {
      if (!begins || field.found || !piece.starts_with(field.key)) continue;
      field.found = numbers(piece.substr(field.key.size()), field.base, &field.value, 1) == 1;
    }
  });
}

uint64_t digest_status(const char* path, std::span<const std::string_view> keys) {
  uint64_t digest = 0xcbf29ce484222325;
  bool wanted = false;
  const bool read = scan_lines(path, [&](std::string_view piece, bool begins) {
    if (begins) {
      wanted = std::any_of(keys.begin(), keys.end(),
                           [piece](std::string_view key) { return piece.starts_with(key); });
    }
    for (size_t i = 0; wanted && i < piece.size(); ++i)
      digest = (digest ^ static_cast<unsigned char>(piece[i])) * 0x100000001b3;
  });
  return read ? digest : 0;
}

}  // namespace ckpt
