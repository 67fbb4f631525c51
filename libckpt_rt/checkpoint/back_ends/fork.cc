#include "libckpt_rt/checkpoint/back_ends/fork.h"

#include <errno.h>
#include <linux/futex.h>
#include <linux/sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <cstring>

#include "base/checks/named_points.h"
#include "base/clock.h"
#include "base/memory/own_place.h"
#include "job/session/session.h"
#include "libckpt_rt/capture/advice/advice_notes.h"
#include "libckpt_rt/capture/aio/aio_contexts.h"
#include "libckpt_rt/capture/rings/rings.h"
#include "libckpt_rt/core/kernel/current_processor.h"
#include "libckpt_rt/core/process/fork/own_page.h"
#include "libckpt_rt/core/process/this_process.h"
#include "libckpt_rt/core/threads/of_ours/own_threads.h"
#include "libckpt_rt/stop/stop_state.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

// On a page that both share.
struct ForkBackEnd::Report {
  std::atomic<uint32_t> program_runs;  // the child waits for it to be 1
  bool ok;
  Error error;
  uint64_t bytes_memory, bytes_written, image_state, sequential;
  char why_not_restartable[sizeof(CheckpointCost::why_not_restartable)];
};

namespace {

bool is_ring(const Mapping& m) {
  const std::string_view path(m.path, m.path_len);
  return path.starts_with(aio_contexts::kPath) || path == rings::kPath;
}

// Not so: shared memory, rings to which the kernel goes on writing, and what the program excluded from fork.
bool is_copied_by_fork(const Mapping& m) {
  return !m.shared && !is_ring(m) && !m.unsure_for_children &&
         (m.map_flags & (kMapDontFork | kMapWipeOnFork)) == 0;
}

// Shared memory that says who has it mapped, and of which copies have been made, is not mapped in the child:
// shm_nattch and shm_lpid of System V would tell of it, and F_SEAL_WRITE fails while a memfd is mapped
// writable. Threads stand.
class SharedLeftOut {
 public:
  // Of a program that has given such advice itself nobody knows for which memory it holds now: there all
  // stays mapped in the child.
  explicit SharedLeftOut(std::span<const Mapping> map)
      : map_(memory_advice::kernel_must_be_asked() ? std::span<const Mapping>() : map) {
    // Only memory that takes it back (not VM_IO).
    for (const Mapping& m : map_) {
      if (may_be_left_out(m) && advise(m, MADV_DOFORK)) advise(m, MADV_DONTFORK);
    }
  }
  // In the parent.
  void take_back() {
    for (const Mapping& m : map_) {
      if (may_be_left_out(m)) advise(m, MADV_DOFORK);
    }
  }

 private:
  static bool may_be_left_out(const Mapping& m) {
    return m.shared && (m.kind == MappingKind::kSysV || m.kind == MappingKind::kMemfd) &&
           (m.map_flags & kMapDontFork) == 0;
  }
  static bool advise(const Mapping& m, int advice) {
    return sys::call(__NR_madvise, m.range.start.value, m.range.size(), long{advice}) == 0;
  }

  std::span<const Mapping> map_;
};

}  // namespace

// Room for copies is touched while the program runs. Of a job the process that leads it is likely to save
// what is shared; another one that does touches its room in the pause.
Result<void> ForkBackEnd::get_ready() {
  if (job::session() == nullptr || job::session()->leads) {
    ArenaVector<AddrRange> runs(attempt_.space.arena());
    uint64_t bytes = 0;
    for (const Mapping& m : attempt_.capture.map_before.mappings()) {
      if (m.handling == Handling::kSkip || is_copied_by_fork(m)) continue;
      runs.clear();
      // A mapping that went since the map was read needs no room.
      [[maybe_unused]] const Result<void> scanned = attempt_.capture.pages.scan(m, runs);
      for (const AddrRange& r : runs) bytes += r.size();
    }
    attempt_.eager.make_room_for_child(bytes, attempt_.space);
  }
  return StillBackEnd::get_ready();
}

// Memory of which a forked child gets no copy is copied now.
Result<void> ForkBackEnd::capture_memory() {
  for (Mapping& m : attempt_.capture.map.mappings()) {
    if (m.handling != Handling::kSkip)
      m.handling = is_copied_by_fork(m) ? Handling::kTracked : Handling::kEager;
  }
  CKPT_TRY(list_memory(&attempt_.eager));
  return attempt_.eager.copy(attempt_.capture.map, attempt_.capture.still_memory);
}

Result<void> ForkBackEnd::finish() {
  const long page = map_own(kPageSize, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS);
  if (sys::failed(page)) return make_error(ExitCode::kInternal, ENOMEM, "no memory for the child's report");
  static_assert(sizeof(Report) <= kPageSize);
  auto* report = reinterpret_cast<Report*>(page);
  points::child_follows();
  SharedLeftOut left_out(attempt_.capture.map.mappings());
  attempt_.eager.show_to_child(true);
  long child;
  {
    // The child goes on with this stack.
    const own_page::ScopedUnwipedBlock unwiped(own_threads.agent.block());
    // No exit signal: the program's wait() does not see a child it did not make.
    child = sys::call(__NR_clone, 0L, 0L, 0L, 0L, 0L);
    // The child writes the parent's image, with the parent's state.
    if (child == 0) own_page::page->pid.store(this_process.pid, std::memory_order_relaxed);
  }
  if (child == 0) {
    stop_state.world.end_urgency();
    // The child writes of a program that is there: the child goes with the program, and so does the image.
    // Killed before this, the program is not our parent any more.
    sys::call(__NR_prctl, PR_SET_PDEATHSIG, SIGKILL, 0L, 0L, 0L);
    // (A filter of the program's may answer with an error: then nothing is known.)
    const long parent = sys::call(__NR_getppid);
    if (parent >= 0 && parent != this_process.pid) sys::call(__NR_exit_group, 1L);
    points::at("fork.child");
    await_release(*report);
    write_in_child(*report);
    points::at("fork.written");
    sys::call(__NR_exit_group, 0L);
  }
  left_out.take_back();
  attempt_.eager.show_to_child(false);
  attempt_.stop.go();
  let_write(child, *report);
  points::at("fork.go");
  attempt_.after_stop();
  const Result<void> result = await(child, *report);
  sys::call(__NR_munmap, page, kPageSize);
  return result;
}

// The child gets the processor of this thread, which is about to sleep. The kernel would wake it on the one
// where it began to wait, among all threads that have gone there since, and moves one of them only after a
// tenth of a second.
void ForkBackEnd::let_write(long child, Report& report) {
  // Before the child is moved: one that was not asleep yet takes this thread's processor at once, and waits
  // no more.
  report.program_runs.store(1, std::memory_order_release);
  const uint32_t here = current_processor();
  uint8_t processors[128] = {};
  const bool is_placed = !sys::failed(child) && here < 8 * sizeof(processors);
  if (is_placed) {
    processors[here / 8] = static_cast<uint8_t>(1u << here % 8);
    sys::call(__NR_sched_setaffinity, child, sizeof(processors), processors);
  }
  sys::call(__NR_futex, &report.program_runs, FUTEX_WAKE, 1L, 0L, 0L, 0L);
  if (is_placed) {
    std::memset(processors, 0xff, sizeof(processors));  // as a thread of ours begins (raw_thread.cc)
    sys::call(__NR_sched_setaffinity, child, sizeof(processors), processors);
  }
}

// The kernel gives a new process the processor that stands idle, and the program's threads would wait for it.
// Ends: the parent sets the word, or is gone, and the child with it.
void ForkBackEnd::await_release(Report& report) {
  while (report.program_runs.load(std::memory_order_acquire) == 0)
    sys::call(__NR_futex, &report.program_runs, FUTEX_WAIT, 0L, 0L, 0L, 0L);
}

void ForkBackEnd::write_in_child(Report& report) {
  if (job::session() != nullptr) job::session()->in_writing_child();
  attempt_.cost.pause_ns = now_ns() - attempt_.clock.began_ns();
  attempt_.capture.descriptors.name_watches();
  const Result<void> result = write_image();
  report.ok = result.ok();
  if (!result.ok()) {
    report.error = result.error();
    // The file is the child's: the parent has none to remove.
    attempt_.image.abort();
  }
  report.bytes_memory = attempt_.cost.bytes_memory;
  report.bytes_written = attempt_.cost.bytes_written;
  report.image_state = attempt_.cost.image_state;
  report.sequential = attempt_.cost.sequential_copies;
  std::memcpy(report.why_not_restartable, attempt_.cost.why_not_restartable,
              sizeof(report.why_not_restartable));
}

Result<void> ForkBackEnd::write_image() {
  CKPT_TRY(attempt_.capture.still_memory.open());  // /proc/self is another process now
  CKPT_TRY(StillBackEnd::open_image());
  CKPT_TRY(attempt_.image.sink().append(attempt_.eager.segments()));
  CKPT_TRY(write_table());
  points::at("fork.table");
  return describe_and_commit();
}

Result<void> ForkBackEnd::await(long child, const Report& report) {
  if (sys::failed(child)) {
    return make_error(ExitCode::kSystem, static_cast<int>(child),
                      "cannot fork ({}); raise the limits on memory and processes",
                      errno_name(static_cast<int>(child)));
  }
  int status = 0;
  rusage used{};
  while (sys::call(__NR_wait4, child, &status, __WCLONE, &used) == -EINTR) {
  }
  if (!WIFEXITED(status)) {
    return make_error(ExitCode::kInternal, 0, "the child that wrote the image was killed by signal {}",
                      WTERMSIG(status));
  }
  if (!report.ok) return report.error;
  auto ns = [](const timeval& t) { return int64_t{t.tv_sec} * 1'000'000'000 + int64_t{t.tv_usec} * 1000; };
  attempt_.cost.account.child_ns = ns(used.ru_utime) + ns(used.ru_stime);
  attempt_.cost.bytes_memory = report.bytes_memory;
  attempt_.cost.bytes_written = report.bytes_written;
  attempt_.cost.image_state = report.image_state;
  attempt_.cost.sequential_copies = report.sequential;
  std::memcpy(attempt_.cost.why_not_restartable, report.why_not_restartable,
              sizeof(report.why_not_restartable));
  attempt_.cost.durable_ns = now_ns() - attempt_.requested_ns;
  return {};
}

}  // namespace ckpt
