#include "cli/hosts/agent/call_head.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <optional>

#include "cli/hosts/agent/this_host.h"
#include "cli/hosts/job/adapters.h"
#include "cli/hosts/job/hosts_run.h"
#include "cli/text/failure.h"

namespace ckpt::cli {

namespace {

std::string own_address_of(int socket) {
  sockaddr_storage own{};
  socklen_t length = sizeof(own);
  getsockname(socket, reinterpret_cast<sockaddr*>(&own), &length);
  char text[INET6_ADDRSTRLEN] = {};
  const void* at = own.ss_family == AF_INET6
                       ? static_cast<void*>(&reinterpret_cast<sockaddr_in6&>(own).sin6_addr)
                       : &reinterpret_cast<sockaddr_in&>(own).sin_addr;
  inet_ntop(own.ss_family, at, text, sizeof(text));
  return text;
}

}  // namespace

Result<CalledHead> call_head(const Json& task) {
  cluster::Secret secret;
  if (!cluster::read_secret(task.value("secret", ""), secret))
    return failure(ExitCode::kUsage, "agent", "got no secret on its standard input",
                   "it is started by ckpt run --hosts");
  std::optional<Error> error;
  const Json files = files_of_host();  // takes its time: nobody waits for us yet
  for (const auto& address : task["addresses"]) {
    const std::string head = address.get<std::string>();
    auto socket = cluster::connect_to(head, task.value("port", 0), 3000);
    if (!socket.ok()) {
      // Most addresses of a host are unknown to another one, and the last is everybody's own.
      if (!error || (socket.error().sys_errno == ECONNREFUSED && head != kLoopback)) error = socket.error();
      continue;
    }
    CalledHead called;
    called.own_address = own_address_of(socket->get());
    auto link = cluster::SealedLink::connect(std::move(*socket), secret);
    if (!link.ok()) return link.error();
    called.link = std::move(*link);
    called.link.allow_silence(task.value("silence_ms", cluster::SealedLink::kSilenceMs));
    utsname names{};
    uname(&names);
    const Json here{{"say", "here"},
                    {"host", task.value("host", "")},
                    {"version", CKPT_VERSION},
                    {"node", names.nodename},
                    {"kernel", names.release},
                    {"machine", names.machine},
                    {"address", called.own_address},
                    {"pid", getpid()},
                    {"files", files},
                    {"adapters", adapters_here()}};
    if (!called.link.send(here.dump(-1, ' ', false, Json::error_handler_t::replace))) called.link.close();
    return called;
  }
  if (!error) return failure(ExitCode::kUsage, "agent", "got no address of the head", "report it");
  if (error->sys_errno != ECONNREFUSED) return *error;
  return make_error(ExitCode::kUnavailable, 0,
                    "{}: the head had given up when this host's agent came; see what it said ({})",
                    task.value("host", ""), error->message());
}

Result<ScopedFd> listen_low(const std::string& address, int* port) {
  for (int tries = 0; tries < 32; ++tries) {
    auto fd = cluster::listen_at(address, 12000 + static_cast<int>(randombytes_uniform(16000)), port);
    if (fd.ok() || fd.error().sys_errno != EADDRINUSE) return fd;
  }
  return cluster::listen_at(address, 0, port);
}

}  // namespace ckpt::cli
