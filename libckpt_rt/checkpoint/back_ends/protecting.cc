#include "libckpt_rt/checkpoint/back_ends/protecting.h"

#include <errno.h>

#include <algorithm>

#include "base/checks/check.h"
#include "base/checks/named_points.h"
#include "base/clock.h"
#include "copier/segment_size.h"
#include "libckpt_rt/capture/process/process_state.h"
#include "libckpt_rt/checkpoint/account/progress.h"
#include "libckpt_rt/checkpoint/stages/callbacks.h"
#include "libckpt_rt/core/directory/log.h"
#include "libckpt_rt/core/threads/of_ours/own_threads.h"
#include "libckpt_rt/stop/stop_state.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

Result<void> ProtectingBackEnd::reserve(const Room& room) {
  const uint64_t segment = attempt_.in_force.segment_bytes, set = attempt_.settings.pool_bytes;
  open_pages_.make_list(attempt_.space.arena());
  // A buffer for every segment, and the reserve, which copies in order do not use.
  const uint64_t all = set + most_segments(room.memory, segment) * segment / 3 * 4;
  if (pool_size_ == PoolSize::kAllOfMemory && !pool_.reserve(all, segment)) {
    attempt_.space.note(
        kChanged,
        "no address space for a pool as large as memory (ulimit -v): mode realtime instead of "
        "realtime-large");
    pool_size_ = PoolSize::kAsSet;
    attempt_.cost.mode = Mode::kRealtime;
  }
  if (pool_size_ == PoolSize::kAsSet && !reserve_pool(set, segment))
    return no_memory("the buffer pool (CKPT_POOL)");
  attempt_.in_force.pool_bytes = pool_.buffers() * segment;
  // All that is appended lies in buffers of the pool, and in copies made in the pause, which stay to the end.
  attempt_.image.sink().hold_buffers(pool_.most_held());
  pool_.populate(std::min({room.memory.resident, uint64_t{BufferPool::kAheadBytes}, expected_bytes()}));
  return {};
}

// The pool of the checkpoint before, where one is left; else a new one.
bool ProtectingBackEnd::reserve_pool(uint64_t bytes, uint64_t segment) {
  const size_t whole = BufferPool::memory_bytes(bytes, segment);
  const SpareMemory::Block block = attempt_.watch.spare.take(SpareMemory::Use::kBuffers, whole, whole);
  if (block.range.empty()) return pool_.reserve(bytes, segment);
  pool_.adopt(block.range, block.touched, bytes, segment);
  return true;
}

void ProtectingBackEnd::release_buffers() {
  if (!attempt_.outcome.keeps_watch || pool_size_ != PoolSize::kAsSet) return pool_.release_memory();
  AddrRange touched;
  const AddrRange memory = pool_.hand_over(&touched);
  attempt_.watch.spare.give(SpareMemory::Use::kBuffers, {memory, touched});
}

// An increment is about as long as the one before: to clear more buffers than it needs takes longer than all
// else of a small one.
uint64_t ProtectingBackEnd::expected_bytes() const {
  constexpr uint64_t kHugePage = 2 << 20;
  const uint64_t before = attempt_.watch.image_bytes;
  return before == 0 ? UINT64_MAX : (2 * before + kHugePage - 1) / kHugePage * kHugePage;
}

Result<void> ProtectingBackEnd::open_image() {
  return attempt_.image.open(attempt_.space.log(), &buffer_released, this);
}

void ProtectingBackEnd::buffer_released(void* self, uint32_t buffer) {
  auto& b = *static_cast<ProtectingBackEnd*>(self);
  if (buffer != kNoBuffer) b.pool_.release(buffer);
  checkpoint_progress::written(b.copied_bytes());
}

void ProtectingBackEnd::add_own_ranges() {
  // Without room in the list the range is in the image, and is mapped again in vain.
  [[maybe_unused]] const bool added = attempt_.space.own(pool_.range());
}

// A seccomp filter that allows the calls always made here may kill a thread that makes another.
AddrRange ProtectingBackEnd::filled_from_own_side() const {
  return is_filtered() ? AddrRange{} : pool_.range();
}

Result<void> ProtectingBackEnd::catch_up() {
  auto done = arming_.catch_up();
  faults_ahead_ = arming_.faults();
  return done;
}

bool ProtectingBackEnd::writes_at_once() const {
  return pool_size_ == PoolSize::kAsSet || table_.size() > pool_.buffers() / 4 * 3;
}

// The stop leaves the table as it stays. With 4 GiB to count takes 0.7 ms.
void ProtectingBackEnd::plan() {
  planned_bytes_ = table_.bytes_to_copy() + attempt_.eager.bytes();
  checkpoint_progress::expect(planned_bytes_);
}

// Pages of zeros are not in the image.
uint64_t ProtectingBackEnd::copied_bytes() {
  return attempt_.image.sink().memory_bytes() +
         copier_.counters().zero_pages.load(std::memory_order_relaxed) * kPageSize;
}

// The device that copies in order are handed to (CKPT_ENGINE=dma). Without it they are made by the agent.
bool ProtectingBackEnd::start_engine() {
  if (!attempt_.settings.dma) return false;
  DmaSettings settings;
  settings.most_bytes = static_cast<uint32_t>(attempt_.in_force.segment_bytes);
  settings.burst_bytes = attempt_.settings.dma_burst_bytes;
  settings.speed.bytes_per_second = attempt_.settings.dma_bytes_per_second;
  engine_.emplace(source_, copier_.listener(), settings);
  if (engine_->reserve(attempt_.space.arena()) &&
      own_threads.engine.spawn([](void* e) { static_cast<DmaCopyEngine*>(e)->run(); }, &*engine_,
                               DescriptorTable::kShareWithCaller) == 0) {
    copier_.use(*engine_, attempt_.settings.dma_threshold);
    attempt_.in_force.engine = true;
    return true;
  }
  log_line(attempt_.space.log(),
           "the emulated device could not be started: copies are made by the processor; raise the limit on "
           "processes");
  return false;
}

// The copier need not be far ahead of a disk that it waits for in the end. A full image that fits into the
// pool is copied at once. An increment is small: to touch more buffers for it takes longer than to write from
// the same ones again.
void ProtectingBackEnd::limit_copies_ahead() {
  if (copies_before_go_) return;  // the program waits for the copies
  const uint64_t segment = table_.segment_bytes();
  const bool fits = planned_bytes_ - attempt_.eager.bytes() <= pool_.buffers() * segment / 4 * 3;
  if (pool_size_ == PoolSize::kAsSet && (!fits || attempt_.image.has_parent())) pool_.limit_sequential();
}

bool ProtectingBackEnd::copy_all() {
  const bool by_engine = start_engine();
  copier_.set_order(attempt_.settings.order);
  limit_copies_ahead();
  const bool complete = copier_.run(attempt_.in_force.increments);
  if (by_engine) {
    engine_->stop();
    own_threads.engine.join();
  }
  attempt_.copied_ns = now_ns();
  return complete;
}

int ProtectingBackEnd::ask_for_late_signal() const {
  return stop_state.world.signalled_late(now_ns() + attempt_.settings.stop_timeout_ns);
}

Error ProtectingBackEnd::memory_went() {
  attempt_.outcome.spoiled = true;
  return make_error(ExitCode::kInternal, EFAULT,
                    "memory at {:#x} went before it was copied ({}); the checkpoint was given up",
                    copier_.lost_at().value, copier_.lost_how());
}

Error ProtectingBackEnd::signalled_late(int late) {
  stop_state.look_at_signals = true;
  attempt_.outcome.spoiled = true;
  return late < 0
             ? make_error(ExitCode::kTimeout, 0,
                          "a thread has not gone on since the stop; the checkpoint is taken again")
             : make_error(
                   ExitCode::kInternal, 0,
                   "thread {} was sent a signal when it stood still already; the checkpoint is taken again",
                   late);
}

void ProtectingBackEnd::count() {
  const CopyCounters& counters = copier_.counters();
  CheckpointCost& cost = attempt_.cost;
  cost.longest_wait_ns = static_cast<int64_t>(counters.longest_wait_ns.load());
  cost.forced_copies = counters.forced.load();
  cost.sequential_copies = counters.sequential.load();
  cost.release_copies = counters.released.load();
  cost.faults = counters.faults.load();
  cost.pool_waits_forced = pool_.forced_waits();
  cost.pool_waits_sequential = pool_.sequential_waits();
  cost.account.faults_ahead = arming_.faults();
  cost.account.fault_wait_ns = static_cast<int64_t>(counters.all_waits_ns.load());
  cost.account.buffer_wait_ns = pool_.forced_wait_ns();
  cost.account.copier_wait_ns = pool_.sequential_wait_ns();
}

// While a watch is kept the size stays: what is protected is known by segment.
void ProtectingBackEnd::choose_next_segment() {
  if (!attempt_.settings.segment_auto || attempt_.in_force.increments) return;
  const uint64_t forced = attempt_.cost.forced_copies, in_order = attempt_.cost.sequential_copies;
  const uint64_t bytes = attempt_.in_force.segment_bytes, next = next_segment(bytes, forced, in_order);
  log_format(attempt_.space.log(), "segments of {} KiB; {} of {} copied by force; next {} KiB", bytes >> 10,
             forced, forced + in_order, next >> 10);
  in_force::set_next_segment(next);
}

Result<void> ProtectingBackEnd::finish() {
  before_go();
  // A callback may write more than the pool holds. With a pool for all of memory it cannot, but for memory
  // that came while protection was under way.
  const bool writes_in_stop =
      copies_before_go_ || (callbacks::any(CKPT_RT_AFTER_CHECKPOINT) && writes_at_once());
  if (writes_in_stop) {
    plan();
    writer_.write();
  }
  bool complete = true;
  if (copies_before_go_) {
    complete = copy_all();
    attempt_.clock.end(StopClock::kCopies);
  }
  attempt_.stop.go();
  points::at("copy.go");
  if (!writes_in_stop) plan();
  // Until here the writer would only keep a processor from the threads that go on.
  if (!writer_.writes() && writes_at_once()) writer_.write();
  attempt_.after_stop();

  if (!copies_before_go_) complete = copy_all();
  points::at("copy.done");
  attempt_.clock.log(attempt_.space.log(), attempt_.cost.pause_ns,
                     {faults_ahead_, arming_.faults() - faults_ahead_, arming_.passes()});
  if (!writer_.writes()) writer_.write();
  const Result<void> shared = await_sharers(complete);
  ArenaVector<AddrRange> inherited(attempt_.space.arena());
  const Result<void> listed = list_inherited(inherited);
  const Result<void> ended = after_copying();
  points::at("copy.ended");
  // No thread pushes any more. An event that was read has been acted on.
  complete = complete && !copier_.lost();
  queue_.close();
  writer_.end();
  points::at("writer.ended");
  for (const Result<void>& part : {writer_.result(), listed, ended, shared}) CKPT_TRY(part);
  if (!complete) return memory_went();
  // Most threads have left the stop long ago.
  if (const int late = finds_late_signals() ? late_signal() : 0; late != 0) return signalled_late(late);
  // Else an image without some of the memory would pass for whole. commit() asks for what checks have found.
  CHECK_EQ(planned_bytes_, copied_bytes());

  count();
  CKPT_TRY(attempt_.describe());
  if (attempt_.image.has_parent()) CKPT_TRY(attempt_.image.sink().inherit(inherited.span()));
  CKPT_TRY(attempt_.commit());
  attempt_.outcome.keeps_watch = attempt_.in_force.increments;
  choose_next_segment();
  return {};
}

}  // namespace ckpt
