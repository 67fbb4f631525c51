// bind(2): of a Unix socket with a relative name the directory is noted, which the kernel does not tell.
#include <sys/un.h>

#include <cstddef>
#include <cstring>

#include "libckpt_rt/capture/descriptors/noted/watch_names.h"
#include "libckpt_rt/interpose/abi.h"
#include "libckpt_rt/interpose/calls.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::calls {

long bind(int fd, const void* address, uint32_t length) {
  sockaddr_storage copy;
  const void* const to = addresses::to_machine(address, length, copy);
  addresses::PortChoice port(fd, addresses::leaves_port_open(to, length));
  long result;
  do {
    result = sys::call(__NR_bind, fd, to, length);
  } while (port.again(result));
  auto* name = static_cast<const sockaddr_un*>(address);
  constexpr size_t kPath = offsetof(sockaddr_un, sun_path);
  if (result == 0 && length > kPath && length <= sizeof(*name) && name->sun_family == AF_UNIX &&
      name->sun_path[0] != '\0' && name->sun_path[0] != '/') {
    char path[sizeof(sockaddr_un)] = {};  // the kernel needs no end of it
    std::memcpy(path, name->sun_path, length - kPath);
    watch_names::note_socket(path);
  }
  return result;
}

}  // namespace ckpt::calls

using namespace ckpt;

CKPT_INTERPOSE(int, bind, int fd, const sockaddr* address, socklen_t length) {
  return to_errno<int>(calls::bind(fd, address, length));
}
