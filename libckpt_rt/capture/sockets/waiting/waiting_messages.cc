#include "libckpt_rt/capture/sockets/waiting/waiting_messages.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include <optional>

#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {
namespace {

constexpr size_t kFirstScratch = 1 << 20, kLargestMessage = 256 << 20;
constexpr int kScmPidfd = 4;

}  // namespace

// Descriptors and credentials of one message. The kernel has put the descriptors into our table.
Result<void> WaitingMessages::take_control(SocketLook& look, const msghdr& header, SocketMessage& message) {
  message.first_file = static_cast<uint32_t>(look.files.size());
  Result<void> result;
  for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(const_cast<msghdr*>(&header), c)) {
    if (c->cmsg_level != SOL_SOCKET) continue;
    const size_t bytes = c->cmsg_len - CMSG_LEN(0);
    if (c->cmsg_type == SCM_CREDENTIALS && bytes >= sizeof(ucred)) {
      ucred who;
      std::memcpy(&who, CMSG_DATA(c), sizeof(who));
      message.detail.pid = who.pid;
      message.detail.uid = who.uid;
      message.detail.gid = who.gid;
      if (who.pid != 0) message.detail.flags |= kMessageCredentials;
    } else if (c->cmsg_type == SCM_RIGHTS || c->cmsg_type == kScmPidfd) {
      for (size_t at = 0; at + sizeof(int) <= bytes; at += sizeof(int)) {
        int fd;
        std::memcpy(&fd, CMSG_DATA(c) + at, sizeof(fd));
        if (c->cmsg_type == kScmPidfd || !result.ok()) {
          sys::call(__NR_close, fd);
          continue;
        }
        auto entry = sent_.find(fd);
        if (!entry.ok()) {
          result = entry.error();
        } else if (!look.files.push_back(*entry)) {
          result = arena_full(files_.arena());
        }
      }
    }
  }
  message.detail.file_count = static_cast<uint32_t>(look.files.size()) - message.first_file;
  return result;
}

namespace {

// The message that the program would get next has no byte: the kernel shows it to a look that has a place
// (SO_PEEK_OFF) once only, but to one without a place always.
bool first_is_empty(int socket) {
  set_socket_option(socket, SOL_SOCKET, SO_PEEK_OFF, -1);
  msghdr header{};
  iovec none{};
  header.msg_iov = &none;
  return sys::call(__NR_recvmsg, socket, &header, MSG_PEEK | MSG_DONTWAIT | MSG_TRUNC) == 0;
}

}  // namespace

// Messages without a byte that the kernel does not show any more, ahead of the one with this stamp.
Result<void> WaitingMessages::keep_seen(SocketLook& look, SocketState& s, SeenMessages& seen, int64_t stamp) {
  while (const SeenMessage* m = seen.before(stamp)) {
    SocketMessage message{};
    message.detail = m->detail;
    message.detail.number = s.message_count++;
    message.first_file = static_cast<uint32_t>(look.files.size());
    if (m->detail.file_count != 0) {
      message.detail.file_count = 0;
      CKPT_TRY(notes_.add(
          kChanged,
          "descriptor {} ({}): descriptors wait in it, in a message without a byte behind others, which an "
          "earlier checkpoint has looked at: they are lost",
          files_.entries()[s.entry].fd, files_.entries()[s.entry].path));
    }
    auto* address = static_cast<std::byte*>(files_.arena().allocate(m->detail.address_len + 1));
    if (address == nullptr || !look.messages.push_back(message)) return arena_full(files_.arena());
    std::memcpy(address, m->address, m->detail.address_len);
    look.messages[look.messages.size() - 1].address = address;
    look.messages[look.messages.size() - 1].bytes = address;
  }
  return {};
}

// The kernel has told the message, with its descriptors: what it holds comes into memory of its own.
bool WaitingMessages::keep(SocketLook& look, SocketState& s, const msghdr& header, SocketMessage& message) {
  const uint64_t length = message.detail.length;
  auto* bytes = static_cast<std::byte*>(files_.arena().allocate(length + 1));
  auto* address = static_cast<std::byte*>(files_.arena().allocate(header.msg_namelen + 1));
  if (bytes == nullptr || address == nullptr) return false;
  std::memcpy(bytes, look.scratch, length);
  std::memcpy(address, header.msg_name, header.msg_namelen);
  message.bytes = bytes;
  message.address = address;
  // The family alone is no name.
  message.detail.address_len = header.msg_namelen > sizeof(sa_family_t) ? header.msg_namelen : 0;
  message.detail.number = s.message_count++;
  return look.messages.push_back(message);
}

// False: no memory, or the message is too long.
bool WaitingMessages::enlarge_scratch(SocketLook& look, size_t bytes) {
  const size_t larger = (bytes + kPageSize) & ~(kPageSize - 1);
  if (larger > kLargestMessage ||
      (look.scratch = static_cast<std::byte*>(files_.arena().allocate(larger))) == nullptr) {
    look.scratch_bytes = 0;
    return false;
  }
  look.scratch_bytes = larger;
  return true;
}

// False: that was the last, or peek.error says why the next cannot be had. True: also where the same message
// is to be looked at once more.
Result<bool> WaitingMessages::peek_next(SocketLook& look, SocketState& s, Peek& peek) {
  // A stream is asked for no more than it has: an empty one would give an error that waits, and lose it.
  if (peek.stream && peek.total >= s.waiting) return false;
  sockaddr_storage from;
  alignas(cmsghdr) char control[1536];
  iovec part{look.scratch, look.scratch_bytes};
  msghdr header{&from, sizeof(from), &part, 1, control, sizeof(control), 0};
  const long r = sys::call(__NR_recvmsg, peek.socket, &header,
                           MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC | (peek.stream ? 0 : MSG_TRUNC));
  if (r < 0) {
    peek.error = r;
    return false;
  }
  // The end, or a message without a byte: a message has a time stamp.
  const bool is_end = peek.seen != nullptr ? stamp_of(header) == 0
                                           : s.detail.type == SOCK_SEQPACKET && (s.detail.shut_down & 1) != 0;
  if (r == 0 && (peek.stream || is_end)) return false;
  SocketMessage message{};
  CKPT_TRY(take_control(look, header, message));
  if ((header.msg_flags & MSG_CTRUNC) != 0) {
    if (look.limit.raise()) {  // once more, with numbers for all that it brings
      look.files.truncate(message.first_file);
      if (!peek.at_first)
        set_socket_option(peek.socket, SOL_SOCKET, SO_PEEK_OFF, static_cast<int>(peek.total));
      return true;
    }
    CKPT_TRY(notes_.add(
        kChanged,
        "descriptor {} ({}): descriptors that were sent through it and not received are lost: raise the "
        "limit (ulimit -Hn)",
        files_.entries()[s.entry].fd, files_.entries()[s.entry].path));
  }
  if (!peek.stream && static_cast<size_t>(r) > look.scratch_bytes) {  // once more, with room for it
    look.files.truncate(message.first_file);
    if (!enlarge_scratch(look, static_cast<size_t>(r))) {
      peek.error = -EMSGSIZE;
      return false;
    }
    set_socket_option(peek.socket, SOL_SOCKET, SO_PEEK_OFF, static_cast<int>(peek.total));
    return true;
  }
  message.detail.length = static_cast<uint64_t>(r);
  if (peek.seen != nullptr) CKPT_TRY(keep_seen(look, s, *peek.seen, stamp_of(header)));
  if (!keep(look, s, header, message)) {
    peek.error = -ENOMEM;
    return false;
  }
  if (peek.seen != nullptr) peek.seen->add(stamp_of(header), message.detail, message.address);
  peek.total += static_cast<uint64_t>(r);
  if (peek.at_first) set_socket_option(peek.socket, SOL_SOCKET, SO_PEEK_OFF, 0);
  peek.at_first = false;
  return true;
}

// Reading would give the error, and take it from the program.
Result<void> WaitingMessages::note_error(const SocketState& s) {
  const CapturedDescriptor& d = files_.entries()[s.entry];
  if ((s.link.flags & kLinkError) == 0)
    return notes_.add(kChanged,
                      "descriptor {} ({}): an error waits in it: it is lost, and messages behind it", d.fd,
                      d.path);
  if ((s.ready & POLLIN) == 0) return {};
  return notes_.add(kChanged, "descriptor {} ({}): an error waits in it: messages behind it are lost", d.fd,
                    d.path);
}

Result<void> WaitingMessages::peek(SocketLook& look, SocketState& s, int socket) {
  const bool stream = s.detail.type == SOCK_STREAM;
  int before = -1, length = sizeof(before);
  sys::call(__NR_getsockopt, socket, SOL_SOCKET, SO_PEEK_OFF, &before, &length);
  s.link.peek_offset = before;
  if (!stream && (s.ready & POLLERR) != 0) return note_error(s);
  if (stream && s.waiting == 0) return {};
  // That look has had it, so the ones below begin behind it: it is taken by the first of them, still without
  // a place.
  std::optional<SeenMessages> seen;
  if (!stream && s.detail.domain == AF_UNIX && (s.ready & POLLIN) != 0) {
    set_socket_option(socket, SOL_SOCKET, SO_PEEK_OFF, -1);
    seen.emplace(socket);
  }
  const bool is_stamped = seen && seen->is_on();
  const bool at_first =
      is_stamped ? seen->first_is_empty() : s.detail.type == SOCK_DGRAM && first_is_empty(socket);
  if (!at_first && !set_socket_option(socket, SOL_SOCKET, SO_PEEK_OFF, 0))
    return notes_.add(kChanged, "descriptor {} ({}): its messages cannot be read: they are lost",
                      files_.entries()[s.entry].fd, files_.entries()[s.entry].path);
  const bool asks_credentials = s.detail.domain == AF_UNIX && s.detail.pass_credentials == 0;
  if (asks_credentials) set_socket_option(socket, SOL_SOCKET, SO_PASSCRED, 1);
  if (look.scratch == nullptr) {
    look.scratch = static_cast<std::byte*>(files_.arena().allocate(kFirstScratch));
    look.scratch_bytes = look.scratch == nullptr ? 0 : kFirstScratch;
  }
  s.first_message = static_cast<uint32_t>(look.messages.size());
  const size_t files_before = look.files.size();
  Peek peek{
      socket, stream, at_first, 0, look.scratch == nullptr ? -ENOMEM : 0, is_stamped ? &*seen : nullptr};
  Result<bool> more = look.scratch != nullptr;
  while (more.ok() && *more) more = peek_next(look, s, peek);
  if (more.ok() && is_stamped) {
    if (const Result<void> kept = keep_seen(look, s, *seen, SeenMessages::kEnd); !kept.ok())
      more = kept.error();
  }
  if (asks_credentials) set_socket_option(socket, SOL_SOCKET, SO_PASSCRED, 0);
  set_socket_option(socket, SOL_SOCKET, SO_PEEK_OFF, before);
  if (!more.ok()) return more.error();
  if (peek.error == 0 || peek.error == -EAGAIN) return {};
  look.messages.truncate(s.first_message);
  look.files.truncate(files_before);
  s.message_count = 0;
  return notes_.add(kChanged, "descriptor {} ({}): what waits in it cannot be read ({}) and is lost",
                    files_.entries()[s.entry].fd, files_.entries()[s.entry].path,
                    errno_name(static_cast<int>(peek.error)));
}

namespace {

// The number of bytes that wait in a TCP socket, where an urgent byte counts as one of the others. 0: it does
// so already.
int count_in_line(int socket) {
  if (socket_option(socket, SOL_SOCKET, SO_OOBINLINE) != 0) return 0;
  int all = 0;
  set_socket_option(socket, SOL_SOCKET, SO_OOBINLINE, 1);
  if (sys::call(__NR_ioctl, socket, SIOCINQ, &all) != 0) all = 0;
  set_socket_option(socket, SOL_SOCKET, SO_OOBINLINE, 0);
  return all;
}

}  // namespace

// What waits in a TCP connection, the urgent byte apart. One call takes all: SO_PEEK_OFF does not count the
// place of the urgent byte.
Result<void> WaitingMessages::peek_stream(SocketLook& look, SocketState& s, int socket) {
  s.first_message = static_cast<uint32_t>(look.messages.size());
  int waiting = 0, before = -1, length = sizeof(before);
  if (sys::call(__NR_getsockopt, socket, SOL_SOCKET, SO_PEEK_OFF, &before, &length) == 0)
    s.link.peek_offset = before;
  std::byte urgent{};
  bool has_urgent = false;
  // The kernel shows where an urgent byte is only while it does not count as one of the others.
  const bool in_line = (s.ready & POLLPRI) != 0 && socket_option(socket, SOL_SOCKET, SO_OOBINLINE) != 0;
  if (in_line) set_socket_option(socket, SOL_SOCKET, SO_OOBINLINE, 0);
  if ((s.ready & POLLPRI) != 0)
    has_urgent =
        sys::call(__NR_recvfrom, socket, &urgent, 1L, MSG_OOB | MSG_PEEK | MSG_DONTWAIT, 0L, 0L) == 1;
  // First: bytes of an end that is outside may come in between.
  const int with_mark = has_urgent || (s.ready & POLLIN) == 0 ? 0 : count_in_line(socket);
  if (sys::call(__NR_ioctl, socket, SIOCINQ, &waiting) != 0) waiting = 0;
  // SIOCINQ stops at the mark of the urgent byte, also where that byte was taken (MSG_OOB) and the others
  // were not.
  const bool was_taken = with_mark > waiting;
  const bool has_mark = has_urgent || was_taken;
  if (waiting == 0 && !has_mark) {
    if (in_line) set_socket_option(socket, SOL_SOCKET, SO_OOBINLINE, 1);
    return {};
  }
  auto add = [&](const std::byte* bytes, uint64_t n, uint32_t flags) {
    SocketMessage message{};
    message.bytes = bytes;
    message.detail.length = n;
    message.detail.flags = flags;
    message.detail.number = s.message_count++;
    return look.messages.push_back(message);
  };
  auto peek = [&](int offset, size_t room, std::byte*& bytes) -> long {
    bytes = static_cast<std::byte*>(files_.arena().allocate(room + 1));
    if (bytes == nullptr) return -ENOMEM;
    if (offset >= 0) set_socket_option(socket, SOL_SOCKET, SO_PEEK_OFF, offset);
    return sys::call(__NR_recvfrom, socket, bytes, room, MSG_PEEK | MSG_DONTWAIT, 0L, 0L);
  };
  if (before >= 0) set_socket_option(socket, SOL_SOCKET, SO_PEEK_OFF, -1);
  std::byte* bytes = nullptr;
  long n = waiting > 0 ? peek(before >= 0 ? 0 : -1, static_cast<size_t>(waiting), bytes) : 0;
  bool ok = n >= 0 && (n == 0 || add(bytes, static_cast<uint64_t>(n), 0));
  if (ok && has_mark) {
    auto* copy = static_cast<std::byte*>(files_.arena().allocate(1));
    if (copy != nullptr) *copy = urgent;
    ok = copy != nullptr && add(copy, 1, kMessageUrgent | (was_taken ? kMessageTaken : 0u));
    std::byte* rest = nullptr;
    constexpr size_t kBehind = 8 << 20;
    const long m = ok ? peek(static_cast<int>(n), kBehind, rest) : 0;
    if (m > 0) ok = add(rest, static_cast<uint64_t>(m), 0);
  }
  if (has_mark || before >= 0) set_socket_option(socket, SOL_SOCKET, SO_PEEK_OFF, before);
  if (in_line) set_socket_option(socket, SOL_SOCKET, SO_OOBINLINE, 1);
  if (!ok)
    return n == -ENOMEM ? arena_full(files_.arena())
                        : make_error(ExitCode::kInternal, ENOMEM, "no memory for a socket's bytes");
  if (n < waiting && !has_mark) {
    return notes_.add(kChanged, "descriptor {} ({}): {} bytes of {} that wait in it cannot be read",
                      files_.entries()[s.entry].fd, files_.entries()[s.entry].path, waiting - n, waiting);
  }
  return {};
}

}  // namespace ckpt
