// Addresses of the job, not of the machine. After a restart on other hosts the program still knows the
// addresses that its hosts had when it began, in its memory and in that of its peers. Calls that name an
// address go to where that host is now; what the kernel answers is called as the program knows it.
//
// Owner:     libckpt_rt/interpose: one table in the library's data.
// Callers:   to_machine(), to_job(): threads of the program, in interposed calls; read: the constructor and
//            the leader of a restart, while one thread runs; set: going back, while all stand.
// Never:     costs more than the look at one number while the job is where it began.
// Table:     the file .hosts-addresses in the job's image directory of this host, which the agent writes:
//            lines of base/sockets/job_addresses.h, the first line this host's own.
#pragma once

#include <sys/socket.h>

#include <atomic>
#include <cstdint>

#include "base/sockets/job_addresses.h"
#include "libckpt_rt/interpose/program_memory.h"

namespace ckpt::addresses {

// How many pairs there are: 0 nearly always. relaxed reads: written while one thread runs.
extern std::atomic<uint32_t> count;

// The job is one of several hosts: there may be a table after a restart.
extern bool over_hosts;

inline constexpr uint32_t kMostLines = 4096;  // lines of a table

// Reads the table of this host anew. Not zero: it is there and cannot be read, or is no such table (-errno).
// None, or a directory that this user may not enter: the addresses are taken as they are.
long read(const char* directory);
// The table as somebody else has read it: kMostLines lines at most.
void set(std::span<const AddressLine> table);

// Several parts of the job are on this host: a port that the kernel chooses for this socket is to be one of
// this part's, and no other's. So the port tells which part is at the other end. Made before a call that may
// give the socket an address; the call is made again as often as again() says.
class PortChoice {
 public:
  // may_choose: the call may give the socket a port that it does not name.
  explicit PortChoice(int fd, bool may_choose = true) : fd_(fd) {
    if (__builtin_expect(count.load(std::memory_order_relaxed) != 0, 0) && may_choose) choose();
  }
  // After the call: the kernel had no port there, and there are others.
  bool again(long result) {
    return __builtin_expect(ports_left_ != 0, 0) && result < 0 && choose_next(result);
  }

 private:
  void choose();
  bool choose_next(long result);
  void set();
  const int fd_;
  PortRange range_{};
  uint32_t ports_left_ = 0;  // of the slice, not tried yet; 0: the kernel chooses as ever
};

// The address where it is now, in `copy` if that is another. Not an address of the job: `name` itself.
const void* to_machine_in_table(const void* name, uint32_t length, sockaddr_storage& copy);
inline const void* to_machine(const void* name, uint32_t length, sockaddr_storage& copy) {
  if (__builtin_expect(count.load(std::memory_order_relaxed) == 0, 1) || name == nullptr) return name;
  return to_machine_in_table(name, length, copy);
}

// An Internet address of port 0. Without a table: false.
bool leaves_port_open_in_table(const void* name, uint32_t length);
inline bool leaves_port_open(const void* name, uint32_t length) {
  return __builtin_expect(count.load(std::memory_order_relaxed) != 0, 0) && name != nullptr &&
         leaves_port_open_in_table(name, length);
}

// Turns what the kernel has put there, `room` bytes at most, into what the program knows.
void to_job_in_table(void* name, uint32_t room, bool own);
inline void to_job(void* name, uint32_t room, bool own = false) {
  if (__builtin_expect(count.load(std::memory_order_relaxed) == 0, 1) || name == nullptr) return;
  to_job_in_table(name, room, own);
}

// The bytes that the kernel may fill. A call may wait while the job comes back elsewhere: the table does not
// count here. 0: not one of several hosts.
inline socklen_t room(const void* name, const socklen_t* length) {
  return over_hosts && name != nullptr && program_memory::may_read(length, sizeof(*length)) ? *length : 0;
}

}  // namespace ckpt::addresses
