// The working parts of one attempt at a checkpoint. See checkpoint.h for the stages.
//
// Owner:     libckpt_rt, checkpoint*.cc. Callers: the agent.
#pragma once

#include <optional>

#include "copier/dma_copy_engine.h"
#include "copier/filled_queue.h"
#include "copier/segment_size.h"
#include "image/write/direct_sink.h"
#include "libckpt_rt/capture/page_scan.h"
#include "libckpt_rt/capture/still_memory.h"
#include "libckpt_rt/checkpoint/callbacks.h"
#include "libckpt_rt/checkpoint/compression_threads.h"
#include "libckpt_rt/checkpoint/image_command.h"
#include "libckpt_rt/checkpoint/meta.h"
#include "libckpt_rt/core/beside.h"
#include "libckpt_rt/guard/guarded_memory.h"
#include "libckpt_rt/protect/watch.h"

namespace ckpt {

inline Error no_memory(const char* what) {
  return make_error(ExitCode::kInternal, ENOMEM, "no address space left for {}; raise the limit (ulimit -v)",
                    what);
}

class CheckpointRun {
 public:
  static constexpr uint32_t kNoBuffer = UINT32_MAX;
  // How far copies in order go ahead of the disk, and how much of that the writer may hold, bytes: what is
  // left is more than the batch that it waits for.
  static constexpr uint64_t kAheadBytes = 12 << 20, kHeldBytes = 6 << 20;

  CheckpointRun(Mode mode, FaultBackEnd back_end, int64_t requested_ns, CheckpointCost& cost, Watch& watch);
  ~CheckpointRun();
  CheckpointRun(const CheckpointRun&) = delete;
  CheckpointRun& operator=(const CheckpointRun&) = delete;

  Result<void> run();
  // The attempt failed because the program gave memory back under our hands: another may succeed.
  bool memory_vanished() const { return memory_vanished_; }
  // The attempt failed because its fault back end cannot serve this program: nothing happened to it.
  bool refused() const { return refused_; }
  // The watch goes on: the next checkpoint may be an increment to this one. Otherwise it has to be ended.
  bool keeps_watch() const { return kept_; }
  // Of CKPT_KEY_FILE, or nullptr.
  const ImageKey* key() const { return key_; }

 private:
  // checkpoint_run.cc
  Result<void> prepare();
  Result<void> open_sink();
  void copy_into_huge_pages();
  void choose_segment(uint64_t resident);
  Result<void> get_ready();
  void own_ranges();
  void disown(Arena& arena);
  bool note(uint32_t severity, const char* text);
  void note_what_is_lost();
  void judge_restart();
  Result<void> set_meta();

  // checkpoint_stop.cc
  Result<void> stop();
  Result<void> collect_signals(const StopWorld::Stopped& stopped);
  DescriptorExecutor on_stopped_threads();
  struct Samplers {
    ThreadSlot* slots[2];
    uint32_t count;
  } samplers_{};  // that were started and not awaited
  Result<void> while_stopped();
  void run_callbacks(ckpt_rt_callback_kind kind, ThreadSlot* slot);

  // checkpoint_pages.cc
  Result<void> list_pages();
  Result<void> leave_out_excluded(ArenaVector<AddrRange>& runs, size_t first);
  Result<void> list_free_heap();
  void log_heap();

  // checkpoint_copies.cc
  Result<void> prepare_copy_of_all(uint64_t resident);
  Result<void> prepare_eager_copies(const MemoryMap& map, size_t threads);
  Result<void> add_eager(std::span<const AddrRange> runs);
  Result<void> copy_eagerly();
  // At most 64 pages on their way into eager_.
  struct EagerCopy {
    Addr from;
    uint64_t bytes;
    std::byte* to;
    bool readable, file;
  };
  Result<void> take_eager_copy(const EagerCopy& copy, bool read, ArenaVector<CopiedSegment>& copied);

  // checkpoint_protection.cc
  void choose_parent();
  const char* why_full() const;
  void say_what_is_not_used() const;
  Result<void> protect_ahead();
  Result<void> inherit_unwritten();
  Result<void> settle_protection();
  [[nodiscard]] bool add_stack_pages();
  void take_protection_off();

  // checkpoint_guarded.cc
  bool is_guarded() const {
    return back_end_ == FaultBackEnd::kInThread || back_end_ == FaultBackEnd::kMprotect;
  }
  Error refuse(const char* why);
  Result<void> prepare_guard(uint64_t list_bytes);
  Result<void> get_ready_for_guard();
  Result<void> open_guard_ahead();
  bool keep_open(const ThreadSlot* stopped);
  static bool share_descriptors(const ThreadSlot* stopped);
  // give_up: memory is protected in the stop after all, and nothing of it is protected any more.
  void leave_guard_stopped(ThreadSlot* thread, bool give_up);
  Result<void> settle_guarded();
  [[nodiscard]] bool add_rseq_pages();
  Result<void> protect_for_guard();
  void take_registration_off();
  void close_guard();
  void undo_guard();
  ArmedMemory& armed_memory() { return is_guarded() ? static_cast<ArmedMemory&>(guarded_) : protection_; }

  // checkpoint_modes.cc
  void expect_progress();
  void limit_copies_ahead();
  Result<void> finish_realtime();
  Result<void> write_still_memory();
  Result<void> finish_fork();
  Result<void> commit();
  // The writer thread exists from before the stop: a failure to start it must not leave threads in
  // faults with nobody to empty the pool.
  enum class WriterOrder : uint32_t { kWait = 0, kWrite = 1, kLeave = 2, kHelp = 3, kHelping = 4 };
  bool start_engine();
  bool writes_at_once() const;
  void start_writer(WriterOrder order);
  // Until then it can help in the stop, on another processor than the agent's, if there are both.
  Beside writer_beside();
  Beside beside_{};
  static void writer_entry(void* self);
  void write_queue();
  static void release_buffer(void* self, uint32_t buffer);

  Mode mode_;
  const FaultBackEnd back_end_;
  const int64_t requested_ns_;
  CheckpointCost& cost_;
  int64_t stop_called_ns_ = 0, stop_began_ns_ = 0, copied_ns_ = 0;
  // Where the time of the stop goes: the end of each part. For the log.
  enum StopPart { kThreads, kMappings, kProcess, kDescriptors, kProtection, kCopies, kStopParts };
  int64_t stop_part_ends_ns_[kStopParts] = {};
  uint64_t faults_ahead_ = 0;
  void ends(StopPart part);
  void log_stop();
  bool stopped_ = false;
  bool memory_vanished_ = false;
  bool refused_ = false;
  bool keep_watch_ = false;  // increments are wanted, and can be had
  bool kept_ = false;

  Arena arena_;  // lists and records
  Arena sink_arena_;
  Arena eager_arena_;  // copies made in the pause
  BufferPool pool_;
  ArenaVector<AddrRange> own_;
  ScopedFd directory_;
  ImageIdentity identity_{};
  ScopedFd parent_;  // held until this image is one of those that stay
  ImageName image_name_;
  ImageCommand command_;
  CompressionThreads compression_threads_;
  DirectSink sink_;
  ImageKey* key_ = nullptr;  // in arena_, which no image holds; wiped at the end

  MemoryMap map_before_, map_;
  MappedFiles files_;
  ProcessTexts texts_;
  ProcessFacts facts_;
  DescriptorCapture descriptors_;
  PageScan pages_;
  StillMemory still_memory_;
  Watch& watch_;
  WriteProtection& protection_;
  GuardedMemory guarded_;
  bool ahead_ = false;  // protection goes on ahead of the stop: not so with every back end
  bool guard_open_ = false, guard_copies_ = false;  // copies_: from the stop on
  int64_t opened_in_ns_ = 0;                        // the stop that opened the guard ahead
  Arena guarded_arena_;
  SegmentTable& table_;
  Arming guarded_arming_;
  Arming& arming_;
  FilledQueue queue_;
  Copier copier_;
  std::optional<DmaCopyEngine> engine_;
  ArenaVector<CopiedSegment> eager_;
  ArenaVector<AddrRange> inherited_;  // what the parent has
  ArenaVector<AddrRange> free_heap_;  // pages whose content nobody needs, as of the stop
  ArenaVector<Addr>
      open_pages_;  // copied in the pause and not protected: futexes (futex_words.h), ends of stacks
  ArenaVector<StoppedThread> threads_;
  ArenaVector<int> waiting_;  // threads that waited just ahead of the stop
  ArenaVector<PendingSignalRecord> pending_;
  ArenaVector<NoteLine> notes_;
  Result<void> writer_result_;
  FutexWord writer_order_{static_cast<uint32_t>(WriterOrder::kWait)};
  bool writer_started_ = false;
  bool writer_spawned_ = false;
  uint8_t writer_processors_[1024] = {};  // the mask of those it may run on
  uint32_t writer_processors_bytes_ = 0;
  void (*writer_work_)(void*) = nullptr;
  void* writer_work_argument_ = nullptr;
};

}  // namespace ckpt
