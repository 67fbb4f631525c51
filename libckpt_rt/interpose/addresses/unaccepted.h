// accept(2) in a job over several hosts: where a checkpoint has kept a connection that waited to be accepted,
// a placeholder waits in its place. The thread that accepts it gets the connection. docs/hosts.md, "Not
// accepted yet".
//
// Owner:     libckpt_rt/interpose. Callers: remember_name(): the constructor; accept4: threads of the
//            program.
// Never:     gives the program a placeholder. Costs more than the look at an address where there is none.
#pragma once

#include <sys/socket.h>

namespace ckpt::addresses {

// hosts: the value of CKPT_HOSTS.
void remember_name(const char* hosts);
// -errno, as the kernel.
long accept4_over_hosts(int fd, void* address, socklen_t* length, int flags);

}  // namespace ckpt::addresses
