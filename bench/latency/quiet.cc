// Costs besides the pause.
//
//   preloaded/WORK   work lost while no checkpoint is taken: preloaded against not
//   memory/METHOD    memory beyond the program's own during a checkpoint
//   rate/METHOD      checkpoints a second of a small program
//   rate/increments  the same of a program that writes 1 MiB between two, to memory; and work lost with 50 a
//   second disk/write       what the disk does without us
#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>

#include "bench/latency/cgroup.h"
#include "bench/latency/record.h"
#include "bench/latency/statistics.h"
#include "bench/latency/suite.h"

namespace latency {
namespace {

double preloaded(benchmark::State& state, const Arguments& a, const std::string& work,
                 const std::string& operations) {
  const std::vector<std::string> command{a.places.program("busy"), "--work",   work,
                                         "--operations",           operations, "--threads",
                                         std::to_string(a.threads)};
  std::vector<double> percent, plain, preloaded;
  for (unsigned i = 0; i < (a.quick ? 3 : 11); ++i) {
    double seconds[2];
    for (bool with : {i % 2 == 0, i % 2 != 0}) {
      Child child(a.places, command, {.method = with ? a.modes.front() : kNone});
      child.finish();
      seconds[with] = child.seconds();
    }
    plain.push_back(seconds[0]);
    preloaded.push_back(seconds[1]);
    percent.push_back((seconds[1] / seconds[0] - 1) * 100);
  }
  set_median(state, "lost_percent", percent);
  set_median(state, "plain_s", plain);
  // The quickest of each were disturbed least, where the machine's speed varies by more than there is to be
  // seen.
  state.counters["quickest_lost_percent"] = (smallest(preloaded) / smallest(plain) - 1) * 100;
  return median(plain);
}

double memory(benchmark::State& state, const Arguments& a, const std::string& method) {
  std::string why;
  auto group = Cgroup::make(&why);
  if (!group) throw Unavailable(why);
  std::vector<double> extra;
  {
    Child child(a.places,
                {a.places.program("gaps"), "--load", "uniform", "--size", "256M", "--threads",
                 std::to_string(a.threads), "--seconds", "3600"},
                {.method = method, .cgroup_join_file = group->join_file()});
    child.read_until("ready");
    for (unsigned i = 0; i < (a.quick ? 2 : 5); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      const uint64_t before = group->anonymous();
      std::atomic<bool> done{false};
      uint64_t most = before;
      std::thread watcher([&] {
        for (; !done.load(); std::this_thread::sleep_for(std::chrono::milliseconds(2))) {
          most = std::max(most, group->anonymous());
        }
      });
      struct Join {
        std::atomic<bool>& flag;
        std::thread& thread;
        ~Join() {
          flag.store(true);
          thread.join();
        }
      };
      {
        Join join{done, watcher};
        child.checkpoint();
      }
      extra.push_back(static_cast<double>(most - before));
    }
  }
  set_median(state, "extra_MiB", extra, 1 << 20);
  state.counters["program_MiB"] = 256;
  return 0;
}

double rate(benchmark::State& state, const Arguments& a, const std::string& method) {
  Child child(
      a.places,
      {a.places.program("gaps"), "--load", "idle", "--size", "1M", "--threads", "1", "--seconds", "3600"},
      {.method = method});
  child.read_until("ready");
  std::vector<double> seconds;
  const int64_t begin = now_ns(), end = begin + (a.quick ? 1'000'000'000 : 5'000'000'000);
  while (now_ns() < end) seconds.push_back(child.checkpoint().seconds());
  state.counters["per_second"] =
      static_cast<double>(seconds.size()) / (static_cast<double>(now_ns() - begin) / 1e9);
  set_median(state, "checkpoint_ms", seconds, 1e-3);
  return median(seconds);
}

double rate_of_increments(benchmark::State& state, const Arguments& a) {
  Places in_memory = a.places;
  in_memory.images = "/dev/shm";
  Child child(in_memory,
              {a.places.program("gaps"), "--load", "page", "--size", "1M", "--threads", "1", "--seconds",
               "3600", "--record", "{directory}/record"},
              {.method = a.modes.front(), .settings = {"CKPT_INCREMENTS=20"}});
  child.read_until("ready");
  auto rest = [&] { std::this_thread::sleep_for(std::chrono::milliseconds(a.quick ? 300 : 2000)); };
  rest();
  const int64_t length_ns = a.quick ? 1'000'000'000 : 5'000'000'000, gap_ns = 20'000'000;
  std::vector<Checkpoint> paced;
  const int64_t begin = now_ns();
  for (int64_t due = begin; due < begin + length_ns; due += gap_ns) {
    if (now_ns() < due) std::this_thread::sleep_for(std::chrono::nanoseconds(due - now_ns()));
    paced.push_back(child.checkpoint());
  }
  const auto paced_ns = static_cast<double>(now_ns() - begin);
  rest();
  std::vector<Checkpoint> taken = paced;
  const int64_t again = now_ns();
  while (now_ns() < again + length_ns) taken.push_back(child.checkpoint());
  state.counters["per_second"] =
      static_cast<double>(taken.size() - paced.size()) / (static_cast<double>(now_ns() - again) / 1e9);
  rest();
  child.terminate();
  child.finish();
  const Seen seen = compare(read_record(child.directory() + "/record"), taken);
  double lost_ns = 0;
  for (size_t i = 0; i < paced.size(); ++i) lost_ns += seen.lost[i];
  state.counters["paced_per_second"] = static_cast<double>(paced.size()) / (paced_ns / 1e9);
  state.counters["paced_lost_percent"] = lost_ns / paced_ns * 100;
  set_median(state, "paced_stop_ms", column(paced, "pause_ns"), 1e6);
  set_median(state, "written_MiB", column(paced, "bytes_written"), 1 << 20);
  std::vector<double> seconds;
  for (size_t i = paced.size(); i < taken.size(); ++i) seconds.push_back(taken[i].seconds());
  set_median(state, "checkpoint_ms", seconds, 1e-3);
  return median(seconds);
}

double disk_write(benchmark::State& state, const Arguments& a) {
  constexpr size_t kBlock = 4 << 20, kBlocks = 64;
  std::unique_ptr<void, void (*)(void*)> block(std::aligned_alloc(4096, kBlock), std::free);
  std::memset(block.get(), 0x5a, kBlock);
  const std::string path = a.places.images + "/latency.disk";
  std::vector<double> speeds;
  for (unsigned i = 0; i < 3; ++i) {
    const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_DIRECT | O_CLOEXEC, 0600);
    if (fd < 0)
      throw Unavailable(fmt::format("cannot write {} with O_DIRECT: {}", path, std::strerror(errno)));
    unlink(path.c_str());
    const int64_t begin = now_ns();
    bool ok = true;
    for (size_t n = 0; n < kBlocks && ok; ++n)
      ok = write(fd, block.get(), kBlock) == static_cast<ssize_t>(kBlock);
    ok = ok && fsync(fd) == 0;
    const double seconds = static_cast<double>(now_ns() - begin) / 1e9;
    close(fd);
    if (!ok) throw Failure(fmt::format("cannot write {}: {}", path, std::strerror(errno)));
    speeds.push_back(kBlock * kBlocks / seconds);
  }
  set_median(state, "MB_per_s", speeds, 1e6);
  return kBlock * kBlocks / median(speeds);
}

}  // namespace

void add_quiet(const Arguments& a) {
  add("disk/write", [&a](benchmark::State& s) { return disk_write(s, a); });
  for (auto [work, operations] :
       {std::pair{"allocate", "30000000"}, {"syscalls", "2000000"}, {"compute", "1500000000"}}) {
    add(fmt::format("preloaded/{}", work),
        [&a, work = std::string(work), operations = std::string(operations)](benchmark::State& s) {
          return preloaded(s, a, work, operations);
        });
  }
  std::vector<std::string> methods = a.modes;
  methods.push_back(kPlainFork);
  for (const auto& m : methods) add("memory/" + m, [&a, m](benchmark::State& s) { return memory(s, a, m); });
  for (const auto& m : methods) add("rate/" + m, [&a, m](benchmark::State& s) { return rate(s, a, m); });
  add("rate/increments", [&a](benchmark::State& s) { return rate_of_increments(s, a); });
}

}  // namespace latency
