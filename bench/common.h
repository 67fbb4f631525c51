// What the bench programs share: arguments, a pseudo-random generator, a 128-bit checksum, results.
//
// Owner:     bench; what is slow to compile is in frame/. These are ordinary programs that know nothing of
//            checkpoints.
// Callers:   main() and the threads it starts.
// Never:     anything that depends on time, on the number of processors or on addresses may reach
//            standard output: two runs with the same arguments print the same bytes.
#pragma once

#include <fmt/core.h>
#include <xxhash.h>

#include <concepts>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "bench/frame/command_line.h"

namespace bench {

inline constexpr int kExitOk = 0;
inline constexpr int kExitWrongResult = 1;
inline constexpr int kExitUsage = 64;
inline constexpr int kExitSystem = 71;
inline constexpr int kExitIo = 74;

// SplitMix64 (Steele, Lea, Flood 2014): a bijection of 64 bits. Value number i of a stream needs none of its
// predecessors, so every thread can fill its own part.
inline constexpr uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// A sequential generator on top of mix().
class Random {
 public:
  explicit Random(uint64_t seed) : state_(mix(seed)) {}
  uint64_t next() { return mix(state_++); }
  // In [0, limit), limit > 0, by multiplication (Lemire 2019, without the rejection step: a bias of
  // limit / 2^64 does not matter here).
  uint64_t below(uint64_t limit) {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(next()) * limit) >> 64);
  }

 private:
  uint64_t state_;
};

// XXH3, 128 bits, of all that was fed in, in order.
class Checksum {
 public:
  Checksum() : state_(XXH3_createState()) {
    if (state_ == nullptr) throw std::bad_alloc();
    XXH3_128bits_reset(state_);
  }
  ~Checksum() { XXH3_freeState(state_); }
  Checksum(const Checksum&) = delete;
  Checksum& operator=(const Checksum&) = delete;

  void add(const void* bytes, size_t n) { XXH3_128bits_update(state_, bytes, n); }
  std::string hex() const {
    XXH128_hash_t h = XXH3_128bits_digest(state_);
    return fmt::format("{:016x}{:016x}", h.high64, h.low64);
  }

 private:
  XXH3_state_t* state_;
};

// Calls work(0) … work(threads - 1), each on its own thread, and waits for all.
inline void run_threads(unsigned threads, const std::function<void(unsigned)>& work) {
  std::vector<std::thread> others;
  others.reserve(threads);
  for (unsigned t = 1; t < threads; ++t) others.emplace_back(work, t);
  work(0);
  for (auto& t : others) t.join();
}

// Item numbers [first, last) of part `part` out of `parts`.
struct Share {
  uint64_t first, last;
};
inline Share share_of(uint64_t items, unsigned part, unsigned parts) {
  auto at = [&](unsigned p) {
    return static_cast<uint64_t>(static_cast<unsigned __int128>(items) * p / parts);
  };
  return {at(part), at(part + 1)};
}

// What every program accepts besides its own arguments.
struct CommonArguments {
  unsigned threads = 3;
  uint64_t seed = 1;
  bool json = false;
  bool time = false;
};

// The lines of a result, printed as "name value" or as one JSON object with the same names.
class Results {
 public:
  void add(const std::string& name, const std::string& text);
  void add(const std::string& name, double number);
  template <std::integral T>
  void add(const std::string& name, T number) {
    values_.push_back({name, fmt::format("{}", number), fmt::format("{}", number)});
  }
  void print(bool json) const;

 private:
  struct Value {
    std::string name, text, json;
  };
  std::vector<Value> values_;
};

// A program: adds its own options in configure(), works in run(), which returns an exit code.
struct Program {
  std::string name;
  std::string description;
  std::function<void(CommandLine&)> configure;
  std::function<int(const CommonArguments&, Results&)> run;
};
int run_program(const Program& program, int argc, char** argv);

}  // namespace bench
