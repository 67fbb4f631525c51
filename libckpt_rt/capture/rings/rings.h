// Rings of io_uring(7). A ring is a descriptor, and memory of the kernel that the program maps: two queues,
// and the requests. The kernel does not tell with which flags a ring was made, so io_uring_setup is seen
// (libc's syscall(2), liburing's functions). It tells the rest in fdinfo: how far both queues are, and what
// it holds back.
//
//   under way = requests taken - completions posted, held back, or lost
//
// program   setup, registration: what fdinfo does not tell is remembered, by the ring's inode, which no other ring has
// stop      drain: threads stand, so nothing is submitted; what is under way ends, or a second passes
// verdict   begin, note_number, note_place, refusal: which descriptors and mappings are of which ring, and what forbids a restart
// restart   make_again, register_again: requests of nothing (NOP) bring a new ring's counters to where those of the old one were, for
//           the program counts on from there; then the queues' contents are copied and the ring is mapped at the old places
//           (map_all)
//
// Owner:     libckpt_rt; in the library's data, so that an image has it.
// Callers:   setup, registration, Change, made, registered: threads of the program. drain to refusal: the
//            agent, threads standing. make_again, register_again: all threads at restart. in_child: a forked
//            child.
// Never:     allocates, locks, touches errno.
// Source:    io_uring_setup(2), io_uring/fdinfo.c, io_uring/io_uring.c.
#pragma once

#include <span>
#include <string_view>

#include "libckpt_rt/core/threads/thread_context.h"

namespace ckpt {
struct Mapping;
}

namespace ckpt::rings {

// What /proc/PID/maps and /proc/PID/fd call a ring.
inline constexpr std::string_view kPath = "anon_inode:[io_uring]";

// System calls, with their results.
long setup(long entries, void* parameters);
long registration(long fd, long operation, void* argument, long count);

// For functions of liburing, which make these system calls themselves: around the call.
class Change {
 public:
  Change();
  ~Change();
  Change(const Change&) = delete;
  Change& operator=(const Change&) = delete;
};
// The call has made this ring, or has registered this. parameters: io_uring_params, as the kernel has filled
// them.
void made(int fd, const void* parameters);
// count: the last argument of io_uring_register(2).
void registered(int fd, uint32_t operation, const void* argument, uint32_t count, uint32_t result);

enum class Drained {
  kIdle,     // nothing is under way in any ring that is known
  kBusy,     // something is: refusal() says so
  kBetween,  // a thread is where nobody can tell what it has made: stop again
};
// run_on: the stopped thread calls work(argument).
using RunOn = void (*)(ThreadSlot& thread, void (*work)(void*), void* argument);
Drained drain(ThreadSlot* stopped, std::span<const Mapping> known, RunOn run_on);

// A ring was made that no descriptor leads to (IORING_SETUP_REGISTERED_FD_ONLY).
bool has_one_without_descriptor();

void begin();
void note_number(uint64_t inode, int fd, bool close_on_exec);
// A descriptor that is an eventfd, and the number that only this one has.
void note_eventfd(int fd, int64_t id);
// An epoll watches a descriptor.
void note_watch(int epoll, int fd, uint32_t events, uint64_t data);
// An epoll watches the open file of `fd` under a number that another file has now.
void note_moved_watch(int fd);
void note_place(const Mapping& m);
// When all has been noted: what forbids a restart, as a clause; "": nothing. The text is the caller's.
std::string_view refusal(uint64_t inode, const ThreadSlot* stopped, std::span<char> text);

// At restart, by each thread. is_leader: it makes the rings that any thread may use. The first error, or 0.
bool has_saved();
long make_again(int tid, bool is_leader);
// The leader, when all rings are there and the other threads wait. Then each thread again: the numbers that
// this thread has given to rings. The first error, or 0.
long map_all();
void all_are_made();
long register_again(int tid);

void in_child();

}  // namespace ckpt::rings
