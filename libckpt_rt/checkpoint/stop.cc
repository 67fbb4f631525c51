// The stop: threads, and what is looked at while they stand.
#include <errno.h>

#include "base/clock.h"
#include "libckpt_rt/checkpoint/run.h"
#include "libckpt_rt/core/current_processor.h"
#include "libckpt_rt/core/library.h"
#include "libckpt_rt/core/log.h"
#include "libckpt_rt/entry/restart_entry.h"
#include "libckpt_rt/stop/critical_section.h"
#include "libckpt_rt/stop/stuck_thread.h"

namespace ckpt {

void CheckpointRun::run_callbacks(ckpt_rt_callback_kind kind, ThreadSlot* slot) {
  if (slot == nullptr || !callbacks::any(kind)) return;
  library.world.run_on(
      *slot, [](void* k) { callbacks::run(*static_cast<ckpt_rt_callback_kind*>(k)); }, &kind);
}

Result<void> CheckpointRun::stop() {
  const bool helpers = protects_memory(mode_);
  int own_tids[] = {sys::gettid(), helpers ? library.fault_handler.tid() : 0,
                    helpers ? library.writer.tid() : 0};
  StopWorld::Call call{own_tids, waiting_.span(), library.signal, library.settings.stop_timeout_ns};
  struct Meanwhile {
    Arming& arming;
    Result<void> result;
    uint64_t faults;
  } meanwhile{arming_, {}, arming_.faults()};
  ahead_ = is_guarded() ? guard_open_ : helpers;
  if (ahead_) {
    call.argument = &meanwhile;
    call.meanwhile = [](void* argument) {
      auto& m = *static_cast<Meanwhile*>(argument);
      if (m.result.ok()) m.result = m.arming.catch_up();
      m.faults = m.arming.faults();
    };
  }
  int stuck = 0;
  const int64_t deadline = now_ns() + library.settings.stop_timeout_ns;
  StopWorld::Stopped stopped_threads;
  for (;;) {
    auto stopped = library.world.stop(call, arena_, &stuck);
    if (!stopped.ok()) {
      const Mapping* own = map_before_.find(Addr::of(reinterpret_cast<const void*>(&ckpt_restart_entry)));
      if (stuck != 0 && own != nullptr && library.settings.log) {
        log_backtrace(directory_.get(), {own->path, own->path_len}, library.pid, stuck, arena_);
      }
      return stopped.error();
    }
    stopped_threads = *stopped;
    stop_called_ns_ = stopped->called_ns;
    stop_began_ns_ = stopped->began_ns;
    stopped_ = true;
    if (critical_section::none_inside()) break;
    // Who is inside may wait for the end of the guard, to make a thread for example.
    if (guard_open_) {
      log_line(directory_.get(),
               "a thread is in its critical section: memory is protected in the stop, which lasts longer");
      leave_guard_stopped(stopped->first, true);
      call.meanwhile = nullptr;
    }
    library.world.release();
    stopped_ = false;
    if (!critical_section::await_none(deadline)) {
      return make_error(
          ExitCode::kTimeout, 0,
          "a thread stayed in its critical section (ckpt_rt_enter_critical) longer than CKPT_STOP_TIMEOUT");
    }
  }
  faults_ahead_ = meanwhile.faults;
  const StopWorld::Stopped* stopped = &stopped_threads;
  library.stopped_threads = stopped->first;
  if (guard_open_) leave_guard_stopped(stopped->first, false);
  CKPT_TRY(std::move(meanwhile.result));
  run_callbacks(CKPT_RT_BEFORE_CHECKPOINT, stopped->first);

  library.leader_exited = stopped->leader_exited;
  CKPT_TRY(collect_signals(*stopped));
  if (stopped->leader_exited) {
    StoppedThread leader{};
    leader.record.tid = library.pid;
    leader.record.flags = kThreadLeader | kThreadLeaderExited;
    if (!threads_.push_back(leader)) return no_memory("the list of threads");
  }
  // The leader's record comes first.
  for (bool leaders : {true, false}) {
    for (ThreadSlot* s = stopped->first; s != nullptr; s = s->next) {
      if ((s->tid == library.pid) != leaders) continue;
      StoppedThread t;
      describe_thread(*s, library.pid, t);
      if (!threads_.push_back(t)) return no_memory("the list of threads");
    }
  }
  for (uint32_t i = 0; i < library.pending.count; ++i) {
    const PendingSignal& saved = library.pending.list[i];
    PendingSignalRecord p{saved.tid, saved.signal, {}};
    std::memcpy(p.info, &saved.info, sizeof(p.info));
    if (!pending_.push_back(p)) return no_memory("the list of pending signals");
  }
  if (library.pending.overflow)
    note(1, "more than 4096 signals are pending: those beyond are lost at restart");
  cost_.threads = static_cast<uint32_t>(threads_.size());
  ends(kThreads);
  return {};
}

// Pending signals and timers: one is what becomes of the other.
Result<void> CheckpointRun::collect_signals(const StopWorld::Stopped& stopped) {
  // In other modes the image may be complete before anybody has left, and the pause is long anyway.
  const bool look_at_all = !protects_memory(mode_) || library.look_at_signals;
  ProcessTimers& timers = library.process.timers;
  auto* before = static_cast<TimersLeft*>(arena_.allocate(sizeof(TimersLeft)));
  if (before == nullptr) return no_memory("the list of timers");
  constexpr size_t kText = 64 << 10;
  auto* text = static_cast<char*>(arena_.allocate(kText));
  if (text == nullptr) return no_memory("the text on timers");
  const long n = texts_.read(ProcessTexts::kTimers, 0, false, text, kText);
  CKPT_TRY(list_timers({text, n > 0 ? static_cast<size_t>(n) : 0}, timers));
  read_timers(timers);
  note_left(timers, *before);
  library.world.collect_pending(stopped, {1ull << (library.signal - 1), timers, look_at_all},
                                library.pending);
  read_timers(timers);
  add_expired(timers, *before, library.signal, library.pending);
  return {};
}

// The first that is started must not come to our processor, and hold us up; the second not to the first
// one's. A virtual processor at rest does not count as idle for the kernel: a thread that is woken comes to
// where it was last, or to ours.
DescriptorExecutor CheckpointRun::on_stopped_threads() {
  samplers_ = {};
  DescriptorExecutor executor;
  executor.context = &samplers_;
  executor.run = [](void*, void (*work)(void*), void* argument) {
    library.world.run_on(*library.world.alone(0), work, argument);
  };
  executor.start = [](void* context, void (*work)(void*), void* argument) {
    Samplers& samplers = *static_cast<Samplers*>(context);
    const uint32_t busy = samplers.count == 0 ? current_processor() : samplers.slots[0]->processor;
    ThreadSlot* chosen = nullptr;
    for (uint32_t i = 0; i < StopWorld::kAlone; ++i) {
      ThreadSlot* slot = library.world.alone(i);
      if (slot == nullptr || (samplers.count != 0 && slot == samplers.slots[0])) continue;
      if (chosen == nullptr || (chosen->processor == busy && slot->processor != busy)) chosen = slot;
    }
    if (chosen == nullptr || samplers.count == std::size(samplers.slots)) return;
    samplers.slots[samplers.count++] = chosen;
    library.world.start_on(*chosen, work, argument);
  };
  executor.await = [](void* context) {
    for (Samplers& samplers = *static_cast<Samplers*>(context); samplers.count != 0;)
      library.world.await(*samplers.slots[--samplers.count]);
  };
  return executor;
}

Result<void> CheckpointRun::while_stopped() {
  // The leader may have exited; any stopped thread shows the same descriptors, directory and ids.
  const int tid = library.stopped_threads != nullptr ? library.stopped_threads->tid : library.pid;
  DescriptorExecutor executor;
  if (library.stopped_threads != nullptr) executor = on_stopped_threads();
  struct Sampling {
    DescriptorCapture& descriptors;
    ~Sampling() { descriptors.await_samples(); }
  } sampling{descriptors_};
  CKPT_TRY(descriptors_.begin_sampling(tid, executor));

  CKPT_TRY(map_.read_again(own_.span(), beside_));
  map_.copy_flags_from(map_before_);
  map_.check_other_names();
  watch_.look_up_in(&map_);
  cost_.mappings = static_cast<uint32_t>(map_.mappings().size());
  if (keep_watch_ && map_.has_pinned_pages()) keep_watch_ = false;
  ends(kMappings);
  CKPT_TRY(read_process_facts(arena_, texts_, tid, library.leader_exited, facts_));
  capture_process_state_stopped(texts_, library.process);
  library.process.cap_ambient = facts_.process.cap_ambient;
  for (const ThreadSlot* s = library.stopped_threads; s != nullptr; s = s->next)
    facts_.parent_death_signal |= s->parent_death_signal;
  ends(kProcess);

  ArenaVector<MappedFileRange> mapped(arena_);
  for (const Mapping& m : map_.mappings()) {
    if (!m.shared || !m.whole || m.handling == Handling::kSkip || m.inode == 0) continue;
    if (!mapped.push_back({m.device, m.inode, m.file_offset, m.range.size()}))
      return no_memory("the list of mappings");
  }
  descriptors_.skip_mapped(mapped.span());
  CKPT_TRY(descriptors_.recheck_stopped(tid, executor));
  cost_.descriptors = static_cast<uint32_t>(descriptors_.descriptor_count());
  judge_restart();
  ends(kDescriptors);

  CKPT_TRY(list_free_heap());
  if (is_guarded()) return settle_guarded();
  if (protects_memory(mode_)) return settle_protection();
  if (mode_ == Mode::kConcurrent) {
    for (Mapping& m : map_.mappings()) {
      if (m.handling != Handling::kSkip) m.handling = Handling::kEager;
    }
  }
  if (mode_ == Mode::kFork) {
    // What a forked child does not get a copy of: shared memory, and what the program excluded from fork.
    for (Mapping& m : map_.mappings()) {
      if (m.handling == Handling::kSkip) continue;
      const bool copied_by_fork = !m.shared && (m.map_flags & (kMapDontFork | kMapWipeOnFork)) == 0;
      m.handling = copied_by_fork ? Handling::kTracked : Handling::kEager;
    }
  }
  CKPT_TRY(list_pages());
  return mode_ == Mode::kSequential ? Result<void>() : copy_eagerly();
}

void CheckpointRun::ends(StopPart part) { stop_part_ends_ns_[part] = now_ns(); }

void CheckpointRun::log_stop() {
  int64_t us[kStopParts];
  for (int64_t i = 0, before = stop_began_ns_; i < kStopParts; before = stop_part_ends_ns_[i++]) {
    us[i] = stop_part_ends_ns_[i] == 0 ? 0 : (stop_part_ends_ns_[i] - before) / 1000;
  }
  // All have left, or one that waited still waits for a processor.
  int64_t last = 0;
  if (!library.world.all_left(&last)) last = now_ns();
  log_format(directory_.get(),
             "stop {} us (of those that waited {}): threads {}, mappings {}, descriptors {}, process {}, "
             "protection {}, copies {}; {} faults; ahead "
             "of it {} passes, {} faults",
             cost_.pause_ns / 1000, (last - stop_called_ns_) / 1000, us[kThreads], us[kMappings],
             us[kDescriptors], us[kProcess], us[kProtection], us[kCopies], arming_.faults() - faults_ahead_,
             arming_.passes(), faults_ahead_);
}

}  // namespace ckpt
