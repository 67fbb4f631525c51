#include "cli/hosts/placing.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <set>

#include "base/sockets/job_addresses.h"
#include "cli/image/job_images.h"
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

std::vector<int> ports_of_part(const std::string& part) {
  std::set<int> ports;
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

void share_ports(Json& table, const Json& was, const std::vector<std::vector<int>>& ports) {
  const std::vector<bool> shares = who_shares(table);
  std::map<std::string, std::set<int>> taken;  // by machine
  std::map<std::string, int> parts, placed;
  std::vector<std::vector<int>> in_job(ports.size());
  for (size_t i = 0; i < ports.size(); ++i) {
    const Json& h = table["hosts"][i];
    for (int port : ports[i]) in_job[i].push_back(port_in_job(was, h.value("name", ""), port));
    std::sort(in_job[i].begin(), in_job[i].end());
    ++parts[h.value("address", "")];
  }
  for (size_t i = 0; i < ports.size(); ++i) {
    Json& h = table["hosts"][i];
    h.erase("ports");
    h.erase("slice");
    if (!shares[i]) continue;
    const std::string machine = h.value("address", "");
    // No port is given in exchange that any part on this machine has, also one that comes later.
    std::set<int> wanted = taken[machine];
    for (size_t k = 0; k < ports.size(); ++k) {
      if (table["hosts"][k].value("address", "") == machine)
        wanted.insert(in_job[k].begin(), in_job[k].end());
    }
    int free = kFirstFree;
    h["ports"] = Json::array();
    for (int port : in_job[i]) {
      int now = port;
      if (taken[machine].count(port) != 0) {
        while (wanted.count(free) != 0) ++free;
        now = free;
        wanted.insert(now);
      }
      taken[machine].insert(now);
      Json& all = h["ports"];
      if (!all.empty() && all.back()[1] == port - 1 &&
          all.back()[2].get<int>() + (port - all.back()[0].get<int>()) == now) {
        all.back()[1] = port;
      } else {
        all.push_back({port, port, now});
      }
    }
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
