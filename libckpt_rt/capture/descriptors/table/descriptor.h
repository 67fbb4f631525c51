// One descriptor of the program, as a capture knows it.
//
// Owner:     libckpt_rt, descriptors; table/open_files.h has them.
// Callers:   the agent; a sample is also filled by a stopped thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "image/format/records/descriptor_records.h"

namespace ckpt {

// What fstat and fcntl say, from a thread with the program's table or from outside.
struct DescriptorSample {
  int error;  // errno of fstat, 0 fine
  int same;   // is the same open file as the partner: 1, 0, or -errno: not known
  int locks;  // fdinfo shows locks: 1, 0, or -1: not looked at
  uint32_t mode, links;
  uint64_t device, inode, rdev, size;
  uint32_t uid, gid;
  int64_t mtime_ns, ctime_ns;
  uint64_t offset;
  uint32_t open_flags;  // F_GETFL
  uint32_t fd_flags;    // FD_CLOEXEC
  uint32_t seals;
  int queued;           // FIONREAD of a pipe
  bool other_end_gone;  // of a pipe: nobody has it
  uint32_t pipe_size;
  int owner;
  uint32_t owner_type;
  int owner_signal;
};

struct CapturedDescriptor {
  int fd;
  uint64_t offset_ahead;  // when the attempt prepared
  int proc_fd;            // its fdinfo, open in our table from prepare to release; -1 none
  uint32_t open_file;     // id; set when sharing is known
  OpenFileKind kind;
  uint32_t flags;  // OpenFileFlag
  uint32_t path_len;
  const char* path;   // NUL-terminated, in the arena
  bool shares;        // same open file as the one before it in the order of open files
  int partner;        // fd of the one before it in that order when that has the same inode, else -1
  bool asks_partner;  // the sample is to say whether both are the same open file
  bool has_locks;
  bool has_lease;      // of has_locks: whoever opens the file breaks it
  bool looked;         // classified: false for what is new since prepare
  bool read_again;     // fdinfo was read in the stop, and fits the kind
  bool in_order;       // kcmp(2) says in the stop about it and the one before it what it said before
  bool by_number;      // told from its neighbours by its eventfd_id
  int64_t eventfd_id;  // the kernel's number of an eventfd, unlike that of any other; -1: not known
  bool named;          // the path leads to this very file
  // The name that it was opened by was removed, and this one leads to it: found while the program runs.
  const char* other_name;
  uint32_t other_name_len;
  bool path_in_doubt;  // may have been renamed since prepare
  bool is_sparse;      // a file too long for an image but for its holes, when the attempt prepared
  bool in_flight;      // waits in a socket, sent with SCM_RIGHTS: fd is of our table, to the end of the stop
  uint64_t value;      // as OpenFileRecord::value
  int held_by;         // of a terminal's master: a process above the job that has it too; 0: none
  std::string_view watches;  // of inotify: fdinfo as of the stop, until the files are named
  const std::byte* details;
  uint32_t details_len;
  DescriptorSample now;
};

// Nothing is known of it but its number.
inline CapturedDescriptor unknown_descriptor(int fd) {
  CapturedDescriptor d{};
  d.fd = fd;
  d.proc_fd = d.partner = -1;
  d.eventfd_id = -1;
  return d;
}

}  // namespace ckpt
