// A program that is measured, with or without libckpt_rt.so, and the checkpoints taken of it.
//
// Owner:     bench/latency.
// Callers:   the benchmark's only thread.
#pragma once

#include <sys/types.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace latency {

// Where the library, ckpt and the programs are, and where images go.
struct Places {
  std::string build;
  std::string images;
  std::string library() const { return build + "/lib/libckpt_rt.so"; }
  std::string ckpt() const { return build + "/bin/ckpt"; }
  std::string program(const std::string& name) const { return build + "/bench/" + name; }
};

// What went wrong, for the benchmark's error message.
class Failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Child {
 public:
  // mode: of CKPT_MODE; empty: without the library.
  Child(const Places& places, const std::vector<std::string>& command, const std::string& mode);
  ~Child();  // ends it with SIGKILL if it still runs, and removes its images
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  // Reads standard output until a line that begins with `start`; false at its end.
  bool read_until(const std::string& start);
  // The rest of standard output, until the program has ended. Throws unless its exit code is 0.
  std::string finish();
  // ckpt now --json. Throws when there is no checkpoint.
  nlohmann::json checkpoint();
  // Seconds since it was started.
  double seconds() const;

 private:
  std::string read_line(bool* end);

  const Places& places_;
  std::string images_;
  pid_t pid_ = -1;
  int output_ = -1;
  std::string buffered_;
  int64_t started_ns_ = 0;
};

}  // namespace latency
