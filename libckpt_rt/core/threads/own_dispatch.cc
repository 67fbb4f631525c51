#include "libckpt_rt/core/threads/own_dispatch.h"

#include <sys/prctl.h>

#include <atomic>

#include "base/memory/large_table.h"
#include "base/sys.h"
#include "libckpt_rt/core/threads/thread_places.h"
#include "libckpt_rt/core/preload_rules.h"

#ifndef PR_GET_TID_ADDRESS
#define PR_GET_TID_ADDRESS 40
#endif

extern "C" {
struct CkptDispatchWords {
  uint64_t rax, selector, target, in_use;
};
[[gnu::visibility("hidden")]] CKPT_LARGE_TABLE constinit CkptDispatchWords
    ckpt_dispatch_words[ckpt::own_dispatch::kMost * ckpt::own_dispatch::kWaysBack]{};
void ckpt_dispatch_returns();
}

namespace ckpt::own_dispatch {

namespace {

constexpr int kSetDispatch = 59;  // PR_SET_SYSCALL_USER_DISPATCH, linux/prctl.h of 5.11
constexpr uint8_t kAllow = 0, kBlock = 1;
constexpr uint64_t kSlotBytes = 64, kRaxTaken = 14, kRaxBack = 24;  // own_dispatch.S

// A thread is known by its thread pointer (thread_places.h). The next thread with that pointer has another
// number in the word that the kernel clears at a thread's end.
struct Place {
  std::atomic<uint64_t> thread_pointer;  // 0: free; taken for good
  const int* tid_word;
  int tid;
  Call call;
  uint8_t own_selector;
  uint8_t last_way;
  bool turning_off;  // a call that turns it off is under way: it may be done already
  bool blocked;      // in a Pause: its selector said so
};
CKPT_LARGE_TABLE constinit Place places[kMost]{};
constinit std::atomic<bool> any{false}, full{false};

uint64_t own_thread_pointer() { return reinterpret_cast<uint64_t>(__builtin_thread_pointer()); }

// nullptr: the calling thread catches none.
Place* own_place() {
  if (!any.load(std::memory_order_relaxed)) return nullptr;
  Place* place = place_of_thread(places, own_thread_pointer(), false);
  return place != nullptr && place->call.mode != 0 && *place->tid_word == place->tid ? place : nullptr;
}

volatile uint8_t& selector_of(const Place& place) {
  return *reinterpret_cast<volatile uint8_t*>(place.call.selector);
}

uint64_t first_way_of(const Place& place) { return static_cast<uint64_t>(&place - places) * kWaysBack; }

uint64_t address_of(uint64_t way) {
  return reinterpret_cast<uint64_t>(&ckpt_dispatch_returns) + way * kSlotBytes;
}

// Has the signal found it on its way back? Then it is there already.
bool put_right(const Place& place, ucontext_t& frame) {
  greg_t* r = frame.uc_mcontext.gregs;
  const uint64_t at = static_cast<uint64_t>(r[REG_RIP]) - address_of(first_way_of(place));
  if (at >= kWaysBack * kSlotBytes) return false;
  CkptDispatchWords& words = ckpt_dispatch_words[first_way_of(place) + at / kSlotBytes];
  const uint64_t in_slot = at % kSlotBytes;
  if (in_slot >= kRaxTaken && in_slot < kRaxBack) r[REG_RAX] = static_cast<greg_t>(words.rax);
  r[REG_RIP] = static_cast<greg_t>(words.target);
  words.in_use = 0;
  return true;
}

// A way is in use as long as a handler of the program interrupts it. A thread that has jumped out of such a
// handler never gives its way back: where none is free, the way that was taken longest ago is taken again.
uint64_t take_way(Place& place) {
  const uint64_t first = first_way_of(place);
  for (uint32_t i = 0; i < kWaysBack; ++i) {
    place.last_way = static_cast<uint8_t>((place.last_way + 1) % kWaysBack);
    if (ckpt_dispatch_words[first + place.last_way].in_use == 0) return first + place.last_way;
  }
  place.last_way = static_cast<uint8_t>((place.last_way + 1) % kWaysBack);
  return first + place.last_way;
}

void return_blocked(Place& place, ucontext_t& frame) {
  const uint64_t way = take_way(place);
  CkptDispatchWords& words = ckpt_dispatch_words[way];
  words.in_use = 1;
  words.selector = static_cast<uint64_t>(place.call.selector);
  words.target = static_cast<uint64_t>(frame.uc_mcontext.gregs[REG_RIP]);
  frame.uc_mcontext.gregs[REG_RIP] = static_cast<greg_t>(address_of(way));
}

}  // namespace

Note before_call(int tid, Call& call) {
  Place* place = place_of_thread(places, own_thread_pointer(), call.mode != 0);
  if (place == nullptr) {
    if (call.mode != 0) full.store(true, std::memory_order_relaxed);
    return {};
  }
  const Note note{static_cast<uint32_t>(place - places) + 1, place->tid == tid ? place->call : Call{}};
  if (call.mode == 0) {
    // Any argument beside it is an error.
    place->turning_off = call.offset == 0 && call.length == 0 && call.selector == 0;
    return note;
  }
  place->call.mode = 0;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  const int* tid_word = nullptr;
  sys::call(__NR_prctl, PR_GET_TID_ADDRESS, &tid_word);
  place->tid_word = tid_word != nullptr ? tid_word : &place->tid;
  place->tid = tid;
  place->own_selector = kBlock;
  place->turning_off = false;
  if (call.selector == 0) call.selector = reinterpret_cast<long>(&place->own_selector);
  place->call = {0, call.offset, call.length, call.selector};
  any.store(true, std::memory_order_relaxed);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  place->call.mode = call.mode;
  return note;
}

void after_call(const Note& note, const Call& call, bool succeeded) {
  if (note.place == 0) return;
  Place& place = places[note.place - 1];
  if (call.mode == 0 && succeeded) place.call.mode = 0;
  if (call.mode == 0) place.turning_off = false;
  if (call.mode != 0 && !succeeded) place.call = note.before;
}

bool share_a_selector() {
  if (!any.load(std::memory_order_relaxed)) return false;
  auto catches = [](const Place& p) {
    return p.thread_pointer.load(std::memory_order_relaxed) != 0 && p.call.mode != 0 &&
           sys::call(__NR_tgkill, sys::getpid(), p.tid, 0) == 0;
  };
  for (uint32_t i = 1; i < kMost; ++i) {
    for (uint32_t k = 0; k < i; ++k) {
      if (places[i].call.selector != 0 && places[i].call.selector == places[k].call.selector &&
          catches(places[i]) && catches(places[k]))
        return true;
    }
  }
  return false;
}

bool is_full() { return full.load(std::memory_order_relaxed); }

Pause::Pause(ucontext_t* frame) : frame_(frame) {
  Place* place = own_place();
  if (place == nullptr) return;
  place->blocked = put_right(*place, *frame) || selector_of(*place) == kBlock;
  if (place->blocked) selector_of(*place) = kAllow;
}

Pause::~Pause() { return_into(frame_); }

bool is_used() { return any.load(std::memory_order_relaxed); }

void give_up() {
  if (own_place() != nullptr) sys::call(__NR_prctl, kSetDispatch, 0L, 0L, 0L, 0L);
}

long set_again() {
  const Place* place = own_place();
  if (place == nullptr || place->turning_off) return 0;
  const Call& c = place->call;
  return sys::call(__NR_prctl, kSetDispatch, c.mode, c.offset, c.length, c.selector);
}

void return_into(ucontext_t* frame) {
  Place* place = own_place();
  if (place != nullptr && place->blocked) return_blocked(*place, *frame);
}

}  // namespace ckpt::own_dispatch
