// What the threads of gaps noted (bench/gaps/recorder.h), laid beside the checkpoints taken meanwhile.
//
// Owner: bench/latency.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "bench/gaps/recorder.h"
#include "bench/latency/child.h"

namespace latency {

struct WorkerRecord {
  std::vector<bench::Gap> gaps;
  std::vector<bench::Tick> ticks;
  uint64_t unrecorded = 0;
};
// Throws Failure.
std::vector<WorkerRecord> read_record(const std::string& path);

// All in ns.
struct Seen {
  // One value a checkpoint.
  std::vector<double> pauses;        // longest gap of a thread that holds the time in which all stood
  std::vector<double> largest_gaps;  // of any thread, whatever the cause
  std::vector<double> lost;          // of a thread's time, from its progress within and without
  std::vector<double> lost_share;    // the same, of the checkpoint's time
  // Gaps within checkpoints besides the pauses: waits on protected pages, and the scheduler.
  std::vector<double> waits;
  // The same while no checkpoint is taken: what the machine does.
  std::vector<double> other_gaps;
  uint64_t unrecorded = 0;
  double steps_per_second = 0;  // without a checkpoint, all threads
};
Seen compare(std::span<const WorkerRecord> threads, std::span<const Checkpoint> checkpoints);

}  // namespace latency
