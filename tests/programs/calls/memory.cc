#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "tests/programs/calls/calls.h"

namespace calls {

using namespace victim;

namespace {

constexpr uint64_t kPages = 64;
constexpr uint64_t kBytes = kPages * kPage;

void check_file_bytes(const std::byte* got, const std::vector<std::byte>& file, size_t n, const char* what) {
  require(n == file.size() && std::memcmp(got, file.data(), n) == 0, "buffers: {} gave other bytes", what);
}

}  // namespace

// The kernel writes into pages that the program has not touched for a while: if these are protected
// at that moment, the call must not fail.
std::string buffers(uint64_t iterations) {
  int zero = open("/dev/zero", O_RDONLY | O_CLOEXEC);
  int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  int directory = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  require_call(zero >= 0 && file >= 0 && directory >= 0, "open");
  std::vector<std::byte> contents(kBytes);
  ssize_t length = pread(file, contents.data(), kBytes, 0);
  require_call(length > 0, "pread");
  contents.resize(static_cast<size_t>(length));
  int ends[2];
  require_call(pipe2(ends, O_CLOEXEC) == 0, "pipe2");
  constexpr unsigned kAreas = 16;
  std::byte* area[kAreas];
  for (auto& a : area) a = map_pages(kPages);
  for (uint64_t n = 0; n < iterations; ++n) {
    std::byte* at = area[n % kAreas];
    require_call(pread(file, at, kBytes, 0) == length, "pread");
    check_file_bytes(at, contents, static_cast<size_t>(length), "pread");
    require_call(read(zero, at, kBytes) == static_cast<ssize_t>(kBytes), "read of /dev/zero");
    for (uint64_t i = 0; i < kBytes; i += 1024)
      require(at[i] == std::byte{0}, "buffers: /dev/zero gave {}", int(at[i]));
    iovec parts[3] = {{at + 100, 5000}, {at + 3 * kPage, 1}, {at + 9 * kPage - 8, 4000}};
    require_call(preadv(file, parts, 3, 0) == 9001, "preadv");
    require(std::memcmp(at + 100, contents.data(), 5000) == 0, "buffers: preadv gave other bytes");

    at = area[(n + 5) % kAreas];
    require_call(syscall(SYS_getcwd, at + 2 * kPage - 3, kPage) > 0, "getcwd");
    require_call(syscall(SYS_uname, at + 5 * kPage - 100) == 0, "uname");
    require_call(syscall(SYS_clock_gettime, CLOCK_MONOTONIC, at + 7 * kPage - 8) == 0, "clock_gettime");
    require_call(syscall(SYS_fstat, file, at + 9 * kPage - 64) == 0, "fstat");
    require_call(syscall(SYS_getrandom, at + 11 * kPage - 9, 300, 0) == 300, "getrandom");
    require_call(lseek(directory, 0, SEEK_SET) == 0, "lseek");
    require_call(syscall(SYS_getdents64, directory, at + 13 * kPage - 500, 3 * kPage) > 0, "getdents64");
    require_call(syscall(SYS_readlinkat, AT_FDCWD, "/proc/self/exe", at + 20 * kPage - 4, kPage) > 0,
                 "readlinkat");
    require_call(syscall(SYS_rt_sigpending, at + 23 * kPage - 4, 8) == 0, "rt_sigpending");
    require_call(write(ends[1], contents.data(), 6000) == 6000, "write to a pipe");
    require_call(read(ends[0], at + 30 * kPage - 3000, 6000) == 6000, "read from a pipe");
    require(std::memcmp(at + 30 * kPage - 3000, contents.data(), 6000) == 0,
            "buffers: the pipe gave other bytes");
    auto* name = reinterpret_cast<utsname*>(at + 5 * kPage - 100);
    require(std::strcmp(name->sysname, "Linux") == 0, "buffers: uname gave {:.60}", name->sysname);
  }
  for (int fd : {zero, file, directory, ends[0], ends[1]}) close(fd);
  return fmt::format("{} rounds", iterations);
}

std::string errno_stays(uint64_t iterations) {
  constexpr int kValue = 12345;
  errno = kValue;
  for (uint64_t n = 0; n < iterations; ++n) {
    int now = *static_cast<volatile int*>(&errno);
    require(now == kValue, "errno: became {} in step {}", now, n);
  }
  return fmt::format("{} looks", iterations);
}

}  // namespace calls
