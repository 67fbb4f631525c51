#include "libckpt_rt/capture/descriptors/kinds/pipe_kinds.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>

#include "base/raii_fd.h"
#include "base/sys.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {
namespace {

// Of a pipe's reading end, in the stop: nobody will ever write to it again.
bool is_without_writer(DescriptorAccess& access, const CapturedDescriptor& d) {
  const ScopedFd pipe(access.borrow(d));
  pollfd ask{pipe.get(), 0, 0};
  return pipe.valid() && sys::call(__NR_poll, &ask, 1L, 0L) == 1 && (ask.revents & POLLHUP) != 0;
}

void decide_pipe(CapturedDescriptor& d, bool has_partners) {
  if (has_partners) d.value = d.now.other_end_gone;
  d.flags &= ~uint32_t{kOpenFileUnwritten};
  // Without a size the sample could not ask.
  if (d.kind == OpenFileKind::kFifo && d.now.pipe_size != 0 && !d.now.other_end_gone &&
      (d.now.open_flags & O_ACCMODE) == O_RDONLY)
    d.flags |= kOpenFileUnwritten;
}

// All that lead to one pipe or socket of which nobody else is saved.
void decide_ends(OpenFiles& files, DescriptorAccess& access, std::span<const uint32_t> all, bool is_pipe) {
  uint32_t ends = 0;
  bool standard = false;
  const CapturedDescriptor* reader = nullptr;
  for (const uint32_t i : all) {
    const CapturedDescriptor& d = files.entries()[i];
    ends |= d.flags & (kOpenFilePipeReadEnd | kOpenFilePipeWriteEnd);
    standard |= d.fd <= 2 && !d.in_flight;
    if ((d.flags & kOpenFilePipeReadEnd) != 0) reader = &d;
  }
  const bool both = ends == (kOpenFilePipeReadEnd | kOpenFilePipeWriteEnd);
  // Bytes that are left in the pipe can be read, then it ends.
  const bool ended = is_pipe && !both && !standard && reader != nullptr && is_without_writer(access, *reader);
  for (const uint32_t i : all) {
    CapturedDescriptor& d = files.entries()[i];
    if (d.kind == OpenFileKind::kPipe && !both && !ended) d.kind = OpenFileKind::kOther;
    if (standard && (d.kind == OpenFileKind::kOther || (d.kind == OpenFileKind::kFifo && !both)))
      d.kind = OpenFileKind::kStandard;
  }
}

}  // namespace

void decide_kinds_of_ends(OpenFiles& files, DescriptorAccess& access, bool has_partners) {
  for (size_t first = 0; first < files.order().size();) {
    const std::span<const uint32_t> all = files.same_inode(first);
    const uint32_t type = files.in_order(first).now.mode & S_IFMT;
    if (type == S_IFIFO) {
      for (const uint32_t i : all) decide_pipe(files.entries()[i], has_partners);
    }
    if ((type == S_IFIFO && !has_partners) || type == S_IFSOCK)
      decide_ends(files, access, all, type == S_IFIFO);
    first += all.size();
  }
}

}  // namespace ckpt
