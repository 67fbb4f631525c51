// Settings: what the user has set, read once from CKPT_* variables of the environment by the library, and
// built by `ckpt run` from its options. One parser for both, so that they agree;
// base/settings/settings_table.h says of each variable what it accepts and means.
//
// What a checkpoint has made of them (a size of segments that was chosen, a mode that this machine allows) is
// not here: libckpt_rt/checkpoint/in_force.h.
//
// Owner:     base. Callers: the library's constructor, `ckpt run`, `ckpt check`. parse_settings() allocates
//            nothing.
#pragma once

#include <cstdint>

#include "base/protocol/control_protocol.h"
#include "base/result.h"

namespace ckpt {

// Images hold the number.
enum class Mode : uint32_t {
  kAuto = 0,
  kRealtime,
  kSequential,
  kFork,
  kConcurrent,
  kRealtimeLarge,
  kStanding
};
const char* mode_name(Mode mode);

inline constexpr uint32_t kMaxIncrements = 254;
inline constexpr uint32_t kMostKept = 1024;

// How memory is stored: kAuto measures while it writes whether lz4 makes an image durable sooner.
enum class Compression : uint32_t { kNone = 0, kLz4, kZstd, kAuto };
inline constexpr uint32_t kLeastBurst = 512, kMostBurst = 256 << 10;  // bytes
inline constexpr int kDefaultZstdLevel = 1, kMostZstdLevel = 19;
struct CompressionSetting {
  Compression kind = Compression::kNone;
  int level = kDefaultZstdLevel;  // of zstd, 1 to kMostZstdLevel
};
// "none", "lz4", "zstd", "zstd:LEVEL", "auto". Errors name the setting.
Result<CompressionSetting> parse_compression(const char* name, const char* text);
const char* compression_name(Compression kind);

// In which order segments are copied: copier/copy_order.h.
enum class Order : uint32_t { kAddress = 0, kFollow, kHot, kCold };
const char* order_name(Order order);

// What malloc is: kJemalloc is libckpt_heap.so, which `ckpt run` preloads. That library reads for itself
// whether it is to ask for huge pages.
enum class Heap : uint32_t { kLibc = 0, kJemalloc, kJemallocHuge };

// Who handles a write to a protected page (docs/fault_back_ends.md): a thread of ours, or the thread that
// writes.
enum class FaultBackEnd : uint32_t { kAuto = 0, kHandler, kInThread, kMprotect };
const char* fault_back_end_name(FaultBackEnd back_end);

// How files that the program has open are saved beside an image, in case they are removed, renamed or
// overwritten before a restart (docs/descriptors.md).
enum class SavedFiles : uint32_t { kAuto = 0, kNone, kLinks, kCopies };
const char* saved_files_name(SavedFiles files);

// The defaults are those of the table.
struct Settings {
  char directory[1024] = {};  // CKPT_DIR; empty: "ckpt-NAME.PID" in the current directory
  char to[2048] = {};         // CKPT_TO; empty: a file of the directory
  int64_t every_ns = 0;       // 0: never
  bool every_auto = false;    // every_ns is the first; from then on as base/settings/best_interval.h says
  int64_t mtbf_ns = 0;        // mean time between failures; 0: as this program has seen it
  Mode mode = Mode::kAuto;
  FaultBackEnd faults = FaultBackEnd::kAuto;
  uint64_t segment_bytes = 64 << 10;  // a power of two
  bool segment_auto = false;  // segment_bytes is where it begins; copier/segment_size.h chooses from there
  uint64_t pool_bytes = 64ull << 20;
  int signal = kDefaultCheckpointSignal;
  int64_t stop_timeout_ns = 2'000'000'000;
  int64_t prepare_timeout_ns = 5'000'000'000;  // of what plug-ins do ahead of the stop
  CompressionSetting compress;
  char key_file[1024] = {};           // empty: images are not encrypted
  uint32_t images_to_keep = 2;        // 0: all
  bool dma = false;                   // CKPT_ENGINE: the emulated device
  uint64_t dma_bytes_per_second = 0;  // 0: as fast as the CPU copies
  uint32_t dma_threshold = 50;        // percent: Copier::use()
  uint32_t dma_burst_bytes = 4096;    // of one transfer
  uint32_t increments = 0;
  Order order = Order::kAddress;
  SavedFiles files = SavedFiles::kAuto;
  Heap heap = Heap::kLibc;
  char leave_out[sizeof(LeaveOutList::text)] = {};
  bool disabled = false;
  bool log = true;
};

// lookup(name) gives the variable's value or nullptr.
using SettingLookup = const char* (*)(const char* name, void* context);
Result<Settings> parse_settings(SettingLookup lookup, void* context);

// "64K", "1M", "2G", "4096" -> bytes. Errors name the setting.
Result<uint64_t> parse_size(const char* name, const char* text);
// "250ms", "30s", "5m", "2h", "90" (seconds) -> nanoseconds.
Result<int64_t> parse_duration(const char* name, const char* text);

}  // namespace ckpt
