// What all threads of a simulation share, and do not change while it runs but for the atomics named below.
//
// Owner:     ckpt_tw_run(), for one run. Callers: all threads of the engine.
#pragma once

#include <atomic>
#include <barrier>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "ckpt_timewarp.h"
#include "timewarp/engine/channel.h"
#include "timewarp/engine/gvt.h"
#include "timewarp/engine/lp.h"
#include "timewarp/engine/memory.h"

namespace ckpt::timewarp {

class Transport;
class Worker;

struct Failure {
  int code = CKPT_TW_OK;
  std::string text;
};

struct Setup {
  Setup(const ckpt_tw_model& m, const ckpt_tw_options& o);
  ~Setup();

  const ckpt_tw_model model;
  const ckpt_tw_options options;
  unsigned threads = 1;
  // LPs of this process: [first_lp, first_lp + local_lps), each `stride` bytes.
  uint32_t first_lp = 0, local_lps = 0;
  size_t stride = 0;
  std::byte* lps = nullptr;
  Regions lp_regions;
  size_t event_bytes = 0;           // of a block: event, message, and the state's copy if that is co-located
  size_t colocated_at = 0;          // offset of that copy; 0: none
  bool copy_behind_record = false;  // small states, a copy before each event: one block with the record
  std::vector<uint16_t> places;     // with model.place_of: the thread of each local LP
  uint32_t lps_a_thread = 1;
  uint64_t lps_a_thread_inverse = 0;  // 2^64 / lps_a_thread, rounded up
  Transport* transport = nullptr;     // nullptr: one process
  uint32_t lps_a_process = 1;
  int process_of(uint32_t id) const { return static_cast<int>(id / lps_a_process); }

  Lp& lp(uint32_t id) const { return *reinterpret_cast<Lp*>(lps + size_t{id - first_lp} * stride); }
  bool local(uint32_t id) const { return id - first_lp < local_lps; }
  // Of a local LP.
  unsigned thread_of(uint32_t id) const {
    if (threads == 1) return 0;
    const uint32_t at = id - first_lp;
    if (!places.empty()) return places[at];
    if (lps_a_thread == 1) return at;
    // at / lps_a_thread, exact for 32 bits (Lemire, Kaser and Kurz 2019): a division is felt in each message.
    return static_cast<unsigned>(static_cast<unsigned __int128>(lps_a_thread_inverse) * at >> 64);
  }

  // Optimistic engine.
  std::unique_ptr<Gvt> gvt;
  std::vector<std::unique_ptr<Channel>> channels;  // [from * threads + to]
  Channel& channel(unsigned from, unsigned to) { return *channels[from * threads + to]; }
  std::vector<std::unique_ptr<Worker>> workers;

  // The first failure wins; all threads leave when they see it.
  std::atomic<bool> failed{false};
  void fail(int code, std::string text) {
    std::lock_guard lock(failure_lock);
    if (failed.load(std::memory_order_relaxed)) return;
    failure = {code, std::move(text)};
    failed.store(true, std::memory_order_release);
  }
  // While the threads set up their LPs, each in the order of ids until one fails: the smallest LP wins, as in
  // a sequential run.
  void fail_setting_up(uint32_t lp, int code, std::string text) {
    std::lock_guard lock(failure_lock);
    if (failed.load(std::memory_order_relaxed) && failed_lp < lp) return;
    failed_lp = lp;
    failure = {code, std::move(text)};
    failed.store(true, std::memory_order_release);
  }
  std::mutex failure_lock;
  uint32_t failed_lp = ~uint32_t{0};
  Failure failure;
};

// "LP 3, event at 1.25 (message 17 of LP 9)"
std::string name_of(const Key& key, uint32_t receiver);

}  // namespace ckpt::timewarp
