// How the program has set its terminal: without echo, without lines, as editors and pagers do. And its
// pseudo-terminals, which nobody but the program can make again.
//
// Owner:     DescriptorCapture. Callers: the agent, in the stop.
// Never:     takes a byte that the program has written or would read. A line that was begun is printed by the
//            terminal, and that answer alone is read.
#pragma once

#include <cstddef>
#include <span>

#include "base/result.h"
#include "libckpt_rt/capture/descriptors/table/access.h"
#include "libckpt_rt/capture/descriptors/table/notes.h"
#include "libckpt_rt/capture/descriptors/table/open_files.h"
#include "libckpt_rt/capture/descriptors/table/partners.h"

namespace ckpt {

class Terminals {
 public:
  Terminals(OpenFiles& files, DescriptorAccess& access, DescriptorNotes& notes, const Partners& partners)
      : files_(files), access_(access), notes_(notes), partners_(partners) {}
  Terminals(const Terminals&) = delete;
  Terminals& operator=(const Terminals&) = delete;

  Result<void> look_stopped();

 private:
  struct Ends {
    int master, slave;
    uint32_t number;  // N of /dev/pts/N
    bool stopped;     // output, TCOOFF
    bool ended;       // an end of input waits to be read
  };
  struct Begun {
    std::span<const std::byte> bytes;
    bool quotes = false;
  };

  Result<void> look_at_master(CapturedDescriptor& d);
  Result<Begun> look_at_line(const CapturedDescriptor& d, const Ends& ends);
  Result<void> look_at_terminal(CapturedDescriptor& d);
  bool others_run() const;
  const char* why_not_seen(const CapturedDescriptor& d, const Ends& ends) const;

  OpenFiles& files_;
  DescriptorAccess& access_;
  DescriptorNotes& notes_;
  const Partners& partners_;
};

}  // namespace ckpt
