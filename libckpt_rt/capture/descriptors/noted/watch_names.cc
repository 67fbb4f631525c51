#include "libckpt_rt/capture/descriptors/noted/watch_names.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/inotify.h>
#include <sys/stat.h>

#include <atomic>
#include <cstring>

#include "base/memory/large_table.h"
#include "base/sys.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::watch_names {

namespace {

// One for each file: places are taken for good, the name may be replaced by a later one.
struct Place {
  std::atomic<uint64_t> inode, device;
  std::atomic<uint32_t> name;  // in `names`, + 1; 0: not yet
};
constexpr uint32_t kPlaces = 16384, kNameBytes = 1 << 20;
// constinit: constructors of other libraries, which may run before ours, put on watches as well. Of a program
// that puts on none no page of it is ever touched.
CKPT_LARGE_TABLE alignas(4096) constinit Place places[kPlaces]{};
CKPT_LARGE_TABLE alignas(4096) constinit char names[kNameBytes]{};
constinit std::atomic<uint32_t> names_end{0};

uint32_t first_place(uint64_t inode) {
  return static_cast<uint32_t>(inode * 0x9e3779b97f4a7c15u >> 32) % kPlaces;
}

// Its offset + 1, or 0: no room. The stored name begins with `directory`, if that is not empty.
uint32_t store(const char* directory, size_t directory_length, const char* path) {
  const size_t length = std::strlen(path), gap = directory_length != 0 ? 1 : 0;
  const size_t bytes = directory_length + gap + length + 1;
  // relaxed: room is nobody else's once it is taken.
  uint32_t at = names_end.load(std::memory_order_relaxed);
  do {
    if (bytes > kNameBytes - at) return 0;
  } while (
      !names_end.compare_exchange_weak(at, at + static_cast<uint32_t>(bytes), std::memory_order_relaxed));
  char* to = names + at;
  std::memcpy(to, directory, directory_length);
  if (gap != 0) to[directory_length] = '/';
  std::memcpy(to + directory_length + gap, path, length + 1);
  return at + 1;
}

bool is_name(const char* known, const char* directory, size_t directory_length, const char* path) {
  if (std::strncmp(known, directory, directory_length) != 0) return false;
  known += directory_length;
  if (directory_length != 0 && *known++ != '/') return false;
  return std::strcmp(known, path) == 0;
}

enum class Half : uint8_t { kNo, kLower };  // of the inode's number

// at: what a relative path is relative to.
void note_in(const char* directory, size_t directory_length, const char* path, uint32_t mask, Half half,
             int at = AT_FDCWD) {
  struct stat st;
  if (sys::call(__NR_newfstatat, long{at}, path, &st,
                (mask & IN_DONT_FOLLOW) != 0 ? AT_SYMLINK_NOFOLLOW : 0) != 0)
    return;
  const uint64_t device = st.st_dev;
  const uint64_t inode = half == Half::kLower ? static_cast<uint32_t>(st.st_ino) : st.st_ino;
  if (inode == 0) return;
  for (uint32_t i = first_place(inode), looked = 0; looked < kPlaces; i = (i + 1) % kPlaces, ++looked) {
    Place& place = places[i];
    uint64_t found = place.inode.load(std::memory_order_relaxed);
    if (found == 0 && place.inode.compare_exchange_strong(found, inode, std::memory_order_relaxed)) {
      place.device.store(device, std::memory_order_relaxed);
      // release: who sees the name sees the device.
      place.name.store(store(directory, directory_length, path), std::memory_order_release);
      return;
    }
    if (found != inode) continue;
    const uint32_t name = place.name.load(std::memory_order_acquire);
    if (name == 0 || place.device.load(std::memory_order_relaxed) != device) continue;
    if (is_name(names + name - 1, directory, directory_length, path)) return;
    if (const uint32_t stored = store(directory, directory_length, path); stored != 0)
      place.name.store(stored, std::memory_order_release);
    return;
  }
}

// Apart, for its stack.
[[gnu::noinline]] void note_relative(const char* path, uint32_t mask, Half half) {
  char directory[4096];
  const long n = sys::call(__NR_getcwd, directory, sizeof(directory));
  if (n < 2 || directory[0] != '/') return;  // not reachable from here
  note_in(directory, static_cast<size_t>(n) - 1, path, mask, half);
}

// Below the directory of this descriptor; path nullptr: what it leads to itself.
[[gnu::noinline]] void note_below(int fd, const char* path, uint32_t mask) {
  char link[40], directory[4096];
  *fmt::format_to_n(link, sizeof(link) - 1, "/proc/thread-self/fd/{}", fd).out = '\0';
  const long n = sys::call(__NR_readlinkat, AT_FDCWD, link, directory, sizeof(directory) - 1);
  if (n < 1 || directory[0] != '/') return;
  directory[n] = '\0';
  if (path == nullptr)
    note_in("", 0, directory, mask, Half::kNo);
  else
    note_in(directory, static_cast<size_t>(n), path, mask, Half::kNo, fd);
}

}  // namespace

void note(const char* path, uint32_t mask) {
  if (path[0] == '/')
    note_in("", 0, path, mask, Half::kNo);
  else
    note_relative(path, mask, Half::kNo);
}

void note_at(int directory, const char* path, bool follows) {
  const uint32_t mask = follows ? 0 : IN_DONT_FOLLOW;
  if (directory == AT_FDCWD || (path != nullptr && path[0] == '/'))
    note(path != nullptr ? path : ".", mask);
  else
    note_below(directory, path, mask);
}

void note_socket(const char* path) { note_relative(path, IN_DONT_FOLLOW, Half::kLower); }

const char* next(uint32_t& at, uint64_t inode) {
  for (; at < kPlaces; ++at) {
    const Place& place = places[(first_place(inode) + at) % kPlaces];
    const uint64_t found = place.inode.load(std::memory_order_relaxed);
    if (found == 0) return nullptr;
    if (found != inode) continue;
    const uint32_t name = place.name.load(std::memory_order_acquire);
    if (name == 0) continue;
    ++at;
    return names + name - 1;
  }
  return nullptr;
}

const char* next_of_all(uint32_t& at) {
  // Most programs note nothing: their table is not looked at.
  if (names_end.load(std::memory_order_relaxed) == 0) return nullptr;
  while (at < kPlaces) {
    const uint32_t name = places[at++].name.load(std::memory_order_acquire);
    if (name != 0) return names + name - 1;
  }
  return nullptr;
}

}  // namespace ckpt::watch_names
