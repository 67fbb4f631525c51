// A kernel and a program for Arming: pages that exist, are registered and are protected, and threads that
// write to them, give them back and map others in their place at any instant that the real ones could.
//
// Owner:     tests/protect_model. One FakeKernel is one process. Single-threaded: what runs beside the agent
// is run wherever
//            the agent asks the kernel something (beside()), so that an order of events has a seed.
// Callers:   the test. Arming, by ArmedMemory, PageScan and futex_words, whose bodies are in fake_kernel.cc.
#pragma once

#include <random>
#include <set>
#include <string>
#include <vector>

#include "libckpt_rt/protect/arming.h"

namespace ckpt::test {

class FakeKernel final : public ArmedMemory {
 public:
  // kHandler: faults and events are queued for a thread that serves (write_protect.h). kGuard: the thread
  // that writes handles its fault, and the kernel does not wait for one of its own (guarded_memory.h).
  enum class Kind { kHandler, kGuard };

  static constexpr size_t kPages = 3072, kThreads = 4;
  static constexpr uint64_t kBase = 1ull << 32;

  FakeKernel(Kind kind, unsigned seed);
  ~FakeKernel();

  struct Page {
    int mapping = 0;  // 0: nothing is mapped here
    bool exists = false, registered = false, is_protected = false;
    uint64_t content = 0;  // another after each write, and wherever another page is here
  };
  static AddrRange range_of(size_t first, size_t count) {
    return {Addr{kBase + first * kPageSize}, Addr{kBase + (first + count) * kPageSize}};
  }
  static size_t index(Addr a) { return (a.value - kBase) / kPageSize; }
  Page& page(size_t i) { return pages_[i]; }

  void serve(Arming* arming) { arming_ = arming; }
  // As /proc/self/maps has it. The pages of every fifth mapping cannot be registered.
  std::vector<Mapping> map() const;
  // The gate: while it is held no call changes mappings.
  void hold_mappings(bool held) { gate_ = held; }
  // Some of what may happen beside the agent happens.
  void beside();
  // Nothing new begins; what has begun ends.
  void stop();
  void go() { stopped_ = false; }
  // Memory is moved away and other memory here, and nobody is told (a bare mremap).
  void replace_unseen();
  // What copying leaves: a thread writes to it, or gives it back.
  void write_freely(size_t i);
  void give_back_freely(size_t i);

  // Pages that the kernel writes to at any time (a thread's tid word): never protected.
  std::set<size_t> open, noted;
  // The deadline of passes may come between any two batches.
  bool time_may_be_up = false;
  // What must never happen and did.
  std::vector<std::string> wrong;

  size_t any(size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random_); }
  bool now_and_then(size_t n) { return any(n) == 0; }

  long add(AddrRange range) override;
  long protect(AddrRange range) override;
  long unprotect(AddrRange range) override;
  void wake(AddrRange) override {}
  void serve_waiting() override;
  size_t batch() const override { return 4; }
  bool kernel_waits() const override { return kind_ == Kind::kHandler; }
  void each_busy(void (*visit)(void*, AddrRange), void* context) override;

 private:
  enum class Doing { kNothing, kFaulting, kTelling, kCalling, kWantsTurn };
  enum class Call { kGiveBack, kUnmap, kMapOver, kKernelWrites };
  struct Thread {
    Doing doing = Doing::kNothing;
    size_t first = 0, count = 0;
    Call call = Call::kGiveBack;
    bool queued = false;  // its fault or event has been read
    bool opened = false;  // kGuard: the library has been told
  };

  void begin_serving(Served served) override;
  void end_serving() override;
  long write_protect(AddrRange range, bool on);
  bool read_messages();
  bool serve_backlog();
  void begin_something(Thread& t);
  void go_on(Thread& t);
  void take_turn(Thread& t);
  void store(size_t i);
  void do_call(Thread& t);
  void map_new(size_t first, size_t count);
  bool call_allowed(Call call) const {
    return call == Call::kGiveBack || call == Call::kKernelWrites || !gate_;
  }

  const Kind kind_;
  std::mt19937 random_;
  std::vector<Page> pages_{kPages};
  Thread threads_[kThreads];
  Arming* arming_ = nullptr;
  int mappings_ = 0;
  // Where most of what happens happens.
  static constexpr size_t kHot = 200;
  size_t hot_ = 0;
  uint64_t contents_ = 0;
  bool gate_ = false, locked_ = false, stopped_ = false;
  std::vector<size_t> backlog_;  // threads whose fault was read
  int depth_ = 0;
};

}  // namespace ckpt::test
