// cell: the cellular automaton Life on a torus, two grids of one byte a cell, rows shared out among the
// ranks.
//
// The grid is tiles of 8 x 8; one tile in --sparse has a glider, all in the same direction, so that none ever
// meets another. What the grid must be after any number of generations is therefore known without computing
// any: every cell is compared with it.
#include <array>

#include "bench/diskless/ranks.h"

namespace bench {
namespace {

constexpr uint64_t kTile = 8;

struct Arguments {
  uint64_t size = 1024, generations = 100, sparse = 16, seed = 1;
};

// The four phases of a glider, in rows of bits. After four generations it is the first again, one cell down
// and one to the right.
constexpr std::array<std::array<unsigned, 4>, 4> kGlider = {{
    {0b0100, 0b0010, 0b1110, 0b0000},
    {0b0000, 0b1010, 0b0110, 0b0100},
    {0b0000, 0b0010, 0b1010, 0b0110},
    {0b0000, 0b0100, 0b0011, 0b0110},
}};

uint8_t expected(const Arguments& a, uint64_t row, uint64_t column, uint64_t generation) {
  const uint64_t moved = generation / 4 % a.size;
  const uint64_t y = (row + a.size - moved) % a.size, x = (column + a.size - moved) % a.size;
  if (mix(mix(a.seed) + y / kTile * (a.size / kTile) + x / kTile) % a.sparse != 0) return 0;
  // At offset 2 in its tile: two gliders have four empty cells between them at least.
  const uint64_t dy = y % kTile - 2, dx = x % kTile - 2;
  if (dy >= 4 || dx >= 4) return 0;
  return kGlider[generation % 4][dy] >> (3 - dx) & 1;
}

// Rows of one rank, with one above and one below that belong to the neighbours.
class Grid {
 public:
  Grid(uint64_t rows, uint64_t columns) : columns_(columns), cells_((rows + 2) * columns) {}
  uint8_t* row(uint64_t i) { return &cells_[(i + 1) * columns_]; }  // -1 and rows too

 private:
  uint64_t columns_;
  std::vector<uint8_t> cells_;
};

void exchange(const Ranks& ranks, Grid& grid, uint64_t rows, uint64_t columns) {
  const int up = (ranks.rank() + ranks.size() - 1) % ranks.size(), down = (ranks.rank() + 1) % ranks.size();
  const int n = static_cast<int>(columns);
  MPI_Sendrecv(grid.row(0), n, MPI_BYTE, up, 1, grid.row(rows), n, MPI_BYTE, down, 1, MPI_COMM_WORLD,
               MPI_STATUS_IGNORE);
  MPI_Sendrecv(grid.row(rows - 1), n, MPI_BYTE, down, 2, grid.row(uint64_t{0} - 1), n, MPI_BYTE, up, 2,
               MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

void next_row(const uint8_t* above, const uint8_t* here, const uint8_t* below, uint8_t* out, uint64_t n) {
  auto cell = [&](uint64_t left, uint64_t at, uint64_t right) {
    const int around = above[left] + above[at] + above[right] + here[left] + here[right] + below[left] +
                       below[at] + below[right];
    return static_cast<uint8_t>((around == 3) | ((around == 2) & here[at]));
  };
  out[0] = cell(n - 1, 0, 1);
  for (uint64_t i = 1; i + 1 < n; ++i) out[i] = cell(i - 1, i, i + 1);
  out[n - 1] = cell(n - 2, n - 1, 0);
}

bool run(const Arguments& a, const Ranks& ranks) {
  if (a.size % kTile != 0 || a.size / kTile < static_cast<uint64_t>(ranks.size())) {
    throw std::invalid_argument("--size must be a multiple of 8, and 8 times the number of ranks at least");
  }
  const Share mine = ranks.mine(a.size);
  const uint64_t rows = mine.last - mine.first;
  Grid current(rows, a.size), next(rows, a.size);
  for (uint64_t i = 0; i < rows; ++i) {
    for (uint64_t j = 0; j < a.size; ++j) current.row(i)[j] = expected(a, mine.first + i, j, 0);
  }
  ranks.say("{} x {} cells", a.size, a.size);
  for (uint64_t g = 0; g < a.generations; ++g) {
    exchange(ranks, current, rows, a.size);
    for (uint64_t i = 0; i < rows; ++i) {
      next_row(current.row(i - 1), current.row(i), current.row(i + 1), next.row(i), a.size);
    }
    std::swap(current, next);
    if ((g + 1) * 10 / a.generations != g * 10 / a.generations) ranks.say("generation {}", g + 1);
  }
  uint64_t alive = 0, wrong = 0;
  for (uint64_t i = 0; i < rows; ++i) {
    for (uint64_t j = 0; j < a.size; ++j) {
      alive += current.row(i)[j];
      wrong += current.row(i)[j] != expected(a, mine.first + i, j, a.generations);
    }
  }
  ranks.say("alive {}", ranks.sum(alive));
  return wrong == 0;
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  bench::Arguments a;
  bench::RankProgram program;
  program.name = "cell";
  program.description =
      "A cellular automaton (Life) on a torus: 2 * SIZE * SIZE bytes over all ranks. Every cell of the "
      "result is compared with what "
      "is known of gliders.";
  program.configure = [&a](bench::CommandLine& line) {
    line.number("--size", a.size, "Cells in a row, and rows: a multiple of 8", 8u, 1u << 17);
    line.number("--generations", a.generations, "How many", 1u, 1u << 30);
    line.number("--sparse", a.sparse, "One tile of 8 x 8 cells in so many has a glider", 1u, 1u << 30);
    line.number("--seed", a.seed, "Which tiles");
  };
  program.run = [&a](const bench::Ranks& ranks) { return run(a, ranks); };
  return run_ranks(program, argc, argv);
}
