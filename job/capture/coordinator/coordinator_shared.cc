// Shared memory of the job: what all members that map it protect, and the ledger that they are given for it
// (docs/shared_memory.md).
#include <errno.h>
#include <poll.h>

#include <algorithm>

#include "base/clock.h"
#include "job/capture/coordinator/coordinator.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::job {

namespace {

constexpr int64_t kLookForStoppedNs = 20'000'000;

bool is_same(const SharedOffer& a, const SharedOffer& b) {
  return a.device == b.device && a.inode == b.inode;
}

}  // namespace

// Objects that every member which maps them protects, once and at the same addresses. False: there are none,
// or some member protects nothing.
Result<bool> Coordinator::list_shared(ArenaVector<LedgerObject>& objects, LedgerSize& size) {
  ArenaVector<SharedOffer> all(arena_);
  const Error full = make_error(ExitCode::kInternal, ENOMEM, "no memory for the job's members");
  // After an attempt that failed, shared objects are copied in the stop.
  if (!can_share || attempt_ > 1) return false;
  if (!all.append(offers.data(), offers.size())) return full;
  for (const Member& m : members_) {
    if (m.state != Member::State::kWithUs) continue;
    if (!m.can_share) return false;
    ++size.members;
    if (!all.append(m.offers.data(), m.offers.size())) return full;
  }
  ++size.members;
  // By object; of one process two offers of the same are never protected.
  std::sort(all.begin(), all.end(), [](const SharedOffer& a, const SharedOffer& b) {
    return a.device != b.device ? a.device < b.device : a.inode < b.inode;
  });
  for (size_t i = 0, end; i < all.size(); i = end) {
    const SharedOffer& o = all[i];
    bool good = o.length != 0 && o.start + o.length > o.start;
    for (end = i; end < all.size() && is_same(all[end], o); ++end) {
      good = good && all[end].is_protected != 0 && all[end].start == o.start && all[end].length == o.length &&
             all[end].offset == o.offset;
    }
    if (!good) continue;
    const uint64_t units = SharedLedger::units_of({Addr{o.start}, Addr{o.start + o.length}});
    if (units > SharedLedger::kMostUnits - size.units) continue;
    if (!objects.push_back({o.device, o.inode, o.start, o.length, o.offset, size.units})) return full;
    size.units += units;
    ++size.objects;
  }
  return size.objects != 0;
}

// Tells all to stop.
Result<void> Coordinator::share_memory() {
  ArenaVector<LedgerObject> objects(arena_);
  LedgerSize size{};
  auto any = list_shared(objects, size);
  if (!any.ok()) return any.error();
  ScopedFd file;
  if (*any) file = SharedLedger::make(size);
  // Without a ledger, for want of memory or descriptors, shared memory is copied in the stop.
  if (!file.valid()) return tell_all(Step::kStop);
  told_ = Step::kStop;
  for (Member& m : members_) {
    if (m.state != Member::State::kWithUs) continue;
    const char byte = 0;
    if (!send_message(m.socket, Step::kStop, &size, sizeof(size), objects.data(),
                      objects.size() * sizeof(LedgerObject)) ||
        !send_with_descriptor(m.socket, &byte, sizeof(byte), file.get())) {
      CKPT_TRY(lost(m));
    }
  }
  if (ledger.join(std::move(file), size, objects.span())) return {};
  again = true;
  return make_error(ExitCode::kInternal, 0,
                    "the ledger of the job's shared memory cannot be mapped; the checkpoint is taken again");
}

// While threads of others may wait for memory that a member protects: one that is stopped goes on with its
// part all the same, as it does when the coordinator waits for it.
Result<void> Coordinator::still_on() {
  CKPT_TRY(hear_members());
  const int64_t now = now_ns();
  if (now - looked_for_stopped_ns_ < kLookForStoppedNs) return {};
  looked_for_stopped_ns_ = now;
  return look_for_stopped(Step::kWritten);
}

// Hears members that have written their images, failed, or gone.
Result<void> Coordinator::hear_members() {
  constexpr timespec kAtOnce{};
  for (Member& m : members_) {
    if (m.state != Member::State::kWithUs) continue;
    pollfd wait{m.socket, POLLIN, 0};
    if (sys::call(__NR_ppoll, &wait, 1L, &kAtOnce, nullptr, 8L) > 0) CKPT_TRY(take_message(m, 0));
  }
  return {};
}

}  // namespace ckpt::job
