#include "copier/engines/dma_controller.h"

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "base/preload_rules.h"

namespace ckpt {

namespace {
constexpr uint32_t kStop = 1u << 31;
// How far the emulation may be ahead of the device's time before it sleeps: a sleep is not exact to less,
// and a burst of a fast device takes a few microseconds. In the long run the bandwidth is exact.
constexpr int64_t kAheadNs = 200'000;
}  // namespace

bool DmaController::reserve(Arena& arena, size_t card_bytes) {
  card_ = static_cast<std::byte*>(arena.allocate(card_bytes, 64));
  return card_ != nullptr;
}

void DmaController::trigger(unsigned channel) {
  // acq_rel, against pick(): either pick() clears the bit before we set it, and the bit stays; or pick()
  // clears our bit, and then sees the block that we made valid before.
  const uint32_t bit = 1u << channel;
  if ((awake_.fetch_or(bit, std::memory_order_acq_rel) & bit) == 0) futex_wake(awake_, 1);
}

void DmaController::stop() {
  awake_.fetch_or(kStop, std::memory_order_acq_rel);
  futex_wake(awake_, 1);
}

int64_t DmaController::duration_ns(uint32_t bytes) const {
  if (speed_.bytes_per_second == 0) return 0;
  return static_cast<int64_t>(uint64_t{bytes} * 1'000'000'000 / speed_.bytes_per_second);
}

void DmaController::pass(unsigned channel, ControlBlock& block, long result) {
  // release: a thread that sees the terminal bit sees the bytes as well.
  uint64_t word = block.next.fetch_or(ControlBlock::kTerminal, std::memory_order_release);
  position_[channel] = ControlBlock::next_of(word);
  observer_.passed(channel, block, result);
}

ControlBlock* DmaController::pick(unsigned* channel) {
  for (unsigned c = 0; c < kChannels;) {
    const uint32_t bit = 1u << c;
    if ((awake_.load(std::memory_order_acquire) & bit) == 0) {
      ++c;
      continue;
    }
    ControlBlock* block = position_[c];
    // acquire: the fields of a block were written before its terminal bit was cleared.
    auto terminal = [&] {
      uint64_t word = block->next.load(std::memory_order_acquire);
      return (word & ControlBlock::kTerminal) != 0 || ControlBlock::next_of(word) == nullptr;
    };
    if (block == nullptr || terminal()) {
      awake_.fetch_and(~bit, std::memory_order_acq_rel);
      // Made valid before the trigger whose bit was just cleared?
      if (block != nullptr && !terminal())
        awake_.fetch_or(bit, std::memory_order_acq_rel);
      else
        ++c;
      continue;
    }
    if (block->length.load(std::memory_order_relaxed) != 0) {
      *channel = c;
      return block;
    }
    counters_.passed_over.fetch_add(1, std::memory_order_relaxed);
    pass(c, *block, 0);
    c = 0;  // meanwhile a more important channel may have been triggered
  }
  return nullptr;
}

bool DmaController::execute(unsigned channel, ControlBlock& block) {
  uint32_t length = block.length.load(std::memory_order_relaxed);
  // Revoked since it was picked: the next pick() passes it over.
  if (length == 0 || !block.length.compare_exchange_strong(length, length | ControlBlock::kLatched,
                                                           std::memory_order_relaxed)) {
    return false;
  }
  long result = 0;
  if ((block.next.load(std::memory_order_relaxed) & ControlBlock::kToCard) != 0) {
    result = memory_.read(card_ + block.card, Addr{block.host}, length, block.readable != 0);
  } else {
    std::memcpy(Addr{block.host}.as(), card_ + block.card, length);
  }
  counters_.executed.fetch_add(1, std::memory_order_relaxed);
  counters_.bytes.fetch_add(length, std::memory_order_relaxed);
  pass(channel, block, result);
  return true;
}

void DmaController::run() {
  int64_t free_at = now_ns();
  for (;;) {
    const uint32_t awake = awake_.load(std::memory_order_acquire);
    if ((awake & kStop) != 0) return;
    unsigned channel = 0;
    ControlBlock* block = pick(&channel);
    if (block == nullptr) {
      // A trigger since then has changed the word, and the wait returns at once.
      const uint32_t now_awake = awake_.load(std::memory_order_acquire);
      if (now_awake == 0) futex_wait(awake_, 0);
      continue;
    }
    const int64_t length =
        duration_ns(block->length.load(std::memory_order_relaxed) & ~ControlBlock::kLatched);
    const int64_t now = now_ns();
    free_at = std::max(free_at, now) + length;
    if (free_at - now > kAheadNs) {
      // Before the copy: it must not be seen complete much earlier than the device would have it.
      timespec rest{(free_at - now) / 1'000'000'000, (free_at - now) % 1'000'000'000};
      sys::call(__NR_nanosleep, &rest, 0L);
    }
    if (!execute(channel, *block)) free_at -= length;
  }
}

void DmaController::run_until(int64_t deadline_ns) {
  for (;;) {
    unsigned channel = 0;
    ControlBlock* block = pick(&channel);
    // The device was idle, or busy with what has been revoked or overtaken since: this one begins now.
    if (block != working_on_) time_ns_ = std::max(time_ns_, last_deadline_ns_);
    working_on_ = block;
    if (block == nullptr) break;
    const int64_t end = time_ns_ + duration_ns(block->length.load(std::memory_order_relaxed));
    if (end > deadline_ns) break;
    time_ns_ = end;
    execute(channel, *block);
    // The next one begins when this one ended, not at the last deadline.
    unsigned next_channel = 0;
    working_on_ = pick(&next_channel);
    if (working_on_ == nullptr) break;
  }
  last_deadline_ns_ = deadline_ns;
}

}  // namespace ckpt
