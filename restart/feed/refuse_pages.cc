#include "restart/feed/refuse_pages.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/ioctl.h>

#include <fmt/core.h>

#include <cstring>

#include "base/raii_fd.h"
#include "base/units.h"

namespace ckpt {
namespace {

// linux/userfaultfd.h of 6.6 and later.
struct Poison {
  uffdio_range range;
  uint64_t mode;
  int64_t updated;
};
constexpr unsigned long kPoison = _IOWR(UFFDIO, 0x08, Poison);

constexpr int kMost = 1024;

bool is_userfaultfd(int fd) {
  char path[40], name[32] = {};
  *fmt::format_to_n(path, sizeof(path) - 1, "/proc/self/fd/{}", fd).out = '\0';
  return sys::call(__NR_readlink, path, name, sizeof(name) - 1) > 0 &&
         std::strcmp(name, "anon_inode:[userfaultfd]") == 0;
}

// Has the address space ended? Asked with an address that is never registered: ESRCH if so, else ENOENT.
bool is_gone(int fd) {
  uffdio_zeropage nowhere{{kPageSize, kPageSize}, 0, 0};
  return sys::call(__NR_ioctl, fd, UFFDIO_ZEROPAGE, &nowhere) == -ESRCH;
}

// A fault that the loader had read, but not answered when it died, cannot be read again. So wake all threads
// that wait: those whose page is missing fault anew.
void ask_again(int fd) {
  // All registered memory lies between these.
  constexpr uint64_t kFirst = 1 << 20, kEnd = (1ull << 47) - kPageSize;
  uffdio_range all{kFirst, kEnd - kFirst};
  sys::call(__NR_ioctl, fd, UFFDIO_WAKE, &all);
}

}  // namespace

void refuse_pages() {
  static constinit pollfd spaces[kMost]{};
  int count = 0;
  for (int fd = 0; fd < 4 * kMost && count < kMost; ++fd) {
    if (is_userfaultfd(fd)) spaces[count++] = {fd, POLLIN, 0};
  }
  for (int i = 0; i < count; ++i) ask_again(spaces[i].fd);
  while (count > 0) {
    constexpr int kLookEveryMs = 200;
    sys::call(__NR_poll, spaces, count, kLookEveryMs);
    for (int i = 0; i < count;) {
      uffd_msg m;
      while (sys::call(__NR_read, spaces[i].fd, &m, sizeof(m)) == static_cast<long>(sizeof(m))) {
        if (m.event == UFFD_EVENT_FORK && count < kMost)
          spaces[count++] = {static_cast<int>(m.arg.fork.ufd), POLLIN, 0};
        if (m.event != UFFD_EVENT_PAGEFAULT) continue;
        Poison poison{{Addr{m.arg.pagefault.address}.page_down().value, kPageSize}, 0, 0};
        sys::call(__NR_ioctl, spaces[i].fd, kPoison, &poison);
      }
      if (is_gone(spaces[i].fd)) {
        sys::call(__NR_close, spaces[i].fd);
        spaces[i] = spaces[--count];
      } else {
        ++i;
      }
    }
  }
}

}  // namespace ckpt
