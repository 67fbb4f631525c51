// Messages and GVT between the processes of one simulation, over a transport library (plugin.h).
//
// Owner:     ckpt_tw_run(); nullptr in Setup for a run of one process.
// Callers:   open(), finish(): the thread of ckpt_tw_run(). All else: the one engine thread of the process.
// Never:     waits, but in open(), finish() and leave().
//
// GVT is found as between threads (engine/gvt.h), with two gatherings in place of shared memory:
//   idle ──want, or others wait──► flush, note what is sent; gather how much was sent to whom ──► counting
//   counting ──gathered, and all of that has arrived──► gather min(queue, noted) ──► reporting
//   reporting ──gathered──► GVT ──► idle
// What was posted to one process arrives in order, so the first n messages that arrive are the first n sent.
// A process joins a round when it has executed enough events or has none: so each round ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ckpt_timewarp.h"
#include "timewarp/engine/event.h"
#include "timewarp/mpi/plugin.h"

namespace ckpt::timewarp {

struct Wire {
  double time;
  uint64_t order;
  uint32_t sender, receiver;
  uint32_t bytes;  // of the message behind it
  uint32_t cancel;
};

class Transport {
 public:
  // `name`: openmpi, mpich, or a path. nullptr: *why says why.
  static std::unique_ptr<Transport> open(const std::string& name, std::string* why);
  ~Transport();

  int rank() const { return rank_; }
  int size() const { return size_; }

  void post(int to, const Wire& wire, const void* message);
  void flush();
  // Calls take(wire, message) for each message that has arrived.
  template <typename Take>
  size_t drain(Take take) {
    size_t n = 0, bytes = 0;
    int from = 0, got = 0;
    while ((got = api_->receive(buffer_.data(), buffer_.size(), &from, &bytes)) > 0) {
      for (size_t at = 0; at < bytes;) {
        Wire wire;
        __builtin_memcpy(&wire, buffer_.data() + at, sizeof(wire));
        take(wire, buffer_.data() + at + sizeof(wire));
        at += sizeof(wire) + wire.bytes;
        ++received_[static_cast<size_t>(from)];
        ++n;
      }
    }
    broken_ |= got < 0;
    return n;
  }
  // One look. settle() -> Key: handles all that has arrived, returns the smallest key left. True: *gvt is
  // new.
  template <typename Settle>
  bool poll(bool want, Settle settle, Key* gvt) {
    if (state_ == State::kIdle) {
      if (!want) return false;
      begin();
    }
    if (state_ == State::kCounting) {
      if (!gathered()) return false;
      Key report = settle();
      if (!all_arrived()) return false;
      if (noted_ < report) report = noted_;
      this->report(report, {});
    }
    return gathered() && result(gvt);
  }
  bool noting() const { return state_ == State::kCounting; }
  // After a failure, ours or another's: ends the round under way so that all leave with the same words.
  template <typename Discard>
  void leave(const std::string& failure, Discard discard) {
    if (failed()) return;
    if (state_ == State::kReporting) {
      Key gvt;
      while (!gathered()) discard();
      (void)result(&gvt);
      if (failed()) return;
    }
    if (state_ == State::kIdle) begin();
    while (!gathered() || !all_arrived()) discard();
    report(Key::never(), failure);
    Key gvt;
    while (!gathered()) discard();
    (void)result(&gvt);
  }
  bool failed() const { return broken_ || !failure_.empty(); }
  const std::string& failure() const { return failure_; }
  // Sums the counters of all processes, as each process's result.
  void finish(ckpt_tw_result& result);

 private:
  enum class State { kIdle, kCounting, kReporting };
  static constexpr size_t kPosted = 16 << 10, kWords = 304;
  struct Report {
    Key key;
    char failure[kWords];
  };

  Transport() = default;
  void begin();
  bool gathered();
  bool all_arrived() const;
  void report(const Key& key, const std::string& failure);
  bool result(Key* gvt);

  void* library_ = nullptr;
  const ckpt_tw_transport* api_ = nullptr;
  int rank_ = 0, size_ = 1;
  std::vector<std::vector<std::byte>> posting_;  // by process
  std::vector<std::byte> buffer_;
  std::vector<uint64_t> sent_, received_, counted_, counts_;  // messages; counts_[from * size + to]
  State state_ = State::kIdle;
  bool gathering_ = false, broken_ = false;
  Key noted_;
  Report mine_{};
  std::vector<Report> reports_;
  std::string failure_;
};

}  // namespace ckpt::timewarp
