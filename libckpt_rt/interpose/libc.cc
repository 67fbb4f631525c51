#include "libckpt_rt/interpose/libc.h"

#include <fcntl.h>
#include <gnu/libc-version.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/times.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "base/memory/fork_path.h"
#include "base/units.h"
#include "libckpt_rt/core/process/dynamic_linker.h"
#include "libckpt_rt/interpose/abi.h"
#include "libckpt_rt/interpose/waits/clock.h"
#include "libckpt_rt/core/preload_rules.h"

// The interposed functions, by the names under which they are exported.
extern "C" {
[[gnu::visibility("default")]] int ckpt_libc_munmap(void*, size_t) __asm__("munmap");
[[gnu::visibility("default")]] int ckpt_libc_madvise(void*, size_t, int) __asm__("madvise");
[[gnu::visibility("default")]] void* ckpt_libc_mremap(void*, size_t, size_t, int, void*) __asm__("mremap");
[[gnu::visibility("default")]] int ckpt_libc_brk(void*) __asm__("brk");
// Functions of processor_calls.cc.
[[gnu::visibility("hidden")]] int ckpt_clock_gettime_after_restart(clockid_t, timespec*);
[[gnu::visibility("hidden")]] int ckpt_getrusage_after_restart(int, rusage*);
[[gnu::visibility("hidden")]] clock_t ckpt_times_after_restart(tms*);
}

namespace ckpt {
namespace {

// jmp rel32
constexpr unsigned char kJump = 0xe9;
constexpr size_t kJumpBytes = 5;
constexpr unsigned char kEndbr64[4] = {0xf3, 0x0f, 0x1e, 0xfa};

struct Redirection {
  const char* name;
  void* to;
  unsigned char* at;  // after the endbr64, if the function begins with one; null: not found
};

constinit Redirection redirections[] = {
    {"munmap", nullptr, nullptr},
    {"madvise", nullptr, nullptr},
    {"mremap", nullptr, nullptr},
    {"brk", nullptr, nullptr},
};

// In a restarted process only.
constinit Redirection after_restart[] = {
    {"clock_gettime", nullptr, nullptr},
    {"getrusage", nullptr, nullptr},
    {"times", nullptr, nullptr},
};

constinit bool redirected = false;

void make_jump(const Redirection& r, unsigned char (&jump)[kJumpBytes]) {
  const int64_t distance = static_cast<unsigned char*>(r.to) - (r.at + kJumpBytes);
  const auto offset = static_cast<int32_t>(distance);
  jump[0] = kJump;
  std::memcpy(jump + 1, &offset, sizeof(offset));
}

bool in_reach(const Redirection& r) {
  const int64_t distance = static_cast<unsigned char*>(r.to) - (r.at + kJumpBytes);
  return distance == static_cast<int32_t>(distance);
}

// fork(2) copies the page tables of a file mapping as soon as one of its pages is private to the process. The
// jumps would make libc's code such a mapping. So the pages with jumps become a mapping of their own; an
// advice that the rest does not have keeps the kernel from joining them again.
CKPT_START_PATH void set_apart() {
  constexpr uint64_t kNear = 256 << 10;  // bytes that may be split off
  AddrRange pages{};
  for (const Redirection& r : redirections) {
    if (r.at == nullptr || r.at == r.to || !in_reach(r)) continue;
    const AddrRange own{Addr::of(r.at).page_down(), (Addr::of(r.at) + kJumpBytes).page_up()};
    pages = pages.empty() ? own : AddrRange{std::min(pages.start, own.start), std::max(pages.end, own.end)};
  }
  if (pages.size() <= kNear) sys::call(__NR_madvise, pages.start.value, pages.size(), long{MADV_RANDOM});
}

// Five bytes are not written in one piece: nobody may be running them. libc tells it of its own threads; no
// library makes others while the program is loaded. Where libc cannot, /proc does, which takes 10 us.
bool only_thread() {
  if (*single_threaded != 0) return true;
  struct stat st;
  // A directory has a link from itself, one from its parent and one from each task.
  return sys::call(__NR_stat, "/proc/self/task", &st) == 0 && st.st_nlink == 3;
}

// libc's own function, not that of a library preloaded after us. Not by dlopen(3): it allocates, also for a
// library that is there, and a program without a heap would get one.
unsigned char* function_of_libc(const char* name, AddrRange libc) {
  void* function = dynamic_linker::find(RTLD_NEXT, name);
  if (!libc.contains(Addr::of(function))) {
    void* handle = dynamic_linker::loaded("libc.so.6");
    function = handle == nullptr ? nullptr : dynamic_linker::find(handle, name);
  }
  return static_cast<unsigned char*>(function);
}

CKPT_START_PATH void find(Redirection& r, void* ours, AddrRange libc) {
  unsigned char* code = function_of_libc(r.name, libc);
  if (code == nullptr) return;
  if (std::memcmp(code, kEndbr64, sizeof(kEndbr64)) == 0) code += sizeof(kEndbr64);
  r.to = ours;
  r.at = code;
}

[[gnu::constructor(102)]] void find_and_redirect() {
  const AddrRange libc =
      dynamic_linker::range_of_object_with(reinterpret_cast<const void*>(&gnu_get_libc_version));
  void* ours[] = {reinterpret_cast<void*>(ckpt_libc_munmap), reinterpret_cast<void*>(ckpt_libc_madvise),
                  reinterpret_cast<void*>(ckpt_libc_mremap), reinterpret_cast<void*>(ckpt_libc_brk)};
  for (size_t i = 0; i < 4; ++i) find(redirections[i], ours[i], libc);
  void* later[] = {reinterpret_cast<void*>(ckpt_clock_gettime_after_restart),
                   reinterpret_cast<void*>(ckpt_getrusage_after_restart),
                   reinterpret_cast<void*>(ckpt_times_after_restart)};
  for (size_t i = 0; i < 3; ++i) find(after_restart[i], later[i], libc);
  redirect_libc();
}

// /proc/self/mem writes where the program may not: the page stays executable and is never writable.
CKPT_START_PATH bool write_jumps(std::span<const Redirection> all) {
  const long fd = sys::call(__NR_openat, long{AT_FDCWD}, "/proc/self/mem", long{O_RDWR | O_CLOEXEC}, 0L);
  if (fd < 0) return false;
  bool whole = true;
  for (const Redirection& r : all) {
    if (r.at == nullptr || r.at == r.to || !in_reach(r)) {
      whole = false;
      continue;
    }
    unsigned char jump[kJumpBytes];
    make_jump(r, jump);
    if (std::memcmp(r.at, jump, kJumpBytes) == 0) continue;
    const long written = sys::call(__NR_pwrite64, fd, static_cast<void*>(jump), kJumpBytes, r.at);
    whole = whole && written == static_cast<long>(kJumpBytes);
  }
  sys::call(__NR_close, fd);
  return whole;
}

}  // namespace

CKPT_START_PATH bool redirect_libc() {
  redirected = false;
  if (!only_thread()) return false;
  set_apart();
  redirected = write_jumps(redirections);
  return redirected;
}

bool libc_is_redirected() { return redirected; }

void interposition_after_restart() {
  reset_clock();
  redirect_libc();
  write_jumps(after_restart);
}

}  // namespace ckpt
