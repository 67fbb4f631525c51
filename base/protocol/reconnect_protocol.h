// The processes of one host of a job go on at another one, and those of the other hosts stand meanwhile: in
// each of these a new socket takes the place of each connection to the host that was left. docs/hosts.md,
// "Going elsewhere".
//
// `ckpt back-part` has made the sockets, and listens at an abstract name (SOCK_SEQPACKET). A thread of each
// process, which stands in the library's handler and has the program's descriptors, connects there, carries
// out one order after the other, and answers once. Both ends look whose process the other one is.
//
// Owner:     base. Callers: ckpt back-part (cli/back/job), job/capture/reconnect.cc.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <cstddef>
#include <cstdint>

namespace ckpt {

struct ReconnectOrder {
  enum class What : uint32_t {
    kUnwatch,  // `epoll` watches `fd` no more
    kClose,    // `fd`
    kPlace,    // the socket that comes with the order gets the number `fd`; value: FD_CLOEXEC or 0
    kWatch,    // `epoll` watches `fd` for the events in `value`; data: as epoll_event has it
    kEnd,      // all is done: answer
  } what;
  int32_t fd, epoll;
  uint32_t value;
  uint64_t data;
};

struct ReconnectAnswer {
  int32_t error;  // errno of the first order that could not be carried out, 0: none
  int32_t fd;     // of that order
};

inline socklen_t reconnect_address(uint64_t cookie, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  constexpr char kPrefix[] = "ckpt_reconnect.";
  char* at = address.sun_path + 1;
  for (const char* c = kPrefix; *c != '\0'; ++c) *at++ = *c;
  for (int shift = 60; shift >= 0; shift -= 4) *at++ = "0123456789abcdef"[cookie >> shift & 15];
  return static_cast<socklen_t>(at - reinterpret_cast<char*>(&address));
}

}  // namespace ckpt
