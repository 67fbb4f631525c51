#include "libckpt_rt/checkpoint/back_ends/handler.h"

#include <errno.h>

#include <algorithm>

#include "base/checks/named_points.h"
#include "base/memory/page_runs.h"
#include "libckpt_rt/core/directory/log.h"
#include "libckpt_rt/core/threads/of_ours/own_threads.h"
#include "libckpt_rt/interpose/memory/gate.h"
#include "libckpt_rt/protect/release_guard.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

Result<void> HandlerBackEnd::open(const Room& room) {
  return watch_.begin(own_threads.fault_handler, copier_.counters(), attempt_.in_force.segment_bytes,
                      room.list_bytes);
}

const char* HandlerBackEnd::why_no_increments() const {
  return watch_.can_be_kept() ? nullptr
                              : "this kernel cannot tell what is protected (PAGEMAP_SCAN, Linux 6.7)";
}

Result<void> HandlerBackEnd::get_ready() {
  watch_.protection.copy_into(filled_from_own_side());
  attempt_.capture.map.track_shared_of_job(tracks_shared());
  CKPT_TRY(writer_.spawn());
  return watch_.protection.can_protect_ahead() ? protect_ahead() : get_all_ready();
}

// The table of a renewed watch is that of the last checkpoint: the attempt is taken again, from nothing.
Result<void> HandlerBackEnd::mappings_in_motion(int round) {
  if (round != 0 || !watch_.is_renewed()) return {};
  attempt_.outcome.spoiled = true;
  return make_error(ExitCode::kInternal, 0,
                    "a call that changes mappings did not end: a full image is taken instead");
}

Result<void> HandlerBackEnd::renew_table(std::span<const Mapping> map) {
  if (!watch_.is_renewed()) return {};
  CKPT_TRY(watch_.renew(map, !attempt_.image.has_parent()));
  attempt_.space.disown(watch_.former_lists());
  points::at("watch.renewed");
  return {};
}

Result<void> HandlerBackEnd::check_table() {
  if (!watch_.is_renewed()) return {};
  auto found = arming_.check();
  if (!found.ok()) return found.error();
  if (*found != 0)
    log_format(attempt_.space.log(),
               "{} segments lost their protection unseen; they are looked at in the stop", *found);
  return {};
}

Result<void> HandlerBackEnd::capture_memory() {
  if (attempt_.in_force.increments && attempt_.capture.map.has_pinned_pages())
    attempt_.in_force.increments = false;
  return settle_protection();
}

void HandlerBackEnd::before_go() { release_guard::open(copier_); }

// Pages that the program has not written to since the stop of the parent.
Result<void> HandlerBackEnd::list_inherited(ArenaVector<AddrRange>& inherited) {
  if (!attempt_.image.has_parent()) return {};
  for (SegmentId id{0}; id.value < table_.size(); ++id.value) {
    const Segment& s = table_[id];
    if (!s.in_parent) continue;
    for (PageRun run : PageRuns(s.present)) {
      const AddrRange pages = run.at(s.base);
      if (!inherited.empty() && inherited.back().end == pages.start)
        inherited.back().end = pages.end;
      else if (!inherited.push_back(pages))
        return no_memory("the list of pages");
    }
  }
  return {};
}

Result<void> HandlerBackEnd::after_copying() {
  release_guard::close();
  if (attempt_.in_force.increments) {
    CKPT_TRY(watch_.resume());
    points::at("watch.resumed");
    return {};
  }
  take_protection_off();
  watch_.protection.finish();
  points::at("protect.off");
  return {};
}

// Mapping by mapping, exactly as they are now: a registration that ends in the middle of one would cut it.
void HandlerBackEnd::take_protection_off() {
  MemoryMap now(attempt_.space.arena());
  {
    MappingsHeld held;
    if (!held.sure() || !now.read(attempt_.space.own()).ok()) return;  // the descriptor's end will do it
  }
  // The program goes on in between: this takes milliseconds for each GiB. A call that changes a mapping then
  // has it forgotten first.
  for (const Mapping& m : now.mappings()) {
    if (m.handling != Handling::kTracked) continue;
    for (AddrRange rest = m.range; !rest.empty();) {
      const uint64_t bytes = std::min(rest.size(), WriteProtection::kRemovedAtOnce);
      MappingsHeld held;
      if (!held.sure()) return;
      watch_.protection.remove({rest.start, rest.start + bytes});
      rest.start = rest.start + bytes;
    }
  }
}

void HandlerBackEnd::release_faults() {
  if (!attempt_.outcome.keeps_watch) watch_.protection.serve(nullptr);
}

void HandlerBackEnd::end() {
  ProtectingBackEnd::end();
  if (!attempt_.outcome.keeps_watch) watch_.protection.finish();
}

}  // namespace ckpt
