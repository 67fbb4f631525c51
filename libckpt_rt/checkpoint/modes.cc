// What the modes do between stop and commit.

#include <errno.h>
#include <linux/sched.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <bit>
#include <cstring>

#include "base/clock.h"
#include "job/capture/session.h"
#include "libckpt_rt/checkpoint/progress.h"
#include "libckpt_rt/checkpoint/run.h"
#include "libckpt_rt/core/current_processor.h"
#include "libckpt_rt/core/library.h"
#include "libckpt_rt/core/log.h"
#include "libckpt_rt/protect/release_guard.h"

namespace ckpt {

Result<void> CheckpointRun::run() {
  CKPT_TRY(prepare());
  CKPT_TRY(job::prepared());
  CKPT_TRY(stop());
  CKPT_TRY(job::standing(stop_began_ns_));
  CKPT_TRY(while_stopped());
  CKPT_TRY(job::sampled(descriptors_));
  auto go = [&] {
    run_callbacks(CKPT_RT_AFTER_CHECKPOINT, library.stopped_threads);
    library.world.release();
    stopped_ = false;
    note_resumed();
  };
  switch (mode_) {
    case Mode::kSequential:
      CKPT_TRY(write_still_memory());
      go();
      descriptors_.release();
      CKPT_TRY(set_meta());
      return commit();
    case Mode::kConcurrent:
      copied_ns_ = now_ns();
      go();
      descriptors_.release();
      CKPT_TRY(sink_.append(eager_.span()));
      CKPT_TRY(set_meta());
      return commit();
    case Mode::kFork: {
      auto result = finish_fork();  // calls go by itself, between fork and waiting
      return result;
    }
    default:
      if (!is_guarded()) release_guard::open(copier_);
      expect_progress();
      // A callback may write more than the pool holds. In mode realtime-large it cannot, but for memory that
      // came while protection was under way.
      if (callbacks::any(CKPT_RT_AFTER_CHECKPOINT) && writes_at_once()) start_writer(WriterOrder::kWrite);
      go();
      // Else it would only keep a processor from those who go on.
      if (!writer_started_ && writes_at_once()) start_writer(WriterOrder::kWrite);
      descriptors_.release();
      return finish_realtime();
  }
}

void CheckpointRun::note_resumed() {
  cost_.resumed_ns = library.world.resumed_ns(now_ns());
  cost_.pause_ns = cost_.resumed_ns - stop_began_ns_;
}

bool CheckpointRun::writes_at_once() const {
  return mode_ == Mode::kRealtime || table_.size() > pool_.buffers() / 4 * 3;
}

void CheckpointRun::expect_progress() {
  uint64_t bytes = table_.bytes_to_copy();
  for (const CopiedSegment& s : eager_)
    bytes += static_cast<uint64_t>(std::popcount(s.page_mask)) * kPageSize;
  checkpoint_progress::expect(bytes);
}

// The device that copies in order are handed to (CKPT_ENGINE=dma). Without it they are made by the agent.
bool CheckpointRun::start_engine() {
  DmaSettings settings;
  settings.most_bytes = static_cast<uint32_t>(library.settings.segment_bytes);
  settings.burst_bytes = library.settings.dma_burst_bytes;
  settings.speed.bytes_per_second = library.settings.dma_bytes_per_second;
  engine_.emplace(protection_, copier_.listener(), settings);
  if (!engine_->reserve(arena_)) return false;
  const long r = library.engine.spawn([](void* engine) { static_cast<DmaCopyEngine*>(engine)->run(); },
                                      &*engine_, DescriptorTable::kShareWithCaller);
  if (r != 0) return false;
  copier_.use(*engine_, library.settings.dma_threshold);
  return true;
}

void CheckpointRun::start_writer(WriterOrder order) {
  writer_started_ = true;
  if (writer_processors_bytes_ != 0) {
    sys::call(__NR_sched_setaffinity, library.writer.tid(), writer_processors_bytes_, writer_processors_);
  }
  writer_order_.store(static_cast<uint32_t>(order), std::memory_order_release);
  futex_wake(writer_order_);
}

// The scheduler likes to wake a thread where it ran last or where it is woken, and does not look for an idle
// processor after threads that kept all of them busy: it is told to stay away from the agent's. Should that
// one be busy with something else after all, the agent does the work itself.
Beside CheckpointRun::writer_beside() {
  if (!writer_spawned_ || library.writer.tid() == 0) return {};
  const long bytes =
      sys::call(__NR_sched_getaffinity, library.writer.tid(), sizeof(writer_processors_), writer_processors_);
  writer_processors_bytes_ = bytes > 0 ? static_cast<uint32_t>(bytes) : 0;
  int processors = 0;
  for (uint32_t i = 0; i < writer_processors_bytes_; ++i) processors += std::popcount(writer_processors_[i]);
  if (processors < 2) return {};
  Beside beside;
  beside.context = this;
  beside.start = [](void* self, void (*work)(void*), void* argument) {
    auto& run = *static_cast<CheckpointRun*>(self);
    run.writer_work_ = work;
    run.writer_work_argument_ = argument;
    const uint32_t here = current_processor();
    uint8_t others[sizeof(run.writer_processors_)];
    std::memcpy(others, run.writer_processors_, sizeof(others));
    if (here / 8 < run.writer_processors_bytes_) {
      others[here / 8] = static_cast<uint8_t>(others[here / 8] & ~(1u << here % 8));
      sys::call(__NR_sched_setaffinity, library.writer.tid(), run.writer_processors_bytes_, others);
    }
    run.writer_order_.store(static_cast<uint32_t>(WriterOrder::kHelp), std::memory_order_release);
    futex_wake(run.writer_order_);
  };
  beside.await = [](void* self) {
    auto& run = *static_cast<CheckpointRun*>(self);
    uint32_t order = static_cast<uint32_t>(WriterOrder::kHelp);
    if (run.writer_order_.compare_exchange_strong(order, static_cast<uint32_t>(WriterOrder::kWait),
                                                  std::memory_order_acquire)) {
      return run.writer_work_(run.writer_work_argument_);  // it has not begun
    }
    while ((order = run.writer_order_.load(std::memory_order_acquire)) ==
           static_cast<uint32_t>(WriterOrder::kHelping)) {
      futex_wait(run.writer_order_, order);
    }
  };
  return beside;
}

void CheckpointRun::writer_entry(void* self) { static_cast<CheckpointRun*>(self)->write_queue(); }

void CheckpointRun::write_queue() {
  constexpr size_t kMost = 64;
  // The sequential copier can fill three quarters of the pool, less the one buffer in its hand: a batch
  // must never be more than that, or each would wait for the other.
  const size_t quarter = pool_.buffers() / 4;
  const size_t wanted = quarter < 1 ? 1 : quarter > 16 ? 16 : quarter;
  for (;;) {
    // acquire: the work and its argument, and what the agent wrote before.
    uint32_t order = writer_order_.load(std::memory_order_acquire);
    if (order == static_cast<uint32_t>(WriterOrder::kLeave)) return;
    if (order == static_cast<uint32_t>(WriterOrder::kWrite)) break;
    if (order == static_cast<uint32_t>(WriterOrder::kWait)) {
      futex_wait(writer_order_, order);
      continue;
    }
    // The agent may take the order back until here.
    if (!writer_order_.compare_exchange_strong(order, static_cast<uint32_t>(WriterOrder::kHelping),
                                               std::memory_order_acquire))
      continue;
    writer_work_(writer_work_argument_);
    // release: what the work did is seen by the agent, which gives no other order before it sees this.
    writer_order_.store(static_cast<uint32_t>(WriterOrder::kWait), std::memory_order_release);
    futex_wake(writer_order_);
  }
  writer_result_ = sink_.append(eager_.span());
  CopiedSegment batch[kMost];
  while (size_t n = queue_.pop(batch, wanted, kMost)) {
    if (writer_result_.ok()) {
      writer_result_ = sink_.append({batch, n});
    } else {
      // The disk is full or broken. Threads in faults must not wait for buffers that never come back.
      for (size_t i = 0; i < n; ++i) pool_.release(batch[i].buffer);
    }
  }
}

// The copier need not be far ahead of a disk that it waits for in the end. What fits into the pool is copied
// at once; but not of an increment, which is small, and for which to touch more buffers takes longer than to
// write from the same ones again.
void CheckpointRun::limit_copies_ahead() {
  const uint64_t segment = table_.segment_bytes();
  const bool fits = table_.bytes_to_copy() <= pool_.buffers() * segment / 4 * 3;
  if (mode_ == Mode::kRealtime && (!fits || identity_.parent.sequence != 0))
    pool_.limit_sequential(kAheadBytes / segment);
}

Result<void> CheckpointRun::finish_realtime() {
  const bool by_engine = library.settings.dma && start_engine();
  if (library.settings.dma && !by_engine) {
    log_line(directory_.get(),
             "the emulated device could not be started: copies are made by the processor; raise the limit on "
             "processes");
  }
  copier_.set_order(library.settings.order);
  limit_copies_ahead();
  bool complete = copier_.run(keep_watch_);
  if (by_engine) {
    engine_->stop();
    library.engine.join();
  }
  copied_ns_ = now_ns();
  log_stop();
  if (!writer_started_) start_writer(WriterOrder::kWrite);
  const Result<void> inherited = inherit_unwritten();
  if (!is_guarded()) release_guard::close();
  Result<void> resumed;
  // Of the stop that was the image's: closing the guard takes another.
  auto signalled_late = [] {
    return library.world.signalled_late(now_ns() + library.settings.stop_timeout_ns);
  };
  const int late_under_guard = is_guarded() ? signalled_late() : 0;
  if (keep_watch_) {
    resumed = watch_.resume();
  } else if (is_guarded()) {
    close_guard();
  } else {
    take_protection_off();
    protection_.finish();
  }
  // Nobody pushes any more. An event that was read has been acted on.
  complete = complete && !copier_.lost();
  queue_.close();
  library.writer.join();
  for (const Result<void>& part : {writer_result_, inherited, resumed}) CKPT_TRY(part);
  if (!complete) {
    memory_vanished_ = true;
    return make_error(ExitCode::kInternal, EFAULT,
                      "memory at {:#x} went before it was copied ({}); the checkpoint was given up",
                      copier_.lost_at().value, copier_.lost_how());
  }
  // Most have left long ago.
  if (const int late = is_guarded() ? late_under_guard : signalled_late(); late != 0) {
    library.look_at_signals = true;
    memory_vanished_ = true;
    return late < 0
               ? make_error(ExitCode::kTimeout, 0,
                            "a thread has not gone on since the stop; the checkpoint is taken again")
               : make_error(
                     ExitCode::kInternal, 0,
                     "thread {} was sent a signal when it stood still already; the checkpoint is taken again",
                     late);
  }
  CKPT_TRY(set_meta());
  if (identity_.parent.sequence != 0) CKPT_TRY(sink_.inherit(inherited_.span()));
  CKPT_TRY(commit());
  kept_ = keep_watch_;
  // While a watch is kept the size stays: what is protected is known by segment.
  if (library.settings.segment_auto && !keep_watch_) {
    const uint64_t forced = copier_.counters().forced, in_order = copier_.counters().sequential;
    uint64_t& bytes = library.settings.segment_bytes;
    log_format(directory_.get(), "segments of {} KiB; {} of {} copied by force; next {} KiB", bytes >> 10,
               forced, forced + in_order, next_segment(bytes, forced, in_order) >> 10);
    bytes = next_segment(bytes, forced, in_order);
  }
  return {};
}

Result<void> CheckpointRun::write_still_memory() {
  // Nobody can write: the sink reads the program's pages in place, without a copy in between.
  CKPT_TRY(sink_.append(mode_ == Mode::kFork ? eager_.span() : std::span<CopiedSegment>()));
  std::byte* bounce = nullptr;
  for (SegmentId id{0}; id.value < table_.size(); ++id.value) {
    Segment& s = table_[id];
    const Region& region = table_.region(s);
    std::byte* data = s.base.as();
    uint64_t mask = s.present;
    // Files may be shorter than their mapping, and other mappings unreadable: through the kernel.
    const Mapping* m = map_.find(table_.window(s).start);
    const bool file = m != nullptr && m->inode != 0;
    if (!region.readable || file) {
      if (bounce == nullptr)
        bounce = static_cast<std::byte*>(arena_.allocate(table_.segment_bytes(), kPageSize));
      if (bounce == nullptr)
        return make_error(ExitCode::kInternal, ENOMEM, "no memory to read unreadable pages");
      for (uint64_t left = mask; left != 0; left &= left - 1) {
        uint64_t offset = static_cast<uint64_t>(std::countr_zero(left)) * kPageSize;
        if (still_memory_.read(bounce + offset, s.base + offset, kPageSize, region.readable) != 0) {
          if (!file) {
            return make_error(ExitCode::kInternal, EFAULT, "cannot read the program's memory at {:#x}",
                              s.base.value + offset);
          }
          mask &= ~(left & -left);
        }
      }
      data = bounce;
    }
    for (uint64_t left = file ? 0 : mask; left != 0; left &= left - 1) {
      int page = std::countr_zero(left);
      if (page_is_zero(data + static_cast<size_t>(page) * kPageSize)) mask &= ~(1ull << page);
    }
    if (mask == 0) continue;
    CopiedSegment segment{s.base, mask, data, kNoBuffer};
    CKPT_TRY(sink_.append({&segment, 1}));
    ++cost_.sequential_copies;
    copier_.counters().sequential.fetch_add(1, std::memory_order_relaxed);
  }
  copied_ns_ = now_ns();
  return {};
}

Result<void> CheckpointRun::finish_fork() {
  // The child reports through a page that both share.
  struct Report {
    bool ok;
    Error error;
    uint64_t bytes_memory, bytes_written, sequential;
  };
  long page =
      sys::call(__NR_mmap, 0L, kPageSize, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1L, 0L);
  if (sys::failed(page)) return make_error(ExitCode::kInternal, ENOMEM, "no memory for the child's report");
  static_assert(sizeof(Report) <= kPageSize);
  auto* report = reinterpret_cast<Report*>(page);
  // No exit signal: the program's wait() does not see a child it did not make.
  long child = sys::call(__NR_clone, 0L, 0L, 0L, 0L, 0L);
  if (child == 0) {
    if (job::session() != nullptr) job::session()->in_writing_child();
    cost_.pause_ns = now_ns() - stop_began_ns_;
    auto all = [&]() -> Result<void> {
      CKPT_TRY(still_memory_.open());  // /proc/self is another process now
      CKPT_TRY(open_sink());
      CKPT_TRY(write_still_memory());
      CKPT_TRY(set_meta());
      return commit();
    };
    auto result = all();
    report->ok = result.ok();
    if (!result.ok()) report->error = result.error();
    report->bytes_memory = cost_.bytes_memory;
    report->bytes_written = cost_.bytes_written;
    report->sequential = cost_.sequential_copies;
    sys::call(__NR_exit_group, 0L);
  }
  run_callbacks(CKPT_RT_AFTER_CHECKPOINT, library.stopped_threads);
  library.world.release();
  stopped_ = false;
  note_resumed();
  descriptors_.release();
  Result<void> result;
  if (sys::failed(child)) {
    result = make_error(ExitCode::kSystem, static_cast<int>(child),
                        "cannot fork ({}); raise the limits on memory and processes",
                        errno_name(static_cast<int>(child)));
  } else {
    int status = 0;
    while (sys::call(__NR_wait4, child, &status, __WCLONE, 0L) == -EINTR) {
    }
    if (!WIFEXITED(status)) {
      result = make_error(ExitCode::kInternal, 0, "the child that wrote the image was killed by signal {}",
                          WTERMSIG(status));
    } else if (!report->ok) {
      result = report->error;
    } else {
      cost_.bytes_memory = report->bytes_memory;
      cost_.bytes_written = report->bytes_written;
      cost_.sequential_copies = report->sequential;
      cost_.durable_ns = now_ns() - requested_ns_;
    }
  }
  sys::call(__NR_munmap, page, kPageSize);
  return result;
}

Result<void> CheckpointRun::commit() {
  log_heap();
  auto stats = sink_.commit();
  if (!stats.ok()) return stats.error();
  cost_.bytes_memory = stats->bytes_memory;
  cost_.bytes_written = stats->bytes_written;
  cost_.durable_ns = now_ns() - requested_ns_;
  watch_.parent = stats->as_parent;
  return {};
}

}  // namespace ckpt
