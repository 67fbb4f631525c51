// Signals: frames that the kernel pushes, and faults that belong to the program.
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <vector>

#include "tests/programs/guarded/guarded.h"

namespace guarded {

using namespace victim;

namespace {

long tid() { return syscall(SYS_gettid); }

void send(int signal, uint64_t value) {
  siginfo_t info{};
  info.si_code = SI_QUEUE;
  info.si_pid = getpid();
  info.si_uid = getuid();
  info.si_value.sival_ptr = reinterpret_cast<void*>(value);
  require_call(syscall(SYS_rt_tgsigqueueinfo, getpid(), tid(), signal, &info) == 0, "rt_tgsigqueueinfo");
}

void allow(std::initializer_list<int> signals, int how) {
  sigset_t set;
  sigemptyset(&set);
  for (int s : signals) sigaddset(&set, s);
  require_zero(pthread_sigmask(how, &set, nullptr), "pthread_sigmask");
}

// What a handler found; one for each signal used here.
struct Seen {
  std::atomic<uint64_t> count{0};
  uint64_t value = 0;
  std::byte* stack = nullptr;
  bool in_alternate = false;
  bool itself_blocked = false;
};
Seen on_alternate, on_stack;

template <Seen& seen>
void note(int signal, siginfo_t* info, void*) {
  int here = 0;
  stack_t stack{};
  sigset_t mask;
  sigaltstack(nullptr, &stack);
  pthread_sigmask(SIG_BLOCK, nullptr, &mask);
  seen.value = reinterpret_cast<uint64_t>(info->si_value.sival_ptr);
  seen.stack = reinterpret_cast<std::byte*>(&here);
  seen.in_alternate = (stack.ss_flags & SS_ONSTACK) != 0;
  seen.itself_blocked = sigismember(&mask, signal) == 1;
  seen.count.fetch_add(1);
}

void install(int signal, void (*handler)(int, siginfo_t*, void*), int flags) {
  struct sigaction action {};
  action.sa_sigaction = handler;
  action.sa_flags = SA_SIGINFO | flags;
  require_call(sigaction(signal, &action, nullptr) == 0, "sigaction");
}

constexpr int kOnAlternate = 40, kOnStack = 41;  // real-time signals of this file
constexpr size_t kStackBytes = 128 << 10;

}  // namespace

// A thread whose stack and alternate stacks lie in memory that nobody has written to.
std::string heap_stacks(uint64_t iterations) {
  constexpr uint64_t kStacks = 64;
  std::byte* memory = map_pages(kStacks * kStackBytes / kPage);
  std::memset(memory, 0x77, kStacks * kStackBytes);
  install(kOnAlternate, &note<on_alternate>, SA_ONSTACK);
  install(kOnStack, &note<on_stack>, 0);
  allow({kOnAlternate, kOnStack}, SIG_UNBLOCK);
  for (uint64_t n = 0; n < iterations; ++n) {
    const stack_t wanted{memory + n % kStacks * kStackBytes, 0, kStackBytes};
    stack_t found{};
    require_call(sigaltstack(&wanted, nullptr) == 0 && sigaltstack(nullptr, &found) == 0, "sigaltstack");
    require(found.ss_sp == wanted.ss_sp && found.ss_size == kStackBytes && found.ss_flags == 0,
            "heap_stacks: another alternate stack");
    send(kOnAlternate, n);
    require(on_alternate.count.load() == n + 1 && on_alternate.value == n, "heap_stacks: {} of {} came",
            on_alternate.count.load(), n + 1);
    auto* begin = static_cast<std::byte*>(wanted.ss_sp);
    require(
        on_alternate.stack > begin && on_alternate.stack < begin + kStackBytes && on_alternate.in_alternate,
        "heap_stacks: the handler did not run on its stack");
    send(kOnStack, ~n);
    require(on_stack.count.load() == n + 1 && on_stack.value == ~n, "heap_stacks: {} of {} came",
            on_stack.count.load(), n + 1);
    require(!on_stack.in_alternate && (on_stack.stack < begin || on_stack.stack >= begin + kStackBytes),
            "heap_stacks: the handler ran on the alternate stack");
    require(on_alternate.itself_blocked && on_stack.itself_blocked,
            "heap_stacks: a handler's own signal was not blocked");
  }
  const stack_t none{nullptr, SS_DISABLE, 0};
  require_call(sigaltstack(&none, nullptr) == 0, "sigaltstack");
  return fmt::format("{} signals", 2 * iterations);
}

namespace {

struct Ring {
  static constexpr unsigned kMembers = 24;
  ucontext_t main, member[kMembers];
  uint64_t turns[kMembers] = {};
  uint64_t left = 0;
  std::atomic<uint64_t> signals{0};
};
Ring* ring = nullptr;

void coroutine(unsigned i) {
  double sum = i;
  for (;;) {
    sum += 0.5;
    ++ring->turns[i];
    require(sum == i + 0.5 * static_cast<double>(ring->turns[i]), "coroutines: the sum of {} is {}", i, sum);
    // A signal's frame on this very stack, now and then.
    if (ring->turns[i] % 64 == i % 64) {
      const uint64_t before = ring->signals.load();
      send(42, i);
      require(ring->signals.load() == before + 1, "coroutines: a signal did not come");
    }
    if (--ring->left == 0) setcontext(&ring->main);
    swapcontext(&ring->member[i], &ring->member[(i + 1) % Ring::kMembers]);
  }
}

}  // namespace

std::string coroutines(uint64_t iterations) {
  ring = new Ring;
  std::byte* stacks = map_pages(Ring::kMembers * kStackBytes / kPage);
  std::memset(stacks, 0x33, Ring::kMembers * kStackBytes);
  install(
      42, [](int, siginfo_t*, void*) { ring->signals.fetch_add(1); }, 0);
  allow({42}, SIG_UNBLOCK);
  ring->left = iterations;
  for (unsigned i = 0; i < Ring::kMembers; ++i) {
    require_call(getcontext(&ring->member[i]) == 0, "getcontext");
    ring->member[i].uc_stack = {stacks + i * kStackBytes, 0, kStackBytes};
    ring->member[i].uc_link = &ring->main;
    makecontext(&ring->member[i], reinterpret_cast<void (*)()>(&coroutine), 1, i);
  }
  require_call(swapcontext(&ring->main, &ring->member[0]) == 0, "swapcontext");
  uint64_t turns = 0;
  for (uint64_t t : ring->turns) turns += t;
  require(turns == iterations, "coroutines: {} turns", turns);
  return fmt::format("{} turns", turns);
}

namespace {

std::byte* broken_page = nullptr;  // what the program took the rights from
std::atomic<uint64_t> repaired{0};

// A write to a page of its own: gives the right back and returns to the instruction.
void repair(int signal, siginfo_t* info, void*) {
  require(signal == SIGSEGV && info->si_code == SEGV_ACCERR, "repairs: signal {} code {}", signal,
          info->si_code);
  auto* at = static_cast<std::byte*>(info->si_addr);
  require(at >= broken_page && at < broken_page + kPage, "repairs: {} instead of {}", static_cast<void*>(at),
          static_cast<void*>(broken_page));
  mprotect(broken_page, kPage, PROT_READ | PROT_WRITE);
  repaired.fetch_add(1);
}

}  // namespace

std::string repairs(uint64_t iterations) {
  constexpr uint64_t kPages = 2048;
  std::byte* memory = map_pages(kPages);
  std::memset(memory, 0x11, kPages * kPage);
  install(SIGSEGV, &repair, SA_NODEFER);
  // Beyond the end of a file: a SIGBUS of the program's own.
  static std::byte* beyond;
  static std::atomic<uint64_t> buses;
  const int file = memfd_create("short", MFD_CLOEXEC);
  require_call(file >= 0 && ftruncate(file, kPage) == 0, "memfd_create");
  void* mapped = mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  require_call(mapped != MAP_FAILED, "mmap");
  beyond = static_cast<std::byte*>(mapped) + kPage;
  static int short_file;
  short_file = file;
  install(
      SIGBUS,
      [](int, siginfo_t* info, void*) {
        require(info->si_code == BUS_ADRERR && info->si_addr == beyond, "repairs: a SIGBUS at {}",
                info->si_addr);
        ftruncate(short_file, 2 * kPage);
        buses.fetch_add(1);
      },
      0);
  for (uint64_t n = 0; n < iterations; ++n) {
    broken_page = memory + mix(n) % kPages * kPage;
    require_call(mprotect(broken_page, kPage, PROT_READ) == 0, "mprotect");
    word_at(broken_page + 8 * (n % 512)).store(n);
    require(repaired.load() == n + 1, "repairs: {} of {}", repaired.load(), n + 1);
    require(word_at(broken_page + 8 * (n % 512)).load() == n, "repairs: the write is lost");
    if (n % 16 == 0) {
      word_at(beyond).store(n + 1);
      require(buses.load() == n / 16 + 1 && word_at(beyond).load() == n + 1, "repairs: {} SIGBUS",
              buses.load());
      require_call(ftruncate(file, kPage) == 0, "ftruncate");
    }
  }
  munmap(mapped, 2 * kPage);
  close(file);
  return fmt::format("{} repairs", iterations);
}

// Signals that the guard itself needs, blocked and sent: they stay blocked, come once, are seen as blocked.
std::string masks(uint64_t iterations) {
  constexpr uint64_t kPages = 4096;
  std::byte* memory = map_pages(kPages);
  std::memset(memory, 0x22, kPages * kPage);
  allow({SIGSYS, SIGURG}, SIG_BLOCK);
  for (uint64_t n = 0; n < iterations; ++n) {
    memory[mix(n) % (kPages * kPage)] = static_cast<std::byte>(n);  // a fault, with SIGSYS blocked
    sigset_t now;
    require_zero(pthread_sigmask(SIG_BLOCK, nullptr, &now), "pthread_sigmask");
    require(
        sigismember(&now, SIGSYS) == 1 && sigismember(&now, SIGBUS) == 0 && sigismember(&now, SIGURG) == 1,
        "masks: another mask is in place");
    if (n % 8 != 0) continue;
    send(SIGURG, n);
    sigset_t wanted;
    sigemptyset(&wanted);
    sigaddset(&wanted, SIGURG);
    siginfo_t info{};
    require_call(sigwaitinfo(&wanted, &info) == SIGURG, "sigwaitinfo");
    require(info.si_value.sival_ptr == reinterpret_cast<void*>(n), "masks: another value");
  }
  return fmt::format("{} looks", iterations);
}

std::string thread_ends(uint64_t iterations) {
  uint64_t sum = 0;
  for (uint64_t n = 0; n < iterations; ++n) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    auto* mutex = new pthread_mutex_t;
    require_zero(pthread_mutex_init(mutex, &attributes), "pthread_mutex_init");
    uint64_t results[4] = {};
    std::thread threads[4];
    for (unsigned t = 0; t < 4; ++t) {
      threads[t] = std::thread([&, t] {
        std::vector<uint64_t> work(3000, t);
        for (uint64_t& w : work) results[t] += mix(w + n);
        // The thread dies with the lock: the kernel marks the word.
        if (t == 3) pthread_mutex_lock(mutex);
      });
    }
    for (auto& t : threads) t.join();
    require(pthread_mutex_lock(mutex) == EOWNERDEAD, "thread_ends: the death of the owner is not known");
    pthread_mutex_consistent(mutex);
    pthread_mutex_unlock(mutex);
    pthread_mutex_destroy(mutex);
    delete mutex;
    for (uint64_t r : results) sum += r;
  }
  return fmt::format("{:x}", sum);
}

}  // namespace guarded
