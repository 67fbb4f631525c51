// Program memory for the tests: ordinary memory, of which parts can be made to vanish.
#pragma once

#include <errno.h>

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "copier/engines/copy_engine.h"

namespace ckpt {

class TestMemory final : public SourceMemory {
 public:
  long read(std::byte* to, Addr from, size_t bytes, bool readable) override {
    reads.fetch_add(1, std::memory_order_relaxed);
    if (!readable) unreadable_reads.fetch_add(1, std::memory_order_relaxed);
    if (!vanished.empty() && vanished.overlaps({from, from + bytes})) return -EFAULT;
    std::memcpy(to, from.as(), bytes);
    return 0;
  }
  AddrRange vanished{};  // not while a device runs
  std::atomic<uint64_t> reads{0}, unreadable_reads{0};
};

class TestListener final : public CopyListener {
 public:
  void copied(uint64_t cookie, long result) override {
    std::lock_guard lock(mutex);
    ++times[cookie];
    results[cookie] = result;
    order.push_back(cookie);
  }
  std::mutex mutex;
  std::map<uint64_t, int> times;
  std::map<uint64_t, long> results;
  std::vector<uint64_t> order;
};

// Bytes that differ from place to place.
inline std::vector<std::byte> pattern(size_t bytes, uint32_t seed) {
  std::vector<std::byte> v(bytes);
  for (size_t i = 0; i < bytes; ++i) v[i] = static_cast<std::byte>((i * 2654435761u + seed * 40503u) >> 13);
  return v;
}

}  // namespace ckpt
