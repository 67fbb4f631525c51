#include "libckpt_rt/capture/aio/aio_contexts.h"

#include <errno.h>
#include <linux/aio_abi.h>
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "base/memory/fork_path.h"
#include "base/memory/large_table.h"
#include "base/raii_fd.h"
#include "base/sys.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::aio_contexts {

// Shared with aio_submit.S.
struct Count {
  std::atomic<int64_t> submitted;
  std::atomic<int32_t> inside;
};

}  // namespace ckpt::aio_contexts

extern "C" {
long ckpt_aio_submit(ckpt::aio_contexts::Count* count, long context, long n, void* list);
extern const char ckpt_aio_inside[], ckpt_aio_made[], ckpt_aio_counted[], ckpt_aio_outside[];
}

namespace ckpt::aio_contexts {

namespace {

// The kernel's, at the address that is the context's id.
struct Ring {
  uint32_t id, slots, head, tail;
  uint32_t magic, compatible, incompatible, header_bytes;
  io_event events[];
};
constexpr uint32_t kMagic = 0xa10a10a1;

struct Context {
  std::atomic<uint64_t> address;  // 0: free
  Count count;
  std::atomic<uint32_t> slots;
  std::atomic<int> process;  // which made it: to a child that was forked since the ring is memory
  // The agent's.
  bool idle, saved;
};
constexpr uint32_t kMost = 256;
CKPT_LARGE_TABLE constinit Context contexts[kMost]{};
constinit std::atomic<bool> any{false};
// Threads in io_setup(2) or io_destroy(2): what is mapped and what is known may differ.
CKPT_FORK_DATA constinit std::atomic<int32_t> changing{0};

constexpr int64_t kLongestDrainNs = 1'000'000'000;

volatile Ring* ring_at(uint64_t address) { return reinterpret_cast<volatile Ring*>(address); }

AddrRange place_of(const Context& c) {
  const uint64_t address = c.address.load(std::memory_order_relaxed);
  const uint64_t slots = c.slots.load(std::memory_order_relaxed);
  return {Addr{address}, Addr{address + sizeof(Ring) + slots * sizeof(io_event)}};
}

bool is_own(const Context& c) {
  return c.address.load(std::memory_order_relaxed) != 0 &&
         c.process.load(std::memory_order_relaxed) == sys::getpid();
}

Context* find(uint64_t address) {
  for (Context& c : contexts) {
    if (c.address.load(std::memory_order_relaxed) == address) return &c;
  }
  return nullptr;
}

void remember(uint64_t address) {
  const volatile Ring* ring = ring_at(address);
  if (ring->magic != kMagic || ring->incompatible != 0 || ring->header_bytes != sizeof(Ring)) return;
  any.store(true, std::memory_order_relaxed);
  Context* known = find(address);
  for (Context& c : contexts) {
    if (known != nullptr) break;
    uint64_t nobody = 0;
    if (c.address.compare_exchange_strong(nobody, address, std::memory_order_relaxed)) known = &c;
  }
  if (known == nullptr) return;
  known->count.submitted.store(0, std::memory_order_relaxed);
  known->count.inside.store(0, std::memory_order_relaxed);
  known->slots.store(ring->slots, std::memory_order_relaxed);
  known->process.store(sys::getpid(), std::memory_order_relaxed);
}

// Requests that a thread has submitted and not counted, as it stands in submit(). False: it does not stand
// there.
bool stands_in_submit(const ThreadSlot& thread, const Count& count, int64_t& uncounted) {
  const auto& registers = thread.frame->uc_mcontext.gregs;
  const auto at = static_cast<uint64_t>(registers[REG_RIP]);
  auto is_from = [at](const char* from, const char* to) {
    return reinterpret_cast<uint64_t>(from) <= at && at < reinterpret_cast<uint64_t>(to);
  };
  if (!is_from(ckpt_aio_inside, ckpt_aio_outside) ||
      static_cast<uint64_t>(registers[REG_R8]) != reinterpret_cast<uint64_t>(&count))
    return false;
  if (is_from(ckpt_aio_made, ckpt_aio_counted))
    uncounted += std::max<int64_t>(0, static_cast<int64_t>(registers[REG_RAX]));
  return true;
}

// Pages of the ring that the program has not touched are in no page table: the checkpoint would take them for
// zeros.
void touch_pages(AddrRange ring) {
  for (uint64_t at = ring.start.value; at < ring.end.value; at += kPageSize)
    (void)*reinterpret_cast<const volatile char*>(at);
}

bool becomes_idle(const Context& c, int64_t submitted, int64_t deadline_ns) {
  const auto slots = static_cast<int64_t>(c.slots.load(std::memory_order_relaxed));
  const volatile Ring* ring = ring_at(c.address.load(std::memory_order_relaxed));
  for (;;) {
    if (submitted % slots == static_cast<int64_t>(ring->tail)) return true;
    if (now_ns() > deadline_ns) return false;
    constexpr timespec kShort{0, 50'000};
    sys::call(__NR_nanosleep, &kShort, 0L);
  }
}

}  // namespace

long setup(long requests, uint64_t* context) {
  changing.fetch_add(1, std::memory_order_relaxed);
  const long r = sys::call(__NR_io_setup, requests, context);
  if (r == 0) remember(*context);
  changing.fetch_sub(1, std::memory_order_relaxed);
  return r;
}

long destroy(uint64_t context) {
  changing.fetch_add(1, std::memory_order_relaxed);
  Context* known = find(context);
  // Forgotten first: another thread may get a context at the same address at once.
  if (known != nullptr) known->address.store(0, std::memory_order_relaxed);
  const long r = sys::call(__NR_io_destroy, context);
  uint64_t nobody = 0;
  if (r != 0 && known != nullptr)
    known->address.compare_exchange_strong(nobody, context, std::memory_order_relaxed);
  changing.fetch_sub(1, std::memory_order_relaxed);
  return r;
}

long submit(uint64_t context, long count, void* list) {
  Context* known = context != 0 ? find(context) : nullptr;
  if (known == nullptr) return sys::call(__NR_io_submit, context, count, list);
  return ckpt_aio_submit(&known->count, static_cast<long>(context), count, list);
}

Drained drain(const ThreadSlot* stopped) {
  if (!any.load(std::memory_order_relaxed)) return Drained::kIdle;
  if (changing.load(std::memory_order_relaxed) != 0) return Drained::kBetween;
  const int64_t deadline = now_ns() + kLongestDrainNs;
  Drained result = Drained::kIdle;
  for (Context& c : contexts) {
    c.idle = c.saved = false;
    if (!is_own(c)) continue;
    int64_t submitted = c.count.submitted.load(std::memory_order_relaxed);
    int32_t found = 0;
    for (const ThreadSlot* t = stopped; t != nullptr; t = t->next)
      found += stands_in_submit(*t, c.count, submitted) ? 1 : 0;
    if (found != c.count.inside.load(std::memory_order_relaxed)) return Drained::kBetween;
    c.idle = becomes_idle(c, submitted, deadline);
    if (!c.idle) result = Drained::kBusy;
    touch_pages(place_of(c));
  }
  return result;
}

bool note(AddrRange ring) {
  for (Context& c : contexts) {
    if (c.address.load(std::memory_order_relaxed) != ring.start.value) continue;
    if (!is_own(c)) return true;
    c.saved = c.idle && place_of(c).end == ring.end;
    return c.saved;
  }
  return false;
}

CKPT_FORK_PATH void in_child() {
  if (changing.load(std::memory_order_relaxed) != 0) changing.store(0, std::memory_order_relaxed);
}

// --- restart ---

namespace {

// Requests that end at once, in io_submit(2): reads of no bytes.
class Nothing {
 public:
  Nothing() : file_(static_cast<int>(sys::call(__NR_memfd_create, "nothing", long{MFD_CLOEXEC}))) {
    request_.aio_lio_opcode = IOCB_CMD_PREAD;
    request_.aio_fildes = static_cast<uint32_t>(file_.get());
    for (iocb*& one : list_) one = &request_;
  }
  long error() const { return file_.valid() ? 0 : file_.get(); }
  static constexpr uint32_t kMost = 64;
  long submit(uint64_t context, uint32_t count) {
    return sys::call(__NR_io_submit, context, long{count}, list_);
  }

 private:
  const ScopedFd file_;
  iocb request_{};
  iocb* list_[kMost];
};

// Moves the kernel's tail by as many requests. reap: takes their events away, as a program that reads the
// ring does.
long move_tail(uint64_t context, Nothing& nothing, uint32_t requests, bool reap) {
  volatile Ring* ring = ring_at(context);
  while (requests != 0) {
    // With half of the ring free there is room for as many, whatever the kernel keeps for other processors.
    const uint32_t most = reap ? std::max(1u, std::min(Nothing::kMost, ring->slots / 4)) : Nothing::kMost;
    const long made = nothing.submit(context, std::min(most, requests));
    if (made <= 0) return made < 0 ? made : -EAGAIN;
    requests -= static_cast<uint32_t>(made);
    if (reap) ring->head = ring->tail;
  }
  return 0;
}

// The kernel counts free places for each processor: all is done on one.
class ScopedOneProcessor {
 public:
  ScopedOneProcessor() {
    length_ = sys::call(__NR_sched_getaffinity, 0L, sizeof(before_), before_);
    unsigned processor = 0;
    if (length_ <= 0 || sys::call(__NR_getcpu, &processor, 0L, 0L) != 0 || processor >= 8 * sizeof(before_))
      return;
    uint64_t only[kWords] = {};
    only[processor / 64] = 1ull << (processor % 64);
    sys::call(__NR_sched_setaffinity, 0L, sizeof(only), only);
  }
  ~ScopedOneProcessor() {
    if (length_ > 0) sys::call(__NR_sched_setaffinity, 0L, length_, before_);
  }
  ScopedOneProcessor(const ScopedOneProcessor&) = delete;
  ScopedOneProcessor& operator=(const ScopedOneProcessor&) = delete;

 private:
  static constexpr size_t kWords = 128;
  uint64_t before_[kWords] = {};
  long length_ = 0;
};

long make_one_again(const Context& c, Nothing& nothing) {
  const AddrRange place = place_of(c);
  const uint32_t slots = c.slots.load(std::memory_order_relaxed);
  const volatile Ring* old = ring_at(place.start.value);
  const uint32_t head = old->head % slots, tail = old->tail % slots;
  // The kernel doubles what is asked for, and then takes as many as there is room for in its pages.
  uint64_t made = 0;
  long r = sys::call(__NR_io_setup, long{(slots - 2) / 2}, &made);
  if (r != 0) return r;
  volatile Ring* ring = ring_at(made);
  // A machine with more processors has larger rings at least.
  if (ring->slots != slots) r = -EOVERFLOW;
  if (r == 0) r = move_tail(made, nothing, head, true);
  // Places of events that the program has not taken yet are not free, for the kernel either.
  if (r == 0) r = move_tail(made, nothing, (tail + slots - head) % slots, false);
  if (r == 0 && ring->tail != tail) r = -EIO;
  if (r == 0) {
    std::memcpy(reinterpret_cast<void*>(made + sizeof(Ring)),
                reinterpret_cast<const void*>(place.start.value + sizeof(Ring)), slots * sizeof(io_event));
    ring->head = head;
    r = sys::call(__NR_mremap, made, place.size(), place.size(), long{MREMAP_MAYMOVE | MREMAP_FIXED},
                  place.start.value);
    if (static_cast<uint64_t>(r) == place.start.value) return 0;
  }
  sys::call(__NR_io_destroy, made);
  return r;
}

}  // namespace

long make_again() {
  if (!any.load(std::memory_order_relaxed)) return 0;
  const ScopedOneProcessor one_processor;
  Nothing nothing;
  for (Context& c : contexts) {
    if (!is_own(c)) continue;
    // The context went before the stop, past us.
    if (!c.saved) c.address.store(0, std::memory_order_relaxed);
    if (!c.saved) continue;
    long r = nothing.error();
    if (r == 0) r = make_one_again(c, nothing);
    if (r != 0) return r;
  }
  return 0;
}

}  // namespace ckpt::aio_contexts
