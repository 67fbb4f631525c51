// matmul: C = A * B for square matrices, in integers (modulo 2^64) and in doubles.
//
// Every element is summed in the same order whatever the number of threads, so that the doubles are
// the same to the last bit. Freivalds' check (C x == A (B x) for a random x) verifies the integers
// exactly and the doubles within rounding.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "bench/common.h"

namespace bench {
namespace {

constexpr uint64_t kBlock = 64;  // elements: three blocks of doubles stay in the second-level cache

struct Arguments {
  uint64_t n = 3072;
  uint64_t rounds = 1;
  std::string type = "both";
};

template <typename T>
using Matrix = std::vector<T>;

template <typename T>
T element(uint64_t seed, uint64_t index) {
  uint64_t v = mix(mix(seed) + index);
  if constexpr (std::is_floating_point_v<T>) {
    return static_cast<T>(static_cast<double>(v >> 11) * 0x1p-53 - 0.5);  // in [-0.5, 0.5)
  } else {
    return static_cast<T>(v);
  }
}

template <typename T>
void multiply_rows(const Matrix<T>& a, const Matrix<T>& b, Matrix<T>& c, uint64_t n, Share rows) {
  for (uint64_t i = rows.first; i < rows.last; ++i) std::fill_n(&c[i * n], n, T{0});
  for (uint64_t k0 = 0; k0 < n; k0 += kBlock) {
    uint64_t k1 = std::min(n, k0 + kBlock);
    for (uint64_t i = rows.first; i < rows.last; ++i) {
      T* out = &c[i * n];
      for (uint64_t k = k0; k < k1; ++k) {
        const T left = a[i * n + k];
        const T* right = &b[k * n];
        for (uint64_t j = 0; j < n; ++j) out[j] += left * right[j];
      }
    }
  }
}

template <typename T>
std::vector<T> times(const Matrix<T>& m, const std::vector<T>& x, uint64_t n) {
  std::vector<T> y(n, T{0});
  for (uint64_t i = 0; i < n; ++i) {
    for (uint64_t j = 0; j < n; ++j) y[i] += m[i * n + j] * x[j];
  }
  return y;
}

template <typename T>
bool product_holds(const Matrix<T>& a, const Matrix<T>& b, const Matrix<T>& c, uint64_t n, uint64_t seed) {
  std::vector<T> x(n);
  for (uint64_t i = 0; i < n; ++i) x[i] = static_cast<T>(mix(seed + i) & 1);
  std::vector<T> left = times(c, x, n);
  std::vector<T> right = times(a, times(b, x, n), n);
  for (uint64_t i = 0; i < n; ++i) {
    if constexpr (std::is_floating_point_v<T>) {
      double scale = static_cast<double>(n) * static_cast<double>(n);
      if (!(std::abs(left[i] - right[i]) <= scale * 1e-15)) return false;
    } else {
      if (left[i] != right[i]) return false;
    }
  }
  return true;
}

// Multiplies; with more rounds the product, brought back to the range of the input, is the next
// left side.
template <typename T>
bool multiply(const Arguments& arguments, const CommonArguments& common, const char* name, Results& results) {
  uint64_t n = arguments.n;
  Matrix<T> a(n * n), b(n * n), c(n * n);
  for (uint64_t i = 0; i < n * n; ++i) {
    a[i] = element<T>(common.seed, i);
    b[i] = element<T>(common.seed + 1, i);
  }
  bool right = true;
  for (uint64_t round = 1; round <= arguments.rounds; ++round) {
    if (round > 1) {
      a.swap(c);
      if constexpr (std::is_floating_point_v<T>) {
        T scale = T{1} / static_cast<T>(n);
        for (T& v : a) v *= scale;
      }
    }
    run_threads(common.threads,
                [&](unsigned t) { multiply_rows(a, b, c, n, share_of(n, t, common.threads)); });
    right = right && product_holds(a, b, c, n, common.seed + 2 + round);
  }
  Checksum sum;
  sum.add(c.data(), c.size() * sizeof(T));
  results.add(fmt::format("{}_checksum", name), sum.hex());
  return right;
}

int run(const Arguments& arguments, const CommonArguments& common, Results& results) {
  bool right = true;
  results.add("n", arguments.n);
  if (arguments.type != "double") right = multiply<uint64_t>(arguments, common, "integer", results) && right;
  if (arguments.type != "integer") right = multiply<double>(arguments, common, "double", results) && right;
  results.add("result", right ? "product ok" : "wrong: C x differs from A (B x)");
  return right ? kExitOk : kExitWrongResult;
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  bench::Arguments arguments;
  bench::Program program;
  program.name = "matmul";
  program.description = "Multiplies square pseudo-random matrices of 64-bit integers and of doubles.";
  program.configure = [&](bench::CommandLine& line) {
    line.number("-n,--n", arguments.n, "Rows and columns", uint64_t{1}, uint64_t{65536});
    line.number("--rounds", arguments.rounds, "Multiply this many times", 1);
    line.one_of("--type", arguments.type, {"integer", "double", "both"}, "Elements: integer, double or both");
  };
  program.run = [&](const bench::CommonArguments& common, bench::Results& results) {
    return bench::run(arguments, common, results);
  };
  return bench::run_program(program, argc, argv);
}
