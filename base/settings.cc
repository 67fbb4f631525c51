#include "base/settings.h"

#include <algorithm>
#include <string_view>

#include "base/control_protocol.h"
#include "base/units.h"

namespace ckpt {

namespace {

// Decimal digits at the start of text; rest gets what follows. False on none or overflow.
bool leading_number(std::string_view text, uint64_t* number, std::string_view* rest) {
  uint64_t n = 0;
  size_t i = 0;
  for (; i < text.size() && text[i] >= '0' && text[i] <= '9'; ++i) {
    uint64_t digit = static_cast<uint64_t>(text[i] - '0');
    if (n > (UINT64_MAX - digit) / 10) return false;
    n = n * 10 + digit;
  }
  *number = n;
  *rest = text.substr(i);
  return i > 0;
}

struct NamedMode {
  const char* name;
  Mode mode;
};
constexpr NamedMode kModes[] = {
    {"auto", Mode::kAuto}, {"realtime", Mode::kRealtime},     {"sequential", Mode::kSequential},
    {"fork", Mode::kFork}, {"concurrent", Mode::kConcurrent}, {"realtime-large", Mode::kRealtimeLarge}};

struct NamedBackEnd {
  const char* name;
  FaultBackEnd back_end;
};
constexpr NamedBackEnd kBackEnds[] = {{"auto", FaultBackEnd::kAuto},
                                      {"handler", FaultBackEnd::kHandler},
                                      {"in-thread", FaultBackEnd::kInThread},
                                      {"mprotect", FaultBackEnd::kMprotect}};

// What lies before the next colon, or all: a word that parse_size and its like can take. False: none, or too
// long.
bool next_word(std::string_view& text, char (&word)[32]) {
  const std::string_view first = text.substr(0, text.find(':'));
  text.remove_prefix(std::min(text.size(), first.size() + 1));
  if (first.empty() || first.size() >= sizeof(word)) return false;
  word[first.copy(word, sizeof(word) - 1)] = '\0';
  return true;
}

bool parse_engine(std::string_view text, Settings& s) {
  if (text == "cpu") return true;
  if (text.substr(0, 3) != "dma") return false;
  s.dma = true;
  text.remove_prefix(3);
  if (text.empty()) return true;
  if (text[0] != ':' || text.back() == ':') return false;
  text.remove_prefix(1);
  char word[32];
  if (!next_word(text, word)) return false;
  auto rate = parse_size("CKPT_ENGINE", word);
  if (!rate.ok()) return false;
  s.dma_bytes_per_second = *rate;
  if (text.empty()) return true;
  uint64_t percent = 0;
  std::string_view rest;
  if (!next_word(text, word) || !leading_number(word, &percent, &rest) || !rest.empty() || percent > 101)
    return false;
  s.dma_threshold = static_cast<uint32_t>(percent);
  if (text.empty()) return true;
  if (!next_word(text, word) || !text.empty()) return false;
  auto burst = parse_size("CKPT_ENGINE", word);
  if (!burst.ok() || *burst < kLeastBurst || *burst > kMostBurst) return false;
  s.dma_burst_bytes = static_cast<uint32_t>(*burst);
  return true;
}

struct NamedOrder {
  const char* name;
  Order order;
};
constexpr NamedOrder kOrders[] = {
    {"address", Order::kAddress}, {"follow", Order::kFollow}, {"hot", Order::kHot}, {"cold", Order::kCold}};

struct NamedCompression {
  const char* name;
  Compression kind;
};
constexpr NamedCompression kCompressions[] = {{"none", Compression::kNone},
                                              {"lz4", Compression::kLz4},
                                              {"zstd", Compression::kZstd},
                                              {"auto", Compression::kAuto}};

}  // namespace

const char* mode_name(Mode mode) {
  for (const auto& m : kModes) {
    if (m.mode == mode) return m.name;
  }
  return "?";
}

const char* kept_files_name(KeptFiles files) {
  constexpr const char* kNames[] = {"auto", "none", "links", "copies"};
  return kNames[static_cast<uint32_t>(files)];
}

const char* order_name(Order order) {
  for (const auto& o : kOrders) {
    if (o.order == order) return o.name;
  }
  return "?";
}

const char* fault_back_end_name(FaultBackEnd back_end) {
  for (const auto& b : kBackEnds) {
    if (b.back_end == back_end) return b.name;
  }
  return "?";
}

const char* compression_name(Compression kind) {
  for (const auto& c : kCompressions) {
    if (c.kind == kind) return c.name;
  }
  return "?";
}

Result<CompressionSetting> parse_compression(const char* name, const char* text) {
  std::string_view word(text);
  const size_t colon = word.find(':');
  for (const auto& c : kCompressions) {
    if (word.substr(0, colon) != c.name) continue;
    CompressionSetting setting{c.kind, kDefaultZstdLevel};
    if (colon == std::string_view::npos) return setting;
    uint64_t level = 0;
    std::string_view rest;
    if (c.kind == Compression::kZstd && leading_number(word.substr(colon + 1), &level, &rest) &&
        rest.empty() && level >= 1 && level <= uint64_t{kMostZstdLevel}) {
      setting.level = static_cast<int>(level);
      return setting;
    }
  }
  return make_error(ExitCode::kUsage, 0,
                    "{}='{}' is no compression; use none, lz4, zstd, zstd:1 to zstd:{} or auto", name, text,
                    kMostZstdLevel);
}

Result<uint64_t> parse_size(const char* name, const char* text) {
  uint64_t n = 0;
  std::string_view rest;
  if (leading_number(text, &n, &rest)) {
    int shift = -1;
    if (rest.empty() || rest == "B")
      shift = 0;
    else if (rest == "K" || rest == "KiB" || rest == "k")
      shift = 10;
    else if (rest == "M" || rest == "MiB" || rest == "m")
      shift = 20;
    else if (rest == "G" || rest == "GiB" || rest == "g")
      shift = 30;
    if (shift >= 0 && n <= (UINT64_MAX >> shift)) return n << shift;
  }
  return make_error(ExitCode::kUsage, 0, "{}='{}' is not a size; use for example 4096, 64K, 64M or 1G", name,
                    text);
}

Result<int64_t> parse_duration(const char* name, const char* text) {
  uint64_t n = 0;
  std::string_view rest;
  if (leading_number(text, &n, &rest)) {
    uint64_t unit = 0;
    if (rest.empty() || rest == "s")
      unit = 1'000'000'000;
    else if (rest == "us")
      unit = 1'000;
    else if (rest == "ms")
      unit = 1'000'000;
    else if (rest == "m" || rest == "min")
      unit = 60'000'000'000;
    else if (rest == "h")
      unit = 3'600'000'000'000;
    if (unit != 0 && n <= static_cast<uint64_t>(INT64_MAX) / unit) return static_cast<int64_t>(n * unit);
  }
  return make_error(ExitCode::kUsage, 0, "{}='{}' is not a duration; use for example 250ms, 30s, 5m or 1h",
                    name, text);
}

Result<Settings> parse_settings(SettingLookup lookup, void* context) {
  Settings s;
  auto get = [&](const char* name) -> const char* {
    const char* v = lookup(name, context);
    return v != nullptr && *v != '\0' ? v : nullptr;
  };
  if (const char* v = get("CKPT_DIR")) {
    std::string_view dir(v);
    if (dir.size() >= sizeof(s.directory)) {
      return make_error(ExitCode::kUsage, 0, "CKPT_DIR is longer than {} bytes; use a shorter path",
                        sizeof(s.directory) - 1);
    }
    dir.copy(s.directory, dir.size());
  }
  if (const char* v = get("CKPT_TO")) {
    std::string_view to(v);
    if (to.size() >= sizeof(s.to)) {
      return make_error(ExitCode::kUsage, 0,
                        "CKPT_TO is longer than {} bytes; put the commands into a script", sizeof(s.to) - 1);
    }
    to.copy(s.to, to.size());
  }
  if (const char* v = get("CKPT_EVERY")) {
    auto d = parse_duration("CKPT_EVERY", v);
    if (!d.ok()) return d.error();
    if (*d != 0 && *d < 1'000'000) {
      return make_error(ExitCode::kUsage, 0, "CKPT_EVERY='{}' is below the minimum of 1ms; use 0 for never",
                        v);
    }
    s.every_ns = *d;
  }
  if (const char* v = get("CKPT_MODE")) {
    bool found = false;
    for (const auto& m : kModes) {
      if (std::string_view(v) == m.name) {
        s.mode = m.mode;
        found = true;
      }
    }
    if (!found) {
      return make_error(
          ExitCode::kUsage, 0,
          "CKPT_MODE='{}' is no mode; use auto, realtime, realtime-large, concurrent, sequential or fork", v);
    }
  }
  if (const char* v = get("CKPT_FAULTS")) {
    bool found = false;
    for (const auto& b : kBackEnds) {
      if (std::string_view(v) == b.name) {
        s.faults = b.back_end;
        found = true;
      }
    }
    if (!found) {
      return make_error(
          ExitCode::kUsage, 0,
          "CKPT_FAULTS='{}' is no way to handle faults; use auto, handler, in-thread or mprotect", v);
    }
  }
  if (const char* v = get("CKPT_SEGMENT"); v != nullptr && std::string_view(v) == "auto") {
    s.segment_auto = true;
  } else if (v != nullptr) {
    auto n = parse_size("CKPT_SEGMENT", v);
    if (!n.ok()) return n.error();
    if (*n < kPageSize || *n > 64 * kPageSize || (*n & (*n - 1)) != 0) {
      return make_error(ExitCode::kUsage, 0,
                        "CKPT_SEGMENT='{}' must be a power of two from 4K to 256K, or auto", v);
    }
    s.segment_bytes = *n;
  }
  if (const char* v = get("CKPT_POOL")) {
    auto n = parse_size("CKPT_POOL", v);
    if (!n.ok()) return n.error();
    s.pool_bytes = *n;
  }
  if (s.pool_bytes < 16 * s.segment_bytes || s.pool_bytes > (64ull << 30)) {
    return make_error(ExitCode::kUsage, 0,
                      "CKPT_POOL={} bytes must hold at least 16 segments of {} bytes and at most 64G",
                      s.pool_bytes, s.segment_bytes);
  }
  if (const char* v = get("CKPT_SIGNAL")) {
    uint64_t n = 0;
    std::string_view rest;
    if (!leading_number(v, &n, &rest) || !rest.empty() || n < 1 || n > 64 || n == 9 || n == 19 || n == 32 ||
        n == 33 || n == 11 || n == 7 || n == 4 || n == 8 || n == 5 || n == 31) {
      return make_error(
          ExitCode::kUsage, 0,
          "CKPT_SIGNAL='{}' cannot be used; give a number from 34 to 64 that the program does not use", v);
    }
    s.signal = static_cast<int>(n);
  } else {
    s.signal = kDefaultCheckpointSignal;
  }
  if (const char* v = get("CKPT_STOP_TIMEOUT")) {
    auto d = parse_duration("CKPT_STOP_TIMEOUT", v);
    if (!d.ok()) return d.error();
    if (*d < 1'000'000) {
      return make_error(ExitCode::kUsage, 0, "CKPT_STOP_TIMEOUT='{}' must be at least 1ms", v);
    }
    s.stop_timeout_ns = *d;
  }
  if (const char* v = get("CKPT_COMPRESS")) {
    auto c = parse_compression("CKPT_COMPRESS", v);
    if (!c.ok()) return c.error();
    s.compress = *c;
  }
  if (const char* v = get("CKPT_KEY_FILE")) {
    std::string_view file(v);
    if (file.size() >= sizeof(s.key_file)) {
      return make_error(ExitCode::kUsage, 0, "CKPT_KEY_FILE is longer than {} bytes; use a shorter path",
                        sizeof(s.key_file) - 1);
    }
    file.copy(s.key_file, file.size());
  }
  if (const char* v = get("CKPT_KEEP")) {
    uint64_t n = 0;
    std::string_view rest;
    if (!leading_number(v, &n, &rest) || !rest.empty() || n > kMostKept) {
      return make_error(ExitCode::kUsage, 0,
                        "CKPT_KEEP='{}' is not a number of images up to {}; use 0 to keep all", v, kMostKept);
    }
    s.keep = static_cast<uint32_t>(n);
  }
  if (const char* v = get("CKPT_ENGINE")) {
    if (!parse_engine(v, s)) {
      return make_error(ExitCode::kUsage, 0,
                        "CKPT_ENGINE='{}' is no copy engine; use cpu, dma, dma:RATE, dma:RATE:PERCENT or "
                        "dma:RATE:PERCENT:BURST, for example dma:800M:50:4K; a burst is 512 bytes to 256K",
                        v);
    }
  }
  if (const char* v = get("CKPT_INCREMENTS")) {
    uint64_t n = 0;
    std::string_view rest;
    if (!leading_number(v, &n, &rest) || !rest.empty() || n > kMaxIncrements) {
      return make_error(ExitCode::kUsage, 0,
                        "CKPT_INCREMENTS='{}' is not a number from 0 to {}; 0 makes every image a full one",
                        v, kMaxIncrements);
    }
    s.increments = static_cast<uint32_t>(n);
  }
  if (const char* v = get("CKPT_ORDER")) {
    bool found = false;
    for (const auto& o : kOrders) {
      if (std::string_view(v) != o.name) continue;
      s.order = o.order;
      found = true;
    }
    if (!found)
      return make_error(ExitCode::kUsage, 0, "CKPT_ORDER='{}' is no order; use address, follow, hot or cold",
                        v);
  }
  if (const char* v = get("CKPT_FILES")) {
    bool found = false;
    for (KeptFiles files : {KeptFiles::kAuto, KeptFiles::kNone, KeptFiles::kLinks, KeptFiles::kCopies}) {
      if (std::string_view(v) != kept_files_name(files)) continue;
      s.files = files;
      found = true;
    }
    if (!found)
      return make_error(ExitCode::kUsage, 0, "CKPT_FILES='{}' is not known; use auto, none, links or copies",
                        v);
  }
  if (const char* v = get("CKPT_HEAP")) {
    const std::string_view heap = v;
    if (heap != "libc" && heap != "jemalloc" && heap != "jemalloc:huge") {
      return make_error(ExitCode::kUsage, 0, "CKPT_HEAP='{}' is no heap; use libc, jemalloc or jemalloc:huge",
                        v);
    }
    s.heap = heap == "libc" ? Heap::kLibc : Heap::kJemalloc;
  }
  auto flag = [&](const char* name, bool fallback) {
    const char* v = get(name);
    return v == nullptr ? fallback : std::string_view(v) != "0";
  };
  s.disabled = flag("CKPT_DISABLE", false);
  s.log = flag("CKPT_LOG", true);
  return s;
}

}  // namespace ckpt
