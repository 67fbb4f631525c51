// Putting the saved descriptors back: every open file at its numbers, shared as it was shared.
//
// Owner:     restart.
// Callers:   check_descriptors: ckpt-restart, before anything is touched (it opens and closes, no
//            more), and again first thing in restore_descriptors. restore_descriptors: the new
//            process, on its only thread, before its memory is replaced.
// Never:     creates, empties or locks a file of the user's while another could still turn out to be
//            missing. Leaves descriptors below WorkingFds::first() that were not in the image.
//
// After restore_descriptors the standard streams are the program's: messages go through `say`, which
// must use a working descriptor.
#pragma once

#include <time.h>

#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "image/read/image_meta.h"
#include "restart/files/vanished_file.h"
#include "restart/files/working_fds.h"

namespace ckpt {

// An open file that the planter of the job has made, for this process and others.
struct InheritedFile {
  int fd = -1;         // among the working descriptors
  bool first = false;  // this process adds what one of them has to add: watches, seals
};
using InheritedFiles = std::map<uint32_t, InheritedFile>;  // by OpenFileRecord::id

struct DescriptorOptions {
  WorkingFds* working = nullptr;              // not needed by check_descriptors
  const ImageChain* image = nullptr;          // the same; nullptr: no file is made again from it
  std::string image_directory = ".";          // what files held that are put back goes here
  uint64_t sequence = 0;                      // of the image, for the names of that
  int64_t taken_ns = 0;                       // CLOCK_REALTIME at the checkpoint
  std::string saved_files;                    // directory of what is kept beside the image; empty: none
  ReturningFiles returning;                   // gone, and made again before descriptors are
  std::function<void(std::string_view)> say;  // one line for the user
  std::function<void(std::string_view)> say_at_once;  // the same, of what is waited for
  // MappingRecord::object of shared mappings: their memfds are not sealed here, see pending_seals.
  std::set<uint64_t> mapped_objects;
  // Of a job; nullptr: a process that comes back alone. Files that have grown were cut for all of them.
  const InheritedFiles* inherited = nullptr;
  // Of a job: pipes and sockets of which it had one end only, by object: the standard stream that the end was
  // in some process of it, -1 in none. As in an image of one process alone, these lead to the restarter's
  // stream, or nowhere.
  const std::map<uint64_t, int>* lone_pipes = nullptr;
  // ckpt back: the processes are there, and have files open and locked. open_in_job: inodes of all files that
  // some process of the job had open at the checkpoint; nullptr: a process alone.
  bool in_place = false;
  const std::set<uint64_t>* open_in_job = nullptr;
  // What watches files (inotify, fanotify) gets its watches by restore_file_watches(): it would tell the
  // program that ckpt-restart opens files.
  bool watch_later = false;
  // Of a job: the ids of all its processes, which are there by now, ended ones as well.
  const std::set<int>* processes = nullptr;
};

// A lock of fcntl(F_SETLK). It is lost when the process closes any descriptor of the file, as closing
// the file of a mapping does: whoever does that applies the locks again afterwards (it does no harm).
struct ProcessLock {
  int fd;      // the program's
  short type;  // F_RDLCK, F_WRLCK
  int64_t start, length;
  bool had;  // false: another process has it
};

// To be added with F_ADD_SEALS when the memfd's mappings are made and filled.
struct PendingSeals {
  int fd;  // a working descriptor, open for writing
  uint64_t object;
  uint32_t seals;
};

// A timerfd. It is set once more when the clocks go on from the checkpoint: until then its time runs, and
// that of the program does not.
struct ProcessTimer {
  int fd;  // the program's
  int flags;
  itimerspec spec;
  uint64_t ticks;  // expirations that were not read
};

struct RestoredDescriptors {
  std::vector<ProcessLock> locks;
  std::vector<ProcessTimer> timers;
  std::vector<PendingSeals> pending_seals;
};

// Every file is there, is of the recorded kind, can be opened as it was and is long enough.
// Errors: kFileChanged, kPermission; names the file and the remedy.
Result<void> check_descriptors(const ImageMeta& meta, const DescriptorOptions& options);

// The names of files that were changed in place since, and get back what they held before anything is mapped.
void add_files_put_back(const ImageMeta& meta, const DescriptorOptions& options,
                        std::set<std::string, std::less<>>& names);

// Errors: as above, kIo when a tail or the contents of a file without a name cannot be written,
// kSystem. The highest descriptor of the image must be below working->first().
Result<RestoredDescriptors> restore_descriptors(const ImageMeta& meta, const DescriptorOptions& options);

// Whether restore_file_watches() has anything to do.
bool has_file_watches(const ImageMeta& meta, const DescriptorOptions& options);

// When all files are open that the new process needs, and the others of its job: what each inotify and
// fanotify watches (DescriptorOptions::watch_later).
void restore_file_watches(const ImageMeta& meta, const DescriptorOptions& options);

int highest_descriptor(const ImageMeta& meta);  // -1: none

// The working directory, where it had been removed; nullptr: it had a name.
const ParsedOpenFile* removed_working_directory(const ImageMeta& meta);

}  // namespace ckpt
