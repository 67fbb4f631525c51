#include "libckpt_rt/capture/sockets/noted/group_filters.h"

#include <sys/socket.h>

#include <atomic>
#include <cstring>

#include "base/clock.h"
#include "base/memory/large_table.h"
#include "base/sys.h"
#include "image/format/records/descriptor_records.h"
#include "libckpt_rt/capture/sockets/noted/by_cookie.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::group_filters {

namespace {

constexpr int kDetach = 68;  // SO_DETACH_REUSEPORT_BPF, asm-generic/socket.h of 5.3
// A program is named by one word: where its code begins, and how many instructions it has. None has neither.
constexpr uint64_t kNone = 0, kUnknown = ~0ull;

struct Place {
  std::atomic<uint64_t> cookie;   // 0: free; taken for good
  std::atomic<uint64_t> program;  // kNone, kUnknown, or as word_of() has it
  std::atomic<int64_t> set_ns;    // CLOCK_MONOTONIC: of a group the last one counts
  int fd;                         // at the last checkpoint
};
CKPT_LARGE_TABLE constinit Place places[kMost]{}, old[kMost]{};  // old: of find_again()
CKPT_LARGE_TABLE constinit sock_filter code[kMostCode / sizeof(sock_filter)]{};
constinit std::atomic<uint32_t> code_end{0};
constinit std::atomic<bool> any{false}, full{false};

constexpr uint64_t word_of(uint32_t at, uint32_t count) { return uint64_t{at} << 32 | count; }
constexpr uint32_t start_of(uint64_t program) { return static_cast<uint32_t>(program >> 32); }
constexpr uint32_t count_of(uint64_t program) { return static_cast<uint32_t>(program); }

Place* find(uint64_t cookie, bool take) { return find_by_cookie(places, cookie, take); }

// Workers of one program all set the same: it is kept once.
uint64_t known(std::span<const sock_filter> given) {
  for (const Place& place : places) {
    const uint64_t p = place.program.load(std::memory_order_acquire);
    if (p != kNone && p != kUnknown && count_of(p) == given.size() &&
        std::memcmp(code + start_of(p), given.data(), given.size_bytes()) == 0)
      return p;
  }
  return kNone;
}

uint64_t store_filter(std::span<const sock_filter> given) {
  if (given.empty()) return kNone;
  if (const uint64_t p = known(given); p != kNone) return p;
  const auto count = static_cast<uint32_t>(given.size());
  // relaxed: room is nobody else's once it is taken.
  uint32_t at = code_end.load(std::memory_order_relaxed);
  do {
    if (given.size() > kMostCode / sizeof(sock_filter) - at) return kUnknown;
  } while (!code_end.compare_exchange_weak(at, at + count, std::memory_order_relaxed));
  std::memcpy(code + at, given.data(), given.size_bytes());
  return word_of(at, count);
}

}  // namespace

bool is_of_group(int level, int option, Change& change) {
  change = option == SO_ATTACH_REUSEPORT_CBPF   ? Change::kSet
           : option == SO_ATTACH_REUSEPORT_EBPF ? Change::kSetUnknown
                                                : Change::kTake;
  return level == SOL_SOCKET && (change != Change::kTake || option == kDetach);
}

Note before(int fd, Change change, std::span<const sock_filter> given) {
  const uint64_t cookie = cookie_of_socket(fd);
  if (cookie == 0) return {};
  any.store(true, std::memory_order_relaxed);
  Place* place = find(cookie, true);
  if (place == nullptr) {
    full.store(true, std::memory_order_relaxed);
    return {};
  }
  const uint64_t program = change == Change::kTake         ? kNone
                           : change == Change::kSetUnknown ? kUnknown
                                                           : store_filter(given);
  const int64_t was_set_ns = place->set_ns.exchange(now_ns(), std::memory_order_relaxed);
  // release: who sees the word sees the code.
  const uint64_t was = place->program.exchange(program, std::memory_order_acq_rel);
  return {static_cast<uint32_t>(place - places) + 1, was, was_set_ns};
}

void after(const Note& note, bool succeeded) {
  if (note.place == 0 || succeeded) return;
  Place& place = places[note.place - 1];
  place.set_ns.store(note.before_ns, std::memory_order_relaxed);
  place.program.store(note.before, std::memory_order_release);
}

void begin() {
  if (!any.load(std::memory_order_relaxed)) return;
  for (Place& place : places) place.fd = -1;
}

Put put(ByteWriter& out, int socket, int fd) {
  if (!any.load(std::memory_order_relaxed)) return Put::kNothing;
  const uint64_t cookie = cookie_of_socket(socket);
  Place* place = cookie != 0 ? find(cookie, false) : nullptr;
  if (place == nullptr) return full.load(std::memory_order_relaxed) ? Put::kUnknown : Put::kNothing;
  place->fd = fd;
  const uint64_t program = place->program.load(std::memory_order_acquire);
  const int64_t set_ns = place->set_ns.load(std::memory_order_relaxed);
  if (program == kNone && set_ns == 0) return Put::kNothing;
  const bool has_code = program != kNone && program != kUnknown;
  const size_t code_bytes = has_code ? count_of(program) * sizeof(sock_filter) : 0;
  const auto bytes = static_cast<uint32_t>(sizeof(set_ns) + code_bytes);
  out.put(DetailHeader{static_cast<uint32_t>(OpenFileDetail::kLongSocketOption),
                       static_cast<uint32_t>(sizeof(LongSocketOptionDetail)) + bytes});
  out.put(LongSocketOptionDetail{SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, bytes, 0});
  out.put(set_ns);
  if (has_code) out.raw(code + start_of(program), code_bytes);
  return program == kUnknown ? Put::kUnknown : program == kNone ? Put::kNothing : Put::kProgram;
}

// Each socket has another cookie now. Sockets that were not among the descriptors are gone.
void find_again(int64_t shift_ns) {
  if (!any.load(std::memory_order_relaxed)) return;
  for (uint32_t i = 0; i < kMost; ++i) {
    for (auto member : {&Place::cookie, &Place::program})
      (old[i].*member)
          .store((places[i].*member).exchange(0, std::memory_order_relaxed), std::memory_order_relaxed);
    old[i].set_ns.store(places[i].set_ns.load(std::memory_order_relaxed), std::memory_order_relaxed);
    old[i].fd = places[i].fd;
  }
  for (const Place& place : old) {
    const uint64_t program = place.program.load(std::memory_order_relaxed);
    const int64_t set_ns = place.set_ns.load(std::memory_order_relaxed);
    const uint64_t cookie = set_ns != 0 && place.fd >= 0 ? cookie_of_socket(place.fd) : 0;
    Place* now = cookie != 0 ? find(cookie, true) : nullptr;
    if (now == nullptr) continue;
    now->program.store(program, std::memory_order_relaxed);
    now->set_ns.store(set_ns + shift_ns, std::memory_order_relaxed);
  }
}

}  // namespace ckpt::group_filters
