// Shared memory of the job: what all members that map it protect, and the ledger that they are given for it
// (docs/shared_memory.md).
#include <errno.h>
#include <poll.h>

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "job/capture/coordinator/coordinator.h"
#include "libckpt_rt/core/process/this_process.h"
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

// Of each object that several members map one saves the bytes, if it maps all that the others do: this
// process, if it can, whose word a restart takes anyway. A member of another user is no saver, and what it
// says of its mappings does not change who is: it leaves to the saver what that one has.
Result<void> Coordinator::choose_savers() {
  struct Holding {
    SharedOffer offer;
    int pid;
    uint32_t order;
    bool of_other_user;
  };
  ArenaVector<Holding> all(arena_);
  const auto add_all = [&all](std::span<const SharedOffer> offered, int pid, bool of_other_user) {
    return std::all_of(offered.begin(), offered.end(), [&](const SharedOffer& o) {
      const bool is_one = o.length != 0 && o.offset + o.length > o.offset;
      return !is_one || all.push_back({o, pid, static_cast<uint32_t>(all.size()), of_other_user});
    });
  };
  savers_.clear();
  // After two attempts that failed, each saves what it maps.
  if (attempt_ > 2) return {};
  bool room = add_all(offers, this_process.pid, false);
  for (const Member& m : members_) {
    if (m.state == Member::State::kWithUs)
      room = room && add_all(m.offers, m.listed.look.pid, m.of_other_user);
  }
  std::sort(all.begin(), all.end(), [](const Holding& a, const Holding& b) {
    return a.offer.object != b.offer.object ? a.offer.object < b.offer.object : a.order < b.order;
  });
  for (size_t i = 0, end; room && i < all.size() && savers_.size() < kMostSavers; i = end) {
    uint64_t from = UINT64_MAX, to = 0;
    bool several = false;
    for (end = i; end < all.size() && all[end].offer.object == all[i].offer.object; ++end) {
      several = several || all[end].pid != all[i].pid;
      if (all[end].of_other_user) continue;
      from = std::min(from, all[end].offer.offset);
      to = std::max(to, all[end].offer.offset + all[end].offer.length);
    }
    const Holding* const saver = std::find_if(all.begin() + i, all.begin() + end, [&](const Holding& h) {
      return !h.of_other_user && h.offer.can_save != 0 && h.offer.offset == from &&
             h.offer.offset + h.offer.length == to;
    });
    if (several && saver != all.begin() + end)
      room = savers_.push_back({saver->offer.object, from, to - from, saver->pid, 0});
  }
  savers = savers_.span();
  return room ? Result<void>() : make_error(ExitCode::kInternal, ENOMEM, "no memory for the job's members");
}

bool Coordinator::send_order(Member& m, const LedgerSize& size, std::span<const LedgerObject> objects,
                             int file) {
  const StopOrder order{static_cast<uint32_t>(savers_.size()), file >= 0};
  const size_t bytes = sizeof(order) + savers.size_bytes() + (file < 0 ? 0 : sizeof(size));
  auto* text = static_cast<std::byte*>(arena_.allocate(bytes));
  if (text == nullptr) return false;
  std::memcpy(text, &order, sizeof(order));
  if (!savers.empty()) std::memcpy(text + sizeof(order), savers.data(), savers.size_bytes());
  if (file < 0) return send_message(m.socket, Step::kStop, text, bytes);
  std::memcpy(text + sizeof(order) + savers.size_bytes(), &size, sizeof(size));
  const char byte = 0;
  return send_message(m.socket, Step::kStop, text, bytes, objects.data(), objects.size_bytes()) &&
         send_with_descriptor(m.socket, &byte, sizeof(byte), file);
}

// Tells all to stop.
Result<void> Coordinator::share_memory() {
  ArenaVector<LedgerObject> objects(arena_);
  LedgerSize size{};
  auto any = list_shared(objects, size);
  if (!any.ok()) return any.error();
  CKPT_TRY(choose_savers());
  ScopedFd file;
  if (*any) file = SharedLedger::make(size);
  told_ = Step::kStop;
  for (Member& m : members_) {
    if (m.state == Member::State::kWithUs && !send_order(m, size, objects.span(), file.get()))
      CKPT_TRY(lost(m));
  }
  // Without a ledger, for want of memory or descriptors, shared memory is copied in the stop.
  if (!file.valid()) return {};
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
