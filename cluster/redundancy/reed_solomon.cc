// Reed-Solomon over GF(2^8) with a Cauchy matrix: every square part of it can be inverted, so any M may be
// lost.
#include <isa-l/erasure_code.h>

#include <algorithm>

#include "cluster/redundancy/code.h"

namespace ckpt::redundancy {

namespace {

constexpr size_t kAtOnce = 1u << 30;  // ISA-L knows lengths as int

unsigned char* bytes_of(const std::byte* block) {
  return reinterpret_cast<unsigned char*>(const_cast<std::byte*>(block));
}

class ReedSolomon final : public Code {
 public:
  explicit ReedSolomon(const Scheme& scheme)
      : Code(scheme),
        matrix_((scheme.data + scheme.checks) * scheme.data),
        tables_(size_t{32} * scheme.data * scheme.checks) {
    gf_gen_cauchy1_matrix(matrix_.data(), static_cast<int>(scheme.data + scheme.checks),
                          static_cast<int>(scheme.data));
    ec_init_tables(k(), m(), &matrix_[scheme.data * scheme.data], tables_.data());
  }

  void encode(ConstBlocks data, Blocks checks, size_t bytes) const override {
    multiply(data, tables_, checks, bytes);
  }

  void update(unsigned changed, const std::byte* difference, size_t offset, size_t length, Blocks checks,
              size_t) const override {
    for (size_t done = 0; done < length;) {
      const size_t part = std::min(kAtOnce, length - done);
      std::vector<unsigned char*> to;
      for (std::byte* check : checks) to.push_back(bytes_of(check) + offset + done);
      ec_encode_data_update(static_cast<int>(part), k(), m(), static_cast<int>(changed),
                            const_cast<unsigned char*>(tables_.data()), bytes_of(difference) + done,
                            to.data());
      done += part;
    }
  }

  bool can_recover(const std::vector<bool>& lost) const override {
    return std::count(lost.begin(), lost.end(), true) <= static_cast<long>(scheme_.checks);
  }

 protected:
  void recover_lost(Blocks all, const std::vector<bool>& lost, size_t bytes) const override {
    std::vector<unsigned> data_lost, rows;
    for (unsigned i = 0; i < scheme_.data; ++i) {
      if (lost[i]) data_lost.push_back(i);
    }
    for (unsigned i = 0; i < scheme_.data + scheme_.checks && rows.size() < scheme_.data; ++i) {
      if (!lost[i]) rows.push_back(i);
    }
    if (!data_lost.empty()) {
      std::vector<unsigned char> part(scheme_.data * scheme_.data), inverse(part.size());
      for (unsigned r = 0; r < scheme_.data; ++r)
        std::copy_n(&matrix_[rows[r] * scheme_.data], scheme_.data, &part[r * scheme_.data]);
      gf_invert_matrix(part.data(), inverse.data(), k());
      std::vector<unsigned char> wanted, tables(size_t{32} * scheme_.data * data_lost.size());
      for (unsigned i : data_lost)
        wanted.insert(wanted.end(), &inverse[i * scheme_.data], &inverse[i * scheme_.data] + scheme_.data);
      ec_init_tables(k(), static_cast<int>(data_lost.size()), wanted.data(), tables.data());
      std::vector<const std::byte*> from;
      std::vector<std::byte*> to;
      for (unsigned r : rows) from.push_back(all[r]);
      for (unsigned i : data_lost) to.push_back(all[i]);
      multiply(from, tables, to, bytes);
    }
    std::vector<std::byte*> checks;
    std::vector<unsigned char> of_lost;
    for (unsigned c = 0; c < scheme_.checks; ++c) {
      if (!lost[scheme_.data + c]) continue;
      checks.push_back(all[scheme_.data + c]);
      const unsigned char* row = &matrix_[(scheme_.data + c) * scheme_.data];
      of_lost.insert(of_lost.end(), row, row + scheme_.data);
    }
    if (checks.empty()) return;
    std::vector<unsigned char> tables(size_t{32} * scheme_.data * checks.size());
    ec_init_tables(k(), static_cast<int>(checks.size()), of_lost.data(), tables.data());
    const std::vector<const std::byte*> data(all.begin(), all.begin() + scheme_.data);
    multiply(data, tables, checks, bytes);
  }

 private:
  int k() const { return static_cast<int>(scheme_.data); }
  int m() const { return static_cast<int>(scheme_.checks); }

  static void multiply(ConstBlocks from, const std::vector<unsigned char>& tables, Blocks to, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
      const size_t part = std::min(kAtOnce, bytes - done);
      std::vector<unsigned char*> sources, targets;
      for (const std::byte* block : from) sources.push_back(bytes_of(block) + done);
      for (std::byte* block : to) targets.push_back(bytes_of(block) + done);
      ec_encode_data(static_cast<int>(part), static_cast<int>(from.size()), static_cast<int>(to.size()),
                     const_cast<unsigned char*>(tables.data()), sources.data(), targets.data());
      done += part;
    }
  }

  std::vector<unsigned char> matrix_, tables_;
};

}  // namespace

Result<std::unique_ptr<Code>> make_reed_solomon(const Scheme& scheme) {
  return std::unique_ptr<Code>(std::make_unique<ReedSolomon>(scheme));
}

}  // namespace ckpt::redundancy
