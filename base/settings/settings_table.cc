#include "base/settings/settings_table.h"
#include "base/memory/fork_path.h"

#include <algorithm>

#include "base/protocol/keeper_protocol.h"
#include "base/settings/best_interval.h"
#include "base/settings/setting_values.h"
#include "base/sys.h"
#include "base/units.h"
#include "base/preload_rules.h"

namespace ckpt {

namespace {

using namespace setting_values;

constexpr uint32_t number(auto value) { return static_cast<uint32_t>(value); }

constexpr Choice kModes[] = {{"auto", number(Mode::kAuto)},
                             {"realtime", number(Mode::kRealtime)},
                             {"realtime-large", number(Mode::kRealtimeLarge)},
                             {"standing", number(Mode::kStanding)},
                             {"concurrent", number(Mode::kConcurrent)},
                             {"sequential", number(Mode::kSequential)},
                             {"fork", number(Mode::kFork)}};
constexpr Choice kBackEnds[] = {{"auto", number(FaultBackEnd::kAuto)},
                                {"handler", number(FaultBackEnd::kHandler)},
                                {"in-thread", number(FaultBackEnd::kInThread)},
                                {"mprotect", number(FaultBackEnd::kMprotect)}};
constexpr Choice kOrders[] = {{"address", number(Order::kAddress)},
                              {"follow", number(Order::kFollow)},
                              {"hot", number(Order::kHot)},
                              {"cold", number(Order::kCold)}};
constexpr Choice kSavedFiles[] = {{"auto", number(SavedFiles::kAuto)},
                                  {"none", number(SavedFiles::kNone)},
                                  {"links", number(SavedFiles::kLinks)},
                                  {"copies", number(SavedFiles::kCopies)}};
constexpr Choice kHeaps[] = {{"libc", number(Heap::kLibc)},
                             {"jemalloc", number(Heap::kJemalloc)},
                             {"jemalloc:huge", number(Heap::kJemallocHuge)}};
constexpr Choice kCompressions[] = {{"none", number(Compression::kNone)},
                                    {"lz4", number(Compression::kLz4)},
                                    {"zstd", number(Compression::kZstd)},
                                    {"auto", number(Compression::kAuto)}};

// A size, or "auto", which begins with the default.
struct Segment {
  static Result<void> parse(const Setting& setting, const char* text, Settings& out) {
    if (std::string_view(text) == "auto") {
      out.segment_auto = true;
      return {};
    }
    auto bytes = parse_size(setting.variable, text);
    if (!bytes.ok()) return bytes.error();
    if (*bytes < setting.least || *bytes > setting.most || (*bytes & (*bytes - 1)) != 0)
      return refused(setting, text);
    out.segment_bytes = *bytes;
    return {};
  }
  static void print(const Setting&, const Settings& from, SettingText& out) {
    from.segment_auto ? print_text("auto", out) : print_size(from.segment_bytes, out);
  }
};

// A time, or "auto".
struct Every {
  static Result<void> parse(const Setting& setting, const char* text, Settings& out) {
    out.every_auto = std::string_view(text) == "auto";
    if (!out.every_auto) return Duration<&Settings::every_ns, true>::parse(setting, text, out);
    out.every_ns = AutoInterval::kFirstNs;
    return {};
  }
  static void print(const Setting&, const Settings& from, SettingText& out) {
    from.every_auto ? print_text("auto", out) : print_duration(from.every_ns, out);
  }
};

// That it holds 16 segments is looked at when all is read.
struct Pool {
  static Result<void> parse(const Setting& setting, const char* text, Settings& out) {
    auto bytes = parse_size(setting.variable, text);
    if (!bytes.ok()) return bytes.error();
    if (*bytes > setting.most) return refused(setting, text);
    out.pool_bytes = *bytes;
    return {};
  }
  static void print(const Setting&, const Settings& from, SettingText& out) {
    print_size(from.pool_bytes, out);
  }
};

// A signal whose default action is not one that a fault or a stop has, and that libc does not use itself.
struct Signal {
  static Result<void> parse(const Setting& setting, const char* text, Settings& out) {
    constexpr uint64_t kOthers[] = {4, 5, 7, 8, 9, 11, 19, 31, 32, 33};
    auto n = parse_number(setting, text);
    if (!n.ok()) return n.error();
    if (std::find(std::begin(kOthers), std::end(kOthers), *n) != std::end(kOthers))
      return refused(setting, text);
    out.signal = static_cast<int>(*n);
    return {};
  }
  static void print(const Setting&, const Settings& from, SettingText& out) {
    print_number(static_cast<uint64_t>(from.signal), out);
  }
};

struct Compressing {
  static Result<void> parse(const Setting& setting, const char* text, Settings& out) {
    auto c = parse_compression(setting.variable, text);
    if (!c.ok()) return c.error();
    out.compress = *c;
    return {};
  }
  static void print(const Setting&, const Settings& from, SettingText& out) {
    const char* name = compression_name(from.compress.kind);
    if (from.compress.kind != Compression::kZstd) return print_text(name, out);
    *fmt::format_to_n(out.text, sizeof(out.text) - 1, "{}:{}", name, from.compress.level).out = '\0';
  }
};

// What lies before the next colon, or all: a word that parse_size and its like can take. False: none, or too
// long.
bool next_word(std::string_view& text, char (&word)[32]) {
  const std::string_view first = text.substr(0, text.find(':'));
  text.remove_prefix(std::min(text.size(), first.size() + 1));
  if (first.empty() || first.size() >= sizeof(word)) return false;
  word[first.copy(word, sizeof(word) - 1)] = '\0';
  return true;
}

struct Engine {
  static bool read(std::string_view text, Settings& s) {
    s.dma = text != "cpu";
    if (!s.dma) return true;
    if (text.substr(0, 3) != "dma") return false;
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
  static Result<void> parse(const Setting& setting, const char* text, Settings& out) {
    return read(text, out) ? Result<void>() : refused(setting, text);
  }
  static void print(const Setting&, const Settings& from, SettingText& out) {
    if (!from.dma) return print_text("cpu", out);
    SettingText rate, burst;
    print_size(from.dma_bytes_per_second, rate);
    print_size(from.dma_burst_bytes, burst);
    *fmt::format_to_n(out.text, sizeof(out.text) - 1, "dma:{}:{}:{}", static_cast<const char*>(rate.text),
                      from.dma_threshold, static_cast<const char*>(burst.text))
         .out = '\0';
  }
};

// keeper:NAME, wherever images go: the directory is one that a keeper holds. False: it is none.
CKPT_START_PATH bool names_keeper(const char* text) {
  return std::string_view(text).starts_with(kKeeperScheme);
}
Result<void> parse_keeper(const Setting& setting, const char* text, Settings& out) {
  const std::string_view name = std::string_view(text).substr(kKeeperScheme.size());
  if (!name.empty() && !is_keeper_name(name)) return refused(setting, text);
  const KeeperPath path = keeper_path(static_cast<uint32_t>(sys::call(__NR_geteuid)), name);
  std::memcpy(out.directory, path.text, sizeof(path.text));
  return {};
}

struct Directory : Text<&Settings::directory> {
  static Result<void> parse(const Setting& s, const char* text, Settings& out) {
    return names_keeper(text) ? parse_keeper(s, text, out) : Text::parse(s, text, out);
  }
};

struct Destination : Text<&Settings::to> {
  static Result<void> parse(const Setting& s, const char* text, Settings& out) {
    return names_keeper(text) ? parse_keeper(s, text, out) : Text::parse(s, text, out);
  }
};

template <typename Kind>
constexpr ValueFunctions kOf{&Kind::parse, &Kind::print};

constexpr Setting kTable[] = {
    {"CKPT_DIR",
     "--dir",
     "DIR",
     "where images go; made with mode 0700 if it is missing",
     "a path, or keeper:NAME",
     "a shorter path, or keeper: and letters, digits, - and _",
     "./ckpt-NAME.PID",
     nullptr,
     kByRun,
     {},
     0,
     0,
     kOf<Directory>},
    {"CKPT_TO",
     "--to",
     "COMMAND",
     "a command that gets each image on its standard input, instead of a file; or a keeper",
     "a command of sh(1), or keeper:NAME (docs/diskless.md)",
     "a script that holds the commands, or keeper: and letters, digits, - and _",
     "none",
     "docs/streaming.md",
     kByRun,
     {},
     0,
     0,
     kOf<Destination>},
    {"CKPT_EVERY",
     "--every",
     "TIME",
     "interval between checkpoints",
     "250ms, 30s, 5m, 1h and the like, at least 1ms; 0: never; auto: from what checkpoints cost and --mtbf",
     "interval",
     nullptr,
     "docs/plan.md",
     kByRun,
     {},
     1'000'000,
     0,
     kOf<Every>},
    {"CKPT_MTBF",
     "--mtbf",
     "TIME",
     "mean time between failures of a host, for --every auto",
     "1h, 720h and the like, at least 1s; 0: as the program has seen it, 24h before that",
     "time between failures",
     nullptr,
     "docs/plan.md",
     kByRun,
     {},
     1'000'000'000,
     0,
     kOf<Duration<&Settings::mtbf_ns, true>>},
    {"CKPT_MODE", "--mode", "MODE", "how memory is saved", nullptr, "mode", nullptr, "README.md#modes",
     kByRun, kModes, 0, 0, kOf<OneOf<&Settings::mode>>},
    {"CKPT_FAULTS", "--faults", "WHO", "who handles a write to memory that is being copied", nullptr,
     "way to handle faults", nullptr, "docs/fault_back_ends.md", kByRun, kBackEnds, 0, 0,
     kOf<OneOf<&Settings::faults>>},
    {"CKPT_SEGMENT",
     "--segment",
     "SIZE",
     "unit of copying and of write protection",
     "a power of two from 4K to 256K, or auto",
     "size of segments",
     nullptr,
     nullptr,
     kByRun,
     {},
     kPageSize,
     64 * kPageSize,
     kOf<Segment>},
    {"CKPT_POOL",
     "--pool",
     "SIZE",
     "memory for copies on their way to the disk",
     "a size from 16 segments to 64G",
     "size of the pool",
     nullptr,
     nullptr,
     kByRun,
     {},
     0,
     64ull << 30,
     kOf<Pool>},
    {"CKPT_COMPRESS", "--compress", "HOW", "how memory is stored",
     "none, lz4, zstd, zstd:1 to zstd:19, or auto (lz4 where the image is durable sooner)", "compression",
     nullptr, nullptr, kByRun, kCompressions, 0, 0, kOf<Compressing>},
    {"CKPT_KEY_FILE",
     "--key-file",
     "FILE",
     "the key with which images are encrypted and authenticated",
     "a file of 32 random bytes, or 64 hexadecimal digits",
     "a shorter path",
     "none",
     nullptr,
     kByRun | kByReaders,
     {},
     0,
     0,
     kOf<Text<&Settings::key_file>>},
    {"CKPT_SIGNAL",
     "--signal",
     "N",
     "the signal that stops threads and brings requests",
     "a number from 34 to 64 that the program does not use",
     "signal for checkpoints",
     nullptr,
     nullptr,
     kByRun,
     {},
     1,
     64,
     kOf<Signal>},
    {"CKPT_LEAVE_OUT",
     "--leave-out",
     "LIST",
     "programs of the job without the library that need not be saved",
     "names of programs, separated by commas, or all",
     "fewer names, or all",
     "none",
     "docs/jobs.md",
     kByRun | kByNow,
     {},
     0,
     0,
     kOf<Text<&Settings::leave_out>>},
    {"CKPT_STOP_TIMEOUT",
     "--stop-timeout",
     "TIME",
     "how long a thread may take to stop, before a checkpoint is given up",
     "250ms, 30s and the like, at least 1ms",
     "time-out",
     nullptr,
     nullptr,
     kByRun,
     {},
     1'000'000,
     0,
     kOf<Duration<&Settings::stop_timeout_ns, false>>},
    {"CKPT_PREPARE_TIMEOUT",
     "--prepare-timeout",
     "TIME",
     "how long plug-ins may take to prepare a process, before a checkpoint is given up",
     "250ms, 30s and the like, at least 1ms",
     "time-out",
     nullptr,
     "docs/plugins.md",
     kByRun,
     {},
     1'000'000,
     0,
     kOf<Duration<&Settings::prepare_timeout_ns, false>>},
    {"CKPT_KEEP",
     "--keep",
     "N",
     "complete images that stay in the directory, with those that they build on",
     "a number from 0 to 1024; 0: all",
     "number of images",
     nullptr,
     nullptr,
     kByRun,
     {},
     0,
     kMostKept,
     kOf<Number<&Settings::images_to_keep>>},
    {"CKPT_FILES", "--files", "WHAT",
     "what is kept of open files, in case they are removed or changed before a restart", nullptr,
     "way to keep files", nullptr, "docs/descriptors.md", kByRun, kSavedFiles, 0, 0,
     kOf<OneOf<&Settings::files>>},
    {"CKPT_ENGINE",
     "--engine",
     "ENGINE",
     "what makes the copies in order",
     "cpu, or an emulated device for studies: dma, dma:RATE, dma:RATE:PERCENT or dma:RATE:PERCENT:BURST, for "
     "example dma:800M:50:4K; a burst is 512 bytes to 256K",
     "copy engine",
     nullptr,
     nullptr,
     kByRun,
     {},
     0,
     0,
     kOf<Engine>},
    {"CKPT_INCREMENTS",
     "--increments",
     "N",
     "images in a row that have only what was written since the one before",
     "a number from 0 to 254; 0: each image is full",
     "number of increments",
     nullptr,
     "docs/increments.md",
     kByRun,
     {},
     0,
     kMaxIncrements,
     kOf<Number<&Settings::increments>>},
    {"CKPT_ORDER", "--order", "ORDER", "in which order memory is copied", nullptr, "order", nullptr,
     "docs/benchmarks.md", kByRun, kOrders, 0, 0, kOf<OneOf<&Settings::order>>},
    {"CKPT_HEAP", "--heap", "HEAP", "what malloc is",
     "libc, jemalloc (whose free memory is not saved) or jemalloc:huge (which asks for huge pages too)",
     "heap", nullptr, "docs/heap.md", kByRun, kHeaps, 0, 0, kOf<OneOf<&Settings::heap>>},
    {"CKPT_LOG",
     nullptr,
     "0|1",
     "a log in the image directory",
     "0 or 1",
     nullptr,
     nullptr,
     nullptr,
     0,
     {},
     0,
     0,
     kOf<Switch<&Settings::log>>},
    {"CKPT_DISABLE",
     nullptr,
     "0|1",
     "whether the library, though preloaded, sleeps",
     "0 or 1",
     nullptr,
     nullptr,
     nullptr,
     0,
     {},
     0,
     0,
     kOf<Switch<&Settings::disabled>>},
};

}  // namespace

CKPT_START_PATH std::span<const Setting> setting_table() { return kTable; }

const Setting* find_setting(std::string_view variable) {
  for (const Setting& s : kTable) {
    if (variable == s.variable) return &s;
  }
  return nullptr;
}

void accepted_by(const Setting& setting, SettingText& out) {
  if (setting.accepts != nullptr) return print_text(setting.accepts, out);
  char* at = out.text;
  for (size_t i = 0; i < setting.choices.size(); ++i) {
    const bool last = i + 1 == setting.choices.size();
    const auto room = static_cast<size_t>(out.text + sizeof(out.text) - 1 - at);
    at = fmt::format_to_n(at, room, "{}{}", i == 0 ? "" : last ? " or " : ", ", setting.choices[i].name).out;
  }
  *at = '\0';
}

const char* mode_name(Mode mode) { return choice_name(kModes, number(mode)); }
const char* saved_files_name(SavedFiles files) { return choice_name(kSavedFiles, number(files)); }
const char* order_name(Order order) { return choice_name(kOrders, number(order)); }
const char* fault_back_end_name(FaultBackEnd back_end) { return choice_name(kBackEnds, number(back_end)); }
const char* compression_name(Compression kind) { return choice_name(kCompressions, number(kind)); }

Result<CompressionSetting> parse_compression(const char* name, const char* text) {
  std::string_view word(text);
  const size_t colon = word.find(':');
  for (const Choice& c : kCompressions) {
    if (word.substr(0, colon) != c.name) continue;
    CompressionSetting setting{static_cast<Compression>(c.value), kDefaultZstdLevel};
    if (colon == std::string_view::npos) return setting;
    uint64_t level = 0;
    std::string_view rest;
    if (setting.kind == Compression::kZstd && leading_number(word.substr(colon + 1), &level, &rest) &&
        rest.empty() && level >= 1 && level <= uint64_t{kMostZstdLevel}) {
      setting.level = static_cast<int>(level);
      return setting;
    }
  }
  return make_error(ExitCode::kUsage, 0,
                    "{}='{}' is no compression; use none, lz4, zstd, zstd:1 to zstd:{} or auto", name, text,
                    kMostZstdLevel);
}

}  // namespace ckpt
