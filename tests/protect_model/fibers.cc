#include "tests/protect_model/fibers.h"

#include <ucontext.h>

#include <utility>

namespace ckpt::test {
namespace {
Fiber* running = nullptr;
}

Fiber* Fiber::current() { return running; }

void Fiber::begin(AddrRange stack, std::function<void()> body) {
  body_ = std::move(body);
  stack_ = stack;
  done_ = begun_ = false;
}

void Fiber::entry(unsigned low, unsigned high) {
  auto* self = reinterpret_cast<Fiber*>(uint64_t{low} | uint64_t{high} << 32);
  self->body_();
  self->done_ = true;
  suspend();
}

void Fiber::resume() {
  before_ = std::exchange(running, this);
  active_ = true;
  if (_setjmp(caller_) == 0) {
    if (begun_) _longjmp(own_, 1);
    begun_ = true;
    ucontext_t first;
    getcontext(&first);
    first.uc_stack.ss_sp = stack_.start.as<void>();
    first.uc_stack.ss_size = stack_.size();
    first.uc_link = nullptr;
    const auto self = reinterpret_cast<uint64_t>(this);
    makecontext(&first, reinterpret_cast<void (*)()>(&Fiber::entry), 2, static_cast<unsigned>(self),
                static_cast<unsigned>(self >> 32));
    setcontext(&first);
  }
  active_ = false;
  running = before_;
}

void Fiber::suspend() {
  Fiber* const self = running;
  if (_setjmp(self->own_) == 0) _longjmp(self->caller_, 1);
}

}  // namespace ckpt::test
