#include "libckpt_rt/checkpoint/stages/stop.h"

#include <errno.h>

#include "base/checks/check.h"
#include "base/clock.h"
#include "job/identity/own_job.h"
#include "job/session/connecting.h"
#include "job/session/session.h"
#include "libckpt_rt/capture/advice/memory_advice.h"
#include "libckpt_rt/capture/advice/memory_settings.h"
#include "libckpt_rt/capture/aio/aio_contexts.h"
#include "libckpt_rt/capture/memory/droppable_maps.h"
#include "libckpt_rt/capture/memory/heap_extents.h"
#include "libckpt_rt/capture/memory/memfd_views.h"
#include "libckpt_rt/capture/memory/protection_keys.h"
#include "libckpt_rt/capture/process/process_state.h"
#include "libckpt_rt/capture/rings/rings.h"
#include "libckpt_rt/capture/system_v/system_v.h"
#include "libckpt_rt/capture/threads/own_directories.h"
#include "libckpt_rt/capture/threads/thread_users.h"
#include "libckpt_rt/checkpoint/stages/back_end.h"
#include "libckpt_rt/checkpoint/stages/callbacks.h"
#include "libckpt_rt/checkpoint/stages/restart_verdict.h"
#include "libckpt_rt/checkpoint/stages/stopped_samplers.h"
#include "libckpt_rt/core/directory/log.h"
#include "libckpt_rt/core/process/fork/own_page.h"
#include "libckpt_rt/core/process/restart_entry.h"
#include "libckpt_rt/core/process/seccomp/own_filters.h"
#include "libckpt_rt/core/process/seccomp/seccomp_state.h"
#include "libckpt_rt/core/process/this_process.h"
#include "libckpt_rt/core/request/own_signal.h"
#include "libckpt_rt/core/threads/of_ours/own_threads.h"
#include "libckpt_rt/protect/watch.h"
#include "libckpt_rt/stop/critical_section.h"
#include "libckpt_rt/stop/stop_state.h"
#include "libckpt_rt/stop/stuck_thread.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

void Stop::run_callbacks(ckpt_rt_callback_kind kind, ThreadSlot* slot) {
  if (slot == nullptr || !callbacks::any(kind)) return;
  stop_state.world.run_on(
      *slot, [](void* k) { callbacks::run(*static_cast<ckpt_rt_callback_kind*>(k)); }, &kind);
}

Result<void> Stop::stop(BackEnd& back_end) {
  auto stopped = stop_threads(back_end);
  if (!stopped.ok()) return stopped.error();
  if (stopped->first == nullptr) return program_ended();
  stop_state.leader_exited = stopped->leader_exited;
  CKPT_TRY(parts_.capture.descriptors.check_permissions(stop_state.first_thread()));
  run_callbacks(CKPT_RT_BEFORE_CHECKPOINT, stopped->first);
  CKPT_TRY(list_threads(*stopped));
  parts_.clock.end(StopClock::kThreads);
  return {};
}

// Only our own threads are left: the last of the program has ended past libc (SYS_exit), and the process ends
// with ours. In a job the next attempt finds what it leaves to its parent.
Error Stop::program_ended() {
  if (job::Session* session = job::session()) session->again = session->came_or_went = true;
  return make_error(ExitCode::kNoProcess, 0, "its last thread has ended while the checkpoint was taken");
}

Result<StopWorld::Stopped> Stop::stop_threads(BackEnd& back_end) {
  const RunningOwnThreads ours;
  StopWorld::Call call{ours.ids(), parts_.capture.waiting.span(), own_signal.number,
                       parts_.settings.stop_timeout_ns};
  struct Meanwhile {
    BackEnd& back_end;
    Result<void> result;
  } meanwhile{back_end, {}};
  if (back_end.protects_ahead()) {
    call.argument = &meanwhile;
    call.meanwhile = [](void* argument) {
      auto& m = *static_cast<Meanwhile*>(argument);
      if (m.result.ok()) m.result = m.back_end.catch_up();
    };
  }
  const int64_t deadline = now_ns() + parts_.settings.stop_timeout_ns;
  for (;;) {
    int stuck = 0;
    auto stopped = stop_state.world.stop(call, parts_.space.arena(), &stuck);
    if (!stopped.ok()) {
      log_stuck(stuck);
      return stopped.error();
    }
    parts_.clock.begin(stopped->called_ns, stopped->began_ns);
    stands_ = true;
    // A callback may connect while all stand, and whoever is in a critical section may wait for a thread that
    // does.
    job::connecting::release();
    if (critical_section::none_inside()) {
      stop_state.threads = stopped->first;
      back_end.threads_stand(stopped->first);
      CKPT_TRY(std::move(meanwhile.result));
      return stopped;
    }
    if (!back_end.stood_in_vain(stopped->first)) call.meanwhile = nullptr;
    release();
    if (!critical_section::await_none(deadline)) {
      return critical_section::stayed_too_long();
    }
  }
}

void Stop::log_stuck(int tid) {
  const Mapping* own = parts_.capture.map_before.find(Addr{reinterpret_cast<uint64_t>(&ckpt_restart_entry)});
  if (tid == 0 || own == nullptr || !parts_.settings.log) return;
  log_backtrace(parts_.space.log(), {own->path, own->path_len}, this_process.pid, tid, parts_.space.arena());
}

Result<void> Stop::list_threads(const StopWorld::Stopped& stopped) {
  look_up_users_of_unasked(stopped.first);
  own_filters::look_stopped(stopped.first, seccomp_state.before_program);
  ArenaVector<StoppedThread>& threads = parts_.capture.threads;
  if (stopped.leader_exited) {
    StoppedThread leader{};
    leader.record.tid = this_process.pid;
    leader.record.flags = kThreadLeader | kThreadLeaderExited;
    if (!threads.push_back(leader)) return no_memory("the list of threads");
  }
  // The leader's record comes first.
  for (bool leaders : {true, false}) {
    for (ThreadSlot* s = stopped.first; s != nullptr; s = s->next) {
      if ((s->tid == this_process.pid) != leaders) continue;
      StoppedThread t;
      describe_thread(*s, this_process.pid, t);
      if (!threads.push_back(t)) return no_memory("the list of threads");
    }
  }
  parts_.cost.threads = static_cast<uint32_t>(threads.size());
  return {};
}

// An expired timer becomes a pending signal: both are captured together. Of a job all members stand: what one
// sends another before it stands is pending by then.
Result<void> Stop::list_signals(const BackEnd& back_end) {
  Arena& arena = parts_.space.arena();
  ProcessTimers& timers = saved_process.timers;
  auto* before = static_cast<TimersLeft*>(arena.allocate(sizeof(TimersLeft)));
  if (before == nullptr) return no_memory("the list of timers");
  constexpr size_t kText = 64 << 10;
  auto* text = static_cast<char*>(arena.allocate(kText));
  if (text == nullptr) return no_memory("the text on timers");
  const long n = parts_.capture.texts.read(ProcessTexts::kTimers, 0, false, text, kText);
  if (n < 0 && has_some_timer()) {
    parts_.space.note(kNoRestart,
                      "the program has a POSIX timer (timer_create), and this kernel does not list them in "
                      "/proc/PID/timers "
                      "(CONFIG_CHECKPOINT_RESTORE): after a restart it would have none");
  }
  CKPT_TRY(list_timers({text, n > 0 ? static_cast<size_t>(n) : 0}, timers));
  read_timers(timers);
  note_left(timers, *before);
  const bool look_at_all = !back_end.finds_late_signals() || stop_state.look_at_signals;
  stop_state.world.collect_pending(stop_state.threads, {1ull << (own_signal.number - 1), timers, look_at_all},
                                   pending_at_stop);
  read_timers(timers);
  add_expired(timers, *before, own_signal.number, pending_at_stop);
  for (uint32_t i = 0; i < pending_at_stop.count; ++i) {
    const PendingSignal& saved = pending_at_stop.list[i];
    PendingSignalRecord p{saved.tid, saved.signal, {}};
    std::memcpy(p.info, &saved.info, sizeof(p.info));
    if (!parts_.capture.pending.push_back(p)) return no_memory("the list of pending signals");
  }
  if (pending_at_stop.overflow)
    parts_.space.note(kChanged, "more than 4096 signals are pending: those beyond are lost at restart");
  return {};
}

namespace {

void run_on_stopped(ThreadSlot& thread, void (*work)(void*), void* argument) {
  stop_state.world.run_on(thread, work, argument);
}

}  // namespace

Result<void> Stop::look(Watch& watch) {
  ProcessCapture& capture = parts_.capture;
  StopClock& clock = parts_.clock;
  const int tid = stop_state.first_thread();
  // What any thread of the process finds the same: some hundred calls, which one makes that has little to
  // sample.
  StoppedSamplers samplers(
      [](void* texts) {
        const bool filtered = static_cast<const ProcessTexts*>(texts)->filtered();
        capture_shared_state_stopped(filtered, saved_process);
        protection_keys::look_for_keys_stopped(filtered);
      },
      &capture.texts);
  OtherThreads sharers;
  if (stop_state.threads != nullptr) sharers = samplers.threads();
  struct Sampling {
    DescriptorCapture& descriptors;
    ~Sampling() { descriptors.await_samples(); }
  } sampling{capture.descriptors};
  // Before descriptors are looked at: a request that ends may count in an eventfd.
  capture.between_requests = aio_contexts::drain(stop_state.threads) == aio_contexts::Drained::kBetween ||
                             rings::drain(stop_state.threads, capture.map_before.mappings(),
                                          &run_on_stopped) == rings::Drained::kBetween;
  if (capture.between_requests) {
    return make_error(ExitCode::kUnavailable, 0,
                      "a thread was between a call of io_submit, io_setup, io_destroy, io_uring_setup or "
                      "io_uring_register and its result; the "
                      "checkpoint is taken again");
  }
  CKPT_TRY(capture.descriptors.begin_sampling(tid, sharers));

  CKPT_TRY(capture.map.read_again(parts_.space.own(), capture.others));
  memory_advice::add_recent_flags(capture.map);
  confirm_droppable(capture.map.mappings(), capture.texts.filtered());
  capture.map.check_other_names();
  capture.files.look_again(capture.map);
  if (capture.map.has_unknown_name()) {
    return make_error(
        ExitCode::kUnavailable, 0,
        "a file was mapped while the checkpoint began, and lost the name that it was mapped by; "
        "whether it has another is looked for when the checkpoint is taken again");
  }
  if (!memory_settings::capture_stopped(capture.map.mappings())) {
    parts_.space.note(
        kChanged,
        "after a restart some guard regions (MADV_GUARD_INSTALL), sealed memory (mseal) or parts with a "
        "policy (mbind) are ordinary memory. There are more than are remembered, or this kernel (Linux 6.13, "
        "6.14) shows guard regions to nobody");
  }
  watch.look_up_in(&capture.map);
  parts_.cost.mappings = static_cast<uint32_t>(capture.map.mappings().size());
  clock.end(StopClock::kMappings);

  CKPT_TRY(
      read_process_facts(parts_.space.arena(), capture.texts, tid, stop_state.leader_exited, capture.facts));
  CKPT_TRY(job::ExpectAlone::check(capture.facts.has_children));
  // Children that belong to a job are saved with it.
  if (capture.facts.has_children && job::session() == nullptr)
    capture.facts.children = list_children(parts_.space.arena());
  capture_process_state_stopped(capture.texts, saved_process);
  own_directories::capture_stopped(stop_state.threads, tid);
  saved_process.cap_bounding = capture.facts.process.cap_bounding;
  saved_process.cap_ambient = capture.facts.process.cap_ambient;
  saved_process.stop_signal = job::stop_signal();
  saved_process.continued = capture.facts.continued;
  for (const ThreadSlot* s = stop_state.threads; s != nullptr; s = s->next)
    capture.facts.parent_death_signal |= s->parent_death_signal;
  auto system_v = capture_system_v(parts_.space.arena());
  if (!system_v.ok()) return system_v.error();
  capture.system_v = system_v->objects.span();
  for (const char* why : system_v->forbids_restart) parts_.space.note(kNoRestart, why);
  for (const char* what : system_v->lost) parts_.space.note(kChanged, what);
  samplers.begin_rest();
  clock.end(StopClock::kProcess);

  CKPT_TRY(look_at_descriptors(tid, sharers));  // which awaits the samplers
  if (!capture.texts.filtered()) {
    const char* lost = protection_keys::capture_stopped(capture.map.mappings());
    if (lost != nullptr) parts_.space.note(kChanged, lost);
  }
  clock.end(StopClock::kDescriptors);
  return heap_extents::collect_free(capture.still_memory, parts_.space.arena(), capture.free_heap)
             ? Result<void>()
             : no_memory("the list of free memory");
}

Result<void> Stop::look_at_descriptors(int tid, OtherThreads sharers) {
  ProcessCapture& capture = parts_.capture;
  ArenaVector<MappedFileRange> mapped(parts_.space.arena());
  for (const Mapping& m : capture.map.mappings()) {
    if (!m.shared || !m.whole || m.handling == Handling::kSkip || m.inode == 0) continue;
    if (!mapped.push_back({m.device, m.inode, m.file_offset, m.range.size()}))
      return no_memory("the list of mappings");
  }
  capture.descriptors.skip_mapped(mapped.span());
  ArenaVector<AddrRange> own(parts_.space.arena());
  for (const AddrRange& r : parts_.space.own()) {
    // There for as long as the program.
    if (r.start == own_page::range().start || r.start == own_signal.sign.start ||
        r.start == job::own_job.sign.start)
      continue;
    if (!own.push_back(r)) return no_memory("the list of mappings");
  }
  capture.descriptors.know_own(own.span());
  CKPT_TRY(capture.descriptors.recheck_stopped(tid, sharers));
  if (capture.descriptors.has_passing() &&
      job::ExpectAlone::wait_for_passing(capture.descriptors.has_unaccepted())) {
    return make_error(ExitCode::kInternal, 0,
                      "what is under way in a connection cannot be saved; the checkpoint is taken again");
  }
  keep_views_of_memfds(capture.map.mappings(), capture.descriptors.entries());
  parts_.cost.descriptors = static_cast<uint32_t>(capture.descriptors.descriptor_count());
  note_lost_mappings(capture, parts_.space);
  return {};
}

void Stop::go() {
  run_callbacks(CKPT_RT_AFTER_CHECKPOINT, stop_state.threads);
  release();
  parts_.cost.resumed_ns = stop_state.world.resumed_ns(now_ns());
  parts_.cost.pause_ns = parts_.cost.resumed_ns - parts_.clock.began_ns();
  job::let_others_go();
}

void Stop::release() {
  // Released twice, the threads of the next stop would not wait.
  if (stands_ && CHECK(stop_state.world.requested())) stop_state.world.release();
  stands_ = false;
}

}  // namespace ckpt
