// The guard ahead of the checkpoint's stop: memory is being protected while the threads run under it.
//
// docs/fault_back_ends.md, "Ahead of the stop", has the protocol. In short: a thread's own store makes its
// segment kWritten, which may be protected again; what the kernel may write to becomes kUnsettled, which is
// not, until the stop. The thread makes both changes, with the lock that the agent holds while it protects.
#include <linux/futex.h>
#include <sys/prctl.h>

#include "libckpt_rt/core/threads/thread_context.h"
#include "libckpt_rt/guard/guarded_memory.h"
#include "libckpt_rt/guard/record.h"
#include "libckpt_rt/interpose/waits/interrupted_call.h"
#include "libckpt_rt/protect/arming.h"
#include "libckpt_rt/stop/stop_state.h"
#include "libckpt_rt/core/preload_rules.h"

#ifndef PR_GET_TID_ADDRESS
#define PR_GET_TID_ADDRESS 40
#endif

extern "C" {
[[noreturn]] void ckpt_call_on_stack(void* stack_top, void (*fn)(void*), void* arg);
[[noreturn]] void ckpt_signal_return(ucontext_t* frame);
}

namespace ckpt::guard {

namespace {

// On the stack of a thread that stands, hence in an image.
struct Standing {
  ucontext_t* frame;
  GuardRecord* record;
  uint32_t generation;
  bool waited;
};

[[noreturn]] void stand(void* argument) {
  const auto& standing = *static_cast<Standing*>(argument);
  ucontext_t* const frame = standing.frame;
  stop_state.world.arrive_in_handler(frame, standing.waited);
  // After a restart there is no guard, and no record.
  if (standing.generation == window.generation) {
    GuardRecord& record = *standing.record;
    if (is_open()) ckpt_call_on_stack(reinterpret_cast<std::byte*>(&record) + kBlockBytes, &enlist, frame);
    leave_dispatch(record);
  }
  fix_interrupted_call(frame);
  ckpt_signal_return(frame);  // the alternate stack is in the frame
}

}  // namespace

void open_for_kernel(GuardRecord& record, AddrRange range) {
  ScopedCrowdTurn turn(window.guarded->crowd(), window.guarded->turn());
  const uint32_t n = record.busy_count.load(std::memory_order_relaxed);
  if (n < GuardRecord::kMostBusy) {
    record.busy[n] = range;
    record.busy_count.store(n + 1, std::memory_order_relaxed);
  } else {
    AddrRange& all = record.busy[n - 1];
    if (range.start < all.start) all.start = range.start;
    if (range.end > all.end) all.end = range.end;
  }
  window.arming->open_for_kernel(range);
}

// The agent's list of mappings may be older than this call: removed() is told of the range even if the range
// is in no segment yet.
void open_for_change(GuardRecord& record, AddrRange range) {
  open_for_kernel(record, range);
  ScopedCrowdTurn turn(window.guarded->crowd(), window.guarded->turn());
  window.arming->removed({range.start.page_down(), range.end.page_up()});
}

bool make_writable_ahead(GuardRecord& record, Addr page) {
  ScopedCrowdTurn turn(window.guarded->crowd(), window.guarded->turn());
  bool was_writable = false;
  if (!window.arming->fault_in_thread(page, &was_writable)) return false;
  // Another thread may have made the page writable in between. But if this thread was told so before, and
  // nothing was protected since, the fault is the program's own.
  const uint64_t now = window.guarded->protections();
  if (was_writable && record.found_copied == page.value && record.found_protections == now) return false;
  record.found_copied = was_writable ? page.value : 0;
  record.found_protections = now;
  return true;
}

void open_for_exit() {
  if (!is_ahead()) return;  // what the thread has written stays writable
  uint64_t word = 0;
  if (sys::call(__NR_prctl, PR_GET_TID_ADDRESS, &word) == 0 && word != 0)
    make_writable({Addr{word}, Addr{word} + 4});
  uint64_t list = 0, length = 0;
  struct {
    uint64_t next;
    int64_t offset;
    uint64_t pending;
  } head{};
  if (sys::call(__NR_get_robust_list, 0L, &list, &length) != 0 || list == 0 ||
      !copy_in(&head, list, sizeof(head)))
    return;
  auto open = [&](uint64_t entry) {
    const Addr at{(entry & ~1ull) + static_cast<uint64_t>(head.offset)};  // bit 0: priority-inheriting
    make_writable({at, at + 4});
  };
  if (head.pending != 0) open(head.pending);
  uint64_t entry = head.next;
  for (int i = 0; i < ROBUST_LIST_LIMIT && (entry & ~1ull) != list && entry != 0; ++i) {
    open(entry);
    if (!copy_in(&entry, entry & ~1ull, sizeof(entry))) return;
  }
}

void stand_without_guard(ucontext_t* interrupted) {
  GuardRecord* found = record_of(interrupted);
  if (found == nullptr || !is_ahead()) return;
  GuardRecord& record = *found;
  record.selector.store(kLetThrough, std::memory_order_relaxed);
  unblock(bit(window.faults.signal));
  ucontext_t* frame = interrupted;
  if (record_of(reinterpret_cast<void*>(interrupted->uc_mcontext.gregs[REG_RSP])) != nullptr) {
    frame = record.shown;  // it waits, and nothing of that wait is needed
  } else {
    back_out(record, frame);
  }
  // Its frame is on the program's stack already if it never got under the guard.
  if (record_of(frame) != nullptr) {
    const siginfo_t none{};
    const auto sp = static_cast<uint64_t>(frame->uc_mcontext.gregs[REG_RSP]);
    make_writable({Addr{sp - 2 * kHandlerStackBytes}, Addr{sp}});
    frame = move_frame(record, frame, none, 0, true).context;
    kernel_mask(frame) |= record.virtual_mask;
  }
  show_program_stack(record, frame);
  record.virtual_mask = 0;  // the kernel keeps blocked what is blocked
  const bool waited = StopWorld::was_waiting(*frame);
  fix_interrupted_call(frame);
  const uint64_t top = (Addr::of(frame).value - 8 - sizeof(Standing)) & ~15ull;
  // What the handler writes to until the stop has it: from here on a fault finds its signal blocked.
  make_writable({Addr{top - 2 * kHandlerStackBytes}, Addr{top} + sizeof(ucontext_t)});
  *reinterpret_cast<Standing*>(top) = {frame, &record, window.generation, waited};
  block_all();
  send_held(record);
  ckpt_call_on_stack(reinterpret_cast<void*>(top), &stand, reinterpret_cast<void*>(top));
}

}  // namespace ckpt::guard
