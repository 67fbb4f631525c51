// Protection and copying by the library's own sources, with a small kernel beneath (small_kernel.h): from the
// back ends' calls of Arming down to the system calls. WriteProtection, Watch, GuardedMemory, PageScan and
// Copier make these. Every instant is tried at which a thread of the program may write, give memory back or
// have it replaced: alone, and two of these in every order. In each stop all that exists is protected and
// known; what an image has is what there was at the stop; nobody waits for ever, and nothing stays protected.
//
// Tried by hand, each found. In write_protect.cc: end_serving() leaves faults that it has read; EAGAIN is
// taken for done; still_protected() is always true; events are read and not told, to Arming or to the copier.
// In watch.cc: resume() has nobody serve; renew() takes the arena that is given up. In guarded_memory.cc:
// nothing is busy. In ahead.cc: a call is not announced. In page_scan.cc: what is written to counts as
// protected. In copier.cc: a segment is kept though a thread wants it. Not found: GuardedMemory::protect()
// that undoes nothing, unprotect() that stops at the first part that is not registered (Arming unsettles
// both, and a call is announced while all is registered), and a last gap that scan_unprotected() leaves out.
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/protect_model/checkpoints.h"

namespace ckpt::test {
namespace {

using Version = SmallKernel::Version;
using How = Checkpoints::How;

struct Named {
  const char* name;
  How how;
  size_t stride = 1;  // between the instants of the second of two steps
};
constexpr Named kHandler{"handler", {FaultBackEnd::kHandler, Version::kNew, true, 1}, 3};
constexpr Named kWatch{"watch", {FaultBackEnd::kHandler, Version::kNew, true, 2}, 10};
constexpr Named kNoScan{"handler_without_scan", {FaultBackEnd::kHandler, Version::kNoScan, true, 1}, 3};
constexpr Named kNoHoles{"handler_in_the_stop", {FaultBackEnd::kHandler, Version::kNoHoles, false, 1}};
constexpr Named kInThread{"in_thread", {FaultBackEnd::kInThread, Version::kNew, true, 1}};
constexpr Named kInStop{"in_thread_in_the_stop", {FaultBackEnd::kInThread, Version::kNoHoles, false, 1}};
constexpr Named kMprotect{"mprotect", {FaultBackEnd::kMprotect, Version::kNoScan, false, 1}, 3};

// Two steps at every instant are minutes where there are many of these. With CKPT_LONG=1.
const bool kLong = getenv("CKPT_LONG") != nullptr;

class Exhaustive : public ::testing::TestWithParam<Named> {
 protected:
  // Returns the number of instants.
  size_t run(const std::vector<Step>& steps) {
    Checkpoints checkpoints(GetParam().how, steps);
    const size_t instants = checkpoints.run();
    ++runs_;
    complete_ += checkpoints.complete();
    inherited_ += checkpoints.inherited();
    at_stop_ = checkpoints.instants_at_stop();
    for (const std::string& wrong : checkpoints.wrong()) ADD_FAILURE() << text_of(steps) << "\n" << wrong;
    return instants;
  }
  // Each of the first, and behind it each of the second, at every instant.
  void run_pairs(const std::vector<Step>& first, const std::vector<Step>& second) {
    const size_t stride = kLong ? 1 : GetParam().stride;
    for (Step a : first) {
      const size_t last = run({});
      for (a.instant = 1; a.instant <= last; ++a.instant) {
        const size_t end = run({a});
        for (Step b : second) {
          for (b.instant = a.instant + (a.instant + b.page) % stride; b.instant <= end; b.instant += stride) {
            run({a, b});
            if (HasFailure()) return;
          }
        }
      }
    }
  }
  // The steps from the `next`th on at every instant from `from` on; the last of them at each 25th, but with
  // CKPT_LONG=1.
  void run_all(std::vector<Step>& steps, size_t next, size_t from) {
    if (next == steps.size()) {
      run(steps);
      return;
    }
    const size_t stride = kLong || next + 1 != steps.size() ? 1 : 25;
    const size_t last = run({steps.begin(), steps.begin() + static_cast<long>(next)});
    for (size_t i = from + from % stride; i <= last && !HasFailure(); i += stride) {
      steps[next].instant = i;
      run_all(steps, next + 1, i);
    }
  }
  size_t runs_ = 0, complete_ = 0, at_stop_ = 0;
  uint64_t inherited_ = 0;
};

void PrintTo(const Named& named, std::ostream* out) { *out << named.name; }

// The first segment, of which a page is missing; one that two mappings share; one in the middle; the end of a
// mapping, which is another batch of the copier; the beginning of the next; a hole in the middle of nothing.
const std::vector<Step> kSingle = {
    {0, What::kStore, 0},
    {0, What::kStore, 1},
    {0, What::kStore, 4},
    {0, What::kStore, 5},
    {0, What::kStore, 70},
    {0, What::kStore, 60, 8},
    {0, What::kStore, 131, 3},
    {0, What::kStore, 135},
    {0, What::kKernelWrites, 0},
    {0, What::kKernelWrites, 64, 10},
    {0, What::kGiveBack, 0},
    {0, What::kGiveBack, 62, 5},
    {0, What::kGiveBackLate, 0},
    {0, What::kGiveBackLate, 130},
    {0, What::kGiveBackLate, 62, 5},
    {0, What::kUnmap, 0, 2},
    {0, What::kUnmap, 3, 2},
    {0, What::kUnmap, 5, 1},
    {0, What::kUnmap, 133, 3},
    {0, What::kMapOver, 0, 3},
    {0, What::kMapOver, 128, 4},
    {0, What::kMapOver, 133, 3},
    {0, What::kPause, 0},
};

TEST_P(Exhaustive, EachStepAtEachInstant) {
  for (Step step : kSingle) {
    const size_t last = run({});
    for (step.instant = 1; step.instant <= last; ++step.instant) {
      run({step});
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(complete_, runs_ / 2);
  if (GetParam().how.count > 1) {
    EXPECT_GT(inherited_, 100 * complete_) << "increments would save nothing";
  }
}

TEST_P(Exhaustive, TwoStepsAtEachTwoInstants) {
  const std::vector<Step> first = {{0, What::kStore, 0}, {0, What::kGiveBackLate, 0}, {0, What::kPause, 0}};
  const std::vector<Step> second = {{0, What::kStore, 1},           {0, What::kStore, 0},
                                    {0, What::kKernelWrites, 0, 2}, {0, What::kGiveBackLate, 0},
                                    {0, What::kMapOver, 0, 2},      {0, What::kPause, 0}};
  run_pairs(first, second);
  EXPECT_GT(complete_, runs_ / 2);
}

// Memory is moved away by a bare mremap, of which nobody is told, and mapped twice again at its place: what
// the second and the first have there is no memory of the image. (Three times between two calls nobody sees,
// docs/limits.md.)
class Unseen : public Exhaustive {};

TEST_P(Unseen, MemoryThatIsReplacedTwiceWhileItIsCopied) {
  run({});
  const size_t from = at_stop_ + 1;
  // A segment, half of one, both sides of two, and what is a batch of the copier alone.
  for (const Step& at :
       {Step{0, What::kPause, 2, 2}, {0, What::kPause, 2}, {0, What::kPause, 5, 2}, {0, What::kPause, 133}}) {
    std::vector<Step> steps;
    for (const What what : {What::kMoveAway, What::kMapAnother, What::kMoveAway, What::kMapAnother})
      steps.push_back({0, what, at.page, at.count});
    // The first two at once: nothing can be read of a hole.
    const size_t last = run({});
    for (size_t i = from; i <= last; ++i) {
      steps[0].instant = steps[1].instant = i;
      run_all(steps, 2, i);
      if (HasFailure()) return;
    }
  }
}

// The smallest pool that is taken: all buffers may be with the copier, in the queue and with the writer while
// one more thread waits for a copy. Memory that is given back then keeps the copier from unprotecting.
class SmallPool : public Exhaustive {};

TEST_P(SmallPool, MemoryIsGivenBackWhileThreadsWaitForBuffers) {
  run({});
  const size_t from = at_stop_ + 1;
  for (Step give : {Step{0, What::kGiveBack, 1}, {0, What::kGiveBackLate, 1}, {0, What::kUnmap, 71}}) {
    // The last segments, which are copied last.
    std::vector<Step> steps = {{0, What::kStore, 100, 30}, {0, What::kLongPause, 0, 200}};
    const size_t last = run({});
    for (size_t i = from; i <= last; ++i) {
      for (Step& step : steps) step.instant = i;
      const size_t end = kLong ? run(steps) : i + 3;
      for (give.instant = i; give.instant <= end; ++give.instant) {
        std::vector<Step> all = steps;
        all.push_back(give);
        run(all);
        if (HasFailure()) return;
      }
    }
  }
  EXPECT_GT(complete_, runs_ / 2);
}

constexpr Named kFewBuffers{"handler", {FaultBackEnd::kHandler, Version::kNew, true, 1, 16}};
constexpr Named kFewNoScan{"handler_without_scan", {FaultBackEnd::kHandler, Version::kNoScan, true, 1, 16}};
constexpr Named kFewInThread{"in_thread", {FaultBackEnd::kInThread, Version::kNew, true, 1, 16}};
constexpr Named kFewMprotect{"mprotect", {FaultBackEnd::kMprotect, Version::kNoScan, false, 1, 16}};

INSTANTIATE_TEST_SUITE_P(All, SmallPool,
                         ::testing::Values(kFewBuffers, kFewNoScan, kFewInThread, kFewMprotect),
                         [](const auto& named) { return std::string(named.param.name); });

INSTANTIATE_TEST_SUITE_P(All, Unseen, ::testing::Values(kHandler, kNoScan, kNoHoles),
                         [](const auto& named) { return std::string(named.param.name); });

INSTANTIATE_TEST_SUITE_P(All, Exhaustive,
                         ::testing::Values(kHandler, kWatch, kNoScan, kNoHoles, kInThread, kInStop,
                                           kMprotect),
                         [](const auto& named) { return std::string(named.param.name); });

}  // namespace
}  // namespace ckpt::test
