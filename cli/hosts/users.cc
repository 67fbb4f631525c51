// Sockets by which users ask the agent or head on their host: abstract names, which have no file. Only the same user
// and root are answered. Also JSON lines, and the words of --hosts and --launch.
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <set>

#include "base/clock.h"
#include "cli/hosts/hosts.h"
#include "cli/text/failure.h"

namespace ckpt::cli {

namespace {

sockaddr_un address_of(const std::string& name, socklen_t* length) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const size_t n = name.copy(address.sun_path + 1, sizeof(address.sun_path) - 1);
  *length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + n);
  return address;
}

}  // namespace

std::string agent_socket_name(const std::string& job, const std::string& host) {
  return fmt::format("ckpt_rt.agent.{}.{}", job, host);
}
std::string head_socket_name(int pid) { return fmt::format("ckpt_rt.head.{}", pid); }

namespace {

// An agent whose head is gone has heard of it by then, and has ended its processes.
constexpr int64_t kOlderEndsNs = 20'000'000'000;

// The process that listens there; 0: none, or one of another pid namespace.
int who_listens(const sockaddr_un& address, socklen_t length) {
  const ScopedFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  ucred who{};
  socklen_t size = sizeof(who);
  const bool known = connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) == 0 &&
                     getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &who, &size) == 0;
  return known ? who.pid : 0;
}

}  // namespace

int who_listens_to_users(const std::string& name) {
  socklen_t length = 0;
  const sockaddr_un address = address_of(name, &length);
  return who_listens(address, length);
}

// A job that was killed may come back before the kernel has ended its older agent here, which has the same name. It is waited
// for: what it had started may be there as long as it is.
Result<ScopedFd> listen_to_users(const std::string& name) {
  ScopedFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  socklen_t length = 0;
  const sockaddr_un address = address_of(name, &length);
  const auto cannot = [&name] {
    return failure(ExitCode::kSystem, name, fmt::format("cannot be listened at: {}", strerror(errno)),
                   "try again");
  };
  if (!fd.valid()) return cannot();
  int older = 0;
  for (const int64_t until = now_ns() + kOlderEndsNs;
       bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0;) {
    if (errno != EADDRINUSE) return cannot();
    if (const int now = who_listens(address, length); now > 0) older = now;
    if (now_ns() > until)
      return failure(ExitCode::kUnavailable, name,
                     older > 0 ? fmt::format("process {} serves this job on this host already", older)
                               : "another process serves this job on this host already",
                     "end the job first, or that process");
    const ScopedFd process(older > 0 ? static_cast<int>(syscall(SYS_pidfd_open, older, 0)) : -1);
    pollfd gone{process.get(), POLLIN, 0};
    (void)!poll(&gone, 1, process.valid() ? 1000 : 10);
  }
  if (listen(fd.get(), 16) != 0) return cannot();
  return fd;
}

bool is_own_user(int connection) {
  ucred who{};
  socklen_t size = sizeof(who);
  return getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &who, &size) == 0 &&
         (who.uid == geteuid() || who.uid == 0);
}

Json json_of_bytes(const std::string& bytes) {
  try {
    (void)Json(bytes).dump();
    return bytes;
  } catch (const Json::type_error&) {  // no UTF-8
    std::string hex;
    for (const char c : bytes) hex += fmt::format("{:02x}", static_cast<uint8_t>(c));
    return {{"hex", hex}};
  }
}

std::string bytes_in(const Json& json) {
  if (json.is_string()) return json.get<std::string>();
  const std::string hex = json.is_object() ? json.value("hex", "") : "";
  std::string bytes;
  for (size_t at = 0; at + 2 <= hex.size(); at += 2) {
    uint8_t byte = 0;
    std::from_chars(hex.data() + at, hex.data() + at + 2, byte, 16);
    bytes += static_cast<char>(byte);
  }
  return bytes;
}

bool write_line(int fd, const Json& line) {
  const std::string text = line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = send(fd, text.data() + done, text.size() - done, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    done += static_cast<size_t>(n);
  }
  return true;
}

// Takes no byte behind the line, for another reader may want it: looks at the bytes of a socket before it takes them,
// and takes those of a pipe one by one.
bool read_line(int fd, Json& line, int timeout_ms) {
  constexpr size_t kMostBytes = 64 << 20;
  std::string text;
  const int64_t deadline = now_ns() + int64_t{timeout_ms} * 1'000'000;
  for (;;) {
    pollfd wait{fd, POLLIN, 0};
    // The limit is for the whole line: a peer that sends a byte now and then does not extend it.
    const int64_t left = timeout_ms < 0 ? -1 : std::max<int64_t>((deadline - now_ns()) / 1'000'000, 0);
    const int ready = poll(&wait, 1, static_cast<int>(left));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0 || text.size() > kMostBytes) return false;
    char bytes[4096];
    ssize_t n = recv(fd, bytes, sizeof(bytes), MSG_PEEK | MSG_DONTWAIT);
    if (n < 0 && errno == ENOTSOCK) {
      n = read(fd, bytes, 1);
    } else if (n > 0) {
      const void* end = memchr(bytes, '\n', static_cast<size_t>(n));
      if (end != nullptr) n = static_cast<const char*>(end) - bytes + 1;
      n = read(fd, bytes, static_cast<size_t>(n));
    }
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n <= 0) return false;
    text.append(bytes, static_cast<size_t>(n));
    if (text.back() == '\n') break;
  }
  line = Json::parse(text, nullptr, false);
  return line.is_object();
}

bool ask_over_hosts(const std::string& name, const Json& question, Json& answer) {
  ScopedFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  socklen_t length = 0;
  const sockaddr_un address = address_of(name, &length);
  if (!fd.valid() || connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      !is_own_user(fd.get()))
    return false;
  return write_line(fd.get(), question) && read_line(fd.get(), answer, -1);
}

std::vector<std::string> launch_words(const std::string& launch, const std::string& host) {
  std::vector<std::string> words;
  std::string word;
  for (char c : launch + " ") {
    if (c != ' ') {
      word += c;
    } else if (!word.empty()) {
      words.push_back(std::move(word));
      word.clear();
    }
  }
  bool named = false;
  for (std::string& w : words) {
    for (size_t at; (at = w.find("{host}")) != std::string::npos;) {
      w.replace(at, 6, host);
      named = true;
    }
  }
  if (!named) words.push_back(host);
  return words;
}

Result<std::vector<std::string>> split_hosts(const std::string& list, bool repeats) {
  std::vector<std::string> hosts;
  std::set<std::string> seen;
  std::string name;
  for (char c : list + ",") {
    if (c != ',') {
      name += c;
      continue;
    }
    const bool good =
        !name.empty() && name.size() < 64 && name[0] != '-' && name.find_first_of(" /\"\\{}") == name.npos;
    if (!good)
      return failure(ExitCode::kUsage, "--hosts", fmt::format("\"{}\" is no name of a host", name),
                     "give h1,h2,h3");
    if (!seen.insert(name).second && !repeats)
      return failure(ExitCode::kUsage, "--hosts", fmt::format("{} is named twice", name),
                     "one agent serves a host");
    hosts.push_back(std::move(name));
    name.clear();
  }
  return hosts;
}

}  // namespace ckpt::cli
