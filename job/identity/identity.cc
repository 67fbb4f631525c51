#include "job/identity/identity.h"

#include <fmt/core.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory/fork_path.h"
#include "base/memory/own_place.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::job {

namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool read_digits(const char* text, uint8_t id[16]) {
  for (int i = 0; i < 16; ++i) {
    const int high = hex_digit(text[2 * i]);
    const int low = high < 0 ? -1 : hex_digit(text[2 * i + 1]);
    if (low < 0) return false;
    id[i] = static_cast<uint8_t>(high << 4 | low);
  }
  return true;
}

void make_id(uint8_t id[16]) {
  if (sys::call(__NR_getrandom, id, 16L, 0L) == 16) return;
  // No entropy yet, early at boot: time and pid tell jobs apart.
  const int64_t parts[2] = {now_ns(CLOCK_REALTIME), sys::getpid()};
  memcpy(id, parts, sizeof(parts));
}

}  // namespace

CKPT_START_PATH bool read_identity(const char* value, Identity& identity) {
  identity = {};
  if (value == nullptr || !read_digits(value, identity.id)) {
    make_id(identity.id);
    return false;
  }
  const char* at = value + 32;
  if (*at != ':') return false;
  int64_t root = 0;
  for (++at; *at >= '0' && *at <= '9' && root < INT32_MAX; ++at) root = root * 10 + (*at - '0');
  int64_t began_ns = 0;
  if (*at == '@') {
    for (++at; *at >= '0' && *at <= '9' && began_ns < INT64_MAX / 10; ++at)
      began_ns = began_ns * 10 + (*at - '0');
  }
  if (*at != ':' || root <= 0 || root > INT32_MAX || at[1] != '/' ||
      strlen(at + 1) >= sizeof(identity.directory))
    return false;
  identity.root = static_cast<int>(root);
  identity.began_ns = began_ns;
  strcpy(identity.directory, at + 1);
  return true;
}

bool export_identity(const Identity& identity) {
  size_t count = 0;
  while (environ != nullptr && environ[count] != nullptr) ++count;
  const size_t pointers = (count + 2) * sizeof(char*);
  const size_t bytes = pointers + sizeof(identity.directory) + 96;
  const long at =
      sys::call(__NR_mmap, 0L, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1L, 0L);
  if (sys::failed(at)) return false;
  auto** fresh = reinterpret_cast<char**>(at);
  char* text = reinterpret_cast<char*>(at) + pointers;
  *fmt::format_to_n(text, bytes - pointers - 1, "{}={}:{}@{}:{}", kJobVariable, job_text(identity.id).text,
                    identity.root, identity.began_ns, static_cast<const char*>(identity.directory))
       .out = '\0';
  const size_t name = strlen(kJobVariable);
  size_t n = 0;
  bool placed = false;
  for (size_t i = 0; i < count; ++i) {
    const bool ours = strncmp(environ[i], kJobVariable, name) == 0 && environ[i][name] == '=';
    if (!ours) {
      fresh[n++] = environ[i];
      continue;
    }
    // Go hands its children the list that the kernel made, whatever `environ` is: there the entry changes as
    // well.
    environ[i] = text;
    if (!placed) fresh[n++] = text;
    placed = true;
  }
  if (!placed) fresh[n++] = text;
  fresh[n] = nullptr;
  environ = fresh;
  return true;
}

AddrRange show_identity(const Identity& identity) {
  char name[64];
  *fmt::format_to_n(name, sizeof(name) - 1, "{}{}", kSignName, job_text(identity.id).text).out = '\0';
  const long fd = sys::call(__NR_memfd_create, name, static_cast<long>(MFD_CLOEXEC));
  if (sys::failed(fd)) return {};
  const long at = map_own(kPageSize, PROT_NONE, MAP_PRIVATE, static_cast<int>(fd));
  sys::call(__NR_close, fd);
  if (sys::failed(at)) return {};
  return {Addr{static_cast<uint64_t>(at)}, Addr{static_cast<uint64_t>(at)} + kPageSize};
}

}  // namespace ckpt::job
