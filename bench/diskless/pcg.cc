// pcg: A x = b by conjugate gradients, preconditioned with an incomplete Cholesky factorisation of each
// rank's own part.
//
// A is the diffusion operator on a square grid: five points, and a coefficient of its own for each side of
// each cell. Vectors have one entry a cell; rows are shared out among the ranks. b is A times a known x. At
// the end the residual is computed with coefficients that are made anew from the seed, and x is compared with
// the known one.
#include <cmath>
#include <cstring>

#include "bench/diskless/ranks.h"

namespace bench {
namespace {

struct Arguments {
  uint64_t size = 64, rounds = 1, iterations = 100000, seed = 1;
  double tolerance = 1e-11;
};

double uniform(uint64_t seed, uint64_t i) { return static_cast<double>(mix(mix(seed) + i) >> 11) * 0x1p-53; }

// A field over the rows of one rank, with a row above and one below that belong to the neighbours; 0 outside
// of the grid.
class Field {
 public:
  Field(uint64_t rows, uint64_t columns) : columns_(columns), values_((rows + 2) * columns, 0.0) {}
  double* row(uint64_t i) { return &values_[(i + 1) * columns_]; }
  const double* row(uint64_t i) const { return &values_[(i + 1) * columns_]; }

 private:
  uint64_t columns_;
  std::vector<double> values_;
};

class Solver {
 public:
  Solver(const Ranks& ranks, const Arguments& a)
      : ranks_(ranks),
        n_(a.size),
        first_(ranks.mine(n_).first),
        rows_(ranks.mine(n_).last - first_),
        seed_(a.seed),
        north_(rows_, n_),
        south_(rows_, n_),
        west_(rows_, n_),
        east_(rows_, n_),
        centre_(rows_, n_),
        pivot_(rows_, n_),
        b_(rows_, n_),
        known_(rows_, n_),
        x_(rows_, n_),
        r_(rows_, n_),
        p_(rows_, n_),
        q_(rows_, n_) {
    for (uint64_t i = 0; i < rows_; ++i) {
      for (uint64_t j = 0; j < n_; ++j) {
        north_.row(i)[j] = side(0, first_ + i, j);
        south_.row(i)[j] = side(0, first_ + i + 1, j);
        west_.row(i)[j] = side(1, first_ + i, j);
        east_.row(i)[j] = side(1, first_ + i, j + 1);
        centre_.row(i)[j] = north_.row(i)[j] + south_.row(i)[j] + west_.row(i)[j] + east_.row(i)[j];
      }
    }
    for (uint64_t i = 0; i < rows_; ++i) {
      for (uint64_t j = 0; j < n_; ++j) {
        double d = centre_.row(i)[j];
        if (i > 0) d -= square(north_.row(i)[j]) * pivot_.row(i - 1)[j];
        if (j > 0) d -= square(west_.row(i)[j]) * pivot_.row(i)[j - 1];
        pivot_.row(i)[j] = 1 / d;
      }
    }
  }

  // The iterations that it took; more than most: it did not come to it.
  uint64_t solve(uint64_t round, double tolerance, uint64_t most) {
    for (uint64_t i = 0; i < rows_; ++i) {
      for (uint64_t j = 0; j < n_; ++j) {
        known_.row(i)[j] = uniform(seed_ + 100 + round, (first_ + i) * n_ + j) - 0.5;
        x_.row(i)[j] = 0;
      }
    }
    exchange(known_);
    apply(known_, b_);
    for (uint64_t i = 0; i < rows_; ++i) std::copy_n(b_.row(i), n_, r_.row(i));
    const double goal = tolerance * tolerance * dot(b_, b_);
    precondition();
    for (uint64_t i = 0; i < rows_; ++i) std::copy_n(q_.row(i), n_, p_.row(i));
    double rz = dot(r_, q_);
    for (uint64_t k = 1; k <= most; ++k) {
      exchange(p_);
      apply(p_, q_);
      const double alpha = rz / dot(p_, q_);
      each([&](uint64_t i, uint64_t j) {
        x_.row(i)[j] += alpha * p_.row(i)[j];
        r_.row(i)[j] -= alpha * q_.row(i)[j];
      });
      if (dot(r_, r_) <= goal) return k;
      precondition();  // q is free again: what the preconditioner makes of r
      const double before = rz;
      rz = dot(r_, q_);
      const double beta = rz / before;
      each([&](uint64_t i, uint64_t j) { p_.row(i)[j] = q_.row(i)[j] + beta * p_.row(i)[j]; });
    }
    return most + 1;
  }

  // The residual of x beside b, with coefficients made anew.
  double residual() {
    exchange(x_);
    double left = 0;
    each([&](uint64_t i, uint64_t j) {
      const double n = side(0, first_ + i, j), s = side(0, first_ + i + 1, j), w = side(1, first_ + i, j),
                   e = side(1, first_ + i, j + 1);
      const double* x = x_.row(i);
      const double ax = (n + s + w + e) * x[j] - n * x_.row(i - 1)[j] - s * x_.row(i + 1)[j] -
                        (j > 0 ? w * x[j - 1] : 0) - (j + 1 < n_ ? e * x[j + 1] : 0);
      left += square(b_.row(i)[j] - ax);
    });
    return std::sqrt(ranks_.sum(left) / dot(b_, b_));
  }
  double error() const {
    double most = 0;
    for (uint64_t i = 0; i < rows_; ++i) {
      for (uint64_t j = 0; j < n_; ++j) most = std::max(most, std::abs(x_.row(i)[j] - known_.row(i)[j]));
    }
    return ranks_.most(most);
  }
  std::string digest() const {
    // The last bits of x differ with the number of ranks, and with nothing else.
    uint64_t sum = 0;
    for (uint64_t i = 0; i < rows_; ++i) {
      for (uint64_t j = 0; j < n_; ++j) {
        uint64_t bits;
        std::memcpy(&bits, &x_.row(i)[j], sizeof bits);
        sum += mix(bits ^ mix((first_ + i) * n_ + j));
      }
    }
    return fmt::format("{:016x}", ranks_.sum(sum));
  }

 private:
  static double square(double v) { return v * v; }
  double side(uint64_t which, uint64_t i, uint64_t j) const {
    return 0.5 + uniform(seed_ + which, i * (n_ + 1) + j);
  }
  template <typename Work>
  void each(const Work& work) {
    for (uint64_t i = 0; i < rows_; ++i) {
      for (uint64_t j = 0; j < n_; ++j) work(i, j);
    }
  }

  void exchange(Field& f) const {
    const int above = ranks_.first() ? MPI_PROC_NULL : ranks_.rank() - 1;
    const int below = ranks_.rank() + 1 == ranks_.size() ? MPI_PROC_NULL : ranks_.rank() + 1;
    const int n = static_cast<int>(n_);
    MPI_Sendrecv(f.row(0), n, MPI_DOUBLE, above, 1, f.row(rows_), n, MPI_DOUBLE, below, 1, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    MPI_Sendrecv(f.row(rows_ - 1), n, MPI_DOUBLE, below, 2, f.row(uint64_t{0} - 1), n, MPI_DOUBLE, above, 2,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  }
  void apply(const Field& in, Field& out) const {
    for (uint64_t i = 0; i < rows_; ++i) {
      const double *here = in.row(i), *above = in.row(i - 1), *below = in.row(i + 1);
      const double *n = north_.row(i), *s = south_.row(i), *w = west_.row(i), *e = east_.row(i),
                   *c = centre_.row(i);
      double* o = out.row(i);
      for (uint64_t j = 0; j < n_; ++j) o[j] = c[j] * here[j] - n[j] * above[j] - s[j] * below[j];
      for (uint64_t j = 1; j < n_; ++j) o[j] -= w[j] * here[j - 1];
      for (uint64_t j = 0; j + 1 < n_; ++j) o[j] -= e[j] * here[j + 1];
    }
  }
  double dot(const Field& a, const Field& b) const {
    double sum = 0;
    for (uint64_t i = 0; i < rows_; ++i) {
      const double *x = a.row(i), *y = b.row(i);
      for (uint64_t j = 0; j < n_; ++j) sum += x[j] * y[j];
    }
    return ranks_.sum(sum);
  }
  // q = (L D L^T)^-1 r, where L has the entries of A left of the diagonal and D^-1 is the pivots.
  void precondition() {
    for (uint64_t i = 0; i < rows_; ++i) {
      for (uint64_t j = 0; j < n_; ++j) {
        double v = r_.row(i)[j];
        if (i > 0) v += north_.row(i)[j] * q_.row(i - 1)[j];
        if (j > 0) v += west_.row(i)[j] * q_.row(i)[j - 1];
        q_.row(i)[j] = v * pivot_.row(i)[j];
      }
    }
    for (uint64_t i = rows_; i-- > 0;) {
      for (uint64_t j = n_; j-- > 0;) {
        double v = 0;
        if (i + 1 < rows_) v += south_.row(i)[j] * q_.row(i + 1)[j];
        if (j + 1 < n_) v += east_.row(i)[j] * q_.row(i)[j + 1];
        q_.row(i)[j] += v * pivot_.row(i)[j];
      }
    }
  }

  const Ranks& ranks_;
  uint64_t n_, first_, rows_, seed_;
  Field north_, south_, west_, east_, centre_, pivot_, b_,
      known_;  // as they are, in all iterations of a round
  Field x_, r_, p_, q_;
};

bool run(const Arguments& a, const Ranks& ranks) {
  if (a.size < static_cast<uint64_t>(ranks.size()))
    throw std::invalid_argument("--size must be the number of ranks at least");
  Solver solver(ranks, a);
  ranks.say("{} unknowns", a.size * a.size);
  bool holds = true;
  for (uint64_t round = 0; round < a.rounds; ++round) {
    const uint64_t iterations = solver.solve(round, a.tolerance, a.iterations);
    const double residual = solver.residual(), error = solver.error();
    ranks.say("round {} iterations {} digest {}", round + 1, iterations, solver.digest());
    // The condition of A grows with the square of the side.
    const double bound = a.tolerance * 10 * static_cast<double>(a.size * a.size);
    holds = holds && iterations <= a.iterations && residual <= a.tolerance * 10 && error <= bound;
  }
  return holds;
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  bench::Arguments a;
  bench::RankProgram program;
  program.name = "pcg";
  program.description =
      "Conjugate gradients with a preconditioner, for a sparse matrix of SIZE * SIZE unknowns: 96 * SIZE * "
      "SIZE bytes over all ranks, of "
      "which a third changes. The result is compared with the known one.";
  program.configure = [&a](bench::CommandLine& line) {
    line.number("--size", a.size, "The side of the grid", 2u, 1u << 17);
    line.number("--rounds", a.rounds, "Right sides, one after another", 1u, 1u << 30);
    line.number("--iterations", a.iterations, "At most, in a round; more is a wrong result", 1u, 1u << 30);
    line.number("--tolerance", a.tolerance, "Of the residual, beside the right side", 1e-13, 1e-2);
    line.number("--seed", a.seed, "Start of the pseudo-random coefficients");
  };
  program.run = [&a](const bench::Ranks& ranks) { return run(a, ranks); };
  return run_ranks(program, argc, argv);
}
