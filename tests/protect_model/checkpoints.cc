#include "tests/protect_model/checkpoints.h"

#include <sys/mman.h>

#include <bit>
#include <cstring>
#include <deque>
#include <new>
#include <utility>

#include "base/memory/page_runs.h"
#include "libckpt_rt/core/threads/of_ours/own_threads.h"
#include "libckpt_rt/core/threads/thread_context.h"
#include "libckpt_rt/guard/record.h"
#include "libckpt_rt/protect/watch.h"

namespace ckpt::test {

namespace {

constexpr uint64_t kListBytes = 1 << 20;
// First pages of the second mapping, which begins in the middle of a segment of the first, and of the third.
constexpr size_t kSecond = 5, kThird = 133;
bool is_hole(size_t i) { return i == 1 || (i >= 70 && i < 73) || i == 135; }

// What a process has once.
void prepare_process() {
  static const bool prepared = [] {
    const bool reserved =
        own_threads.agent.reserve() && own_threads.fault_handler.reserve() && own_threads.writer.reserve();
    void* blocks =
        mmap(nullptr, 8 * guard::kBlockBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    guard::window.blocks = (Addr::of(blocks).value + guard::kBlockBytes - 1) & ~(guard::kBlockBytes - 1);
    guard::window.next_record = 4;
    return reserved && blocks != MAP_FAILED;
  }();
  if (!prepared) std::abort();
}

// While all stand.
void open_guard(Copier& copier, GuardedMemory& memory, Arming* arming) {
  guard::window.copier = &copier;
  guard::window.guarded = &memory;
  guard::window.arming = arming;
  guard::window.faults = memory.faults();
  guard::window.open = 1;
}
void close_guard() {
  guard::window.arming = nullptr;
  guard::window.open = 0;
}

}  // namespace

Checkpoints::Checkpoints(const How& how, std::vector<Step> steps)
    : how_(how),
      kernel_(how.version),
      program_(kernel_, how.faults != FaultBackEnd::kHandler, std::move(steps)) {
  prepare_process();
  // Threads that have just come under guard.
  for (uint64_t i = 0; i < guard::window.next_record; ++i)
    new (reinterpret_cast<void*>(guard::window.blocks + i * guard::kBlockBytes)) guard::GuardRecord;
  kernel_.map_new(0, kSecond);
  kernel_.map_new(kSecond, kThird - 1 - kSecond);
  kernel_.map_new(kThird, SmallKernel::kPages - kThird);
  for (size_t i = 0; i < SmallKernel::kPages; ++i) {
    if (kernel_.page(i).mapping != 0 && !is_hole(i)) kernel_.store(i);
  }
  if (!lists_.reserve(kListBytes) || !scratch_.reserve(128 << 10)) fail("no memory for the lists");
}

BufferPool& Checkpoints::pool() const {
  static BufferPool large, small;
  BufferPool& pool = how_.buffers == 0 ? large : small;
  const size_t bytes = how_.buffers == 0 ? 3 * SmallKernel::kPages * kPageSize : how_.buffers * kSegment;
  if (pool.buffers() != bytes / kSegment) {
    pool.release_memory();
    if (!pool.reserve(bytes, kSegment)) std::abort();
  }
  return pool;
}

void Checkpoints::require(const Result<void>& result) {
  if (!result.ok()) fail(std::string(result.error().message()));
}

size_t Checkpoints::run() {
  program_.run([this] {
    InThreadMemory in_thread;
    MprotectMemory mprotect;
    if (how_.faults == FaultBackEnd::kHandler)
      take_by_handler();
    else if (how_.ahead)
      take_ahead_under_guard();
    else if (how_.faults == FaultBackEnd::kInThread)
      take_in_stop_under_guard(in_thread);
    else
      take_in_stop_under_guard(mprotect);
  });
  for (size_t i = 0; i < SmallKernel::kPages; ++i) {
    if (kernel_.page(i).is_protected()) fail("page " + std::to_string(i) + " is protected at the end");
  }
  return program_.instants();
}

void Checkpoints::take_by_handler() {
  Watch* watch = Watch::take();
  for (size_t n = 1; n <= how_.count; ++n) {
    if (!take_one(*watch, n == 1, n < how_.count)) break;
    program_.idle();
  }
  watch->end();
}

// The stages of HandlerBackEnd. False: it was given up.
bool Checkpoints::take_one(Watch& watch, bool first, bool keep) {
  lists_.reset();
  image_.assign(SmallKernel::kPages, 0);
  queue_.emplace();
  Copier copier(watch.table, pool(), *queue_, watch.protection);
  if (!queue_->reserve(lists_, static_cast<uint32_t>(pool().buffers() + 1))) fail("no memory for the queue");
  require(watch.begin(own_threads.fault_handler, copier.counters(), kSegment, kListBytes));
  watch.protection.copy_into(pool().range());
  if (watch.protection.can_protect_ahead() != (how_.version != SmallKernel::Version::kNoHoles))
    fail("what the kernel can do is not seen");
  if (how_.ahead) protect_ahead(watch.arming, first ? nullptr : &watch);
  if (how_.ahead) require(watch.arming.catch_up());
  program_.stop();
  std::vector<Mapping> map = kernel_.map();
  {
    ArmedMemory::Serving serving(watch.protection);
    settle(watch.arming, watch.table, map);
    watch.protection.serve(&copier);
  }
  look_at_stop(watch.table, map);
  program_.go();
  start_writer();
  const bool copied = copier.run(keep);
  inherit(watch.table);
  if (keep) {
    require(watch.resume());
  } else {
    for (const Mapping& m : kernel_.map()) watch.protection.remove(m.range);
    watch.protection.finish();
  }
  return judge(copier, copied);
}

void Checkpoints::take_ahead_under_guard() {
  image_.assign(SmallKernel::kPages, 0);
  Arena arena;
  SegmentTable table;
  PageScan pages;
  InThreadMemory memory;
  Arming arming(memory, pages, table);
  Copier copier(table, pool(), queue_.emplace(), memory);
  if (!arena.reserve(kListBytes) || !queue_->reserve(lists_, static_cast<uint32_t>(pool().buffers() + 1)))
    fail("no memory for the lists");
  require(pages.open(scratch_));
  require(arming.prepare(arena, kSegment));
  program_.stop();
  ThreadSlot thread;
  thread.tid = sys::gettid();
  require(memory.open_stopped(true, &thread, arena));
  memory.copy_into(pool().range());
  open_guard(copier, memory, &arming);
  program_.go();
  protect_ahead(arming, nullptr);
  require(arming.catch_up());
  program_.stop();
  close_guard();
  std::vector<Mapping> map = kernel_.map();
  {
    ArmedMemory::Serving serving(memory);
    settle(arming, table, map);
  }
  look_at_stop(table, map);
  copy_under_guard(memory, copier, table);
  memory.end_stopped(&thread);
}

// All is protected in the stop.
void Checkpoints::take_in_stop_under_guard(GuardedMemory& memory) {
  image_.assign(SmallKernel::kPages, 0);
  SegmentTable table;
  PageScan pages;
  Copier copier(table, pool(), queue_.emplace(), memory);
  require(pages.open(scratch_));
  program_.idle();
  program_.stop();
  std::vector<Mapping> map = kernel_.map();
  ThreadSlot thread;
  thread.tid = sys::gettid();
  require(memory.open_stopped(false, &thread, lists_));
  memory.copy_into(pool().range());
  require(memory.add_stopped(map));
  if (!table.reserve(lists_, kSegment, SmallKernel::kPages, SmallKernel::kPages) ||
      !queue_->reserve(lists_, static_cast<uint32_t>(pool().buffers() + 1)))
    fail("no memory for the lists");
  for (Mapping& m : map) {
    ArenaVector<AddrRange> runs(lists_);
    require(pages.scan(m, runs));
    if (!table.add_region({m.range})) fail("no memory for the table");
    for (AddrRange run : runs) {
      if (!table.add_run(run)) fail("no memory for the table");
    }
  }
  for (SegmentId id{0}; id.value < table.size(); ++id.value) {
    if (memory.protect(table.window(table[id])) != 0) fail("a segment cannot be protected");
  }
  look_at_stop(table, map);
  copy_under_guard(memory, copier, table);
  memory.end_stopped(&thread);
}

// From the end of the stop to the next, which closes the guard.
void Checkpoints::copy_under_guard(GuardedMemory& memory, Copier& copier, SegmentTable& table) {
  open_guard(copier, memory, nullptr);
  program_.go();
  start_writer();
  const bool copied = copier.run();
  inherit(table);
  copier.unprotect_rest();
  if (!memory.cuts_mappings()) {
    for (const Mapping& m : kernel_.map()) memory.remove(m.range);
  }
  program_.stop();
  close_guard();
  program_.go();
  judge(copier, copied);
}

// As ProtectingBackEnd does.
void Checkpoints::protect_ahead(Arming& arming, Watch* renewed) {
  for (int round = 0; round < 2; ++round) {
    std::vector<Mapping> map = kernel_.map();
    if (round == 0 && renewed != nullptr) {
      require(renewed->renew(map, false));
      renewed->former_lists().release();
    }
    arming.add(map);
    const std::vector<Mapping> again = kernel_.map();
    arming.make_changed_eager(map, again);
    if (round == 0 && renewed != nullptr) {
      const Result<size_t> found = arming.check();
      if (!found.ok()) fail(std::string(found.error().message()));
    }
    require(arming.run(map, {}));
  }
}

void Checkpoints::settle(Arming& arming, SegmentTable& table, std::vector<Mapping>& map) {
  ArenaVector<AddrRange> eager(lists_);
  require(arming.settle(map, {}, eager));
  for (AddrRange run : eager) {
    for (size_t i = SmallKernel::index(run.start); i < SmallKernel::index(run.end); ++i) {
      if (image_[i] != 0 || table.is_present(SmallKernel::range_of(i, 1).start))
        fail("page " + std::to_string(i) + " is copied twice");
      image_[i] = kernel_.page(i).content;
    }
  }
}

// Each page that exists is protected and in the table, or copied.
void Checkpoints::look_at_stop(const SegmentTable& table, const std::vector<Mapping>& map) {
  at_stop_ = kernel_.pages();
  removals_at_stop_ = program_.removals();
  if (instants_at_stop_ == 0) instants_at_stop_ = program_.instants();
  for (size_t i = 0; i < SmallKernel::kPages; ++i) {
    const Addr address = SmallKernel::range_of(i, 1).start;
    const SmallKernel::Page& page = kernel_.page(i);
    const size_t m = mapping_at(map, address);
    const bool tracked =
        m < map.size() && map[m].range.contains(address) && map[m].handling == Handling::kTracked;
    const bool present = table.is_present(address), copied = image_[i] != 0;
    const std::string name = "page " + std::to_string(i);
    if (page.mapping != 0 && !tracked) fail(name + " is not tracked");
    if (present != (page.exists && !copied))
      fail(name + (present ? " is in the table and does not exist" : " is nowhere"));
    if (!present) continue;
    if (!page.is_protected()) fail(name + " is not protected in the stop");
    SegmentId id;
    if (!table.find(address, &id) || table.state(id) != SegmentState::kProtected)
      fail(name + " has no good segment");
  }
}

// What the parent's image has, and this one therefore need not have.
void Checkpoints::inherit(const SegmentTable& table) {
  for (size_t i = 0; i < SmallKernel::kPages; ++i) {
    SegmentId id;
    const Addr address = SmallKernel::range_of(i, 1).start;
    if (!table.find(address, &id) || !table[id].in_parent || !table.is_present(address)) continue;
    image_[i] = parent_[i];
    ++inherited_;
  }
}

void Checkpoints::write(const CopiedSegment& segment) {
  for_each_page(segment.page_mask, [&](uint32_t page) {
    const std::byte* data = segment.data + page * kPageSize;
    uint64_t first = 0, last = 0;
    std::memcpy(&first, data, sizeof(first));
    std::memcpy(&last, data + kPageSize - sizeof(last), sizeof(last));
    const size_t i = SmallKernel::index(segment.base) + page;
    if (first != last) fail("page " + std::to_string(i) + " is torn");
    if (image_[i] != 0) fail("page " + std::to_string(i) + " is in the image twice");
    image_[i] = first;
  });
}

void Checkpoints::start_writer() {
  if (how_.buffers == 0) return;
  program_.start_writer([this] {
    const size_t batch = pool().batch(), most = pool().most_held();
    std::deque<uint32_t> held;
    CopiedSegment segments[64];
    while (const size_t n = queue_->pop(segments, batch, 64)) {
      for (size_t s = 0; s < n; ++s) {
        write(segments[s]);
        held.push_back(segments[s].buffer);
        if (held.size() <= most) continue;
        pool().release(held.front());
        held.pop_front();
      }
    }
    for (uint32_t buffer : held) pool().release(buffer);
  });
}

bool Checkpoints::judge(Copier& copier, bool complete) {
  complete = complete && !copier.lost();
  queue_->close();
  while (!program_.writer_done()) Fiber::suspend();
  CopiedSegment segments[8];
  while (const size_t n = queue_->pop(segments, 1, 8)) {
    for (size_t s = 0; s < n; ++s) {
      write(segments[s]);
      pool().release(segments[s].buffer);
    }
  }
  if (!pool().all_free()) fail("a buffer is lost");
  complete_ = complete_ && complete;
  if (!complete) {
    // Under guard each call says first what it will take away.
    if (how_.faults != FaultBackEnd::kHandler || program_.removals() == removals_at_stop_)
      fail("given up without a reason: " + std::string(copier.lost_how()));
    return false;
  }
  for (size_t i = 0; i < SmallKernel::kPages; ++i) {
    const uint64_t wanted = at_stop_[i].exists ? at_stop_[i].content : 0;
    if (image_[i] != wanted) {
      fail("page " + std::to_string(i) + " is " + std::to_string(image_[i]) + " in the image, and was " +
           std::to_string(wanted));
    }
  }
  parent_ = image_;
  return true;
}

}  // namespace ckpt::test
