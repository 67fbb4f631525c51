#include <errno.h>
#include <fmt/core.h>
#include <time.h>

#include <algorithm>

#include "base/clock.h"
#include "base/sys.h"
#include "image/format/records/process_records.h"
#include "libckpt_rt/capture/memory/memory_map.h"
#include "libckpt_rt/capture/rings/registered_buffers.h"
#include "libckpt_rt/capture/rings/registered_files.h"
#include "libckpt_rt/capture/rings/ring_info.h"
#include "libckpt_rt/capture/rings/rings.h"
#include "libckpt_rt/core/preload_rules.h"

// What is under way in the rings, and what forbids a restart.

namespace ckpt::rings {
namespace {

constexpr int64_t kLongestDrainNs = 1'000'000'000;

// Of held_back(), by rings that are looked at one after the other.
constinit uint32_t held_back_used = 0;

bool look_again(Ring& ring, int tid) {
  auto room = held_back().subspan(std::min<size_t>(ring.first_held_back, held_back().size()));
  ring.state = read_ring_info(tid, ring.fd.load(kRelaxed), room);
  return ring.state.told && ring.state.inode == ring.inode.load(kRelaxed);
}

// Requests that the kernel has taken and that have no completion yet. queues: 0 where the program has not
// mapped them.
int32_t under_way(const Ring& ring, uint64_t queues) {
  const RingState& s = ring.state;
  uint32_t ended = s.completion_tail + s.held_back;
  if (queues != 0) {
    const Queues q(queues, ring.made);
    ended += load(q.dropped()) + load(q.overflowed());
  }
  return static_cast<int32_t>(s.submission_head - ended);
}

// The thread that takes requests from memory sleeps, or has taken all.
bool is_at_rest(const Ring& ring, uint64_t queues) {
  if ((ring.made.flags & kSqPoll) == 0 || ring.state.submission_head == ring.state.submission_tail)
    return true;
  return queues != 0 && (load(Queues(queues, ring.made).submission_flags()) & kNeedsWakeUp) != 0;
}

bool is_idle(const Ring& ring, uint64_t queues) {
  return ring.state.polls == 0 && under_way(ring, queues) == 0 && is_at_rest(ring, queues);
}

// Completions of such a ring are posted by its thread alone, in a system call.
struct PostCompletions {
  int fd;
  static void run(void* self) {
    sys::call(__NR_io_uring_enter, long{static_cast<PostCompletions*>(self)->fd}, 0L, 0L, kGetEvents, 0L, 0L);
  }
};

void let_post(const Ring& ring, ThreadSlot* stopped, RunOn run_on) {
  if ((ring.made.flags & kDeferTaskRun) == 0) return;
  for (ThreadSlot* t = stopped; t != nullptr; t = t->next) {
    if (t->tid != ring.issuer.load(kRelaxed)) continue;
    PostCompletions order{ring.fd.load(kRelaxed)};
    return run_on(*t, &PostCompletions::run, &order);
  }
}

uint64_t mapped_at(const Ring& ring, std::span<const Mapping> known) {
  const uint64_t inode = ring.inode.load(kRelaxed), size = Sizes(ring.made).queues;
  for (const Mapping& m : known) {
    if (m.inode != inode || !std::string_view(m.path, m.path_len).starts_with(kPath)) continue;
    if (m.file_offset < kOffsetSubmissions && m.range.size() >= size) return m.range.start.value;
  }
  return 0;
}

bool becomes_idle(Ring& ring, ThreadSlot* stopped, uint64_t queues, RunOn run_on, int64_t deadline_ns) {
  for (;;) {
    if (look_again(ring, stopped->tid)) {
      if (is_idle(ring, queues)) return true;
      let_post(ring, stopped, run_on);
    } else if (ring.state.inode != ring.inode.load(kRelaxed)) {
      return true;  // closed, or under another number: note_number() finds it
    }
    if (now_ns() > deadline_ns) return false;
    constexpr timespec kShort{0, 50'000};
    sys::call(__NR_nanosleep, &kShort, 0L);
  }
}

// Requests whose completions are more or fewer than one, in what the queues still have in them: what ended
// was not counted right.
bool counts_wrong(const Ring& ring) {
  const Sizes sizes(ring.made);
  if (const uint64_t at = ring.queues_at(); at != 0) {
    const Queues q(at, ring.made);
    for (uint32_t i = 0; i < ring.made.cq_entries; ++i) {
      if ((q.completion(i).flags & (kMore | kNotification)) != 0) return true;
    }
  }
  return false;
}

// Buffers that the kernel keeps for later requests, given by a request.
bool has_given_buffers(const Ring& ring) {
  const uint64_t at = ring.requests_at();
  for (uint32_t i = 0; at != 0 && i < ring.made.sq_entries; ++i) {
    const auto& request =
        *reinterpret_cast<const io_uring_sqe*>(at + uint64_t{i} * Sizes(ring.made).submission);
    if (request.opcode == IORING_OP_PROVIDE_BUFFERS) return true;
  }
  return false;
}

template <typename... Args>
std::string_view say(std::span<char> text, fmt::format_string<Args...> format, Args&&... args) {
  const auto end = fmt::format_to_n(text.data(), text.size(), format, std::forward<Args>(args)...);
  return {text.data(), std::min<size_t>(end.size, text.size())};
}

bool has_issuer(const Ring& ring, const ThreadSlot* stopped) {
  if ((ring.made.flags & kSingleIssuer) == 0 || (ring.made.flags & kDisabled) != 0) return true;
  for (; stopped != nullptr; stopped = stopped->next) {
    if (stopped->tid == ring.issuer.load(kRelaxed)) return true;
  }
  return false;
}

}  // namespace

Drained drain(ThreadSlot* stopped, std::span<const Mapping> known, RunOn run_on) {
  held_back_used = 0;
  if (!any_known() || stopped == nullptr) return Drained::kIdle;
  begin_files();
  begin_buffers();
  if (is_changing()) return Drained::kBetween;
  const int64_t deadline = now_ns() + kLongestDrainNs;
  Drained result = Drained::kIdle;
  for (Ring& ring : all()) {
    if (ring.inode.load(kRelaxed) <= kTaken || !ring.is_own()) continue;
    ring.first_held_back = held_back_used;
    if (!becomes_idle(ring, stopped, mapped_at(ring, known), run_on, deadline)) result = Drained::kBusy;
    held_back_used += ring.state.held_back;
  }
  return result;
}

void begin() {
  if (!any_known()) return;
  for (Ring& ring : all()) {
    if (ring.inode.load(kRelaxed) == 0) continue;
    ring.saved = ring.eventfd_is_there = ring.too_many = ring.has_moved_watch = false;
    ring.numbers_count = ring.places_count = ring.watches_count = 0;
  }
}

void note_number(uint64_t inode, int fd, bool close_on_exec) {
  Ring* ring = find(inode);
  if (ring == nullptr) return;
  if (ring->numbers_count == std::size(ring->numbers)) ring->too_many = true;
  if (!ring->too_many) ring->numbers[ring->numbers_count++] = {fd, close_on_exec};
}

void note_eventfd(int fd, int64_t id) {
  for (Ring& ring : all()) {
    if (ring.eventfd.load(kRelaxed) == fd && ring.eventfd_id.load(kRelaxed) == id)
      ring.eventfd_is_there = true;
  }
}

void note_watch(int epoll, int fd, uint32_t events, uint64_t data) {
  for (Ring& ring : all()) {
    for (uint32_t i = 0; i < ring.numbers_count; ++i) {
      if (ring.numbers[i].fd != fd) continue;
      if (ring.watches_count == std::size(ring.watches)) ring.too_many = true;
      if (!ring.too_many) ring.watches[ring.watches_count++] = {epoll, fd, events, data};
      return;
    }
  }
}

void note_moved_watch(int fd) {
  for (Ring& ring : all()) {
    for (uint32_t i = 0; i < ring.numbers_count; ++i)
      ring.has_moved_watch = ring.has_moved_watch || ring.numbers[i].fd == fd;
  }
}

void note_place(const Mapping& m) {
  Ring* ring = find(m.inode);
  if (ring == nullptr) return;
  if (ring->places_count == std::size(ring->places)) ring->too_many = true;
  if (ring->too_many) return;
  ring->places[ring->places_count++] = {m.range.start.value, m.range.size(), m.file_offset,
                                        static_cast<uint32_t>(m.prot), m.map_flags};
}

std::string_view refusal(uint64_t inode, const ThreadSlot* stopped, std::span<char> text) {
  Ring* ring = find(inode);
  if (ring == nullptr)
    return say(
        text,
        "it was made past libc and liburing, and the kernel does not tell how: run the program without "
        "io_uring");
  if (!ring->is_own()) return say(text, "it is its parent's: one that two processes have is not made again");
  if ((ring->made.flags & kNoMmap) != 0)
    return say(text, "its queues are in memory of the program's own (IORING_SETUP_NO_MMAP)");
  if (const uint32_t others = ring->made.flags & ~uint32_t{kKnown}; others != 0)
    return say(text, "it was made with flags that are not known ({:#x})", others);
  if (const uint32_t operation = ring->unknown.load(kRelaxed); operation != 0)
    return say(text, "the program has told it what is not remembered (operation {} of io_uring_register)",
               operation - 1);
  if (ring->provided.load(kRelaxed) > 0 || has_given_buffers(*ring))
    return say(text, "the program has given it buffers to choose from");
  if (ring->too_many) return say(text, "too many descriptors, mappings or epolls have it");
  if (ring->has_moved_watch)
    return say(text, "an epoll watches it under a number that is not the ring's any more");
  if (ring->numbers_count == 0) return say(text, "its descriptor is closed");
  if (!has_issuer(*ring, stopped)) return say(text, "the thread that alone may use it has ended");
  // Under another number than when it was made.
  if (ring->state.inode != inode) ring->fd.store(ring->numbers[0].fd, kRelaxed);
  if (stopped == nullptr || !look_again(*ring, stopped->tid))
    return say(text, "the kernel does not tell its state");
  if (ring->state.unknown_files != 0)
    return say(text, "{} of the files that are registered with it are not known, or not open elsewhere",
               ring->state.unknown_files);
  if (ring->state.unknown_buffers != 0)
    return say(text, "more than 512 buffers, or 16 MiB of them, are registered with rings");
  if (ring->state.personalities != 0) return say(text, "personalities are registered with it");
  if (ring->eventfd.load(kRelaxed) >= 0 && !ring->eventfd_is_there)
    return say(text, "the eventfd that it tells is not among the program's descriptors any more");
  const uint64_t queues = ring->queues_at();
  if (queues == 0 && ring->state.submission_head != 0) return say(text, "its queues are not mapped");
  const int32_t requests = under_way(*ring, queues);
  if (ring->state.polls != 0 || requests > 0)
    return say(text, "{} of its requests are under way, and have not ended within a second",
               std::max(requests, static_cast<int32_t>(ring->state.polls)));
  if (requests < 0 || counts_wrong(*ring))
    return say(text,
               "it has had requests with more than one completion: how many are under way cannot be told");
  if (!is_at_rest(*ring, queues)) return say(text, "the kernel's thread takes requests from it");
  if (ring->first_held_back + ring->state.held_back > held_back().size() || ring->state.held_back_with_flags)
    return say(text, "{} of its completions have found no room in its queue", ring->state.held_back);
  ring->saved = true;
  return {};
}

uint64_t Ring::queues_at() const {
  for (uint32_t i = 0; i < places_count; ++i) {
    if (places[i].offset < kOffsetSubmissions && places[i].size >= Sizes(made).queues) return places[i].start;
  }
  return 0;
}

uint64_t Ring::requests_at() const {
  for (uint32_t i = 0; i < places_count; ++i) {
    if (places[i].offset == kOffsetSubmissions && places[i].size >= Sizes(made).submissions)
      return places[i].start;
  }
  return 0;
}

}  // namespace ckpt::rings
