#include "cli/hosts/head/hear_each.h"

#include <poll.h>

#include <algorithm>
#include <optional>

#include "base/clock.h"
#include "cli/text/failure.h"

namespace ckpt::cli {

namespace {

constexpr int kHearMs = 20;

}  // namespace

Result<void> HearEach::take(int host, Json said, const AwaitedWord& awaited, Json& wanted,
                            std::vector<Json>& others) const {
  const std::string say = said.value("say", "");
  const std::string& where = crew.hosts()[static_cast<size_t>(host)].where;
  const bool of_this = awaited.id == 0 || said.value("id", awaited.id) == awaited.id;
  if (say == awaited.say && of_this && wanted.is_null() &&
      (awaited.step.empty() || said.value("step", "") == awaited.step)) {
    wanted = std::move(said);
    return {};
  }
  const bool failed = of_this && (say == "back_failed" || say == "cannot");
  // A message that a host sends behind its word is for the next caller that hears the host.
  if (!wanted.is_null() || awaited.may_end || (!failed && say != "ended")) {
    others.push_back(std::move(said));
    return {};
  }
  if (failed)
    return make_error(static_cast<ExitCode>(said.value("code", 70)), 0, "{}: {}", where,
                      said.value("text", ""));
  const int status = said.value("status", 0);
  others.push_back(std::move(said));
  return failure(ExitCode::kUnavailable, where, fmt::format("its first process has ended with {}", status),
                 "see the words above");
}

Result<std::vector<Json>> HearEach::hear(const std::vector<AwaitedWord>& awaited) {
  auto& hosts = crew.hosts();
  std::vector<Json> all(hosts.size());
  std::vector<std::vector<Json>> others(hosts.size());
  std::optional<Error> error;
  const auto is_missing = [&](size_t i) { return !awaited[i].say.empty() && all[i].is_null(); };
  const auto missing = [&] {
    size_t i = 0;
    while (i < hosts.size() && !is_missing(i)) ++i;
    return i;
  };
  for (const int64_t deadline = now_ns() + patience_ns; missing() != hosts.size() && !error;) {
    std::vector<pollfd> polls;
    for (size_t i = 0; i < hosts.size(); ++i)
      polls.push_back({hosts[i].link.valid() ? hosts[i].link.fd() : -1, POLLIN, 0});
    (void)!poll(polls.data(), polls.size(), kHearMs);
    if (auto r = meanwhile ? meanwhile() : Result<void>(); !r.ok()) error = r.error();
    for (size_t i = 0; i < hosts.size() && !error; ++i) {
      const bool is_early = is_missing(i) && (!hosts[i].early.empty() || !hosts[i].link.valid());
      if (!is_early && polls[i].revents == 0) continue;
      std::vector<Json> messages;
      const int host = static_cast<int>(i);
      const bool there = crew.hear(host, messages);
      for (Json& j : messages) {
        auto taken = take(host, std::move(j), awaited[i], all[i], others[i]);
        if (taken.ok() || error) continue;
        error = taken.error();
        failed_host = host;
      }
      if (there || error || (awaited[i].may_end && !is_missing(i))) continue;
      error = failure(ExitCode::kUnavailable, hosts[i].where, "its agent is gone", "look at that host");
      failed_host = host;
    }
    if (error || missing() == hosts.size() || now_ns() <= deadline) continue;
    failed_host = static_cast<int>(missing());
    error =
        failure(ExitCode::kTimeout, hosts[missing()].where, "did not answer in time", "look at that host");
  }
  for (size_t i = 0; i < hosts.size(); ++i)
    hosts[i].early.insert(hosts[i].early.end(), others[i].begin(), others[i].end());
  if (error) return *error;
  return all;
}

}  // namespace ckpt::cli
