// A program that is measured, and the checkpoints taken of it in one of several ways.
//
// Owner:     bench/latency.
// Callers:   the benchmark's only thread. A thread of its own notes when each line of output came.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace latency {

// Where the library, ckpt and the programs are, and where images go.
struct Places {
  std::string build;
  std::string images;
  std::string library() const { return build + "/lib/libckpt_rt.so"; }
  std::string heap() const { return build + "/lib/libckpt_heap.so"; }
  std::string plain_fork() const { return build + "/bench/libplain_fork.so"; }
  std::string ckpt() const { return build + "/bin/ckpt"; }
  std::string program(const std::string& name) const { return build + "/bench/" + name; }
};

// What went wrong, for the benchmark's error message.
class Failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};
// A way of taking checkpoints that this machine does not have.
class Unavailable : public Failure {
 public:
  using Failure::Failure;
};

// Ways of taking a checkpoint besides the modes of the library.
inline const std::string kNone = "none";             // not at all, and nothing preloaded
inline const std::string kPlainFork = "plain-fork";  // libplain_fork.so
inline const std::string kCriu = "criu";             // criu dump --leave-running

struct Setup {
  std::string method = kNone;              // a CKPT_MODE, or one of the above
  std::string segment = {};                // CKPT_SEGMENT; empty: the default
  std::string pool = {};                   // CKPT_POOL
  std::string cgroup_join_file = {};       // the program joins this cgroup before it starts
  std::vector<std::string> settings = {};  // more of the environment: "CKPT_HEAP=jemalloc"
};

struct Checkpoint {
  int64_t begin_ns, end_ns;  // CLOCK_MONOTONIC: asked for, durable
  nlohmann::json answer;     // of ckpt now; empty for others
  double seconds() const { return static_cast<double>(end_ns - begin_ns) / 1e9; }
};

int64_t now_ns();  // CLOCK_MONOTONIC

class Child {
 public:
  struct Line {
    int64_t at_ns;
    std::string text;
  };

  Child(const Places& places, const std::vector<std::string>& command, Setup setup);
  ~Child();  // ends it with SIGKILL if it still runs, and removes its images
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  // The next line of standard output that begins with `start`. Throws at its end.
  Line read_until(const std::string& start);
  // All lines until the program has ended. Throws unless its exit code is 0.
  std::vector<Line> finish();
  void terminate();  // SIGTERM
  // Returns when it is durable. Throws when there is none.
  Checkpoint checkpoint();
  double seconds() const;  // since it was started
  // A directory for files of the measurement, removed with the child.
  const std::string& directory() const { return directory_; }

 private:
  void read_output();
  nlohmann::json ask_ckpt();
  void fork_plainly();
  void dump_with_criu();

  const Places& places_;
  Setup setup_;
  std::string directory_;
  pid_t pid_ = -1;
  int output_ = -1;
  int64_t started_ns_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Line> lines_;
  bool end_ = false;
  std::thread reader_;
};

}  // namespace latency
