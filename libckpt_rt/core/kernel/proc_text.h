// Reading the text of /proc files: lines "key value value", numbers of any base. No allocation.
//
// Owner: libckpt_rt. Callers: the agent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ckpt {

// The text after "key" up to the end of its line.
inline std::string_view line_of(std::string_view text, std::string_view key) {
  size_t at = text.find(key);
  if (at == std::string_view::npos) return {};
  at += key.size();
  size_t end = text.find('\n', at);
  return text.substr(at, end == std::string_view::npos ? end : end - at);
}

// Numbers of a line in the given base (10 or 16, or less), separated by anything else. Returns how many, at
// most max.
size_t numbers(std::string_view line, unsigned base, uint64_t* out, size_t max);

}  // namespace ckpt
