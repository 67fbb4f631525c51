// A thread of the optimistic engine.
//
// Owner:     the simulation (Setup::workers).
// Callers:   run(): its thread. The channels, Gvt, `clock` and `memory` are all that threads share while they
//            run.
// Never:     waits for another thread, but at the start and, without work, for a message.
//
// Who may touch an event, and when:
//   sender      allocates it from its pool for the receiver's thread, fills it in, links it into the record
//               of its cause (first_sent, next_sent), and gives it away: into its own queue or into a channel.
//               From then on the sender only reads time, order and sender, which never change, and
//               next_sent, which nobody else writes.
//   receiver    owns everything else: status, queue entry, record. It drops the event (a) when it is final,
//               (b) when a cancellation has come and the event has left the queue.
//   cancelling  the sender puts the same pointer into the same channel a second time, marked. The channel is
//               in order, so the receiver files the event before it cancels it. The sender reads next_sent
//               before that, because the receiver may drop the event at once.
//   final       a record and its event are dropped only if their key is below GVT. Then their cause is below
//               GVT as well (a key is above its cause's), so nobody will walk the cause's list of sent events
//               any more: the pointers left there are dead, and not read.
//   stragglers  are found when they come out of the queue: an event below the LP's last executed one. Until
//               then they are in the queue, and so in the report for GVT.
//
// The history is a ring of records in the order of execution. An LP's records are linked by position, newest
// first; a position below `head_` means: final, dropped. An undone event leaves a hole. Final records are
// dropped from the head on, so fossil collection touches nothing but what it drops.
#pragma once

#include <atomic>
#include <deque>
#include <map>

#include "timewarp/engine/queue/event_queue.h"
#include "timewarp/engine/setup.h"
#include "timewarp/engine/trace.h"
#include "timewarp/engine/window.h"
#include "timewarp/state/state_saver.h"

namespace ckpt::timewarp {

struct WorkerCounters {
  uint64_t executed = 0, committed = 0, rolled_back = 0, rollbacks = 0, stragglers = 0, cancelled = 0;
  uint64_t remote = 0, stalls = 0, cancelbacks = 0, events_digest = 0;
};

class Worker final : public Executor, private History {
 public:
  Worker(Setup& setup, unsigned number);

  void run(std::barrier<>& start);

  // Executor, for handlers.
  void send(Lp& lp, uint32_t to, double delay, const void* message, size_t bytes) override;
  void save(Lp& lp, const void* at, size_t bytes) override;
  void resize(Lp& lp, size_t bytes) override;
  uint64_t* bits(Lp&) override { return record_ != nullptr ? &record_->bits : &no_bits_; }
  void fail(Lp& lp, const char* what) override;
  void* context() const override { return setup_.model.context; }

  // For everybody, as hints: nothing depends on their being exact.
  struct alignas(128) Shared {
    std::atomic<double> clock{0};          // time of the first event in the queue
    std::atomic<int64_t> memory{0};        // bytes taken minus bytes free
    std::atomic<uint64_t> uncommitted{0};  // records
    std::atomic<uint64_t> committed{0}, rolled_back{0};
  };
  Shared shared;

  // After the run.
  const WorkerCounters& counters() const { return counters_; }
  const StateCounters& state_counters() const { return states_.counters(); }
  uint64_t gvt_rounds() const { return rounds_; }
  uint64_t peak_bytes() const { return peak_bytes_; }
  double window() const { return window_.width(); }
  Trace& trace() { return trace_; }
  // Events that were given to other threads' pools too often: a crate of free blocks.
  void accept_blocks(std::vector<void*>&& blocks);

 private:
  static constexpr double kNone = -1;
  struct Slot {
    double time;
    Record* record;  // nullptr: undone
  };

  void place_lps();
  void loop();
  size_t receive();
  void send_away(Lp& lp, uint32_t to, double time, uint64_t order, const void* message, size_t bytes);
  size_t receive_from_away();
  void drop_proxies();
  bool step();
  void execute(Lp& lp, Event* event);
  void undo_from(Lp& lp, const Key& key);
  void cancel_all_sent(Record& record);
  void cancel(Event* event);
  void cancel_here(Event* event);
  void handle_cancellations();
  void drop_event(Event* event, uint16_t from);
  void collect(const Key& gvt);
  void commit(Record& record);
  void grow_ring();
  void on_gvt();
  void look_for_gvt();
  void set_limit();
  bool all_flushed();
  Key settle_for_gvt();
  void enforce_memory_limit(bool new_gvt);
  void cancel_back();
  void purge_queue();
  void overtaken(const Key& key, uint32_t receiver);
  void report_failure(const Key& key, uint32_t receiver);

  Record* record_at(uint64_t position) override {
    return position >= head_ && position < tail_ ? ring_[position & ring_mask_].record : nullptr;
  }
  void repeat(Lp& lp, Record& record) override;
  void drop(Record& record) override;

  Event* take_event_for(unsigned to);  // another thread
  Record* take_record() { return static_cast<Record*>(records_.take()); }

  Setup& setup_;
  const unsigned number_;
  const double end_;
  Regions regions_;
  std::vector<Pool> events_;  // for events to each thread
  Pool records_;
  EventQueue queue_;
  StateSaver states_;
  GvtParty party_;
  Trace trace_;
  std::vector<Channel*> out_, in_;

  std::vector<Slot> ring_;
  uint64_t ring_mask_ = 0, head_ = 1, tail_ = 1;

  // The event being executed.
  Record* record_ = nullptr;
  Event* event_ = nullptr;
  bool repeating_ = false;
  uint64_t no_bits_ = 0;
  bool failing_ = false;
  std::string failure_;

  // The event whose handler failed: it is in the queue and is not executed again before all below it is
  // final.
  bool stuck_ = false;
  Key stuck_key_;
  uint32_t stuck_lp_ = 0;
  std::string stuck_text_;

  // With other processes: messages sent there, by the time of their cause; messages from there, by sender and
  // order.
  std::deque<std::pair<double, Event*>> proxies_;
  std::map<std::pair<uint32_t, uint64_t>, Event*> foreign_;

  std::vector<Event*> to_cancel_;  // of this thread, to be handled after the rollback under way
  Key gvt_;
  bool done_ = false, want_gvt_ = false;
  double limit_ = 0;
  Window window_;
  uint64_t most_uncommitted_ = 0;
  bool waits_for_gvt_ = false;  // too much is uncommitted: nothing runs beyond reached_
  double reached_ = 0;
  uint64_t rounds_ = 0, since_gvt_ = 0;
  bool over_memory_ = false;
  Key fresh_gvt_;  // of the round that was asked for when memory was short
  uint64_t over_rounds_ = 0;
  uint64_t peak_bytes_ = 0;
  uint64_t event_cycles_ = 0, event_samples_ = 0;
  int64_t next_progress_ = 0;
  WorkerCounters counters_;

  // Blocks that other threads have sent home.
  std::mutex crates_lock_;
  std::vector<std::vector<void*>> crates_;
  std::atomic<bool> has_crates_{false};
};

}  // namespace ckpt::timewarp
