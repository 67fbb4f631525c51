// Saving the program's file descriptors.
//
// Owner:     libckpt_rt. One DescriptorCapture is one checkpoint's view of the descriptor table.
// Callers:   the agent, whose descriptor table is its own: the program's is seen through /proc, and
//            sampled in the stop by a thread that shares it (OtherThreads). Order:
//              prepare            program running: list, classify, find which share an open file
//              begin_sampling     all threads stand: threads of the program begin to sample; meanwhile the
//                                 agent does what only it can do, which recheck_stopped begins with
//              recheck_stopped    all threads stand: what changed since, offsets, flags, bytes in pipes
//              release            program running again: last looks that need no stop; gives up files of ours
//              serialize          program running: OpenFile, Descriptor, FileContent, Note records
// Parts:     each has one job; DescriptorCapture calls them, in order:
//   OpenFiles           the descriptors, and which are one open file
//     DescriptorAccess    how the agent gets at them
//     DescriptorSampling  what each is in the stop
//   Classifier          kind, path and details of each: FileNames, EpollWatches, FileWatches
//     HeldInfo            fdinfo that the stop reads again
//   WorkingDirectory    one that has been removed
//   SocketCapture       sockets, and what waits in them
//   Terminals
//   FileContents        bytes of files, pipes and queues
//   DescriptorLosses    what is lost, as DescriptorNotes
// Never:     holds a duplicate of a descriptor while the program runs: a duplicate of a pipe's end would
//            hide the end of file from a reader, one of a locked file would keep the lock, one of a
//            program being installed would make exec fail with ETXTBSY. Never changes an offset, a
//            flag or a byte of the program's open files.
#pragma once

#include <sys/socket.h>
#include <sys/stat.h>

#include "base/memory/arena.h"
#include "base/memory/bytes.h"
#include "base/result.h"
#include "libckpt_rt/capture/descriptors/content/file_contents.h"
#include "libckpt_rt/capture/descriptors/kinds/classifier.h"
#include "libckpt_rt/capture/descriptors/kinds/held_info.h"
#include "libckpt_rt/capture/descriptors/kinds/terminals.h"
#include "libckpt_rt/capture/descriptors/kinds/working_directory.h"
#include "libckpt_rt/capture/descriptors/losses.h"
#include "libckpt_rt/capture/descriptors/table/access.h"
#include "libckpt_rt/capture/descriptors/table/contents.h"
#include "libckpt_rt/capture/descriptors/table/notes.h"
#include "libckpt_rt/capture/descriptors/table/open_files.h"
#include "libckpt_rt/capture/descriptors/table/partners.h"
#include "libckpt_rt/capture/descriptors/table/sampling.h"
#include "libckpt_rt/capture/sockets/sockets.h"
#include "libckpt_rt/core/threads/of_ours/other_threads.h"

namespace ckpt {

class DescriptorCapture {
 public:
  DescriptorCapture() = default;
  DescriptorCapture(const DescriptorCapture&) = delete;
  DescriptorCapture& operator=(const DescriptorCapture&) = delete;
  ~DescriptorCapture() { release(); }

  // tid: any live thread of the program, best the leader. All memory comes from `arena`, which must
  // outlive serialize(). Errors: kInternal when the arena is full, kSystem when /proc is not there.
  Result<void> prepare(Arena& arena, int tid);
  // Ranges of files that another part of the image saves; call before recheck_stopped. The span must stay
  // valid.
  void skip_mapped(std::span<const MappedFileRange> ranges) { file_contents_.skip_mapped(ranges); }
  // Mappings that are there for this checkpoint alone, for the stop.
  void know_own(std::span<const AddrRange> ranges) { losses_.know_own(ranges); }
  // First thing in the stop, before a file is opened. kUnsupported: a listener of the program may have to
  // permit that (fanotify(7)). tid: a stopped thread.
  Result<void> check_permissions(int tid) const { return watches_.check_stopped(tid); }
  // sharers: threads that have the program's descriptor table. Without any everything is read from outside,
  // at 10 µs a descriptor instead of 1.
  Result<void> begin_sampling(int tid, OtherThreads sharers);
  Result<void> recheck_stopped(int tid, OtherThreads sharers);
  // An attempt that gives up after begin_sampling calls this before threads run again.
  void await_samples() { sampling_.await(); }
  // The image directory, or -1: links to files that are kept in it (image/format/saved_file_names.h) are no
  // other names.
  void set_saved_files(int directory, bool of_job) { names_.set_saved_files(directory, of_job); }
  // The image is to have the bytes of files that the program can change in place, 16 MiB at most. Before
  // prepare.
  void save_contents() { file_contents_.save_named(); }
  // Open files that wait in sockets, which we have open to look at them. Before the program runs.
  void close_in_flight() { sockets_.close_in_flight(); }
  // A descriptor of ours is in the program's table at the stop. -1: none.
  void hide(int fd) { sampling_.hide(fd); }
  // The other ends of its pipes and sockets may be in other processes that are saved with it: they stay pipes
  // and connections, and a process that can read one saves its bytes. Before recheck_stopped.
  void expect_partners() { partners_.any = true; }
  // The job has members on other hosts: drained() is called when all that was sent to them has arrived, and
  // returns when that is so everywhere.
  void expect_hosts(Partners::Drained drained) { partners_.drained = drained; }
  void release();
  // Part of release(); for a forked child, which writes the image while its parent releases.
  void name_watches() { watches_.name_all(); }
  // False: the writer's arena is full.
  bool serialize(ByteWriter& out) const;
  // One entry for each open file, after recheck_stopped(); in the arena.
  Result<std::span<const job::OpenFileKey>> list_open_files() const { return files_.list_open_files(); }

  // The first note that says what forbids every restart. Empty: none does.
  std::string_view why_no_restart() const { return notes_.why_no_restart(); }

  // The obstacle to a restart is on its way, or waits to be accepted: it may be gone at the next look.
  bool has_passing() const { return notes_.has_passing(); }
  // It waits to be accepted.
  bool has_unaccepted() const { return notes_.has_unaccepted(); }
  // Sockets that were told to send without waiting, so that other members get the bytes, hold bytes back
  // again as they did. After all members have looked, before threads run.
  void hold_back_senders();

  // As sampled in the stop; before recheck_stopped as prepare saw them.
  std::span<CapturedDescriptor> entries() { return files_.entries().span(); }
  std::span<const CapturedDescriptor> entries() const { return files_.entries().span(); }
  size_t descriptor_count() const { return files_.entries().size(); }
  // A number of the program's that leads to this TCP socket; -1: none.
  int tcp_socket(uint64_t inode) const { return sockets_.tcp_socket(inode); }

 private:
  Result<void> find_changes();
  Result<void> list_owners();

  Partners partners_;
  DescriptorAccess access_;
  OpenFiles files_{access_};
  DescriptorSampling sampling_{files_, access_};
  DescriptorNotes notes_;
  FileNames names_{files_, access_};
  EpollWatches epolls_{files_, access_, notes_};
  FileWatches watches_{files_, access_, notes_};
  Terminals terminals_{files_, access_, notes_, partners_};
  Classifier classifier_{files_, access_, names_, epolls_, watches_};
  HeldInfo held_{files_, access_, classifier_};
  WorkingDirectory directory_{files_, classifier_};
  DescriptorContents contents_;
  FileContents file_contents_{files_, access_, notes_, contents_};
  SocketCapture sockets_{files_, access_, notes_, contents_, classifier_, partners_};
  DescriptorLosses losses_{files_, notes_, partners_};
  bool complete_ = false;  // recheck_stopped has succeeded
};

}  // namespace ckpt
