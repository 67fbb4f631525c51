#include <errno.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/sysmacros.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>

#include "base/terminals/begun_line.h"
#include "image/format/records/terminal_records.h"
#include "restart/descriptors/builder.h"

// Pseudo-terminals of the program's own: the master is made again, best with its old number, and its other
// ends are opened by that.

namespace ckpt {

bool is_terminal_master(const ParsedOpenFile& file) {
  return static_cast<OpenFileKind>(file.record.kind) == kTerminalMaster;
}

std::optional<uint32_t> terminal_number(const ParsedOpenFile& file) {
  if (is_terminal_master(file)) return static_cast<uint32_t>(file.record.value);
  if (static_cast<OpenFileKind>(file.record.kind) == OpenFileKind::kTerminal &&
      major(file.record.rdev) == kTerminalSlaveMajor)
    return minor(file.record.rdev);
  return std::nullopt;
}

std::optional<uint32_t> number_of_terminal(uint64_t device) {
  if (((device >> 8) & 0xfff) != kTerminalSlaveMajor) return std::nullopt;
  return static_cast<uint32_t>((device & 0xff) | ((device >> 12) & 0xfff00));
}

bool DescriptorBuilder::is_of_own_terminal(const ParsedOpenFile& file) const {
  const auto number = terminal_number(file);
  return number &&
         std::any_of(meta_.open_files.begin(), meta_.open_files.end(), [&](const ParsedOpenFile& other) {
           return is_terminal_master(other) && terminal_number(other) == number;
         });
}

void DescriptorBuilder::type_line(const ParsedOpenFile& file, int master, Blob line, bool quotes) const {
  int locked = 0, unlocked = 0;
  ioctl(master, TIOCGPTLCK, &locked);
  ioctl(master, TIOCSPTLCK, &unlocked);
  const ScopedFd slave(ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC));
  ioctl(master, TIOCSPTLCK, &locked);
  const long r = slave.valid() ? type_begun_line(master, slave.get(), line, quotes) : -errno;
  if (r != 0)
    say("{}: the line that was begun in it is lost ({})", describe(file, first_descriptor(file)),
        errno_name(static_cast<int>(-r)));
}

// The kernel gives the lowest number that is free. Masters with other numbers are held until all are made: to
// be one of those that are wanted later, and so that none gets the number of another.
Result<ScopedFd> DescriptorBuilder::make_master(const ParsedOpenFile& file) {
  const uint32_t wanted = *terminal_number(file);
  const auto is_another_s = [this](uint32_t number) {
    return std::any_of(meta_.open_files.begin(), meta_.open_files.end(), [&](const ParsedOpenFile& other) {
      return is_terminal_master(other) && terminal_number(other) == number;
    });
  };
  auto found = spare_masters_.find(wanted);
  bool goes_on = true;
  while (found == spare_masters_.end() && goes_on) {
    uint32_t number = 0;
    ScopedFd made(open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC));
    if (!made.valid() || ioctl(made.get(), TIOCGPTN, &number) != 0) {
      return make_error(ExitCode::kSystem, errno, "{} cannot be made again ({})",
                        describe(file, first_descriptor(file)), errno_name(errno));
    }
    spare_masters_.emplace(number, std::move(made));
    goes_on = number < wanted || is_another_s(number);
    found = spare_masters_.find(wanted);
  }
  // Somebody else has the number: one that nobody wants.
  if (found == spare_masters_.end())
    found = std::find_if(spare_masters_.begin(), spare_masters_.end(),
                         [&](const auto& spare) { return !is_another_s(spare.first); });
  const uint32_t number = found->first;
  ScopedFd made = std::move(found->second);
  spare_masters_.erase(found);
  if ((file.record.open_flags & O_NONBLOCK) != 0) fcntl(made.get(), F_SETFL, O_NONBLOCK);
  if (number != wanted)
    say("/dev/pts/{} of the program is in use: its terminal is /dev/pts/{} now", wanted, number);
  terminals_[wanted] = number;
  for_each_detail<MasterDetail>(file, kMasterDetail, [&](const MasterDetail& d, Blob) {
    int locked = (d.flags & kMasterLocked) != 0 ? 1 : 0, packets = (d.flags & kMasterPacketMode) != 0 ? 1 : 0;
    if ((d.flags & (kMasterLeft | kMasterStopped)) != 0) {
      int unlocked = 0;
      ioctl(made.get(), TIOCSPTLCK, &unlocked);
      const ScopedFd end(ioctl(made.get(), TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC));
      if ((d.flags & kMasterStopped) != 0) tcflow(end.get(), TCOOFF);
    }
    ioctl(made.get(), TIOCSPTLCK, &locked);
    termios settings;
    if (tcgetattr(made.get(), &settings) == 0) {
      settings.c_iflag = d.input;
      settings.c_oflag = d.output;
      settings.c_cflag = d.control;
      settings.c_lflag = d.local;
      settings.c_line = d.discipline;
      std::copy(std::begin(d.characters), std::end(d.characters), settings.c_cc);
      tcsetattr(made.get(), TCSANOW, &settings);
    }
    const winsize size{d.rows, d.columns, d.width, d.height};
    ioctl(made.get(), TIOCSWINSZ, &size);
    if ((d.flags & kMasterEnded) != 0) (void)!write(made.get(), &d.characters[VEOF], 1);
    const Blob line = begun_line(file);
    const bool quotes = (d.flags & kMasterQuotes) != 0;
    if (!line.empty() || quotes) type_line(file, made.get(), line, quotes);
    if (packets != 0) ioctl(made.get(), TIOCPKT, &packets);
  });
  return made;
}

Result<ScopedFd> DescriptorBuilder::open_own_terminal(const ParsedOpenFile& file) {
  const auto known = terminals_.find(*terminal_number(file));
  const int flags = static_cast<int>(file.record.open_flags) & (O_ACCMODE | O_NONBLOCK);
  ScopedFd made(known == terminals_.end()
                    ? -1
                    : open(fmt::format("/dev/pts/{}", known->second).c_str(), flags | O_NOCTTY | O_CLOEXEC));
  if (made.valid()) return made;
  return make_error(ExitCode::kSystem, errno, "{} cannot be opened again ({})",
                    describe(file, first_descriptor(file)), errno_name(errno));
}

}  // namespace ckpt
