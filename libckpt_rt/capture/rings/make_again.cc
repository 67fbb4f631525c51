#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <cstring>

#include "base/sys.h"
#include "image/format/records/process_records.h"
#include "libckpt_rt/capture/rings/known_rings.h"
#include "libckpt_rt/capture/rings/only_hole.h"
#include "libckpt_rt/capture/rings/registered_buffers.h"
#include "libckpt_rt/capture/rings/registered_files.h"
#include "libckpt_rt/capture/rings/rings.h"
#include "libckpt_rt/core/preload_rules.h"

// Rings at restart. Descriptors that can do nothing have the numbers of the rings till then, so that whatever
// else is opened gets the numbers that it had.

namespace ckpt::rings {
namespace {

long enter(int fd, uint32_t submit, uint32_t await, long flags) {
  return sys::call(__NR_io_uring_enter, long{fd}, long{submit}, long{await}, flags, 0L, 0L);
}

// A piece of the ring's memory, mapped while it is filled.
class ScopedMapping {
 public:
  ScopedMapping(int fd, uint64_t size, uint64_t offset)
      : size_(size),
        at_(sys::call(__NR_mmap, 0L, size, long{PROT_READ | PROT_WRITE}, long{MAP_SHARED | MAP_POPULATE},
                      long{fd}, offset)) {}
  ~ScopedMapping() {
    if (!sys::failed(at_)) sys::call(__NR_munmap, at_, size_);
  }
  ScopedMapping(const ScopedMapping&) = delete;
  ScopedMapping& operator=(const ScopedMapping&) = delete;
  long error() const { return sys::failed(at_) ? at_ : 0; }
  uint64_t at() const { return static_cast<uint64_t>(at_); }

 private:
  const uint64_t size_;
  const long at_;
};

// A new ring, whose counters go on from 0 to those of the old one.
class NewRing {
 public:
  NewRing(int fd, const io_uring_params& p)
      : fd_(fd),
        p_(p),
        queue_memory_(fd, Sizes(p).queues, kOffsetQueues),
        request_memory_(fd, Sizes(p).submissions, kOffsetSubmissions),
        queues_(queue_memory_.at(), p) {}
  long error() const { return queue_memory_.error() != 0 ? queue_memory_.error() : request_memory_.error(); }
  const Queues& queues() const { return queues_; }
  uint64_t requests_at() const { return request_memory_.at(); }

  // So many requests of nothing. reap: their completions are taken; else they stay.
  long advance(uint32_t requests, bool with_completion, bool reap) {
    const uint32_t most = std::min(p_.sq_entries, p_.cq_entries);
    while (requests != 0) {
      const uint32_t now = std::min(requests, most);
      for (uint32_t i = 0; i < now; ++i) put(i, with_completion ? 0 : kSkipCompletion);
      if (const long r = submit(now); r != 0) return r;
      requests -= now;
      if (reap) store(queues_.completion_head(), load(queues_.completion_tail()));
    }
    return 0;
  }

  // Completions for which there is no room.
  long hold_back(std::span<const HeldBack> list) {
    for (const HeldBack& h : list) {
      io_uring_sqe& request = put(0, 0);
      request.user_data = h.user_data;
      if (h.result != 0) {
        request.rw_flags = static_cast<__kernel_rwf_t>(kInjectResult);
        request.len = static_cast<uint32_t>(h.result);
      }
      if (const long r = submit(1); r != 0) return r;
    }
    return 0;
  }

  // Tries with one request whether the result of a request of nothing can be chosen: older kernels cannot do
  // that.
  long try_results() {
    constexpr uint32_t kResult = 4711;
    io_uring_sqe& request = put(0, 0);
    request.rw_flags = static_cast<__kernel_rwf_t>(kInjectResult);
    request.len = kResult;
    const uint32_t at = load(queues_.completion_tail()) & (p_.cq_entries - 1);
    if (const long r = submit(1); r != 0) return r;
    if (queues_.completion(at).res != static_cast<int32_t>(kResult)) return -ENOSYS;
    store(queues_.completion_head(), load(queues_.completion_tail()));
    return 0;
  }

 private:
  io_uring_sqe& put(uint32_t i, uint8_t flags) {
    const uint32_t index = (load(queues_.submission_tail()) + i) & (p_.sq_entries - 1);
    const uint64_t at = requests_at() + uint64_t{index} * Sizes(p_).submission;
    std::memset(reinterpret_cast<void*>(at), 0, Sizes(p_).submission);
    auto& request = *reinterpret_cast<io_uring_sqe*>(at);
    request.opcode = IORING_OP_NOP;
    request.flags = flags;
    request.fd = -1;
    if ((p_.flags & kNoSqArray) == 0) queues_.submission_array()[index] = index;
    return request;
  }

  // Returns when the kernel has done them.
  long submit(uint32_t count) {
    const uint32_t target = load(queues_.submission_tail()) + count;
    store(queues_.submission_tail(), target);
    const bool by_thread = (p_.flags & kSqPoll) != 0;
    const long r = enter(fd_, count, 0, by_thread ? kWakeUp : 0);
    if (r != static_cast<long>(count)) return r < 0 ? r : -EAGAIN;
    if (!by_thread) return 0;
    // The kernel's thread posts the completions of what it has taken before it sleeps, or takes more.
    while (load(queues_.submission_head()) != target || enter(fd_, 0, 0, kWakeUp | kGetEvents) < 0) {
      constexpr timespec kShort{0, 20'000};
      sys::call(__NR_nanosleep, &kShort, 0L);
    }
    return 0;
  }

  const int fd_;
  const io_uring_params& p_;
  const ScopedMapping queue_memory_, request_memory_;
  const Queues queues_;
};

long bring_counters(const Ring& ring, NewRing& made) {
  const RingState& s = ring.state;
  const uint32_t waiting = s.completion_tail - s.completion_head;
  // Each completion was of a request; a request without one was dropped, or its completion was.
  const uint32_t silent = s.submission_head - s.completion_tail - s.held_back;
  if (const long r = made.advance(silent, false, false); r != 0) return r;
  uint32_t taken = s.completion_tail - waiting;
  bool some_result = false;
  const auto held = held_back().subspan(s.held_back != 0 ? ring.first_held_back : 0, s.held_back);
  for (const HeldBack& h : held) some_result = some_result || h.result != 0;
  if (some_result && taken != 0) {
    if (const long r = made.try_results(); r != 0) return r;
    --taken;
  }
  if (const long r = made.advance(taken, true, true); r != 0) return r;
  if (const long r = made.advance(waiting, true, false); r != 0) return r;
  return made.hold_back(held);
}

// Copies the memory of the ring, which is still mapped in the program as it was, into that of the new ring.
void copy_contents(const Ring& ring, const NewRing& made) {
  const io_uring_params& p = ring.made;
  const Queues& to = made.queues();
  if (const uint64_t from = ring.requests_at(); from != 0)
    std::memcpy(reinterpret_cast<void*>(made.requests_at()), reinterpret_cast<const void*>(from),
                Sizes(p).submissions);
  if (const uint64_t at = ring.queues_at(); at != 0) {
    const Queues from(at, p);
    std::memcpy(&to.completion(0), &from.completion(0), Sizes(p).completions_end - p.cq_off.cqes);
    if ((p.flags & kNoSqArray) == 0)
      std::memcpy(to.submission_array(), from.submission_array(), uint64_t{p.sq_entries} * sizeof(uint32_t));
    to.dropped() = from.dropped();
    to.overflowed() = from.overflowed();
    to.completion_flags() = from.completion_flags();
  }
  store(to.completion_head(), ring.state.completion_head);
}

long map_again(const Ring& ring) {
  for (uint32_t i = 0; i < ring.places_count; ++i) {
    const Ring::Place& place = ring.places[i];
    const long r = map_instead(place.start, place.size, static_cast<int>(place.protection),
                               ring.numbers[0].fd, place.offset);
    if (r != 0) return r;
    if ((place.flags & kMapDontFork) != 0)
      sys::call(__NR_madvise, place.start, place.size, long{MADV_DONTFORK});
  }
  return 0;
}

long tell_eventfd(Ring& ring, int fd) {
  const int eventfd = ring.eventfd.load(kRelaxed);
  if (eventfd < 0) return 0;
  ring.eventfd_id.store(eventfd_id(eventfd), kRelaxed);
  const Operation how = ring.eventfd_async.load(kRelaxed) ? Operation::kEventFdAsync : Operation::kEventFd;
  return sys::call(__NR_io_uring_register, long{fd}, static_cast<long>(how), &eventfd, 1L);
}

// The epoll watched what stood at the ring's number.
long watch_again(const Ring& ring) {
  for (uint32_t i = 0; i < ring.watches_count; ++i) {
    const Ring::Watch& w = ring.watches[i];
    epoll_event event{};
    event.events = w.events;
    event.data.u64 = w.data;
    const long r = sys::call(__NR_epoll_ctl, long{w.epoll}, long{EPOLL_CTL_ADD}, long{w.fd}, &event);
    if (r != 0 && r != -EEXIST) return r;
  }
  return 0;
}

long fill(Ring& ring, int fd, const io_uring_params& p) {
  NewRing made(fd, p);
  long r = made.error();
  if (r == 0 && (p.flags & kDisabled) == 0) r = bring_counters(ring, made);
  if (r != 0) return r;
  const Queues& queues = made.queues();
  if (load(queues.submission_head()) != ring.state.submission_head ||
      load(queues.completion_tail()) != ring.state.completion_tail)
    return -EIO;
  copy_contents(ring, made);
  if (r = tell_eventfd(ring, fd); r != 0) return r;
  if (r = register_files(ring.inode.load(kRelaxed), fd, ring.state.files); r != 0) return r;
  if (r = register_buffers(ring.inode.load(kRelaxed), fd, ring.state.buffers); r != 0) return r;
  // The last: a thread of the kernel's takes at once what the program has put there.
  store(queues.submission_tail(), ring.state.submission_tail);
  return 0;
}

long setup_as(const Ring& ring, io_uring_params& p) {
  p = {};
  p.flags = (ring.made.flags & ~uint32_t{kAttach | kClamp}) | kCqSize;
  p.cq_entries = ring.made.cq_entries;
  p.sq_thread_cpu = ring.made.sq_thread_cpu;
  p.sq_thread_idle = ring.made.sq_thread_idle;
  return sys::call(__NR_io_uring_setup, long{ring.made.sq_entries}, &p);
}

long make_one_again(Ring& ring) {
  io_uring_params p{};
  long made = setup_as(ring, p);
  // The descriptor table is full: the number of what stands for the ring is to be had.
  if (made == -EMFILE && sys::call(__NR_close, long{ring.numbers[0].fd}) == 0) made = setup_as(ring, p);
  if (sys::failed(made)) return made;
  const int fd = static_cast<int>(made);
  long r = 0;
  // The program knows where in its memory each word is.
  if (p.sq_entries != ring.made.sq_entries || p.cq_entries != ring.made.cq_entries ||
      std::memcmp(&p.sq_off, &ring.made.sq_off, offsetof(io_sqring_offsets, resv1)) != 0 ||
      std::memcmp(&p.cq_off, &ring.made.cq_off, offsetof(io_cqring_offsets, resv1)) != 0)
    r = -EXDEV;
  for (uint32_t i = 0; r == 0 && i < ring.numbers_count; ++i) {
    const Ring::Number& n = ring.numbers[i];
    if (n.fd == fd)
      r = sys::call(__NR_fcntl, long{fd}, long{F_SETFD}, long{n.close_on_exec ? FD_CLOEXEC : 0});
    else if (const long d = sys::call(__NR_dup3, long{fd}, long{n.fd}, long{n.close_on_exec ? O_CLOEXEC : 0});
             d < 0)
      r = d;
  }
  if (r == 0) r = fill(ring, fd, p);
  if (r == 0) r = watch_again(ring);
  if (r == 0) ring.new_inode = inode_of(fd);
  const std::span numbers(ring.numbers, ring.numbers_count);
  if (std::none_of(numbers.begin(), numbers.end(), [&](const Ring::Number& n) { return n.fd == fd; }))
    sys::call(__NR_close, long{fd});
  return r;
}

bool is_made_by(const Ring& ring, int tid, bool is_leader) {
  const bool by_one = (ring.made.flags & kSingleIssuer) != 0 && (ring.made.flags & kDisabled) == 0;
  return by_one ? ring.issuer.load(kRelaxed) == tid : is_leader;
}

}  // namespace

bool has_saved() {
  return std::any_of(all().begin(), all().end(), [](const Ring& r) { return r.saved; });
}

long make_again(int tid, bool is_leader) {
  for (Ring& ring : all()) {
    if (!ring.saved || !is_made_by(ring, tid, is_leader)) continue;
    if (const long r = make_one_again(ring); r != 0) return r;
  }
  return 0;
}

long map_all() {
  const ScopedFullSpace full;
  if (full.error() != 0) return full.error();
  for (const Ring& ring : all()) {
    if (!ring.saved) continue;
    if (const long r = map_again(ring); r != 0) return r;
  }
  return 0;
}

void all_are_made() {
  for (RegisteredRing& r : registered_rings()) {
    const Ring* ring = find(r.inode.load(kRelaxed));
    const bool saved = ring != nullptr && ring->saved;
    if (r.thread.load(kRelaxed) == 0) continue;
    if (saved) r.inode.store(ring->new_inode, kRelaxed);
    if (!saved) r.thread.store(0, kRelaxed);
  }
  constexpr auto kNewInode = [](uint64_t inode) -> uint64_t {
    const Ring* ring = find(inode);
    return ring != nullptr && ring->saved ? ring->new_inode : 0;
  };
  rename_rings_of_files(kNewInode);
  rename_rings_of_buffers(kNewInode);
  for (Ring& ring : all()) {
    // A ring that was closed before the stop is forgotten: the numbers of inodes mean nothing here.
    const uint64_t inode = ring.saved ? ring.new_inode : 0;
    if (ring.inode.load(kRelaxed) != inode) ring.inode.store(inode, kRelaxed);
  }
}

long register_again(int tid) {
  for (RegisteredRing& r : registered_rings()) {
    if (r.thread.load(kRelaxed) != tid) continue;
    const Ring* ring = find(r.inode.load(kRelaxed));
    if (ring == nullptr) continue;
    io_uring_rsrc_update number{};
    number.offset = r.number.load(kRelaxed);
    number.data = static_cast<uint64_t>(ring->numbers[0].fd);
    const long done =
        sys::call(__NR_io_uring_register, number.data, static_cast<long>(Operation::kRingFds), &number, 1L);
    if (done != 1) return done < 0 ? done : -EAGAIN;
  }
  return 0;
}

}  // namespace ckpt::rings
