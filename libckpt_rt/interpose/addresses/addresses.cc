#include "libckpt_rt/interpose/addresses/addresses.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>

#include <cstring>
#include <string_view>

#include "base/raii_fd.h"
#include "base/sys.h"
#include "image/format/keeper_client.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::addresses {

std::atomic<uint32_t> count{0};
bool over_hosts = false;

namespace {

constexpr uint32_t kMost = 1024;
struct Pair {
  uint8_t job[16], machine[16];
};
Pair table[kMost];

constexpr uint8_t kFour[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool take_line(const char* text, Pair& pair) {
  auto* bytes = reinterpret_cast<uint8_t*>(&pair);
  for (size_t i = 0; i < sizeof(pair); ++i) {
    const int high = hex_digit(text[2 * i]), low = hex_digit(text[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    bytes[i] = static_cast<uint8_t>(high << 4 | low);
  }
  return true;
}

// The 16 bytes of an address. False: it is no such address.
bool take(const void* name, uint32_t length, uint8_t (&bytes)[16]) {
  sa_family_t family;
  if (length < sizeof(family)) return false;
  std::memcpy(&family, name, sizeof(family));
  if (family == AF_INET && length >= sizeof(sockaddr_in)) {
    std::memcpy(bytes, kFour, sizeof(kFour));
    std::memcpy(bytes + sizeof(kFour), &static_cast<const sockaddr_in*>(name)->sin_addr, 4);
    return true;
  }
  if (family != AF_INET6 || length < offsetof(sockaddr_in6, sin6_addr) + 16) return false;
  std::memcpy(bytes, &static_cast<const sockaddr_in6*>(name)->sin6_addr, 16);
  return true;
}

void put(void* name, const uint8_t (&bytes)[16]) {
  sa_family_t family;
  std::memcpy(&family, name, sizeof(family));
  if (family == AF_INET6) {
    std::memcpy(&static_cast<sockaddr_in6*>(name)->sin6_addr, bytes, 16);
  } else if (std::memcmp(bytes, kFour, sizeof(kFour)) == 0) {
    std::memcpy(&static_cast<sockaddr_in*>(name)->sin_addr, bytes + sizeof(kFour), 4);
  }
}

}  // namespace

long read(const char* directory) {
  count.store(0, std::memory_order_relaxed);
  constexpr char kFile[] = "/.hosts-addresses";
  char path[1300];
  const std::string_view name(directory);
  if (name.size() + sizeof(kFile) > sizeof(path)) return -ENAMETOOLONG;
  std::memcpy(path, name.data(), name.size());
  std::memcpy(path + name.size(), kFile, sizeof(kFile));
  ScopedFd kept;
  if (keeper_part(name) == name.size()) {
    auto images = open_kept_directory(name);
    if (!images.ok()) return -ENOENT;
    kept = std::move(*images);
  }
  const bool is_kept = kept.valid();
  const long opened = sys::call(__NR_openat, is_kept ? kept.get() : AT_FDCWD, is_kept ? kFile + 1 : path,
                                O_RDONLY | O_CLOEXEC | O_NOFOLLOW, 0L);
  if (sys::failed(opened)) return opened == -ENOENT || opened == -EACCES ? 0 : opened;
  const ScopedFd file(static_cast<int>(opened));
  constexpr size_t kLine = 4 * 16 + 1;
  char line[kLine];
  for (uint32_t n = 0;; ++n) {
    const long got = sys::call(__NR_read, file.get(), line, kLine);
    if (got == 0) {
      count.store(n, std::memory_order_relaxed);
      return 0;
    }
    if (got < 0) return got;
    if (got != static_cast<long>(kLine) || n == kMost || !take_line(line, table[n])) return -EINVAL;
  }
}

const void* to_machine_in_table(const void* name, uint32_t length, sockaddr_storage& copy) {
  uint8_t bytes[16];
  if (length > sizeof(copy) || !take(name, length, bytes)) return name;
  for (uint32_t i = 0; i < count.load(std::memory_order_relaxed); ++i) {
    if (std::memcmp(table[i].job, bytes, 16) != 0) continue;
    std::memcpy(&copy, name, length);
    put(&copy, table[i].machine);
    return &copy;
  }
  return name;
}

void to_job_in_table(void* name, uint32_t room, bool own) {
  uint8_t bytes[16];
  if (!take(name, room, bytes)) return;
  // Two parts of the job may be on one host now. The first line is this one's.
  const uint32_t n = count.load(std::memory_order_relaxed);
  for (uint32_t i = 0; i < n; ++i) {
    const Pair& pair = table[own ? i : (i + 1) % n];
    if (std::memcmp(pair.machine, bytes, 16) != 0) continue;
    put(name, pair.job);
    return;
  }
}

}  // namespace ckpt::addresses
