#include "libckpt_rt/checkpoint/run.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>

#include "base/clock.h"
#include "image/write/image_directory.h"
#include "libckpt_rt/capture/lost_mappings.h"
#include "libckpt_rt/capture/memory_advice.h"
#include "libckpt_rt/checkpoint/progress.h"
#include "libckpt_rt/core/library.h"
#include "libckpt_rt/core/log.h"
#include "libckpt_rt/core/task_list.h"

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

// Address space for lists whose length is not known ahead: as much as anybody will need, unless there is a
// limit, of which the program wants the most for itself.
uint64_t list_bytes(const MemorySize& memory) {
  constexpr uint64_t kLeast = 8 << 20, kMost = 64 << 20;
  rlimit64 limit{};
  if (sys::call(__NR_prlimit64, 0L, RLIMIT_AS, 0L, &limit) != 0 || limit.rlim_cur == RLIM64_INFINITY)
    return kMost;
  const uint64_t left = limit.rlim_cur > memory.mapped ? limit.rlim_cur - memory.mapped : 0;
  return std::clamp(left / 32, kLeast, kMost);
}

SinkOptions image_options(HelperThreads* helpers, ImageOutput* command) {
  SinkOptions options;
  options.helpers = helpers;
  if (library.settings.to[0] != '\0') options.output = command;
  set_compression(options, library.settings.compress);
  options.knowledge = &library.compression;
  return options;
}

// Pieces of blocks of 2 MiB in which a page exists.
uint64_t most_segments(const MemorySize& memory, uint64_t segment) {
  const uint64_t blocks =
      memory.resident / kPageSize < memory.mapped >> 21 ? memory.resident / kPageSize : memory.mapped >> 21;
  return (blocks + 1024) * ((2 << 20) / segment);
}

// The most that tables of segments can take: three times (the table, what is added to it, and both merged).
uint64_t table_bytes(const MemorySize& memory, uint64_t segment) {
  return most_segments(memory, segment) * 3 * (sizeof(Segment) + 3 * sizeof(uint32_t));
}

}  // namespace

CheckpointRun::CheckpointRun(Mode mode, FaultBackEnd back_end, int64_t requested_ns, CheckpointCost& cost,
                             Watch& watch)
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
  watch_.look_up_in(nullptr);
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

void CheckpointRun::own_ranges() {
  for (AddrRange r :
       {library.agent.block(), library.fault_handler.block(), library.writer.block(), library.engine.block(),
        arena_.range(), sink_arena_.range(), pool_.range(), guard::own_range(), guarded_arena_.range()}) {
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
  for (AddrRange r : {arena_.range(), sink_arena_.range(), guarded_arena_.range()})
    sys::call(__NR_madvise, r.start.value, r.size(), MADV_DONTFORK);
  for (size_t i = watch; i < watch_end; ++i)
    sys::call(__NR_madvise, own_[i].start.value, own_[i].size(), MADV_DONTFORK);
}

// settings.segment_bytes is the size of this checkpoint from here on.
void CheckpointRun::choose_segment(uint64_t resident) {
  Settings& settings = library.settings;
  if (!settings.segment_auto) return;
  const uint64_t kept = watch_.table.segment_bytes();
  settings.segment_bytes =
      kept != 0 ? kept : bounded_segment(settings.segment_bytes, resident, settings.pool_bytes);
}

// Why there are no increments although they are wanted. When the watch has begun.
const char* CheckpointRun::why_full() const {
  if (library.settings.to[0] != '\0') return "whoever gets images by CKPT_TO need not have the one before";
  if (!protects_memory(mode_)) return "this mode protects no memory";
  if (is_guarded()) return "with this fault back end (CKPT_FAULTS) protection ends with the copying";
  if (!watch_.can_be_kept()) return "this kernel cannot tell what is protected (PAGEMAP_SCAN, Linux 6.7)";
  return nullptr;
}

// Settings for copies in order, in a mode that makes none.
void CheckpointRun::say_what_is_not_used() const {
  const bool engine = library.settings.dma, order = library.settings.order != Order::kAddress;
  if (protects_memory(mode_) || (!engine && !order)) return;
  log_format(directory_.get(), "{}{}{}{} {} not used: mode {} copies nothing in order",
             engine ? "CKPT_ENGINE=dma" : "", engine && order ? " and " : "", order ? "CKPT_ORDER=" : "",
             order ? order_name(library.settings.order) : "", engine && order ? "are" : "is",
             mode_name(mode_));
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
      !sink_arena_.reserve(
          DirectSink::arena_bytes(image_options(&compression_threads_, &command_), most_saved))) {
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
    note(1,
         "no address space for a pool as large as memory (ulimit -v): mode realtime instead of "
         "realtime-large");
    cost_.mode = mode_ = Mode::kRealtime;
  }
  if (mode_ == Mode::kRealtime && !pool_.reserve(library.settings.pool_bytes, segment)) {
    return no_memory("the buffer pool (CKPT_POOL)");
  }
  if (mode_ == Mode::kConcurrent) CKPT_TRY(prepare_copy_of_all(resident));
  // What is appended are buffers of the pool, and copies made in the pause, which stay to the end. The writer
  // takes another batch only when it has a quarter of the pool: a quarter held leaves that, and what forced
  // copies may use.
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
  if (library.settings.to[0] != '\0')
    library.last_streamed = *sequence = std::max(*sequence, library.last_streamed + 1);
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
    *fmt::format_to_n(cost_.image, sizeof(cost_.image) - 1, "{}/{}", library.directory, image_name_.text)
         .out = '\0';
  }
  // A forked child opens its own file: what is open here would be shared with it.
  if (mode_ != Mode::kFork) {
    CKPT_TRY(open_sink());
  }

  CKPT_TRY(still_memory_.open());
  CKPT_TRY(descriptors_.prepare(arena_, library.pid));
  if (is_guarded()) {
    CKPT_TRY(prepare_guard(for_lists + for_table + resident / 32));
  } else if (protects_memory(mode_)) {
    CKPT_TRY(watch_.begin(library.fault_handler, copier_.counters(), library.settings.segment_bytes,
                          for_lists + for_table + resident / 32));
  }
  CKPT_TRY(pages_.open(arena_, watch_.pagemap()));
  copy_into_huge_pages();
  say_what_is_not_used();
  if (library.settings.increments != 0) {
    const char* why = why_full();
    keep_watch_ = why == nullptr;
    if (why != nullptr) log_format(directory_.get(), "no increments: {}; images are full", why);
  }
  own_ranges();
  CKPT_TRY(map_before_.read(own_.span()));
  watch_.look_up_in(&map_before_);
  CKPT_TRY(memory_advice::find_flags(map_before_, resident));
  CKPT_TRY(files_.read(map_before_, arena_));
  if (protects_memory(mode_)) {
    long spawned =
        library.writer.spawn(&CheckpointRun::writer_entry, this, DescriptorTable::kShareWithCaller);
    if (spawned != 0) {
      return make_error(ExitCode::kSystem, static_cast<int>(spawned),
                        "cannot start a thread ({}); raise the limit on processes",
                        errno_name(static_cast<int>(spawned)));
    }
    writer_spawned_ = true;
    return is_guarded() ? get_ready_for_guard() : protect_ahead();
  }
  return get_ready();
}

// A filter that allows what was always called here may kill whoever makes another call.
void CheckpointRun::copy_into_huge_pages() {
  const AddrRange huge =
      is_filtered() ? AddrRange{} : leading_huge_pages(pages_.descriptor(), pool_.populated());
  protection_.copy_into(huge);
  guarded_.copy_into(huge);
}

Result<void> CheckpointRun::open_sink() {
  if (library.settings.to[0] != '\0') {
    CKPT_TRY(command_.start(library.settings.to, image_name_.text, identity_, directory_.get(), sink_arena_));
  }
  return sink_.open(directory_.get(), image_name_.text, identity_, sink_arena_, &release_buffer, this);
}

// What the stop needs and the program can run beside.
Result<void> CheckpointRun::get_ready() {
  CKPT_TRY(map_.read_ahead(own_.span()));
  texts_.open();
  beside_ = writer_beside();
  const auto threads = static_cast<size_t>(std::max(count_tasks(), 1l));
  if (!threads_.reserve(threads + 16)) return no_memory("the list of threads");
  // What the stop adds to the lists: a page that is touched for the first time costs a microsecond or two.
  constexpr size_t kAlways = 512 << 10, kThread = 1 << 10, kDescriptor = 512, kMost = 64 << 20;  // bytes
  arena_.populate(std::min(kMost, kAlways + threads * kThread +
                                      descriptors_.descriptor_count() * kDescriptor +
                                      map_.mappings().size() * sizeof(Mapping)));
  return {};
}

// Of the process; descriptors have notes of their own.
void CheckpointRun::note_what_is_lost() {
  if (facts_.has_children) {
    note(1,
         "the program has child processes, which are not in the image: after a restart it has none, and what "
         "memory it shared "
         "with them is its own");
  }
  if (facts_.seccomp_filters > library.foreign_filters) {
    note(1,
         "the program has forbidden itself system calls (seccomp): after a restart it has no such filter, "
         "for the kernel shows "
         "them to nobody");
  }
  if (facts_.parent_death_signal != 0) {
    note(1,
         "the program is to get a signal when its parent ends (PR_SET_PDEATHSIG): after a restart it gets "
         "none");
  }
}

// In the stop: will a restart of the image be possible? What forbids it is in the notes.
void CheckpointRun::judge_restart() {
  for (const Mapping& m : map_.mappings()) {
    const LostMapping lost = what_is_lost(m);
    if (lost.what == nullptr) continue;
    constexpr size_t kMost = 512;
    char* text = static_cast<char*>(arena_.allocate(kMost, 1));
    if (text == nullptr) return;
    *fmt::format_to_n(text, kMost - 1, "the program has mapped {} ({}): {}", lost.what,
                      std::string_view(m.path, m.path_len), lost.why)
         .out = '\0';
    const bool said = std::any_of(notes_.begin(), notes_.end(), [&](const NoteLine& n) {
      return std::string_view(n.text) == std::string_view(text);
    });
    if (!said) note(lost.forbids_restart ? 2 : 1, text);
  }
  cost_.restartable =
      descriptors_.can_come_back() &&
      std::none_of(notes_.begin(), notes_.end(), [](const NoteLine& n) { return n.severity == 2; });
}

Result<void> CheckpointRun::set_meta() {
  note_what_is_lost();
  cost_.longest_wait_ns = static_cast<int64_t>(copier_.counters().longest_wait_ns.load());
  cost_.forced_copies = copier_.counters().forced.load();
  cost_.sequential_copies = copier_.counters().sequential.load();
  cost_.release_copies = copier_.counters().released.load();
  cost_.faults = copier_.counters().faults.load();
  cost_.pool_waits_forced = pool_.forced_waits();
  cost_.pool_waits_sequential = pool_.sequential_waits();
  MetaWriter meta(arena_);
  MetaSources sources{&facts_,         &library.process, &map_,         &files_, &descriptors_,
                      threads_.span(), pending_.span(),  notes_.span(), &cost_,  copied_ns_ - requested_ns_};
  CKPT_TRY(write_meta(sources, arena_, meta));
  return sink_.set_meta(meta.span());
}

}  // namespace ckpt
