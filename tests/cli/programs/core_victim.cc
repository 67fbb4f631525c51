// A program to be looked at in a core file: threads that stand in functions of known names, with
// variables of known values. Says "ready" when all of them stand there, and ends with its input.
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>

char global_text[64] = "in the data segment";
char* heap_text;
char* shared_text;
char* shared_alias;
uint64_t* sparse;  // one word at the end of 64 GiB
std::atomic<int> standing{0};

namespace {

constexpr int kThreads = 4;
pthread_barrier_t barrier;

// The value is on the stack, and the function is still there: neither is optimised away.
__attribute__((noinline)) int waits_here(int number) {
  volatile int secret = 4200 + number;
  standing++;
  pthread_barrier_wait(&barrier);
  return secret;
}

__attribute__((noinline)) int spins_here(uint64_t pattern) {
  volatile bool stop = false;
  // xmm15 holds the pattern while the thread spins, and already when it is counted.
  asm volatile("movq %0, %%xmm15" : : "r"(pattern) : "xmm15");
  standing++;
  while (!stop) asm volatile("movq %0, %%xmm15" : : "r"(pattern) : "xmm15");
  return 0;
}

void* worker(void* argument) {
  int number = static_cast<int>(reinterpret_cast<intptr_t>(argument));
  char name[16];
  std::snprintf(name, sizeof(name), "worker %d", number);
  pthread_setname_np(pthread_self(), name);
  if (number == kThreads)
    return reinterpret_cast<void*>(static_cast<intptr_t>(spins_here(0x1122334455667788)));
  return reinterpret_cast<void*>(static_cast<intptr_t>(waits_here(number)));
}

}  // namespace

int main() {
  heap_text = strdup("on the heap");
  constexpr size_t kSparse = size_t{64} << 30;
  sparse = static_cast<uint64_t*>(
      mmap(nullptr, kSparse, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  int memory_file = memfd_create("shared", MFD_CLOEXEC);
  if (sparse == MAP_FAILED || memory_file < 0 || ftruncate(memory_file, 8192) != 0) return 1;
  sparse += kSparse / sizeof(*sparse) - 1;
  *sparse = 77;
  auto map_shared = [&] {
    return static_cast<char*>(mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, memory_file, 0));
  };
  shared_text = map_shared();
  shared_alias = map_shared();
  std::strcpy(shared_text, "mapped twice");
  pthread_barrier_init(&barrier, nullptr, kThreads + 1);
  for (intptr_t i = 1; i <= kThreads; i++) {
    pthread_t thread;
    pthread_create(&thread, nullptr, worker, reinterpret_cast<void*>(i));
  }
  while (standing != kThreads) usleep(1000);
  std::puts("ready");
  std::fflush(stdout);
  char c;
  return read(0, &c, 1) < 0 ? 1 : 0;
}
