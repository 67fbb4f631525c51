// mat: C = A * B by Cannon's algorithm: the ranks are a square, each has a block of A, B and C; in each step
// it adds the product of its blocks to C, and hands that of A to the left and that of B upwards.
//
// The elements are small whole numbers in doubles, so that every sum is exact. The result is verified by
// Freivalds' check, with an A and a B that are made anew from the seed: C x = A (B x) for an x of ones and
// minus ones.
#include <climits>

#include "bench/diskless/ranks.h"

namespace bench {
namespace {

struct Arguments {
  uint64_t size = 256, rounds = 1, seed = 1;
};

using Block = std::vector<double>;

double element(uint64_t seed, uint64_t matrix, uint64_t n, uint64_t row, uint64_t column) {
  return static_cast<double>(mix(mix(seed * 2 + matrix) + row * n + column) >> 54) - 512;
}

double sign(uint64_t seed, uint64_t i) { return (mix(mix(~seed) + i) & 1) != 0 ? 1 : -1; }

class Cannon {
 public:
  Cannon(const Ranks& ranks, const Arguments& a, uint64_t side)
      : a_(a),
        side_(static_cast<int>(side)),
        block_(a.size / side),
        a_block_(block_ * block_),
        b_block_(a_block_),
        c_block_(a_block_) {
    const int sides[2] = {side_, side_}, around[2] = {1, 1};
    MPI_Cart_create(MPI_COMM_WORLD, 2, sides, around, 0, &square_);
    int at[2];
    MPI_Cart_coords(square_, ranks.rank(), 2, at);
    row_ = at[0];
    column_ = at[1];
    MPI_Comm_split(square_, row_, column_, &row_of_square_);
    MPI_Comm_split(square_, column_, row_, &column_of_square_);
  }
  ~Cannon() {
    MPI_Comm_free(&row_of_square_);
    MPI_Comm_free(&column_of_square_);
    MPI_Comm_free(&square_);
  }
  Cannon(const Cannon&) = delete;
  Cannon& operator=(const Cannon&) = delete;

  void multiply(uint64_t seed) {
    fill(a_block_, seed, 0);
    fill(b_block_, seed, 1);
    std::fill(c_block_.begin(), c_block_.end(), 0.0);
    shift(a_block_, 1, row_);  // so that the blocks that meet belong together
    shift(b_block_, 0, column_);
    for (int step = 0; step < side_; ++step) {
      add_product();
      shift(a_block_, 1, 1);
      shift(b_block_, 0, 1);
    }
  }

  bool holds(uint64_t seed) const {
    // B x: of the rows of this block, of its columns; then of all columns.
    Block bx =
        sum_over(row_of_square_, times(seed, 1, [&](uint64_t j) { return sign(seed, first(column_) + j); }));
    // The rows of B are the columns of A: rank (i, j) needs what row j of the square has.
    Block needed = bx;
    MPI_Bcast(needed.data(), count(needed), MPI_DOUBLE, column_, column_of_square_);
    Block abx = sum_over(row_of_square_, times(seed, 0, [&](uint64_t j) { return needed[j]; }));
    Block cx(block_, 0.0);
    for (uint64_t i = 0; i < block_; ++i) {
      for (uint64_t j = 0; j < block_; ++j)
        cx[i] += c_block_[i * block_ + j] * sign(seed, first(column_) + j);
    }
    return sum_over(row_of_square_, cx) == abx;
  }

  // The same number however C is cut into blocks.
  uint64_t digest() const {
    uint64_t result = 0;
    for (uint64_t i = 0; i < block_; ++i) {
      for (uint64_t j = 0; j < block_; ++j) {
        const auto value = static_cast<uint64_t>(static_cast<int64_t>(c_block_[i * block_ + j]));
        result += mix(value ^ mix((first(row_) + i) * a_.size + first(column_) + j));
      }
    }
    return result;
  }

 private:
  static int count(const Block& b) { return static_cast<int>(b.size()); }
  uint64_t first(int index) const { return static_cast<uint64_t>(index) * block_; }

  void fill(Block& block, uint64_t seed, uint64_t matrix) const {
    for (uint64_t i = 0; i < block_; ++i) {
      for (uint64_t j = 0; j < block_; ++j) {
        block[i * block_ + j] = element(seed, matrix, a_.size, first(row_) + i, first(column_) + j);
      }
    }
  }

  void shift(Block& block, int direction, int by) {
    int from = 0, to = 0;
    MPI_Cart_shift(square_, direction, -by, &from, &to);
    MPI_Sendrecv_replace(block.data(), count(block), MPI_DOUBLE, to, 3, from, 3, square_, MPI_STATUS_IGNORE);
  }

  void add_product() {
    constexpr uint64_t kAtOnce = 64;
    for (uint64_t k0 = 0; k0 < block_; k0 += kAtOnce) {
      const uint64_t k1 = std::min(block_, k0 + kAtOnce);
      for (uint64_t i = 0; i < block_; ++i) {
        double* out = &c_block_[i * block_];
        for (uint64_t k = k0; k < k1; ++k) {
          const double left = a_block_[i * block_ + k];
          const double* right = &b_block_[k * block_];
          for (uint64_t j = 0; j < block_; ++j) out[j] += left * right[j];
        }
      }
    }
  }

  Block times(uint64_t seed, uint64_t matrix, const std::function<double(uint64_t)>& x) const {
    Block y(block_, 0.0);
    std::vector<double> of(block_);
    for (uint64_t j = 0; j < block_; ++j) of[j] = x(j);
    for (uint64_t i = 0; i < block_; ++i) {
      for (uint64_t j = 0; j < block_; ++j) {
        y[i] += element(seed, matrix, a_.size, first(row_) + i, first(column_) + j) * of[j];
      }
    }
    return y;
  }

  // Whole numbers below 2^53: exact in any order.
  static Block sum_over(MPI_Comm some, const Block& part) {
    Block total(part.size());
    MPI_Allreduce(part.data(), total.data(), count(part), MPI_DOUBLE, MPI_SUM, some);
    return total;
  }

  const Arguments& a_;
  int side_, row_ = 0, column_ = 0;
  uint64_t block_;
  Block a_block_, b_block_, c_block_;
  MPI_Comm square_ = MPI_COMM_NULL, row_of_square_ = MPI_COMM_NULL, column_of_square_ = MPI_COMM_NULL;
};

bool run(const Arguments& a, const Ranks& ranks) {
  const auto size = static_cast<uint64_t>(ranks.size());
  uint64_t side = 1;
  while (side * side < size) ++side;
  if (side * side != size) throw std::invalid_argument("the number of ranks must be a square: 1, 4, 9, 16");
  if (a.size % side != 0) {
    throw std::invalid_argument(
        fmt::format("--size must be a multiple of {}, the side of the square of ranks", side));
  }
  if ((a.size / side) * (a.size / side) > uint64_t{INT_MAX})
    throw std::invalid_argument("--size is too large for so few ranks");
  Cannon cannon(ranks, a, side);
  ranks.say("{} x {} elements on {} x {} ranks", a.size, a.size, side, side);
  bool holds = true;
  for (uint64_t round = 0; round < a.rounds; ++round) {
    const uint64_t seed = mix(a.seed) + round;
    cannon.multiply(seed);
    holds = cannon.holds(seed) && holds;
    ranks.say("round {} digest {:016x}", round + 1, ranks.sum(cannon.digest()));
  }
  return holds;
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  bench::Arguments a;
  bench::RankProgram program;
  program.name = "mat";
  program.description =
      "Products of square matrices by Cannon's algorithm: 24 * SIZE * SIZE bytes over all ranks, whose "
      "number is a square. Each "
      "product is verified by Freivalds' check.";
  program.configure = [&a](bench::CommandLine& line) {
    // 2^18 * SIZE is below 2^53.
    line.number("--size", a.size, "Rows and columns", 1u, 1u << 17);
    line.number("--rounds", a.rounds, "Products, one after another", 1u, 1u << 30);
    line.number("--seed", a.seed, "Start of the pseudo-random matrices");
  };
  program.run = [&a](const bench::Ranks& ranks) { return run(a, ranks); };
  return run_ranks(program, argc, argv);
}
