// By which name a file that is watched is found again: one that the program used (watch_names.h), else, with
// the right to do so (CAP_DAC_READ_SEARCH), the one that the file's handle leads to.
//
// Owner:     libckpt_rt, capture of descriptors. Callers: FileWatches, while the program runs.
// Never:     opens a file but by O_PATH; a directory where a file system is mounted is opened to be read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ckpt {

constexpr size_t kWatchedNameBytes = 4096;

// " ino:2c sdev:800001 … fhandle-bytes:8 fhandle-type:1 f_handle:2c000000a1b2c3d4" in a line of fdinfo.
struct WatchedFile {
  uint64_t inode, device;  // device: as stat(2) has it
  bool is_link;            // found: the symbolic link itself is watched
  struct {                 // struct file_handle
    uint32_t bytes;
    int32_t type;
    uint8_t handle[128];
  } file;
};

// False: the line has no such file.
bool parse_watched(std::string_view line, WatchedFile& file);
// sdev of fdinfo, as stat(2) has it. False: not there.
bool parse_device(std::string_view line, uint64_t& device);

// Into name, which has kWatchedNameBytes. Its length; 0: no name leads to it. mounts: /proc/self/mountinfo.
size_t find_watched_name(std::string_view mounts, WatchedFile& file, char* name);

// Where the mount with this number is, or any that shows this device; 0 in the other one. The place is one
// that no other mount hides.
size_t find_mount_point(std::string_view mounts, uint64_t id, uint64_t device, char* name);

}  // namespace ckpt
