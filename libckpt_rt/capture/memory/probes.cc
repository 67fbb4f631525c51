#include "libckpt_rt/capture/memory/probes.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/raii_fd.h"
#include "base/sys.h"
#include "base/units.h"
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

// In one page; 0: none.
Addr probe_in_page(const Mapping& m, Addr page, int file) {
  unsigned char original[kPageSize];
  const auto at = static_cast<long>(m.file_offset + (page - m.range.start));
  const long n = sys::call(__NR_pread64, file, original, kPageSize, at);
  const auto* code = reinterpret_cast<const unsigned char*>(page.value);
  for (long i = 0; i < n; ++i) {
    if (code[i] == kTrap && original[i] != kTrap) return page + static_cast<uint64_t>(i);
  }
  return {};
}

}  // namespace

Addr find_probe(const MemoryMap& map, PageScan& pages, Arena& arena) {
  ArenaVector<AddrRange> written(arena);
  for (const Mapping& m : map.mappings()) {
    constexpr uint32_t kCode = PROT_READ | PROT_EXEC;
    if (m.kind != MappingKind::kFilePrivate || (m.prot & kCode) != kCode || m.path_len == 0) continue;
    const ScopedFd file = open_file_of(m);
    if (!file.valid()) continue;
    written.clear();
    if (!pages.scan(m, written).ok()) continue;
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
