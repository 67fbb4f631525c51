// The interface of CCL v3.0 on the copiers of state/.
//
// One stack of checkpoints for each LP, oldest first. The newest may still be under way; it is no checkpoint
// before ckpt_cond_abort() has said so.
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "ckpt_timewarp.h"
#include "timewarp/state/non_blocking.h"

namespace ckpt::timewarp {

namespace {

struct Checkpoint {
  double clock;
  std::unique_ptr<std::byte[]> bytes;
};

struct CclLp {
  void* state = nullptr;
  size_t bytes = 0;
  std::vector<Checkpoint> stack;
  Checkpoint under_way;
  NonBlockingCopy copy;
};

struct Ccl {
  // Before the copier that may still be reading them goes.
  std::vector<CclLp> lps;
  std::vector<std::unique_ptr<std::byte[]>> free;
  size_t largest = 0;
  float threshold = 0;
  std::unique_ptr<NonBlocking> copier;
};

constinit std::unique_ptr<Ccl> ccl;
std::string error;  // not constinit: clang makes no std::string without code

int fail(int code, std::string what) {
  error = std::move(what);
  return code;
}

CclLp* find(int id) {
  if (ccl == nullptr) {
    error = "CCL is not initialised: call ccl_init()";
  } else if (id < 0 || static_cast<size_t>(id) >= ccl->lps.size()) {
    error = "LP " + std::to_string(id) + ": the LPs are 0 to " + std::to_string(ccl->lps.size() - 1);
  } else if (ccl->lps[static_cast<size_t>(id)].state == nullptr) {
    error = "LP " + std::to_string(id) + " has no state: call ccl_register()";
  } else {
    return &ccl->lps[static_cast<size_t>(id)];
  }
  return nullptr;
}

// The copy is not under way any more.
ccl_outcome settle(CclLp& lp, double threshold) {
  if (!lp.copy.pending()) return CCL_NOTHING;
  if (ccl->copier->settle(lp.copy, threshold) == Settled::kAborted) {
    ccl->free.push_back(std::move(lp.under_way.bytes));
    return CCL_ABORTED;
  }
  lp.stack.push_back(std::move(lp.under_way));
  return CCL_COMMITTED;
}

void drop(CclLp& lp, size_t from, size_t to) {
  for (size_t i = from; i < to; ++i) ccl->free.push_back(std::move(lp.stack[i].bytes));
  lp.stack.erase(lp.stack.begin() + static_cast<ptrdiff_t>(from),
                 lp.stack.begin() + static_cast<ptrdiff_t>(to));
}

}  // namespace
}  // namespace ckpt::timewarp

using namespace ckpt::timewarp;

extern "C" {

int ccl_init(const ckpt_tw_options* options, int lps, size_t largest_state) {
  if (lps <= 0) return fail(CKPT_TW_USAGE, "CCL for " + std::to_string(lps) + " LPs: at least one");
  if (!(options->threshold >= 0 && options->threshold <= 1)) {
    return fail(CKPT_TW_USAGE, "a threshold of " + std::to_string(options->threshold) + ": 0 to 1");
  }
  ccl_finalize();
  std::string why;
  auto copier = make_non_blocking(*options, largest_state, static_cast<uint32_t>(lps), &why);
  if (copier == nullptr) return fail(CKPT_TW_UNAVAILABLE, why);
  ccl = std::make_unique<Ccl>();
  ccl->lps.resize(static_cast<size_t>(lps));
  ccl->largest = largest_state;
  ccl->threshold = static_cast<float>(options->threshold);
  ccl->copier = std::move(copier);
  return 0;
}

int ccl_register(int LP_id, void* state, size_t bytes) {
  if (ccl == nullptr || LP_id < 0 || static_cast<size_t>(LP_id) >= ccl->lps.size()) {
    (void)find(LP_id);
    return CKPT_TW_USAGE;
  }
  if (bytes > ccl->largest) {
    return fail(CKPT_TW_USAGE, "LP " + std::to_string(LP_id) + " has a state of " + std::to_string(bytes) +
                                   " bytes, but ccl_init() was told " + std::to_string(ccl->largest));
  }
  CclLp& lp = ccl->lps[static_cast<size_t>(LP_id)];
  (void)settle(lp, 2);
  lp.state = state;
  lp.bytes = bytes;
  return 0;
}

int non_block_ckpt(int LP_id, double simulation_clock) {
  CclLp* lp = find(LP_id);
  if (lp == nullptr) return CKPT_TW_USAGE;
  (void)settle(*lp, ccl->threshold);
  if (!lp->stack.empty() && lp->stack.back().clock > simulation_clock) {
    return fail(CKPT_TW_MODEL, "LP " + std::to_string(LP_id) + " checkpoints at " +
                                   std::to_string(simulation_clock) + ", before its checkpoint at " +
                                   std::to_string(lp->stack.back().clock) + ": restore first");
  }
  lp->under_way.clock = simulation_clock;
  if (ccl->free.empty()) {
    lp->under_way.bytes = std::make_unique<std::byte[]>(ccl->largest);
  } else {
    lp->under_way.bytes = std::move(ccl->free.back());
    ccl->free.pop_back();
  }
  lp->copy.from = lp->state;
  lp->copy.to = lp->under_way.bytes.get();
  lp->copy.bytes = static_cast<uint32_t>(lp->bytes);
  if (ccl->copier->start(lp->copy, ccl->threshold)) return 0;
  // The queue is full: the processor does it, and ckpt_cond_abort() finds it complete.
  std::memcpy(lp->under_way.bytes.get(), lp->state, lp->bytes);
  lp->copy.state = NonBlockingCopy::State::kSettled;
  lp->copy.outcome = Settled::kComplete;
  return 0;
}

int ckpt_cond_abort(int LP_id, float threshold) {
  CclLp* lp = find(LP_id);
  if (lp == nullptr) return -1;
  if (!(threshold >= 0 && threshold <= 1)) {
    return fail(-1, "a threshold of " + std::to_string(threshold) +
                        ": it is the share of a copy that must be done, 0 to 1");
  }
  ccl->threshold = threshold;
  return settle(*lp, threshold);
}

double state_restore(int LP_id, double clock) {
  CclLp* lp = find(LP_id);
  if (lp == nullptr) return NAN;
  // Of a time that is being undone, or useful: as far as it is.
  (void)settle(*lp, lp->copy.pending() && lp->under_way.clock <= clock ? 0 : 2);
  size_t n = lp->stack.size();
  while (n > 0 && lp->stack[n - 1].clock > clock) --n;
  if (n == 0) {
    error = "LP " + std::to_string(LP_id) + " has no checkpoint at or before " + std::to_string(clock) +
            ": checkpoint its first state, with threshold 0";
    return NAN;
  }
  drop(*lp, n, lp->stack.size());
  std::memcpy(lp->state, lp->stack.back().bytes.get(), lp->bytes);
  return lp->stack.back().clock;
}

int fossil_collection(int LP_id, double gvt) {
  CclLp* lp = find(LP_id);
  if (lp == nullptr) return -1;
  // The newest at or before gvt stays: a rollback to gvt begins there. A checkpoint under way does not count.
  size_t newest = 0;
  while (newest + 1 < lp->stack.size() && lp->stack[newest + 1].clock <= gvt) ++newest;
  drop(*lp, 0, newest);
  return static_cast<int>(lp->stack.size());
}

const char* ccl_error(void) { return error.c_str(); }

void ccl_finalize(void) {
  if (ccl == nullptr) return;
  for (CclLp& lp : ccl->lps) (void)settle(lp, 2);
  ccl.reset();
}

}  // extern "C"
