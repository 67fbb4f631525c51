// XXH3 of bytes that come one after the other: the sum of a part or of a file of checks, made while its bytes
// are there anyway.
//
// Owner: cluster/keeper. One thread.
// Callers: the exchange and PartStream.
#pragma once

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace ckpt::keeper {

class RunningSum {
 public:
  RunningSum() : state_(XXH3_createState()) { XXH3_64bits_reset(state_.get()); }
  void add(std::span<const std::byte> bytes) { XXH3_64bits_update(state_.get(), bytes.data(), bytes.size()); }
  void add_zeros(uint64_t bytes) {
    static constexpr std::array<std::byte, 16 << 10> kZeros{};
    for (; bytes > 0; bytes -= std::min<uint64_t>(bytes, kZeros.size()))
      add(std::span(kZeros).first(std::min<uint64_t>(bytes, kZeros.size())));
  }
  uint64_t value() const { return XXH3_64bits_digest(state_.get()); }

 private:
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, Free> state_;
};

}  // namespace ckpt::keeper
