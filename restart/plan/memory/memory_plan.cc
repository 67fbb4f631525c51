#include "restart/plan/memory/memory_plan.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "base/machine/droppable_memory.h"
#include "restart/files/vanished_file.h"

namespace ckpt {
namespace {

MappingKind kind_of(const ParsedMapping& m) { return static_cast<MappingKind>(m.record.kind); }

bool may_write(const ParsedMapping& m) {
  return (m.record.flags & kMapMayWrite) != 0 || (m.record.prot & PROT_WRITE) != 0;
}

bool is_private(const ParsedMapping& m) {
  switch (kind_of(m)) {
    case MappingKind::kAnonymous:
    case MappingKind::kFilePrivate:
      return true;
    case MappingKind::kMemfd:
    case MappingKind::kDevice:
      return (m.record.flags & kMapPrivate) != 0;
    default:
      return false;
  }
}

bool is_droppable(const ParsedMapping& m) {
  return kind_of(m) == MappingKind::kAnonymous && (m.record.flags & kMapDroppable) != 0;
}

uint32_t flags_of(const ParsedMapping& m, bool kernel_may_drop) {
  uint32_t flags = is_private(m) ? MAP_PRIVATE : MAP_SHARED;
  uint32_t saved = m.record.flags;
  if (is_droppable(m) && kernel_may_drop) flags = MAP_DROPPABLE;
  if (kind_of(m) == MappingKind::kAnonymous) {
    flags |= MAP_ANONYMOUS;
    // Without MAP_STACK: to newer kernels it means MADV_NOHUGEPAGE as well.
    if ((saved & kMapGrowsDown) != 0) flags |= MAP_GROWSDOWN;
    if ((saved & kMapHugeTlb) != 0) {
      flags |= MAP_HUGETLB;
      // A power of two: parse_meta has checked it.
      if (m.record.page_size > kPageSize)
        flags |= static_cast<uint32_t>(__builtin_ctz(m.record.page_size)) << 26;
    }
  }
  if ((saved & kMapNoReserve) != 0) flags |= MAP_NORESERVE;
  return flags;
}

}  // namespace

bool is_rebuilt(const ParsedMapping& m) {
  return kind_of(m) != MappingKind::kVdso && kind_of(m) != MappingKind::kLibraryOwned;
}

bool takes_image_bytes(const ParsedMapping& m) {
  if (!is_rebuilt(m)) return false;
  if (kind_of(m) == MappingKind::kDevice) return false;
  // Zeros, as where the kernel has dropped the pages: the vDSO's getrandom keeps there what two restarts from
  // one image must not both go on with.
  if (is_droppable(m)) return false;
  return kind_of(m) != MappingKind::kFileShared || may_write(m) || (m.record.flags & kMapFileDeleted) != 0;
}

std::string mapping_name(const ImageMeta& meta, uint32_t index) {
  if (index >= meta.mappings.size()) return fmt::format("mapping {}", index);
  const ParsedMapping& m = meta.mappings[index];
  return fmt::format("{} at {:x}-{:x}", m.path.empty() ? std::string_view("memory") : m.path, m.record.start,
                     m.record.end);
}

Result<void> MemoryPlan::build(WorkingFds& fds, ReportChannel& report) {
  const bool any_droppable = std::any_of(meta_.mappings.begin(), meta_.mappings.end(), is_droppable);
  const bool kernel_may_drop = any_droppable && kernel_has_droppable_memory();
  if (any_droppable && !kernel_may_drop)
    report.note("droppable memory (MAP_DROPPABLE) is ordinary memory here: the kernel is older than 6.11");
  for (uint32_t i = 0; i < meta_.mappings.size(); ++i) {
    const ParsedMapping& m = meta_.mappings[i];
    if (!is_rebuilt(m)) continue;
    RestorerMapping out{};
    out.start = m.record.start;
    out.end = m.record.end;
    out.offset = m.record.file_offset;
    out.prot = m.record.prot;
    out.map_prot = fill_.filled[i] != 0 ? m.record.prot | PROT_READ | PROT_WRITE : m.record.prot;
    out.map_flags = flags_of(m, kernel_may_drop);
    out.flags = m.record.flags;
    out.index = i;
    out.put = fill_.put[i];
    out.fd = out.final_fd = -1;
    if (objects_.is_shared_object(m)) {
      const SharedObject& object = objects_.of(m);
      if (object.view != 0) {
        out.action = static_cast<uint32_t>(MapAction::kDuplicate);
        out.source = object.view + m.record.file_offset;
        out.map_prot = PROT_READ | PROT_WRITE;  // what the view has
      } else {
        out.fd = fds.find_object(m.record.object);
        if (!is_private(m) && is_sealed(m.record.object)) {
          auto reader = reader_of(m.record.object, out.fd, fds);
          if (!reader.ok()) return reader.error();
          out.final_fd = *reader;
        }
      }
    } else if (kind_of(m) == MappingKind::kAnonymous) {
      out.offset = 0;
    } else {
      auto fd = open_file(m, fds);
      if (!fd.ok()) return fd.error();
      out.fd = *fd;
    }
    mappings_.push_back(out);
  }
  return {};
}

// Sealed against writing: then the kernel wants no mapping that could be made writable.
bool MemoryPlan::is_sealed(uint64_t object) const {
  return std::any_of(meta_.open_files.begin(), meta_.open_files.end(), [&](const ParsedOpenFile& file) {
    return file.record.object == object &&
           static_cast<OpenFileKind>(file.record.kind) == OpenFileKind::kMemfd &&
           (file.record.seals & F_SEAL_WRITE) != 0;
  });
}

Result<int> MemoryPlan::reader_of(uint64_t object, int fd, WorkingFds& fds) {
  auto [known, fresh] = readers_.try_emplace(object, -1);
  if (!fresh) return known->second;
  ScopedFd reader(open(fmt::format("/proc/self/fd/{}", fd).c_str(), O_RDONLY | O_CLOEXEC));
  if (!reader.valid())
    return make_error(ExitCode::kSystem, errno, "a sealed memory file cannot be opened for reading ({})",
                      errno_name(errno));
  auto parked = fds.park(std::move(reader), "a sealed memory file");
  if (parked.ok()) known->second = *parked;
  return parked;
}

// All of it is in the image, but for pages of zeros: what is there now must not show through.
Result<void> MemoryPlan::clear(const ParsedMapping& m, int fd, const std::string& path) {
  const bool in_memory = is_shared_memory_file(m);
  for (const ParsedMapping& part : meta_.mappings) {
    const MappingRecord& r = part.record;
    if (part.path != m.path || !takes_image_bytes(part)) continue;
    if (!in_memory && (r.flags & kMapWhole) == 0) continue;
    const auto from = static_cast<off_t>(r.file_offset), bytes = static_cast<off_t>(r.end - r.start);
    // Without the disk's room the program would get SIGBUS where it had taken care not to.
    if (!in_memory && fallocate(fd, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, from, bytes) == 0) continue;
    if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, from, bytes) == 0 || in_memory) continue;
    const auto end = std::min(from + bytes, static_cast<off_t>(r.object_size));
    static constexpr char kZeros[64 << 10] = {};
    for (off_t at = from; at < end;) {
      const ssize_t n =
          pwrite(fd, kZeros, std::min<size_t>(sizeof(kZeros), static_cast<size_t>(end - at)), at);
      if (n <= 0)
        return make_error(ExitCode::kIo, errno, "{} cannot be given its content back ({})", path,
                          errno_name(errno));
      at += n;
    }
  }
  return {};
}

Result<int> MemoryPlan::open_file(const ParsedMapping& m, WorkingFds& fds) {
  bool write = !is_private(m) && may_write(m);
  auto [known, fresh] = open_.try_emplace({std::string(m.path), write}, -1);
  if (!fresh) return known->second;
  const std::string& path = known->first.first;
  int flags = (write ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
  const std::string saved = saved_files_.of(m);
  ScopedFd fd(open(saved.empty() ? path.c_str() : saved.c_str(), flags));
  if (!fd.valid()) {
    return make_error(ExitCode::kFileChanged, errno,
                      "{}, which the program had mapped{}, cannot be opened ({}): put it back, or restart as "
                      "a user who may open it so",
                      path, write ? " for writing" : "", errno_name(errno));
  }
  if (write) {
    struct stat st;
    if (fstat(fd.get(), &st) == 0 && S_ISREG(st.st_mode) &&
        static_cast<uint64_t>(st.st_size) < m.record.object_size &&
        ftruncate(fd.get(), static_cast<off_t>(m.record.object_size)) != 0) {
      return make_error(ExitCode::kIo, errno, "{} is shorter than it was and cannot be made longer ({})",
                        path, errno_name(errno));
    }
    CKPT_TRY(clear(m, fd.get(), path));
  }
  auto parked = fds.park(std::move(fd), path.c_str());
  if (parked.ok()) known->second = *parked;
  return parked;
}

}  // namespace ckpt
