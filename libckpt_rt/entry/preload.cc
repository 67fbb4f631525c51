// The library's start: what happens in the program before main, and what hooks ask of it.
//
// Owner:     libckpt_rt. Callers: the dynamic linker; libc's fork.
// Never:     prints; a wrong setting is said in the log of the image directory, and by `ckpt stat`.

#include <fcntl.h>
#include <link.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "base/checks/check.h"
#include "base/checks/named_points.h"
#include "base/clock.h"
#include "base/memory/fork_path.h"
#include "base/protocol/beside_protocol.h"
#include "base/protocol/control_protocol.h"
#include "image/format/encryption/image_key.h"
#include "image/write/directory/image_directory.h"
#include "job/capture/right_host.h"
#include "job/identity/identity.h"
#include "job/identity/own_job.h"
#include "job/session/connecting.h"
#include "job/session/creation.h"
#include "job/session/session.h"
#include "libckpt_rt/capture/futex_words.h"
#include "libckpt_rt/capture/process/process_state.h"
#include "libckpt_rt/capture/threads/own_directories.h"
#include "libckpt_rt/checkpoint/image/image_command.h"
#include "libckpt_rt/checkpoint/preparation.h"
#include "libckpt_rt/core/directory/log.h"
#include "libckpt_rt/core/directory/own_directory.h"
#include "libckpt_rt/core/hooks.h"
#include "libckpt_rt/core/kernel/kernel_sigaction.h"
#include "libckpt_rt/core/kernel/task_list.h"
#include "libckpt_rt/core/process/beginning.h"
#include "libckpt_rt/core/process/dynamic_linker.h"
#include "libckpt_rt/core/process/fork/child.h"
#include "libckpt_rt/core/process/fork/fork_hold.h"
#include "libckpt_rt/core/process/fork/own_page.h"
#include "libckpt_rt/core/process/library_range.h"
#include "libckpt_rt/core/process/seccomp/seccomp_state.h"
#include "libckpt_rt/core/process/statistics.h"
#include "libckpt_rt/core/process/this_process.h"
#include "libckpt_rt/core/request/interval.h"
#include "libckpt_rt/core/request/own_signal.h"
#include "libckpt_rt/core/settings/own_key_file.h"
#include "libckpt_rt/core/settings/user_settings.h"
#include "libckpt_rt/core/threads/own_rseq.h"
#include "libckpt_rt/entry/agent.h"
#include "libckpt_rt/entry/moved_signal.h"
#include "libckpt_rt/entry/signal_handler.h"
#include "libckpt_rt/guard/guard.h"
#include "libckpt_rt/interpose/addresses/addresses.h"
#include "libckpt_rt/interpose/addresses/unaccepted.h"
#include "libckpt_rt/interpose/memory/gate.h"
#include "libckpt_rt/protect/release_guard.h"
#include "libckpt_rt/protect/watch.h"
#include "libckpt_rt/stop/critical_section.h"
#include "libckpt_rt/stop/stop_state.h"
#include "libckpt_rt/stop/tracing/tracee_table.h"
#include "libckpt_rt/core/preload_rules.h"

// Bounds of this object, by the linker.
extern "C" {
extern char ckpt_elf_start __asm__("__ehdr_start") __attribute__((visibility("hidden")));
extern char ckpt_elf_end __asm__("_end") __attribute__((visibility("hidden")));
}

namespace ckpt {

namespace hooks {
constinit std::atomic<int> checkpoint_signal{kDefaultCheckpointSignal};
constinit std::atomic<uintptr_t> own_handler{0};
CKPT_FORK_DATA constinit std::atomic<uint32_t> copy_under_way{0};
CKPT_FORK_DATA constinit std::atomic<uint32_t> memory_registered{0};
CKPT_FORK_DATA constinit std::atomic<bool> has_forked{false};
CKPT_FORK_DATA constinit std::atomic<bool> has_spawned{false};

void yield_signal() {
  know_child();
  if (this_process.active && this_process.pid == sys::getpid()) moved_signal::yield();
}

bool took_late_request(void* information, void* context) { return moved_signal::took(information, context); }

CKPT_FORK_PATH void before_fork() {
  job::creation::await();
  // Not again: after each fork the page that is written to is copied.
  if (!has_forked.load(std::memory_order_relaxed)) has_forked.store(true, std::memory_order_seq_cst);
  fork_hold::begin();
  // Behind it: who stands in a stop, and has looked in vain here, is counted
  // (HandlerBackEnd::agree_on_shared).
  if (copying()) release_guard::before_sharing();
}

CKPT_FORK_PATH void after_fork() { fork_hold::end(); }

CKPT_FORK_PATH void before_spawn() {
  job::creation::await();
  // Its child has our memory: what it finds in it must not be a parent's.
  know_child();
  // relaxed: read by the agent, which looks at the children themselves as well.
  if (!has_spawned.load(std::memory_order_relaxed)) has_spawned.store(true, std::memory_order_relaxed);
}

bool before_connect(int fd) { return job::connecting::await(fd); }

CKPT_FORK_PATH void before_end() { job::creation::await_end(); }

constinit std::atomic<int64_t> monotonic_shift_ns{0};

void before_release(uintptr_t start, size_t length) {
  uintptr_t end = start + length < start ? UINTPTR_MAX : start + length;
  release_guard::before_release({Addr{start}, Addr{end}});
}

void forget(uintptr_t start, size_t length) { release_guard::forget({Addr{start}, Addr{start} + length}); }

void note_mutex(const void* mutex) { futex_words::note_mutex(mutex); }
void note_exit(const void* word) { futex_words::note_exit(word); }
void note_futex(const void* word) { futex_words::note_word(word); }

void before_user(uint32_t user) {
  know_child();
  own_directory::prepare_for_user(user);
}

// For good: the library is not told when such a thread ends.
void begin_strict() {
  know_child();
  uint64_t ours = 1ull << (own_signal.number - 1);
  sys::call(__NR_rt_sigprocmask, SIG_BLOCK, &ours, 0L, 8L);
  if (!seccomp_state.strict_thread.exchange(true, std::memory_order_seq_cst)) interval::suspend();
}

// Asked for a checkpoint, the process looks like one that does not handle the signal yet.
void begin_deadly_filter() {
  know_child();
  const KernelSigaction ignored{reinterpret_cast<uintptr_t>(SIG_IGN), 0, 0, 0};
  kernel_sigaction(own_signal.number, &ignored, nullptr);
  if (!seccomp_state.strict_thread.exchange(true, std::memory_order_seq_cst)) interval::suspend();
}

void end_deadly_filter() {
  seccomp_state.strict_thread.store(false, std::memory_order_seq_cst);
  interval::resume();
  install_signal_handler(own_signal.number);
}

void end_strict() {
  seccomp_state.strict_thread.store(false, std::memory_order_seq_cst);
  interval::resume();
  uint64_t ours = 1ull << (own_signal.number - 1);
  sys::call(__NR_rt_sigprocmask, SIG_UNBLOCK, &ours, 0L, 8L);
}

// relaxed: read by a checkpoint that is asked for later.
void note_wait_for_child() { seccomp_state.waits_for_child.store(true, std::memory_order_relaxed); }
void note_keyring() { seccomp_state.own_keyring.store(true, std::memory_order_relaxed); }
void note_session_key() { seccomp_state.session_keys.store(true, std::memory_order_relaxed); }
void note_landlock() { seccomp_state.landlocked.store(true, std::memory_order_relaxed); }
RseqArea note_rseq(const RseqArea& area) {
  const auto thread = reinterpret_cast<uintptr_t>(__builtin_thread_pointer());
  const own_rseq::Area before = own_rseq::find(thread);
  own_rseq::note(thread, {area.address, area.length, area.signature});
  return {before.address, before.length, before.signature};
}
void note_queue_notice() { seccomp_state.queue_notice.store(true, std::memory_order_relaxed); }
void note_wait_of_thread() { seccomp_state.waits_by_thread.store(true, std::memory_order_relaxed); }
void note_namespaces(int left) {
  seccomp_state.left_namespaces.fetch_or(left, std::memory_order_relaxed);
  if ((left & (CLONE_FS | CLONE_NEWNS | CLONE_NEWUSER)) != 0) own_directories::note_unshare();
}

// A child that libc did not fork has our state but none of our threads.
void begin_alone() {
  know_child();
  if (this_process.pid == sys::getpid()) agent::begin_absence();
}
void end_alone() {
  if (this_process.pid == sys::getpid()) agent::end_absence();
}

}  // namespace hooks

AddrRange library_data_range() {
  Addr end = (Addr::of(&ckpt_elf_end)).page_up();
  return {Addr::of(&ckpt_elf_start).page_down(), end};
}

namespace {

CKPT_START_PATH const char* find_variable(const char* name, void*) {
  size_t n = strlen(name);
  for (char** e = environ; e != nullptr && *e != nullptr; ++e) {
    if (strncmp(*e, name, n) == 0 && (*e)[n] == '=') return *e + n + 1;
  }
  return nullptr;
}

// The first preloaded process makes the job, and says so to all that it will start.
void find_job() {
  job::own_job.inherited =
      job::read_identity(find_variable(job::kJobVariable, nullptr), job::own_job.identity);
}

void found_job() {
  if (job::own_job.inherited) {
    set_job_began_ns(job::own_job.identity.began_ns);
    return;
  }
  const bool has_digits = find_variable(job::kJobVariable, nullptr) != nullptr;
  job::own_job.identity.root = this_process.pid;
  job::own_job.identity.began_ns = process_began_ns();
  own_directory::copy_name(job::own_job.identity.directory);
  if (!job::export_identity(job::own_job.identity)) job::own_job.identity.root = 0;
  set_job_began_ns(job::own_job.identity.began_ns);
  if (!has_digits) job::own_job.sign = job::show_identity(job::own_job.identity);
}

// Where the program beside which we are has its list of its environment, which is not ours (kBesideVariable).
// 0: we are beside none; what is no such number is somebody else's.
uint64_t list_of_program(const char* digits) {
  constexpr size_t kMostDigits = 16;
  uint64_t address = 0;
  if (digits == nullptr || strlen(digits) > kMostDigits) return 0;
  for (; *digits != '\0'; ++digits) {
    const bool letter = *digits >= 'a' && *digits <= 'f';
    if (!letter && (*digits < '0' || *digits > '9')) return 0;
    address = address << 4 | static_cast<uint64_t>(letter ? *digits - 'a' + 10 : *digits - '0');
  }
  return address;
}

// That program hands its own list on to what it executes.
void hand_on_job(uint64_t list) {
  const size_t name = strlen(job::kJobVariable);
  const char* const value = find_variable(job::kJobVariable, nullptr);
  if (value == nullptr) return;
  for (auto** e = reinterpret_cast<const char**>(list); *e != nullptr; ++e) {
    if (strncmp(*e, job::kJobVariable, name) == 0 && (*e)[name] == '=') *e = value - name - 1;
  }
}

// A sanitizer's run time has replaced memcpy and the like, and knows nothing of our threads: the first
// checkpoint would end the program. `ckpt run` refuses such programs; what they start, or what is started
// without it, is left alone.
bool is_sanitized() {
  for (const char* mark : {"__tsan_init", "__asan_init", "__msan_init"}) {
    if (dynamic_linker::find(RTLD_DEFAULT, mark) != nullptr) return true;
  }
  return false;
}

struct ThenStarted {
  ~ThenStarted() { preparation::library_started(); }
};

// The process's name is its first thread's; prctl(2) is 7 us faster than /proc. That thread runs the
// constructors, unless the library is loaded later (dlopen).
void name_process() {
  static_assert(sizeof(this_process.name) >= 16, "PR_GET_NAME writes 16 bytes");
  if (sys::gettid() == this_process.pid && sys::call(__NR_prctl, PR_GET_NAME, this_process.name) == 0) return;
  const long n = read_small_file("/proc/self/comm", this_process.name, sizeof(this_process.name));
  if (n > 0 && this_process.name[n - 1] == '\n') this_process.name[n - 1] = '\0';
  if (n <= 0) strcpy(this_process.name, "program");
}

__attribute__((constructor)) void start() {
  if (this_process.active) return;
  const ThenStarted then;
  // A wrong assumption spoils a checkpoint, not the program.
  check::set_policy(check::Policy::kHold);
  this_process.pid = sys::getpid();
  name_process();
  // glibc 2.35 and later.
  const auto* rseq_offset =
      static_cast<const ptrdiff_t*>(dynamic_linker::find(RTLD_DEFAULT, "__rseq_offset"));
  const auto* rseq_size = static_cast<const unsigned*>(dynamic_linker::find(RTLD_DEFAULT, "__rseq_size"));
  if (rseq_offset != nullptr && rseq_size != nullptr && *rseq_size != 0) {
    // The size libc reports may be that of the fields in use; what it registers is at least 32 bytes.
    know_rseq_area(*rseq_offset, *rseq_size < 32 ? 32 : *rseq_size);
  }
  job::be_of_this_host();
  auto settings = parse_settings(&find_variable, nullptr);
  if (!settings.ok()) {
    own_directory::choose();
    auto directory = open_image_directory(own_directory::name());
    if (directory.ok()) log_line(directory->get(), settings.error().message());
    return;
  }
  remember_user_settings(*settings);
  if (user_settings().disabled) return;
  if (is_sanitized()) {
    own_directory::choose();
    if (auto directory = open_image_directory(own_directory::name()); directory.ok())
      log_format(directory->get(), "pid {}: is built with a sanitizer, so no checkpoint of it is taken",
                 this_process.pid);
    return;
  }
  const uint64_t beside = list_of_program(find_variable(kBesideVariable, nullptr));
  own_signal.number = beside != 0 ? kSignalBeside : user_settings().signal;
  hooks::checkpoint_signal.store(own_signal.number, std::memory_order_relaxed);
  own_key_file::choose();
  if (user_settings().to[0] != '\0') remember_command_environment(environ);
  find_job();
  if (const char* point = find_variable("CKPT_TEST_POINT", nullptr))
    points::want(point, this_process.name, &this_process.pid);
  own_directory::choose();
  found_job();
  if (beside != 0) hand_on_job(beside);
  if (const char* hosts = find_variable("CKPT_HOSTS", nullptr)) {
    addresses::over_hosts = true;
    addresses::remember_name(hosts);
    addresses::read(job::own_job.identity.directory);
  }
  new_run_id(job::own_job.identity.id);
  if (!own_page::reserve(user_settings().dma, own_page::Where::kNearLibraries)) return;
  seccomp_state.before_program = count_seccomp_filters();
  tracing::note_inherited();  // ahead of the first checkpoint
  if (install_signal_handler(own_signal.number) != 0) return;
  // A parent may have left our signal blocked: it is unblocked, for this thread and those it will create.
  this_process.active = true;
  if (beside != 0) {
    // ckpt-beside unblocks it, when this thread is the program's.
    moved_signal::show();
  } else {
    uint64_t ours = 1ull << (own_signal.number - 1);
    stop_state.world.expect_signal_of_process(true);
    sys::call(__NR_rt_sigprocmask, SIG_UNBLOCK, &ours, 0L, 8L);
    stop_state.world.expect_signal_of_process(false);
  }
  interval::arm();
}

}  // namespace

}  // namespace ckpt
