#include "libckpt_rt/core/threads/processor_time.h"

#include <asm/prctl.h>

#include <algorithm>

#include "base/clock.h"
#include "base/memory/fork_path.h"
#include "base/memory/large_table.h"
#include "base/sys.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::processor_time {

CKPT_FORK_DATA constinit std::atomic<bool> came_back{false};

namespace {

struct OfProcess {
  ProcessorUse own, children;
};
constinit OfProcess at_stop{}, before{};

// Threads that came back, by their id: places are taken while they come back, and stay.
struct Place {
  std::atomic<int> tid;
  uint64_t thread_pointer;  // of another thread, which has the id later, it is another
  ProcessorUse before;
};
constexpr uint32_t kPlaces = 4096;
// Without a restart no page of it is ever touched.
CKPT_LARGE_TABLE alignas(4096) constinit Place places[kPlaces]{};

uint32_t first_place(int tid) {
  return static_cast<uint32_t>(static_cast<uint64_t>(tid) * 0x9e3779b97f4a7c15u >> 40) % kPlaces;
}

// Asked for: a thread without one would fault.
uint64_t thread_pointer() {
  uint64_t at = 0;
  sys::call(__NR_arch_prctl, ARCH_GET_FS, &at);
  return at;
}

// nullptr: it did not come back, or found no place.
const Place* place_of(int tid) {
  for (uint32_t i = first_place(tid), looked = 0; looked < kPlaces; i = (i + 1) % kPlaces, ++looked) {
    const int found = places[i].tid.load(std::memory_order_acquire);
    if (found == tid) return &places[i];
    if (found == 0) return nullptr;
  }
  return nullptr;
}

const ProcessorUse* before_of_this_thread() {
  if (!came_back.load(std::memory_order_relaxed)) return nullptr;
  const Place* place = place_of(sys::gettid());
  return place != nullptr && place->thread_pointer == thread_pointer() ? &place->before : nullptr;
}

long* counts_of(rusage& used, long* (&counts)[ProcessorUse::kCounts]) {
  long* const all[] = {&used.ru_minflt,  &used.ru_majflt, &used.ru_inblock,
                       &used.ru_oublock, &used.ru_nvcsw,  &used.ru_nivcsw};
  std::copy(std::begin(all), std::end(all), counts);
  return &used.ru_maxrss;
}

int64_t microseconds(const timeval& t) { return t.tv_sec * 1'000'000 + t.tv_usec; }
timeval time_of(int64_t us) { return {us / 1'000'000, us % 1'000'000}; }

void add(const ProcessorUse& more, rusage& used) {
  long* counts[ProcessorUse::kCounts];
  long& most_memory = *counts_of(used, counts);
  // Never less than nothing: what the restart itself has used is taken off.
  used.ru_utime = time_of(std::max<int64_t>(microseconds(used.ru_utime) + more.user_us, 0));
  used.ru_stime = time_of(std::max<int64_t>(microseconds(used.ru_stime) + more.system_us, 0));
  for (int i = 0; i < ProcessorUse::kCounts; ++i) *counts[i] = std::max(*counts[i] + more.counts[i], 0L);
  most_memory = std::max(most_memory, more.most_memory);
}

// As the kernel counts it now. clock 0: children, which have none.
ProcessorUse counted(int who, clockid_t clock) {
  rusage used{};
  ProcessorUse use{};
  sys::call(__NR_getrusage, who, &used);
  if (clock != 0) use.ran_ns = now_ns(clock);
  use.user_us = microseconds(used.ru_utime);
  use.system_us = microseconds(used.ru_stime);
  long* counts[ProcessorUse::kCounts];
  use.most_memory = *counts_of(used, counts);
  for (int i = 0; i < ProcessorUse::kCounts; ++i) use.counts[i] = *counts[i];
  return use;
}

// Times and counts of a, and sign times those of b.
ProcessorUse sum(const ProcessorUse& a, int sign, const ProcessorUse& b) {
  ProcessorUse s = a;
  s.ran_ns += sign * b.ran_ns;
  s.user_us += sign * b.user_us;
  s.system_us += sign * b.system_us;
  for (int i = 0; i < ProcessorUse::kCounts; ++i) s.counts[i] += sign * b.counts[i];
  s.most_memory = std::max(a.most_memory, b.most_memory);
  return s;
}

// The kernel's clock ids: the lower two bits say what is counted, the third that it is of one thread.
constexpr unsigned kOfThread = 4;
int64_t counted_by(unsigned clock, const ProcessorUse& use) {
  constexpr unsigned kAll = 0, kUser = 1;
  switch (clock & 3u) {
    case kAll:
      return (use.user_us + use.system_us) * 1000;
    case kUser:
      return use.user_us * 1000;
    default:
      return use.ran_ns;
  }
}

}  // namespace

ProcessorUse of_thread() {
  const ProcessorUse now = counted(RUSAGE_THREAD, CLOCK_THREAD_CPUTIME_ID);
  const ProcessorUse* more = before_of_this_thread();
  return more != nullptr ? sum(now, 1, *more) : now;
}

void note_process() {
  const bool more = came_back.load(std::memory_order_relaxed);
  constexpr ProcessorUse kNothing{};
  at_stop.own = sum(counted(RUSAGE_SELF, CLOCK_PROCESS_CPUTIME_ID), 1, more ? before.own : kNothing);
  at_stop.children = sum(counted(RUSAGE_CHILDREN, 0), 1, more ? before.children : kNothing);
}

void begin_again() {
  came_back.store(false, std::memory_order_relaxed);
  for (Place& place : places) {
    if (place.tid.load(std::memory_order_relaxed) != 0) place.tid.store(0, std::memory_order_relaxed);
  }
}

void thread_came_back(int tid, const ProcessorUse& used) {
  for (uint32_t i = first_place(tid), looked = 0; looked < kPlaces; i = (i + 1) % kPlaces, ++looked) {
    int nobody = 0;
    if (!places[i].tid.compare_exchange_strong(nobody, -1, std::memory_order_relaxed)) continue;
    places[i].thread_pointer = thread_pointer();
    places[i].before = sum(used, -1, counted(RUSAGE_THREAD, CLOCK_THREAD_CPUTIME_ID));
    // release: who finds the id finds the rest.
    places[i].tid.store(tid, std::memory_order_release);
    return;
  }
}

void process_came_back() {
  before.own = sum(at_stop.own, -1, counted(RUSAGE_SELF, CLOCK_PROCESS_CPUTIME_ID));
  before.children = sum(at_stop.children, -1, counted(RUSAGE_CHILDREN, 0));
  // release: threads of the program look at it when they go on, which the futex of the restart orders as
  // well.
  came_back.store(true, std::memory_order_release);
}

int64_t earlier(clockid_t clock) {
  if (!came_back.load(std::memory_order_acquire)) return 0;
  if (clock == CLOCK_PROCESS_CPUTIME_ID) return before.own.ran_ns;
  if (clock == CLOCK_THREAD_CPUTIME_ID) {
    const ProcessorUse* more = before_of_this_thread();
    return more != nullptr ? more->ran_ns : 0;
  }
  const auto kind = static_cast<unsigned>(clock);
  const int id = ~(clock >> 3);
  if ((kind & kOfThread) == 0) return id == 0 || id == sys::getpid() ? counted_by(kind, before.own) : 0;
  if (id == 0) {
    const ProcessorUse* more = before_of_this_thread();
    return more != nullptr ? counted_by(kind, *more) : 0;
  }
  const Place* place = place_of(id);
  return place != nullptr ? counted_by(kind, place->before) : 0;
}

timespec as_counted_anew(clockid_t clock, const timespec& time) {
  const int64_t ns =
      std::max<int64_t>(int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec - earlier(clock), 0);
  return {ns / 1'000'000'000, ns % 1'000'000'000};
}

void add_earlier(int who, rusage& used) {
  if (!came_back.load(std::memory_order_acquire)) return;
  if (who == RUSAGE_SELF) return add(before.own, used);
  if (who == RUSAGE_CHILDREN) return add(before.children, used);
  const ProcessorUse* more = who == RUSAGE_THREAD ? before_of_this_thread() : nullptr;
  if (more != nullptr) add(*more, used);
}

}  // namespace ckpt::processor_time
