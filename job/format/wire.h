// What the coordinator of a job's checkpoint and the other members say to each other, over the socket by
// which a member was asked (base/protocol/control_protocol.h, operation kJoin). docs/jobs.md has the states.
//
// Owner:     job. Callers: agents of one job, all with the same library.
//
//   coordinator            member
//   JoinRequest      -->
//                    <--   kPosted     (with kJoinRounds: what its plug-ins post, Post and bytes, in each round)
//   kHandedOut       -->               (with kJoinRounds: RoundEnd, then what is for this member)
//                    <--   kPrepared   armed; the program runs
//   kHoldConnects    -->               (where an attempt before has met connections that nobody had accepted) connect waits
//                                      from here to kGo, a second at most
//                    <--   kConnectsHeld
//   kAccept          -->               all hold it
//                    <--   kAccepted   nothing waits in its listening sockets that a checkpoint cannot have, or it has waited
//                                      long enough
//   kHold            -->               creation of processes waits from here to kGo
//                    <--   kHeld       (with kJoinHeld in the request: instead of kPrepared and kHold) Held, then a
//                                      SharedOffer for each mapping of shared memory, anonymous or of System V
//   kStop            -->               StopOrder, then SharedSaver for each object that one member saves for all; with a ledger
//                                      LedgerSize, LedgerObject for each object that all protect, and then a byte with the
//                                      ledger's descriptor. Without one shared memory is copied in the stop
//                    <--   kStanding   all its threads stand
//   kSample          -->               all threads of all members stand; int32_t: the signal that has stopped the
//                                      member, or 0
//                    <--   kDrained    (with kJoinHosts: Bookmark for each connection to another host)
//   kPeek            -->               (with kJoinHosts: on all hosts all bytes have arrived)
//                    <--   kUnreported  (if there are any: ChildNotice for each child that is stopped or has ended, which
//                                      it was not told yet by wait(2))
//                    <--   kSampled    Standing, then OpenFileKey for each open file
//   kGo              -->               uint32_t: of how many members besides the coordinator; all are sampled, and their
//                                      threads go on
//                    <--   kWritten    Written: its image is durable in the temporary directory, or all of it is in the stream
//   kReconnect       -->               (with kJoinStays, where another host was left: uint64_t, the cookie of
//                                      reconnect_protocol.h)
//                    <--   kReconnected  (the same) it has new sockets in place of its connections to that host. Where it
//                                      could not take them it says nothing and stands, until it is ended
//   kDone            -->               the directory has its name
// At any time: kFailed (Failed) from a member, kAbort from the coordinator; a socket that closes is the same.
#pragma once

#include <cstdint>

namespace ckpt::job {

enum class Step : uint32_t {
  kNone = 0,
  kPosted,
  kHandedOut,
  kPrepared,
  kHoldConnects,
  kConnectsHeld,
  kAccept,
  kAccepted,
  kHold,
  kHeld,
  kStop,
  kStanding,
  kSample,
  kDrained,
  kPeek,
  kUnreported,
  kSampled,
  kGo,
  kWritten,
  kReconnect,
  kReconnected,
  kDone,
  kAbort,
  kFailed,
};

struct MessageHead {
  uint32_t step;   // Step
  uint32_t bytes;  // that follow
};
inline constexpr uint32_t kMostMessageBytes = 64 << 20;

enum JoinFlag : uint32_t {
  kJoinHeld = 1u << 0,       // found after kHold: it holds the creation of processes at once
  kJoinByFork = 1u << 1,     // others have failed twice: mode fork
  kJoinMayRepeat = 1u << 2,  // another attempt will be made if this one fails
  kJoinHosts = 1u << 3,      // other hosts take part
  kJoinFull = 1u << 4,       // the image is no increment
  kJoinRounds = 1u << 5,     // plug-ins prepare in rounds
  kJoinStays = 1u << 6,      // threads stand until the checkpoint counts or is given up
  kJoinStream =
      1u << 7,  // images go into one stream: two bytes follow, with its pipe and the eventfd of its turns
};

struct JoinRequest {
  uint8_t job[16];
  uint64_t sequence;
  uint32_t flags;  // JoinFlag
  int32_t root;
  char directory[1200];  // absolute
  char name[96];         // of the checkpoint's directory when it is complete
  char temporary[96];    // and now
};

struct HoldConnects {
  uint32_t creation_too;  // 1: of processes as well, where the member listens nowhere
};

struct Held {
  uint32_t can_share;  // 1: what is offered is protected, and the offers are complete
  uint32_t reserved;
};

// A mapping of memory that other members may map.
struct SharedOffer {
  uint64_t device, inode;
  uint64_t start, length, offset;
  uint64_t object;        // MappingRecord::object
  uint32_t is_protected;  // 1: all of it, and this is the member's only mapping of it
  uint32_t can_save;      // 1: all of it will be in the member's image, unless another saves it
};

struct StopOrder {
  uint32_t savers;      // SharedSaver that follow
  uint32_t has_ledger;  // 1: it follows
};

// The member in whose image the bytes of an object are for all: offset to offset + length of it.
struct SharedSaver {
  uint64_t object;  // MappingRecord::object, by which they are sorted
  uint64_t offset, length;
  int32_t pid;
  uint32_t reserved;
};
inline constexpr uint32_t kMostSavers = 4096;

// A message from a plug-in in one member to that in another (ckpt_rt_post()); `length` bytes follow, padded
// to 8.
struct Post {
  char subject[32];
  // Of the receiver on its way to the coordinator, of the sender from there on. An empty host is this one.
  char host[64];
  int32_t pid;
  uint32_t length;
};
// Without a subject it is for the coordinator: who saves the process `pid` (ckpt_rt_take_over()), with that
// name.
inline constexpr uint32_t kMostClaimBytes = 40;
inline constexpr uint32_t kMostPostBytes = 4096, kMostPostedBytes = 64 << 10;
// What one member may get in all rounds of a checkpoint.
inline constexpr uint32_t kMostMailBytes = 256 << 10;
struct RoundEnd {
  uint64_t more;  // 1: another round follows
};

struct Standing {
  int64_t began_ns;  // CLOCK_MONOTONIC: its first thread was signalled
  int32_t tid;       // one of its threads that has not exited
  uint32_t subreaper;
  int32_t pdeath_signal;  // of one of its threads that has one, else 0
  uint32_t reserved;
};

struct ChildNotice {
  int32_t pid;
  int32_t exit_status;  // as wait(2) gives it; kIsStopped
  static constexpr int32_t kIsStopped = -1;
};

// One open file description of a member: what is compared before the kernel is asked.
struct OpenFileKey {
  uint32_t open_file;  // OpenFileRecord::id
  int32_t fd;          // one descriptor of it
  uint64_t device, inode;
  uint32_t open_flags;
  uint32_t kind;  // OpenFileKind
  int32_t tid;    // of the agent, which has one that waits in a socket until GO; 0: the program has it
  uint32_t reserved;
};

// A TCP connection to another host, when all stand: the other host's counts are the same.
struct Bookmark {
  uint8_t local[16], remote[16];  // IPv4 as ::ffff:a.b.c.d
  uint16_t local_port, remote_port;
  uint32_t unsent;          // bytes that did not arrive in time
  uint64_t sent, received;  // bytes since it was made
  uint32_t ended;           // 1: the other end sends no more, and may be gone
  uint32_t reserved;
};

struct Written {
  int64_t resumed_ns;  // CLOCK_MONOTONIC: its last thread went on
  uint64_t bytes_memory, bytes_written;
  uint64_t image_state;           // ParentImage::state
  char why_not_restartable[320];  // CheckpointCost's
};

// What another attempt would need in order to succeed.
enum class Again : uint32_t {
  kNever,
  kAtOnce,
  kInAMoment,  // the program goes on for a moment
  kAccepted,   // and servers accept what waits
};

struct Failed {
  uint32_t code;   // ExitCode
  uint32_t again;  // Again
  int32_t sys_errno;
  char text[320];
};

}  // namespace ckpt::job
