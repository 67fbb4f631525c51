// malloc and its family as a program with libckpt_heap.so preloaded sees them: alignments, sizes, zeros,
// threads, fork. Exit code 1 with a line on standard error for what is wrong.
#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "base/protocol/heap_protocol.h"

extern "C" __attribute__((weak)) ckpt::HeapInterface ckpt_heap_v1;

namespace {

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "family_test: %s\n", what);
  std::_Exit(1);
}

bool aligned(const void* p, size_t alignment) { return reinterpret_cast<uintptr_t>(p) % alignment == 0; }

// Each of them must come from the same heap as free(). volatile: the compiler knows these functions.
void family() {
  void* volatile p = nullptr;
  auto check = [&](void* got, size_t size, size_t alignment, const char* what) {
    p = got;
    require(p != nullptr && aligned(p, alignment) && malloc_usable_size(p) >= size, what);
    std::memset(p, 0xee, size);
    std::free(p);
  };
  for (size_t size : {1, 100, 5000, 70'000, 3'000'000}) {
    check(std::malloc(size), size, 16, "malloc");
    check(std::calloc(size, 3), size * 3, 16, "calloc");
    check(std::realloc(std::malloc(7), size), size, 16, "realloc");
    check(reallocarray(nullptr, size, 2), size * 2, 16, "reallocarray");
    check(std::aligned_alloc(256, (size + 255) / 256 * 256), size, 256, "aligned_alloc");
    check(memalign(8192, size), size, 8192, "memalign");
    check(valloc(size), size, 4096, "valloc");
    check(pvalloc(size), (size + 4095) / 4096 * 4096, 4096, "pvalloc");
    void* got = nullptr;
    require(posix_memalign(&got, 1 << 20, size) == 0, "posix_memalign");
    check(got, size, 1 << 20, "posix_memalign");
    auto* object = new std::string(size, 'x');
    require(malloc_usable_size(object) >= sizeof(std::string), "operator new");
    delete object;
  }
  volatile size_t most = SIZE_MAX;
  errno = 0;
  require(pvalloc(most) == nullptr && errno == ENOMEM, "pvalloc of everything");
  errno = 0;
  require(std::malloc(most / 2) == nullptr && errno == ENOMEM, "malloc of half of everything");
}

// Freed memory comes back as zeros where zeros are promised.
void zeros(unsigned seed, unsigned rounds) {
  std::vector<unsigned char*> live(64);
  for (unsigned n = 0; n < rounds; ++n) {
    seed = seed * 1664525 + 1013904223;
    const size_t size = 1 + (seed >> 8) % (n % 50 == 0 ? 4'000'000 : 60'000);
    unsigned char*& p = live[seed >> 26];
    std::free(p);
    p = static_cast<unsigned char*>(std::calloc(1, size));
    require(p != nullptr, "calloc: no memory");
    for (size_t i = 0; i < size; ++i) require(p[i] == 0, "calloc: not zero");
    std::memset(p, 0xcc, size);
  }
  for (auto* p : live) std::free(p);
}

void fork_beside_threads() {
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 3; ++t) threads.emplace_back([t] { zeros(t, 1000); });
  for (int n = 0; n < 30; ++n) {
    const pid_t child = fork();
    require(child >= 0, "fork");
    if (child == 0) {
      zeros(7, 200);
      std::_Exit(0);
    }
    int status = 0;
    require(waitpid(child, &status, 0) == child && status == 0, "a child's heap");
  }
  for (auto& thread : threads) thread.join();
}

}  // namespace

int main(int argc, char** argv) {
  require(&ckpt_heap_v1 != nullptr, "libckpt_heap.so is not preloaded");
  family();
  zeros(1, 1000);
  // argv[1]: the limit of address space, in KiB, or "unlimited". So little is not enough for threads either.
  const long limit = argc > 1 ? std::atol(argv[1]) : 0;
  const bool no_region = limit != 0 && limit < 65536;
  if (!no_region) fork_beside_threads();
  require((ckpt_heap_v1.regions[0].load() == nullptr) == no_region, "regions");
  // Where regions are small, what jemalloc asks for at once may be larger than one.
  if (limit == 0 || no_region)
    require((ckpt_heap_v1.bytes_outside.load() != 0) == no_region, "memory outside of regions");
  return 0;
}
