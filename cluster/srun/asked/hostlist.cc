#include "cluster/srun/asked/hostlist.h"

#include <charconv>

namespace ckpt::cluster::srun {

namespace {

Error no_list(std::string_view list) {
  return make_error(ExitCode::kUsage, 0, "{}: is no list of nodes as Slurm writes it", list.substr(0, 100));
}

bool read_number(std::string_view text, unsigned long& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

// A word stands between commas that are not in brackets: a name with any number of [ranges].
bool expand_word(std::string_view word, const std::string& before, std::vector<std::string>& names) {
  const size_t open = word.find('[');
  if (open == word.npos) {
    if (names.size() >= kMostNodes || word.find(']') != word.npos) return false;
    names.push_back(before + std::string(word));
    return !names.back().empty();
  }
  const size_t close = word.find(']', open);
  if (close == word.npos) return false;
  const std::string head = before + std::string(word.substr(0, open));
  std::string_view ranges = word.substr(open + 1, close - open - 1), rest = word.substr(close + 1);
  while (true) {
    const size_t comma = ranges.find(',');
    const std::string_view range = ranges.substr(0, comma), first = range.substr(0, range.find('-'));
    const std::string_view last = first.size() == range.size() ? first : range.substr(first.size() + 1);
    unsigned long from = 0, to = 0;
    if (!read_number(first, from) || !read_number(last, to) || to < from || to - from >= kMostNodes)
      return false;
    for (unsigned long n = from; n <= to; ++n) {
      std::string digits = std::to_string(n);
      if (digits.size() < first.size()) digits.insert(0, first.size() - digits.size(), '0');
      if (!expand_word(rest, head + digits, names)) return false;
    }
    if (comma == ranges.npos) return true;
    ranges.remove_prefix(comma + 1);
  }
}

}  // namespace

Result<std::vector<std::string>> expand_hostlist(std::string_view list) {
  std::vector<std::string> names;
  int depth = 0;
  size_t begin = 0;
  for (size_t i = 0; i <= list.size(); ++i) {
    const char c = i < list.size() ? list[i] : ',';
    if (c == '[') ++depth;
    if (c == ']') --depth;
    if (depth < 0 || depth > 1 || (i == list.size() && depth != 0)) return no_list(list);
    if (c != ',' || depth != 0) continue;
    if (!expand_word(list.substr(begin, i - begin), "", names)) return no_list(list);
    begin = i + 1;
  }
  return names;
}

std::string compress_hostlist(const std::vector<std::string>& names) {
  const auto head_of = [](const std::string& name) {
    size_t at = name.size();
    while (at > 0 && name[at - 1] >= '0' && name[at - 1] <= '9' && name.size() - at < 9) --at;
    return at;
  };
  std::string text;
  for (size_t i = 0; i < names.size();) {
    // As many as have the same name but for the number at its end, which has as many digits.
    const size_t head = head_of(names[i]), digits = names[i].size() - head;
    size_t end = i + 1;
    while (digits != 0 && end < names.size() && names[end].size() == names[i].size() &&
           head_of(names[end]) == head && names[end].compare(0, head, names[i], 0, head) == 0)
      ++end;
    if (!text.empty()) text += ',';
    if (end == i + 1) {
      text += names[i++];
      continue;
    }
    text += names[i].substr(0, head) + '[';
    for (const size_t first = i; i < end;) {
      size_t last = i;
      while (last + 1 < end &&
             std::stoul(names[last + 1].substr(head)) == std::stoul(names[last].substr(head)) + 1)
        ++last;
      if (i != first) text += ',';
      text += names[i].substr(head);
      if (last != i) text += '-' + names[last].substr(head);
      i = last + 1;
    }
    text += ']';
  }
  return text;
}

Result<std::vector<int>> expand_counts(std::string_view list) {
  std::vector<int> counts;
  for (std::string_view rest = list; !rest.empty();) {
    const size_t comma = rest.find(',');
    const std::string_view word = rest.substr(0, comma), count = word.substr(0, word.find('('));
    const std::string_view times =
        word.size() == count.size() ? std::string_view("(x1)") : word.substr(count.size());
    unsigned long number = 0, repeat = 0;
    if (!read_number(count, number) || number > kMostNodes || !times.starts_with("(x") ||
        !times.ends_with(')') || !read_number(times.substr(2, times.size() - 3), repeat) ||
        counts.size() + repeat > kMostNodes)
      return make_error(ExitCode::kUsage, 0, "{}: are no counts as Slurm writes them", list.substr(0, 100));
    counts.insert(counts.end(), repeat, static_cast<int>(number));
    rest.remove_prefix(comma == rest.npos ? rest.size() : comma + 1);
  }
  return counts;
}

std::string compress_counts(const std::vector<int>& counts) {
  std::string text;
  for (size_t i = 0; i < counts.size();) {
    size_t end = i;
    while (end < counts.size() && counts[end] == counts[i]) ++end;
    if (!text.empty()) text += ',';
    text += std::to_string(counts[i]);
    if (end - i > 1) text += "(x" + std::to_string(end - i) + ")";
    i = end;
  }
  return text;
}

}  // namespace ckpt::cluster::srun
