// sendmmsg(2) and recvmmsg(2) in a job over several hosts: the names in them are the job's.
//
// Owner:     libckpt_rt/interpose. Callers: threads of the program, in interposed calls (calls.h).
// Never:     costs more than the look at one number while the job is where it began.
#pragma once

#include <sys/socket.h>

#include "libckpt_rt/interpose/addresses/addresses.h"

namespace ckpt::addresses {

// Some message names where it is to go, and that may be elsewhere now.
bool names_any_in_table(const mmsghdr* m, unsigned n);
inline bool names_any(const mmsghdr* m, unsigned n) {
  return __builtin_expect(count.load(std::memory_order_relaxed) != 0, 0) && names_any_in_table(m, n);
}
long sendmmsg_one_by_one(int fd, mmsghdr* m, unsigned n, int flags);
long recvmmsg_over_hosts(int fd, mmsghdr* m, unsigned n, int flags, timespec* timeout);

}  // namespace ckpt::addresses
