// Reading the text of /proc files: lines "key value value", numbers of any base. No allocation.
//
// Owner: libckpt_rt. Callers: the agent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/result.h"

namespace ckpt {

// A file of /proc, or something without a name, that cannot be opened, and the remedy. error: errno, also negative.
Error cannot_open(const char* what, int error);

// The text after "key" up to the end of its line.
inline std::string_view line_of(std::string_view text, std::string_view key) {
  size_t at = text.find(key);
  if (at == std::string_view::npos) return {};
  at += key.size();
  size_t end = text.find('\n', at);
  return text.substr(at, end == std::string_view::npos ? end : end - at);
}

// The digits that s begins with, in lower case, which are taken from it. 0: there is none.
inline uint64_t take_hex(std::string_view& s) {
  uint64_t v = 0;
  size_t i = 0;
  for (; i < s.size(); ++i) {
    const char c = s[i];
    if (c >= '0' && c <= '9')
      v = v * 16 + static_cast<uint64_t>(c - '0');
    else if (c >= 'a' && c <= 'f')
      v = v * 16 + static_cast<uint64_t>(c - 'a' + 10);
    else
      break;
  }
  s.remove_prefix(i);
  return v;
}

// Numbers of a line in the given base (10 or 16, or less), separated by anything else. Returns how many, at
// most max.
size_t numbers(std::string_view line, unsigned base, uint64_t* out, size_t max);

}  // namespace ckpt
