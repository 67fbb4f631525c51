// What two texts of lines have in common, at their beginning and at their end.
//
// Owner: libckpt_rt. Header only. Callers: the agent, also while threads stand still (memory_map.cc).
#pragma once

#include <cstring>
#include <string_view>

namespace ckpt {

struct TextChange {
  // Whole lines: before.substr(0, start) is after.substr(0, start), and what follows before_end in the one is
  // what follows after_end in the other.
  size_t start, before_end, after_end;
  bool none(std::string_view before, std::string_view after) const {
    return start == before.size() && start == after.size();
  }
};

// Both end with a line's end, or are empty.
inline TextChange find_change(std::string_view before, std::string_view after) {
  constexpr size_t kBlock = 4096;
  const size_t shorter = before.size() < after.size() ? before.size() : after.size();
  size_t same = 0;
  while (shorter - same >= kBlock && std::memcmp(before.data() + same, after.data() + same, kBlock) == 0)
    same += kBlock;
  while (same < shorter && before[same] == after[same]) ++same;
  while (same > 0 && before[same - 1] != '\n') --same;

  // The end may not reach into what is counted as beginning: a line could be in both.
  size_t end = 0;
  auto at_end = [&](std::string_view text, size_t n) { return text.data() + text.size() - n; };
  while (shorter - same - end >= kBlock &&
         std::memcmp(at_end(before, end + kBlock), at_end(after, end + kBlock), kBlock) == 0) {
    end += kBlock;
  }
  while (end < shorter - same && *at_end(before, end + 1) == *at_end(after, end + 1)) ++end;
  auto begins_line = [&](std::string_view text) {
    return end == text.size() || at_end(text, end)[-1] == '\n';
  };
  while (end > 0 && (!begins_line(before) || !begins_line(after))) --end;
  return {same, before.size() - end, after.size() - end};
}

}  // namespace ckpt
