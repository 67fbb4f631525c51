// A table with a place for each thread that has something the kernel shows to nobody (own_dispatch,
// own_rseq). A thread is known by its thread pointer, since to ask for its number would be a system call.
//
// Owner:     who has the table. Header only.
// Callers:   threads of the program, also in handlers: without a lock. A place that is taken stays taken.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace ckpt {

// The place of that thread; nullptr: none. take: a free one becomes its own.
// Place: has a std::atomic<uint64_t> thread_pointer, 0: free.
template <typename Place, size_t kPlaces>
Place* place_of_thread(Place (&places)[kPlaces], uint64_t thread_pointer, bool take) {
  const uint64_t hash = (thread_pointer >> 6) * 0x9e3779b97f4a7c15u >> 32;
  for (size_t i = 0; i < kPlaces; ++i) {
    Place& place = places[(hash + i) % kPlaces];
    // relaxed: what is behind it is read by the thread that wrote it.
    uint64_t owner = place.thread_pointer.load(std::memory_order_relaxed);
    if (owner == thread_pointer) return &place;
    if (owner != 0) continue;
    if (!take) return nullptr;
    if (place.thread_pointer.compare_exchange_strong(owner, thread_pointer, std::memory_order_relaxed))
      return &place;
  }
  return nullptr;
}

}  // namespace ckpt
