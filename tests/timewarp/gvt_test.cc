// GVT, model-checked: Gvt and GvtParty, the classes that the engine runs, under every order of a few steps of
// two threads, and under many random orders of one to three. What surrounds them is a model, and each of its
// steps has its counterpart in Worker:
//
//   execute()   Worker::execute(), send(): the first event; its message is noted and pushed
//   flush()     Channel::flush(): what fits goes into the ring, the rest stays; false: something stayed
//   receive()   Worker::receive(): files messages, undoes what a straggler or a cancellation has overtaken
//   undo()      Worker::undo_from(), cancel(): cancellations are noted and pushed
//   ask, look   GvtParty::ask(), poll()
//
// A look is not one step: other threads go on while it flushes, and before and after it empties its channels.
// Stragglers are undone when they come out of the queue in the engine, and when they arrive here: until then
// they are in the queue, and count. No message, cancellation or waiting event below a GVT that somebody has
// seen may exist.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "timewarp/engine/gvt.h"

namespace ckpt::timewarp {
namespace {

class World {
 public:
  // Which mistake to make, to see that it is found.
  enum Mistake { kNone, kNoFlush, kNoNoting, kNoReceiving, kCancellationsNotNoted };

  World(unsigned n, Mistake mistake) : gvt_(n), mistake_(mistake), threads_(n) {
    for (unsigned t = 0; t < n; ++t) {
      threads_[t].party = std::make_unique<GvtParty>(gvt_, t);
      threads_[t].queue.push_back({t + 1.0, next_id_++});
      threads_[t].waiting.resize(n);
      threads_[t].channel.resize(n);
    }
  }
  static constexpr unsigned kSteps = 5;
  // Called where a look takes time: may call step() for other threads.
  std::function<void(unsigned thread)> meanwhile = [](unsigned) {};

  // False: a GVT was wrong.
  bool step(unsigned t, unsigned what) {
    Thread& me = threads_[t];
    if (me.looking) return true;  // in the middle of a look: it has no other step
    switch (what) {
      case 0:
        execute(t);
        break;
      case 1:
        flush(t);
        break;
      case 2:
        receive(t);
        break;
      case 3:
        me.party->ask();
        break;
      default:
        look(t);
    }
    return smallest() >= seen_;
  }
  double seen() const { return seen_; }
  unsigned cancelled() const { return cancelled_; }

 private:
  struct Item {
    double time;
    unsigned id;
    bool cancel = false;
  };
  struct Done {
    Item event;
    Item sent;
    unsigned to;
  };
  struct Thread {
    std::unique_ptr<GvtParty> party;
    std::vector<Item> queue;
    std::vector<Done> done;                          // in the order of time
    std::vector<std::deque<Item>> waiting, channel;  // by receiver
    bool looking = false;
    unsigned executed = 0;
  };
  static constexpr size_t kRoom = 2;  // of a channel

  void push(unsigned t, unsigned to, Item item) {
    const bool noted =
        item.cancel ? mistake_ != kCancellationsNotNoted && mistake_ != kNoNoting : mistake_ != kNoNoting;
    if (noted) threads_[t].party->note({item.time, 0, t});
    threads_[t].waiting[to].push_back(item);
  }
  void execute(unsigned t) {
    Thread& me = threads_[t];
    if (me.queue.empty()) return;
    const auto first = std::min_element(me.queue.begin(), me.queue.end(),
                                        [](const Item& a, const Item& b) { return a.time < b.time; });
    const Item event = *first;
    me.queue.erase(first);
    // To the next thread, close by. Another delay when it is executed again: an event that has gone back does
    // not always send what it has sent before.
    const unsigned to = (t + 1) % threads_.size();
    const Item message{event.time + 0.25 * (1 + me.executed++ % 4), next_id_++};
    me.done.push_back({event, message, to});
    push(t, to, message);
  }
  bool flush(unsigned t) {
    bool all = true;
    for (unsigned to = 0; to < threads_.size(); ++to) {
      auto& waiting = threads_[t].waiting[to];
      auto& channel = threads_[t].channel[to];
      for (; !waiting.empty() && channel.size() < kRoom; waiting.pop_front())
        channel.push_back(waiting.front());
      all &= waiting.empty();
    }
    return all;
  }
  // All events from this time on.
  void undo(unsigned t, double time) {
    Thread& me = threads_[t];
    while (!me.done.empty() && me.done.back().event.time >= time) {
      const Done last = me.done.back();
      me.done.pop_back();
      me.queue.push_back(last.event);
      push(t, last.to, {last.sent.time, last.sent.id, true});
      ++cancelled_;
    }
  }
  void receive(unsigned t) {
    Thread& me = threads_[t];
    for (Thread& from : threads_) {
      while (!from.channel[t].empty()) {
        const Item item = from.channel[t].front();
        from.channel[t].pop_front();
        if (item.time < seen_) overtaken_ = true;
        undo(t, item.time);
        if (item.cancel) {
          std::erase_if(me.queue, [&](const Item& i) { return i.id == item.id; });
        } else {
          me.queue.push_back(item);
        }
      }
    }
  }
  void look(unsigned t) {
    Thread& me = threads_[t];
    Key gvt;
    me.looking = true;
    const bool is_new = me.party->poll(
        [&] {
          meanwhile(t);
          const bool all = flush(t);
          meanwhile(t);
          return mistake_ == kNoFlush || all;
        },
        [&] {
          meanwhile(t);
          if (mistake_ != kNoReceiving) receive(t);
          double first = Key::never().time;
          for (const Item& i : me.queue) first = std::min(first, i.time);
          const Key report = me.queue.empty() ? Key::never() : Key{first, 0, 0};
          meanwhile(t);
          return report;
        },
        &gvt);
    me.looking = false;
    if (is_new) seen_ = std::max(seen_, gvt.time);
  }
  double smallest() const {
    double min = overtaken_ ? -1 : Key::never().time;
    for (const Thread& t : threads_) {
      for (const Item& i : t.queue) min = std::min(min, i.time);
      for (const auto* messages : {&t.waiting, &t.channel}) {
        for (const auto& list : *messages) {
          for (const Item& i : list) min = std::min(min, i.time);
        }
      }
    }
    return min;
  }

  Gvt gvt_;
  const Mistake mistake_;
  std::vector<Thread> threads_;
  unsigned next_id_ = 0, cancelled_ = 0;
  bool overtaken_ = false;
  double seen_ = 0;
};

struct Walked {
  double farthest = 0;
  unsigned cancelled = 0;
};

// True: some random order breaks it.
bool breaks(World::Mistake mistake, unsigned threads, unsigned walks, Walked* walked) {
  std::mt19937 random(1);
  for (unsigned walk = 0; walk < walks; ++walk) {
    World world(threads, mistake);
    bool right = true;
    world.meanwhile = [&](unsigned) {
      if (random() % 3 == 0) right &= world.step(random() % threads, random() % World::kSteps);
    };
    for (unsigned i = 0; i < 120; ++i) {
      if (!world.step(random() % threads, random() % World::kSteps) || !right) return true;
    }
    walked->farthest = std::max(walked->farthest, world.seen());
    walked->cancelled += world.cancelled();
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

// One thread looks; what the other does at each place within its looks takes all values.
TEST(Gvt, EveryOrderWithinALook) {
  constexpr unsigned kPlaces = 5, kChoices = World::kSteps + 1;
  unsigned all = 1;
  for (unsigned i = 0; i < kPlaces; ++i) all *= kChoices;
  double farthest = 0;
  for (unsigned order = 0; order < all; ++order) {
    World world(2, World::kNone);
    unsigned rest = order;
    bool right = true;
    world.meanwhile = [&](unsigned t) {
      const unsigned what = rest % kChoices;
      rest /= kChoices;
      if (t == 0 && what < World::kSteps) right &= world.step(1, what);
    };
    ASSERT_TRUE(world.step(0, 0) && world.step(0, 3));
    for (unsigned i = 0; i < 8; ++i) {
      ASSERT_TRUE(world.step(i % 2, 4) && right) << order;
      ASSERT_TRUE(world.step(i % 2, i % 3)) << order;
    }
    farthest = std::max(farthest, world.seen());
  }
  EXPECT_GT(farthest, 0);
}

TEST(Gvt, ManyOrdersOfManySteps) {
  for (unsigned threads : {1, 2, 3}) {
    Walked walked;
    EXPECT_FALSE(breaks(World::kNone, threads, 5000, &walked));
    EXPECT_GT(walked.farthest, 1);
    EXPECT_TRUE(threads == 1 || walked.cancelled > 1000) << walked.cancelled;
  }
}

TEST(Gvt, EachPartOfItIsNeeded) {
  Walked walked;
  EXPECT_TRUE(breaks(World::kNoFlush, 2, 20000, &walked));
  EXPECT_TRUE(breaks(World::kNoNoting, 2, 20000, &walked));
  EXPECT_TRUE(breaks(World::kCancellationsNotNoted, 2, 20000, &walked));
  EXPECT_TRUE(breaks(World::kNoReceiving, 2, 20000, &walked));
}

}  // namespace
}  // namespace ckpt::timewarp
