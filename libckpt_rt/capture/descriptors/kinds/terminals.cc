#include "libckpt_rt/capture/descriptors/kinds/terminals.h"

#include <asm/termbits.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/tty.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/wait.h>

#include <cstring>
#include <optional>

#include "base/memory/bytes.h"
#include "base/raii_fd.h"
#include "base/terminals/begun_line.h"
#include "image/format/records/terminal_records.h"
#include "job/identity/own_job.h"
#include "libckpt_rt/core/kernel/file_turn.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {

constexpr unsigned kGetPeer = 0x5441;  // TIOCGPTPEER

// The poll makes the kernel pass on what is under way between the ends. FIONREAD alone then tells all bytes
// that wait: poll is silent about fewer than a slave without lines wants at once (VMIN).
bool has_bytes(int terminal, short& events) {
  pollfd ready{terminal, POLLIN | POLLPRI, 0};
  int waiting = 0;
  sys::call(__NR_poll, &ready, 1L, 0L);
  events = ready.revents;
  return sys::call(__NR_ioctl, terminal, FIONREAD, &waiting) == 0 && waiting != 0;
}

// What waits to be read from the other end: bytes that were typed, so to speak.
struct Input {
  bool bytes = false, end = false;
  bool stopped = false;  // output of the other end
};

// For the time of the look. Not where nobody has it: closing it would then be seen.
ScopedFd open_other_end(int master) {
  int locked = 0;
  pollfd left{master, POLLIN, 0};
  sys::call(__NR_poll, &left, 1L, 0L);
  if ((left.revents & POLLHUP) != 0 ||
      (sys::call(__NR_ioctl, master, TIOCGPTLCK, &locked) == 0 && locked != 0))
    return {};
  const long peer = sys::call(__NR_ioctl, master, kGetPeer, O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
  return ScopedFd(sys::failed(peer) ? -1 : static_cast<int>(peer));
}

Input look_at_input(int slave) {
  Input input;
  // A stopped slave takes nothing although the master has nothing to read.
  pollfd ready_to_write{slave, POLLOUT, 0};
  input.stopped = sys::call(__NR_poll, &ready_to_write, 1L, 0L) == 0;
  short events = 0;
  input.bytes = has_bytes(slave, events);
  // An end of input (Ctrl-D) on an empty line waits as a line without bytes: poll alone tells it.
  input.end = !input.bytes && (events & POLLIN) != 0;
  return input;
}

}  // namespace

// A pseudo-terminal of ours: nobody but the program can make it again.
Result<void> Terminals::look_at_master(CapturedDescriptor& d) {
  d.details = nullptr;
  d.details_len = 0;
  const ScopedFd master(access_.borrow(d));
  uint32_t number = 0;
  struct termios settings {};
  if (!master.valid() || sys::call(__NR_ioctl, master.get(), TIOCGPTN, &number) != 0) {
    return notes_.add(kNoRestart, "descriptor {} ({}) is a terminal that cannot be made again", d.fd, d.path);
  }
  d.value = number;
  // The look at a line that was begun changes the settings and what the master reads, for a moment.
  const ScopedFd slave = open_other_end(master.get());
  std::optional<FileTurn> turn;
  if (slave.valid()) turn.emplace(slave.get());
  if ((turn && !turn->taken()) || sys::call(__NR_ioctl, master.get(), TCGETS, &settings) != 0) {
    return notes_.add(kNoRestart, "descriptor {} ({}) is a terminal that cannot be made again", d.fd, d.path);
  }
  MasterDetail detail{};
  int set = 0;
  if (sys::call(__NR_ioctl, master.get(), TIOCGPKT, &set) == 0 && set != 0) detail.flags |= kMasterPacketMode;
  if (sys::call(__NR_ioctl, master.get(), TIOCGPTLCK, &set) == 0 && set != 0) detail.flags |= kMasterLocked;
  pollfd left{master.get(), 0, 0};
  if (sys::call(__NR_poll, &left, 1L, 0L) == 1 && (left.revents & POLLHUP) != 0) detail.flags |= kMasterLeft;
  detail.input = settings.c_iflag;
  detail.output = settings.c_oflag;
  detail.control = settings.c_cflag;
  detail.local = settings.c_lflag;
  detail.discipline = settings.c_line;
  static_assert(sizeof(detail.characters) == sizeof(settings.c_cc));
  std::memcpy(detail.characters, settings.c_cc, sizeof(detail.characters));
  struct winsize size {};
  sys::call(__NR_ioctl, master.get(), TIOCGWINSZ, &size);
  detail.rows = size.ws_row;
  detail.columns = size.ws_col;
  detail.width = size.ws_xpixel;
  detail.height = size.ws_ypixel;
  short events = 0;
  // What a master in packet mode has not been told yet (that its slave was flushed, stopped) waits without
  // bytes: POLLPRI tells it.
  const bool output = has_bytes(master.get(), events) || (events & POLLPRI) != 0;
  const Input input = slave.valid() ? look_at_input(slave.get()) : Input();
  if (input.stopped) detail.flags |= kMasterStopped;
  if (input.end) detail.flags |= kMasterEnded;
  const bool passing = output || input.bytes;
  std::span<const std::byte> line;
  // With EXTPROC no byte is a key, and what was typed can be read at once.
  const bool gives_lines = (settings.c_lflag & (ICANON | EXTPROC)) == ICANON && settings.c_line == N_TTY;
  if (slave.valid() && gives_lines && !passing) {
    auto begun = look_at_line(d, {master.get(), slave.get(), number, input.stopped, input.end});
    if (!begun.ok()) return begun.error();
    if (begun->quotes) detail.flags |= kMasterQuotes;
    line = begun->bytes;
  }
  ByteWriter out(files_.arena());
  out.put(DetailHeader{static_cast<uint32_t>(kMasterDetail), sizeof(detail)});
  out.put(detail);
  if (!line.empty()) {
    const auto length = static_cast<uint32_t>(line.size());
    out.put(DetailHeader{static_cast<uint32_t>(kBegunLineDetail),
                         static_cast<uint32_t>(sizeof(BegunLineDetail) + (line.size() + 7) / 8 * 8)});
    out.put(BegunLineDetail{length, 0});
    out.raw(line.data(), line.size());
    out.pad_to(8);
  }
  if (!out.ok()) return arena_full(files_.arena());
  d.details = out.span().data();
  d.details_len = static_cast<uint32_t>(out.size());
  if (!passing) return {};
  notes_.say_passing();
  return notes_.add(
      kNoRestart,
      "descriptor {} ({}): what was written {} /dev/pts/{} is not read yet, and cannot be saved: ask "
      "again later",
      d.fd, d.path, output ? "into" : "to be read from", number);
}

// A checkpoint of this process alone, while others of its job may set the terminal.
bool Terminals::others_run() const {
  if (partners_.any) return false;
  const int root = job::own_job.identity.root;
  return (root != 0 && root != sys::getpid()) ||
         sys::call(__NR_waitid, P_ALL, 0L, 0L, WEXITED | WNOHANG | WNOWAIT | __WALL, 0L) != -ECHILD;
}

// nullptr: the look at a line that was begun is noticed by nobody.
const char* Terminals::why_not_seen(const CapturedDescriptor& d, const Ends& ends) const {
  if (d.held_by != 0) return "a process outside the job has the terminal as well";
  if (others_run()) return "other processes run meanwhile, and may have the terminal as well";
  if (ends.stopped) return "its output is stopped";
  // Behind that the kernel's poll does not wait for what is under way.
  if (ends.ended) return "an end of input (Ctrl-D) waits there";
  // SIGIO would tell the program of the answer.
  return (d.now.open_flags & O_ASYNC) != 0 ? "signals are sent for what arrives there" : nullptr;
}

Result<Terminals::Begun> Terminals::look_at_line(const CapturedDescriptor& d, const Ends& ends) {
  if (const char* why = why_not_seen(d, ends); why != nullptr) {
    CKPT_TRY(notes_.add(kChanged,
                        "descriptor {} ({}): whether a line was begun in /dev/pts/{} cannot be seen, for {}: "
                        "it is lost at a restart",
                        d.fd, d.path, ends.number, why));
    return Begun{};
  }
  auto* room = static_cast<std::byte*>(files_.arena().allocate(kMostOfBegunLine, 1));
  if (room == nullptr) return arena_full(files_.arena());
  const BegunLine line = look_at_begun_line(ends.master, ends.slave, {room, kMostOfBegunLine});
  if (!line.known) {
    CKPT_TRY(
        notes_.add(kChanged,
                   "descriptor {} ({}): the line that was begun in /dev/pts/{} is too long to be seen, or "
                   "the terminal does not show it: it is lost at a restart",
                   d.fd, d.path, ends.number));
  }
  return Begun{{room, line.known ? line.length : 0}, line.quotes};
}

Result<void> Terminals::look_at_terminal(CapturedDescriptor& d) {
  d.details = nullptr;
  d.details_len = 0;
  const ScopedFd terminal(access_.borrow(d));
  int foreground = 0;
  struct termios settings {};
  // In the background it is as the shell has set it, for itself.
  if (!terminal.valid() || sys::call(__NR_ioctl, terminal.get(), TIOCGPGRP, &foreground) != 0 ||
      foreground != sys::call(__NR_getpgid, 0) ||
      sys::call(__NR_ioctl, terminal.get(), TCGETS, &settings) != 0) {
    return {};
  }
  TerminalDetail detail{settings.c_iflag, settings.c_oflag, settings.c_lflag, settings.c_line, {}, 0, 0, 0};
  static_assert(sizeof(detail.characters) == sizeof(settings.c_cc));
  std::memcpy(detail.characters, settings.c_cc, sizeof(detail.characters));
  struct winsize size {};
  sys::call(__NR_ioctl, terminal.get(), TIOCGWINSZ, &size);
  detail.rows = size.ws_row;
  detail.columns = size.ws_col;
  ByteWriter out(files_.arena());
  out.put(DetailHeader{static_cast<uint32_t>(OpenFileDetail::kTerminal), sizeof(detail)});
  out.put(detail);
  if (!out.ok()) return arena_full(files_.arena());
  d.details = out.span().data();
  d.details_len = static_cast<uint32_t>(out.size());
  return {};
}

Result<void> Terminals::look_stopped() {
  for (CapturedDescriptor& d : files_.entries()) {
    if (d.shares) continue;
    if (d.kind == kTerminalMaster) CKPT_TRY(look_at_master(d));
    if (d.kind == OpenFileKind::kTerminal) CKPT_TRY(look_at_terminal(d));
  }
  return {};
}

}  // namespace ckpt
