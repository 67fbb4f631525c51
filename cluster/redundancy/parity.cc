// Mirrors and parities: check g is the XOR of the data blocks of its group, of one block or of several.
#include <isa-l/raid.h>

#include <algorithm>
#include <cstring>

#include "cluster/redundancy/code.h"

namespace ckpt::redundancy {

namespace {

class Parity final : public Code {
 public:
  explicit Parity(const Scheme& scheme) : Code(scheme) {}

  void encode(ConstBlocks data, Blocks checks, size_t bytes) const override {
    for (unsigned g = 0; g < scheme_.checks; ++g) {
      std::vector<void*> vectors;
      for (unsigned i = g; i < scheme_.data; i += scheme_.checks)
        vectors.push_back(const_cast<std::byte*>(data[i]));
      sum(vectors, checks[g], bytes);
    }
  }

  void update(unsigned changed, const std::byte* difference, size_t offset, size_t length, Blocks checks,
              size_t) const override {
    xor_into(checks[changed % scheme_.checks] + offset, difference, length);
  }

  // Each group can recover one lost block.
  bool can_recover(const std::vector<bool>& lost) const override {
    for (unsigned g = 0; g < scheme_.checks; ++g) {
      unsigned of_group = lost[scheme_.data + g];
      for (unsigned i = g; i < scheme_.data; i += scheme_.checks) of_group += lost[i];
      if (of_group > 1) return false;
    }
    return true;
  }

 protected:
  void recover_lost(Blocks all, const std::vector<bool>& lost, size_t bytes) const override {
    for (unsigned g = 0; g < scheme_.checks; ++g) {
      std::byte* missing = nullptr;
      std::vector<void*> vectors;
      auto look_at = [&](unsigned i) {
        if (lost[i])
          missing = all[i];
        else
          vectors.push_back(all[i]);
      };
      for (unsigned i = g; i < scheme_.data; i += scheme_.checks) look_at(i);
      look_at(scheme_.data + g);
      if (missing != nullptr) sum(vectors, missing, bytes);
    }
  }

 private:
  // ISA-L wants two sources at least, and knows lengths as int.
  static void sum(std::vector<void*>& sources, std::byte* to, size_t bytes) {
    if (sources.size() == 1) {
      std::memcpy(to, sources[0], bytes);
      return;
    }
    constexpr size_t kAtOnce = 1u << 30;
    for (size_t done = 0; done < bytes;) {
      const size_t part = std::min(kAtOnce, bytes - done);
      std::vector<void*> vectors;
      for (void* source : sources) vectors.push_back(static_cast<std::byte*>(source) + done);
      vectors.push_back(to + done);
      xor_gen(static_cast<int>(vectors.size()), static_cast<int>(part), vectors.data());
      done += part;
    }
  }
};

}  // namespace

std::unique_ptr<Code> make_parity(const Scheme& scheme) { return std::make_unique<Parity>(scheme); }

}  // namespace ckpt::redundancy
