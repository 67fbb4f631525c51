#include "libckpt_rt/capture/memory/mapped_files.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <string_view>

#include "base/raii_fd.h"
#include "image/format/file_hash.h"
#include "libckpt_rt/core/process/beginning.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {

int64_t ns_of(const struct timespec& t) { return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec; }

// Reads up to `bytes` at `offset`; how many there were.
size_t read_at(int fd, void* to, size_t bytes, uint64_t offset) {
  size_t done = 0;
  while (done < bytes) {
    long n = sys::call(__NR_pread64, fd, static_cast<std::byte*>(to) + done, bytes - done, offset + done);
    if (n <= 0) break;
    done += static_cast<size_t>(n);
  }
  return done;
}

void read_build_id(int fd, std::span<std::byte> buffer, FileIdentity& id) {
  Elf64_Ehdr header;
  if (read_at(fd, &header, sizeof(header), 0) != sizeof(header)) return;
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64) return;
  for (unsigned i = 0; i < header.e_phnum && i < 64; ++i) {
    Elf64_Phdr program;
    if (read_at(fd, &program, sizeof(program), header.e_phoff + i * sizeof(program)) != sizeof(program))
      return;
    if (program.p_type != PT_NOTE) continue;
    size_t n = read_at(fd, buffer.data(), program.p_filesz < buffer.size() ? program.p_filesz : buffer.size(),
                       program.p_offset);
    for (size_t at = 0; at + sizeof(Elf64_Nhdr) <= n;) {
      Elf64_Nhdr note;
      std::memcpy(&note, buffer.data() + at, sizeof(note));
      size_t name = at + sizeof(note), content = name + ((note.n_namesz + 3u) & ~3u);
      size_t end = content + ((note.n_descsz + 3u) & ~3u);
      if (end > n) break;
      if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && note.n_descsz <= sizeof(id.build_id) &&
          std::memcmp(buffer.data() + name, "GNU", 4) == 0) {
        std::memcpy(id.build_id, buffer.data() + content, note.n_descsz);
        id.build_id_len = note.n_descsz;
        return;
      }
      at = end;
    }
  }
}

// A restart may make it again, for the user of the program: so nobody else's.
bool is_of_job(const struct stat& st) {
  return ns_of(st.st_ctim) >= job_began_ns() && st.st_uid == static_cast<uid_t>(sys::call(__NR_geteuid));
}

}  // namespace

const FileIdentity* MappedFiles::find(const Mapping& m) const {
  for (const FileIdentity& f : files_) {
    if (f.inode == m.inode && f.device == m.device) return &f;
  }
  return nullptr;
}

Result<void> MappedFiles::read(const MemoryMap& map, Arena& scratch) {
  constexpr size_t kBuffer = 256 << 10;
  auto* memory = static_cast<std::byte*>(scratch.allocate(kBuffer, kPageSize));
  if (memory == nullptr) return make_error(ExitCode::kInternal, ENOMEM, "no memory to read mapped files");
  std::span<std::byte> buffer(memory, kBuffer);
  for (const Mapping& m : map.mappings()) {
    if (m.kind != MappingKind::kFilePrivate && m.kind != MappingKind::kFileShared) continue;
    if ((m.map_flags & kMapFileDeleted) != 0 || find(m) != nullptr) continue;
    FileIdentity id;
    id.device = m.device;
    id.inode = m.inode;
    ScopedFd fd(
        static_cast<int>(sys::call(__NR_openat, AT_FDCWD, m.path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0)));
    struct stat st {};
    if (fd.valid() && sys::call(__NR_fstat, fd.get(), &st) == 0 && st.st_ino == m.inode) {
      id.size = static_cast<uint64_t>(st.st_size);
      id.mtime_ns = ns_of(st.st_mtim);
      id.of_job = is_of_job(st);
      read_build_id(fd.get(), buffer, id);
      // A shared writable mapping is the program's own data: it changes.
      if (id.build_id_len == 0 && (!m.shared || (m.prot & PROT_WRITE) == 0)) {
        id.hash = hash_of_file(id.size, buffer, [&](void* to, size_t bytes, uint64_t offset) {
          return read_at(fd.get(), to, bytes, offset);
        });
      }
    } else if (!fd.valid()) {
      fd.release();
    }
    if (!files_.push_back(id)) return make_error(ExitCode::kInternal, ENOMEM, "no memory for mapped files");
  }
  return {};
}

// The image has what such a file holds at the stop; what was known of it ahead of the stop may be older.
void MappedFiles::look_again(const MemoryMap& map) {
  uint32_t left = kMostLooks;
  const Mapping* last = nullptr;
  for (const Mapping& m : map.mappings()) {
    if (m.kind != MappingKind::kFileShared || (m.map_flags & (kMapFileDeleted | kMapMayWrite)) != 0 ||
        !std::string_view(m.path, m.path_len).starts_with("/dev/shm/"))
      continue;
    if (last != nullptr && last->inode == m.inode && last->device == m.device) continue;
    last = &m;
    if (left-- == 0) return;
    struct stat st {};
    if (sys::call(__NR_newfstatat, AT_FDCWD, m.path, &st, AT_SYMLINK_NOFOLLOW) != 0 || st.st_ino != m.inode)
      continue;
    FileIdentity now;
    now.device = m.device;
    now.inode = m.inode;
    now.size = static_cast<uint64_t>(st.st_size);
    now.mtime_ns = ns_of(st.st_mtim);
    now.of_job = is_of_job(st);
    FileIdentity* known = std::find_if(files_.begin(), files_.end(), [&](const FileIdentity& f) {
      return f.inode == m.inode && f.device == m.device;
    });
    if (known == files_.end()) {
      if (!files_.push_back(now)) return;  // its size is that of the mapping then
    } else if (known->size != now.size || known->mtime_ns != now.mtime_ns) {
      *known = now;
    }
  }
}

}  // namespace ckpt
