// What else a large program has: threads that wait, open descriptors, many mappings.
//
// Owner:     bench/gaps.
// Callers:   the main thread.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace bench {

class Surroundings {
 public:
  Surroundings() = default;
  Surroundings(const Surroundings&) = delete;
  Surroundings& operator=(const Surroundings&) = delete;
  ~Surroundings();

  // Threads that wait on a condition variable. Returns when all of them do.
  void start_waiting_threads(unsigned count);
  // Pipes, event counters, devices and files, in turn. Throws std::runtime_error.
  void open_descriptors(unsigned count);
  // Neighbours that differ in protection, so that the kernel keeps each as one.
  void make_mappings(unsigned count);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  unsigned waiting_ = 0;
  bool end_ = false;
  std::vector<std::thread> threads_;
  std::vector<int> descriptors_;
  void* mappings_ = nullptr;
  size_t mappings_bytes_ = 0;
};

}  // namespace bench
