// EVENODD (Blaum, Brady, Bruck, Menon 1995): two checks by XOR alone.
//
// With a prime p of at least `data`, a block is p-1 rows; blocks that are not there count as zero, and so
// does a row p-1 of each. Check P is the XOR of rows; check Q of diagonals, each with the adjuster S, the
// diagonal that has no row in Q:
//
//   P[l] = XOR_j d_j[l]
//   S    = XOR_j d_j[p-1-j]
//   Q[l] = S ^ XOR_j d_j[l-j mod p]
//
// The prime is one of 3, 5, 17, 257: p-1 divides a page.
#include <algorithm>
#include <cstring>

#include "cluster/redundancy/code.h"

namespace ckpt::redundancy {

namespace {

unsigned prime_for(unsigned data) {
  for (unsigned p : {3u, 5u, 17u}) {
    if (p >= data) return p;
  }
  return 257;
}

class EvenOdd final : public Code {
 public:
  explicit EvenOdd(const Scheme& scheme) : Code(scheme), p_(prime_for(scheme.data)) {}

  size_t multiple() const override { return (p_ - 1) * kRow; }
  bool by_place() const override { return false; }

  void encode(ConstBlocks data, Blocks checks, size_t bytes) const override {
    const size_t row = bytes / (p_ - 1);
    make_p(data, checks[0], bytes);
    make_q(data, checks[1], row);
  }

  void update(unsigned changed, const std::byte* difference, size_t offset, size_t length, Blocks checks,
              size_t bytes) const override {
    xor_into(checks[0] + offset, difference, length);
    const size_t row = bytes / (p_ - 1);
    for (size_t done = 0; done < length;) {
      const size_t at = offset + done, in_row = at % row;
      const size_t part = std::min(length - done, row - in_row);
      const auto diagonal = static_cast<unsigned>((at / row + changed) % p_);
      if (diagonal != p_ - 1) {
        xor_into(checks[1] + diagonal * row + in_row, difference + done, part);
      } else {
        for (unsigned l = 0; l + 1 < p_; ++l) xor_into(checks[1] + l * row + in_row, difference + done, part);
      }
      done += part;
    }
  }

  bool can_recover(const std::vector<bool>& lost) const override {
    return std::count(lost.begin(), lost.end(), true) <= 2;
  }

 protected:
  void recover_lost(Blocks all, const std::vector<bool>& lost, size_t bytes) const override {
    const size_t row = bytes / (p_ - 1);
    std::vector<unsigned> data_lost;
    for (unsigned i = 0; i < scheme_.data; ++i) {
      if (lost[i]) data_lost.push_back(i);
    }
    std::byte *p = all[scheme_.data], *q = all[scheme_.data + 1];
    const bool p_lost = lost[scheme_.data], q_lost = lost[scheme_.data + 1];
    const std::vector<const std::byte*> data(all.begin(), all.begin() + scheme_.data);
    if (data_lost.size() == 2) {
      by_both(all, data_lost[0], data_lost[1], p, q, row);
    } else if (data_lost.size() == 1 && !p_lost) {
      by_rows(all, data_lost[0], p, bytes);
    } else if (data_lost.size() == 1) {
      by_diagonals(all, data_lost[0], q, row);
    }
    if (p_lost) make_p(data, p, bytes);
    if (q_lost) make_q(data, q, row);
  }

 private:
  static constexpr size_t kRow = 64;  // bytes: least length of a row

  unsigned mod(unsigned a) const { return a % p_; }
  // Row l of a block, or nullptr for the row that is zero.
  template <typename Byte>
  Byte* row_of(Byte* block, unsigned l, size_t row) const {
    return l == p_ - 1 ? nullptr : block + l * row;
  }
  static void add(std::byte* to, const std::byte* from, size_t row) {
    if (from != nullptr) xor_into(to, from, row);
  }

  void make_p(ConstBlocks data, std::byte* p, size_t bytes) const {
    std::memcpy(p, data[0], bytes);
    for (unsigned j = 1; j < scheme_.data; ++j) xor_into(p, data[j], bytes);
  }

  // Adds diagonal l of all data blocks to `to`, without the blocks `skip` and `skip_too`.
  static constexpr unsigned kNone = UINT32_MAX;
  void diagonal_of(ConstBlocks data, unsigned l, std::byte* to, size_t row, unsigned skip = kNone,
                   unsigned skip_too = kNone) const {
    for (unsigned j = 0; j < scheme_.data; ++j) {
      if (j != skip && j != skip_too) add(to, row_of(data[j], mod(l + p_ - j), row), row);
    }
  }

  void make_q(ConstBlocks data, std::byte* q, size_t row) const {
    std::vector<std::byte> adjuster(row);
    diagonal_of(data, p_ - 1, adjuster.data(), row);
    for (unsigned l = 0; l + 1 < p_; ++l) {
      std::memcpy(q + l * row, adjuster.data(), row);
      diagonal_of(data, l, q + l * row, row);
    }
  }

  void by_rows(Blocks all, unsigned lost, const std::byte* p, size_t bytes) const {
    std::memcpy(all[lost], p, bytes);
    for (unsigned j = 0; j < scheme_.data; ++j) {
      if (j != lost) xor_into(all[lost], all[j], bytes);
    }
  }

  void by_diagonals(Blocks all, unsigned lost, const std::byte* q, size_t row) const {
    const std::vector<const std::byte*> data(all.begin(), all.begin() + scheme_.data);
    // The diagonal that meets the lost block in its row p-1, which is zero, gives the adjuster.
    std::vector<std::byte> adjuster(row);
    const unsigned free = mod(lost + p_ - 1);
    add(adjuster.data(), row_of(q, free, row), row);
    diagonal_of(data, free, adjuster.data(), row, lost);
    for (unsigned k = 0; k + 1 < p_; ++k) {
      std::byte* to = all[lost] + k * row;
      const unsigned l = mod(lost + k);
      std::memcpy(to, adjuster.data(), row);
      add(to, row_of(q, l, row), row);
      diagonal_of(data, l, to, row, lost);
    }
  }

  void by_both(Blocks all, unsigned i, unsigned j, const std::byte* p, const std::byte* q, size_t row) const {
    const std::vector<const std::byte*> data(all.begin(), all.begin() + scheme_.data);
    std::vector<std::byte> adjuster(row);
    for (unsigned l = 0; l + 1 < p_; ++l) {
      xor_into(adjuster.data(), p + l * row, row);
      xor_into(adjuster.data(), q + l * row, row);
    }
    // Each row follows from the one before it; the first is where the diagonal meets row p-1 of block i.
    const unsigned step = j - i;
    for (unsigned s = mod(2 * p_ - step - 1); s != p_ - 1; s = mod(s + p_ - step)) {
      const unsigned l = mod(j + s);
      std::byte *of_j = all[j] + s * row, *of_i = all[i] + s * row;
      std::memcpy(of_j, adjuster.data(), row);
      add(of_j, row_of(q, l, row), row);
      diagonal_of(data, l, of_j, row, i, j);
      add(of_j, row_of(static_cast<const std::byte*>(all[i]), mod(s + step), row), row);
      std::memcpy(of_i, p + s * row, row);
      for (unsigned t = 0; t < scheme_.data; ++t) {
        if (t != i) xor_into(of_i, all[t] + s * row, row);
      }
    }
  }

  const unsigned p_;
};

}  // namespace

std::unique_ptr<Code> make_even_odd(const Scheme& scheme) { return std::make_unique<EvenOdd>(scheme); }

}  // namespace ckpt::redundancy
