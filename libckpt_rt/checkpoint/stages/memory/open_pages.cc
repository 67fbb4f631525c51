#include "libckpt_rt/checkpoint/stages/memory/open_pages.h"

#include <algorithm>

#include "libckpt_rt/capture/futex_words.h"
#include "libckpt_rt/capture/rings/registered_buffers.h"
#include "libckpt_rt/core/threads/thread_context.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

bool OpenPages::collect(const ThreadSlot* stopped, StillMemory& memory) {
  return add_stacks(stopped) && futex_words::collect(stopped, memory, pages_) &&
         rings::collect_buffers(pages_) && add_rseq(stopped);
}

void OpenPages::sort() {
  std::sort(pages_.begin(), pages_.end());
  pages_.truncate(static_cast<size_t>(std::unique(pages_.begin(), pages_.end()) - pages_.begin()));
}

// Where a thread stands in our handler, and where it will go on: it writes there at once.
bool OpenPages::add_stacks(const ThreadSlot* stopped) {
  constexpr uint64_t kBelow = 2 << 10, kMost = 32 << 10;  // bytes
  for (const ThreadSlot* s = stopped; s != nullptr; s = s->next) {
    const Addr low = Addr{Addr::of(s).value - kBelow}.page_down();
    const Addr goes_on = Addr{static_cast<uint64_t>(s->frame->uc_mcontext.gregs[REG_RSP])}.page_down();
    // With an alternate signal stack these are far apart.
    const Addr high = goes_on >= low && goes_on - low <= kMost ? goes_on : low + kPageSize;
    for (Addr a = low; a <= high; a = a + kPageSize) {
      if (!pages_.push_back(a)) return false;
    }
    if (high != goes_on && !pages_.push_back(goes_on)) return false;
    // The kernel writes this word when the thread exits, and does not wait for a fault then.
    if (s->clear_child_tid != 0 && !pages_.push_back(Addr{s->clear_child_tid}.page_down())) return false;
  }
  return true;
}

// The kernel writes there whenever a thread that was preempted returns from it: also of a thread that is
// counted already, and was preempted on its way to sleep.
bool OpenPages::add_rseq(const ThreadSlot* stopped) {
  for (const ThreadSlot* s = stopped; s != nullptr; s = s->next) {
    if (s->rseq == 0) continue;
    const Addr first = Addr{s->rseq}.page_down(), last = Addr{s->rseq + s->rseq_len - 1}.page_down();
    if (!pages_.push_back(first) || !pages_.push_back(last)) return false;
  }
  return true;
}

}  // namespace ckpt
