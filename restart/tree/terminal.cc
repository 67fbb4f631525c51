#include "restart/tree/terminal.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

#include "base/memory/bytes.h"
#include "restart/descriptors/builder.h"

namespace ckpt {

void Terminal::set_as_saved(const ImageMeta& meta) {
  std::optional<TerminalDetail> saved;
  for (const auto& file : meta.open_files) {
    for_each_detail<TerminalDetail>(file, OpenFileDetail::kTerminal,
                                    [&](const TerminalDetail& d, Blob) { saved = d; });
  }
  if (!saved) return;
  terminal_.reset(open("/dev/tty", O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  termios settings;
  if (!terminal_.valid() || tcgetpgrp(terminal_.get()) != getpgrp() ||
      tcgetattr(terminal_.get(), &settings) != 0)
    return;
  before_ = settings;
  settings.c_iflag = saved->input;
  settings.c_oflag = saved->output;
  settings.c_lflag = saved->local;
  settings.c_line = saved->discipline;
  std::copy(std::begin(saved->characters), std::end(saved->characters), settings.c_cc);
  tcsetattr(terminal_.get(), TCSANOW, &settings);
  winsize size{};
  ioctl(terminal_.get(), TIOCGWINSZ, &size);
  other_size_ = size.ws_row != saved->rows || size.ws_col != saved->columns;
}

void Terminal::put_back() {
  if (before_) tcsetattr(terminal_.get(), TCSANOW, &*before_);
  before_.reset();
}

}  // namespace ckpt
