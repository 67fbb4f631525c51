#include "timewarp/state/state_saver.h"

#include <x86intrin.h>

#include <algorithm>
#include <cmath>

namespace ckpt::timewarp {

namespace {
// No farther between two committed copies than this (Santoro and Quaglia, section 5).
constexpr uint32_t kMostBetween = 40;
constexpr uint64_t kSampleMask = 63;
// Judged after so many events; the interval is at most kLongest.
constexpr uint64_t kJudged = 8192;
constexpr uint32_t kLongest = 32;
constexpr char kNotRepeatable[] =
    "executed twice, it does not do the same: let the handler depend on its state, its message and the "
    "engine's random "
    "numbers only";
}  // namespace

StateSaver::StateSaver(Setup& setup, History& history, Regions& regions)
    : setup_(setup), history_(history), pooled_(setup.colocated_at == 0 && !setup.copy_behind_record) {
  copies_.open(regions, std::max<size_t>(setup.model.state_bytes, 1));
  pieces_.open(regions, kPieces);
}

StateSaver::~StateSaver() = default;

bool StateSaver::open(Lp& lp) {
  ckpt_tw_saving saving = setup_.options.saving;
  if (setup_.model.saving_of != nullptr) saving = setup_.model.saving_of(lp.id, setup_.model.context);
  if (saving.way == CKPT_TW_REVERSE && setup_.model.reverse == nullptr) {
    setup_.fail_setting_up(lp.id, CKPT_TW_USAGE,
                           "LP " + std::to_string(lp.id) +
                               " is to go back by reverse computation, but the model has no inverse: give it "
                               "`reverse`, or choose another way");
    return false;
  }
  lp.way = static_cast<uint8_t>(saving.way);
  lp.every = static_cast<uint16_t>(std::min<uint32_t>(saving.every, 65535));
  lp.check = static_cast<uint8_t>(saving.way == CKPT_TW_REVERSE && saving.check != 0);
  lp.history = nullptr;
  if (saving.way == CKPT_TW_CCL || (saving.way == CKPT_TW_COPY && saving.every != 1))
    lp.history = new LpHistory;
  if (saving.way == CKPT_TW_CCL && non_blocking_ == nullptr) {
    std::string why;
    non_blocking_ = make_non_blocking(setup_.options, setup_.model.state_bytes, setup_.local_lps, &why);
    if (non_blocking_ == nullptr) {
      setup_.fail_setting_up(lp.id, CKPT_TW_UNAVAILABLE, why);
      return false;
    }
  }
  return true;
}

void StateSaver::close(Lp& lp) {
  if (lp.history == nullptr) return;
  if (lp.history->copy.pending()) (void)non_blocking_->settle(lp.history->copy, 2);
  delete lp.history;
  lp.history = nullptr;
}

// --- Saving.
// ------------------------------------------------------------------------------------------------------

void StateSaver::before_slow(Lp& lp, Record& record) {
  if (lp.way == CKPT_TW_INCREMENTAL) return;
  if (lp.check != 0) return copy_state(lp, record);
  LpHistory& history = *lp.history;
  if (lp.way == CKPT_TW_CCL) {
    settle_copy(lp, record);
  } else {
    const uint32_t every = lp.every != 0 ? lp.every : adapted_;
    if (!history.has_copy || history.since >= every) {
      const bool sampled = (counters_.saves & kSampleMask) == 0;
      const uint64_t began = sampled ? __rdtsc() : 0;
      copy_state(lp, record);
      if (sampled) {
        const auto cycles = static_cast<double>(__rdtsc() - began);
        save_cycles_ = save_cycles_ == 0 ? cycles : save_cycles_ * 0.9 + cycles * 0.1;
      }
    }
  }
  if (record.saved != nullptr) {
    history.has_copy = true;
    history.since = 0;
  }
  ++history.since;
}

// The copy of the state after the LP's last event is the one before this event, if it is complete.
void StateSaver::settle_copy(Lp& lp, Record& record) {
  LpHistory& history = *lp.history;
  // Too far from the last copy that is there?
  const bool must = !history.has_copy || history.since >= kMostBetween;
  if (history.copy.pending()) {
    const Settled settled = non_blocking_->settle(history.copy, must ? 0 : setup_.options.threshold);
    if (settled != Settled::kAborted) {
      ++counters_.copies_committed;
      if (settled == Settled::kFinished) ++(must ? counters_.copies_forced : counters_.copies_finished);
      record.saved = history.copy.to;
      ++counters_.saves;
      counters_.save_bytes += history.copy.bytes;
      return;
    }
    ++counters_.copies_aborted;
    copies_.give(history.copy.to);
  }
  // No copy could be queued, or it was given up.
  if (!must) return;
  copy_state(lp, record);
  ++counters_.copies_forced;
}

void StateSaver::after_slow(Lp& lp, Record& record) {
  if (lp.check != 0) {
    // Forward was run; now back, compare, and forward again.
    Event* const event = record.event;
    const uint64_t random = lp.random, sent = lp.sent, bits = record.bits;
    std::vector<std::byte> ahead(lp.state(), lp.state() + lp.state_bytes);
    setup_.model.reverse(&lp, lp.state(), event->message(), event->bytes);
    set_size(lp, record.state_bytes);
    const auto* was = static_cast<const std::byte*>(record.saved);
    size_t at = 0;
    while (at < record.state_bytes && was[at] == lp.state()[at]) ++at;
    if (at != record.state_bytes) {
      complaint_ = "its inverse does not invert: after forward and back, byte " + std::to_string(at) +
                   " of the state is " + std::to_string(static_cast<int>(lp.state()[at])) + " instead of " +
                   std::to_string(static_cast<int>(was[at])) + ": correct `reverse`";
      load(lp, record);
    }
    lp.random = record.random;
    lp.sent = record.sent;
    history_.repeat(lp, record);
    if (complaint_.empty() && (lp.random != random || lp.sent != sent || lp.state_bytes != ahead.size() ||
                               std::memcmp(ahead.data(), lp.state(), ahead.size()) != 0)) {
      complaint_ = kNotRepeatable;
    }
    record.bits = bits;
    return;
  }
  LpHistory& history = *lp.history;
  history.copy.to = copies_.take();
  history.copy.bytes = lp.state_bytes;
  history.copy.from = lp.state();
  history.copy.must = history.since >= kMostBetween;
  if (!non_blocking_->start(history.copy, setup_.options.threshold)) copies_.give(history.copy.to);
}

void StateSaver::changing(Lp& lp, Record& record, const void* at, size_t bytes) {
  const auto* from = static_cast<const std::byte*>(at);
  // Outside of the state: nothing to save, and the model's mistake to see in its results.
  if (from < lp.state() || from + bytes > lp.state() + setup_.model.state_bytes) return;
  while (bytes > 0) {
    auto* pieces = static_cast<Pieces*>(record.saved);
    constexpr size_t kTag = 8;
    if (pieces == nullptr || sizeof(pieces->bytes) - pieces->used < kTag + std::min<size_t>(bytes, 32)) {
      auto* fresh = static_cast<Pieces*>(pieces_.take());
      fresh->older = pieces;
      fresh->used = 0;
      record.saved = pieces = fresh;
    }
    const auto n = static_cast<uint32_t>(std::min(bytes, sizeof(pieces->bytes) - pieces->used - kTag));
    const uint32_t tag[2] = {static_cast<uint32_t>(from - lp.state()), n};
    std::memcpy(pieces->bytes + pieces->used, from, n);
    std::memcpy(pieces->bytes + pieces->used + n, tag, kTag);
    pieces->used += n + kTag;
    from += n;
    bytes -= n;
    counters_.save_bytes += n;
    ++counters_.saves;
  }
}

// --- Going back.
// --------------------------------------------------------------------------------------------------

void StateSaver::undo_pieces(Lp& lp, Record& record) {
  for (auto* pieces = static_cast<Pieces*>(record.saved); pieces != nullptr; pieces = pieces->older) {
    for (uint32_t end = pieces->used; end > 0;) {
      uint32_t tag[2];
      std::memcpy(tag, pieces->bytes + end - sizeof(tag), sizeof(tag));
      end -= static_cast<uint32_t>(sizeof(tag)) + tag[1];
      std::memcpy(lp.state() + tag[0], pieces->bytes + end, tag[1]);
    }
  }
}

void StateSaver::release_pieces(Record& record) {
  for (auto* pieces = static_cast<Pieces*>(record.saved); pieces != nullptr;) {
    Pieces* const older = pieces->older;
    pieces_.give(pieces);
    pieces = older;
  }
  record.saved = nullptr;
}

void StateSaver::undo(Lp& lp, Record& record) {
  if (lp.way == CKPT_TW_REVERSE) {
    setup_.model.reverse(&lp, lp.state(), record.event->message(), record.event->bytes);
    set_size(lp, record.state_bytes);
  } else if (lp.way == CKPT_TW_INCREMENTAL) {
    undo_pieces(lp, record);
    set_size(lp, record.state_bytes);
  }
}

// Bytes behind the state are zero: the state may grow again.
void StateSaver::set_size(Lp& lp, uint32_t bytes) {
  if (bytes < lp.state_bytes) std::memset(lp.state() + bytes, 0, lp.state_bytes - bytes);
  lp.state_bytes = bytes;
}

void StateSaver::restore(Lp& lp, Record& first) {
  ++counters_.restores;
  if (lp.history != nullptr) {
    restore_slow(lp, first);
  } else if (lp.way == CKPT_TW_COPY) {
    load(lp, first);
  }
}

void StateSaver::load(Lp& lp, const Record& record) {
  std::memcpy(lp.state(), record.saved, record.state_bytes);
  set_size(lp, record.state_bytes);
}

void StateSaver::restore_slow(Lp& lp, Record& first) {
  LpHistory& history = *lp.history;
  if (history.copy.pending()) {
    // The pending copy is of a state that never was. Nobody may read the state once it changes.
    (void)non_blocking_->settle(history.copy, 2);
    ++counters_.copies_aborted;
    copies_.give(history.copy.to);
  }
  // Newest first, up to the first with a copy.
  way_back_.clear();
  Record* base = nullptr;
  for (Record* r = history_.record_at(first.previous); r != nullptr && base == nullptr;
       r = history_.record_at(r->previous)) {
    way_back_.push_back(r);
    if (r->saved != nullptr) base = r;
  }
  for (size_t i = history.since_copy.size(); i-- > 0 && base == nullptr;) {
    way_back_.push_back(history.since_copy[i]);
    if (history.since_copy[i]->saved != nullptr) base = history.since_copy[i];
  }
  history.has_copy = base != nullptr;
  history.since = static_cast<uint32_t>(way_back_.size());
  if (first.saved != nullptr) return load(lp, first);
  load(lp, *base);
  lp.random = base->random;
  lp.sent = base->sent;
  for (size_t i = way_back_.size(); i-- > 0;) history_.repeat(lp, *way_back_[i]);
  counters_.repeated += way_back_.size();
  if (lp.random != first.random || lp.sent != first.sent || lp.state_bytes != first.state_bytes) {
    setup_.fail(CKPT_TW_MODEL, name_of(first.event->key(), lp.id) + ": " + kNotRepeatable);
  }
}

bool StateSaver::final_slow(Lp& lp, Record& record) {
  std::vector<Record*>& since_copy = lp.history->since_copy;
  if (record.saved != nullptr) {
    for (Record* r : since_copy) {
      release(lp, *r);
      history_.drop(*r);
    }
    since_copy.clear();
  }
  // The first one has a copy: an LP that could not go back to GVT would be found too late.
  if (since_copy.empty() && record.saved == nullptr) [[unlikely]] {
    setup_.fail(CKPT_TW_MODEL,
                name_of(record.event->key(), lp.id) +
                    ": final before a copy of the state is there: this is a bug of the engine");
  }
  since_copy.push_back(&record);
  return true;
}

void StateSaver::adapt(uint64_t executed, uint64_t rollbacks, double event_cycles) {
  if (executed - executed_ < kJudged) return;
  // Saving costs s / n an event; going back costs r * (n - 1) / 2 repeated events of e: smallest at sqrt(2 s
  // / (r e)).
  const double r = static_cast<double>(rollbacks - rollbacks_) / static_cast<double>(executed - executed_);
  executed_ = executed;
  rollbacks_ = rollbacks;
  const double best = r * event_cycles > 0 && save_cycles_ > 0
                          ? std::sqrt(2 * save_cycles_ / (r * event_cycles))
                          : double{kLongest};
  adapted_ = static_cast<uint32_t>(std::clamp(best + 0.5, 1.0, double{kLongest}));
}

}  // namespace ckpt::timewarp
