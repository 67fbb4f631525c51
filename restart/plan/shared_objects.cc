#include "restart/plan/shared_objects.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/checks/named_points.h"

#ifndef MFD_HUGETLB
#define MFD_HUGETLB 0x0004U
#endif

namespace ckpt {
namespace {

constexpr uint32_t kSegmentRemoved = 01000;  // SHM_DEST in the mode that IPC_STAT gives

bool has_view(const SharedObject& o) {
  return o.kind == MappingKind::kSharedAnonymous || o.kind == MappingKind::kSysV;
}

uint64_t whole_pages(uint64_t bytes) { return (bytes + kPageSize - 1) & ~(kPageSize - 1); }

// A segment without a key has nothing but its number, which another segment may have by now: after a reboot
// the numbers begin anew. A segment that was made since and is in use is somebody else's. (Not in use: an
// earlier restart from this image has made it.)
bool may_be_the_same(const shmid_ds& now, const MappingRecord& then, int64_t taken_ns) {
  const bool made_since = int64_t{now.shm_ctime} * 1'000'000'000 > taken_ns;
  return now.shm_perm.__key == then.sysv_key &&
         (then.sysv_key != IPC_PRIVATE || now.shm_nattch == 0 || !made_since);
}

// "/memfd:name (deleted)" or "/dir/name (deleted)" -> name
std::string object_name(std::string_view path) {
  constexpr std::string_view kDeleted = " (deleted)";
  if (path.size() > kDeleted.size() && path.substr(path.size() - kDeleted.size()) == kDeleted) {
    path.remove_suffix(kDeleted.size());
  }
  constexpr std::string_view kMemfd = "/memfd:";
  if (path.substr(0, kMemfd.size()) == kMemfd) return std::string(path.substr(kMemfd.size()));
  size_t slash = path.rfind('/');
  return std::string(slash == std::string_view::npos ? path : path.substr(slash + 1));
}

Result<void> write_contents(const ImageMeta& meta, uint64_t number, int fd, const std::string& name) {
  for (const ParsedFileContent& c : meta.contents) {
    if (c.record.open_file != 0 || c.record.object != number) continue;
    for (uint64_t at = 0; at < c.bytes.size();) {
      ssize_t n =
          pwrite(fd, c.bytes.data() + at, c.bytes.size() - at, static_cast<off_t>(c.record.offset + at));
      if (n <= 0) {
        return make_error(ExitCode::kSystem, errno, "cannot fill the memory file \"{}\" ({})", name,
                          errno_name(errno));
      }
      at += static_cast<uint64_t>(n);
    }
  }
  return {};
}

// With its old number, if that is free; -1 and errno. The kernel gives the number in shm_next_id to the next
// segment that any process makes: if another process was first, the number is written again.
int make_segment(const MappingRecord& r, uint64_t bytes) {
  constexpr int kTries = 100;
  const auto flags = IPC_CREAT | IPC_EXCL | static_cast<int>(r.sysv_mode & 0777);
  for (int left = kTries;;) {
    const ScopedFd next(open("/proc/sys/kernel/shm_next_id", O_WRONLY | O_CLOEXEC));
    const std::string wish = fmt::format("{}", r.sysv_shmid);
    const bool asked = next.valid() && write(next.get(), wish.data(), wish.size()) > 0;
    points::at("restart.segment");
    int id = shmget(r.sysv_key, bytes, flags);
    if (id < 0 && asked) id = shmget(r.sysv_key, bytes, flags);
    if (id < 0 || id == r.sysv_shmid || !asked || --left == 0) return id;
    shmctl(id, IPC_RMID, nullptr);
  }
}

}  // namespace

SharedObjects::SharedObjects(const ImageMeta& meta) : meta_(meta) {
  for (const ParsedMapping& m : meta.mappings) {
    auto kind = static_cast<MappingKind>(m.record.kind);
    bool nameless_file = kind == MappingKind::kFileShared && (m.record.flags & kMapFileDeleted) != 0;
    bool shared =
        kind == MappingKind::kSharedAnonymous || kind == MappingKind::kMemfd || kind == MappingKind::kSysV;
    if (m.record.object == 0 || !(nameless_file || shared)) continue;
    SharedObject& o = objects_[m.record.object];
    if (o.first == nullptr) {
      o.first = &m;
      o.kind = kind;
    }
    uint64_t mapped = m.record.file_offset + (m.record.end - m.record.start);
    // A file may be mapped beyond its end; memory without a file is as large as what is mapped.
    uint64_t size = has_view(o) || m.record.object_size == 0 ? std::max(mapped, m.record.object_size)
                                                             : m.record.object_size;
    o.size = std::max(o.size, size);
  }
}

uint64_t SharedObjects::view_bytes() const {
  uint64_t bytes = 0;
  for (const auto& [number, o] : objects_) {
    if (has_view(o)) bytes += whole_pages(o.size);
  }
  return bytes;
}

std::set<uint64_t> SharedObjects::numbers() const {
  std::set<uint64_t> result;
  for (const auto& [number, o] : objects_) result.insert(number);
  return result;
}

std::map<uint64_t, uint64_t> SharedObjects::views() const {
  std::map<uint64_t, uint64_t> result;
  for (const auto& [number, o] : objects_) {
    if (o.view != 0) result.emplace(number, o.view);
  }
  return result;
}

Result<void> SharedObjects::make(uint64_t at, WorkingFds& fds, ReportChannel& report,
                                 const std::map<uint64_t, uint64_t>* known) {
  for (auto& [number, o] : objects_) {
    if (!has_view(o)) {
      CKPT_TRY(make_file(number, o, fds));
      continue;
    }
    const auto it = known != nullptr ? known->find(number) : std::map<uint64_t, uint64_t>::const_iterator();
    if (known != nullptr && it != known->end()) {
      CKPT_TRY(map_known(o, it->second, at));
    } else if (o.kind == MappingKind::kSysV) {
      CKPT_TRY(make_sysv(o, at, report));
    } else {
      CKPT_TRY(make_anonymous(o, at));
    }
    o.view = at;
    at += whole_pages(o.size);
  }
  return {};
}

Result<void> SharedObjects::make_file(uint64_t number, SharedObject& o, WorkingFds& fds) {
  if (fds.find_object(number) >= 0) return {};  // a descriptor has brought it
  std::string name = object_name(o.first->path);
  unsigned flags = MFD_CLOEXEC;
  if ((o.first->record.flags & kMapHugeTlb) != 0) {
    flags |= MFD_HUGETLB;
    if (o.first->record.page_size > kPageSize) {
      flags |= static_cast<unsigned>(__builtin_ctz(o.first->record.page_size)) << 26;
    }
  } else {
    flags |= MFD_ALLOW_SEALING;
  }
  ScopedFd fd(memfd_create(name.substr(0, 240).c_str(), flags));
  if (!fd.valid() || ftruncate(fd.get(), static_cast<off_t>(o.size)) != 0) {
    return make_error(ExitCode::kSystem, errno, "no memory file \"{}\" of {} bytes ({})", name, o.size,
                      errno_name(errno));
  }
  CKPT_TRY(write_contents(meta_, number, fd.get(), name));
  auto added = fds.add_object(number, std::move(fd), name.c_str());
  if (!added.ok()) return added.error();
  return {};
}

// One more view of what is mapped already: mremap with the old length 0 leaves the first.
Result<void> SharedObjects::map_known(const SharedObject& o, uint64_t from, uint64_t at) {
  void* p = mremap(reinterpret_cast<void*>(from), 0, whole_pages(o.size), MREMAP_MAYMOVE | MREMAP_FIXED,
                   reinterpret_cast<void*>(at));
  if (p != MAP_FAILED) return {};
  return make_error(ExitCode::kSystem, errno, "shared memory of the job cannot be mapped ({})",
                    errno_name(errno));
}

Result<void> SharedObjects::make_anonymous(SharedObject& o, uint64_t at) {
  int flags = MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED;
  if ((o.first->record.flags & kMapNoReserve) != 0) flags |= MAP_NORESERVE;
  void* p = mmap(reinterpret_cast<void*>(at), whole_pages(o.size), PROT_READ | PROT_WRITE, flags, -1, 0);
  if (p == MAP_FAILED) {
    return make_error(ExitCode::kSystem, errno,
                      "no {} bytes of shared memory ({}): free memory or raise limits", o.size,
                      errno_name(errno));
  }
  return {};
}

Result<void> SharedObjects::make_sysv(SharedObject& o, uint64_t at, ReportChannel& report) {
  const MappingRecord& r = o.first->record;
  shmid_ds state{};
  int id = -1;
  bool old = false;
  // Segments outlive programs: the old one is still there unless somebody removed it.
  // A segment that was removed has no key that would tell it from another: that one has to be removed as
  // well.
  if (shmctl(r.sysv_shmid, IPC_STAT, &state) == 0 &&
      may_be_the_same(state, r, meta_.process.record.realtime_ns) &&
      ((state.shm_perm.mode ^ r.sysv_mode) & kSegmentRemoved) == 0 && state.shm_segsz <= o.size &&
      whole_pages(state.shm_segsz) == whole_pages(o.size)) {
    id = r.sysv_shmid;
    old = true;
    if (state.shm_nattch > 0) {
      report.note(
          fmt::format("SysV shared memory {} is in use by {} others: its contents go back to the checkpoint",
                      id, static_cast<uint64_t>(state.shm_nattch)));
    }
  } else {
    const uint64_t size = r.object_size != 0 ? r.object_size : o.size;
    id = make_segment(r, size);
    if (id < 0) {
      return make_error(ExitCode::kSystem, errno,
                        "no SysV shared memory with key {:#x} and {} bytes ({}): remove the one in the way "
                        "(ipcrm -M {:#x})",
                        static_cast<uint32_t>(r.sysv_key), size, errno_name(errno),
                        static_cast<uint32_t>(r.sysv_key));
    }
    if (id != r.sysv_shmid) {
      report.note(fmt::format("SysV shared memory {} comes back with id {}: calls with the old id fail",
                              r.sysv_shmid, id));
    }
    const ProcessRecord& p = meta_.process.record;
    if (shmctl(id, IPC_STAT, &state) == 0) {
      state.shm_perm.uid = p.uid[1];
      state.shm_perm.gid = p.gid[1];
      shmctl(id, IPC_SET, &state);
    }
  }
  void* p = shmat(id, reinterpret_cast<void*>(at), SHM_REMAP);
  if (p == reinterpret_cast<void*>(-1)) {
    return make_error(ExitCode::kSystem, errno, "cannot attach SysV shared memory {} ({})", id,
                      errno_name(errno));
  }
  // Pages of zeros are not in the image.
  if (old && madvise(p, whole_pages(o.size), MADV_REMOVE) != 0) std::memset(p, 0, o.size);
  // Removed while attached: it goes with its last user, as it would have.
  if ((r.sysv_mode & kSegmentRemoved) != 0) shmctl(id, IPC_RMID, nullptr);
  return {};
}

}  // namespace ckpt
