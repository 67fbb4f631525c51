#include "libckpt_rt/capture/descriptors/half_read_lists.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>

#include "base/raii_fd.h"
#include "base/sys.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::half_read_lists {
namespace {

constexpr uint64_t kNoLine = UINT64_MAX;

struct Place {
  int fd;
  bool is_line;      // else the position alone is known: to read smaps takes too long for a stop
  uint64_t address;  // where the line's mapping begins; kNoLine: behind the last
  uint64_t into;     // bytes of it that are read
};

constexpr int kMost = 16;
constinit Place places[kMost] = {};
constinit int count = 0;

// The lines of /proc/self/maps one by one, of whatever length.
class Lines {
 public:
  Lines()
      : file_(
            static_cast<int>(sys::call(__NR_openat, AT_FDCWD, "/proc/self/maps", O_RDONLY | O_CLOEXEC, 0))) {}
  // False: there is none more. *start: of its mapping; *bytes: with its newline.
  bool next(uint64_t* start, uint64_t* bytes) {
    *start = *bytes = 0;
    for (bool in_number = true; more();) {
      const char c = text_[at_++];
      ++*bytes;
      if (c == '\n') return true;
      in_number = in_number && c != '-';
      if (in_number) *start = *start << 4 | static_cast<uint64_t>(c >= 'a' ? c - 'a' + 10 : c - '0');
    }
    return false;
  }

 private:
  bool more() {
    if (at_ < have_) return true;
    const long n = sys::call(__NR_read, file_.get(), text_, sizeof(text_));
    at_ = 0;
    have_ = n > 0 ? static_cast<size_t>(n) : 0;
    return have_ != 0;
  }

  ScopedFd file_;
  char text_[1024];
  size_t at_ = 0, have_ = 0;
};

uint64_t position_of(const Place& place) {
  Lines lines;
  uint64_t before = 0, start, bytes;
  for (; lines.next(&start, &bytes); before += bytes) {
    if (start >= place.address) return before + (start == place.address ? std::min(place.into, bytes) : 0);
  }
  return before;
}

}  // namespace

bool is_list(std::string_view rest) { return rest == "/maps" || rest == "/smaps" || rest == "/numa_maps"; }

void begin() { count = 0; }

bool add(int fd, std::string_view rest, uint64_t position, std::span<const AddrRange> own) {
  // So many bytes of lines of ours may be in the list, or not, without our knowing it.
  constexpr uint64_t kOursAtMost = 2048;
  if (count == kMost) return true;
  Place& place = places[count++];
  place = {fd, rest == "/maps", kNoLine, 0};
  if (!place.is_line) return true;
  const auto is_own = [own](uint64_t address) {
    return std::ranges::any_of(own, [address](const AddrRange& r) { return r.contains(Addr{address}); });
  };
  Lines lines;
  uint64_t before = 0, start, bytes;
  while (lines.next(&start, &bytes)) {
    if (is_own(start)) continue;
    if (place.address == kNoLine && before + bytes > position) {
      place.address = start;
      place.into = position - before;
    }
    before += bytes;
  }
  return position + kOursAtMost < before;
}

void find_places() {
  for (int i = 0; i < count; ++i) {
    const int fd = places[i].fd;
    const long now = sys::call(__NR_lseek, fd, 0L, SEEK_CUR);
    // To the place where it stands the kernel does not seek.
    if (now <= 0 || sys::call(__NR_lseek, fd, 0L, SEEK_SET) != 0) continue;
    sys::call(__NR_lseek, fd, places[i].is_line ? position_of(places[i]) : static_cast<uint64_t>(now),
              SEEK_SET);
  }
}

}  // namespace ckpt::half_read_lists
