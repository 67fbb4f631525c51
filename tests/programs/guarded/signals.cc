// Signals exactly as the kernel delivers them: where their handlers run, and that none is lost, early or
// deadly.
//
// A program of its own: it uses SIGSEGV and SIGBUS, which "guarded" needs for its own faults.
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "tests/programs/guarded/guarded.h"

namespace guarded {

using namespace victim;

namespace {

constexpr int kAutodisarm = static_cast<int>(1u << 31);  // SS_AUTODISARM
constexpr unsigned kUnshare = 2;                         // CLOSE_RANGE_UNSHARE
constexpr size_t kStackBytes = 64 << 10;

void install(int signal, void (*handler)(int), int flags = 0) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = flags;
  require_call(sigaction(signal, &action, nullptr) == 0, "sigaction");
}

void mask(int how, std::initializer_list<int> signals) {
  sigset_t set;
  sigemptyset(&set);
  for (int s : signals) sigaddset(&set, s);
  require_zero(pthread_sigmask(how, &set, nullptr), "pthread_sigmask");
}

void block_all() {
  sigset_t all;
  sigfillset(&all);
  require_zero(pthread_sigmask(SIG_BLOCK, &all, nullptr), "pthread_sigmask");
}

// A large memory that is written to, so that a checkpoint lasts.
class Memory {
 public:
  Memory() : memory_(map_pages(kPages)) { std::memset(memory_, 0x44, kPages * kPage); }
  void write(uint64_t n) { word_at(memory_ + mix(n) % kPages * kPage).store(n); }

 private:
  static constexpr uint64_t kPages = 8192;
  std::byte* memory_;
};

}  // namespace

// A stack that the kernel takes away while a handler runs, and gives back at its end: a handler that comes at
// that end must not run on top of the frame that the other returns by.
std::string disarmed(uint64_t iterations) {
  static std::byte stack[kStackBytes];
  const stack_t wanted{stack, kAutodisarm, kStackBytes};
  require_call(sigaltstack(&wanted, nullptr) == 0, "sigaltstack");
  static const auto handler = [](int) {
    stack_t found{};
    sigaltstack(nullptr, &found);
    require(found.ss_flags == SS_DISABLE, "disarmed: in a handler the alternate stack has flags {:x}",
            found.ss_flags);
  };
  install(SIGUSR1, handler, SA_ONSTACK);
  install(SIGUSR2, handler, SA_ONSTACK);
  install(SIGVTALRM, handler);
  std::atomic<bool> over = false;
  const pthread_t self = pthread_self();
  std::thread sender([&] {
    block_all();
    constexpr int kSignals[] = {SIGUSR1, SIGUSR2, SIGVTALRM};
    for (uint64_t n = 0; !over; ++n) {
      pthread_kill(self, kSignals[n % 3]);
      for (std::atomic<uint64_t> wait = 0; wait < mix(n) % 2000; wait.fetch_add(1)) {
      }
    }
  });
  Memory memory;
  for (uint64_t n = 0; n < iterations; ++n) {
    memory.write(n);
    stack_t found{};
    require_call(sigaltstack(nullptr, &found) == 0, "sigaltstack");
    require(found.ss_sp == stack && found.ss_size == kStackBytes && found.ss_flags == kAutodisarm,
            "disarmed: another alternate stack");
  }
  over = true;
  sender.join();
  return fmt::format("{} looks", iterations);
}

// A thread takes the handler away while another thread is on its way into it.
std::string actions(uint64_t iterations) {
  static int ends[2];
  static const auto handler = [](int) {};
  require_call(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "socketpair");
  std::atomic<bool> over = false, ready = false;
  install(SIGIO, handler);
  mask(SIG_BLOCK, {SIGIO});
  std::thread target([&] {
    const f_owner_ex owner{F_OWNER_TID, static_cast<pid_t>(syscall(SYS_gettid))};
    require_call(
        fcntl(ends[0], F_SETOWN_EX, &owner) == 0 && fcntl(ends[0], F_SETFL, O_ASYNC | O_NONBLOCK) == 0,
        "fcntl");
    mask(SIG_UNBLOCK, {SIGIO});
    ready = true;
    while (!over) {
    }
  });
  std::thread sender([&] {
    block_all();
    while (!ready) std::this_thread::yield();
    char byte = 0;
    while (!over) {
      require_call(write(ends[1], &byte, 1) == 1 && read(ends[0], &byte, 1) == 1, "write, read");
    }
  });
  Memory memory;
  for (uint64_t n = 0; n < iterations; ++n) {
    memory.write(n);
    install(SIGIO, SIG_IGN);
    for (std::atomic<uint64_t> wait = 0; wait < 4000; wait.fetch_add(1)) {
    }
    install(SIGIO, handler);
    for (std::atomic<uint64_t> wait = 0; wait < mix(n) % 1000; wait.fetch_add(1)) {
    }
  }
  over = true;
  target.join();
  sender.join();
  install(SIGIO, SIG_IGN);
  close(ends[0]);
  close(ends[1]);
  return fmt::format("{} changes", iterations);
}

namespace {

std::atomic<uint64_t> handled;
void count(int) { handled.fetch_add(1); }

// Descriptors of this thread that the program has not opened: its own have low numbers.
bool has_foreign_descriptors() {
  DIR* directory = opendir("/proc/thread-self/fd");
  require_call(directory != nullptr, "opendir");
  bool found = false;
  while (const dirent* entry = readdir(directory)) found = found || std::atoi(entry->d_name) >= 900;
  closedir(directory);
  return found;
}

struct Lone {
  std::atomic<bool> ready = false, parts = false, over = false;
  void run() {
    ready = true;
    while (!parts) std::this_thread::yield();
    require_call(syscall(SYS_close_range, 3000u, 4000u, kUnshare) == 0, "close_range");
    while (!over) std::this_thread::yield();
    const int64_t until = now_ns() + 60'000'000'000;
    while (has_foreign_descriptors()) require(now_ns() < until, "sent: a descriptor of somebody stays");
  }
};

}  // namespace

// Signals that mean a fault, but are sent: blocked and with a handler for once; to a thread that has
// descriptors of its own, and to one that is about to.
std::string sent(uint64_t iterations) {
  constexpr int kFaults[] = {SIGBUS, SIGSEGV};
  Memory memory;
  auto came = [](uint64_t before) { return handled.load() - before; };
  for (uint64_t n = 0; n < iterations; ++n) {
    for (int signal : kFaults) {
      install(signal, &count, static_cast<int>(SA_RESETHAND));
      mask(SIG_BLOCK, {signal});
      uint64_t before = handled.load();
      pthread_kill(pthread_self(), signal);
      struct sigaction found {};
      require_call(sigaction(signal, nullptr, &found) == 0, "sigaction");
      require(came(before) == 0 && found.sa_handler == &count, "sent: signal {} is blocked and came", signal);
      mask(SIG_UNBLOCK, {signal});
      require_call(sigaction(signal, nullptr, &found) == 0, "sigaction");
      require(came(before) == 1 && found.sa_handler == SIG_DFL, "sent: signal {} did not come", signal);
      install(signal, &count);
    }
    Lone lone;
    std::thread thread(&Lone::run, &lone);
    while (!lone.ready) std::this_thread::yield();
    for (uint64_t i = 0; i < 40; ++i) {
      memory.write(40 * n + i);
      if (i == 20) lone.parts = true;
      const uint64_t before = handled.load();
      pthread_kill(thread.native_handle(), kFaults[i % 2]);
      const int64_t until = now_ns() + 60'000'000'000;
      while (came(before) == 0) {
        require(now_ns() < until, "sent: signal {} is lost", kFaults[i % 2]);
        std::this_thread::yield();
      }
    }
    lone.over = true;
    thread.join();
  }
  return fmt::format("{} rounds", iterations);
}

}  // namespace guarded

int main(int argc, char** argv) {
  using namespace guarded;
  return victim::run_victim(
      {"guarded_signals",
       "Signals, alternate stacks and actions: what differs from the kernel's delivery ends it.",
       {{"disarmed", "handlers on a stack with SS_AUTODISARM", 1'500'000, disarmed},
        {"actions", "a handler that is taken away while its signals come", 30'000, actions, false},
        {"sent", "SIGBUS and SIGSEGV that are sent, also to threads with descriptors of their own", 200, sent,
         false}}},
      argc, argv);
}
