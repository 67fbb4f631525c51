#include "libckpt_rt/capture/sockets/waiting/sent_files.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <sys/stat.h>

#include "libckpt_rt/capture/descriptors/table/notes.h"
#include "libckpt_rt/capture/descriptors/table/sample.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

Result<uint32_t> SentFiles::find(int fd) {
  struct stat st {};
  sys::call(__NR_fstat, fd, &st);
  for (uint32_t i = 0; i < files_.entries().size(); ++i) {
    const CapturedDescriptor& d = files_.entries()[i];
    if (d.now.inode != st.st_ino || d.now.device != st.st_dev) continue;
    const bool one_file = S_ISSOCK(st.st_mode) && (d.now.open_flags & O_PATH) == 0;
    const long r = one_file ? 0 : sys::call(__NR_kcmp, access_.tid_of(d), sys::gettid(), KCMP_FILE, d.fd, fd);
    if (r != 0 && r != -EPERM && r != -ENOSYS && r != -EACCES) continue;
    if (r < 0) files_.note_refusal();
    sys::call(__NR_close, fd);
    return i;
  }
  CapturedDescriptor d = unknown_descriptor(fd);
  d.in_flight = true;
  sample_own_descriptor(fd, -1, d.now);
  if (!files_.entries().push_back(d)) {
    sys::call(__NR_close, fd);
    return arena_full(files_.arena());
  }
  files_.note_change();
  CKPT_TRY(classifier_.classify(files_.entries().back()));
  return static_cast<uint32_t>(files_.entries().size() - 1);
}

void SentFiles::close_all() {
  for (auto& d : files_.entries()) {
    if (d.in_flight && d.fd >= 0) sys::call(__NR_close, d.fd);
    if (d.in_flight) d.fd = -1;
  }
}

}  // namespace ckpt
