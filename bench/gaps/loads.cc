#include "bench/gaps/loads.h"

#include <algorithm>
#include <atomic>

#include "bench/common.h"

namespace bench {
namespace {

constexpr uint64_t kPageWords = 4096 / sizeof(uint64_t);
constexpr uint64_t kEntryWords = 64 / sizeof(uint64_t);
constexpr uint64_t kStepRecords = 64;

std::span<uint64_t> share_of_memory(std::span<uint64_t> memory, unsigned thread, unsigned threads) {
  Share share = share_of(memory.size() / kPageWords, thread, threads);
  return memory.subspan(share.first * kPageWords, (share.last - share.first) * kPageWords);
}

void page(std::span<uint64_t> own, Random random, Recorder& recorder) {
  const uint64_t pages = own.size() / kPageWords;
  do {
    auto* word = const_cast<volatile uint64_t*>(&own[random.below(pages) * kPageWords]);
    *word = *word + 1;
  } while (recorder.step());
}

void uniform(std::span<uint64_t> memory, Random random, Recorder& recorder) {
  do {
    // relaxed: threads may meet in a word, and any of their values will do.
    std::atomic_ref(memory[random.below(memory.size())]).store(random.next(), std::memory_order_relaxed);
  } while (recorder.step());
}

void server(std::span<uint64_t> memory, Random random, Recorder& recorder) {
  const uint64_t entries = memory.size() / kEntryWords;
  uint64_t sum = 0;
  do {
    // The fourth power of a uniform number: half of all requests go to one sixteenth of the entries.
    double u = static_cast<double>(random.next() >> 11) * 0x1p-53;
    auto rank = static_cast<uint64_t>(u * u * u * u * static_cast<double>(entries));
    uint64_t* entry = &memory[mix(rank) % entries * kEntryWords];
    for (uint64_t i = 1; i < kEntryWords; ++i)
      sum += std::atomic_ref(entry[i]).load(std::memory_order_relaxed);
    if (random.below(10) == 0) {
      std::atomic_ref(entry[0]).fetch_add(1, std::memory_order_relaxed);
      std::atomic_ref(entry[1]).store(sum, std::memory_order_relaxed);
    }
  } while (recorder.step());
}

// Bottom up, from one half of the share to the other and back, again and again with new records.
void sort(std::span<uint64_t> own, Random random, Recorder& recorder) {
  const size_t n = own.size() / 2;
  std::span<uint64_t> from = own.first(n), to = own.subspan(n, n);
  for (;;) {
    for (size_t i = 0; i < n; ++i) {
      from[i] = random.next();
      if (i % kStepRecords == 0 && !recorder.step()) return;
    }
    for (size_t width = 1; width < n; width *= 2) {
      for (size_t first = 0, done = 0; first < n; first += 2 * width) {
        const size_t middle = std::min(first + width, n), last = std::min(first + 2 * width, n);
        size_t left = first, right = middle;
        for (size_t out = first; out < last; ++out) {
          bool take_left = right == last || (left < middle && from[left] <= from[right]);
          to[out] = take_left ? from[left++] : from[right++];
          if (++done % kStepRecords == 0 && !recorder.step()) return;
        }
      }
      std::swap(from, to);
    }
  }
}

}  // namespace

void run_load(Load load, std::span<uint64_t> memory, unsigned thread, unsigned threads, uint64_t seed,
              Recorder& recorder) {
  Random random(seed + thread);
  switch (load) {
    case Load::kIdle:
      while (recorder.step()) {
      }
      return;
    case Load::kPage:
      return page(share_of_memory(memory, thread, threads), random, recorder);
    case Load::kUniform:
      return uniform(memory, random, recorder);
    case Load::kServer:
      return server(memory, random, recorder);
    case Load::kSort:
      return sort(share_of_memory(memory, thread, threads), random, recorder);
  }
}

}  // namespace bench
