#include "libckpt_rt/interpose/addresses/addresses.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "base/memory/large_table.h"
#include "base/raii_fd.h"
#include "base/sys.h"
#include "image/format/keeper_client.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::addresses {

constinit std::atomic<uint32_t> count{0};
constinit bool over_hosts = false;

namespace {

CKPT_LARGE_TABLE constinit AddressLine table[kMostLines]{};
constinit PortRange slice{};  // first 0: the part has all ports of its host
constinit std::atomic<uint32_t> choices{0};

std::span<const AddressLine> lines() { return {table, count.load(std::memory_order_relaxed)}; }

constexpr uint8_t kFour[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

// False: it is no such address.
bool take(const void* name, uint32_t length, PortAt& at) {
  uint8_t(&bytes)[16] = at.address;
  sa_family_t family;
  if (length < sizeof(family)) return false;
  std::memcpy(&family, name, sizeof(family));
  if (family == AF_INET && length >= sizeof(sockaddr_in)) {
    std::memcpy(bytes, kFour, sizeof(kFour));
    std::memcpy(bytes + sizeof(kFour), &static_cast<const sockaddr_in*>(name)->sin_addr, 4);
    at.port = __builtin_bswap16(static_cast<const sockaddr_in*>(name)->sin_port);
    return true;
  }
  if (family != AF_INET6 || length < offsetof(sockaddr_in6, sin6_addr) + 16) return false;
  std::memcpy(bytes, &static_cast<const sockaddr_in6*>(name)->sin6_addr, 16);
  at.port = __builtin_bswap16(static_cast<const sockaddr_in6*>(name)->sin6_port);
  return true;
}

void put(void* name, const PortAt& at) {
  const uint8_t(&bytes)[16] = at.address;
  sa_family_t family;
  std::memcpy(&family, name, sizeof(family));
  static_cast<sockaddr_in*>(name)->sin_port = __builtin_bswap16(at.port);  // at the same place in both
  if (family == AF_INET6) {
    std::memcpy(&static_cast<sockaddr_in6*>(name)->sin6_addr, bytes, 16);
  } else if (std::memcmp(bytes, kFour, sizeof(kFour)) == 0) {
    std::memcpy(&static_cast<sockaddr_in*>(name)->sin_addr, bytes + sizeof(kFour), 4);
  }
}

// The first n lines of the table.
void use(uint32_t n) {
  count.store(n, std::memory_order_relaxed);
  const AddressLine* own = n == 0 ? nullptr : own_slice(lines());
  slice = own == nullptr ? PortRange{} : PortRange{own->machine_first, own->last};
}

}  // namespace

void set(std::span<const AddressLine> lines) {
  const auto n = static_cast<uint32_t>(std::min<size_t>(lines.size(), kMostLines));
  std::copy_n(lines.begin(), n, table);
  use(n);
}

long read(const char* directory) {
  count.store(0, std::memory_order_relaxed);
  slice = {};
  constexpr char kFile[] = "/.hosts-addresses";
  char path[1300];
  const std::string_view name(directory);
  if (name.size() + sizeof(kFile) > sizeof(path)) return -ENAMETOOLONG;
  std::memcpy(path, name.data(), name.size());
  std::memcpy(path + name.size(), kFile, sizeof(kFile));
  ScopedFd keeper_directory;
  if (keeper_part(name) == name.size()) {
    auto images = open_keeper_directory(name);
    if (!images.ok()) return -ENOENT;
    keeper_directory = std::move(*images);
  }
  const bool in_keeper = keeper_directory.valid();
  const long opened = sys::call(__NR_openat, in_keeper ? keeper_directory.get() : AT_FDCWD,
                                in_keeper ? kFile + 1 : path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW, 0L);
  if (sys::failed(opened)) return opened == -ENOENT || opened == -EACCES ? 0 : opened;
  const ScopedFd file(static_cast<int>(opened));
  constexpr size_t kLine = kAddressLineText + 1;
  char line[kLine];
  for (uint32_t n = 0;; ++n) {
    const long got = sys::call(__NR_read, file.get(), line, kLine);
    if (got == 0) {
      use(n);
      return 0;
    }
    if (got < 0) return got;
    if (got != static_cast<long>(kLine) || n == kMostLines || !parse_address_line(line, table[n]))
      return -EINVAL;
  }
}

void PortChoice::choose() {
  if (slice.first == 0) return;
  // Spread over the slice: what is free behind a socket of another part may be little.
  constexpr uint32_t kGolden = 0x9E3779B1;
  const uint32_t some = choices.fetch_add(kGolden, std::memory_order_relaxed);
  const auto from = static_cast<uint16_t>(slice.first + (uint64_t{some} * slice.ports() >> 32));
  if (!free_ports(lines(), from, range_)) return;
  ports_left_ = slice.ports();
  set();
}

// Fewer ports are left each time, so it ends.
bool PortChoice::choose_next(long result) {
  sockaddr_storage name;
  socklen_t length = sizeof(name);
  PortAt at;
  if ((result != -EADDRNOTAVAIL && result != -EADDRINUSE && result != -EAGAIN) ||
      sys::call(__NR_getsockname, fd_, &name, &length) != 0 || !take(&name, length, at) || at.port != 0)
    return false;
  ports_left_ -= std::min(ports_left_, range_.ports());
  const uint32_t behind = uint32_t{range_.last} + 1;
  if (ports_left_ == 0 ||
      !free_ports(lines(), behind > slice.last ? slice.first : static_cast<uint16_t>(behind), range_))
    return false;
  set();
  return true;
}

// Refused by an older kernel, or by a socket that has no ports: then it has a port of any part.
void PortChoice::set() {
  const uint32_t range = range_.option();
  if (sys::call(__NR_setsockopt, fd_, IPPROTO_IP, kIpLocalPortRange, &range, sizeof(range)) != 0)
    ports_left_ = 0;
}

const void* to_machine_in_table(const void* name, uint32_t length, sockaddr_storage& copy) {
  PortAt at;
  if (length > sizeof(copy) || !program_memory::may_read(name, length) || !take(name, length, at) ||
      !ckpt::to_machine(lines(), at))
    return name;
  std::memcpy(&copy, name, length);
  put(&copy, at);
  return &copy;
}

bool leaves_port_open_in_table(const void* name, uint32_t length) {
  PortAt at;
  return program_memory::may_read(name, length) && take(name, length, at) && at.port == 0;
}

void to_job_in_table(void* name, uint32_t room, bool own) {
  PortAt at;
  if (take(name, room, at) && ckpt::to_job(lines(), at, own ? table[0].job : nullptr)) put(name, at);
}

}  // namespace ckpt::addresses
