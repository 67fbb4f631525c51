#include "libckpt_rt/back/back_terminal.h"

#include <asm/termbits.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>

#include <cstring>

#include "base/raii_fd.h"
#include "base/sys.h"
#include "base/terminals/begun_line.h"
#include "image/format/records/terminal_records.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::back_terminal {

namespace {

constexpr unsigned kGetPeer = 0x5441;  // TIOCGPTPEER

bool is_ready(int fd, short what) {
  pollfd ready{fd, what, 0};
  return sys::call(__NR_poll, &ready, 1L, 0L) == 1 && (ready.revents & what) != 0;
}

// In packet mode also the words that all was thrown away, that settings have changed.
void drain(int master) {
  const long status = sys::call(__NR_fcntl, master, F_GETFL, 0L);
  sys::call(__NR_fcntl, master, F_SETFL, status | O_NONBLOCK);
  std::byte scratch[4096];
  while (is_ready(master, POLLIN | POLLPRI) && sys::call(__NR_read, master, scratch, sizeof(scratch)) > 0) {
  }
  sys::call(__NR_fcntl, master, F_SETFL, status);
}

// The end that wrote the bytes of one direction empties those that are on their way in the kernel. The end
// that would read them empties those that have arrived. Not where nobody has the other end: closing it again
// would be seen.
void flush(int master) {
  if (!is_ready(master, POLLHUP)) {
    const ScopedFd slave(static_cast<int>(
        sys::call(__NR_ioctl, master, kGetPeer, O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC)));
    if (slave.valid()) sys::call(__NR_ioctl, slave.get(), TCFLSH, TCIOFLUSH);
  }
  sys::call(__NR_ioctl, master, TCFLSH, TCIOFLUSH);
}

}  // namespace

long empty(int master, std::span<const std::byte> detail) {
  MasterDetail was;
  if (detail.size() < sizeof(was)) return -EINVAL;
  std::memcpy(&was, detail.data(), sizeof(was));
  const auto line = detail.subspan(sizeof(was));
  const bool quotes = (was.flags & kMasterQuotes) != 0;
  flush(master);
  drain(master);
  struct termios settings {};
  long r = sys::call(__NR_ioctl, master, TCGETS, &settings);
  if (sys::failed(r)) return r;
  const struct termios before = settings;
  settings.c_iflag = was.input;
  settings.c_oflag = was.output;
  settings.c_cflag = was.control;
  settings.c_lflag = was.local;
  settings.c_line = was.discipline;
  std::memcpy(settings.c_cc, was.characters, sizeof(settings.c_cc));
  if (std::memcmp(&before, &settings, sizeof(settings)) != 0 &&
      sys::failed(r = sys::call(__NR_ioctl, master, TCSETS, &settings)))
    return r;
  const int packets = (was.flags & kMasterPacketMode) != 0 ? 1 : 0,
            locked = (was.flags & kMasterLocked) != 0 ? 1 : 0;
  sys::call(__NR_ioctl, master, TIOCPKT, &packets);
  sys::call(__NR_ioctl, master, TIOCSPTLCK, &locked);
  // The kernel signals a size that is another; such signals are forgotten with all that came since.
  const struct winsize size { was.rows, was.columns, was.width, was.height };
  sys::call(__NR_ioctl, master, TIOCSWINSZ, &size);
  drain(master);
  if ((was.flags & kMasterEnded) != 0) sys::call(__NR_write, master, &was.characters[VEOF], 1L);
  if (line.empty() && !quotes) return 0;
  const ScopedFd slave(
      static_cast<int>(sys::call(__NR_ioctl, master, kGetPeer, O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC)));
  return slave.valid() ? type_begun_line(master, slave.get(), line, quotes) : slave.get();
}

}  // namespace ckpt::back_terminal
