#include <asm/termbits.h>
#include <sys/ioctl.h>

#include <cstring>

#include "base/bytes.h"
#include "base/raii_fd.h"
#include "libckpt_rt/capture/descriptors/descriptors.h"
#include "libckpt_rt/core/preload_rules.h"

// How the program has set its terminal: without echo, without lines, as editors and pagers do.

namespace ckpt {

Result<void> DescriptorCapture::look_at_terminals_stopped() {
  for (auto& d : entries_) {
    if (d.shares || d.kind != OpenFileKind::kTerminal) continue;
    d.details = nullptr;
    d.details_len = 0;
    ScopedFd terminal(borrow(d));
    int foreground = 0;
    struct termios settings {};
    // In the background it is as the shell has set it, for itself.
    if (!terminal.valid() || sys::call(__NR_ioctl, terminal.get(), TIOCGPGRP, &foreground) != 0 ||
        foreground != sys::call(__NR_getpgid, 0) ||
        sys::call(__NR_ioctl, terminal.get(), TCGETS, &settings) != 0) {
      continue;
    }
    TerminalDetail detail{settings.c_iflag, settings.c_oflag, settings.c_lflag, settings.c_line, {}, 0, 0, 0};
    static_assert(sizeof(detail.characters) == sizeof(settings.c_cc));
    std::memcpy(detail.characters, settings.c_cc, sizeof(detail.characters));
    struct winsize size {};
    sys::call(__NR_ioctl, terminal.get(), TIOCGWINSZ, &size);
    detail.rows = size.ws_row;
    detail.columns = size.ws_col;
    ByteWriter out(*arena_);
    out.put(DetailHeader{static_cast<uint32_t>(OpenFileDetail::kTerminal), sizeof(detail)});
    out.put(detail);
    if (!out.ok()) return arena_full();
    d.details = out.span().data();
    d.details_len = static_cast<uint32_t>(out.size());
  }
  return {};
}

}  // namespace ckpt
