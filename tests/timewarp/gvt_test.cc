// GVT, model-checked: the classes the engine uses, under every order of a few steps of two threads, and under
// many random orders of three. A model thread executes events, keeps messages back until it flushes them,
// receives when it likes, goes back, and looks at the round. Nothing below a GVT that somebody has seen may
// exist.
#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "timewarp/engine/gvt.h"

namespace ckpt::timewarp {
namespace {

class World {
 public:
  // Which mistake to make, to see that it is found.
  enum Mistake { kNone, kNoFlush, kNoNoting, kNoReceiving };

  World(unsigned n, Mistake mistake) : gvt_(n), mistake_(mistake), threads_(n) {
    for (unsigned t = 0; t < n; ++t) {
      threads_[t].party = std::make_unique<GvtParty>(gvt_, t);
      threads_[t].queue.insert(t + 1.0);
      threads_[t].kept.resize(n);
      threads_[t].channel.resize(n);
    }
  }
  static constexpr unsigned kSteps = 5;
  // False: a GVT was wrong.
  bool step(unsigned t, unsigned what) {
    Thread& me = threads_[t];
    switch (what) {
      case 0: {  // execute the first event; it sends one to the next thread, close by
        if (me.queue.empty()) break;
        const double time = *me.queue.begin();
        me.queue.erase(me.queue.begin());
        me.done.push_back(time);
        const unsigned to = (t + 1) % threads_.size();
        if (mistake_ != kNoNoting) me.party->note({time + 0.25, 0, t});
        me.kept[to].push_back(time + 0.25);
        break;
      }
      case 1:
        flush(t);
        break;
      case 2:
        receive(t);
        break;
      case 3:
        me.party->ask();
        break;
      default: {
        Key gvt;
        if (me.party->poll([&] { return mistake_ == kNoFlush || flush(t); },
                           [&] {
                             if (mistake_ != kNoReceiving) receive(t);
                             return me.queue.empty() ? Key::never() : Key{*me.queue.begin(), 0, 0};
                           },
                           &gvt)) {
          seen_ = std::max(seen_, gvt.time);
        }
      }
    }
    return smallest() >= seen_;
  }
  double seen() const { return seen_; }

 private:
  struct Thread {
    std::unique_ptr<GvtParty> party;
    std::multiset<double> queue;
    std::vector<double> done;
    std::vector<std::deque<double>> kept, channel;  // by receiver
  };

  bool flush(unsigned t) {
    for (size_t to = 0; to < threads_.size(); ++to) {
      auto& kept = threads_[t].kept[to];
      threads_[t].channel[to].insert(threads_[t].channel[to].end(), kept.begin(), kept.end());
      kept.clear();
    }
    return true;
  }
  void receive(unsigned t) {
    for (Thread& from : threads_) {
      for (double time : from.channel[t]) {
        threads_[t].queue.insert(time);
        // A straggler: what was executed behind it is undone. (Its messages stay: too many is no less safe.)
        auto& done = threads_[t].done;
        while (!done.empty() && done.back() > time) {
          threads_[t].queue.insert(done.back());
          done.pop_back();
        }
      }
      from.channel[t].clear();
    }
  }
  double smallest() const {
    double min = Key::never().time;
    for (const Thread& t : threads_) {
      if (!t.queue.empty()) min = std::min(min, *t.queue.begin());
      for (const auto& messages : {t.kept, t.channel}) {
        for (const auto& list : messages) {
          for (double time : list) min = std::min(min, time);
        }
      }
    }
    return min;
  }

  Gvt gvt_;
  const Mistake mistake_;
  std::vector<Thread> threads_;
  double seen_ = 0;
};

// True: some random order breaks it. *rounds: how far GVT came.
bool breaks(World::Mistake mistake, unsigned threads, unsigned walks, double* farthest) {
  std::mt19937 random(1);
  for (unsigned walk = 0; walk < walks; ++walk) {
    World world(threads, mistake);
    for (unsigned i = 0; i < 120; ++i) {
      if (!world.step(random() % threads, random() % World::kSteps)) return true;
    }
    *farthest = std::max(*farthest, world.seen());
  }
  return false;
}

TEST(Gvt, EveryOrderOfAFewSteps) {
  // A prefix that brings both into a round; then all orders of five steps; then a round is finished.
  constexpr unsigned kChoices = 2 * World::kSteps, kDepth = 5;
  unsigned all = 1;
  for (unsigned i = 0; i < kDepth; ++i) all *= kChoices;
  double farthest = 0;
  for (unsigned order = 0; order < all; ++order) {
    World world(2, World::kNone);
    ASSERT_TRUE(world.step(0, 0) && world.step(0, 3) && world.step(order & 1, 4));
    for (unsigned i = 0, rest = order; i < kDepth; ++i, rest /= kChoices) {
      ASSERT_TRUE(world.step(rest % kChoices / World::kSteps, rest % World::kSteps)) << order;
    }
    for (unsigned i = 0; i < 4; ++i) ASSERT_TRUE(world.step(i % 2, 4)) << order;
    farthest = std::max(farthest, world.seen());
  }
  EXPECT_GT(farthest, 0);
}

TEST(Gvt, ManyOrdersOfManySteps) {
  for (unsigned threads : {1, 2, 3}) {
    double farthest = 0;
    EXPECT_FALSE(breaks(World::kNone, threads, 5000, &farthest));
    EXPECT_GT(farthest, 1);
  }
}

TEST(Gvt, EachPartOfItIsNeeded) {
  double farthest = 0;
  EXPECT_TRUE(breaks(World::kNoFlush, 2, 20000, &farthest));
  EXPECT_TRUE(breaks(World::kNoNoting, 2, 20000, &farthest));
  EXPECT_TRUE(breaks(World::kNoReceiving, 2, 20000, &farthest));
}

}  // namespace
}  // namespace ckpt::timewarp
