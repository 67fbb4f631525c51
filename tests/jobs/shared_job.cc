// Processes that write to one piece of shared anonymous memory at full speed. What each has written, and
// where, it also knows from its private memory: an image whose shared pages are from another instant than a
// process's own, or from two, is found at the next step after a restart.
//
//   shared_job MIB PROCESSES [fork|clone|syscall]
//                                        runs until a file named "stop" is in its directory; prints "ok", or
//                                        what is wrong
//
// With a third argument the first process makes children without rest, by that call, which write to the
// memory too, or execute another program.
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

namespace {

using Word = std::atomic<uint64_t>;
constexpr uint64_t kPage = 4096, kStride = 97;
constexpr uint64_t kMoney = 1000;  // of each account

struct Common {
  Word stop, steps, born;
  struct {
    Word steps, holds, done;
  } of[16];
};

std::byte* memory;
uint64_t pages;  // behind that of Common; no multiple of kStride

Common& common() { return *reinterpret_cast<Common*>(memory); }
Word& word(uint64_t page, uint64_t index) {
  return *reinterpret_cast<Word*>(memory + (page + 1) * kPage + index * 8);
}
// Words 0 to 15 of a page: a process's steps there. 64: an account. 128: written by short-lived children.
Word& account(uint64_t page) { return word(page, 64); }

[[noreturn]] void wrong(const char* what, unsigned process, uint64_t step, uint64_t found,
                        uint64_t expected) {
  std::printf("process %u, step %lu: %s is %lu, not %lu\n", process, step, what, found, expected);
  std::fflush(stdout);
  kill(0, SIGKILL);
  std::abort();
}

void work(unsigned process) {
  uint64_t random = process + 1, steps = 0, holds = 0;
  for (;; ++steps) {
    const uint64_t page = steps * kStride % pages, expected = steps / pages;
    Word& mine = word(page, process);
    if (const uint64_t found = mine.load(std::memory_order_relaxed); found != expected)
      wrong("its word", process, steps, found, expected);
    mine.store(expected + 1, std::memory_order_relaxed);
    common().steps.fetch_add(1, std::memory_order_relaxed);
    // Money goes from page to page, and for a moment through this process's own memory.
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    Word& from = account(random % pages);
    uint64_t there = from.load(std::memory_order_relaxed);
    if (there != 0 && from.compare_exchange_strong(there, there - 1)) ++holds;
    if (holds > 100) {
      account(random / pages % pages).fetch_add(holds);
      holds = 0;
    }
    if (steps % 64 == 0 && common().stop.load(std::memory_order_relaxed) != 0) break;
  }
  ++steps;
  for (uint64_t i = 0; i < pages; ++i) {
    const uint64_t expected = steps / pages + (i < steps % pages ? 1 : 0), page = i * kStride % pages;
    if (const uint64_t found = word(page, process).load(); found != expected)
      wrong("its word at the end", process, steps, found, expected);
  }
  common().of[process].steps = steps;
  common().of[process].holds = holds;
  common().of[process].done = 1;
}

[[noreturn]] void live(uint64_t n) {
  if (n % 4 == 3) execl("/bin/true", "true", nullptr);
  for (uint64_t i = 0; i < 64; ++i) word((n * 64 + i) % pages, 128).fetch_add(1);
  common().born.fetch_add(1);
  _exit(0);
}

int live_of(void* n) { live(*static_cast<uint64_t*>(n)); }

pid_t make_child(const char* how, uint64_t n) {
  alignas(16) static char stack[64 << 10];
  if (std::strcmp(how, "clone") == 0) return clone(live_of, std::end(stack), SIGCHLD, &n);
  const pid_t child = std::strcmp(how, "syscall") == 0
                          ? static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, 0L, 0L, 0L, 0L))
                          : fork();
  if (child == 0) live(n);
  return child;
}

void make_children(const char* how) {
  for (uint64_t n = 0; access("stop", F_OK) != 0; ++n) {
    const pid_t child = make_child(how, n);
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
      std::printf("a child: %d, status %x\n", child, static_cast<unsigned>(status));
      std::fflush(stdout);
      kill(0, SIGKILL);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 64;
  const uint64_t bytes = std::strtoull(argv[1], nullptr, 10) << 20;
  const auto processes = static_cast<unsigned>(std::strtoul(argv[2], nullptr, 10));
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED || processes > 16) return 65;
  memory = static_cast<std::byte*>(p);
  pages = bytes / kPage - 1;
  if (pages % kStride == 0) --pages;
  // A third has no page until it is written to.
  for (uint64_t i = 0; i < pages; ++i) {
    if (i % 3 != 0) account(i) = kMoney;
  }
  for (unsigned i = 0; i < processes; ++i) {
    if (fork() != 0) continue;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    work(i);
    _exit(0);
  }
  if (argc > 3)
    make_children(argv[3]);
  else
    while (access("stop", F_OK) != 0) usleep(10'000);
  common().stop = 1;
  int status;
  while (wait(&status) > 0) {
  }
  uint64_t steps = 0, money = 0, born = 0, before = 0;
  for (unsigned i = 0; i < processes; ++i) {
    if (common().of[i].done != 1) {
      std::printf("process %u has not ended well\n", i);
      return 1;
    }
    steps += common().of[i].steps;
    money += common().of[i].holds;
  }
  for (uint64_t i = 0; i < pages; ++i) {
    money += account(i);
    born += word(i, 128);
    if (i % 3 != 0) before += kMoney;
  }
  if (steps != common().steps)
    return std::printf("%lu steps, counted %lu\n", steps, common().steps.load()), 1;
  if (money != before) return std::printf("money %lu, was %lu\n", money, before), 1;
  if (born != common().born * 64)
    return std::printf("children's words %lu, not %lu\n", born, common().born * 64), 1;
  std::puts("ok");
  return 0;
}
