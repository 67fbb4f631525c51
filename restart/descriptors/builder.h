// Makes open files from their records. Each family of kinds has a source file of its own.
//
// Owner:     restart/descriptors: one builder for one restore.
// Callers:   check_descriptors; restore_descriptors, in the new process; the planter of a job, for what its
//            processes have together (restart/job/shared_things.cc); `ckpt back` (cli/back/).
// Each make_* returns a descriptor with the record's access mode, offset and flags, at any number;
// the caller moves it to its numbers. Descriptors that have to outlive one call are parked among the
// working descriptors; finish() closes them.
#pragma once

#include <fcntl.h>

#include <map>
#include <optional>
#include <set>
#include <vector>

#include "image/read/image_meta.h"
#include "image/read/open_file_details.h"
#include "restart/channels/channel_builder.h"
#include "restart/descriptors/descriptors.h"
#include "restart/files/file_bytes.h"

namespace ckpt {

class DescriptorBuilder {
 public:
  DescriptorBuilder(const ImageMeta& meta, const DescriptorOptions& options)
      : meta_(meta), options_(options), channels_(options.working, options.say, options.say_at_once) {}

  // Takes the restarter's descriptors 0, 1, 2 aside and closes everything below working->first().
  Result<void> take_standard_streams();
  // Then every number of the image is taken, by /dev/null.
  Result<void> hold_numbers();
  // Sockets: all at once, before other open files; what waited in them, when all others are there.
  Result<void> connect_sockets();
  // The same, but for the sockets of these objects, which somebody else makes.
  Result<void> connect_sockets_but(const std::map<uint64_t, int>& others);
  Result<void> fill_sockets();
  // kOpenFileWorkingDirectory; fd: what was made of it.
  Result<void> enter_directory(const ParsedOpenFile& file, int fd);
  // Masters of terminals first.
  Result<ScopedFd> make(const ParsedOpenFile& file);
  // Descriptors of a standard stream or terminal: each of 0, 1, 2 is the restarter's own.
  bool is_restarters(const ParsedOpenFile& file) const;
  // As recorded, but for pipes that lead out of a job.
  OpenFileKind kind_of(const ParsedOpenFile& file) const;
  Result<ScopedFd> restarters_stream(const ParsedOpenFile& file, int fd);
  int first_descriptor(const ParsedOpenFile& file) const;  // lowest number that leads to it, -1 none
  // Owner, signal and O_ASYNC; what refers to other descriptors: watches of epolls, locks.
  void set_owner(const ParsedOpenFile& file, int fd);
  Result<void> add_watches(const ParsedOpenFile& file, int fd);
  int sent_descriptor(const ParsedOpenFile& file) const;  // of one that waits in a socket; -1: none
  static void add_timers(const ParsedOpenFile& file, int fd, RestoredDescriptors& result);
  void add_locks(const ParsedOpenFile& file, int fd, RestoredDescriptors& result);
  void finish();

  // inotify.cc, fanotify.cc
  void add_file_watches(const ParsedOpenFile& file, int fd) const;
  // files.cc
  Result<ScopedFd> open_by_path(const ParsedOpenFile& file);
  Result<ScopedFd> open_of_process(const ParsedOpenFile& file);
  Result<void> check(const ParsedOpenFile& file);
  // journals.cc. Before files get their names back, and after.
  Result<void> set_aside_journals();
  void make_journals();
  // saved_files.cc
  // Files that were removed since the checkpoint, and are kept beside the image or, small ones, in it: they
  // get their names back.
  Result<void> put_back_files();
  // changed_files.cc
  // Files that were written in place, or became shorter, and whose bytes are known, from the image or from a
  // copy beside it: what they hold now is saved, then they are as they were.
  Result<void> put_back_changes();
  // The names of the files that put_back_changes() changes.
  void name_changes(std::set<std::string, std::less<>>& names) const;
  // put_back_changes, cut_grown_files or set_aside_journals has changed something, also where it failed
  // afterwards.
  bool has_changed_files() const { return has_changed_files_; }
  // Files opened for writing that have grown: tail saved, then cut. All files were checked before.
  Result<void> cut_grown_files();

 private:
  struct PipeEnds {
    int read = -1, write = -1;  // parked, or at the number of the open file
    bool read_used = false, write_used = false;
  };

  Result<ScopedFd> make_placeholder(const ParsedOpenFile& file);
  // saved_files.cc
  std::string saved_link(const ParsedOpenFile& file) const;
  std::string saved_copy(const ParsedOpenFile& file) const;
  bool is_saved(const ParsedOpenFile& file) const;
  bool is_lost_directory(const ParsedOpenFile& file) const;
  bool make_of_contents(const ParsedOpenFile& file);
  // The name by which its file is opened: its own, or that of the link beside the image when its own leads to
  // another.
  std::string name_to_open(const ParsedOpenFile& file) const;
  // changed_files.cc
  bool has_contents(const ParsedOpenFile& file) const;
  std::optional<FileBytes> bytes_at_checkpoint(const ParsedOpenFile& file) const;
  bool can_put_back(const ParsedOpenFile& file) const;
  bool is_mapped_private(std::string_view path) const;
  Result<void> put_back(const ParsedOpenFile& file, const std::string& path);
  Result<std::string> save_aside(const ParsedOpenFile& file, int fd, uint64_t from, uint64_t to,
                                 std::string_view what);
  // journals.cc
  bool is_database(const ParsedOpenFile& file) const;
  bool is_open_in_image(uint64_t inode) const;
  Result<void> refuse_if_in_use(const ParsedOpenFile& file) const;
  Result<void> set_aside(const ParsedOpenFile& database, const std::string& path, uint64_t inode);
  // contents.cc: files without a name, memfds
  Result<ScopedFd> make_deleted_file(const ParsedOpenFile& file);
  Result<ScopedFd> make_deleted_directory(const ParsedOpenFile& file);
  Result<ScopedFd> make_deleted_link(const ParsedOpenFile& file);
  Result<ScopedFd> make_memfd(const ParsedOpenFile& file);
  Result<void> fill(const ParsedOpenFile& file, int fd);
  void put_attributes(const ParsedOpenFile& file, int fd) const;
  Result<ScopedFd> open_again(const ParsedOpenFile& file, int fd, int flags);
  // pipes.cc
  Result<ScopedFd> make_pipe(const ParsedOpenFile& file);
  Result<ScopedFd> make_fifo(const ParsedOpenFile& file);
  Result<int> open_fifo_holder(const ParsedOpenFile& file);
  bool has_unwritten(uint64_t object) const;
  Result<void> open_unwritten(const ParsedOpenFile& file);
  Result<void> refill_pipe(const ParsedOpenFile& file, int write_end);
  Result<ScopedFd> open_terminal(const ParsedOpenFile& file);
  // terminals.cc
  bool is_of_own_terminal(const ParsedOpenFile& file) const;
  Result<ScopedFd> make_master(const ParsedOpenFile& file);
  // The line that was begun in the other end (terminal_records.h).
  void type_line(const ParsedOpenFile& file, int master, Blob line, bool quotes) const;
  Result<ScopedFd> open_own_terminal(const ParsedOpenFile& file);
  // anonymous.cc
  Result<ScopedFd> make_eventfd(const ParsedOpenFile& file);
  Result<ScopedFd> make_timerfd(const ParsedOpenFile& file);
  Result<ScopedFd> make_signalfd(const ParsedOpenFile& file);
  Result<ScopedFd> make_epoll(const ParsedOpenFile& file);
  static bool add_spent_watch(int epoll, const EpollWatchDetail& w);
  Result<ScopedFd> make_pidfd(const ParsedOpenFile& file);
  // inotify.cc
  Result<ScopedFd> make_inotify(const ParsedOpenFile& file);
  void add_inotify_watches(const ParsedOpenFile& file, int inotify) const;
  // fanotify.cc
  Result<void> check_fanotify(const ParsedOpenFile& file) const;
  Result<ScopedFd> make_fanotify(const ParsedOpenFile& file);
  void add_fanotify_marks(const ParsedOpenFile& file, int group) const;
  // message_queues.cc
  Result<ScopedFd> open_message_queue(const ParsedOpenFile& file);
  Result<void> check_message_queue(const ParsedOpenFile& file) const;
  Result<ScopedFd> make_message_queue(const ParsedOpenFile& file) const;
  Result<void> put_back_messages(const ParsedOpenFile& file, int queue) const;

  template <typename... Args>
  void say(fmt::format_string<Args...> format, Args&&... args) const {
    if (options_.say) options_.say(fmt::format(format, std::forward<Args>(args)...));
  }

  const ImageMeta& meta_;
  const DescriptorOptions& options_;
  bool has_changed_files_ = false;
  std::set<uint64_t> said_not_put_back_;  // objects: files that the program goes on with as they are
  int standard_[3] = {-1, -1, -1};        // the restarter's, parked
  std::map<uint64_t, PipeEnds> pipes_;    // by object
  std::map<uint64_t, int> fifo_holders_;  // by object, open for reading and writing
  std::map<uint64_t, std::map<uint32_t, int>> unwritten_;  // by object: all that read it, by id; 0: ours
  std::map<uint32_t, int> makers_;  // by id: those that O_TMPFILE made their file with, parked
  std::map<uint64_t, int> queues_;  // by object, open for receiving and sending
  ChannelBuilder channels_;
  std::map<uint32_t, uint32_t> terminals_;      // /dev/pts/N as they were, and as they are
  std::map<uint32_t, ScopedFd> spare_masters_;  // by number, while masters are made
  std::set<uint64_t> created_memfds_;           // objects whose first open file has been given out
  std::map<uint32_t, int> in_flight_;           // open files without a descriptor, by id, parked
};

// Has a name, by which it is opened.
bool opened_by_path(const ParsedOpenFile& file);
// What /proc says of a process: made when all other descriptors are at their numbers.
bool is_of_process(const ParsedOpenFile& file);
inline bool is_place_only(const OpenFileRecord& r) { return (r.open_flags & O_PATH) != 0; }
inline bool is_writable(const OpenFileRecord& r) {
  return (r.open_flags & O_ACCMODE) != O_RDONLY && !is_place_only(r);
}
bool is_terminal_master(const ParsedOpenFile& file);
// Of a master and of its other ends: N of /dev/pts/N.
std::optional<uint32_t> terminal_number(const ParsedOpenFile& file);
// The same of a device number as /proc/PID/stat gives it.
std::optional<uint32_t> number_of_terminal(uint64_t device);

// Flags for opening a file again: nothing that creates, empties or takes a terminal.
int reopen_flags(const OpenFileRecord& record);
// "descriptor 5 (/tmp/x)" for messages.
std::string describe(const ParsedOpenFile& file, int fd);

}  // namespace ckpt
