#include "libckpt_rt/interpose/waits/clock.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/auxv.h>
#include <sys/prctl.h>

#include <cstring>

#include "base/memory/fork_path.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace clock_internal {
constinit std::atomic<ClockGettime> vdso_clock_gettime{nullptr};
constinit std::atomic<bool> counter_is_clock{false};
constinit std::atomic<bool> time_forbidden{false};
}  // namespace clock_internal

namespace {

using namespace clock_internal;

CKPT_START_PATH ClockGettime find_in_vdso(const char* wanted) {
  uintptr_t base = getauxval(AT_SYSINFO_EHDR);
  if (base == 0) return nullptr;
  auto* header = reinterpret_cast<const ElfW(Ehdr)*>(base);
  auto* segment = reinterpret_cast<const ElfW(Phdr)*>(base + header->e_phoff);
  uintptr_t slide = 0;
  const ElfW(Dyn)* dynamic = nullptr;
  for (int i = 0; i < header->e_phnum; ++i) {
    if (segment[i].p_type == PT_LOAD && slide == 0) slide = base + segment[i].p_offset - segment[i].p_vaddr;
    if (segment[i].p_type == PT_DYNAMIC)
      dynamic = reinterpret_cast<const ElfW(Dyn)*>(base + segment[i].p_offset);
  }
  const ElfW(Sym)* symbols = nullptr;
  const char* names = nullptr;
  for (; dynamic != nullptr && dynamic->d_tag != DT_NULL; ++dynamic) {
    if (dynamic->d_tag == DT_SYMTAB)
      symbols = reinterpret_cast<const ElfW(Sym)*>(slide + dynamic->d_un.d_ptr);
    if (dynamic->d_tag == DT_STRTAB) names = reinterpret_cast<const char*>(slide + dynamic->d_un.d_ptr);
  }
  if (symbols == nullptr || names == nullptr) return nullptr;
  // In the vdso, as in every library made by ld, the strings follow the symbols.
  auto* end = reinterpret_cast<const ElfW(Sym)*>(names);
  for (auto* s = symbols; s + 1 <= end; ++s) {
    if (s->st_shndx != SHN_UNDEF && std::strcmp(names + s->st_name, wanted) == 0) {
      return reinterpret_cast<ClockGettime>(slide + s->st_value);
    }
  }
  return nullptr;
}

struct Reading {
  uint64_t counter;
  int64_t ns;
};

// Reads both at nearly one instant: of four tries the shortest.
CKPT_START_PATH Reading read_both() {
  Reading best{};
  uint64_t least = UINT64_MAX;
  for (int i = 0; i < 4; ++i) {
    uint64_t before = __rdtsc();
    int64_t ns = program_time(CLOCK_MONOTONIC);
    uint64_t after = __rdtsc();
    if (after - before < least) {
      least = after - before;
      best = {before + least / 2, ns};
    }
  }
  return best;
}

constinit Reading first{};

CKPT_START_PATH bool kernel_trusts_counter() {
  long fd = sys::call(__NR_openat, long{AT_FDCWD},
                      "/sys/devices/system/clocksource/clocksource0/current_clocksource",
                      long{O_RDONLY | O_CLOEXEC}, 0L);
  if (fd < 0) return false;
  char name[8] = {};
  sys::call(__NR_read, fd, static_cast<char*>(name), sizeof(name));
  sys::call(__NR_close, fd);
  return std::memcmp(name, "tsc\n", 4) == 0;
}

[[gnu::constructor(101)]] void find_clock() {
  int counter = PR_TSC_ENABLE;
  if (sys::call(__NR_prctl, PR_GET_TSC, &counter) == 0 && counter == PR_TSC_SIGSEGV) return;
  vdso_clock_gettime.store(find_in_vdso("__vdso_clock_gettime"), std::memory_order_relaxed);
  reset_clock();
}

}  // namespace

CKPT_START_PATH void reset_clock() {
  first = read_both();
  counter_is_clock.store(kernel_trusts_counter(), std::memory_order_relaxed);
}

void forbid_counter() {
  counter_is_clock.store(false, std::memory_order_relaxed);
  vdso_clock_gettime.store(nullptr, std::memory_order_relaxed);
}

void forbid_time() {
  forbid_counter();
  time_forbidden.store(true, std::memory_order_relaxed);
}

int64_t begin_in_handler(BeginMark mark) {
  if (mark == kNoMark) return program_time(CLOCK_MONOTONIC);
  if ((mark & kCounterMark) == 0) return static_cast<int64_t>(mark);
  const uint64_t counter = mark & ~kCounterMark;
  // The same reading serves for both ends: time between two readings would be taken off the program's
  // timeout.
  const Reading now = read_both();
  // The mark is from before a restart: another machine's counter.
  if (counter < first.counter || counter >= now.counter) return now.ns;
  double ns_per_count =
      static_cast<double>(now.ns - first.ns) / static_cast<double>(now.counter - first.counter);
  auto elapsed = static_cast<int64_t>(static_cast<double>(now.counter - counter) * ns_per_count);
  elapsed -= elapsed / 1024 + 2000;
  return elapsed > 0 ? now.ns - elapsed : now.ns;
}

}  // namespace ckpt
