// The rings that the library has seen being made, and what it remembers of each.
//
// Owner:     rings; in the library's data. Callers: the room. "made" and what is registered: written by
//            threads of the program inside a Change; the rest is the agent's, threads standing.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "base/units.h"
#include "libckpt_rt/capture/rings/kernel_ring.h"

namespace ckpt::rings {

// Of all that is remembered: the agent does not look as long as there is a Change.
inline constexpr auto kRelaxed = std::memory_order_relaxed;

// What fdinfo says.
struct RingState {
  bool told = false;  // the kernel says nothing while some thread is in the ring
  uint64_t inode = 0;
  uint32_t submission_head = 0, submission_tail = 0, completion_head = 0, completion_tail = 0;
  uint32_t files = 0,
           unknown_files = 0;  // places for registered files; those in which is none that was noted
  uint32_t buffers = 0, unknown_buffers = 0;  // likewise
  uint32_t personalities = 0;
  uint32_t polls = 0;
  uint32_t held_back = 0;  // completions for which there was no room
  bool held_back_with_flags = false;
};

struct Ring {
  std::atomic<uint64_t> inode;  // 0: free; kTaken: being filled
  std::atomic<int> process;     // which made it: a forked child has the descriptor, too
  std::atomic<int> fd;          // the number that the kernel gave
  std::atomic<int> issuer;      // of kSingleIssuer: the thread
  io_uring_params made;
  std::atomic<int> eventfd;  // registered; -1: none
  std::atomic<bool> eventfd_async;
  std::atomic<int64_t> eventfd_id;
  std::atomic<int32_t> provided;  // rings of buffers
  std::atomic<uint32_t> unknown;  // the first operation of io_uring_register(2) that is not remembered, and 1

  // As of the stop.
  struct Number {
    int fd;
    bool close_on_exec;
  };
  struct Place {
    uint64_t start, size, offset;
    uint32_t protection, flags;  // PROT_*, MappingFlag
  };
  struct Watch {
    int epoll, fd;
    uint32_t events;
    uint64_t data;
  };
  RingState state;
  uint64_t new_inode;  // at restart
  bool saved, eventfd_is_there, too_many, has_moved_watch;
  uint32_t first_held_back;  // in held_back
  uint32_t numbers_count, places_count, watches_count;
  Number numbers[8];
  Place places[8];
  Watch watches[8];

  bool is_own() const;
  // Where the program has mapped both queues, or the requests, whole; 0: nowhere.
  uint64_t queues_at() const;
  uint64_t requests_at() const;
};

inline constexpr uint64_t kTaken = 1;
std::span<Ring> all();
// None: nullptr.
Ring* find(uint64_t inode);
bool any_known();
// 0: no descriptor.
uint64_t inode_of(int fd);
// The kernel's number of an eventfd, unlike that of any other. -1: it does not tell.
int64_t eventfd_id(int fd);
// A thread is between a call and what is remembered of it.
bool is_changing();

// Rings that a thread has given a number of its own (IORING_REGISTER_RING_FDS).
struct RegisteredRing {
  std::atomic<int> thread;  // 0: free
  std::atomic<uint32_t> number;
  std::atomic<uint64_t> inode;
};
std::span<RegisteredRing> registered_rings();

// Completions that the kernel holds back: the agent's.
struct HeldBack {
  uint64_t user_data;
  int32_t result;
};
std::span<HeldBack> held_back();

}  // namespace ckpt::rings
