#include "libckpt_rt/capture/rings/registered_files.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <atomic>

#include "base/memory/large_table.h"
#include "base/sys.h"
#include "libckpt_rt/capture/rings/known_rings.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::rings {
namespace {

struct RegisteredFile {
  std::atomic<uint64_t> ring;  // 0: free; kTaken: being filled
  std::atomic<uint32_t> place, access;
  std::atomic<int> fd;
  std::atomic<uint64_t> device, inode;
  // As of the stop; while the agent looks.
  const char* path;  // nullptr: none of the program's descriptors is this file
  size_t path_len;
};
constexpr size_t kMost = 512;
CKPT_LARGE_TABLE constinit RegisteredFile registered_files[kMost]{};
constexpr uint32_t kAccess = O_ACCMODE | O_PATH;

RegisteredFile* find_file(uint64_t ring, uint32_t place) {
  for (RegisteredFile& f : registered_files) {
    if (f.ring.load(kRelaxed) == ring && f.place.load(kRelaxed) == place) return &f;
  }
  return nullptr;
}

void look_at(RegisteredFile& f, int fd) {
  struct stat st {};
  sys::call(__NR_fstat, long{fd}, &st);
  const long flags = sys::call(__NR_fcntl, long{fd}, long{F_GETFL}, 0L);
  f.device.store(st.st_dev, kRelaxed);
  f.inode.store(st.st_ino, kRelaxed);
  f.access.store(static_cast<uint32_t>(flags) & kAccess, kRelaxed);
}

// Where no entry is free, one that a closed ring has left.
RegisteredFile* take_free() {
  for (const bool closed_too : {false, true}) {
    for (RegisteredFile& f : registered_files) {
      uint64_t ring = f.ring.load(kRelaxed);
      if (ring == kTaken || (ring != 0 && (!closed_too || find(ring) != nullptr))) continue;
      if (f.ring.compare_exchange_strong(ring, kTaken, kRelaxed)) return &f;
    }
  }
  return nullptr;
}

}  // namespace

bool remember_file(uint64_t ring, uint32_t place, int fd) {
  RegisteredFile* f = find_file(ring, place);
  if (fd < 0) {
    if (f != nullptr) f->ring.store(0, kRelaxed);
    return true;
  }
  if (f == nullptr) f = take_free();
  if (f == nullptr) return false;
  look_at(*f, fd);
  f->place.store(place, kRelaxed);
  f->fd.store(fd, kRelaxed);
  f->ring.store(ring, kRelaxed);
  return true;
}

void forget_files(uint64_t ring) {
  for (RegisteredFile& f : registered_files) {
    if (f.ring.load(kRelaxed) == ring) f.ring.store(0, kRelaxed);
  }
}

void begin_files() {
  for (RegisteredFile& f : registered_files) {
    if (f.path != nullptr) f.path = nullptr;
  }
}

void note_file(int fd, uint64_t device, uint64_t inode, uint32_t open_flags, std::string_view path) {
  for (RegisteredFile& f : registered_files) {
    if (f.ring.load(kRelaxed) <= kTaken || f.fd.load(kRelaxed) != fd || f.inode.load(kRelaxed) != inode ||
        f.device.load(kRelaxed) != device || f.access.load(kRelaxed) != (open_flags & kAccess))
      continue;
    f.path = path.data();
    f.path_len = path.size();
  }
}

bool is_noted_file(uint64_t ring, uint32_t place, std::string_view path) {
  const RegisteredFile* f = find_file(ring, place);
  return f != nullptr && f->path != nullptr && std::string_view(f->path, f->path_len) == path;
}

long register_files(uint64_t ring, int fd, uint32_t places) {
  if (places == 0) return 0;
  constexpr uint32_t kSparse = 1;  // IORING_RSRC_REGISTER_SPARSE
  io_uring_rsrc_register empty{};
  empty.nr = places;
  empty.flags = kSparse;
  long r = sys::call(__NR_io_uring_register, long{fd}, static_cast<long>(Operation::kFiles2), &empty,
                     sizeof(empty));
  for (RegisteredFile& f : registered_files) {
    if (r < 0) return r;
    if (f.ring.load(kRelaxed) != ring) continue;
    int file = f.fd.load(kRelaxed);
    look_at(f, file);
    io_uring_rsrc_update one{};
    one.offset = f.place.load(kRelaxed);
    one.data = reinterpret_cast<uint64_t>(&file);
    r = sys::call(__NR_io_uring_register, long{fd}, static_cast<long>(Operation::kFilesUpdate), &one, 1L);
  }
  return r < 0 ? r : 0;
}

void rename_rings_of_files(uint64_t (*new_inode)(uint64_t inode)) {
  for (RegisteredFile& f : registered_files) {
    if (const uint64_t ring = f.ring.load(kRelaxed); ring != 0) f.ring.store(new_inode(ring), kRelaxed);
  }
}

}  // namespace ckpt::rings
