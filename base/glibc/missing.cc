// What this project or the libraries in it ask of glibc, and glibc 2.31 does not have. Hidden: only a library
// or command that links this in uses it.
//
// Owner:     base. Callers: any, as the functions of that name.
// Never:     in libckpt_rt, called on threads of the program: these are for what is linked in statically and
//            for commands.
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/preload_rules.h"

#define CKPT_HIDDEN __attribute__((visibility("hidden")))

extern "C" {

// 2.32. libstdc++ counts references without atomics where it is true; nobody says so here.
CKPT_HIDDEN constinit char __libc_single_threaded = 0;

// 2.33: before that they were inline, for another name.
CKPT_HIDDEN int fstat(int fd, struct stat* to) noexcept {
  return static_cast<int>(syscall(SYS_fstat, fd, to));
}
CKPT_HIDDEN int fstatat(int fd, const char* path, struct stat* to, int flags) noexcept {
  return static_cast<int>(syscall(SYS_newfstatat, fd, path, to, flags));
}
CKPT_HIDDEN int stat(const char* path, struct stat* to) noexcept { return fstatat(AT_FDCWD, path, to, 0); }
CKPT_HIDDEN int lstat(const char* path, struct stat* to) noexcept {
  return fstatat(AT_FDCWD, path, to, AT_SYMLINK_NOFOLLOW);
}
struct stat64;
CKPT_HIDDEN int fstat64(int fd, struct stat64* to) noexcept {
  return static_cast<int>(syscall(SYS_fstat, fd, to));
}

// 2.36, for std::random_device, which takes it without asking what else there is.
CKPT_HIDDEN uint32_t arc4random() noexcept {
  uint32_t random = 0;
  while (syscall(SYS_getrandom, &random, sizeof(random), 0) != sizeof(random)) {
  }
  return random;
}

// 2.35; the unwinder calls it for exceptions.
#ifdef DLFO_EH_SEGMENT_TYPE
CKPT_HIDDEN int _dl_find_object(void* address, dl_find_object* found) noexcept {
  struct Search {
    ElfW(Addr) address;
    dl_find_object* found;
  } search{reinterpret_cast<ElfW(Addr)>(address), found};
  auto look = [](dl_phdr_info* object, size_t, void* argument) {
    auto& s = *static_cast<Search*>(argument);
    ElfW(Addr) start = ~ElfW(Addr){0}, end = 0, frames = 0;
    bool inside = false;
    for (unsigned i = 0; i < object->dlpi_phnum; ++i) {
      const ElfW(Phdr)& part = object->dlpi_phdr[i];
      const ElfW(Addr) at = object->dlpi_addr + part.p_vaddr;
      if (part.p_type == PT_GNU_EH_FRAME) frames = at;
      if (part.p_type != PT_LOAD) continue;
      inside = inside || (s.address >= at && s.address < at + part.p_memsz);
      start = at < start ? at : start;
      end = at + part.p_memsz > end ? at + part.p_memsz : end;
    }
    if (!inside || frames == 0) return 0;
    s.found->dlfo_flags = 0;
    s.found->dlfo_map_start = reinterpret_cast<void*>(start);
    s.found->dlfo_map_end = reinterpret_cast<void*>(end);
    s.found->dlfo_link_map = nullptr;
    s.found->dlfo_eh_frame = reinterpret_cast<void*>(frames);
    return 1;
  };
  return dl_iterate_phdr(look, &search) == 1 ? 0 : -1;
}
#endif

}  // extern "C"
