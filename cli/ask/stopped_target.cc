#include "cli/ask/stopped_target.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "cli/text/failure.h"

namespace ckpt::cli {

// SIGCHLD wakes the tracer: blocked in all threads, it is queued.
StoppedTarget::StoppedTarget() : memory_(std::make_unique<std::byte[]>(StoppedTracer::kBytes)) {
  sigset_t child;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  pthread_sigmask(SIG_BLOCK, &child, nullptr);
  thread_ = std::thread([this] {
    tid_.store(gettid(), std::memory_order_release);
    tid_.notify_one();
    serve_orders(orders_, memory_.get());
  });
  tid_.wait(0);
}

StoppedTarget::~StoppedTarget() {
  give(TracerOrders::What::kEnd, nullptr);
  thread_.join();
}

long StoppedTarget::give(TracerOrders::What what, const Target* target) {
  return orders_.give(what, target != nullptr ? target->pid : 0, target != nullptr ? target->signal : 0,
                      getpid(), tid_);
}

Result<void> StoppedTarget::seize(const Target& target) {
  const long r = give(TracerOrders::What::kSeize, &target);
  if (r == 0) return {};
  const int error = static_cast<int>(-r);
  return failure(ExitCode::kUnavailable, fmt::format("{} ({})", target.pid, target.name),
                 fmt::format("is stopped and cannot answer, nor be traced: {}", strerror(error)),
                 fmt::format("continue it: kill -CONT {}, or ask as root", target.pid));
}

int StoppedTarget::stop_signal(const Target& target) {
  const long signal = give(TracerOrders::What::kStopSignal, &target);
  return signal > 0 ? static_cast<int>(signal) : 0;
}

}  // namespace ckpt::cli
