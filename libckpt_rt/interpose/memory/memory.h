// Memory that the program gives back or replaces while a checkpoint copies it: the checkpoint is told
// first (hooks::before_release), so that the image gets it as it was at the stop.
//
// Owner:     libckpt_rt/interpose. Callers: threads of the program, libc's own code by its jumps
//            (interpose/libc.h).
// Never:     allocates; results are the kernel's.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ckpt::calls {

long munmap(void* start, size_t length);
long mremap(void* start, size_t old_length, size_t new_length, int flags, void* new_start);
long mmap(void* start, size_t length, int protection, int flags, int fd, long offset);
long madvise(void* start, size_t length, int advice);
long process_madvise(int pidfd, const void* ranges, size_t n, int advice, unsigned flags);
long mprotect(void* start, size_t length, int protection);
long pkey_mprotect(void* start, size_t length, int protection, int key);
long remap_file_pages(void* start, size_t length, int protection, size_t page_offset, int flags);
long brk(void* end);
long shmat(int id, const void* start, int flags);
long shmdt(const void* start);
long ftruncate(int fd, long length);
long truncate(const char* path, long length);
long fallocate(int fd, int mode, long offset, long length);

// Calls hooks::before_release for each mapping of the file with that device and inode; if `start` is not 0,
// for the mapping that starts there instead.
void release_mappings(uint64_t device, uint64_t inode, uintptr_t start);

}  // namespace ckpt::calls
