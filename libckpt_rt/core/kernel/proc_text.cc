#include "libckpt_rt/core/kernel/proc_text.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

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
