// Redundancy over blocks of bytes: made, kept up to date by differences, and used to compute what was lost.
//
// Blocks 0 .. data-1 are data, data .. data+checks-1 are redundancy. All of a stripe have the same length, a
// multiple of multiple(). The code knows nothing of hosts, files or checkpoints.
//
//   mirror       check i is data i
//   parity:M     check g is the XOR of data g, g+M, g+2M, ... (ISA-L's xor_gen)
//   evenodd      Blaum, Brady, Bruck, Menon 1995: XOR of rows, and of diagonals with an adjuster; any two
//   rs:K+M       Cauchy matrix over GF(2^8) (ISA-L's ec_encode_data); any M
//
// Owner: cluster/redundancy. Any thread: a code does not change once it is made; blocks are the caller's.
// Callers: the exchange, who plans checks, `ckpt plan`, the benchmark.
// Source: ISA-L 2.30, raid.h and erasure_code.h.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "cluster/redundancy/scheme.h"

namespace ckpt::redundancy {

using Blocks = std::span<std::byte* const>;
using ConstBlocks = std::span<const std::byte* const>;

class Code {
 public:
  static Result<std::unique_ptr<Code>> make(const Scheme& scheme);
  virtual ~Code() = default;
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;

  const Scheme& scheme() const { return scheme_; }
  unsigned data() const { return scheme_.data; }
  unsigned checks() const { return scheme_.checks; }
  // Of a block's length, bytes. Blocks begin at addresses that are multiples of kAlignment.
  virtual size_t multiple() const { return kAlignment; }
  static constexpr size_t kAlignment = 64;
  // Byte n of each check comes of byte n of the data: so where the data ends in zeros, the checks do.
  virtual bool by_place() const { return true; }

  // All checks from all data.
  virtual void encode(ConstBlocks data, Blocks checks, size_t bytes) const = 0;
  // Brings the checks up to date after data block `changed` was written at [offset, offset + length), at any
  // place. difference: old XOR new, of `length` bytes. bytes: of a block.
  virtual void update(unsigned changed, const std::byte* difference, size_t offset, size_t length,
                      Blocks checks, size_t bytes) const = 0;
  // lost: one for each block, data and checks.
  virtual bool can_recover(const std::vector<bool>& lost) const = 0;
  // Computes all that is lost, in place; nothing else is changed. Error: kImageDamaged, names how many blocks
  // are lost and how many may be.
  Result<void> recover(Blocks all, const std::vector<bool>& lost, size_t bytes) const;

 protected:
  explicit Code(const Scheme& scheme) : scheme_(scheme) {}
  virtual void recover_lost(Blocks all, const std::vector<bool>& lost, size_t bytes) const = 0;
  const Scheme scheme_;
};

// XXH3 of a block. A block with a wrong sum counts as lost: it must not go into a computation.
uint64_t checksum(std::span<const std::byte> block);

// to ^= from. Any alignment, no overlap.
void xor_into(std::byte* to, const std::byte* from, size_t bytes);

// The codes, one in each file; called by Code::make().
std::unique_ptr<Code> make_parity(const Scheme& scheme);
std::unique_ptr<Code> make_even_odd(const Scheme& scheme);
Result<std::unique_ptr<Code>> make_reed_solomon(const Scheme& scheme);

}  // namespace ckpt::redundancy
