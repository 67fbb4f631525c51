#include "cli/hosts/head/bookmarks.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdio>

namespace ckpt::cli {

namespace {

constexpr size_t kAddress = 32;  // digits ahead of the dot and the port

}  // namespace

void Bookmarks::take(const std::string& part, const std::string& line) {
  char local[64] = {}, remote[64] = {};
  unsigned long long sent = 0, received = 0;
  unsigned unsent = 0, ended = 0;
  if (sscanf(line.c_str(), "%63s %63s %llu %llu %u %u", local, remote, &sent, &received, &unsent, &ended) !=
      6)
    return;
  ends_[std::string(local) + " " + remote] = {part, local, remote, sent, received, unsent, ended != 0};
}

// Does it lie on a host of the job?
bool Bookmarks::leads_into_job(const std::string& remote) const {
  return std::any_of(ends_.begin(), ends_.end(), [&](const auto& end) {
    return end.second.local.compare(0, kAddress, remote, 0, kAddress) == 0;
  });
}

// All bytes that an end has sent are acknowledged: so they are at the other end, and the counts must not say
// that more came. (That end counted when its own bytes were acknowledged, perhaps before the last of these
// came.) The other end may belong to no process (not accepted yet): such a connection makes the hosts begin
// again; then the agents have it kept.
Bookmarks::Verdict Bookmarks::match(bool last) const {
  Verdict verdict;
  for (const auto& [name, end] : ends_) {
    const auto found = ends_.find(end.remote + " " + end.local);
    if (found == ends_.end()) {
      // The other has ended its stream: so its process has closed it, and this end has all that came.
      if (leads_into_job(end.remote) && !last && !end.ended)
        return {"a connection between hosts was just being made or ended", true, {}};
      continue;
    }
    const End& other = found->second;
    if (end.part == other.part) continue;  // made by the two processes on their host
    if (end.unsent != 0)
      return {fmt::format("{} bytes of a connection between hosts did not arrive", end.unsent), !last, {}};
    // The end of a stream counts as one byte received.
    if (other.received > end.sent + 1) {
      return {fmt::format("of a connection between hosts {} bytes were sent and {} received", end.sent,
                          other.received),
              false,
              {}};
    }
    if (end.local < end.remote) verdict.connections.push_back({end.local, end.remote, end.part, other.part});
  }
  return verdict;
}

}  // namespace ckpt::cli
