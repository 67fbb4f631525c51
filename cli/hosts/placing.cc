#include "cli/hosts/placing.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/sockets/job_addresses.h"
#include "cli/image/jobs/job_images.h"
#include "cli/keeper/host_keeper.h"
#include "cli/text/failure.h"
#include "image/read/image_reader.h"
#include "restart/descriptors/builder.h"

namespace ckpt::cli {

namespace {

// The ports that the kernel chooses from by default, and the first of those that are given in exchange.
constexpr int kFirstChosen = 32768, kLastChosen = 60999, kFirstFree = 20000;

// 32 digits; IPv4 as ::ffff:a.b.c.d.
std::string hex_of_address(const std::string& text) {
  uint8_t bytes[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  if (inet_pton(AF_INET, text.c_str(), bytes + 12) != 1) (void)inet_pton(AF_INET6, text.c_str(), bytes);
  std::string hex;
  for (const uint8_t b : bytes) hex += fmt::format("{:02x}", b);
  return hex;
}

std::string line_of(AddressLineKind kind, const Json& host, int first, int last, int machine_first) {
  const std::string now = host.value("address", "");
  return fmt::format("{}{}{}{:04x}{:04x}{:04x}", static_cast<char>(kind),
                     hex_of_address(host.value("job_address", now)), hex_of_address(now), first, last,
                     machine_first);
}

// As the job knows this port of that host, by the table of the checkpoint.
int port_in_job(const Json& was, const std::string& name, int port) {
  for (const Json& h : was["hosts"]) {
    if (h.value("name", "") != name || !h.contains("ports")) continue;
    for (const Json& p : h["ports"]) {
      const int first = p[0], last = p[1], machine = p[2];
      if (port >= machine && port - machine <= last - first) return first + (port - machine);
    }
  }
  return port;
}

}  // namespace

std::vector<std::string> place_parts(size_t parts, const std::vector<std::string>& hosts) {
  std::vector<std::string> where;
  const size_t used = std::min(parts, hosts.size());
  for (size_t i = 0; i < parts; ++i) where.push_back(hosts[i * used / parts]);
  return where;
}

std::vector<bool> who_shares(const Json& table) {
  std::vector<bool> shares;
  for (const Json& h : table["hosts"]) {
    const auto same = [&](const Json& other) { return other.value("address", "") == h.value("address", ""); };
    shares.push_back(std::count_if(table["hosts"].begin(), table["hosts"].end(), same) > 1);
  }
  return shares;
}

std::vector<int> ports_of_part(const std::string& at) {
  std::set<int> ports;
  const ReachedPart reached = reach_part(at);  // it may be in a keeper's memory
  const std::string& part = reached.path;
  const JobEntry entry = examine_job(part);
  for (const ManifestMember& m : entry.manifest.members) {
    if (m.image.empty()) continue;
    auto image = ImageReader::open(part + "/" + m.image);
    if (!image.ok()) continue;  // its restart will say it
    for (const auto& file : image->meta().open_files) {
      for_each_detail<SocketDetail>(file, OpenFileDetail::kSocket, [&](const SocketDetail& d, Blob rest) {
        sockaddr_in name{};
        if ((d.domain != AF_INET && d.domain != AF_INET6) || d.address_len < sizeof(name) ||
            rest.size() < sizeof(name))
          return;
        std::memcpy(&name, rest.data(), sizeof(name));  // the port is at the same place in both
        if (name.sin_port != 0) ports.insert(ntohs(name.sin_port));
      });
    }
  }
  return {ports.begin(), ports.end()};
}

namespace {

// Of one part, by the ports that the program knows: those on the machine.
using PortMap = std::map<int, int>;

// Of a part that is there already: what it was given when it came, and what its sockets have now.
PortMap ports_that_stay(const Json& was, const Json& host, const std::vector<int>& now) {
  PortMap map;
  for (const Json& p : host.value("ports", Json::array())) {
    for (int port = p[0]; port <= p[1].get<int>(); ++port)
      map[port] = p[2].get<int>() + (port - p[0].get<int>());
  }
  for (const int port : now) map[port_in_job(was, host.value("name", ""), port)] = port;
  return map;
}

// Of a part that comes: a port that another one has there is exchanged for one that none has, also none of
// `wanted`.
PortMap ports_given(const std::vector<int>& in_job, const std::set<int>& taken, std::set<int> wanted) {
  PortMap map;
  int free = kFirstFree;
  for (const int port : in_job) {
    map[port] = port;
    if (taken.count(port) == 0) continue;
    while (wanted.count(free) != 0) ++free;
    map[port] = free;
    wanted.insert(free);
  }
  return map;
}

// [first, last, the first on the machine], as few as they can be.
Json ranges_of(const PortMap& map) {
  Json all = Json::array();
  for (const auto& [port, now] : map) {
    if (!all.empty() && all.back()[1] == port - 1 &&
        all.back()[2].get<int>() + (port - all.back()[0].get<int>()) == now) {
      all.back()[1] = port;
    } else {
      all.push_back({port, port, now});
    }
  }
  return all;
}

std::string machine_of(const Json& table, size_t part) { return table["hosts"][part].value("address", ""); }

}  // namespace

std::vector<bool> who_gets_ports(const Json& table, const std::vector<int>& come) {
  std::set<std::string> with_new;
  for (const int part : come) with_new.insert(machine_of(table, static_cast<size_t>(part)));
  std::vector<bool> who = who_shares(table);
  for (size_t i = 0; i < who.size(); ++i) who[i] = who[i] && with_new.contains(machine_of(table, i));
  return who;
}

void share_ports(Json& table, const Json& was, const std::vector<std::vector<int>>& ports,
                 const std::vector<int>& come) {
  const std::vector<bool> gets = who_gets_ports(table, come);
  std::map<std::string, std::set<int>> taken, wanted;  // by machine
  std::map<std::string, int> parts, placed;
  std::vector<std::vector<int>> in_job(ports.size());
  std::vector<PortMap> maps(ports.size());
  const auto comes = [&come](size_t i) {
    return std::find(come.begin(), come.end(), static_cast<int>(i)) != come.end();
  };
  for (size_t i = 0; i < ports.size(); ++i) {
    Json& h = table["hosts"][i];
    const std::string machine = machine_of(table, i);
    ++parts[machine];
    for (int port : ports[i]) in_job[i].push_back(port_in_job(was, h.value("name", ""), port));
    std::sort(in_job[i].begin(), in_job[i].end());
    wanted[machine].insert(in_job[i].begin(), in_job[i].end());
    if (!gets[i] || comes(i)) continue;
    maps[i] = ports_that_stay(was, h, ports[i]);
    for (const auto& [port, now] : maps[i]) taken[machine].insert(now);
  }
  for (size_t i = 0; i < ports.size(); ++i) {
    Json& h = table["hosts"][i];
    if (comes(i)) {
      h.erase("ports");
      h.erase("slice");
    }
    if (!gets[i]) continue;
    const std::string machine = machine_of(table, i);
    std::set<int>& there = taken[machine];
    if (comes(i)) {
      // Not one that a part has which comes later, either.
      std::set<int> not_free = wanted[machine];
      not_free.insert(there.begin(), there.end());
      maps[i] = ports_given(in_job[i], there, std::move(not_free));
      for (const auto& [port, now] : maps[i]) there.insert(now);
    }
    h["ports"] = ranges_of(maps[i]);
    const int width = (kLastChosen + 1 - kFirstChosen) / parts[machine];
    const int first = kFirstChosen + placed[machine]++ * width;
    h["slice"] = {first, first + width - 1};
  }
}

std::vector<std::string> address_lines(const Json& table, const std::string& own) {
  std::string here;
  std::vector<std::string> own_ports, ports, slices, hosts;
  for (const Json& h : table["hosts"]) {
    const bool is_own = h.value("name", "") == own;
    const std::string line = line_of(AddressLineKind::kHost, h, 0, 65535, 0);
    if (is_own) {
      here = line;
    } else {
      hosts.push_back(line);
    }
    if (h.contains("ports")) {
      for (const Json& p : h["ports"])
        (is_own ? own_ports : ports).push_back(line_of(AddressLineKind::kPort, h, p[0], p[1], p[2]));
    }
    if (h.contains("slice"))
      slices.push_back(line_of(AddressLineKind::kSlice, h, h["slice"][0], h["slice"][1], h["slice"][0]));
  }
  std::vector<std::string> all;
  if (!here.empty()) all.push_back(here);
  for (const auto* some : {&own_ports, &ports, &slices, &hosts})
    all.insert(all.end(), some->begin(), some->end());
  return all;
}

}  // namespace ckpt::cli
