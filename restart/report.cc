#include "restart/report.h"

#include <errno.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

namespace ckpt {
namespace {

void send_packet(int fd, const Report& report, int pidfd) {
  iovec vector{const_cast<Report*>(&report), sizeof(report)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  if (pidfd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(head), &pidfd, sizeof(pidfd));
  }
  while (sendmsg(fd, &message, MSG_NOSIGNAL) < 0 && errno == EINTR) {
  }
}

void set_text(Report& report, std::string_view text) {
  size_t n = std::min(text.size(), sizeof(report.text) - 1);
  std::memcpy(report.text, text.data(), n);
}

}  // namespace

void ReportChannel::note(std::string_view text) {
  Report report;
  set_text(report, text);
  send_packet(fd_.get(), report, -1);
}

void ReportChannel::error(const Error& error) {
  Report report;
  report.kind = ReportKind::kError;
  report.code = static_cast<int32_t>(error.code);
  report.sys_errno = error.sys_errno;
  set_text(report, error.message());
  send_packet(fd_.get(), report, -1);
}

void ReportChannel::send(ReportKind kind, int32_t value, int pidfd) {
  Report report;
  report.kind = kind;
  report.value = value;
  send_packet(fd_.get(), report, pidfd);
}

std::optional<Report> ReportChannel::receive(ScopedFd* pidfd, bool dont_wait) {
  Report report;
  iovec vector{&report, sizeof(report)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t n;
  do {
    n = recvmsg(fd_.get(), &message, MSG_CMSG_CLOEXEC | (dont_wait ? MSG_DONTWAIT : 0));
  } while (n < 0 && errno == EINTR);
  if (n == 0) fd_.reset();
  if (n != static_cast<ssize_t>(sizeof(report))) return std::nullopt;
  report.text[sizeof(report.text) - 1] = '\0';
  cmsghdr* head = CMSG_FIRSTHDR(&message);
  if (head != nullptr && head->cmsg_type == SCM_RIGHTS) {
    int fd;
    std::memcpy(&fd, CMSG_DATA(head), sizeof(fd));
    ScopedFd received(fd);
    if (pidfd != nullptr) *pidfd = std::move(received);
  }
  return report;
}

Result<std::pair<ReportChannel, ReportChannel>> make_report_channel() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return make_error(ExitCode::kSystem, errno, "no socket pair for the new process's messages ({})",
                      errno_name(errno));
  }
  return std::make_pair(ReportChannel(ScopedFd(ends[0])), ReportChannel(ScopedFd(ends[1])));
}

}  // namespace ckpt
