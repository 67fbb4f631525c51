#include "libckpt_rt/core/process/own_files.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/prctl.h>

#include "base/sys.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::own_files {

namespace {

constexpr const char* kPaths[] = {"/proc/thread-self/mem", "/proc/thread-self/pagemap"};

// Of the agent's own table.
constinit int handed[] = {-1, -1};
constinit int handed_to = 0;  // the process: a forked child has their numbers, but is another

long open_plainly(OwnFile which) {
  return sys::call(__NR_openat, long{AT_FDCWD}, kPaths[static_cast<int>(which)], long{O_RDONLY | O_CLOEXEC},
                   0L);
}

}  // namespace

long open(OwnFile which) {
  const int given = handed[static_cast<int>(which)];
  if (given >= 0 && handed_to == sys::getpid())
    return sys::call(__NR_fcntl, given, long{F_DUPFD_CLOEXEC}, 0L);
  const long fd = open_plainly(which);
  if (fd != -EACCES || sys::call(__NR_prctl, PR_GET_DUMPABLE) == 1) return fd;
  // A process of the same user could trace this one meanwhile. Such a process could as well read the image.
  if (sys::failed(sys::call(__NR_prctl, PR_SET_DUMPABLE, 1L, 0L, 0L, 0L))) return fd;
  const long opened = open_plainly(which);
  // The flag may have been 2 (fs.suid_dumpable), which prctl(2) refuses to set: 0 has the same owner and no
  // core file.
  sys::call(__NR_prctl, PR_SET_DUMPABLE, 0L, 0L, 0L, 0L);
  return opened;
}

bool may_open() {
  const ScopedFd file(static_cast<int>(open_plainly(OwnFile::kMemory)));
  return file.valid();
}

void forget() {
  for (int& fd : handed) fd = -1;
}

void hand_over(ScopedFd memory, ScopedFd pagemap) {
  ScopedFd before[] = {ScopedFd(handed[0]), ScopedFd(handed[1])};
  handed_to = sys::getpid();
  handed[0] = memory.release();
  handed[1] = pagemap.release();
}

}  // namespace ckpt::own_files
