#include "libckpt_rt/capture/memory/probes.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstring>

#include "base/raii_fd.h"
#include "base/sys.h"
#include "base/units.h"
#include "libckpt_rt/core/kernel/kernel_copy.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {

constexpr unsigned char kTrap = 0xcc;  // int3

ScopedFd open_file_of(const Mapping& m) {
  const long fd = sys::call(__NR_openat, AT_FDCWD, m.path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0L);
  if (sys::failed(fd)) return {};
  ScopedFd file(static_cast<int>(fd));
  struct stat st {};
  const bool same = sys::call(__NR_newfstatat, fd, "", &st, AT_EMPTY_PATH) == 0 && st.st_dev == m.device &&
                    st.st_ino == m.inode;
  return same ? std::move(file) : ScopedFd();
}

bool is_probe(const unsigned char* code, const unsigned char* original, long left) {
  constexpr unsigned char kNop[] = {0x0f, 0x1f, 0x44, 0x00, 0x00}, kCall = 0xe8;
  if (code[0] == kTrap && original[0] != kTrap) return true;
  return left >= static_cast<long>(sizeof(kNop)) && code[0] == kCall &&
         std::memcmp(original, kNop, sizeof(kNop)) == 0;
}

// In one page; 0: none.
Addr probe_in_page(const Mapping& m, Addr page, int file) {
  unsigned char original[kPageSize], code[kPageSize];
  const auto at = static_cast<long>(m.file_offset + (page - m.range.start));
  const long n = sys::call(__NR_pread64, file, original, kPageSize, at);
  if (n <= 0 || !KernelCopy::read(reinterpret_cast<std::byte*>(code), page, kPageSize)) return {};
  for (long i = 0; i < n; ++i) {
    if (is_probe(code + i, original + i, n - i)) return page + static_cast<uint64_t>(i);
  }
  return {};
}

}  // namespace

Addr find_probe(const MemoryMap& map, PageScan& pages, Arena& arena) {
  ArenaVector<AddrRange> written(arena);
  for (const Mapping& m : map.mappings()) {
    constexpr uint32_t kCode = PROT_READ | PROT_EXEC;
    if (m.kind != MappingKind::kFilePrivate || (m.prot & kCode) != kCode || m.path_len == 0) continue;
    written.clear();
    if (!pages.scan(m, written).ok() || written.empty()) continue;
    const ScopedFd file = open_file_of(m);
    if (!file.valid()) continue;
    for (const AddrRange& run : written) {
      for (Addr page = run.start; page < run.end; page = page + kPageSize) {
        const Addr probe = probe_in_page(m, page, file.get());
        if (probe.value != 0) return probe;
      }
    }
  }
  return {};
}

}  // namespace ckpt
