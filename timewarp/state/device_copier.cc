// The emulated DMA device of copier/: in real time, on a thread of its own or driven by the thread that asks.
//
// The asking thread drives the device: its work (copying a few bursts) is done when that thread looks. The
// work counts as done only when the device would have done it by the clock. So a machine with few processors
// can have a device of any speed for each of its threads.
#include <time.h>

#include <cstring>
#include <new>
#include <thread>

#include "base/memory/arena.h"
#include "copier/engines/dma_copy_engine.h"
#include "timewarp/state/non_blocking.h"

namespace ckpt::timewarp {

namespace {

// By the vdso: base/clock.h makes a system call, which an event would notice.
int64_t clock_ns() {
  timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return int64_t{ts.tv_sec} * 1'000'000'000 + ts.tv_nsec;
}

class OwnMemory final : public SourceMemory {
 public:
  long read(std::byte* to, Addr from, size_t bytes, bool) override {
    std::memcpy(to, from.as(), bytes);
    return 0;
  }
};

class Nobody final : public CopyListener {
 public:
  void copied(uint64_t, long) override {}
};

class DeviceCopier final : public BackgroundCopier {
 public:
  DeviceCopier(const DmaSettings& settings, uint64_t finish_speed, bool own_thread)
      : finish_speed_(finish_speed), engine_(memory_, nobody_, settings) {
    if (!arena_.reserve(DmaCopyEngine::arena_bytes(settings)) || !engine_.reserve(arena_))
      throw std::bad_alloc();
    if (own_thread) {
      thread_ = std::thread([this] { engine_.run(); });
    } else {
      engine_.run_until(clock_ns());
    }
  }
  ~DeviceCopier() override {
    engine_.stop();
    if (thread_.joinable()) thread_.join();
  }

  [[nodiscard]] bool start(NonBlockingCopy& copy) override {
    poll();  // what is triggered now begins now
    CopyTicket ticket;
    const uint64_t pages = (copy.bytes + kPageSize - 1) / kPageSize;
    const CopyRequest request{0,
                              Addr::of(copy.from),
                              static_cast<std::byte*>(copy.to),
                              copy.bytes,
                              pages == 64 ? ~0ull : (1ull << pages) - 1,
                              true};
    if (!engine_.submit(request, CopyPriority::kSequential, &ticket)) return false;
    copy.ticket = ticket.value;
    return true;
  }
  Settled settle(NonBlockingCopy& copy, uint32_t percent) override {
    poll();
    const uint64_t before = engine_.counters().finished_bytes.load(std::memory_order_relaxed);
    switch (engine_.resync({copy.ticket}, percent)) {
      case Resync::kDone:
        return Settled::kComplete;
      case Resync::kCommitted:
        pay(engine_.counters().finished_bytes.load(std::memory_order_relaxed) - before);
        return Settled::kFinished;
      case Resync::kAborted:
      case Resync::kFailed:
        break;
    }
    return Settled::kAborted;
  }
  void poll() override {
    if (!thread_.joinable()) engine_.run_until(clock_ns());
  }

 private:
  // A processor whose copies are as slow, beside its events, as those of the paper were.
  void pay(uint64_t bytes) const {
    if (finish_speed_ == 0 || bytes == 0) return;
    const int64_t until = clock_ns() + static_cast<int64_t>(bytes * 1'000'000'000 / finish_speed_);
    while (clock_ns() < until) {
    }
  }

  const uint64_t finish_speed_;
  OwnMemory memory_;
  Nobody nobody_;
  Arena arena_;
  DmaCopyEngine engine_;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<BackgroundCopier> make_device_copier(const ckpt_tw_options& options, size_t most_bytes,
                                                     uint32_t most_copies, bool own_thread) {
  DmaSettings settings;
  // A copy that was given up keeps its slot until the device has passed it.
  settings.slots = most_copies * 2 + 8;
  settings.most_bytes = static_cast<uint32_t>(most_bytes);
  settings.burst_bytes = options.burst_bytes != 0 ? options.burst_bytes : 1024;
  settings.speed.bytes_per_second = options.device_bytes_per_second;
  return std::make_unique<DeviceCopier>(settings, options.finish_bytes_per_second, own_thread);
}

}  // namespace ckpt::timewarp
