#include "cli/back/descriptors/far_plan.h"

#include <netinet/tcp.h>

#include <set>

#include "cli/back/descriptors/image_socket.h"
#include "cli/text/failure.h"
#include "cli/text/text_out.h"
#include "restart/channels/hosts_plan.h"
#include "restart/descriptors/builder.h"

namespace ckpt::cli {

namespace {

constexpr const char* kFarRemedy = "nothing was changed; restart the job with ckpt-restart --hosts";

std::string name_of(const PlannedMember& m, const ParsedOpenFile& f, int fd) {
  return fmt::format("{} ({}): {}", m.listed->pid, printable(m.listed->name), printable(describe(f, fd)));
}

// Both ends have to say the same of a connection: where one end has ended its stream the other may not know
// it yet.
Result<void> plan_one(const PlannedMember& m, const ParsedOpenFile& f, const ImageSocket& was,
                      OtherHosts& others) {
  const auto still_open = m.difference->still_open.find(f.record.id);
  const auto refuse = [&](std::string_view what) {
    return failure(ExitCode::kUnsupported,
                   name_of(m, f, still_open == m.difference->still_open.end() ? -1 : still_open->second.fd),
                   what, kFarRemedy);
  };
  if (still_open == m.difference->still_open.end())
    return refuse("was closed since, and leads to another host of the job");
  const ImageSocket is = socket_of(*still_open->second.now);
  if (was.link.state != TCP_ESTABLISHED || was.detail.shut_down != 0)
    return refuse("was shut down at one end already, and leads to another host of the job");
  if (is.link.state != TCP_ESTABLISHED || is.detail.shut_down != 0)
    return refuse("was shut down, closed or reset since, and leads to another host of the job");
  bool urgent = false;
  for_each_detail<SocketMessageDetail>(
      f, OpenFileDetail::kSocketMessage,
      [&](const SocketMessageDetail& d, Blob) { urgent = urgent || (d.flags & kMessageUrgent) != 0; });
  if (urgent) return refuse("held urgent bytes, which cannot be sent again yet");
  FarConnection far{{}, name_of(m, f, still_open->second.fd), end_text(was.local), end_text(was.remote), {}};
  for (const auto& c : m.then->contents) {
    if (c.record.open_file == f.record.id) far.queue.emplace_back(c.bytes.begin(), c.bytes.end());
  }
  m.difference->ops.push_back(
      {{static_cast<uint32_t>(BackDescriptor::kDrain), still_open->second.fd, 1, 0, 0, 0, 0, 0}, {}});
  return others.add(m.pidfd, still_open->second.fd_now, std::move(far));
}

}  // namespace

Result<void> plan_far_connections(std::vector<PlannedMember>& members, OtherHosts& others) {
  std::set<uint64_t> known;  // several processes may have one
  others.forget();
  for (const PlannedMember& m : members) {
    for (const auto& f : m.then->open_files) {
      const ImageSocket was = socket_of(f);
      if (!was.is_tcp() || !known.insert(f.record.object).second) continue;
      if (was.detail.backlog >= 0) {
        const auto still_open = m.difference->still_open.find(f.record.id);
        if (still_open == m.difference->still_open.end()) continue;
        CKPT_TRY(OtherHosts::check_nobody_waits(m.pidfd, still_open->second.fd_now,
                                                name_of(m, f, still_open->second.fd)));
      } else if (others.leads_there(was.local, was.remote)) {
        CKPT_TRY(plan_one(m, f, was, others));
      }
    }
  }
  return {};
}

}  // namespace ckpt::cli
