// What the latency suite concludes from what the threads noted.
#include "bench/latency/record.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

namespace latency {
namespace {

constexpr int64_t kMs = 1'000'000;

// A tick every 5 ms with `steps` more each, but none within [from, to).
WorkerRecord worker(int64_t end_ms, uint64_t steps, int64_t from_ms = 0, int64_t to_ms = 0) {
  WorkerRecord t;
  uint64_t done = 0;
  for (int64_t at = 0; at <= end_ms; at += 5) {
    if (at <= from_ms || at > to_ms) done += steps;
    t.ticks.push_back({at * kMs, done});
  }
  return t;
}
void add_gap(WorkerRecord& t, int64_t begin_ms, int64_t length_ms) {
  t.gaps.push_back({begin_ms * kMs, length_ms * kMs});
}
Checkpoint checkpoint(int64_t begin_ms, int64_t end_ms) { return {begin_ms * kMs, end_ms * kMs, {}}; }

TEST(Record, ThePauseIsTheGapInWhichAllStood) {
  std::vector<WorkerRecord> threads{worker(1000, 100), worker(1000, 100)};
  add_gap(threads[0], 102, 30);  // longer than the pause, but alone
  add_gap(threads[0], 150, 10);
  add_gap(threads[1], 148, 11);
  add_gap(threads[1], 170, 4);
  std::vector<Checkpoint> taken{checkpoint(100, 200)};
  Seen seen = compare(threads, taken);
  EXPECT_EQ(seen.pauses, std::vector<double>{11.0 * kMs});
  EXPECT_EQ(seen.largest_gaps, std::vector<double>{30.0 * kMs});
  EXPECT_EQ(seen.waits, (std::vector<double>{30.0 * kMs, 4.0 * kMs}));
  EXPECT_TRUE(seen.other_gaps.empty());
}

TEST(Record, OneThreadsLargestGapIsThePause) {
  std::vector<WorkerRecord> threads{worker(1000, 100)};
  add_gap(threads[0], 110, 5);
  add_gap(threads[0], 120, 7);
  Seen seen = compare(threads, std::vector<Checkpoint>{checkpoint(100, 200)});
  EXPECT_EQ(seen.pauses, std::vector<double>{7.0 * kMs});
  EXPECT_EQ(seen.waits, std::vector<double>{5.0 * kMs});
}

TEST(Record, GapsOutsideOfCheckpointsAreTheMachines) {
  std::vector<WorkerRecord> threads{worker(1000, 100)};
  add_gap(threads[0], 50, 8);
  add_gap(threads[0], 99, 2);  // reaches into the checkpoint
  add_gap(threads[0], 300, 9);
  add_gap(threads[0], 600, 3);
  std::vector<Checkpoint> taken{checkpoint(100, 200), checkpoint(500, 550)};
  Seen seen = compare(threads, taken);
  EXPECT_EQ(seen.other_gaps, (std::vector<double>{8.0 * kMs, 9.0 * kMs, 3.0 * kMs}));
  EXPECT_EQ(seen.pauses, (std::vector<double>{2.0 * kMs, 0}));
}

TEST(Record, LostWorkIsProgressNotMade) {
  // 40 of the checkpoint's 100 ms stand still.
  std::vector<WorkerRecord> threads{worker(1000, 100, 120, 160), worker(1000, 100, 120, 160)};
  std::vector<Checkpoint> taken{checkpoint(100, 200)};
  Seen seen = compare(threads, taken);
  ASSERT_EQ(seen.lost.size(), 1u);
  EXPECT_NEAR(seen.lost[0], 40.0 * kMs, 0.5 * kMs);
  EXPECT_NEAR(seen.lost_share[0], 0.4, 0.005);
  EXPECT_NEAR(seen.steps_per_second, 2 * 100 * 200, 1);
}

TEST(Record, NothingIsLostAtFullSpeed) {
  std::vector<WorkerRecord> threads{worker(1000, 100)};
  std::vector<Checkpoint> taken{checkpoint(101, 203), checkpoint(500, 777)};
  for (double share : compare(threads, taken).lost_share) EXPECT_NEAR(share, 0, 1e-9);
}

TEST(Record, ReadsWhatWasWrittenAndRefusesWhatIsCutShort) {
  const std::string path = ::testing::TempDir() + "latency_record." + std::to_string(getpid());
  auto write = [&](size_t cut) {
    std::string bytes;
    auto put = [&](const void* p, size_t n) { bytes.append(static_cast<const char*>(p), n); };
    for (uint64_t thread = 1; thread <= 2; ++thread) {
      bench::RecordHeader header{thread, 1, 5};
      put(&header, sizeof(header));
      for (uint64_t i = 0; i < thread; ++i) {
        bench::Gap gap{static_cast<int64_t>(10 * thread + i), 7};
        put(&gap, sizeof(gap));
      }
      bench::Tick tick{3, thread};
      put(&tick, sizeof(tick));
    }
    std::ofstream(path, std::ios::binary)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size() - cut));
  };
  write(0);
  std::vector<WorkerRecord> threads = read_record(path);
  ASSERT_EQ(threads.size(), 2u);
  EXPECT_EQ(threads[1].gaps.size(), 2u);
  EXPECT_EQ(threads[1].gaps[1].begin_ns, 21);
  EXPECT_EQ(threads[1].ticks[0].steps, 2u);
  EXPECT_EQ(threads[0].unrecorded, 5u);
  write(1);
  EXPECT_THROW(read_record(path), Failure);
  unlink(path.c_str());
  EXPECT_THROW(read_record(path), Failure);
}

}  // namespace
}  // namespace latency
