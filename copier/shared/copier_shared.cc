// The part of Copier for memory that other members of the job write to as well (shared_source.h).
#include <utility>

#include "copier/copier.h"
#include "base/preload_rules.h"

namespace ckpt {

// Shared memory first: until all members have it, each of them keeps what it is about to write to for the
// others, and none can fork. False: a segment is lost.
bool Copier::copy_shared() {
  if (shared_ == nullptr) return true;
  for (const bool wait : {false, true}) {
    for (SegmentId id{0}; id.value < table_.size() && !lost(); ++id.value) {
      if (!is_of_job(table_[id]) || !to_copy(id)) continue;
      if (wait) {
        table_.await_copied(id);
      } else if (table_.state(id) == SegmentState::kProtected) {
        const uint32_t buffer = pool_.acquire(CopyKind::kSequential);
        if (!table_.claim(id)) {
          pool_.release(buffer);
          continue;
        }
        copy_owned(id, buffer, true);
        counters_.sequential.fetch_add(1, std::memory_order_relaxed);
      }
    }
  }
  if (!lost()) shared_->copied();
  return !lost();
}

bool Copier::shared_is_protected() {
  // A thread may write meanwhile: its segment is kCopied before it is unprotected (fault()), so one that is
  // kUnchanged after the question has lost its protection otherwise.
  // Of memory that another member saves they stay kProtected.
  auto unchanged_still = [&](SegmentId id) {
    const SegmentState state = table_.state(id);
    return state == SegmentState::kUnchanged || (state == SegmentState::kProtected && !to_copy(id));
  };
  AddrRange run{};  // neighbours are asked for by one call
  SegmentId first{0};
  auto ask = [&](SegmentId end) {
    if (run.empty() || memory_.still_protected(std::exchange(run, {}))) return true;
    for (SegmentId id = first; id < end; ++id.value) {
      if (unchanged_still(id) && !memory_.still_protected(table_.window(table_[id])) && unchanged_still(id))
        return false;
    }
    return true;
  };
  for (SegmentId id{0}; id.value < table_.size(); ++id.value) {
    const Segment& s = table_[id];
    const bool asked_for = is_of_job(s) && !s.open && unchanged_still(id);
    const AddrRange window = table_.window(s);
    if ((!asked_for || window.start != run.end || run.size() >= kAtOnce) && !ask(id)) return false;
    if (!asked_for) continue;
    if (run.empty()) {
      run = window;
      first = id;
    }
    run.end = window.end;
  }
  return ask({static_cast<uint32_t>(table_.size())});
}

}  // namespace ckpt
