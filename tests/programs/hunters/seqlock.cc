#include "tests/programs/hunters/hunters.h"

namespace hunters {

using namespace victim;

namespace {

constexpr uint64_t kLocks = 64;
constexpr uint64_t kWords = 5;  // of one lock, each on a page of its own

// Lock i: a sequence number on one page (odd while it is written) and kWords copies of the value.
class Locks {
 public:
  Locks() : pages_(map_pages(kLocks * (kWords + 1))) {}
  std::atomic<uint64_t>& sequence(uint64_t lock) { return word_at(pages_ + lock * kPage); }
  std::atomic<uint64_t>& word(uint64_t lock, uint64_t w) {
    return word_at(pages_ + (kLocks + w * kLocks + (lock * 29 + w) % kLocks) * kPage);
  }

 private:
  std::byte* pages_;
};

}  // namespace

std::string seqlock(uint64_t iterations) {
  Locks locks;
  std::atomic<bool> done{false};
  auto read = [&](unsigned reader) {
    Random random(reader);
    uint64_t newest[kLocks] = {};
    while (!done.load(std::memory_order_relaxed)) {
      uint64_t lock = random.below(kLocks);
      // acquire: the words are read after the sequence number …
      uint64_t before = locks.sequence(lock).load(std::memory_order_acquire);
      if (before % 2 != 0) continue;
      uint64_t words[kWords];
      for (uint64_t w = 0; w < kWords; ++w) words[w] = locks.word(lock, w).load(std::memory_order_relaxed);
      // … and before it is read again.
      std::atomic_thread_fence(std::memory_order_acquire);
      if (locks.sequence(lock).load(std::memory_order_relaxed) != before) continue;
      for (uint64_t w = 0; w < kWords; ++w) {
        require(words[w] == before * 1000 + w, "seqlock: lock {} at {}: word {} is {}", lock, before, w,
                words[w]);
      }
      require(before >= newest[lock], "seqlock: lock {} went back from {} to {}", lock, newest[lock], before);
      newest[lock] = before;
    }
  };
  for (uint64_t l = 0; l < kLocks; ++l) {
    for (uint64_t w = 0; w < kWords; ++w) locks.word(l, w).store(w, std::memory_order_relaxed);
  }
  run_threads(3, [&](unsigned t) {
    if (t != 0) {
      read(t);
      return;
    }
    for (uint64_t n = 0; n < iterations; ++n) {
      uint64_t lock = n % kLocks;
      uint64_t sequence = n / kLocks * 2;
      uint64_t found = locks.sequence(lock).load(std::memory_order_relaxed);
      require(found == sequence, "seqlock: writer finds lock {} at {}, not {}", lock, found, sequence);
      locks.sequence(lock).store(sequence + 1, std::memory_order_relaxed);
      // release: nobody sees a new word under the old even sequence number.
      std::atomic_thread_fence(std::memory_order_release);
      for (uint64_t w = 0; w < kWords; ++w) {
        uint64_t old = locks.word(lock, w).load(std::memory_order_relaxed);
        require(old == sequence * 1000 + w, "seqlock: writer finds word {} of lock {} at {}", w, lock, old);
        locks.word(lock, w).store((sequence + 2) * 1000 + w, std::memory_order_relaxed);
      }
      locks.sequence(lock).store(sequence + 2, std::memory_order_release);
    }
    done.store(true, std::memory_order_relaxed);
  });
  return fmt::format("{} writes to {} locks", iterations, kLocks);
}

}  // namespace hunters
