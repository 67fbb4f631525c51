// Going back in place: the program becomes again what it was at a checkpoint, without ending (docs/back.md).
//
// The asker (`ckpt back`) reads the image and compares; BackRun carries out. While the program's memory is
// replaced two threads run: the agent, on a stack and in an arena of ours, and the serving thread. The
// program's threads are parked (parked_threads.h). The library's own data is put back last; meanwhile the
// agent serves the faults itself (put_library_back()).
//
//   prepare   program running: window, lists, what the watch knows
//   stand     all threads stopped: what the program is now, as a META for the asker
//   commit    threads parked and made; the asker's word that files are cut. A failure before it: the program
//             goes on as it was. A failure after it: it is killed, and a line says why
//   go on     memory, descriptors, settings, signals, timers; then all threads at once
// A job has more stages in between: member_gate.h, back_job.cc.
//
// Owner:     libckpt_rt, back*.cc. Callers: the agent, one at a time.
// Never:     uses the library's data between commit and the end, except where a comment says so. Allocates
//            only from its arena.
#pragma once

#include "base/protocol/back_protocol.h"
#include "base/sockets/opened_connection.h"
#include "libckpt_rt/back/member_gate.h"
#include "libckpt_rt/back/parked_threads.h"
#include "libckpt_rt/back/present_state.h"
#include "libckpt_rt/capture/memory/memory_map.h"
#include "libckpt_rt/capture/process/process_state.h"
#include "libckpt_rt/protect/watch.h"

namespace ckpt {

struct BackCost {
  int64_t pause_ns = 0;  // from the first signal until the threads went on
  uint64_t bytes = 0;    // put back
  uint32_t watched = 0;  // only what was written since
  uint32_t threads = 0, ended = 0, made = 0;
  uint32_t notes = 0;  // LibraryNotes
  uint32_t generation = 0;
};

class BackRun {
 public:
  explicit BackRun(int socket)
      : socket_(socket), own_(arena_), unwritable_(arena_), map_before_(arena_), map_(arena_) {}
  ~BackRun();
  BackRun(const BackRun&) = delete;
  BackRun& operator=(const BackRun&) = delete;

  Result<BackCost> run();
  // The asker has been told.
  bool answered() const { return answered_; }

 private:
  Result<void> take_order();
  Result<void> prepare();
  void own_ranges();
  Result<void> tell_ahead();
  // back_stand.cc
  Result<void> stand();
  Result<void> describe();
  Result<void> list_unwritten(bool sure, uint64_t at, BackMessage& message);
  Result<void> hear_plan();
  Result<void> make_threads();
  Result<void> commit();
  // back_job.cc
  Result<void> hold();
  Result<BackCost> stand_by();
  Result<void> commit_job();
  void come_to(uint32_t barrier, bool draining);
  void wait_for_ended();
  void drain_on_thread();
  // back_memory.cc
  Result<void> check_files();
  // After commit a failure is the end of the program.
  void change_memory(bool late);
  void change_one(const BackMemoryOp& op);
  void fill(std::span<const BackFill> fills, bool late);
  void put(uint64_t address, const std::byte* from, uint64_t bytes);
  void fill_all();
  void protect_again();
  uint64_t unwritable_end(uint64_t address) const;
  void write_zeros(uint64_t address, uint64_t length);
  void put_library_back();
  // back_descriptors.cc
  Result<void> check_descriptor_limit();
  void raise_descriptor_limit();
  Result<void> receive_descriptors();
  void close_received();
  void lengthen_files();
  void change_descriptors();
  static void enlarge_pipes_on_thread(void* self);
  static void receive_on_thread(void* self);
  static void change_on_thread(void* self);
  bool change_descriptor(const BackDescriptorOp& op);
  // back_channels.cc
  Result<void> check_channels();
  long change_channel(const BackDescriptorOp& op);
  long drain(const BackDescriptorOp& op) const;
  void drain_all();
  bool all_sent();
  // A TCP connection lets through what it holds, at once.
  struct OpenedConnection {
    int fd;
    ReceiveRoom room;
    HeldBack held_back;
  };
  void open_connections();
  void close_connections();
  // back_signals.cc
  void forget_pending();
  void restore_rest();
  static void before_go(void* self);
  static void all_ready(void* self);

  Result<void> tell(const BackMessage& message);
  Result<BackReply> ask(const BackMessage& message);
  Result<BackReply> hear_reply();
  bool asker_is_gone() const;  // its end is closed, whatever lies unread in ours
  [[noreturn]] void die(const char* what, long error, uint64_t where);
  template <typename T>
  std::span<const T> list(uint64_t at, uint64_t count) const {
    return {reinterpret_cast<const T*>(plan_ + at), count};
  }

  const int socket_;
  MemberGate gate_;
  bool held_ = false;
  uint32_t part_ = 0;  // of the changes of descriptors
  OpenedConnection* opened_ = nullptr;
  uint32_t opened_count_ = 0;
  bool stopped_ = false, parked_ = false, committed_ = false, answered_ = false;
  Arena arena_;
  ArenaVector<AddrRange> own_, unwritable_;  // unwritable_: shared memory that stays as it is
  MemoryMap map_before_, map_;
  BackOrder order_{};
  Watch* watch_ = nullptr;
  int window_fd_ = -1, memory_fd_ = -1;
  std::byte *window_ = nullptr, *plan_ = nullptr, *data_ = nullptr;
  uint64_t window_bytes_ = 0;
  BackPlan head_{};
  BackMessage message_{};
  ParkedThreads threads_;
  PresentState* present_ = nullptr;
  AddrRange late_{};
  int* received_ = nullptr;  // in the program's table
  uint32_t received_count_ = 0;
  long descriptor_error_ = 0;
  uint64_t most_descriptors_ = 0;  // the limit that the numbers to be filled need
  uint64_t descriptor_at_ = 0;
  char directory_[1200] = {};
  int64_t began_ns_ = 0;
  int pid_ = 0;
  bool filtered_ = false;
  // Where the time of the pause goes: the end of each part. For the log.
  enum Part {
    kThreads,
    kDescription,
    kUnwritten,
    kPlan,
    kParked,
    kCommitted,
    kMemory,
    kLibrary,
    kRest,
    kParts
  };
  int64_t part_ends_ns_[kParts] = {};
  void note_end(Part part);
  void log_parts();
  BackCost cost_;
};

}  // namespace ckpt
