#include "copier/engines/dma_copy_engine.h"

#include <algorithm>
#include <new>
#include "base/preload_rules.h"

namespace ckpt {

namespace {

// A ticket: priority, slot, use.
constexpr unsigned kSlotShift = 40, kPriorityShift = 63;
constexpr uint64_t kUseMask = (1ull << kSlotShift) - 1;
constexpr uint64_t kSlotMask = (1ull << (kPriorityShift - kSlotShift)) - 1;

}  // namespace

uint32_t DmaCopyEngine::blocks_per_slot(const DmaSettings& s) {
  // Runs of pages may begin anywhere: in the worst case every page is one, with a burst or more of its own.
  const uint64_t pages = (s.most_bytes + kPageSize - 1) / kPageSize;
  const uint64_t bursts_a_page =
      (std::min<uint64_t>(kPageSize, s.most_bytes) + s.burst_bytes - 1) / s.burst_bytes;
  return static_cast<uint32_t>(2 * pages * bursts_a_page);
}

size_t DmaCopyEngine::arena_bytes(const DmaSettings& s) {
  const size_t channel = s.slots * (sizeof(Slot) + blocks_per_slot(s) * sizeof(ControlBlock)) + 256;
  return kPriorities * (channel + s.burst_bytes) + 256;
}

bool DmaCopyEngine::reserve(Arena& arena) {
  // The card's memory: a burst for each channel, since a burst of one may come between the two transfers
  // of another.
  if (!controller_.reserve(arena, size_t{kPriorities} * settings_.burst_bytes)) return false;
  const size_t blocks = blocks_per_slot(settings_);
  for (unsigned p = 0; p < kPriorities; ++p) {
    Channel& c = channels_[p];
    c.slots = static_cast<Slot*>(arena.allocate(settings_.slots * sizeof(Slot), 64));
    c.blocks =
        static_cast<ControlBlock*>(arena.allocate(settings_.slots * blocks * sizeof(ControlBlock), 64));
    if (c.slots == nullptr || c.blocks == nullptr) return false;
    for (uint32_t i = 0; i < settings_.slots; ++i) new (&c.slots[i]) Slot;
    for (size_t i = 0; i < settings_.slots * blocks; ++i) new (&c.blocks[i]) ControlBlock;
    controller_.set_base(channel_of(p), c.blocks);
  }
  return true;
}

bool DmaCopyEngine::submit(const CopyRequest& request, CopyPriority priority, CopyTicket* ticket) {
  const auto p = static_cast<unsigned>(priority);
  Channel& channel = channels_[p];
  {
    ScopedLock lock(channel.lock);
    const uint32_t number = channel.next_slot;
    Slot& slot = channel.slots[number];
    // acquire: the device and the last owner are through with the slot.
    const uint64_t state = slot.state.load(std::memory_order_acquire);
    if ((state & 3) != kFree || request.bytes == 0 || request.bytes > settings_.most_bytes) {
      counters_.refused.fetch_add(1, std::memory_order_relaxed);
      return false;
    }
    ControlBlock* const blocks = blocks_of(channel, number);
    uint32_t used = 0;
    (void)for_each_run(request, [&](uint64_t offset, uint64_t bytes) -> long {
      for (uint64_t done = 0; done < bytes;) {
        const auto burst = static_cast<uint32_t>(std::min<uint64_t>(bytes - done, settings_.burst_bytes));
        for (bool to_card : {true, false}) {
          ControlBlock& b = blocks[used++];
          b.card = p * settings_.burst_bytes;
          b.host =
              to_card ? (request.from + offset + done).value : Addr::of(request.to + offset + done).value;
          b.readable = request.readable ? 1 : 0;
          b.bytes = burst;
          b.length.store(burst, std::memory_order_relaxed);
        }
        done += burst;
      }
      return 0;
    });
    if (used == 0) {  // no page at all: one block that is passed over carries the copy through the queue
      blocks[0].length.store(0, std::memory_order_relaxed);
      used = 1;
    }
    slot.passed.store(0, std::memory_order_relaxed);
    slot.holders.store(2, std::memory_order_relaxed);
    slot.blocks = used;
    slot.cookie = request.cookie;
    slot.result = 0;
    const uint64_t use = ((state >> 2) + 1) & kUseMask;
    ticket->value = use | uint64_t{number} << kSlotShift | uint64_t{p} << kPriorityShift;
    slot.state.store(use << 2 | kQueued, std::memory_order_release);
    channel.next_slot = (number + 1) % settings_.slots;
    // From the last to the first: the device cannot come in before all is valid. release: see pick().
    ControlBlock* next = blocks_of(channel, channel.next_slot);
    for (uint32_t i = used; i-- > 0;) {
      const uint64_t direction = i % 2 == 0 ? ControlBlock::kToCard : 0;
      blocks[i].next.store(reinterpret_cast<uint64_t>(next) | direction, std::memory_order_release);
      next = &blocks[i];
    }
  }
  counters_.accepted.fetch_add(1, std::memory_order_relaxed);
  controller_.trigger(channel_of(p));
  return true;
}

void DmaCopyEngine::drop(Slot& slot) {
  // acq_rel: the holder that frees the slot has seen the other holder's last use of the slot.
  if (slot.holders.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    const uint64_t state = slot.state.load(std::memory_order_relaxed);
    slot.state.store((state & ~3ull) | kFree, std::memory_order_release);
  }
}

void DmaCopyEngine::passed(unsigned channel_number, ControlBlock& block, long result) {
  Channel& channel = channels_[channel_number / 2];
  const auto position = static_cast<size_t>(&block - channel.blocks);
  const auto number = static_cast<uint32_t>(position / blocks_per_slot(settings_));
  const auto index = static_cast<uint32_t>(position % blocks_per_slot(settings_));
  Slot& slot = channel.slots[number];
  if (result != 0 && slot.result == 0) {
    slot.result = result;
    // The rest of the copy is of no use without this burst.
    for (uint32_t i = index + 1; i < slot.blocks; ++i) (void)blocks_of(channel, number)[i].revoke();
  }
  const bool last = index + 1 == slot.blocks;
  // seq_cst: either await_passed() sees the count, or we see that it waits.
  slot.passed.store(index + 1, std::memory_order_seq_cst);
  if (slot.waiting.load(std::memory_order_seq_cst) != 0) futex_wake(slot.passed);
  if (!last) return;
  uint64_t state = slot.state.load(std::memory_order_relaxed);
  // acq_rel: against resync(), which takes the copy or leaves it to us.
  if ((state & 3) == kQueued &&
      slot.state.compare_exchange_strong(state, (state & ~3ull) | kDone, std::memory_order_acq_rel)) {
    listener_.copied(slot.cookie, slot.result);
    drop(slot);
  }
  drop(slot);
}

void DmaCopyEngine::await_passed(Slot& slot, uint32_t index) {
  slot.waiting.fetch_add(1, std::memory_order_seq_cst);
  for (uint32_t p; (p = slot.passed.load(std::memory_order_seq_cst)) <= index;) futex_wait(slot.passed, p);
  slot.waiting.fetch_sub(1, std::memory_order_relaxed);
}

Resync DmaCopyEngine::resync(CopyTicket ticket, uint32_t threshold) {
  if (ticket.value == 0) return Resync::kDone;
  Channel& channel = channels_[ticket.value >> kPriorityShift];
  const auto number = static_cast<uint32_t>(ticket.value >> kSlotShift & kSlotMask);
  Slot& slot = channel.slots[number];
  uint64_t state = (ticket.value & kUseMask) << 2 | kQueued;
  if (!slot.state.compare_exchange_strong(state, (state & ~3ull) | kTaken, std::memory_order_acq_rel)) {
    return Resync::kDone;
  }
  ControlBlock* const blocks = blocks_of(channel, number);
  const uint64_t progress = slot.passed.load(std::memory_order_acquire);
  // From the last to the first: what is revoked forms the end of the chain, and the device is in the last
  // of the others at most. Wait for that one: then nobody but us touches source and buffer.
  uint32_t left = slot.blocks;
  while (left > 0 && blocks[left - 1].revoke()) --left;
  if (left > 0) await_passed(slot, left - 1);
  Resync outcome = Resync::kAborted;
  if (progress * 100 >= uint64_t{threshold} * slot.blocks) {
    // `result` was written before the count that we have waited for.
    outcome = slot.result == 0 ? Resync::kCommitted : Resync::kFailed;
    // The second block of a pair brings its burst into the buffer: begin with the first that did not.
    for (uint32_t i = left / 2 * 2; i + 1 < slot.blocks && outcome == Resync::kCommitted; i += 2) {
      const ControlBlock &in = blocks[i], &out = blocks[i + 1];
      if (memory_.read(Addr{out.host}.as(), Addr{in.host}, in.bytes, in.readable != 0) != 0)
        outcome = Resync::kFailed;
      counters_.finished_bytes.fetch_add(in.bytes, std::memory_order_relaxed);
    }
  }
  (outcome == Resync::kAborted ? counters_.aborted : counters_.committed)
      .fetch_add(1, std::memory_order_relaxed);
  drop(slot);
  return outcome;
}

}  // namespace ckpt
