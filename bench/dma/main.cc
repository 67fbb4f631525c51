// dma: what it is worth to queue many copies for a DMA device and to settle them one by one, after the
// study of CCL v3.0 (Santoro and Quaglia, sections 3.3 and 5). Google Benchmark:
//
//   threshold/QUEUEING/T            event rate against the threshold of re-synchronisation, in percent
//   peak/QUEUEING/OBJECTS/EVENT_US  at the best threshold, against the number of objects and the work of an
//   event copy/ENGINE                     64 KiB copies a second on this machine, in real time
//
// An optimistic simulator (the paper's figures 5 and 6): the next object is scheduled, a checkpoint of it
// that is still under way is settled, its event is executed, and a checkpoint of its state is asked for.
// An aborted checkpoint does not exist: a rollback then has to repeat more events. QUEUEING: `multi`, any
// number of checkpoints in the queue; `mono`, one: the last one is settled before the next is asked for;
// `cpu`, copied by the CPU on the spot. Time is virtual: the same numbers on every machine.
#include <benchmark/benchmark.h>
#include <fmt/core.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "copier/engines/dma_copy_engine.h"

namespace {

using namespace ckpt;

// The paper's hardware, roughly: 32-bit PCI at 33 MHz, bursts of 1 KiB, a Pentium III.
constexpr uint32_t kStateBytes = 2048, kBurst = 1024;
constexpr uint64_t kBusBytesPerSecond = 132'000'000, kCpuBytesPerSecond = 400'000'000;
constexpr int64_t kRequestNs = 1000;       // to hand a request to the device, or to ask how far it is
constexpr unsigned kMostEventsApart = 40;  // between committed checkpoints, as in the paper
constexpr double kRollbackShare = 0.025;   // of all events
constexpr int64_t kEvents = 4000, kRuns = 10;

class PlainMemory final : public SourceMemory {
 public:
  long read(std::byte* to, Addr from, size_t bytes, bool) override {
    std::memcpy(to, from.as(), bytes);
    return 0;
  }
};

enum class Queueing { kMono, kMulti, kCpu };

struct Object {
  std::vector<std::byte> state = std::vector<std::byte>(kStateBytes),
                         checkpoint = std::vector<std::byte>(kStateBytes);
  CopyTicket ticket;
  bool under_way = false;
  unsigned since_committed = 0;  // events after the state that was last committed
  unsigned at_request = 0;       // of these, how many when the checkpoint under way was asked for
};

struct Outcome {
  double events_per_second = 0, events_apart = 0, aborted_share = 0;
};

class Simulator final : public CopyListener {
 public:
  Simulator(Queueing queueing, unsigned objects, double event_us, uint32_t threshold, uint32_t seed)
      : queueing_(queueing),
        threshold_(threshold),
        objects_(objects),
        random_(seed),
        event_ns_(1 / (event_us * 1e3)),
        pick_(0, objects - 1) {
    const DmaSettings settings{.slots = objects + 1,
                               .most_bytes = kStateBytes,
                               .burst_bytes = kBurst,
                               .speed = {kBusBytesPerSecond}};
    if (!arena_.reserve(DmaCopyEngine::arena_bytes(settings))) std::abort();
    engine_.emplace(memory_, *this, settings);
    if (!engine_->reserve(arena_)) std::abort();
  }

  void copied(uint64_t cookie, long) override { committed(objects_[cookie]); }

  Outcome run() {
    for (int64_t n = 0; n < kEvents; ++n) {
      const unsigned next = pick_(random_);
      Object& object = objects_[next];
      settle(object);
      if (share_(random_) < kRollbackShare) {
        // Back to the last committed state and forward again.
        spend(copy_ns(kStateBytes));
        for (unsigned i = 0; i < object.since_committed; ++i) execute();
      }
      execute();
      ++object.since_committed;
      request(next);
    }
    Outcome o;
    o.events_per_second = static_cast<double>(kEvents) / (static_cast<double>(now_) / 1e9);
    o.events_apart = static_cast<double>(kEvents) / static_cast<double>(std::max<int64_t>(committed_, 1));
    o.aborted_share = static_cast<double>(aborted_) / static_cast<double>(kEvents);
    return o;
  }

 private:
  static int64_t copy_ns(uint64_t bytes) {
    return static_cast<int64_t>(bytes * 1'000'000'000 / kCpuBytesPerSecond);
  }
  void execute() { spend(static_cast<int64_t>(event_ns_(random_))); }
  // The CPU works, and the device beside it.
  void spend(int64_t ns) {
    now_ += ns;
    engine_->run_until(now_);
  }
  void committed(Object& object) {
    object.under_way = false;
    object.since_committed -= object.at_request;
    ++committed_;
  }
  void settle(Object& object) {
    if (!object.under_way) return;
    const uint64_t finished = engine_->counters().finished_bytes.load();
    // A checkpoint must not be given up again and again.
    const uint32_t threshold = object.since_committed >= kMostEventsApart ? 0 : threshold_;
    const Resync outcome = engine_->resync(object.ticket, threshold);
    if (outcome == Resync::kDone) return;
    if (outcome == Resync::kCommitted) {
      committed(object);
    } else {
      object.under_way = false;
      ++aborted_;
    }
    spend(kRequestNs + copy_ns(engine_->counters().finished_bytes.load() - finished));
  }
  void request(unsigned number) {
    Object& object = objects_[number];
    if (queueing_ == Queueing::kCpu) {
      object.at_request = object.since_committed;
      spend(copy_ns(kStateBytes));
      committed(object);
      return;
    }
    if (queueing_ == Queueing::kMono) settle(objects_[last_]);
    last_ = number;
    object.under_way = true;
    object.at_request = object.since_committed;
    const CopyRequest request{number, Addr::of(object.state.data()), object.checkpoint.data(), kStateBytes, 1,
                              true};
    // There are more slots than objects; but those of settled copies are free when the device has passed
    // them.
    while (!engine_->submit(request, CopyPriority::kSequential, &object.ticket)) spend(kRequestNs);
    spend(kRequestNs);
  }

  const Queueing queueing_;
  const uint32_t threshold_;
  std::vector<Object> objects_;
  PlainMemory memory_;
  Arena arena_;
  std::optional<DmaCopyEngine> engine_;
  std::mt19937 random_;
  std::exponential_distribution<double> event_ns_;
  std::uniform_int_distribution<unsigned> pick_;
  std::uniform_real_distribution<double> share_{0, 1};
  int64_t now_ = 0, committed_ = 0, aborted_ = 0;
  unsigned last_ = 0;
};

Outcome mean_of_runs(Queueing queueing, unsigned objects, double event_us, uint32_t threshold) {
  Outcome sum;
  for (uint32_t seed = 1; seed <= kRuns; ++seed) {
    Outcome o = Simulator(queueing, objects, event_us, threshold, seed).run();
    sum.events_per_second += o.events_per_second / kRuns;
    sum.events_apart += o.events_apart / kRuns;
    sum.aborted_share += o.aborted_share / kRuns;
  }
  return sum;
}

void set(benchmark::State& state, const Outcome& o) {
  state.SetIterationTime(1 / o.events_per_second);
  state.counters["events_per_s"] = o.events_per_second;
  state.counters["events_apart"] = o.events_apart;
  state.counters["aborted_percent"] = o.aborted_share * 100;
}

benchmark::internal::Benchmark* add(const std::string& name, std::function<void(benchmark::State&)> body) {
  return benchmark::RegisterBenchmark(name.c_str(), std::move(body))
      ->Iterations(1)
      ->UseManualTime()
      ->Unit(benchmark::kMicrosecond);
}

// 64 KiB copies, as a checkpoint has them.
constexpr uint32_t kSegment = 64 << 10, kSegments = 64;

struct Waiter final : CopyListener {
  void copied(uint64_t, long) override {
    std::lock_guard lock(mutex);
    ++done;
    changed.notify_one();
  }
  void wait(uint64_t count) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return done >= count; });
  }
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t done = 0;
};

void copy_segments(benchmark::State& state, CopyEngine& engine, Waiter& waiter) {
  std::vector<std::byte> from(size_t{kSegment} * kSegments, std::byte{1}), to(from.size());
  uint64_t asked = 0;
  for (auto _ : state) {
    for (uint32_t i = 0; i < kSegments; ++i) {
      CopyTicket ticket;
      const size_t at = size_t{i} * kSegment;
      // A slot becomes free a moment after its copy is complete.
      while (!engine.submit({i, Addr::of(from.data() + at), to.data() + at, kSegment, ~0ull, true},
                            CopyPriority::kSequential, &ticket)) {
        std::this_thread::yield();
      }
    }
    waiter.wait(asked += kSegments);
  }
  state.SetBytesProcessed(static_cast<int64_t>(asked) * kSegment);
}

void copy_with_cpu(benchmark::State& state) {
  PlainMemory memory;
  Waiter waiter;
  CpuCopyEngine engine(memory, waiter);
  copy_segments(state, engine, waiter);
}

void copy_with_device(benchmark::State& state) {
  PlainMemory memory;
  Waiter waiter;
  Arena arena;
  const DmaSettings settings{.slots = kSegments, .most_bytes = kSegment, .burst_bytes = 16384, .speed = {}};
  if (!arena.reserve(DmaCopyEngine::arena_bytes(settings))) std::abort();
  DmaCopyEngine engine(memory, waiter, settings);
  if (!engine.reserve(arena)) std::abort();
  std::thread device([&] { engine.run(); });
  copy_segments(state, engine, waiter);
  engine.stop();
  device.join();
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 64;
  const std::pair<const char*, Queueing> queueings[] = {{"multi", Queueing::kMulti},
                                                        {"mono", Queueing::kMono}};
  for (auto [name, queueing] : queueings) {
    for (uint32_t threshold = 0; threshold <= 100; threshold += 10) {
      add(fmt::format("threshold/{}/{}", name, threshold),
          [queueing = queueing, threshold](benchmark::State& state) {
            for (auto _ : state) set(state, mean_of_runs(queueing, 32, 20, threshold));
          });
    }
  }
  for (unsigned event_us : {20u, 60u}) {
    for (unsigned objects : {8u, 32u, 128u}) {
      const std::string rest = fmt::format("{}/{}", objects, event_us);
      for (auto [name, queueing] : queueings) {
        add(fmt::format("peak/{}/{}", name, rest), [=, queueing = queueing](benchmark::State& state) {
          for (auto _ : state) {
            Outcome best;
            for (uint32_t threshold = 0; threshold <= 100; threshold += 10) {
              Outcome o = mean_of_runs(queueing, objects, event_us, threshold);
              if (o.events_per_second <= best.events_per_second) continue;
              best = o;
              state.counters["best_threshold"] = threshold;
            }
            set(state, best);
          }
        });
      }
      add(fmt::format("peak/cpu/{}", rest), [=](benchmark::State& state) {
        for (auto _ : state) set(state, mean_of_runs(Queueing::kCpu, objects, event_us, 0));
      });
    }
  }
  benchmark::RegisterBenchmark("copy/cpu", copy_with_cpu)->UseRealTime();
  benchmark::RegisterBenchmark("copy/device", copy_with_device)->UseRealTime();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
