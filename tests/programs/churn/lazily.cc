#include <sys/mman.h>

#include "tests/programs/victim.h"

using namespace victim;

namespace {

constexpr unsigned kSlots = 64;
constexpr uint64_t kSlotPages = 16;

// Each page of a slot holds the same number, but for a slot that is free: its pages are old or zero.
struct Slot {
  std::byte* start = nullptr;
  uint64_t value = 0;
  bool free = false;
};

void put(Slot& slot, uint64_t value) {
  for (uint64_t i = 0; i < kSlotPages; ++i)
    word_at(slot.start + i * kPage).store(value, std::memory_order_relaxed);
  slot.value = value;
  slot.free = false;
}

void check(const Slot& slot) {
  for (uint64_t i = 0; i < kSlotPages; ++i) {
    const uint64_t is = word_at(slot.start + i * kPage).load(std::memory_order_relaxed);
    require(is == slot.value || (slot.free && is == 0), "lazily: page {} holds {:x}, not {:x}{}", i, is,
            slot.value, slot.free ? " or 0" : "");
  }
}

// Memory that is given back by MADV_FREE stays until the kernel takes it, which it does here by MADV_PAGEOUT,
// and is used again after that.
std::string lazily(uint64_t iterations) {
  Slot slots[kSlots];
  // The pages between the slots keep them mappings of their own, and make a checkpoint last.
  constexpr uint64_t kBetween = 256;
  for (Slot& slot : slots) {
    slot.start = map_pages(kSlotPages + kBetween);
    for (uint64_t i = 0; i < kBetween; ++i) word_at(slot.start + (kSlotPages + i) * kPage).store(mix(i));
    madvise(slot.start, kSlotPages * kPage, MADV_NOHUGEPAGE);
    put(slot, 1);
  }
  Random random(400);
  constexpr uint64_t kFreeFor = 30'000;  // as long as memory is protected and copied
  for (uint64_t n = 2; n < iterations * 100; ++n) {
    const uint64_t phase = n % (2 * kFreeFor);
    if (phase == 0) {
      for (unsigned i = 0; i < kSlots; i += 2) {
        require_call(madvise(slots[i].start, kSlotPages * kPage, MADV_FREE) == 0, "madvise(MADV_FREE)");
        slots[i].free = true;
      }
    } else if (phase == kFreeFor) {
      for (unsigned i = 0; i < kSlots; i += 2) {
        madvise(slots[i].start, kSlotPages * kPage, MADV_PAGEOUT);
        check(slots[i]);
        put(slots[i], n);
      }
    }
    Slot& slot = slots[random.below(kSlots)];
    check(slot);
    if (!slot.free) put(slot, n);
  }
  for (Slot& slot : slots) check(slot);
  return fmt::format("{} steps", iterations * 100);
}

}  // namespace

int main(int argc, char** argv) {
  return victim::run_victim({"lazily",
                             "Gives memory back by MADV_FREE and uses it again.",
                             {{"lazily", "MADV_FREE, the kernel takes it, used again", 40'000, lazily}}},
                            argc, argv);
}
