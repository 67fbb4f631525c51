#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstring>
#include <string_view>

#include "image/format/object_number.h"
#include "libckpt_rt/capture/aio/aio_contexts.h"
#include "libckpt_rt/capture/memory/lost_mappings.h"
#include "libckpt_rt/capture/memory/memory_map.h"
#include "libckpt_rt/capture/memory/other_name.h"
#include "libckpt_rt/capture/rings/rings.h"
#include "libckpt_rt/capture/sockets/noted/socket_mappings.h"
#include "libckpt_rt/core/hooks.h"
#include "libckpt_rt/core/process/beginning.h"
#include "libckpt_rt/core/process/library_range.h"
#include "libckpt_rt/core/preload_rules.h"

// How each mapping is saved, and by which name its file is found again.

namespace ckpt {

namespace {

constexpr std::string_view kDeleted = " (deleted)";
constexpr uint64_t kSmallFile = 64 << 10;  // bytes: read whole in the stop, perhaps from its disk
// Bytes: larger ones of the program's own are saved whole as well, but for their holes. A runtime's processes
// share their knowledge by such files.
constexpr uint64_t kMostOwnFile = 16 << 20;
constexpr uint64_t kLeastOfJob = 1 << 20;  // bytes of shared memory

bool is_born_since(const char* path, uint64_t inode, int64_t since_ns) {
  struct statx st {};
  return !sys::failed(
             sys::call(__NR_statx, AT_FDCWD, path, AT_STATX_DONT_SYNC, STATX_INO | STATX_BTIME, &st)) &&
         (st.stx_mask & STATX_BTIME) != 0 && st.stx_ino == inode &&
         st.stx_btime.tv_sec * 1'000'000'000LL + st.stx_btime.tv_nsec >= since_ns;
}

MappingKind kind_by_path(std::string_view path, bool says_deleted, bool shared) {
  const MappingKind file = shared ? MappingKind::kFileShared : MappingKind::kFilePrivate;
  if ((path.starts_with("/dev/zero") && says_deleted) || path.starts_with("[anon_shmem:"))
    return MappingKind::kSharedAnonymous;
  if (path.starts_with("/memfd:")) return MappingKind::kMemfd;
  if (path.starts_with("/SYSV")) return MappingKind::kSysV;
  if (path.starts_with("/dev/shm/")) return file;
  return path.starts_with("/dev/") ? MappingKind::kDevice : file;
}

}  // namespace

// A private mapping's file cannot be opened again: all of it goes into the image, as anonymous memory. A
// shared mapping has a file of its own after a restart, to which its writes go.
void MemoryMap::be_nameless(Mapping& m) {
  m.map_flags |= kMapFileDeleted;
  m.whole = true;
  m.handling = Handling::kEager;
  if (!m.shared) m.kind = MappingKind::kAnonymous;
}

size_t MemoryMap::find_other_name_of(const Mapping& m, std::span<char> to) {
  std::string_view removed(m.path, m.path_len);
  removed.remove_suffix(kDeleted.size());
  constexpr std::string_view kMemory = "/dev/shm/";
  const bool in_memory = removed.starts_with(kMemory) && removed.rfind('/') == kMemory.size() - 1;
  size_t length = 0;
  if (entries_left_ != 0 && (in_memory || !standing_))
    length = find_name_beside(removed, m.device, m.inode, to, &entries_left_);
  if (standing_) {
    if (length == 0 && m.shared && (!in_memory || entries_left_ == 0)) unknown_name_ = true;
    return length;
  }
  if (length != 0 || in_memory || searches_left_ == 0) return length;
  --searches_left_;
  return find_other_name(removed, m.device, m.inode, to);
}

// The kernel names the file by a name that was removed: does another lead to it?
bool MemoryMap::take_other_name(Mapping& m) {
  const OtherName* known = nullptr;
  for (const OtherName& n : other_names_) {
    if (n.device == m.device && n.inode == m.inode) known = &n;
  }
  if (known == nullptr) {
    char found[4096];
    const size_t length = find_other_name_of(m, found);
    OtherName name{m.device, m.inode, nullptr, static_cast<uint32_t>(length)};
    if (length != 0) {
      auto* path = static_cast<char*>(arena_->allocate(length + 1, 1));
      if (path == nullptr) return false;
      std::memcpy(path, found, length + 1);
      name.path = path;
    }
    if (!other_names_.push_back(name)) return false;
    known = other_names_.end() - 1;
  }
  if (known->path == nullptr) return false;
  m.path = known->path;
  m.path_len = known->path_len;
  return m.other_name = has_other_names_ = true;
}

void MemoryMap::check_other_names() {
  if (!has_other_names_) return;
  for (Mapping& m : mappings_) {
    if (m.other_name && !is_name_of(m.path, m.device, m.inode)) be_nameless(m);
  }
}

bool MemoryMap::is_own_file(const Mapping& m) {
  const uint64_t bytes = m.range.size();
  if (bytes > kMostOwnFile || bytes > own_files_left_ || !is_born_since(m.path, m.inode, job_began_ns()))
    return false;
  own_files_left_ -= bytes;
  return true;
}

// By its name alone: the kernel's own, or a place for what belongs to a descriptor. False: none of these.
bool MemoryMap::classify_special(Mapping& m, std::string_view path, bool says_deleted) {
  if (path == "[vdso]" || path.starts_with("[vvar")) {
    m.kind = MappingKind::kVdso;
    return true;
  }
  if (path.starts_with(socket_mappings::kPath)) {
    // Its place: note_lost_mappings() says whether what belongs there can be had again. kMapPrivate: of the
    // socket; the place is private in any case.
    m.kind = MappingKind::kAnonymous;
    if (!m.shared) m.map_flags |= kMapPrivate;
    m.shared = false;
    return true;
  }
  if (((path.starts_with(aio_contexts::kPath) && says_deleted) || path == rings::kPath) && m.shared) {
    // The ring of a context of asynchronous I/O, or an io_uring: note_lost_mappings() says whether it is made
    // again. The kernel writes to it.
    m.kind = MappingKind::kAnonymous;
    m.handling = Handling::kEager;
    m.whole = true;
    m.shared = false;
    return true;
  }
  if (m.inode == 0 && !m.shared) {
    m.kind = MappingKind::kAnonymous;
    if (path == "[stack]") m.map_flags |= kMapGrowsDown;
    // Our own data is written while segments are copied, by the threads that copy them: a fault of
    // theirs would wait for themselves.
    m.handling = library_data_range().overlaps(m.range) ? Handling::kEager : Handling::kTracked;
    m.whole = true;
    return true;
  }
  return false;
}

void MemoryMap::classify(Mapping& m) {
  const std::string_view path(m.path, m.path_len);
  const bool says_deleted = path.ends_with(kDeleted);
  if (classify_special(m, path, says_deleted)) return;
  m.kind = kind_by_path(path, says_deleted, m.shared);
  // A file may be called so.
  const bool is_file = m.kind == MappingKind::kFileShared || m.kind == MappingKind::kFilePrivate;
  const bool deleted = says_deleted && !(is_file && (leads_to_inode(m.path, m.inode) || take_other_name(m)));
  if (m.shared) {
    handle_shared(m, path, deleted);
  } else {
    handle_private(m, path, deleted);
  }
}

void MemoryMap::handle_private(Mapping& m, std::string_view path, bool deleted) {
  // Pages changed since mapping are anonymous; userfaultfd does not protect file mappings.
  m.handling = Handling::kEager;
  if (deleted || m.kind == MappingKind::kMemfd || m.kind == MappingKind::kSharedAnonymous) {
    if (m.kind == MappingKind::kMemfd) m.map_flags |= kMapOfMemfd;
    be_nameless(m);
  } else if (m.kind == MappingKind::kDevice) {
    m.kind = path.starts_with("/dev/zero") ? MappingKind::kAnonymous : MappingKind::kDevice;
    m.whole = m.kind == MappingKind::kAnonymous;
    if (m.kind == MappingKind::kDevice) {
      m.handling = Handling::kSkip;
      m.map_flags |= kMapPrivate;
    }
  }
}

void MemoryMap::handle_shared(Mapping& m, std::string_view path, bool deleted) {
  const bool writable = (m.prot & PROT_WRITE) != 0;
  m.object = m.kind == MappingKind::kSysV ? segment_object_number(m.device, m.inode)
                                          : object_number(m.device, m.inode);
  switch (m.kind) {
    case MappingKind::kSharedAnonymous:
      // Children write to it past our protection. With it they can protect it themselves; little is copied
      // sooner.
      m.whole = true;
      if (hooks::has_forked.load(std::memory_order_relaxed)) {
        m.of_job = track_of_job_ && m.range.size() >= kLeastOfJob && m.prot == (PROT_READ | PROT_WRITE);
        m.handling = m.of_job ? Handling::kTracked : Handling::kEager;
      } else {
        m.handling = Handling::kTracked;
      }
      break;
    case MappingKind::kMemfd:
    case MappingKind::kSysV:
      // Other processes, or write(2) on the memfd, can change these past our protection.
      m.handling = Handling::kEager;
      m.whole = true;
      break;
    case MappingKind::kFileShared:
      if (deleted) m.map_flags |= kMapFileDeleted;
      m.whole = deleted || path.starts_with("/dev/shm/");
      if (writable) m.map_flags |= kMapMayWrite;
      // The figures that a runtime shares with its tools, in a file that the tools remove when its process is
      // gone.
      if (writable && !m.whole && m.file_offset == 0 && (m.range.size() <= kSmallFile || is_own_file(m))) {
        m.whole = true;
        m.map_flags |= kMapWhole;
      }
      m.handling = writable || m.whole ? Handling::kEager : Handling::kSkip;
      break;
    default:
      m.handling = Handling::kSkip;
  }
}

}  // namespace ckpt
