#include "restart/reports/report.h"

#include <errno.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "restart/reports/packet.h"

namespace ckpt {
namespace {

void send_report(int fd, const Report& report, int pidfd = -1) {
  (void)send_packet(fd, std::as_bytes(std::span(&report, 1)), std::span(&pidfd, pidfd >= 0 ? 1 : 0));
}

void set_text(Report& report, std::string_view text) {
  size_t n = std::min(text.size(), sizeof(report.text) - 1);
  std::memcpy(report.text, text.data(), n);
}

}  // namespace

void ReportChannel::note(std::string_view text, bool at_once) {
  Report report;
  report.value = at_once ? 1 : 0;
  report.who = who_;
  set_text(report, text);
  send_report(fd_.get(), report);
}

void ReportChannel::error(const Error& error) {
  Report report;
  report.kind = ReportKind::kError;
  report.code = static_cast<int32_t>(error.code);
  report.sys_errno = error.sys_errno;
  report.who = who_;
  set_text(report, error.message());
  send_report(fd_.get(), report);
}

void ReportChannel::send(ReportKind kind, int32_t value, int pidfd) {
  Report report;
  report.kind = kind;
  report.value = value;
  report.who = who_;
  send_report(fd_.get(), report, pidfd);
}

std::optional<Report> ReportChannel::receive(ScopedFd* pidfd, bool dont_wait) {
  Report report;
  int came[1];
  const Received received =
      receive_packet(fd_.get(), std::as_writable_bytes(std::span(&report, 1)), came, dont_wait);
  if (received == Received::kEnd) fd_.reset();
  if (received != Received::kMessage) return std::nullopt;
  report.text[sizeof(report.text) - 1] = '\0';
  ScopedFd descriptor(came[0]);
  if (pidfd != nullptr && descriptor.valid()) *pidfd = std::move(descriptor);
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
