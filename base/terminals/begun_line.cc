#include "base/terminals/begun_line.h"

#include <asm/termbits.h>
#include <errno.h>
#include <poll.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cstring>

#include "base/sys.h"
#include "base/preload_rules.h"

namespace ckpt {
namespace {

// No key of the terminal, nor a byte that it changes or that ends a line. There are 19 keys, and 28 such
// bytes.
unsigned char unused_key(const struct termios& settings) {
  for (unsigned char key = 1; key < 32; ++key) {
    if (key == '\t' || key == '\n' || key == '\r') continue;
    if (std::find(std::begin(settings.c_cc), std::end(settings.c_cc), key) == std::end(settings.c_cc))
      return key;
  }
  return 0;
}

// The kernel hands on what was written between the ends in the background; a poll that finds nothing waits
// for that.
void pass_on(int terminal) {
  pollfd ready{terminal, POLLIN, 0};
  sys::call(__NR_poll, &ready, 1L, 0L);
}

long write_all(int master, const std::byte* bytes, size_t n) {
  while (n > 0) {
    const long r = sys::call(__NR_write, master, bytes, n);
    if (r == -EINTR) continue;
    if (r <= 0) return r == 0 ? -EIO : r;
    bytes += r;
    n -= static_cast<size_t>(r);
  }
  return 0;
}

class Look {
 public:
  Look(int master, int slave, std::span<std::byte> room) : master_(master), slave_(slave), room_(room) {}

  BegunLine run() {
    BegunLine line;
    int packets = 0;
    if (sys::call(__NR_ioctl, master_, TCGETS, &before_) != 0) return line;
    in_packets_ = sys::call(__NR_ioctl, master_, TIOCGPKT, &packets) == 0 && packets != 0;
    key_ = unused_key(before_);
    if (key_ == 0) return line;
    // A byte that was to be taken as it is has become part of the line: it is the whole answer.
    if (!press(VREPRINT)) return restored(line);
    if (length_ == 1 && room_[0] == std::byte{key_}) {
      line.quotes = true;
      if (!press(VERASE) || !press(VREPRINT)) return restored(line);
    }
    line.known = length_ >= 2 && room_[0] == std::byte{key_} && room_[1] == std::byte{'\n'};
    if (line.known) {
      line.length = length_ - 2;
      std::memmove(room_.data(), room_.data() + 2, line.length);
    }
    if (line.quotes) {
      const size_t length = line.length;
      std::byte answer[16];
      room_ = answer;
      press(VLNEXT);
      line.length = length;
    }
    return restored(line);
  }

 private:
  BegunLine restored(BegunLine line) const {
    sys::call(__NR_ioctl, master_, TCSETS, &before_);
    return line;
  }

  // The key is that of `what` and of nothing else; room_ has the answer.
  bool press(int what) {
    struct termios settings = before_;
    // In packet mode a change of IXON or its keys would be told to the master.
    settings.c_oflag &= ~static_cast<unsigned>(OPOST);
    settings.c_lflag |= ICANON | ECHO | IEXTEN;
    settings.c_lflag &= ~static_cast<unsigned>(ECHOCTL);
    settings.c_cc[what] = key_;
    if (sys::call(__NR_ioctl, master_, TCSETS, &settings) != 0) return false;
    const auto key = std::byte{key_};
    if (write_all(master_, &key, 1) != 0) return false;
    pass_on(slave_);
    return read_answer();
  }

  bool read_answer() {
    length_ = 0;
    for (;;) {
      int waiting = 0;
      pass_on(master_);
      if (sys::call(__NR_ioctl, master_, FIONREAD, &waiting) != 0 || waiting == 0) return true;
      std::byte piece[256];
      const long n = sys::call(__NR_read, master_, piece, sizeof(piece));
      if (n <= 0) return false;
      // In packet mode the first byte says that the others are data.
      const size_t skip = in_packets_ ? 1 : 0, bytes = static_cast<size_t>(n) - skip,
                   fits = std::min(bytes, room_.size() - length_);
      std::memcpy(room_.data() + length_, piece + skip, fits);
      length_ += fits;
    }
  }

  int master_, slave_;
  std::span<std::byte> room_;
  size_t length_ = 0;
  struct termios before_ {};
  bool in_packets_ = false;
  unsigned char key_ = 0;
};

}  // namespace

BegunLine look_at_begun_line(int master, int slave, std::span<std::byte> room) {
  return Look(master, slave, room).run();
}

long type_begun_line(int master, int slave, std::span<const std::byte> line, bool quotes) {
  struct termios before {};
  long r = sys::call(__NR_ioctl, master, TCGETS, &before);
  if (r != 0) return r;
  const unsigned char key = unused_key(before);
  if (key == 0) return -EINVAL;
  struct termios settings = before;
  settings.c_iflag &= ~static_cast<unsigned>(ISTRIP | IUCLC | PARMRK);
  settings.c_lflag |= ICANON | IEXTEN;
  settings.c_lflag &= ~static_cast<unsigned>(ECHO | ECHONL | ISIG);
  settings.c_cc[VLNEXT] = key;
  if ((r = sys::call(__NR_ioctl, master, TCSETS, &settings)) != 0) return r;
  // Each byte is one to be taken as it is: some are keys.
  std::byte quoted[256];
  for (size_t at = 0; r == 0 && at < line.size();) {
    size_t n = 0;
    for (; n < sizeof(quoted) && at < line.size(); ++at) {
      quoted[n++] = std::byte{key};
      quoted[n++] = line[at];
    }
    r = write_all(master, quoted, n);
    pass_on(slave);
  }
  if (r == 0 && quotes) {
    quoted[0] = std::byte{key};
    r = write_all(master, quoted, 1);
    pass_on(slave);
  }
  const long restored = sys::call(__NR_ioctl, master, TCSETS, &before);
  return r != 0 ? r : restored;
}

}  // namespace ckpt
