// What a checkpoint run sees of a job: where its image goes, and the points at which it waits for the others.
//
// Owner:     job; one at a time, on the agent's stack. Callers: the agent, inside take_checkpoint().
// Without a session every call returns at once: a checkpoint of one process.
#pragma once

#include <span>

#include "base/memory/arena.h"
#include "base/raii_fd.h"
#include "base/result.h"
#include "base/units.h"
#include "copier/shared/shared_ledger.h"
#include "image/write/job_stream_output.h"
#include "job/format/wire.h"

namespace ckpt {
class DescriptorCapture;
struct CapturedDescriptor;
}  // namespace ckpt

namespace ckpt::job {

// Of one member's image.
struct Place {
  int directory = -1;     // the checkpoint's temporary directory, open
  uint64_t sequence = 0;  // of the job's checkpoint
  char name[24] = {};     // of the image in it
  char path[1400] = {};   // of the image when the checkpoint is complete
  // The checkpoint's directory, absolute: as long as it is taken, and when it is complete.
  char now[1400] = {}, later[1400] = {};
  char as_parent[96] = {};  // the image seen from a later checkpoint's directory
  bool may_repeat = false;  // another attempt may follow: fail for what is under way for a moment only
  bool by_fork = false;     // mode fork, whatever is set
  bool full = false;        // no increment, whatever is set
  bool streamed = false;    // the image goes into the job's stream, whatever is set
  JobStreamEnds stream;
  bool stays =
      false;  // mode sequential, whatever is set; threads stand until the checkpoint counts or is given up
};

void fill_place(Place& place, int directory, const char* job_directory, const char* job_name,
                const char* temporary_name, int pid, uint64_t sequence);

class Session {
 public:
  // The ledger's address space, before own_memory is asked for. Without it nothing is shared.
  void reserve_ledger() {
    if (ledger.reserve()) own_memory[2] = ledger.own_range();
  }
  // Ahead of all else, in a session with rounds: hands in what plug-ins of this process have posted, and
  // returns when what is for them is delivered. True: another round follows.
  virtual Result<bool> exchange(std::span<const std::byte> posts) = 0;
  // Armed; the program runs. Returns when all members are, and creation of processes is held.
  virtual Result<void> prepared() = 0;
  // All threads of this process stand. Returns when those of all members do.
  virtual Result<void> standing() = 0;
  // Of a job over several hosts: what this process sent to other hosts has arrived. Returns when that holds
  // for all members on all hosts.
  virtual Result<void> drained(std::span<const Bookmark> connections) = 0;
  // This process has sampled all that it shares with other members. Returns when all members have.
  // unreported: children that are stopped or have ended, which it was not told yet by wait(2).
  virtual Result<void> sampled(std::span<const OpenFileKey> files, const Standing& facts,
                               std::span<const ChildNotice> unreported) = 0;
  // The image is durable under its temporary directory. Returns when the job's checkpoint is committed.
  virtual Result<void> written(const Written& facts) = 0;
  // While this process copies: have the others given up?
  virtual Result<void> still_on() = 0;
  // A process that writes the image for this one must not keep the others' sockets open.
  virtual void in_writing_child() = 0;

  Place place;
  int32_t stop_signal = 0;       // by which this process is stopped; when all stand
  bool leads = false;            // the coordinator's own
  bool over_hosts = false;       // drained() is to be called
  bool told_written = false;     // written() was called
  bool writes_in_stop = false;   // shared memory, ahead of sampled(): for that nobody has a deadline
  uint32_t going = 0;            // other members whose threads go on by the same word; after sampled()
  bool in_rounds = false;        // exchange() is to be called
  bool again = false;            // the run failed in a way that another attempt may not
  bool passing = false;          // again, once what was under way in a connection or terminal has passed
  bool unaccepted = false;       // passing, once servers have accepted
  bool came_or_went = false;     // again: a process was made, or has ended, past libc while the job stopped
  AddrRange own_memory[3] = {};  // in no image; the last is the ledger's

  std::span<const CapturedDescriptor> own_descriptors;  // of this process; from prepared() on

  // Shared memory that members protect (docs/shared_memory.md). Set before prepared(): what this process
  // maps, in memory that stays until then. After it: the ledger is joined if there is anything that all
  // protect.
  bool can_share = false;
  std::span<const SharedOffer> offers;
  SharedLedger ledger;
  std::span<const SharedSaver> savers;  // from prepared() on

 protected:
  ~Session() = default;
};

// Restarted processes, forked children, going back: memory may name a session whose agent is not there.
void forget_session();

// For the arenas of a session; to be named in own_memory.
bool reserve_own(Arena& arena, size_t bytes);

// nullptr: none.
Session* session();

class ScopedSession {
 public:
  explicit ScopedSession(Session& s);
  ~ScopedSession();
  ScopedSession(const ScopedSession&) = delete;
  ScopedSession& operator=(const ScopedSession&) = delete;
};

// A checkpoint of one process that was found alone in its job. If it has children when it stands, they were
// made meanwhile: the checkpoint fails, and the job is taken with them.
// may_repeat: another attempt may follow; so it fails as well for what is under way for a moment only.
// holds_connects: connecting.h.
class ExpectAlone {
 public:
  ExpectAlone(bool may_repeat, bool holds_connects);
  ~ExpectAlone();
  ExpectAlone(const ExpectAlone&) = delete;
  ExpectAlone& operator=(const ExpectAlone&) = delete;
  bool was_not() const { return met_; }
  bool found_passing() const { return passing_; }
  bool found_unaccepted() const { return unaccepted_; }
  // Threads standing; has_children: of the process, living or ended.
  static Result<void> check(bool has_children);
  // Something is under way that cannot be saved: is it to be waited for? Of a process alone or a member.
  // unaccepted: for a server to accept it.
  static bool wait_for_passing(bool unaccepted);
  // Armed; the program runs.
  static void prepared(const DescriptorCapture& descriptors);

 private:
  const bool may_repeat_, holds_connects_;
  bool met_ = false, passing_ = false, unaccepted_ = false;
};

// The hooks of a checkpoint run.
// descriptors: of this process, as they were a moment ago.
Result<void> prepared(const DescriptorCapture& descriptors);
Result<void> standing(int64_t began_ns);
// After standing(): the signal by which this process is stopped, which runs only for us (base/tracing/); 0:
// it is not stopped. A process that was asked itself gets the answer from its asker, which traces it.
int stop_signal();
struct AskedWhileStopped {
  explicit AskedWhileStopped(int asker);  // the socket; -1: it is not stopped
  ~AskedWhileStopped();
  AskedWhileStopped(const AskedWhileStopped&) = delete;
  AskedWhileStopped& operator=(const AskedWhileStopped&) = delete;
};
bool over_hosts();
Result<void> drained(std::span<const Bookmark> connections);
Result<void> sampled(const DescriptorCapture& descriptors);
// The threads of this process go on. Returns when those of the other members have had the time for it.
void let_others_go();
// The first call counts: where threads stand until the end, the back end makes it.
Result<void> written(const Written& facts);
inline const Place* place() { return session() == nullptr ? nullptr : &session()->place; }
// The image goes to the job's stream, or to a command of CKPT_TO for this process alone.
bool is_streamed();
std::span<const AddrRange> own_memory();
// The job's directory, or, where this user may not write into it, the program's own (own_directory.h), which
// may have been handed over. *name: that of the one that is opened, valid until the next is.
Result<ScopedFd> open_job_directory(const char** name);
// Where the log of a checkpoint is: the job's directory, which a member of another user cannot open, or the
// program's.
Result<ScopedFd> open_log_directory();

}  // namespace ckpt::job
