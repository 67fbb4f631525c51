#include "libckpt_rt/core/process/restart_entry.h"

#include <errno.h>
#include <linux/sched.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <time.h>

#include "base/checks/named_points.h"
#include "base/locks/lock_ranks.h"
#include "job/identity/own_job.h"
#include "job/session/connecting.h"
#include "job/session/creation.h"
#include "job/session/session.h"
#include "libckpt_rt/capture/advice/memory_settings.h"
#include "libckpt_rt/capture/aio/aio_contexts.h"
#include "libckpt_rt/capture/descriptors/half_read_lists.h"
#include "libckpt_rt/capture/descriptors/noted/directory_notices.h"
#include "libckpt_rt/capture/descriptors/noted/file_signals.h"
#include "libckpt_rt/capture/futex_words.h"
#include "libckpt_rt/capture/memory/protection_keys.h"
#include "libckpt_rt/capture/process/process_state.h"
#include "libckpt_rt/capture/rings/rings.h"
#include "libckpt_rt/capture/sockets/noted/group_filters.h"
#include "libckpt_rt/capture/sockets/noted/multicast_choices.h"
#include "libckpt_rt/capture/sockets/noted/socket_mappings.h"
#include "libckpt_rt/capture/system_v/undo.h"
#include "libckpt_rt/capture/threads/own_directories.h"
#include "libckpt_rt/checkpoint/stages/callbacks.h"
#include "libckpt_rt/core/directory/own_directory.h"
#include "libckpt_rt/core/hooks.h"
#include "libckpt_rt/core/process/fork/own_page.h"
#include "libckpt_rt/core/process/loading.h"
#include "libckpt_rt/core/process/own_files.h"
#include "libckpt_rt/core/process/seccomp/own_filters.h"
#include "libckpt_rt/core/process/seccomp/seccomp_state.h"
#include "libckpt_rt/core/process/this_process.h"
#include "libckpt_rt/core/request/interval.h"
#include "libckpt_rt/core/settings/user_settings.h"
#include "libckpt_rt/core/threads/of_ours/own_threads.h"
#include "libckpt_rt/core/threads/own_dispatch.h"
#include "libckpt_rt/core/threads/processor_time.h"
#include "libckpt_rt/entry/agent.h"
#include "libckpt_rt/entry/child_notices.h"
#include "libckpt_rt/entry/moved_signal.h"
#include "libckpt_rt/guard/guard.h"
#include "libckpt_rt/interpose/addresses/addresses.h"
#include "libckpt_rt/interpose/libc.h"
#include "libckpt_rt/interpose/memory/gate.h"
#include "libckpt_rt/interpose/waits/clock.h"
#include "libckpt_rt/interpose/waits/interrupted_call.h"
#include "libckpt_rt/protect/release_guard.h"
#include "libckpt_rt/protect/watch.h"
#include "libckpt_rt/stop/stop_state.h"
#include "libckpt_rt/stop/tracing/service.h"
#include "libckpt_rt/stop/tracing/traced_thread.h"
#include "libckpt_rt/core/preload_rules.h"

extern "C" {
long ckpt_clone3_thread(void* clone_args, size_t size, void (*fn)(void*), void* arg);
[[noreturn]] void ckpt_call_on_stack(void* stack_top, void (*fn)(void*), void* arg);
[[noreturn]] void ckpt_signal_return(void* frame);
}

namespace ckpt {

namespace {

// Order of the restart inside the library, and who confirms each step:
//   leader   signal actions                          kSignals
//   leader   one thread for each slot, with its tid  kThreads
//   leader   timers (they may name threads)          kTimers
//   leader   settings of the process, created = 1
//   threads  own state, users, capabilities given up, their rings (rings += 1, those of all: rings_made = 1),
//            ready += 1
//   leader   own state, on its own stack; restorer unmapped; waits for ready
//   leader   in a job: notices of its children taken away, signals that were pending (kBeforeGo)
//                                                    kThreadState, then waits for the others; one that is
//                                                    to stop does so
//   leader   other pending signals, the program's own functions    without a job kThreadState, then kGo
//   leader   go = 1: all threads return through their signal frames
struct Restart {
  RestartArgs args;
  uint32_t threads;  // without the leader
  FutexWord created{0};
  FutexWord rings{0};
  FutexWord rings_made{0};
  FutexWord ready{0};
  FutexWord go{0};
  std::atomic<uint32_t> notes{0};  // LibraryNotes
};
constinit Restart restart{};

void report(RestartStage stage, long error, int tid, uint32_t detail = 0) {
  if (restart.args.status_fd < 0) return;
  RestartStatus status{static_cast<uint32_t>(stage), error < 0 ? static_cast<int32_t>(-error) : 0, tid,
                       detail};
  sys::call(__NR_write, restart.args.status_fd, &status, sizeof(status));
}

[[noreturn]] void fail(RestartStage stage, long error, int tid, uint32_t detail = 0) {
  report(stage, error == 0 ? -EINVAL : error, tid, detail);
  sys::call(__NR_exit_group, static_cast<int>(ExitCode::kInternal));
  __builtin_unreachable();
}

// Below the slot lie only frames of the handler that will never run again, and nothing else the
// thread left on this stack: the signal frame and the slot are above.
void* stack_below(ThreadSlot* slot) {
  return reinterpret_cast<void*>((reinterpret_cast<uint64_t>(slot) - 256) & ~15ull);
}

// relaxed: read when all threads are ready, which orders it.
void add_notes(uint32_t notes) { restart.notes.fetch_or(notes, std::memory_order_relaxed); }

// Of a thread of which nothing else is known: capabilities of the process.
void restore_capabilities(const ThreadCredentials& credentials, int tid) {
  const RestartArgs& args = restart.args;
  uint32_t notes = 0;
  const long r =
      restore_capabilities_of_thread(credentials,
                                     {(args.set_capabilities & kSetsCapabilities) != 0, args.cap_effective,
                                      args.cap_permitted, args.cap_inheritable, saved_process.cap_bounding,
                                      saved_process.cap_ambient, saved_process.secure_bits},
                                     notes);
  if (r != 0) fail(RestartStage::kThreadState, r, tid);
  add_notes(notes);
}

// Of the thread whose users and directory are the process's.
const ThreadSlot& first_thread() {
  const ThreadSlot* first = stop_state.threads;
  for (const ThreadSlot* s = first; s != nullptr; s = s->next) {
    if (s->tid == this_process.pid) first = s;
  }
  return *first;
}

void restore_own_state(const ThreadSlot& slot) {
  uint32_t notes = 0;
  long r = restore_thread_in_handler(slot, notes);
  if (r != 0) fail(RestartStage::kThreadState, r, slot.tid);
  bool is_there = true;
  r = own_directories::enter_as_process(slot.tid, is_there);
  if (r != 0) fail(RestartStage::kThreadState, r, slot.tid, kDetailDirectory);
  const bool may_choose = (restart.args.set_capabilities & kChoosesUsers) != 0;
  r = become_user_of_thread(slot.credentials, first_thread().credentials, may_choose, notes);
  if (r != 0) fail(RestartStage::kThreadState, r, slot.tid, kDetailThreadUser);
  restore_capabilities(slot.credentials, slot.tid);
  if (!is_there) r = own_directories::enter(slot.tid);
  if (r != 0) fail(RestartStage::kThreadState, r, slot.tid, kDetailDirectory);
  processor_time::thread_came_back(slot.tid, slot.used);
  if (r = own_dispatch::set_again(); r != 0) fail(RestartStage::kThreadState, r, slot.tid);
  if (!own_filters::may_be_set_again()) notes |= kNoteFilters;
  add_notes(notes);
}

void await(FutexWord& word, uint32_t value) {
  for (uint32_t v; (v = word.load(std::memory_order_acquire)) < value;) futex_wait(word, v);
}

[[noreturn]] void go_on(ThreadSlot* slot) {
  fix_interrupted_call(slot->frame);
  // Without a word it must not have more than it had.
  if (own_filters::set_again() != 0) {
    sys::call(__NR_exit_group, static_cast<int>(ExitCode::kSystem));
    __builtin_trap();  // a filter that was set may have forbidden that
  }
  tracing::after_restart();
  traced::come_back(slot->traced, slot->tracer);
  own_dispatch::return_into(slot->frame);
  ckpt_signal_return(slot->frame);
}

// Some rings only one thread may use, and numbers of rings are a thread's own.
void make_rings(int tid, bool is_leader) {
  if (!rings::has_saved()) return is_leader ? rings::all_are_made() : void();
  auto check = [&](long r) {
    if (r != 0) fail(RestartStage::kThreadState, r, tid, kDetailRings);
  };
  check(rings::make_again(tid, is_leader));
  if (is_leader) {
    await(restart.rings, restart.threads);
    check(rings::map_all());
    rings::all_are_made();
    restart.rings_made.store(1, std::memory_order_release);
    futex_wake(restart.rings_made);
  } else {
    restart.rings.fetch_add(1, std::memory_order_release);
    futex_wake(restart.rings);
    await(restart.rings_made, 1);
  }
  check(rings::register_again(tid));
}

void thread_main(void* arg) {
  auto* slot = static_cast<ThreadSlot*>(arg);
  await(restart.created, 1);
  restore_own_state(*slot);
  make_rings(slot->tid, false);
  restart.ready.fetch_add(1, std::memory_order_release);
  futex_wake(restart.ready);
  await(restart.go, 1);
  go_on(slot);
}

bool is_stopped(RestartStopped how) { return restart.args.stopped == static_cast<uint32_t>(how); }

// ckpt-restart does not wait until a stopped process is continued; then the pipe may have no reader any more.
void report_go(bool stops) {
  report(RestartStage::kGo, 0, 0, stops ? kStopsItself : 0);
  if (restart.args.status_fd >= 0) sys::call(__NR_close, restart.args.status_fd);
  restart.args.status_fd = -1;
}

// The signal's number is what the parent is told. In a group without a parent in another group of the session
// the kernel drops all but SIGSTOP.
void stop_by(int signal) {
  const long parent = sys::call(__NR_getppid);
  const bool may_choose = sys::call(__NR_getsid, parent) == sys::call(__NR_getsid, 0L) &&
                          sys::call(__NR_getpgid, parent) != sys::call(__NR_getpgid, 0L);
  if (!may_choose || (signal != SIGTSTP && signal != SIGTTIN && signal != SIGTTOU)) signal = SIGSTOP;
  const KernelSigaction by_default{};
  KernelSigaction of_program{};
  kernel_sigaction(signal, &by_default, &of_program);
  const uint64_t set = 1ull << (signal - 1);
  sys::call(__NR_kill, this_process.pid, signal);
  sys::call(__NR_rt_sigprocmask, SIG_UNBLOCK, &set, 0L, sizeof(set));
  sys::call(__NR_rt_sigprocmask, SIG_BLOCK, &set, 0L, sizeof(set));
  kernel_sigaction(signal, &of_program, nullptr);
}

// Another member has failed, and ckpt-restart ends all of us; or it is gone itself.
[[noreturn]] void end_with_restart() {
  child_notices::end_children();
  sys::call(__NR_exit_group, static_cast<int>(ExitCode::kSystem));
  __builtin_unreachable();
}

// The SIGCONT that continues it when it has its byte, or the pipe has ended, is the program's. One before
// that is somebody's who found it stopped too early; a stop takes that SIGCONT away.
void stop_until_continued() {
  pollfd go{restart.args.go_fd, POLLIN, 0};
  do {
    sys::call(__NR_kill, this_process.pid, SIGSTOP);
  } while (sys::call(__NR_poll, &go, 1L, 0L) == 0);
}

// Until every process of the job stands ready. One that stops late does so here, before the others go on.
void wait_for_job() {
  if (is_stopped(RestartStopped::kEarly)) {
    report_go(true);
    stop_until_continued();
  } else {
    child_notices::take_until_ready(restart.args.go_fd);
  }
  char go = 0;
  long n;
  while ((n = sys::call(__NR_read, restart.args.go_fd, &go, sizeof(go))) == -EINTR) {
  }
  if (n != sizeof(go)) end_with_restart();
  sys::call(__NR_close, restart.args.go_fd);
  if (!is_stopped(RestartStopped::kLate)) return;
  report_go(true);
  stop_by(saved_process.stop_signal);
}

// These are there before any member goes on: what members send each other from then on comes behind, or is
// merged with what waits. The others are taken away, or made, while members wait for each other.
constexpr uint64_t bit_of(int signal) { return 1ull << (signal - 1); }
constexpr uint64_t kBeforeGo = ~(bit_of(SIGCHLD) | bit_of(SIGCONT) | bit_of(SIGSTOP) | bit_of(SIGTSTP) |
                                 bit_of(SIGTTIN) | bit_of(SIGTTOU));

void release_all() {
  const bool of_job = restart.args.go_fd >= 0;
  // All threads are in one list of such debts with this one (CLONE_SYSVSEM).
  if (const long r = system_v::owe_again(this_process.pid); r != 0)
    fail(RestartStage::kThreadState, r, 0, kDetailSemaphores);
  if (const long r = socket_mappings::map_again(); r != 0)
    fail(RestartStage::kThreadState, r, 0, kDetailSockets);
  if (const long r = aio_contexts::make_again(); r != 0) fail(RestartStage::kThreadState, r, 0, kDetailAio);
  make_rings(this_process.pid, true);
  sys::call(__NR_munmap, restart.args.restorer_start,
            restart.args.restorer_end - restart.args.restorer_start);
  await(restart.ready, restart.threads);
  // First: nothing of what is sealed changes its key.
  add_notes(protection_keys::give_again());
  add_notes(memory_settings::say_again());
  if (saved_process.dumpable == 1) sys::call(__NR_prctl, PR_SET_DUMPABLE, 1L, 0L, 0L, 0L);
  if (of_job) {
    const long r = child_notices::take(restart.args.stopped_children, restart.args.go_fd);
    if (r == -EPIPE) end_with_restart();
    if (r != 0) fail(RestartStage::kThreadState, r, this_process.pid);
    child_notices::continue_again(saved_process.continued);
    queue_again(pending_at_stop, 0, kBeforeGo);
    report(RestartStage::kThreadState, 0, 0, restart.notes.load(std::memory_order_relaxed));
    wait_for_job();
  }
  directory_notices::take_again();
  half_read_lists::find_places();
  file_signals::take_again();
  group_filters::find_again(restart.args.monotonic_shift_ns);
  multicast_choices::find_again();
  processor_time::process_came_back();
  queue_again(pending_at_stop, 0, of_job ? ~kBeforeGo : ~0ull);
  callbacks::run(CKPT_RT_AFTER_RESTART);
  if (!of_job) report(RestartStage::kThreadState, 0, 0, restart.notes.load(std::memory_order_relaxed));
  const bool stops = !of_job && saved_process.stop_signal != 0;
  report_go(stops);
  if (stops) stop_by(saved_process.stop_signal);
  restart.go.store(1, std::memory_order_release);
  futex_wake(restart.go);
}

void leader_main(void* arg) {
  auto* slot = static_cast<ThreadSlot*>(arg);
  restore_own_state(*slot);
  release_all();
  go_on(slot);
}

// The program's main thread had exited: its successor goes as well, the others stay.
void exited_leader_main(void*) {
  restore_capabilities({}, this_process.pid);
  release_all();
  sys::call(__NR_exit, 0L);
}

ThreadSlot* create_threads() {
  ThreadSlot* leader = nullptr;
  for (ThreadSlot* s = stop_state.threads; s != nullptr; s = s->next) {
    if (s->tid == this_process.pid) {
      leader = s;
      continue;
    }
    clone_args args{};
    args.flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;
    // The kernel adds size to stack: the child starts at the sum.
    auto top = reinterpret_cast<uint64_t>(stack_below(s));
    args.stack = top - 4096;
    args.stack_size = 4096;
    args.set_tid = reinterpret_cast<uint64_t>(&s->tid);
    args.set_tid_size = 1;
    long r = ckpt_clone3_thread(&args, sizeof(args), &thread_main, s);
    if (sys::failed(r)) fail(RestartStage::kThreads, r, s->tid);
    ++restart.threads;
  }
  return leader;
}

void reset_library() {
  lock_ranks::forget();
  loading::begin(restart.args.loading_gate);
  if (restart.args.loading_gate != 0) futex_words::load(stop_state.threads);
  stop_state.world.reset_after_restart();
  tracing::reset_after_restart();
  traced::reset();
  points::forget();
  job::creation::reset();
  job::connecting::reset();
  job::forget_session();
  own_directory::forget();
  interval::came_back();
  own_files::forget();
  if (addresses::over_hosts) {
    if (const long r = addresses::read(job::own_job.identity.directory); r != 0)
      fail(RestartStage::kSignals, r, 0);
  }
  if (job::own_job.identity.root != 0) job::own_job.sign = job::show_identity(job::own_job.identity);
  moved_signal::show();
  release_guard::reset_after_restart();
  guard::reset(false);
  reset_gate_after_restart();
  futex_words::reset_hold();
  Watch::forget_kept();
  processor_time::begin_again();
  ++this_process.generation;
  agent::reset(this_process.generation);
  seccomp_state.before_program = count_seccomp_filters();
  own_filters::reset_after_restart();
  seccomp_state.own_keyring.store(false, std::memory_order_relaxed);
  seccomp_state.session_keys.store(false, std::memory_order_relaxed);
  seccomp_state.landlocked.store(false, std::memory_order_relaxed);
  seccomp_state.left_namespaces.store(0, std::memory_order_relaxed);
  hooks::monotonic_shift_ns.fetch_add(restart.args.monotonic_shift_ns, std::memory_order_relaxed);
  // Our working memory is not part of an image: new blocks for the threads that will be needed.
  own_threads.forget();
  if (!own_page::reserve(user_settings().dma, own_page::Where::kWhereItWas))
    fail(RestartStage::kSignals, -ENOMEM, 0);
}

}  // namespace

}  // namespace ckpt

extern "C" void ckpt_restart_entry(const ckpt::RestartArgs* args) {
  using namespace ckpt;
  restart.args = *args;
  restart.threads = 0;
  restart.notes.store(0, std::memory_order_relaxed);
  for (FutexWord* w : {&restart.created, &restart.rings, &restart.rings_made, &restart.ready, &restart.go})
    w->store(0, std::memory_order_relaxed);
  if (args->protocol != kRestartProtocolVersion) fail(RestartStage::kSignals, -EPROTO, 0);
  // The image is of a library that lay elsewhere, or the restorer has mapped it elsewhere: nothing below can
  // be trusted.
  if (args->restart_state != reinterpret_cast<uint64_t>(&this_process))
    fail(RestartStage::kSignals, -EFAULT, 0);
  reset_library();
  interposition_after_restart();
  for (const ThreadSlot* s = stop_state.threads; s != nullptr; s = s->next) {
    if (s->time_stamps == PR_TSC_SIGSEGV) forbid_counter();
  }
  long r = restore_signal_actions(saved_process);
  if (r != 0) fail(RestartStage::kSignals, r, 0);
  report(RestartStage::kSignals, 0, 0);
  ThreadSlot* leader = create_threads();
  report(RestartStage::kThreads, 0, 0);
  r = restore_timers(saved_process.timers);
  if (r != 0) fail(RestartStage::kTimers, r, 0);
  report(RestartStage::kTimers, 0, 0);
  // Ahead of the threads: one that becomes another user makes /proc/self root's.
  add_notes(restore_process_settings(saved_process));
  // Dumpable until here, whatever the program was, and what it was again when all threads have given up what
  // ckpt-restart may do (release_all): whoever may trace one of them that has could use the others by their
  // common memory. /proc/self is root's from here on, so what is written there (libc's jumps, the settings
  // above) comes before.
  if ((args->set_capabilities & kSetsCapabilities) != 0 || saved_process.dumpable != 1)
    sys::call(__NR_prctl, PR_SET_DUMPABLE, 0L, 0L, 0L, 0L);
  restart.created.store(1, std::memory_order_release);
  futex_wake(restart.created);
  if (leader != nullptr) ckpt_call_on_stack(stack_below(leader), &leader_main, leader);
  Addr stack = own_threads.writer.block().end;
  ckpt_call_on_stack(Addr{stack.value & ~15ull}.as<void>(), &exited_leader_main, nullptr);
}
