#include "restart/tree/job.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>

#include "base/raii_fd.h"
#include "image/format/records/descriptor_records.h"
#include "restart/descriptors/builder.h"

namespace ckpt {

JobPlace job_place(const ImageMeta& meta) {
  const ProcessRecord& p = meta.process.record;
  // A terminal of which the program itself has the master is not the one that it was started from.
  auto is_own = [&](const ParsedOpenFile& f) {
    return std::any_of(meta.open_files.begin(), meta.open_files.end(), [&](const ParsedOpenFile& master) {
      return is_terminal_master(master) && terminal_number(master) == terminal_number(f);
    });
  };
  const bool has_terminal =
      std::any_of(meta.open_files.begin(), meta.open_files.end(), [&](const ParsedOpenFile& f) {
        return static_cast<OpenFileKind>(f.record.kind) == OpenFileKind::kTerminal && !is_own(f);
      });
  if (p.sid == p.pid && !has_terminal) return JobPlace::kOwnSession;
  if (p.pgid != p.pid) return JobPlace::kRestarters;
  ScopedFd controlling(open("/dev/tty", O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  return controlling.valid() ? JobPlace::kRestarters : JobPlace::kOwnGroup;
}

void take_job_place(JobPlace place) {
  // Neither can fail: the process is new and leads nothing.
  if (place == JobPlace::kOwnSession) setsid();
  if (place == JobPlace::kOwnGroup) setpgid(0, 0);
}

}  // namespace ckpt
