#include <poll.h>
#include <sys/socket.h>

#include "base/protocol/unaccepted_protocol.h"
#include "cli/hosts/agent/this_host.h"

namespace ckpt::cli {

void have_unaccepted_taken(const std::string& hosts) {
  constexpr int kPatience = 5000;  // ms: it may have to wait for some programs that accept at the same time
  const ScopedFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address;
  const socklen_t length = unaccepted_address(hosts, address);
  if (!fd.valid() || connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) return;
  const UnacceptedQuestion question{UnacceptedQuestion::What::kTakeAll, 0};
  UnacceptedAnswer answer{};
  pollfd wait{fd.get(), POLLIN, 0};
  if (send(fd.get(), &question, sizeof(question), MSG_NOSIGNAL) == sizeof(question) &&
      poll(&wait, 1, kPatience) == 1)
    (void)!recv(fd.get(), &answer, sizeof(answer), MSG_DONTWAIT);
}

}  // namespace ckpt::cli
