// How `ckpt now PID` and `ckpt stat PID` talk to a preloaded program.
//
// There is no socket and no thread in the program while nothing is asked of it. The asker
//   1. listens on the abstract Unix stream socket "\0ckpt_rt.<cookie as 16 hex digits>" with a
//      random 64-bit cookie,
//   2. queues the checkpoint signal to PID with si_code SI_QUEUE and sival_ptr = cookie,
//      Where as many signals are queued for PID's user as its RLIMIT_SIGPENDING allows, the cookie cannot be
//      sent. Then the signal is that of kill(2), which the kernel never refuses, and the socket's name is
//      "\0ckpt_rt.<PID as the program sees it, 16 hex digits>.<cookie>": whenever the library gets such a
//      signal it looks for all of them in /proc/net/unix. Nobody can take a name ahead that others ask by,
//   3. the library's agent connects; both ends check the peer's credentials (SO_PEERCRED): the
//      library requires the asker's uid to be its own effective uid or 0 (root of another user
//      namespace has neither here, so root listens as PID's user), the asker requires the peer's pid to
//      be PID,
//   4. the library sends a ControlHello, the asker a ControlRequest,
//   5. the library sends text lines "key value\n", values until the end of the line, and closes.
//      "progress DONE TOTAL" (bytes of memory, while the image is written) may come at any time; the last
//      line is "done" or "error CODE TEXT" with CODE an ExitCode,
//   6. before a checkpoint the library may ask for what it may not open itself, since the asker may have more
//      rights: "need directory PATH" (the image directory that is set) and "need memory" (its own mem and
//      pagemap in /proc). The asker answers each by one byte with what it could open, if anything
//      (SCM_RIGHTS): a directory only if it belongs to the program's user and nobody else may write to it,
//      PATH itself or PATH/user-UID; memory as two descriptors, mem first, open for reading.
// The signal's number is CKPT_SIGNAL of PID's environment, else kDefaultCheckpointSignal. A program that puts
// that signal to use itself has had ours moved to another: then a mapping of its own is named
// kMovedSignalName and the number, which counts if the program catches that signal.
//
// Owner: base. Callers: libckpt_rt/entry (the agent), job/capture, and cli/ask with the agents of hosts.
#pragma once

#include <cstdint>
#include <string_view>

namespace ckpt {

inline constexpr uint64_t kLeastCookie = 1ull << 32;  // of a random one
inline constexpr uint64_t kJoinCookie = 1ull << 63;   // set in those of kJoin, and in no others
inline constexpr uint64_t kBackCookie = 1ull << 62;   // set in those of kBack of a job, and in no others
inline constexpr int kDefaultCheckpointSignal = 60;
inline constexpr std::string_view kMovedSignalName = "/memfd:ckpt_signal:";  // as /proc/PID/maps has it
inline constexpr uint32_t kControlMagic = 0x43525443;                        // "CTRC"
inline constexpr uint32_t kControlVersion = 4;

// kBack: back_protocol.h. kJoin is asked by another member of the same job, which leads its checkpoint: a
// JoinRequest follows (job/format/wire.h).
enum class ControlOperation : uint32_t { kCheckpoint = 1, kStat = 2, kBack = 3, kJoin = 4 };

enum ControlFlag : uint32_t {
  kControlOnly = 1u << 0,  // kCheckpoint: this process alone, whatever else is in its job
  // kCheckpoint: a LeaveOutList follows the request.
  kControlLeaveOut = 1u << 1,
  // kCheckpoint: a HostsPart follows (after the list): the processes of this host are part of a job over
  // several hosts (docs/hosts.md).
  kControlHosts = 1u << 2,
  // kCheckpoint: the process is stopped, and the asker lets our code run in it (base/tracing/). When its
  // threads stand the library says "need stop_signal", and the asker answers by one byte: the signal by which
  // the process is stopped, or 0 if it was continued meanwhile.
  kControlStopped = 1u << 3,
};

struct ControlHello {
  uint32_t magic, version;
  int32_t pid;  // in the program's own pid namespace
  uint32_t reserved;
};

inline constexpr char kHandedOver = 'h';  // the byte

// Processes of the job that need not be saved if the library is not in them: pids and program names,
// separated by commas, or "all". NUL-terminated.
struct LeaveOutList {
  char text[512];
};

// At each step of the checkpoint the library says "need step NAME" (prepared, standing, drained, sampled,
// durable; before drained a line "bookmark LOCAL REMOTE SENT RECEIVED UNSENT" for each connection to another
// host, addresses as 32 hexadecimal digits, a dot, and the port) and waits for one byte.
// Ahead of prepared, in each round of plug-ins, "need step posted"; before it a line "post HOST PID BYTES"
// for each message to other hosts: HOST and PID of the receiver (* and 0: all), BYTES in hexadecimal digits
// (Post of job/format/wire.h, with the sender in it). To kStepContinue belong here: 8 bytes, 1 if any member
// on any host has posted; 4 bytes, how many follow; for each message to this host the pid of the receiver (4
// bytes) and Post with its bytes.
enum PartFlag : uint32_t {
  kPartFull = 1u << 0,  // all images are full: nothing older is needed with this checkpoint
  // Threads stand until the checkpoint counts or is given up, so that the processes can be ended at its
  // instant.
  kPartStays = 1u << 1,
};
struct HostsPart {
  uint64_t id;       // of the checkpoint of all hosts
  uint32_t attempt;  // from 1
  uint32_t flags;    // PartFlag
  char host[64];     // the name of this one, NUL-terminated
};
inline constexpr char kStepContinue = 'g', kStepGiveUp = 'a', kStepKeep = 'k';
// At "durable", with kPartStays: the processes of another host go on elsewhere. 8 bytes follow, a cookie:
// each process takes new sockets by it, in place of its connections to that host (reconnect_protocol.h).
// "need step reconnected" is next.
inline constexpr char kStepReconnect = 'c';

struct ControlRequest {
  uint32_t magic, version;
  uint32_t operation;  // ControlOperation
  uint32_t flags;      // ControlFlag
};

// Keys of the answer to kCheckpoint (all integers decimal): image PATH, mode NAME, sequence,
//   parent_sequence (0: a full image), pause_ns, longest_wait_ns, forced_copies, sequential_copies, faults,
//   buffer_waits, faults_ahead, fault_wait_ns, buffer_wait_ns, copier_wait_ns, processor_ns, processor_WHO_ns
//   of agent, handler, writer, helpers and child, delayed_WHO_ns of agent, handler and writer
//   (docs/account.md), bytes_memory, bytes_written, durable_ns, threads, mappings, descriptors, attempts,
//   restartable yes|no, note TEXT (0..n times);
//   of a job also: job PATH, members, members_ended, members_left_out, job_pause_ns, job_attempts
// Keys of the answer to kStat: pid, version, directory PATH, mode NAME, mode_reason TEXT,
//   faults NAME (of modes that protect memory), faults_reason TEXT (if it is not the one that is set),
//   job_id, job_root PID, job_directory PATH (of a member of a job),
//   signal, segment, pool, compress NAME, compress_level (of zstd), to COMMAND (if set), key_file PATH (if
//   set), increments, keep, every_ns, every_overhead_ns, every_latency_ns, every_mtbf_ns (of `auto`, once
//   they were measured), setting VARIABLE TEXT (of each setting, as base/settings/settings_table.h
//   prints it), in_force VARIABLE TEXT (of each setting that checkpoints do not follow: what they follow),
//   checkpoints, failures, last_image PATH, last_error TEXT, total_pause_ns, longest_pause_ns, processor_ns
// Keys of the answer to kBack: pause_ns, bytes, watched 0|1, threads, threads_ended, threads_made, generation

}  // namespace ckpt
