#include "libckpt_rt/core/threads/own_dispatch.h"

#include <sys/prctl.h>

#include <atomic>

#include "base/large_table.h"
#include "base/sys.h"
#include "libckpt_rt/core/preload_rules.h"

#ifndef PR_GET_TID_ADDRESS
#define PR_GET_TID_ADDRESS 40
#endif

extern "C" {
struct CkptDispatchWords {
  uint64_t rax, selector, target;
};
[[gnu::visibility(
    "hidden")]] CKPT_LARGE_TABLE CkptDispatchWords ckpt_dispatch_words[ckpt::own_dispatch::kMost];
void ckpt_dispatch_returns();
}

namespace ckpt::own_dispatch {

namespace {

constexpr int kSetDispatch = 59;  // PR_SET_SYSCALL_USER_DISPATCH, linux/prctl.h of 5.11
constexpr uint8_t kAllow = 0, kBlock = 1;
constexpr uint64_t kSlotBytes = 32, kRaxTaken = 14, kRaxBack = 24;  // own_dispatch.S

// A thread is known by its thread pointer, since to ask for its number would be a system call. The next thread with that
// pointer has another number in the word that the kernel clears at a thread's end.
struct Place {
  std::atomic<uint64_t> thread_pointer;  // 0: free; taken for good
  const int* tid_word;
  int tid;
  Call call;
  uint8_t own_selector;
  bool blocked;  // in a Pause: its selector said so
};
CKPT_LARGE_TABLE constinit Place places[kMost]{};
constinit std::atomic<bool> any{false}, full{false};

uint64_t own_thread_pointer() { return reinterpret_cast<uint64_t>(__builtin_thread_pointer()); }

Place* place_of(uint64_t thread_pointer, bool take) {
  for (Place& place : places) {
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

// nullptr: the calling thread catches none.
Place* own_place() {
  if (!any.load(std::memory_order_relaxed)) return nullptr;
  Place* place = place_of(own_thread_pointer(), false);
  return place != nullptr && place->call.mode != 0 && *place->tid_word == place->tid ? place : nullptr;
}

volatile uint8_t& selector_of(const Place& place) {
  return *reinterpret_cast<volatile uint8_t*>(place.call.selector);
}

uint64_t return_of(const Place& place) {
  return reinterpret_cast<uint64_t>(&ckpt_dispatch_returns) +
         static_cast<uint64_t>(&place - places) * kSlotBytes;
}

// Has the signal found it on its way back? Then it is there already.
bool put_right(const Place& place, ucontext_t& frame) {
  greg_t* r = frame.uc_mcontext.gregs;
  const uint64_t at = static_cast<uint64_t>(r[REG_RIP]) - return_of(place);
  if (at >= kSlotBytes) return false;
  const CkptDispatchWords& words = ckpt_dispatch_words[&place - places];
  if (at >= kRaxTaken && at < kRaxBack) r[REG_RAX] = static_cast<greg_t>(words.rax);
  r[REG_RIP] = static_cast<greg_t>(words.target);
  return true;
}

void return_blocked(const Place& place, ucontext_t& frame) {
  CkptDispatchWords& words = ckpt_dispatch_words[&place - places];
  words.selector = static_cast<uint64_t>(place.call.selector);
  words.target = static_cast<uint64_t>(frame.uc_mcontext.gregs[REG_RIP]);
  frame.uc_mcontext.gregs[REG_RIP] = static_cast<greg_t>(return_of(place));
}

}  // namespace

Note before_call(int tid, Call& call) {
  Place* place = place_of(own_thread_pointer(), call.mode != 0);
  if (place == nullptr) {
    if (call.mode != 0) full.store(true, std::memory_order_relaxed);
    return {};
  }
  const Note note{static_cast<uint32_t>(place - places) + 1, place->tid == tid ? place->call : Call{}};
  if (call.mode == 0) return note;
  place->call.mode = 0;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  const int* tid_word = nullptr;
  sys::call(__NR_prctl, PR_GET_TID_ADDRESS, &tid_word);
  place->tid_word = tid_word != nullptr ? tid_word : &place->tid;
  place->tid = tid;
  place->own_selector = kBlock;
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
  if (call.mode != 0 && !succeeded) place.call = note.before;
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
  if (place == nullptr) return 0;
  const Call& c = place->call;
  return sys::call(__NR_prctl, kSetDispatch, c.mode, c.offset, c.length, c.selector);
}

void return_into(ucontext_t* frame) {
  const Place* place = own_place();
  if (place != nullptr && place->blocked) return_blocked(*place, *frame);
}

}  // namespace ckpt::own_dispatch
