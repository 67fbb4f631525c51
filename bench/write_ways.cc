// Ways in which a program's memory gets to the disk while it is protected, a MiB at a time by O_DIRECT:
// processor seconds for each GiB, each method in turn. What a checkpoint takes without its lists, its threads
// and its waits.
//
//   write_ways FILE [MEGABYTES [ROUNDS [huge]]]     FILE is overwritten and removed; huge: the memory lies in huge pages
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "bench/touched_memory.h"

namespace {

constexpr size_t kSegment = 64 << 10, kMiB = 1 << 20, kPool = 12 << 20;
int fault_fd;

// Interrupts of the disk that came meanwhile are in it.
double processor() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  return static_cast<double>(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
         static_cast<double>(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
}

void set_protection(char* memory, size_t bytes, bool on) {
  uffdio_writeprotect wp{{reinterpret_cast<uint64_t>(memory), bytes}, on ? UFFDIO_WRITEPROTECT_MODE_WP : 0};
  if (ioctl(fault_fd, UFFDIO_WRITEPROTECT, &wp) != 0) std::perror("UFFDIO_WRITEPROTECT");
}

// A MiB, in pieces.
using Copy = void (*)(char* to, char* from, size_t bytes);
void by_the_kernel(char* to, char* from, size_t bytes) {
  iovec local{from, bytes}, remote{to, bytes};
  if (process_vm_writev(gettid(), &local, 1, &remote, 1, 0) != static_cast<ssize_t>(bytes)) std::abort();
}
void by_the_processor(char* to, char* from, size_t bytes) { std::memcpy(to, from, bytes); }

struct WriteMethod {
  const char* name;
  Copy copy;  // nullptr: written from where it lies
  size_t at_once;
  bool summed, written;
  std::vector<double> took;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::printf("write_ways FILE [MEGABYTES [ROUNDS [huge]]]\n");
    return 64;
  }
  const size_t bytes = static_cast<size_t>(argc > 2 ? std::atol(argv[2]) : 512) << 20;
  const int rounds = argc > 3 ? std::atoi(argv[3]) : 7;
  const bool huge = argc > 4 && std::string_view(argv[4]) == "huge";
  const int file = open(argv[1], O_CREAT | O_RDWR | O_TRUNC | O_DIRECT | O_CLOEXEC, 0600);
  if (file < 0) {
    std::perror(argv[1]);
    return 1;
  }
  unlink(argv[1]);
  char *memory = map_touched(bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE),
       *pool = map_touched(kPool, MADV_HUGEPAGE);
  for (size_t i = 0, x = 88172645463325252; i < bytes / 8; ++i) {
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    reinterpret_cast<uint64_t*>(memory)[i] = x;
  }
  fault_fd = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC));
  uffdio_api api{UFFD_API, UFFD_FEATURE_PAGEFAULT_FLAG_WP, 0};
  uffdio_register all{{reinterpret_cast<uint64_t>(memory), bytes}, UFFDIO_REGISTER_MODE_WP, 0};
  if (fault_fd < 0 || ioctl(fault_fd, UFFDIO_API, &api) != 0 || ioctl(fault_fd, UFFDIO_REGISTER, &all) != 0) {
    std::printf("no userfaultfd\n");
    return 1;
  }
  WriteMethod methods[] = {
      {"protected and unprotected", nullptr, 0, false, false, {}},
      {"process_vm_writev 64 KiB", &by_the_kernel, kSegment, false, false, {}},
      {"process_vm_writev 256 KiB", &by_the_kernel, 4 * kSegment, false, false, {}},
      {"memcpy", &by_the_processor, kSegment, false, false, {}},
      {"process_vm_writev 64 KiB, sum, write", &by_the_kernel, kSegment, true, true, {}},
      {"process_vm_writev 256 KiB, sum, write", &by_the_kernel, 4 * kSegment, true, true, {}},
      {"memcpy, sum, write", &by_the_processor, kSegment, true, true, {}},
      {"sum and write where it lies", nullptr, 0, true, true, {}},
      {"write where it lies", nullptr, 0, false, true, {}},
  };
  uint64_t sums = 0;
  for (int round = 0; round < rounds; ++round) {
    for (WriteMethod& method : methods) {
      const double before = processor();
      set_protection(memory, bytes, true);
      for (size_t at = 0; at < bytes; at += kMiB) {
        char *from = memory + at, *data = method.copy != nullptr ? pool + at % kPool : from;
        if (method.copy != nullptr) {
          for (size_t done = 0; done < kMiB; done += method.at_once)
            method.copy(data + done, from + done, method.at_once);
          set_protection(from, kMiB, false);
        }
        for (size_t done = 0; method.summed && done < kMiB; done += kSegment)
          sums += XXH3_64bits(data + done, kSegment);
        if (method.written &&
            pwrite(file, data, kMiB, static_cast<off_t>(at)) != static_cast<ssize_t>(kMiB)) {
          std::perror("pwrite");
          return 1;
        }
        if (method.copy == nullptr) set_protection(from, kMiB, false);
      }
      method.took.push_back((processor() - before) / (static_cast<double>(bytes) / (1 << 30)));
    }
  }
  for (WriteMethod& method : methods) {
    std::sort(method.took.begin(), method.took.end());
    std::printf("%-42s median %.3f, %.3f to %.3f s/GiB\n", method.name, method.took[method.took.size() / 2],
                method.took.front(), method.took.back());
  }
  return sums == 0;
}
