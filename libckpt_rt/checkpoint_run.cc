#include "libckpt_rt/checkpoint_run.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/uio.h>

#include <algorithm>

#include "base/clock.h"
#include "libckpt_rt/checkpoint_progress.h"
#include "libckpt_rt/critical_section.h"
#include "libckpt_rt/excluded_memory.h"
#include "libckpt_rt/heap_extents.h"
#include "libckpt_rt/library.h"
#include "libckpt_rt/log.h"
#include "libckpt_rt/memory_advice.h"
#include "libckpt_rt/restart_entry.h"
#include "libckpt_rt/stuck_thread.h"
#include "libckpt_rt/task_list.h"
#include "writer/image_directory.h"

namespace ckpt {

namespace {

// Bytes of memory that the process has mapped, and that it has in memory.
struct MemorySize {
  uint64_t mapped = 0, resident = 0;
};
MemorySize memory_size() {
  char text[256];
  if (read_small_file("/proc/thread-self/statm", text, sizeof(text)) <= 0) return {};
  const char* c = text;
  auto number = [&] {
    uint64_t pages = 0;
    for (; *c >= '0' && *c <= '9'; ++c) pages = pages * 10 + static_cast<uint64_t>(*c - '0');
    if (*c == ' ') ++c;
    return pages * kPageSize;
  };
  MemorySize size;
  size.mapped = number();
  size.resident = number();
  return size;
}

// Address space for lists whose length is not known ahead: as much as anybody will need, unless there is a limit, of which
// the program wants the most for itself.
uint64_t list_bytes(const MemorySize& memory) {
  constexpr uint64_t kLeast = 8 << 20, kMost = 64 << 20;
  rlimit64 limit{};
  if (sys::call(__NR_prlimit64, 0L, RLIMIT_AS, 0L, &limit) != 0 || limit.rlim_cur == RLIM64_INFINITY) return kMost;
  const uint64_t left = limit.rlim_cur > memory.mapped ? limit.rlim_cur - memory.mapped : 0;
  return std::clamp(left / 32, kLeast, kMost);
}

SinkOptions image_options(HelperThreads* helpers, ImageOutput* command) {
  SinkOptions options;
  options.helpers = helpers;
  if (library.settings.to[0] != '\0') options.output = command;
  set_compression(options, library.settings.compress);
  return options;
}

// Pieces of blocks of 2 MiB in which a page exists.
uint64_t most_segments(const MemorySize& memory, uint64_t segment) {
  const uint64_t blocks = memory.resident / kPageSize < memory.mapped >> 21 ? memory.resident / kPageSize : memory.mapped >> 21;
  return (blocks + 1024) * ((2 << 20) / segment);
}

// The most that tables of segments can take: three times (the table, what is added to it, and both merged).
uint64_t table_bytes(const MemorySize& memory, uint64_t segment) {
  return most_segments(memory, segment) * 3 * (sizeof(Segment) + 3 * sizeof(uint32_t));
}

}  // namespace

Result<void> StillMemory::open() {
  memory_file_.reset(static_cast<int>(sys::call(__NR_openat, AT_FDCWD, "/proc/thread-self/mem", O_RDONLY | O_CLOEXEC, 0)));
  if (memory_file_.valid()) return {};
  int error = -memory_file_.release();
  return make_error(ExitCode::kSystem, error, "cannot open /proc/self/mem ({}); mount /proc", errno_name(error));
}

long StillMemory::read(std::byte* to, Addr from, size_t bytes, bool readable) {
  if (readable) {
    iovec local{to, bytes}, remote{from.as<void>(), bytes};
    if (sys::call(__NR_process_vm_readv, sys::gettid(), &local, 1, &remote, 1, 0L) == static_cast<long>(bytes)) return 0;
  }
  for (size_t done = 0; done < bytes;) {
    long n = sys::call(__NR_pread64, memory_file_.get(), to + done, bytes - done, from.value + done);
    if (n <= 0) return -EFAULT;
    done += static_cast<size_t>(n);
  }
  return 0;
}

size_t StillMemory::read_many(std::span<const iovec> to, std::span<const iovec> from) {
  if (to.empty()) return 0;
  long n = sys::call(__NR_process_vm_readv, sys::gettid(), to.data(), to.size(), from.data(), from.size(), 0L);
  size_t pieces = 0;
  for (size_t have = n > 0 ? static_cast<size_t>(n) : 0; pieces < to.size() && have >= to[pieces].iov_len; ++pieces) {
    have -= to[pieces].iov_len;
  }
  return pieces;
}

CheckpointRun::CheckpointRun(Mode mode, FaultBackEnd back_end, int64_t requested_ns, CheckpointCost& cost, Watch& watch)
    : mode_(mode),
      back_end_(back_end),
      requested_ns_(requested_ns),
      cost_(cost),
      sink_(image_options(&compression_threads_, &command_)),
      map_before_(arena_),
      map_(arena_),
      files_(arena_),
      watch_(watch),
      protection_(watch.protection),
      table_(watch.table),
      guarded_arming_(guarded_, pages_, table_),
      arming_(is_guarded() ? guarded_arming_ : watch.arming),
      copier_(table_, pool_, queue_, is_guarded() ? static_cast<ProgramMemory&>(guarded_) : protection_) {}

CheckpointRun::~CheckpointRun() {
  // What is left to undo after a failure; after success nothing is.
  if (!kept_) protection_.serve(nullptr);
  undo_guard();
  // Before anything that waits for threads of the program: faults are still let go.
  if (stopped_) library.world.release();
  if (!writer_started_) start_writer(WriterOrder::kLeave);
  library.writer.join();
  if (!kept_) protection_.finish();
  sink_.abort();
  descriptors_.release();
  pool_.release_memory();
  if (key_ != nullptr) wipe(key_, sizeof(*key_));
}

void CheckpointRun::release_buffer(void* self, uint32_t buffer) {
  auto& run = *static_cast<CheckpointRun*>(self);
  if (buffer != kNoBuffer) run.pool_.release(buffer);
  checkpoint_progress::written(run.sink_.memory_bytes() +
                               run.copier_.counters().zero_pages.load(std::memory_order_relaxed) * kPageSize);
}

bool CheckpointRun::note(uint32_t severity, const char* text) {
  log_line(directory_.get(), text);
  return notes_.push_back({severity, text});
}

void CheckpointRun::ends(StopPart part) { stop_part_ends_ns_[part] = now_ns(); }

void CheckpointRun::log_stop() {
  int64_t us[kStopParts];
  for (int64_t i = 0, before = stop_began_ns_; i < kStopParts; before = stop_part_ends_ns_[i++]) {
    us[i] = stop_part_ends_ns_[i] == 0 ? 0 : (stop_part_ends_ns_[i] - before) / 1000;
  }
  // All have left, or one that waited still waits for a processor.
  int64_t last = 0;
  if (!library.world.all_left(&last)) last = now_ns();
  log_format(directory_.get(),
             "stop {} us (of those that waited {}): threads {}, mappings {}, descriptors {}, process {}, protection {}, copies {}; {} faults; ahead "
             "of it {} passes, {} faults",
             cost_.pause_ns / 1000, (last - stop_called_ns_) / 1000, us[kThreads], us[kMappings], us[kDescriptors], us[kProcess], us[kProtection],
             us[kCopies], arming_.faults() - faults_ahead_, arming_.passes(), faults_ahead_);
}

void CheckpointRun::log_heap() {
  if (heap_extents::preloaded()) {
    uint64_t bytes = 0;
    for (const AddrRange& r : free_heap_) bytes += r.size();
    log_format(directory_.get(), "heap: {} KiB of free pages are not saved", bytes >> 10);
    if (const uint64_t outside = heap_extents::bytes_outside(); outside != 0) {
      log_format(directory_.get(), "heap: {} KiB lie outside of its regions, being larger than one or for want of address space (ulimit -v)",
                 outside >> 10);
    }
  } else if (library.settings.heap == Heap::kJemalloc) {
    log_line(directory_.get(), "CKPT_HEAP=jemalloc, but the heap is libc's: put libckpt_heap.so into LD_PRELOAD, or use ckpt run");
  }
}

void CheckpointRun::own_ranges() {
  for (AddrRange r : {library.agent.block(), library.fault_handler.block(), library.writer.block(), library.engine.block(), arena_.range(),
                      sink_arena_.range(), pool_.range(), guard::own_range(), guarded_arena_.range()}) {
    if (!r.empty() && !own_.push_back(r)) return;
  }
  const size_t watch = own_.size();
  watch_.own_ranges(own_);
  const size_t watch_end = own_.size();
  for (AddrRange r : sink_.own_mappings().ranges) {
    if (!r.empty() && !own_.push_back(r)) return;
  }
  if (mode_ == Mode::kFork) return;
  // A child that the program forks meanwhile has no use for these and would keep them for ever.
  for (AddrRange r : {arena_.range(), sink_arena_.range(), guarded_arena_.range()}) sys::call(__NR_madvise, r.start.value, r.size(), MADV_DONTFORK);
  for (size_t i = watch; i < watch_end; ++i) sys::call(__NR_madvise, own_[i].start.value, own_[i].size(), MADV_DONTFORK);
}

// settings.segment_bytes is the size of this checkpoint from here on.
void CheckpointRun::choose_segment(uint64_t resident) {
  Settings& settings = library.settings;
  if (!settings.segment_auto) return;
  const uint64_t kept = watch_.table.segment_bytes();
  settings.segment_bytes = kept != 0 ? kept : bounded_segment(settings.segment_bytes, resident, settings.pool_bytes);
}

Result<void> CheckpointRun::prepare() {
  // A description of a page run or segment takes up to 64 bytes; half of all pages could be runs.
  const MemorySize memory = memory_size();
  const uint64_t resident = memory.resident;
  choose_segment(resident);
  const uint64_t for_table = table_bytes(memory, library.settings.segment_bytes);
  // Until the stop the program goes on, and what is swapped out is in no figure.
  const uint64_t most_saved = std::min(memory.mapped + (64ull << 20), resident + (4ull << 30));
  const uint64_t for_lists = list_bytes(memory);
  if (!arena_.reserve(for_lists + resident / 32 + for_table) ||
      !sink_arena_.reserve(DirectSink::arena_bytes(image_options(&compression_threads_, &command_), most_saved))) {
    return no_memory("the checkpoint's lists");
  }
  own_ = ArenaVector<AddrRange>(arena_);
  eager_ = ArenaVector<CopiedSegment>(arena_);
  inherited_ = free_heap_ = ArenaVector<AddrRange>(arena_);
  open_pages_ = ArenaVector<Addr>(arena_);
  threads_ = ArenaVector<StoppedThread>(arena_);
  waiting_ = ArenaVector<int>(arena_);
  pending_ = ArenaVector<PendingSignalRecord>(arena_);
  notes_ = ArenaVector<NoteLine>(arena_);
  const uint64_t segment = library.settings.segment_bytes;
  // A buffer for every segment, and the reserve, which copies in order do not use.
  const uint64_t pool_bytes = library.settings.pool_bytes + most_segments(memory, segment) * segment / 3 * 4;
  if (mode_ == Mode::kRealtimeLarge && !pool_.reserve(pool_bytes, segment)) {
    note(1, "no address space for a pool as large as memory (ulimit -v): mode realtime instead of realtime-large");
    cost_.mode = mode_ = Mode::kRealtime;
  }
  if (mode_ == Mode::kRealtime && !pool_.reserve(library.settings.pool_bytes, segment)) {
    return no_memory("the buffer pool (CKPT_POOL)");
  }
  if (mode_ == Mode::kConcurrent) CKPT_TRY(prepare_copy_of_all(resident));
  // What is appended are buffers of the pool, and copies made in the pause, which stay to the end. The writer takes
  // another batch only when it has a quarter of the pool: a quarter held leaves that, and what forced copies may use.
  if (mode_ == Mode::kRealtime || mode_ == Mode::kRealtimeLarge) {
    sink_.hold_buffers(std::min(pool_.buffers() / 4, static_cast<size_t>(kHeldBytes / segment)));
    pool_.populate(std::min(resident, kAheadBytes));
  }

  auto directory = open_image_directory(library.directory);
  if (!directory.ok()) return directory.error();
  directory_ = std::move(*directory);
  if (library.key_file[0] != '\0') {
    key_ = static_cast<ImageKey*>(arena_.allocate(sizeof(ImageKey)));
    if (key_ == nullptr) return no_memory("the key");
    CKPT_TRY(read_key_file(library.key_file, *key_));
    sink_.set_key(key_);
  }
  if (uint32_t removed = remove_dead_leftovers(directory_.get()); removed > 0) {
    log_format(directory_.get(), "removed {} unfinished images of processes that are gone", removed);
  }
  auto sequence = next_sequence(directory_.get(), library.run_id);
  if (!sequence.ok()) return sequence.error();
  if (library.settings.to[0] != '\0') library.last_streamed = *sequence = std::max(*sequence, library.last_streamed + 1);
  std::memcpy(identity_.run_id, library.run_id, sizeof(identity_.run_id));
  identity_.sequence = *sequence;
  choose_parent();
  cost_.parent_sequence = identity_.parent.sequence;
  identity_.realtime_ns = now_ns(CLOCK_REALTIME);
  cost_.sequence = *sequence;
  image_name_ = compose_image_name(library.name, library.pid, library.run_id, *sequence);
  if (library.settings.to[0] != '\0') {
    *fmt::format_to_n(cost_.image, sizeof(cost_.image) - 1, "{}", image_name_.text).out = '\0';
  } else {
    *fmt::format_to_n(cost_.image, sizeof(cost_.image) - 1, "{}/{}", library.directory, image_name_.text).out = '\0';
  }
  // A forked child opens its own file: what is open here would be shared with it.
  if (mode_ != Mode::kFork) {
    CKPT_TRY(open_sink());
  }

  CKPT_TRY(pages_.open(arena_));
  CKPT_TRY(still_memory_.open());
  CKPT_TRY(descriptors_.prepare(arena_, library.pid));
  if (is_guarded()) {
    CKPT_TRY(prepare_guard(for_lists + for_table + resident / 32));
  } else if (protects_memory(mode_)) {
    CKPT_TRY(watch_.begin(library.fault_handler, copier_.counters(), library.settings.segment_bytes, for_lists + for_table + resident / 32));
    keep_watch_ = library.settings.increments != 0 && library.settings.to[0] == '\0' && watch_.can_be_kept();
    if (library.settings.increments != 0 && !watch_.can_be_kept()) {
      log_line(directory_.get(), "no increments: this kernel cannot tell what is protected (PAGEMAP_SCAN, Linux 6.7); images are full");
    }
  }
  own_ranges();
  CKPT_TRY(map_before_.read(own_.span()));
  CKPT_TRY(memory_advice::find_flags(map_before_, resident));
  CKPT_TRY(files_.read(map_before_, arena_));
  if (protects_memory(mode_)) {
    long spawned = library.writer.spawn(&CheckpointRun::writer_entry, this, DescriptorTable::kShareWithCaller);
    if (spawned != 0) {
      return make_error(ExitCode::kSystem, static_cast<int>(spawned),
                        "cannot start a thread ({}); raise the limit on processes", errno_name(static_cast<int>(spawned)));
    }
    writer_spawned_ = true;
    return is_guarded() ? get_ready_for_guard() : protect_ahead();
  }
  return get_ready();
}

// Room for a copy of all memory, touched ahead of the pause in which the copy is made.
Result<void> CheckpointRun::prepare_copy_of_all(uint64_t resident) {
  if (!eager_arena_.reserve(resident + resident / 16 + (16 << 20)) || !own_.push_back(eager_arena_.range())) {
    return no_memory("a copy of all memory (mode concurrent)");
  }
  const AddrRange ours = eager_arena_.range();
  sys::call(__NR_madvise, ours.start.value, ours.size(), MADV_DONTFORK);
  if (const long r = sys::call(__NR_madvise, ours.start.value, resident, MADV_POPULATE_WRITE); r != 0 && r != -EINVAL) {
    return make_error(ExitCode::kUnavailable, static_cast<int>(r),
                      "no memory for a second copy of all memory, {} MiB ({}); mode concurrent needs it, realtime does not",
                      resident >> 20, errno_name(static_cast<int>(r)));
  }
  return {};
}

Result<void> CheckpointRun::open_sink() {
  if (library.settings.to[0] != '\0') {
    CKPT_TRY(command_.start(library.settings.to, image_name_.text, identity_, directory_.get(), sink_arena_));
  }
  return sink_.open(directory_.get(), image_name_.text, identity_, sink_arena_, &release_buffer, this);
}

void CheckpointRun::run_callbacks(ckpt_rt_callback_kind kind, ThreadSlot* slot) {
  if (slot == nullptr || !callbacks::any(kind)) return;
  library.world.run_on(*slot, [](void* k) { callbacks::run(*static_cast<ckpt_rt_callback_kind*>(k)); }, &kind);
}

// What the stop needs and the program can run beside.
Result<void> CheckpointRun::get_ready() {
  CKPT_TRY(map_.read_ahead(own_.span()));
  beside_ = writer_beside();
  const auto threads = static_cast<size_t>(std::max(count_tasks(), 1l));
  if (!threads_.reserve(threads + 16)) return no_memory("the list of threads");
  // What the stop adds to the lists: a page that is touched for the first time costs a microsecond or two.
  constexpr size_t kAlways = 512 << 10, kThread = 1 << 10, kDescriptor = 512, kMost = 64 << 20;  // bytes
  arena_.populate(std::min(kMost, kAlways + threads * kThread + descriptors_.descriptor_count() * kDescriptor +
                                      map_.mappings().size() * sizeof(Mapping)));
  return {};
}

Result<void> CheckpointRun::stop() {
  const bool helpers = protects_memory(mode_);
  int own_tids[] = {sys::gettid(), helpers ? library.fault_handler.tid() : 0, helpers ? library.writer.tid() : 0};
  StopWorld::Call call{own_tids, waiting_.span(), library.signal, library.settings.stop_timeout_ns};
  struct Meanwhile {
    Arming& arming;
    Result<void> result;
    uint64_t faults;
  } meanwhile{arming_, {}, arming_.faults()};
  ahead_ = is_guarded() ? guard_open_ : helpers;
  if (ahead_) {
    call.argument = &meanwhile;
    call.meanwhile = [](void* argument) {
      auto& m = *static_cast<Meanwhile*>(argument);
      if (m.result.ok()) m.result = m.arming.catch_up();
      m.faults = m.arming.faults();
    };
  }
  int stuck = 0;
  const int64_t deadline = now_ns() + library.settings.stop_timeout_ns;
  StopWorld::Stopped stopped_threads;
  for (;;) {
    auto stopped = library.world.stop(call, arena_, &stuck);
    if (!stopped.ok()) {
      const Mapping* own = map_before_.find(Addr::of(reinterpret_cast<const void*>(&ckpt_restart_entry)));
      if (stuck != 0 && own != nullptr && library.settings.log) {
        log_backtrace(directory_.get(), {own->path, own->path_len}, library.pid, stuck, arena_);
      }
      return stopped.error();
    }
    stopped_threads = *stopped;
    stop_called_ns_ = stopped->called_ns;
    stop_began_ns_ = stopped->began_ns;
    stopped_ = true;
    if (critical_section::none_inside()) break;
    library.world.release();
    stopped_ = false;
    if (!critical_section::await_none(deadline)) {
      return make_error(ExitCode::kTimeout, 0,
                        "a thread stayed in its critical section (ckpt_rt_enter_critical) longer than CKPT_STOP_TIMEOUT");
    }
  }
  faults_ahead_ = meanwhile.faults;
  const StopWorld::Stopped* stopped = &stopped_threads;
  library.stopped_threads = stopped->first;
  if (guard_open_) leave_guard_stopped(stopped->first);
  CKPT_TRY(std::move(meanwhile.result));
  run_callbacks(CKPT_RT_BEFORE_CHECKPOINT, stopped->first);

  library.leader_exited = stopped->leader_exited;
  CKPT_TRY(collect_signals(*stopped));
  if (stopped->leader_exited) {
    StoppedThread leader{};
    leader.record.tid = library.pid;
    leader.record.flags = kThreadLeader | kThreadLeaderExited;
    if (!threads_.push_back(leader)) return no_memory("the list of threads");
  }
  // The leader's record comes first.
  for (bool leaders : {true, false}) {
    for (ThreadSlot* s = stopped->first; s != nullptr; s = s->next) {
      if ((s->tid == library.pid) != leaders) continue;
      StoppedThread t;
      describe_thread(*s, library.pid, t);
      if (!threads_.push_back(t)) return no_memory("the list of threads");
    }
  }
  for (uint32_t i = 0; i < library.pending.count; ++i) {
    const PendingSignal& saved = library.pending.list[i];
    PendingSignalRecord p{saved.tid, saved.signal, {}};
    std::memcpy(p.info, &saved.info, sizeof(p.info));
    if (!pending_.push_back(p)) return no_memory("the list of pending signals");
  }
  if (library.pending.overflow) note(1, "more than 4096 signals are pending: those beyond are lost at restart");
  cost_.threads = static_cast<uint32_t>(threads_.size());
  ends(kThreads);
  return {};
}

// Pending signals and timers: one is what becomes of the other.
Result<void> CheckpointRun::collect_signals(const StopWorld::Stopped& stopped) {
  // In other modes the image may be complete before anybody has left, and the pause is long anyway.
  const bool look_at_all = !protects_memory(mode_) || library.look_at_signals;
  ProcessTimers& timers = library.process.timers;
  auto* before = static_cast<TimersLeft*>(arena_.allocate(sizeof(TimersLeft)));
  if (before == nullptr) return no_memory("the list of timers");
  CKPT_TRY(list_timers(arena_, timers));
  read_timers(timers);
  note_left(timers, *before);
  library.world.collect_pending(stopped, {1ull << (library.signal - 1), timers, look_at_all}, library.pending);
  read_timers(timers);
  add_expired(timers, *before, library.signal, library.pending);
  return {};
}

// Two of them, if there are: one for the processor that waits, one for ours when the agent waits itself.
DescriptorExecutor CheckpointRun::on_stopped_threads() {
  constexpr uint32_t kSamplers = 2;
  DescriptorExecutor executor;
  executor.context = nullptr;
  executor.run = [](void*, void (*work)(void*), void* argument) {
    library.world.run_on(*library.world.alone(0), work, argument);
  };
  executor.start = [](void*, void (*work)(void*), void* argument) {
    for (uint32_t i = 0; i < kSamplers; ++i) {
      if (ThreadSlot* slot = library.world.alone(i)) library.world.start_on(*slot, work, argument);
    }
  };
  executor.await = [](void*) {
    for (uint32_t i = 0; i < kSamplers; ++i) {
      if (ThreadSlot* slot = library.world.alone(i)) library.world.await(*slot);
    }
  };
  return executor;
}

Result<void> CheckpointRun::while_stopped() {
  // The leader may have exited; any stopped thread shows the same descriptors, directory and ids.
  const int tid = library.stopped_threads != nullptr ? library.stopped_threads->tid : library.pid;
  DescriptorExecutor executor;
  if (library.stopped_threads != nullptr) executor = on_stopped_threads();
  struct Sampling {
    DescriptorCapture& descriptors;
    ~Sampling() { descriptors.await_samples(); }
  } sampling{descriptors_};
  CKPT_TRY(descriptors_.begin_sampling(tid, executor));

  CKPT_TRY(map_.read_again(own_.span(), beside_));
  map_.copy_flags_from(map_before_);
  cost_.mappings = static_cast<uint32_t>(map_.mappings().size());
  if (keep_watch_ && map_.has_pinned_pages()) keep_watch_ = false;
  ends(kMappings);
  CKPT_TRY(read_process_facts(arena_, tid, facts_));
  capture_process_state_stopped(library.process);
  ends(kProcess);

  ArenaVector<MappedFileRange> mapped(arena_);
  for (const Mapping& m : map_.mappings()) {
    if (!m.shared || !m.whole || m.handling == Handling::kSkip || m.inode == 0) continue;
    if (!mapped.push_back({m.device, m.inode, m.file_offset, m.range.size()})) return no_memory("the list of mappings");
  }
  descriptors_.skip_mapped(mapped.span());
  CKPT_TRY(descriptors_.recheck_stopped(tid, executor));
  cost_.descriptors = static_cast<uint32_t>(descriptors_.descriptor_count());
  ends(kDescriptors);

  CKPT_TRY(list_free_heap());
  if (is_guarded()) return settle_guarded();
  if (protects_memory(mode_)) return settle_protection();
  if (mode_ == Mode::kConcurrent) {
    for (Mapping& m : map_.mappings()) {
      if (m.handling != Handling::kSkip) m.handling = Handling::kEager;
    }
  }
  if (mode_ == Mode::kFork) {
    // What a forked child does not get a copy of: shared memory, and what the program excluded from fork.
    for (Mapping& m : map_.mappings()) {
      if (m.handling == Handling::kSkip) continue;
      const bool copied_by_fork = !m.shared && (m.map_flags & (kMapDontFork | kMapWipeOnFork)) == 0;
      m.handling = copied_by_fork ? Handling::kTracked : Handling::kEager;
    }
  }
  CKPT_TRY(list_pages());
  return mode_ == Mode::kSequential ? Result<void>() : copy_eagerly();
}

Result<void> CheckpointRun::add_eager(std::span<const AddrRange> runs) {
  for (const AddrRange& r : runs) {
    if (!eager_.push_back({r.start, r.size(), nullptr, kNoBuffer})) return no_memory("the list of pages");
  }
  return {};
}

Result<void> CheckpointRun::leave_out_excluded(ArenaVector<AddrRange>& runs, size_t first) {
  // Nearly always there is nothing excluded, and the runs stay as they are.
  for (size_t i = first; i < runs.size(); ++i) {
    AddrRange out = excluded_memory::next_excluded(runs[i]);
    if (out.empty()) continue;
    AddrRange rest{out.end, runs[i].end};
    runs[i].end = out.start;
    if (!rest.empty() && !runs.push_back(rest)) return no_memory("the list of pages");
    // Address order: the rest belongs right behind what it was cut from.
    for (size_t j = runs.size() - 1; !rest.empty() && j > i + 1; --j) std::swap(runs[j], runs[j - 1]);
  }
  return {};
}

Result<void> CheckpointRun::list_free_heap() {
  if (!heap_extents::collect_free(still_memory_, arena_, free_heap_)) return no_memory("the list of free memory");
  return {};
}

Result<void> CheckpointRun::list_pages() {
  // Runs of every mapping first: the table wants to know how many segments there will be.
  struct Part {
    const Mapping* mapping;
    size_t first, count;
  };
  ArenaVector<AddrRange> runs(arena_);
  ArenaVector<Part> parts(arena_);
  const uint64_t segment = library.settings.segment_bytes;
  size_t segments = 0, bytes = 0;
  for (const Mapping& m : map_.mappings()) {
    if (m.handling == Handling::kSkip) continue;
    const size_t first = runs.size();
    CKPT_TRY(pages_.scan(m, runs));
    if (runs.size() == first) continue;
    CKPT_TRY(leave_out_excluded(runs, first));
    if (!heap_extents::leave_out(free_heap_.span(), runs, first)) return no_memory("the list of pages");
    if (!parts.push_back({&m, first, runs.size() - first})) return no_memory("the list of pages");
    for (const AddrRange& r : runs.span().subspan(first)) {
      bytes += r.size();
      segments += SegmentTable::segments_of(r, segment);
    }
    if (m.handling == Handling::kEager) CKPT_TRY(add_eager(runs.span().subspan(first)));
  }
  checkpoint_progress::expect(bytes);
  if (!table_.reserve(arena_, segment, segments, parts.size()) ||
      !queue_.reserve(arena_, static_cast<uint32_t>(pool_.buffers() + 1))) {
    return no_memory("the table of segments");
  }
  const bool eager_is_separate = mode_ != Mode::kSequential;
  for (const Part& p : parts) {
    if (eager_is_separate && p.mapping->handling == Handling::kEager) continue;
    if (!table_.add_region({p.mapping->range, (p.mapping->prot & PROT_READ) != 0})) return no_memory("the table of segments");
    for (size_t i = p.first; i < p.first + p.count; ++i) {
      if (!table_.add_run(runs[i])) return no_memory("the table of segments");
    }
  }
  return {};
}

Result<void> CheckpointRun::copy_eagerly() {
  // list_pages left runs in eager_: base and length (in page_mask). Here they become copied segments.
  ArenaVector<CopiedSegment> copied(arena_);
  size_t bytes = 0;
  for (const CopiedSegment& run : eager_) bytes += run.page_mask;
  if (bytes == 0) return {};
  // Each piece is allocated on a page of its own.
  if (bytes > eager_arena_.range().size()) {
    eager_arena_.release();
    if (!eager_arena_.reserve(bytes)) return no_memory("copies made in the pause");
  }
  constexpr size_t kAtOnce = 64;
  EagerCopy pieces[kAtOnce];
  iovec to[kAtOnce], from[kAtOnce];
  size_t count = 0;
  auto take = [&]() -> Result<void> {
    const size_t read = StillMemory::read_many({to, count}, {from, count});
    for (size_t i = 0; i < count; ++i) CKPT_TRY(take_eager_copy(pieces[i], i < read, copied));
    count = 0;
    return {};
  };
  for (const CopiedSegment& run : eager_) {
    const Mapping* m = map_.find(run.base);
    const bool readable = m != nullptr && (m->prot & PROT_READ) != 0, file = m != nullptr && m->inode != 0;
    for (uint64_t done = 0; done < run.page_mask;) {
      uint64_t n = run.page_mask - done < 64 * kPageSize ? run.page_mask - done : 64 * kPageSize;
      auto* buffer = static_cast<std::byte*>(eager_arena_.allocate(n, kPageSize));
      if (buffer == nullptr) return no_memory("copies made in the pause");
      const EagerCopy piece{run.base + done, n, buffer, readable, file};
      done += n;
      if (!readable) {
        CKPT_TRY(take_eager_copy(piece, false, copied));
        continue;
      }
      to[count] = {buffer, n};
      from[count] = {piece.from.as<void>(), n};
      pieces[count++] = piece;
      if (count == kAtOnce) CKPT_TRY(take());
    }
  }
  CKPT_TRY(take());
  eager_ = copied;
  return {};
}

Result<void> CheckpointRun::take_eager_copy(const EagerCopy& copy, bool read, ArenaVector<CopiedSegment>& copied) {
  const uint64_t pages = copy.bytes / kPageSize;
  uint64_t have = ~0ull;
  if (!read && still_memory_.read(copy.to, copy.from, copy.bytes, copy.readable) != 0) {
    // Pages of a file mapping beyond the file's end do not exist; those before it do.
    have = 0;
    for (uint64_t i = 0; i < pages; ++i) {
      if (still_memory_.read(copy.to + i * kPageSize, copy.from + i * kPageSize, kPageSize, copy.readable) == 0) {
        have |= 1ull << i;
      } else if (!copy.file) {
        return make_error(ExitCode::kInternal, EFAULT, "cannot read the program's memory at {:#x}",
                          copy.from.value + i * kPageSize);
      }
    }
  }
  uint64_t mask = 0;
  for (uint64_t i = 0; i < pages; ++i) {
    // A page of zeros in a file mapping differs from the file: it must be in the image.
    if ((have >> i & 1) != 0 && (copy.file || !page_is_zero(copy.to + i * kPageSize))) mask |= 1ull << i;
  }
  if (mask != 0 && !copied.push_back({copy.from, mask, copy.to, kNoBuffer})) return no_memory("the list of pages");
  return {};
}

Result<void> CheckpointRun::set_meta() {
  cost_.longest_wait_ns = static_cast<int64_t>(copier_.counters().longest_wait_ns.load());
  cost_.forced_copies = copier_.counters().forced.load();
  cost_.sequential_copies = copier_.counters().sequential.load();
  cost_.release_copies = copier_.counters().released.load();
  cost_.faults = copier_.counters().faults.load();
  cost_.pool_waits_forced = pool_.forced_waits();
  cost_.pool_waits_sequential = pool_.sequential_waits();
  MetaWriter meta(arena_);
  MetaSources sources{&facts_,         &library.process, &map_,        &files_, &descriptors_, threads_.span(),
                      pending_.span(), notes_.span(),    &cost_,       copied_ns_ - requested_ns_};
  CKPT_TRY(write_meta(sources, arena_, meta));
  return sink_.set_meta(meta.span());
}

}  // namespace ckpt
