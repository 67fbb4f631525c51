// pattern: where in a long array does a pattern fit best, allowing insertions, deletions, changes?
//
// Sellers' algorithm (1980): one column of edit distances for each element of the array, where a match
// may begin anywhere. The distance of the best match that ends at each place is kept for every place;
// the least of them, and the first place that has it, is the result. A thread starts two pattern
// lengths before its part: no best match is longer.
#include <algorithm>
#include <atomic>

#include "bench/common.h"

namespace bench {
namespace {

struct Arguments {
  uint64_t length = uint64_t{160} << 20;
  uint64_t pattern = 64;
  uint64_t changes = 0;  // 0: a quarter of the pattern
};

constexpr uint64_t kLargestPattern = 16384;  // distances fit 16 bits
constexpr unsigned kAlphabet = 4;

struct Match {
  uint16_t distance = UINT16_MAX;
  uint64_t end = 0;  // index of the element after the match
};

// Distances for the places [share.first, share.last).
Match search(const std::vector<uint8_t>& text, const std::vector<uint8_t>& pattern, Share share,
             std::vector<uint16_t>& distances) {
  const uint64_t m = pattern.size();
  std::vector<uint16_t> column(m + 1);
  for (uint64_t i = 0; i <= m; ++i) column[i] = static_cast<uint16_t>(i);
  Match best;
  uint64_t begin = share.first > 2 * m ? share.first - 2 * m : 0;
  for (uint64_t at = begin; at < share.last; ++at) {
    uint16_t diagonal = column[0];  // row 0 is all zeros: a match may begin here
    uint8_t symbol = text[at];
    for (uint64_t i = 1; i <= m; ++i) {
      uint16_t substituted = static_cast<uint16_t>(diagonal + (pattern[i - 1] != symbol));
      diagonal = column[i];
      uint16_t skipped = static_cast<uint16_t>(std::min(column[i], column[i - 1]) + 1);
      column[i] = std::min(substituted, skipped);
    }
    if (at < share.first) continue;
    distances[at] = column[m];
    if (column[m] < best.distance) best = {column[m], at + 1};
  }
  return best;
}

int run(const Arguments& arguments, const CommonArguments& common, Results& results) {
  if (arguments.pattern > arguments.length) {
    throw std::invalid_argument("--pattern must not be longer than --length");
  }
  std::vector<uint8_t> text(arguments.length);
  run_threads(common.threads, [&](unsigned t) {
    Share share = share_of(text.size(), t, common.threads);
    for (uint64_t i = share.first; i < share.last; ++i) {
      text[i] = static_cast<uint8_t>(mix(mix(common.seed) + i) % kAlphabet);
    }
  });
  // The pattern is a piece of the text with some elements changed, so that there is a best place.
  Random random(common.seed + 1);
  uint64_t origin = random.below(text.size() - arguments.pattern + 1);
  std::vector<uint8_t> pattern(text.begin() + static_cast<ptrdiff_t>(origin),
                               text.begin() + static_cast<ptrdiff_t>(origin + arguments.pattern));
  uint64_t changes = arguments.changes != 0 ? arguments.changes : arguments.pattern / 4;
  for (uint64_t c = 0; c < changes; ++c) {
    uint8_t& symbol = pattern[random.below(pattern.size())];
    symbol = static_cast<uint8_t>((symbol + 1 + random.below(kAlphabet - 1)) % kAlphabet);
  }

  std::vector<uint16_t> distances(text.size());
  std::vector<Match> matches(common.threads);
  run_threads(common.threads, [&](unsigned t) {
    matches[t] = search(text, pattern, share_of(text.size(), t, common.threads), distances);
  });
  Match best;
  for (const Match& m : matches) {
    if (m.distance < best.distance) best = m;
  }
  // The place the pattern was cut from matches with at most as many changes as were made.
  bool right = best.distance <= changes && distances[best.end - 1] == best.distance &&
               std::find(distances.begin(), distances.end(), best.distance) ==
                   distances.begin() + static_cast<ptrdiff_t>(best.end - 1);
  Checksum sum;
  sum.add(distances.data(), distances.size() * sizeof(distances[0]));
  results.add("length", text.size());
  results.add("pattern", pattern.size());
  results.add("distance", best.distance);
  results.add("match_end", best.end);
  results.add("checksum", sum.hex());
  results.add("result", right ? "match ok" : "wrong: the match is not the first best one");
  return right ? kExitOk : kExitWrongResult;
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  bench::Arguments arguments;
  bench::Program program;
  program.name = "pattern";
  program.description =
      "Finds the place in a long pseudo-random array with the least edit distance to a pattern.";
  program.configure = [&](bench::CommandLine& line) {
    line.size("-n,--length", arguments.length, "Elements of the array", 1);
    line.number("--pattern", arguments.pattern, "Elements of the pattern", uint64_t{1},
                bench::kLargestPattern);
    line.number("--changes", arguments.changes, "Changes made to the pattern; 0: a quarter of it");
  };
  program.run = [&](const bench::CommonArguments& common, bench::Results& results) {
    return bench::run(arguments, common, results);
  };
  return bench::run_program(program, argc, argv);
}
