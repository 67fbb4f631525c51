#include "libckpt_rt/interpose_clock.h"

#include <elf.h>
#include <link.h>
#include <sys/auxv.h>

#include <cstring>

#include "libckpt_rt/preload_rules.h"

namespace ckpt {

namespace clock_internal {
constinit std::atomic<ClockGettime> vdso_clock_gettime{nullptr};
constinit std::atomic<int64_t> coarse_tick_ns{10'000'000};  // the longest a kernel has (CONFIG_HZ=100)
}  // namespace clock_internal

namespace {

using namespace clock_internal;

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

}  // namespace

}  // namespace ckpt
