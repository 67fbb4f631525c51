#include "libckpt_rt/core/kernel/proc_text.h"

#include <errno.h>

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

}  // namespace ckpt
