// Reading the text of /proc files: lines "key value value", numbers of any base. No allocation.
//
// Owner: libckpt_rt. Callers: the agent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/result.h"

namespace ckpt {

// A file of /proc, or something without a name, that cannot be opened, and the remedy. error: errno, also
// negative.
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

// One number of a file like /proc/PID/status, each line of which begins with a key:
// "SigBlk:\t0000000000000000".
struct StatusField {
  std::string_view key;  // with the colon
  unsigned base = 10;
  uint64_t value = 0;  // 0 where the file has no such line
  bool found = false;
};
// Reads such a file to its end, however long it is: the line of a process with many groups has kilobytes.
// Only whole keys at the beginning of a line count, for a name (the first line) may hold anything. False: it
// cannot be read.
bool read_status(const char* path, std::span<StatusField> fields);
// A number that tells two states of those lines apart (FNV-1a of their text). 0: the file cannot be read.
uint64_t digest_status(const char* path, std::span<const std::string_view> keys);

// Numbers of a line in the given base (10 or 16, or less), separated by anything else. Returns how many, at
// most max.
size_t numbers(std::string_view line, unsigned base, uint64_t* out, size_t max);

}  // namespace ckpt
