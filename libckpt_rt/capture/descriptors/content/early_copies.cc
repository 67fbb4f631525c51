#include "libckpt_rt/capture/descriptors/content/early_copies.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/statfs.h>

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "base/raii_fd.h"
#include "libckpt_rt/capture/descriptors/table/notes.h"
#include "libckpt_rt/core/kernel/descriptor_info.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {
namespace {

// ns: some file systems stamp files by a clock that is coarser than the kernel's ticks.
constexpr int64_t kTimeStampDoubt = 20'000'000;

}  // namespace

void EarlyCopies::begin(Arena& arena) {
  contents_ = DescriptorContents(arena);
  copies_ = ArenaVector<EarlyCopy>(arena);
  mapped_shared_ = ArenaVector<uint64_t>(arena);
  has_looked_ = knows_mapped_ = false;
}

// Inodes of files that this process maps shared: their bytes can change while their times do not. False: not
// known.
bool EarlyCopies::list_mapped_shared() {
  ScopedFd maps(static_cast<int>(
      sys::call(__NR_openat, AT_FDCWD, TaskPath(access_.tid(), "maps").c_str(), O_RDONLY | O_CLOEXEC, 0)));
  if (!maps.valid()) return false;
  size_t have = 0;
  for (;;) {
    long n = sys::call(__NR_read, maps.get(), access_.text().data() + have, access_.text().size() - have);
    if (n < 0) return false;
    if (n == 0) return true;
    have += static_cast<size_t>(n);
    // "start-end perms offset dev inode path": whole lines only.
    std::string_view text(access_.text().data(), have), line;
    size_t whole = text.rfind('\n') + 1;
    std::string_view rest = text.substr(whole);
    text = text.substr(0, whole);
    while (next_line(text, line)) {
      size_t perms = line.find(' ');
      uint64_t number = 0;
      if (perms == std::string_view::npos || line.size() < perms + 5 || line[perms + 4] != 's') continue;
      size_t device = line.find(':', perms);
      if (device == std::string_view::npos) continue;
      size_t blank = line.find(' ', device);
      if (blank != std::string_view::npos && number_after(line.substr(blank), " ", 10, number) &&
          !mapped_shared_.push_back(number))
        return false;
    }
    have = rest.size();
    std::memmove(access_.text().data(), rest.data(), have);
  }
}

Result<bool> EarlyCopies::copy(const CapturedDescriptor& d, uint64_t most) {
  if (!has_looked_) knows_mapped_ = list_mapped_shared();
  has_looked_ = true;
  if (!knows_mapped_ || d.has_lease) return false;
  struct statfs fs {};
  sys::call(__NR_statfs, TaskPath(access_.tid(), "fd", d.fd).c_str(), &fs);
  if (fs.f_type == TMPFS_MAGIC ||
      std::find(mapped_shared_.begin(), mapped_shared_.end(), d.now.inode) != mapped_shared_.end())
    return false;
  struct stat st;
  // The clock by which files are stamped: it stands still between two ticks, and while the host runs
  // something else.
  const int64_t begin = now_ns(CLOCK_REALTIME_COARSE);
  if (stat_descriptor(access_.tid(), d.fd, st) < 0 || st.st_ino != d.now.inode || st.st_dev != d.now.device)
    return false;
  EarlyCopy copy{};
  copy.device = d.now.device;
  copy.inode = d.now.inode;
  copy.size = static_cast<uint64_t>(st.st_size);
  copy.links = static_cast<uint32_t>(st.st_nlink);
  copy.mtime_ns = int64_t{st.st_mtim.tv_sec} * 1'000'000'000 + st.st_mtim.tv_nsec;
  copy.ctime_ns = int64_t{st.st_ctim.tv_sec} * 1'000'000'000 + st.st_ctim.tv_nsec;
  // Being written now. Some file systems count whole seconds, or two.
  const int64_t doubt = copy.mtime_ns % 1'000'000'000 == 0 ? 2'000'000'000 : kTimeStampDoubt;
  if (copy.mtime_ns > begin - doubt) return false;
  copy.first = contents_.size();
  CapturedDescriptor now = d;
  now.now.size = copy.size;
  if (!reader_.copy(now, contents_, most)) {
    contents_.truncate(copy.first);
    return false;
  }
  copy.count = contents_.size() - copy.first;
  if (!copies_.push_back(copy)) return arena_full(files_.arena());
  return true;
}

bool EarlyCopies::take(const CapturedDescriptor& d, DescriptorContents& to) const {
  // The early copies were made in the order of devices and inodes.
  const auto* copy =
      std::lower_bound(copies_.begin(), copies_.end(), d, [](const EarlyCopy& a, const auto& b) {
        return a.device != b.now.device ? a.device < b.now.device : a.inode < b.now.inode;
      });
  if (copy == copies_.end() || copy->device != d.now.device || copy->inode != d.now.inode) return false;
  // The program may set mtime back, so ctime counts as well. A saved file of another member gives this one a
  // further name, which changes ctime too.
  const bool same = copy->ctime_ns == d.now.ctime_ns || copy->links != d.now.links;
  if (copy->size != d.now.size || copy->mtime_ns != d.now.mtime_ns || !same) return false;
  for (size_t i = 0; i < copy->count; ++i) {
    DescriptorContent c = contents_[copy->first + i];
    c.open_file = d.open_file;
    if (!to.push_back(c)) return false;
  }
  return true;
}

}  // namespace ckpt
