// All that can happen to a checkpoint over two and three hosts, and errors put in by hand, each of which must
// be found.
#include <gtest/gtest.h>
#include <xxhash.h>

#include <deque>
#include <unordered_set>

#include "tests/cluster/explore/world.h"

namespace ckpt::cluster {
namespace {

struct Found {
  size_t states = 0, quiet = 0;
  std::string error;  // and the way to it
};

// Breadth first, so that the way to an error is a short one.
Found explore(const Limits& limits, Mutation mutation) {
  struct Node {
    uint32_t before;
    World::Event event;
  };
  struct Hash {
    size_t operator()(const XXH128_hash_t& h) const { return h.low64; }
  };
  struct Equal {
    bool operator()(const XXH128_hash_t& a, const XXH128_hash_t& b) const {
      return XXH128_isEqual(a, b) != 0;
    }
  };
  Found found;
  std::unordered_set<XXH128_hash_t, Hash, Equal> seen;
  std::vector<Node> nodes{{0, {}}};
  std::deque<std::pair<uint32_t, World>> left;
  left.emplace_back(0, World(limits, mutation));
  const auto visit = [&](const World& w) {
    const std::string code = w.encoded();
    return seen.insert(XXH3_128bits(code.data(), code.size())).second;
  };
  const auto way_to = [&](uint32_t node) {
    std::string way;
    for (; node != 0; node = nodes[node].before) way = "\n  " + World::text(nodes[node].event) + way;
    return way;
  };
  visit(left.front().second);
  while (!left.empty()) {
    const auto [at, world] = std::move(left.front());
    left.pop_front();
    ++found.states;
    std::string wrong = world.wrong();
    if (wrong.empty() && world.is_quiet()) {
      ++found.quiet;
      wrong = world.stuck();
    }
    if (!wrong.empty()) {
      found.error = wrong + way_to(at);
      return found;
    }
    for (const World::Event& event : world.events()) {
      World next = world;
      next.apply(event);
      if (!visit(next)) continue;
      nodes.push_back({at, event});
      left.emplace_back(static_cast<uint32_t>(nodes.size() - 1), std::move(next));
    }
  }
  return found;
}

class Explore : public testing::TestWithParam<Limits> {};

TEST_P(Explore, NothingGoesWrong) {
  const Found found = explore(GetParam(), Mutation::kNone);
  EXPECT_EQ(found.error, "");
  EXPECT_GT(found.states, 1000u);
  EXPECT_GT(found.quiet, 0u);
  std::printf("%zu states, %zu of them quiet\n", found.states, found.quiet);
}

INSTANTIATE_TEST_SUITE_P(All, Explore, testing::Values(Limits{2, 1, 3}, Limits{2, 2, 2}, Limits{3, 1, 2}),
                         [](const auto& one) {
                           const Limits& l = one.param;
                           return std::to_string(l.hosts) + "hosts" + std::to_string(l.checkpoints) +
                                  "checkpoints" + std::to_string(l.faults) + "faults";
                         });

struct Mutant {
  Mutation mutation;
  const char* name;
  const char* says;
  int faults = 1;
};

class Mutants : public testing::TestWithParam<Mutant> {};

TEST_P(Mutants, AreFound) {
  const Found found = explore({2, 1, GetParam().faults}, GetParam().mutation);
  EXPECT_NE(found.error.find(GetParam().says), std::string::npos) << "found: " << found.error;
}

INSTANTIATE_TEST_SUITE_P(
    All, Mutants,
    testing::Values(Mutant{Mutation::kNoDrain, "NoDrain", "not of one instant"},
                    Mutant{Mutation::kGoAlone, "GoAlone", "not of one instant"},
                    Mutant{Mutation::kCommitEarly, "CommitEarly", "has no part of it"},
                    Mutant{Mutation::kHostWaitsOn, "HostWaitsOn", "for ever"},
                    Mutant{Mutation::kHeadWaitsOn, "HeadWaitsOn", "the head waits for ever", 2},
                    Mutant{Mutation::kDoubtRemoves, "DoubtRemoves", "has no part of it"},
                    Mutant{Mutation::kAbortRecorded, "AbortRecorded", "has no part of it"},
                    Mutant{Mutation::kDeafToLoss, "DeafToLoss", "for ever"}),
    [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace ckpt::cluster
