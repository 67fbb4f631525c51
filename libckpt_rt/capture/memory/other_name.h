// Another name of a file whose first name was removed: a hard link that is left.
//
// Owner:     libckpt_rt. Callers: the agent. find_other_name(): while the program runs, for it reads
//            directories. The others: also in the stop, find_name_beside() there for /dev/shm alone.
// Never:     follows a symbolic link while it searches; opens the file; reads more than a bounded number of
//            entries.
// Where:     the directory of the removed name, then the directory above it and its other directories
//            (mail is delivered so: written in tmp/, linked into new/).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace ckpt {

// Does the name lead to this very file? `path`: NUL-terminated. Follows no symbolic link at its end.
bool is_name_of(const char* path, uint64_t device, uint64_t inode);

// The same for the name that /proc/PID/maps gives, by the inode number alone: the device there need not be
// the one of stat(2) (btrfs). A symbolic link at its end is followed: a restart opens the file by this name.
bool leads_to_inode(const char* path, uint64_t inode);

// `removed`: the name that it had, absolute. Puts a name into `to`, NUL-terminated. Its length; 0: none was
// found.
size_t find_other_name(std::string_view removed, uint64_t device, uint64_t inode, std::span<char> to);

// The same in the directory of the removed name alone. *left: directory entries that may be read, and after
// it those that still may be. At 0 the search has not ended.
size_t find_name_beside(std::string_view removed, uint64_t device, uint64_t inode, std::span<char> to,
                        uint32_t* left);

}  // namespace ckpt
