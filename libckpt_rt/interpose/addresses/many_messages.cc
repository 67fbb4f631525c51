#include "libckpt_rt/interpose/addresses/many_messages.h"

#include <algorithm>

#include "libckpt_rt/interpose/calls.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::addresses {
namespace {

constexpr unsigned kMost = 1024;  // UIO_MAXIOV: of more the kernel takes as many

}  // namespace

bool names_any_in_table(const mmsghdr* m, unsigned n) {
  n = std::min(n, kMost);
  return program_memory::may_read(m, n * sizeof(mmsghdr)) &&
         std::any_of(m, m + n, [](const mmsghdr& one) { return one.msg_hdr.msg_name != nullptr; });
}

// As the kernel: how many were sent, or why the first was not.
long sendmmsg_one_by_one(int fd, mmsghdr* m, unsigned n, int flags) {
  n = std::min(n, kMost);
  for (unsigned i = 0; i < n; ++i) {
    const long r = calls::sendmsg(fd, &m[i].msg_hdr, flags);
    if (r < 0) return i != 0 ? static_cast<long>(i) : r;
    m[i].msg_len = static_cast<unsigned>(r);
  }
  return n;
}

long recvmmsg_over_hosts(int fd, mmsghdr* m, unsigned n, int flags, timespec* timeout) {
  n = std::min(n, kMost);
  uint8_t rooms[kMost] = {};  // what the kernel may fill; it writes there what it would have filled
  constexpr socklen_t kEnough = 255;
  const bool known = program_memory::may_read(m, n * sizeof(mmsghdr));
  for (unsigned i = 0; known && i < n; ++i)
    rooms[i] = static_cast<uint8_t>(
        m[i].msg_hdr.msg_name != nullptr ? std::min(m[i].msg_hdr.msg_namelen, kEnough) : 0);
  const long r = calls::recvmmsg_as_it_is(fd, m, n, flags, timeout);
  for (long i = 0; i < r; ++i) {
    msghdr& one = m[i].msg_hdr;
    if (rooms[i] != 0) to_job(one.msg_name, std::min<socklen_t>(rooms[i], one.msg_namelen));
  }
  return r;
}

}  // namespace ckpt::addresses
