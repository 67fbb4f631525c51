#include "cluster/srun/node/binding.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <map>

namespace ckpt::cluster::srun {

namespace {

constexpr int kMostProcessors = 8192;
constexpr size_t kMostInList = 65536;
constexpr int kBits = 8 * sizeof(unsigned long);
using Mask = std::array<unsigned long, kMostProcessors / kBits>;

bool read_number(std::string_view text, int base, int& number) {
  if (base == 16 && text.starts_with("0x")) text.remove_prefix(2);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, base);
  return error == std::errc() && end == text.data() + text.size() && number >= 0;
}

bool is_mask(std::string_view text) {
  if (text.starts_with("0x")) text.remove_prefix(2);
  return !text.empty() && text.size() <= kMostProcessors / 4 &&
         text.find_first_not_of("0123456789abcdefABCDEF") == text.npos;
}

bool is_processor(std::string_view text) {
  int number = 0;
  return read_number(text, text.starts_with("0x") ? 16 : 10, number) && number < kMostProcessors;
}

// "0,2,4*3"
bool read_list(std::string_view text, bool (*fits)(std::string_view), std::vector<std::string>& list) {
  while (true) {
    const size_t comma = text.find(',');
    const std::string_view one = text.substr(0, comma), entry = one.substr(0, one.find('*'));
    int times = 1;
    if (entry.size() != one.size() && !read_number(one.substr(entry.size() + 1), 10, times)) return false;
    if (!fits(entry) || times < 1 || static_cast<size_t>(times) > kMostInList - list.size()) return false;
    list.insert(list.end(), static_cast<size_t>(times), std::string(entry));
    if (comma == text.npos) return true;
    text.remove_prefix(comma + 1);
  }
}

// The processors that this process may use, in order.
std::vector<int> processors_here() {
  Mask mask{};
  std::vector<int> all;
  if (sched_getaffinity(0, sizeof(mask), reinterpret_cast<cpu_set_t*>(mask.data())) != 0) return all;
  for (int cpu = 0; cpu < kMostProcessors; ++cpu) {
    if ((mask[static_cast<size_t>(cpu / kBits)] >> (cpu % kBits) & 1) != 0) all.push_back(cpu);
  }
  return all;
}

// The first processor of the core that a processor is of.
int core_of(int cpu) {
  std::ifstream in("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list");
  int first = cpu;
  return in >> first ? first : cpu;
}

// Each group is what is given as a whole.
std::vector<std::vector<int>> groups_of(const std::vector<int>& cpus, bool cores) {
  std::vector<std::vector<int>> groups;
  std::map<int, size_t> place_of_core;
  for (const int cpu : cpus) {
    const auto [it, is_new] = place_of_core.try_emplace(cores ? core_of(cpu) : cpu, groups.size());
    if (is_new) groups.emplace_back();
    groups[it->second].push_back(cpu);
  }
  return groups;
}

// `count` processors at least for each task, in turn; when all are given, from the first again.
std::vector<int> share_of(const std::vector<int>& cpus, bool cores, int place, int count) {
  const auto groups = groups_of(cpus, cores);
  std::vector<int> mine;
  size_t next = 0;
  for (int task = 0; task <= place && !groups.empty(); ++task) {
    mine.clear();
    for (size_t taken = 0; static_cast<int>(mine.size()) < count && taken < groups.size(); ++taken, ++next) {
      const auto& group = groups[next % groups.size()];
      mine.insert(mine.end(), group.begin(), group.end());
    }
    next %= groups.size();
  }
  return mine;
}

std::vector<int> in_mask(std::string_view text) {
  if (text.starts_with("0x")) text.remove_prefix(2);
  std::vector<int> cpus;
  for (size_t digit = 0; digit < text.size(); ++digit) {
    int bits = 0;
    read_number(text.substr(text.size() - 1 - digit, 1), 16, bits);
    for (int b = 0; b < 4; ++b) {
      if ((bits >> b & 1) != 0) cpus.push_back(static_cast<int>(digit) * 4 + b);
    }
  }
  return cpus;
}

}  // namespace

Result<Binding> read_binding(std::string_view text) {
  const std::string_view whole = text;
  for (bool more = true; more;) {
    more = false;
    for (const std::string_view word : {"quiet", "q", "verbose", "v"}) {
      if (text != word && !(text.starts_with(word) && text[word.size()] == ',')) continue;
      text.remove_prefix(std::min(text.size(), word.size() + 1));
      more = true;
    }
  }
  Binding b;
  b.text = text;
  const size_t colon = text.find(':');
  const std::string_view kind = text.substr(0, colon),
                         list = colon == text.npos ? "" : text.substr(colon + 1);
  bool good = colon == text.npos;
  if (kind == "rank") {
    b.kind = Binding::Kind::kRank;
  } else if (kind == "threads") {
    b.kind = Binding::Kind::kThreads;
  } else if (kind == "cores") {
    b.kind = Binding::Kind::kCores;
  } else if (kind == "map_cpu") {
    b.kind = Binding::Kind::kMap;
    good = read_list(list, is_processor, b.list);
  } else if (kind == "mask_cpu") {
    b.kind = Binding::Kind::kMask;
    good = read_list(list, is_mask, b.list);
  } else if (kind == "map_ldom" || kind == "mask_ldom") {
    good = true;
  } else if (!kind.empty() && kind != "none" && kind != "no" && kind != "sockets" && kind != "ldoms" &&
             kind != "rank_ldom" && kind != "boards") {
    good = false;
  }
  if (good) return b;
  return make_error(
      ExitCode::kUnsupported, 0,
      "--cpu-bind={}: is not known to ckpt; use none, rank, threads, cores, map_cpu:LIST or mask_cpu:LIST",
      whole);
}

std::string order_of_binding(const Binding& b, int place, int cpus_per_task) {
  const std::string at = std::to_string(place), count = std::to_string(std::max(1, cpus_per_task));
  switch (b.kind) {
    case Binding::Kind::kRank:
      return "t" + at + ",1";
    case Binding::Kind::kThreads:
      return "t" + at + "," + count;
    case Binding::Kind::kCores:
      return "c" + at + "," + count;
    case Binding::Kind::kMap:
      return "p" + b.list[static_cast<size_t>(place) % b.list.size()];
    case Binding::Kind::kMask:
      return "m" + b.list[static_cast<size_t>(place) % b.list.size()];
    default:
      return "";
  }
}

std::vector<int> processors_of(std::string_view order) {
  if (order.empty()) return {};
  const char kind = order[0];
  const std::string_view rest = order.substr(1);
  const std::vector<int> here = processors_here();
  std::vector<int> wanted;
  if (kind == 't' || kind == 'c') {
    const size_t comma = rest.find(',');
    int place = 0, count = 1;
    if (comma == rest.npos || !read_number(rest.substr(0, comma), 10, place) ||
        !read_number(rest.substr(comma + 1), 10, count))
      return {};
    return share_of(here, kind == 'c', place, count);
  }
  int number = 0;
  if (kind == 'm' && is_mask(rest)) wanted = in_mask(rest);
  if (kind == 'p' && read_number(rest, rest.starts_with("0x") ? 16 : 10, number)) wanted = {number};
  std::erase_if(wanted, [&](int cpu) { return !std::binary_search(here.begin(), here.end(), cpu); });
  return wanted;
}

bool bind_to(const std::vector<int>& processors) {
  Mask mask{};
  for (const int cpu : processors) {
    if (cpu >= 0 && cpu < kMostProcessors) mask[static_cast<size_t>(cpu / kBits)] |= 1ul << (cpu % kBits);
  }
  return sched_setaffinity(0, sizeof(mask), reinterpret_cast<const cpu_set_t*>(mask.data())) == 0;
}

}  // namespace ckpt::cluster::srun
