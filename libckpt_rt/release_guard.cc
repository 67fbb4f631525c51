#include "libckpt_rt/release_guard.h"

#include "libckpt_rt/hooks.h"
#include "libckpt_rt/library.h"

namespace ckpt::release_guard {

namespace {
std::atomic<Copier*> active{nullptr};
FutexWord inside{0};
}  // namespace

void before_release(AddrRange range) {
  // A child that libc did not fork has our state but none of our threads.
  if (range.empty() || library.pid != sys::getpid()) return;
  // seq_cst with close(): either it sees us inside, or we see that the copier is gone.
  inside.fetch_add(1, std::memory_order_seq_cst);
  if (Copier* copier = active.load(std::memory_order_seq_cst)) copier->before_release(range);
  if (inside.fetch_sub(1, std::memory_order_release) == 1) futex_wake(inside);
}

void open(Copier& copier) {
  active.store(&copier, std::memory_order_seq_cst);
  hooks::copy_under_way.store(1, std::memory_order_relaxed);  // the release of the threads publishes it
}

void close() {
  hooks::copy_under_way.store(0, std::memory_order_relaxed);
  active.store(nullptr, std::memory_order_seq_cst);
  while (uint32_t n = inside.load(std::memory_order_seq_cst)) futex_wait(inside, n);
}

void reset() {
  hooks::copy_under_way.store(0, std::memory_order_relaxed);
  active.store(nullptr, std::memory_order_relaxed);
  inside.store(0, std::memory_order_relaxed);
}

}  // namespace ckpt::release_guard
