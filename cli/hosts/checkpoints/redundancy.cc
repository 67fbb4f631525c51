#include "cli/hosts/checkpoints/redundancy.h"

#include <errno.h>
#include <poll.h>

#include <algorithm>

#include "base/clock.h"
#include "base/protocol/keeper_protocol.h"
#include "cli/hosts/job/hosts_manifest.h"
#include "cli/text/failure.h"
#include "cluster/keeper/striping.h"
#include "cluster/redundancy/code.h"

namespace ckpt::cli {

namespace {

constexpr int64_t kHaveNs = 60'000'000'000, kExchangeNs = 3'600'000'000'000, kCauseNs = 1'000'000'000;

// Collects one answer of each host; other messages go to CrewHost::early. id: of the checkpoint. Hosts that
// lost an exchange which was given up before say so late.
Result<std::vector<Json>> collect(Crew& crew, const std::string& say, uint64_t id, int64_t patience_ns,
                                  const Meanwhile& meanwhile) {
  std::vector<CrewHost>& hosts = crew.hosts();
  std::vector<Json> all(hosts.size());
  std::vector<std::vector<Json>> others(hosts.size());
  const int64_t deadline = now_ns() + patience_ns;
  std::optional<Error> error;
  std::vector<bool> failed(hosts.size());
  int64_t until = 0;  // after an error: others may say what is the cause of it
  size_t left = hosts.size();
  while (left > 0 && (!error || now_ns() < until)) {
    const auto heard = [&](size_t i) { return failed[i] || !all[i].is_null(); };
    const auto ends_with = [&](const Error& cause) {
      error = cause;
      until = 0;
    };
    std::vector<pollfd> polls;
    for (size_t i = 0; i < hosts.size(); ++i)
      polls.push_back({heard(i) ? -1 : hosts[i].link.fd(), POLLIN, 0});
    (void)!poll(polls.data(), polls.size(), 100);
    if (auto r = meanwhile(); !r.ok()) ends_with(r.error());
    for (size_t i = 0; i < hosts.size() && (!error || until != 0); ++i) {
      if (heard(i) || (polls[i].revents == 0 && hosts[i].link.valid())) continue;
      std::vector<Json> messages;
      const bool there = crew.hear(static_cast<int>(i), messages);
      for (Json& m : messages) {
        const std::string what = m.value("say", "");
        const bool of_exchange = what.starts_with("exchange_") || m.value("of", "") == "exchange";
        if (of_exchange && m.value("id", uint64_t{0}) != id) continue;
        if (what == say && !heard(i)) {
          all[i] = std::move(m);
          --left;
        } else if (of_exchange && what == "failed" && !heard(i)) {
          failed[i] = true;
          --left;
          hosts[i].no_room = m.value("errno", 0) == ENOSPC || m.value("errno", 0) == EEXIST;
          const auto code = static_cast<ExitCode>(m.value("code", 70));
          const Error said = make_error(code, m.value("errno", 0), "{}: {}", hosts[i].where,
                                        m.value("text", "").substr(0, 240));
          // That it lost another one is seldom the cause: others say why soon, and all end with it.
          if (code != ExitCode::kUnavailable) {
            ends_with(said);
          } else if (!error) {
            error = said;
            until = now_ns() + kCauseNs;
          }
        } else {
          others[i].push_back(std::move(m));
        }
      }
      if (there || heard(i)) continue;
      const Error gone =
          failure(ExitCode::kUnavailable, hosts[i].where, "its agent is gone", "look at that host");
      ends_with(error ? *error : gone);
    }
    for (size_t i = 0; i < hosts.size() && !error; ++i) {
      if (all[i].is_null() && now_ns() > deadline)
        error = failure(ExitCode::kTimeout, hosts[i].where, "did not answer in time", "look at that host");
    }
  }
  for (size_t i = 0; i < hosts.size(); ++i)
    hosts[i].early.insert(hosts[i].early.end(), others[i].begin(), others[i].end());
  if (error) return *error;
  return all;
}

// From the plan to "done" from all. lengths: of the streams; empty: as the hosts say. *heard: their "port"
// lines.
Result<std::vector<Json>> exchange(Crew& crew, Json plan, const std::vector<HostsManifest::Part>& parts,
                                   const std::vector<std::string>& ground, std::vector<uint64_t> lengths,
                                   std::vector<Json>* heard, const Meanwhile& meanwhile) {
  const uint64_t id = plan.at("id");
  plan["secret"] = cluster::hex_of(cluster::make_secret());
  plan["connect"] = cluster::hex_of(cluster::make_secret());  // a name: no two are the same
  plan["addresses"] = Json::array();
  for (const CrewHost& h : crew.hosts()) plan["addresses"].push_back(h.address);
  const Json record = plan.value("record", Json::array());
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!record.empty()) plan["record"] = record[i];
    plan["self"] = i;
    if (ground.size() == parts.size()) plan["ground"] = ground[i];
    plan["part"] = parts[i].directory;
    crew.tell(static_cast<int>(i), {{"say", "exchange"}, {"plan", plan}});
  }
  auto give_up = [&](const Error& error) {
    crew.tell_all({{"say", "exchange_end"}});
    return error;
  };
  auto ports = collect(crew, "exchange_port", id, kExchangeNs, meanwhile);
  if (!ports.ok()) return give_up(ports.error());
  Json all{{"say", "exchange_go"}, {"ports", Json::array()}};
  for (const Json& p : *ports) {
    all["ports"].push_back(p.value("port", 0));
    if (plan.contains("lost")) continue;
    lengths.push_back(p.value("bytes", uint64_t{0}));
  }
  all["lengths"] = lengths;
  const std::string connected = ports->front().value("connected", "");
  const auto has_them = [&](const Json& p) { return p.value("connected", "") == connected; };
  if (!connected.empty() && std::all_of(ports->begin(), ports->end(), has_them)) all["connected"] = connected;
  crew.tell_all(all);
  auto done = collect(crew, "exchange_done", id, kExchangeNs, meanwhile);
  if (!done.ok()) return give_up(done.error());
  if (heard != nullptr) *heard = std::move(*ports);
  return done;
}

// Roles rotate, and may be fixed behind that: the lost hosts must be recoverable in every stripe of a cycle
// and in the last one.
bool can_recover(const redundancy::Code& code, const keeper::Striping& striping,
                 const std::vector<bool>& lost) {
  const unsigned hosts = striping.hosts();
  const auto gives_back = [&](uint64_t stripe) {
    std::vector<bool> roles(hosts);
    for (unsigned host = 0; host < hosts; ++host) roles[striping.role_of(host, stripe)] = lost[host];
    return code.can_recover(roles);
  };
  for (uint64_t stripe = 0; stripe < std::min<uint64_t>(hosts, striping.rotating()); ++stripe) {
    if (!gives_back(stripe)) return false;
  }
  return striping.stripes() == 0 || gives_back(striping.stripes() - 1);
}

// Of hosts that are to get a part: those that are surely too small for it are marked, before anything is
// sent. The part and its differences are counted; how many blocks of checks are not zero nobody knows yet.
Result<void> check_room(Crew& crew, const std::vector<Json>& have, const std::vector<bool>& lost,
                        const Json& parts) {
  std::string names;
  for (size_t i = 0; i < lost.size(); ++i) {
    uint64_t bytes = 0;
    for (const Json& file : parts[i].value("files", Json::array())) {
      bytes += file.at(1).get<uint64_t>();
      if (file.size() >= 8) bytes += file.at(6).get<uint64_t>();
    }
    CrewHost& host = crew.hosts()[i];
    host.no_room = lost[i] && have[i].value("free", UINT64_MAX) < bytes;
    if (host.no_room) names += (names.empty() ? "" : ", ") + host.where;
  }
  if (names.empty()) return {};
  Error e = failure(ExitCode::kIo, names, "its keeper has no room for the lost part",
                    "start the keeper with more --memory");
  e.sys_errno = ENOSPC;
  return e;
}

}  // namespace

Result<Json> protect_parts(Crew& crew, uint64_t id, const std::vector<HostsManifest::Part>& parts,
                           const Redundancy& wanted, const Meanwhile& meanwhile) {
  std::vector<Json> heard;
  const Json plan{
      {"id", id}, {"scheme", wanted.scheme}, {"checks_on", wanted.checks_on}, {"words", wanted.words}};
  auto done = exchange(crew, plan, parts, wanted.ground, {}, &heard, meanwhile);
  if (!done.ok()) return done.error();
  Json redundancy{{"scheme", wanted.scheme}, {"checks_on", wanted.checks_on}, {"parts", Json::array()}};
  for (size_t i = 0; i < parts.size(); ++i) {
    redundancy["parts"].push_back({{"files", heard[i].value("files", Json::array())},
                                   {"bytes", heard[i].value("bytes", uint64_t{0})},
                                   {"held", heard[i].value("held", uint64_t{0})},
                                   {"sum", (*done)[i].value("sum", "")},
                                   {"checks", (*done)[i].value("checks", "")}});
  }
  return redundancy;
}

Protected how_protected(const Json& redundancy) {
  Protected all;
  for (const Json& part : redundancy.value("parts", Json::array())) {
    all.images += part.value("held", part.value("bytes", uint64_t{0}));
    all.stream += part.value("bytes", uint64_t{0});
    for (const Json& file : part.value("files", Json::array()))
      all.by_differences = all.by_differences || (file.size() >= 8 && file.at(6) != 0);
  }
  return all;
}

Result<std::string> recover_parts(Crew& crew, const HostsManifest& manifest, const Meanwhile& meanwhile) {
  bool in_keeper = false;
  for (size_t i = 0; i < manifest.parts.size(); ++i) {
    const HostsManifest::Part& p = manifest.parts[i];
    in_keeper = in_keeper || keeper_part(p.directory) != 0;
    crew.tell(static_cast<int>(i), {{"say", "have"},
                                    {"part", p.directory},
                                    {"checksum", p.checksum},
                                    {"memory", manifest.redundancy.value("memory", uint64_t{0})}});
  }
  auto have = collect(crew, "have", 0, kHaveNs, meanwhile);
  if (!have.ok()) return have.error();
  if (!in_keeper) return std::string();  // each says for itself what it lacks
  std::vector<bool> lost;
  std::string names;
  for (size_t i = 0; i < have->size(); ++i) {
    lost.push_back(!(*have)[i].value("there", false));
    if (lost[i]) names += (names.empty() ? "" : ", ") + manifest.parts[i].host;
  }
  if (names.empty()) return names;
  if (!manifest.redundancy.contains("scheme"))
    return failure(ExitCode::kNotFound, names, "the part is gone with its keeper, and there is no redundancy",
                   "use an older checkpoint; next time --redundancy");
  const std::string text = manifest.redundancy.value("scheme", "");
  auto scheme = keeper::scheme_for_hosts(text, static_cast<unsigned>(lost.size()));
  if (!scheme.ok()) return scheme.error();
  auto code = redundancy::Code::make(*scheme);
  if (!code.ok()) return code.error();
  std::vector<uint64_t> lengths;
  for (const auto& p : manifest.redundancy["parts"]) lengths.push_back(p.value("bytes", uint64_t{0}));
  const std::vector<unsigned> checks_on = manifest.redundancy.value("checks_on", std::vector<unsigned>());
  if (lengths.size() != lost.size() ||
      !keeper::are_holders(checks_on, *scheme, static_cast<unsigned>(lost.size())))
    return failure(ExitCode::kImageDamaged, names, "the list of their parts is damaged",
                   "use an older checkpoint");
  if (!can_recover(**code, keeper::Striping(*scheme, lengths, checks_on), lost))
    return failure(ExitCode::kNotFound, names,
                   fmt::format("the parts of these hosts are gone, more than {} gives back", text),
                   "bring one of their keepers back, or use an older checkpoint");
  CKPT_TRY(check_room(crew, *have, lost, manifest.redundancy["parts"]));
  auto done = exchange(crew,
                       {{"id", manifest.id},
                        {"scheme", text},
                        {"checks_on", checks_on},
                        {"lost", lost},
                        {"job", manifest.job},
                        {"record", manifest.redundancy["parts"]}},
                       manifest.parts, {}, lengths, nullptr, meanwhile);
  for (size_t i = 0; i < lost.size(); ++i) {
    CrewHost& host = crew.hosts()[i];
    host.no_room = host.no_room && lost[i] && !done.ok();
  }
  if (!done.ok()) return done.error();
  return names;
}

}  // namespace ckpt::cli
