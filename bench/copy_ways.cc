// Ways in which the kernel copies a program's memory into a few buffers that are used again and again:
// processor seconds for each GiB, each method in turn. The memory is protected by userfaultfd, where that is
// allowed, as in a checkpoint.
//
//   copy_ways [MEGABYTES [ROUNDS [huge]]]     huge: the program's memory lies in huge pages, too
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

#include "bench/touched_memory.h"

namespace {

constexpr size_t kSegment = 64 << 10, kPool = 12 << 20;

double processor() {
  rusage used{};
  getrusage(RUSAGE_THREAD, &used);
  return static_cast<double>(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
         static_cast<double>(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
}

bool protect(char* memory, size_t bytes) {
  const int fd = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC));
  uffdio_api api{UFFD_API, UFFD_FEATURE_PAGEFAULT_FLAG_WP, 0};
  uffdio_register all{{reinterpret_cast<uint64_t>(memory), bytes}, UFFDIO_REGISTER_MODE_WP, 0};
  uffdio_writeprotect on{all.range, UFFDIO_WRITEPROTECT_MODE_WP};
  return fd >= 0 && ioctl(fd, UFFDIO_API, &api) == 0 && ioctl(fd, UFFDIO_REGISTER, &all) == 0 &&
         ioctl(fd, UFFDIO_WRITEPROTECT, &on) == 0;
}

char *small_pool, *huge_pool, *file_pool;
int file, channel[2];

using Call = ssize_t (*)(pid_t, const iovec*, unsigned long, const iovec*, unsigned long, unsigned long);
bool by(Call call, char* own, char* other) {
  iovec local{own, kSegment}, remote{other, kSegment};
  return call(gettid(), &local, 1, &remote, 1, 0) == kSegment;
}
bool by_pipe(char* to, char* from) {
  iovec piece{from, kSegment};
  if (vmsplice(channel[1], &piece, 1, 0) != kSegment) return false;
  for (size_t done = 0; done < kSegment;) {
    const ssize_t n = read(channel[0], to + done, kSegment - done);
    if (n <= 0) return false;
    done += static_cast<size_t>(n);
  }
  return true;
}

struct CopyMethod {
  const char* name;
  char** pool;
  bool (*copy)(char* to, char* from);
  std::vector<double> took;
};

}  // namespace

int main(int argc, char** argv) {
  const size_t bytes = static_cast<size_t>(argc > 1 ? std::atol(argv[1]) : 1024) << 20;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 7;
  const bool huge = argc > 3 && std::string_view(argv[3]) == "huge";
  char* memory = map_touched(bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  for (size_t i = 0; i < bytes; ++i) memory[i] = static_cast<char>(i >> 12);
  if (!protect(memory, bytes)) std::printf("not protected\n");
  small_pool = map_touched(kPool, MADV_NOHUGEPAGE);
  huge_pool = map_touched(kPool, MADV_HUGEPAGE);
  file = memfd_create("pool", MFD_CLOEXEC);
  file_pool = static_cast<char*>(ftruncate(file, kPool) == 0
                                     ? mmap(nullptr, kPool, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)
                                     : MAP_FAILED);
  if (file_pool == MAP_FAILED || pipe2(channel, O_CLOEXEC) != 0) std::abort();
  fcntl(channel[1], F_SETPIPE_SZ, 1 << 20);
  std::memset(file_pool, 1, kPool);
  CopyMethod methods[] = {
      {"process_vm_readv",
       &small_pool,
       [](char* to, char* from) { return by(process_vm_readv, to, from); },
       {}},
      {"process_vm_readv, buffers in huge pages",
       &huge_pool,
       [](char* to, char* from) { return by(process_vm_readv, to, from); },
       {}},
      {"process_vm_writev",
       &small_pool,
       [](char* to, char* from) { return by(process_vm_writev, from, to); },
       {}},
      {"process_vm_writev, buffers in huge pages",
       &huge_pool,
       [](char* to, char* from) { return by(process_vm_writev, from, to); },
       {}},
      {"pwrite to a memfd",
       &file_pool,
       [](char* to, char* from) { return pwrite(file, from, kSegment, to - file_pool) == kSegment; },
       {}},
      {"vmsplice and read, buffers in huge pages", &huge_pool, by_pipe, {}},
      {"memcpy, buffers in huge pages",
       &huge_pool,
       [](char* to, char* from) { return std::memcpy(to, from, kSegment) == to; },
       {}},
  };
  for (int round = 0; round < rounds; ++round) {
    for (CopyMethod& method : methods) {
      const double before = processor();
      for (size_t at = 0; at < bytes; at += kSegment) {
        char* to = *method.pool + at % kPool;
        if (method.copy(to, memory + at)) continue;
        std::printf("%s: %s\n", method.name, std::strerror(errno));
        return 1;
      }
      method.took.push_back((processor() - before) / (static_cast<double>(bytes) / (1 << 30)));
    }
  }
  for (CopyMethod& method : methods) {
    std::sort(method.took.begin(), method.took.end());
    if (!method.took.empty())
      std::printf("%-42s median %.3f, %.3f to %.3f s/GiB\n", method.name, method.took[method.took.size() / 2],
                  method.took.front(), method.took.back());
  }
  return 0;
}
