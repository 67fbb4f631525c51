// setsockopt(2): what no getsockopt(2) tells is noted: the programs that choose in a group of sockets, and
// the interface by which a socket sends to groups.
#include <netinet/in.h>
#include <sys/socket.h>

#include "libckpt_rt/capture/sockets/noted/group_filters.h"
#include "libckpt_rt/capture/sockets/noted/multicast_choices.h"
#include "libckpt_rt/interpose/abi.h"
#include "libckpt_rt/interpose/calls.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::calls {

namespace {

std::span<const sock_filter> code_of(const void* value, socklen_t length) {
  sock_fprog program{};
  if (length != sizeof(program) || !program_memory::read(program, value) ||
      !program_memory::may_read(program.filter, program.len * sizeof(sock_filter)))
    return {};
  return {program.filter, program.len};
}

// By its number. The kernel takes shorter values, too, which have an address alone.
ip_mreqn chosen_interface(const void* value, socklen_t length) {
  ip_mreqn chosen{};
  if (length < sizeof(chosen) || !program_memory::read(chosen, value)) return {};
  return chosen;
}

}  // namespace

long setsockopt(int fd, int level, int option, const void* value, socklen_t length) {
  auto call = [=] {
    return sys::call(__NR_setsockopt, long{fd}, long{level}, long{option}, value, static_cast<long>(length));
  };
  if (level == IPPROTO_IP && option == IP_MULTICAST_IF) {
    const auto note = multicast_choices::before(fd, chosen_interface(value, length));
    const long r = call();
    multicast_choices::after(note, r == 0);
    return r;
  }
  group_filters::Change change;
  if (!group_filters::is_of_group(level, option, change)) return call();
  const bool has_code = change == group_filters::Change::kSet;
  const auto code = has_code ? code_of(value, length) : std::span<const sock_filter>{};
  const auto note = group_filters::before(fd, change, code);
  const long r = call();
  group_filters::after(note, r == 0);
  return r;
}

}  // namespace ckpt::calls

using namespace ckpt;

CKPT_INTERPOSE(int, setsockopt, int fd, int level, int option, const void* value, socklen_t length) {
  return to_errno<int>(calls::setsockopt(fd, level, option, value, length));
}
