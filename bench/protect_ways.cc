// What the kernel takes to protect memory by userfaultfd and to let go of it: processor seconds for each GiB,
// of each step of a checkpoint, and of the two ways to end a registration of which no page is protected any
// more.
//
//   protect_ways [MEGABYTES [ROUNDS [huge]]]     huge: the memory lies in huge pages
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

#include "bench/touched_memory.h"

namespace {

constexpr size_t kAtOnce = 1 << 20, kInPasses = 4 << 20;
int fault_fd;

double processor() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

bool set_protection(char* memory, size_t bytes, size_t at_once, bool on) {
  for (size_t at = 0; at < bytes; at += at_once) {
    uffdio_writeprotect wp{{reinterpret_cast<uint64_t>(memory) + at, std::min(at_once, bytes - at)},
                           on ? UFFDIO_WRITEPROTECT_MODE_WP : 0};
    if (ioctl(fault_fd, UFFDIO_WRITEPROTECT, &wp) != 0) return false;
  }
  return true;
}

bool add(char* memory, size_t bytes, uint64_t mode) {
  uffdio_register all{{reinterpret_cast<uint64_t>(memory), bytes}, mode, 0};
  return ioctl(fault_fd, UFFDIO_REGISTER, &all) == 0;
}

bool remove(char* memory, size_t bytes) {
  uffdio_range all{reinterpret_cast<uint64_t>(memory), bytes};
  return ioctl(fault_fd, UFFDIO_UNREGISTER, &all) == 0;
}

struct Step {
  const char* name;
  bool (*run)(char* memory, size_t bytes);
  std::vector<double> took;
};

}  // namespace

int main(int argc, char** argv) {
  const size_t bytes = static_cast<size_t>(argc > 1 ? std::atol(argv[1]) : 1024) << 20;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 7;
  const bool huge = argc > 3 && std::string_view(argv[3]) == "huge";
  char* const memory = map_touched(bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  fault_fd = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC));
  uffdio_api api{UFFD_API, UFFD_FEATURE_PAGEFAULT_FLAG_WP, 0};
  if (fault_fd < 0 || ioctl(fault_fd, UFFDIO_API, &api) != 0) {
    std::printf("no userfaultfd\n");
    return 1;
  }
  auto start = [](char* m, size_t n) { return add(m, n, UFFDIO_REGISTER_MODE_WP); };
  auto protect = [](char* m, size_t n) { return set_protection(m, n, kInPasses, true); };
  auto unprotect = [](char* m, size_t n) { return set_protection(m, n, kAtOnce, false); };
  Step steps[] = {
      {"register", start, {}},
      {"protect, 4 MiB at once", protect, {}},
      {"unprotect, 1 MiB at once", unprotect, {}},
      {"unregister", [](char* m, size_t n) { return remove(m, n); }, {}},
      {"register", start, {}},
      {"protect, 4 MiB at once", protect, {}},
      {"unprotect, 1 MiB at once", unprotect, {}},
      {"register for missing pages, unregister",
       [](char* m, size_t n) { return add(m, n, UFFDIO_REGISTER_MODE_MISSING) && remove(m, n); },
       {}},
  };
  for (int round = 0; round < rounds; ++round) {
    for (Step& step : steps) {
      const double before = processor();
      if (!step.run(memory, bytes)) {
        std::perror(step.name);
        return 1;
      }
      step.took.push_back((processor() - before) / (static_cast<double>(bytes) / (1 << 30)));
    }
  }
  for (Step& step : steps) {
    std::sort(step.took.begin(), step.took.end());
    std::printf("%-42s median %.4f, %.4f to %.4f s/GiB\n", step.name, step.took[step.took.size() / 2],
                step.took.front(), step.took.back());
  }
  return 0;
}
