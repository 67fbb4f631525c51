#include "libckpt_rt/interpose_clock.h"

#include <elf.h>
#include <link.h>
#include <sys/auxv.h>

#include <atomic>
#include <cstring>

#include "base/sys.h"
#include "libckpt_rt/hooks.h"
#include "libckpt_rt/preload_rules.h"

namespace ckpt {
namespace {

using ClockGettime = int (*)(clockid_t, timespec*);
std::atomic<ClockGettime> vdso_clock_gettime{nullptr};
std::atomic<int64_t> coarse_tick_ns{10'000'000};  // the longest a kernel has (CONFIG_HZ=100)

ClockGettime find_in_vdso(const char* wanted) {
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

[[gnu::constructor(101)]] void find_clock() {
  timespec tick{};
  if (sys::call(__NR_clock_getres, long{CLOCK_MONOTONIC_COARSE}, &tick) == 0 && tick.tv_sec == 0) {
    coarse_tick_ns.store(tick.tv_nsec, std::memory_order_relaxed);
  }
  vdso_clock_gettime.store(find_in_vdso("__vdso_clock_gettime"), std::memory_order_relaxed);
}

inline int64_t read_clock(clockid_t clock) {
  timespec ts{};
  ClockGettime f = vdso_clock_gettime.load(std::memory_order_relaxed);
  if (f == nullptr) {
    sys::call(__NR_clock_gettime, static_cast<long>(clock), &ts);
  } else {
    f(clock, &ts);
  }
  return int64_t{ts.tv_sec} * 1'000'000'000 + ts.tv_nsec;
}

}  // namespace

int64_t program_time(clockid_t clock) {
  int64_t now = read_clock(clock);
  return clock == CLOCK_MONOTONIC ? now - hooks::monotonic_shift_ns.load(std::memory_order_relaxed) : now;
}

int64_t program_time_rounded_up() {
  return read_clock(CLOCK_MONOTONIC_COARSE) + coarse_tick_ns.load(std::memory_order_relaxed) -
         hooks::monotonic_shift_ns.load(std::memory_order_relaxed);
}

}  // namespace ckpt
