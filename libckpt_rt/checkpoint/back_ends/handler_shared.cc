// Memory that the members of a job share (docs/shared_memory.md): what this process offers to protect, what
// all have agreed to protect, and the end.
#include <errno.h>

#include "base/checks/named_points.h"
#include "job/session/session.h"
#include "libckpt_rt/capture/advice/excluded_memory.h"
#include "libckpt_rt/capture/process/process_state.h"
#include "libckpt_rt/checkpoint/back_ends/handler.h"
#include "libckpt_rt/checkpoint/stages/memory/shared_of_job.h"
#include "libckpt_rt/core/directory/log.h"
#include "libckpt_rt/core/process/fork/fork_hold.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {

SharedLedger* ledger() {
  job::Session* session = job::session();
  return session != nullptr && session->ledger.joined() ? &session->ledger : nullptr;
}

bool is_part(const Mapping& m, const LedgerObject& o) {
  return m.range.start.value == o.start && m.range.size() == o.length && m.file_offset == o.offset;
}

}  // namespace

bool HandlerBackEnd::tracks_shared() const {
  const job::Session* session = job::session();
  // Holes must be protected, and loss of protection be seen.
  return session != nullptr && !session->ledger.own_range().empty() && watch_.can_be_kept() &&
         !attempt_.settings.dma && !is_filtered();
}

Result<void> HandlerBackEnd::offer_shared(std::span<const Mapping> map) {
  return tracks_shared() ? offer_shared_memory(map, true, attempt_.space.arena()) : Result<void>();
}

// All threads of all members stand. The objects that were offered may have changed since.
Result<void> HandlerBackEnd::agree_on_shared(std::span<Mapping> map) {
  SharedLedger* const all = ledger();
  for (Mapping& m : map) {
    if (m.kind != MappingKind::kSharedAnonymous || !m.shared) continue;
    const LedgerObject* o = all != nullptr ? all->find(m.device, m.inode) : nullptr;
    if (o == nullptr) {
      if (m.of_job) m.handling = (m.map_flags & kMapElsewhere) != 0 ? Handling::kSkip : Handling::kEager;
      m.of_job = false;
      continue;
    }
    if (m.of_job && m.handling == Handling::kTracked && is_part(m, *o) && arming_.covers(m.range) &&
        excluded_memory::next_excluded(m.range).empty()) {
      continue;
    }
    all->give_up();
    attempt_.outcome.spoiled = true;
    return make_error(ExitCode::kInternal, 0,
                      "shared memory at {:#x} has changed while the checkpoint began; it is taken again",
                      m.range.start.value);
  }
  if (all == nullptr) return {};
  // Its child would not be protected, and it has looked already whether it must wait
  // (release_guard::before_sharing).
  if (fork_hold::any_inside()) {
    all->give_up();
    attempt_.outcome.spoiled = true;
    return make_error(ExitCode::kInternal, 0, "a fork was under way; the checkpoint is taken again");
  }
  all->read_by(watch_.protection);
  copier_.share(*all);
  return {};
}

void HandlerBackEnd::save_for_others(Addr page) {
  if (SharedLedger* all = ledger()) all->save_for_others({page, page + kPageSize});
}

Result<void> HandlerBackEnd::await_sharers(bool complete) {
  SharedLedger* const all = ledger();
  if (all == nullptr) return {};
  points::at("member.copied");
  if (!complete) all->give_up();
  while (complete && all->needed() && !all->given_up()) {
    // A member that ends, or fails, needs nothing any more; and what the others have copied is of no use
    // then.
    CKPT_TRY(job::session()->still_on());
    all->await_change();
  }
  if (!copier_.shared_is_protected()) all->give_up();
  log_format(attempt_.space.log(),
             "shared memory: {} objects are protected by all members; {} units kept for others",
             all->objects().size(), all->units_saved());
  if (!all->given_up()) return {};
  attempt_.outcome.spoiled = true;
  return make_error(
      ExitCode::kInternal, 0,
      "shared memory may have been written to before all members had copied it; the checkpoint is taken "
      "again, and copies it in the stop");
}

}  // namespace ckpt
