// The coordinator of one host's processes, where other hosts take part: at each step it asks the agent of
// this host (cluster/protocol/agent_machine.h), which asks the head of all. docs/hosts.md has the states.
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#include "base/checks/named_points.h"
#include "base/clock.h"
#include "job/capture/coordinator/coordinator.h"
#include "job/capture/reconnect.h"
#include "job/directory/job_directory.h"
#include "libckpt_rt/core/settings/user_settings.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::job {

namespace {

bool tell(int socket, const char* text, size_t bytes) {
  while (bytes != 0) {
    const long n = sys::call(__NR_sendto, socket, text, bytes, MSG_NOSIGNAL, 0L, 0L);
    if (n == -EINTR) continue;
    if (n <= 0) return false;
    text += n;
    bytes -= static_cast<size_t>(n);
  }
  return true;
}

template <typename... Args>
bool tell_line(int socket, fmt::format_string<Args...> format, Args&&... args) {
  char line[256];
  const auto end = fmt::format_to_n(line, sizeof(line), format, std::forward<Args>(args)...);
  return end.size <= sizeof(line) && tell(socket, line, end.size);
}

struct Address {
  char text[40];
};
Address address_text(const uint8_t (&address)[16], uint16_t port) {
  Address a{};
  char* at = a.text;
  for (uint8_t byte : address) at = fmt::format_to(at, "{:02x}", byte);
  *fmt::format_to(at, ".{}", port) = '\0';
  return a;
}

}  // namespace

// What the host agent answers; an error: it is gone, or says nothing in time. patience_ns 0: no limit, for
// the program runs.
Result<char> Coordinator::ask_hosts(const char* step, int64_t patience_ns) {
  const int socket = options_.hosts_socket;
  if (tell_line(socket, "need step {}\n", step)) {
    const int64_t deadline = now_ns() + patience_ns;
    for (;;) {
      pollfd wait{socket, POLLIN, 0};
      const int64_t left = deadline - now_ns();
      if (patience_ns != 0 && left <= 0) {
        return make_error(ExitCode::kTimeout, 0,
                          "the other hosts were not {} in time; the checkpoint was given up", step);
      }
      const timespec time{left / 1'000'000'000, left % 1'000'000'000};
      const long n = sys::call(__NR_ppoll, &wait, 1L, patience_ns == 0 ? nullptr : &time, nullptr, 8L);
      if (n == 0 || n == -EINTR) continue;
      char answer = 0;
      const long got = sys::call(__NR_recvfrom, socket, &answer, 1L, MSG_DONTWAIT, 0L, 0L);
      if (got == -EINTR || got == -EAGAIN) continue;
      if (got == 1) return answer;
      break;
    }
  }
  return make_error(ExitCode::kInternal, 0, "the agent of this host is gone; the checkpoint was given up");
}

Result<void> Coordinator::with_all_hosts(const char* step, int64_t patience_ns) {
  auto answer = ask_hosts(step, patience_ns);
  if (!answer.ok()) return answer.error();
  if (*answer == kStepContinue) return {};
  return make_error(ExitCode::kInternal, 0, "the checkpoint of all hosts was given up");
}

// For the head to hand out: what plug-ins of one process of this host have posted to other hosts.
void Coordinator::post_to_hosts(int sender, std::span<const std::byte> posts) {
  const char* own = options_.part.host;
  Post head;
  std::span<const std::byte> bytes;
  while (take_post(posts, head, bytes)) {
    if (head.subject[0] == '\0') continue;
    const bool to_all = head.host[0] == '\0' && head.pid == 0;
    if (!to_all && (head.host[0] == '\0' || strcmp(head.host, own) == 0)) continue;
    char line[128 + 2 * (sizeof(Post) + kMostPostBytes)];
    char* at = fmt::format_to_n(line, 100, "post {} {} ", to_all ? "*" : static_cast<const char*>(head.host),
                                head.pid)
                   .out;
    Post sent = head;
    std::memset(sent.host, 0, sizeof(sent.host));
    std::memcpy(sent.host, own, strnlen(own, sizeof(sent.host) - 1));
    sent.pid = sender;
    for (const std::byte b : std::as_bytes(std::span(&sent, 1)))
      at = fmt::format_to(at, "{:02x}", static_cast<uint8_t>(b));
    for (const std::byte b : bytes) at = fmt::format_to(at, "{:02x}", static_cast<uint8_t>(b));
    *at++ = '\n';
    if (!tell(options_.hosts_socket, line, static_cast<size_t>(at - line)))
      break;  // ask_hosts() finds it gone
  }
}

// any: has some process of this host posted? Becomes true if one of another host has.
Result<std::span<const std::byte>> Coordinator::hear_posts_of_hosts(bool& any) {
  if (any) tell_line(options_.hosts_socket, "posts 1\n");
  CKPT_TRY(with_all_hosts("posted", 0));
  RoundEnd end;
  uint32_t bytes = 0;
  if (!receive_exactly(options_.hosts_socket, &end, sizeof(end)) ||
      !receive_exactly(options_.hosts_socket, &bytes, sizeof(bytes)) || bytes > kMostMessageBytes)
    return make_error(ExitCode::kInternal, 0, "the agent of this host is gone; the checkpoint was given up");
  void* mail = arena_.allocate(bytes + 1);
  if (mail == nullptr) return make_error(ExitCode::kInternal, ENOMEM, "no memory for messages of plug-ins");
  if (bytes != 0 && !receive_exactly(options_.hosts_socket, mail, bytes))
    return make_error(ExitCode::kInternal, 0, "the agent of this host is gone; the checkpoint was given up");
  any = end.more != 0;
  return std::span<const std::byte>(static_cast<const std::byte*>(mail), bytes);
}

void Coordinator::tell_bookmarks(std::span<const Bookmark> connections) {
  for (const Bookmark& b : connections) {
    tell_line(options_.hosts_socket, "bookmark {} {} {} {} {} {}\n", address_text(b.local, b.local_port).text,
              address_text(b.remote, b.remote_port).text, b.sent, b.received, b.unsent, b.ended);
  }
}

Result<void> Coordinator::drained(std::span<const Bookmark> connections) {
  CKPT_TRY(await(Step::kDrained, now_ns() + 2 * user_settings().stop_timeout_ns));
  tell_bookmarks(connections);
  for (const Member& m : members_) tell_bookmarks(m.bookmarks);
  CKPT_TRY(with_all_hosts("drained", user_settings().stop_timeout_ns));
  return tell_all(Step::kPeek);
}

// Another host was left. A process that could not take its new sockets is neither as it was nor as it is to
// be, so none goes on: the head hears of it from `ckpt back-part`, and has all ended where they stand.
Result<void> Coordinator::reconnect_all() {
  uint64_t cookie = 0;
  if (!receive_exactly(options_.hosts_socket, &cookie, sizeof(cookie)))
    return make_error(ExitCode::kInternal, 0, "the agent of this host is gone; the checkpoint counts");
  told_ = Step::kReconnect;
  for (Member& m : members_) {
    if (m.state == Member::State::kWithUs &&
        !send_message(m.socket, Step::kReconnect, &cookie, sizeof(cookie)))
      CKPT_TRY(lost(m));
  }
  if (!reconnect(cookie)) {
    (void)ask_hosts("stuck", 0);  // nobody answers before the agent is gone
    return make_error(ExitCode::kInternal, 0, "its connections to another host could not be replaced");
  }
  points::at("coordinator.reconnected");
  return await(Step::kReconnected, 0);
}

// This host's part has its name. The part counts when the head has recorded that all parts have theirs.
Result<void> Coordinator::agree_with_hosts() {
  tell_line(options_.hosts_socket, "part {}\n", static_cast<const char*>(name_.text));
  auto answer = ask_hosts("durable", 0);
  const bool counts = answer.ok() && *answer == kStepReconnect;
  if (counts) {
    CKPT_TRY(reconnect_all());
    answer = ask_hosts("reconnected", 0);
  }
  if (answer.ok() && *answer == kStepContinue) return {};
  if (answer.ok() && *answer == kStepGiveUp && !counts) {
    remove_job_directory(directory_, name_.text);
    return make_error(ExitCode::kInternal, 0, "the checkpoint of all hosts was given up");
  }
  // Only the head knows whether it counts, so the part stays. A restart takes no part that does not count.
  return make_error(
      ExitCode::kInternal, 0,
      "the head of the hosts is gone; whether the checkpoint counts is not known here, {} stays",
      static_cast<const char*>(name_.text));
}

}  // namespace ckpt::job
