// Files that the program has registered with a ring (IORING_REGISTER_FILES): which of its descriptors each
// was. fdinfo shows which places have a file, and the file's name; only where both agree is the file taken to
// be the one of that descriptor.
//
// Owner:     rings; in the library's data. Callers: remember, forget: threads of the program, inside a
//            Change. The rest: the agent, threads standing; register_files, rename_rings: at restart.
// Never:     allocates.
#pragma once

#include <cstdint>
#include <string_view>

namespace ckpt::rings {

// fd below 0: the place is empty. False: there is no room to remember it.
bool remember_file(uint64_t ring, uint32_t place, int fd);
void forget_files(uint64_t ring);

void begin_files();
// A descriptor of the program: as fstat(2), fcntl(F_GETFL) and /proc/PID/fd say.
void note_file(int fd, uint64_t device, uint64_t inode, uint32_t open_flags, std::string_view path);
// The file at this place, of that name in fdinfo, is one that was noted.
bool is_noted_file(uint64_t ring, uint32_t place, std::string_view path);

// With the new ring, which has as many places. 0, or an error.
long register_files(uint64_t ring, int fd, uint32_t places);
// Each ring has another inode now: new_inode(old), 0: it is gone.
void rename_rings_of_files(uint64_t (*new_inode)(uint64_t inode));

}  // namespace ckpt::rings
