#include "libckpt_rt/capture/memory/probes.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "base/raii_fd.h"
#include "base/sys.h"
#include "base/units.h"
#include "libckpt_rt/core/kernel/kernel_copy.h"
#include "libckpt_rt/core/kernel/task_list.h"
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

// calls: the kernel has made code of its own in the process, which may be called. (Tracers within a program
// make such calls, too.)
bool is_probe(const unsigned char* code, const unsigned char* original, long left, bool calls) {
  constexpr unsigned char kNop[] = {0x0f, 0x1f, 0x44, 0x00, 0x00}, kCall = 0xe8;
  if (code[0] == kTrap && original[0] != kTrap) return true;
  return calls && left >= static_cast<long>(sizeof(kNop)) && code[0] == kCall &&
         std::memcmp(original, kNop, sizeof(kNop)) == 0;
}

// What somebody writes over the begin of a function, so that it goes to his own: a near jump, ours into libc
// among them; a jump through the address behind it; an address moved into a register, and a jump there (Open
// MPI and UCX, which watch for memory that is given back).
struct Jump {
  unsigned char begin[2];
  long begins, bytes;
};
constexpr Jump kJumps[] = {
    {{0xe9}, 1, 5}, {{0xff, 0x25}, 2, 14}, {{0x49, 0xbb}, 2, 13}, {{0x48, 0xb8}, 2, 12}};

// A byte of its distance or address may be any.
bool is_in_jump(const unsigned char* code, const unsigned char* original, long at) {
  for (const Jump& jump : kJumps) {
    const auto size = static_cast<size_t>(jump.begins);
    for (long back = jump.begins; back <= std::min(at, jump.bytes - 1); ++back) {
      if (std::memcmp(code + at - back, jump.begin, size) == 0 &&
          std::memcmp(original + at - back, jump.begin, size) != 0)
        return true;
    }
  }
  return false;
}

// In one page; 0: none.
Addr probe_in_page(const Mapping& m, Addr page, int file, bool calls) {
  unsigned char original[kPageSize], code[kPageSize];
  const auto at = static_cast<long>(m.file_offset + (page - m.range.start));
  const long n = sys::call(__NR_pread64, file, original, kPageSize, at);
  if (n <= 0 || !KernelCopy::read(reinterpret_cast<std::byte*>(code), page, kPageSize)) return {};
  for (long i = 0; i < n; ++i) {
    if (is_probe(code + i, original + i, n - i, calls) && !is_in_jump(code, original, i))
      return page + static_cast<uint64_t>(i);
  }
  return {};
}

bool is_traced() {
  char text[2048];
  const long n = read_small_file("/proc/self/status", text, sizeof(text));
  const std::string_view status(text, n > 0 ? static_cast<size_t>(n) : 0);
  constexpr std::string_view kTracer = "\nTracerPid:\t";
  const size_t at = status.find(kTracer);
  return at != status.npos && !status.substr(at + kTracer.size()).starts_with("0\n");
}

// The program writes code into its memory of that file (the image of a Forth or a Lisp, which forbids writing
// to parts of it at times).
bool is_written_and_run(const MemoryMap& map, const Mapping& m) {
  constexpr uint32_t kBoth = PROT_WRITE | PROT_EXEC;
  const auto& all = map.mappings();
  return std::any_of(all.begin(), all.end(), [&m](const Mapping& other) {
    return other.kind == MappingKind::kFilePrivate && other.inode == m.inode && other.device == m.device &&
           (other.prot & kBoth) == kBoth;
  });
}

}  // namespace

Addr find_probe(const MemoryMap& map, PageScan& pages, Arena& arena) {
  // A debugger's breakpoints look the same, and are its own matter: it may be of the job.
  if (is_traced()) return {};
  ArenaVector<AddrRange> written(arena);
  for (const Mapping& m : map.mappings()) {
    constexpr uint32_t kCode = PROT_READ | PROT_EXEC;
    if (m.kind != MappingKind::kFilePrivate || (m.prot & kCode) != kCode || m.path_len == 0) continue;
    written.clear();
    if (!pages.scan(m, written).ok() || written.empty() || is_written_and_run(map, m)) continue;
    const ScopedFd file = open_file_of(m);
    if (!file.valid()) continue;
    for (const AddrRange& run : written) {
      for (Addr page = run.start; page < run.end; page = page + kPageSize) {
        const Addr probe = probe_in_page(m, page, file.get(), map.has_probe_area);
        if (probe.value != 0) return probe;
      }
    }
  }
  return {};
}

}  // namespace ckpt
