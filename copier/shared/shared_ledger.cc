#include "copier/shared/shared_ledger.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <linux/memfd.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>

#include <cstring>

#include "base/memory/page_runs.h"
#include "base/preload_rules.h"

namespace ckpt {

namespace {

bool swap_is_empty() {
  struct sysinfo memory {};
  return sys::call(__NR_sysinfo, &memory) == 0 && memory.freeswap == memory.totalswap;
}

// Pages of the part that may exist, of which there are at most 64: bit 0 is the first. A page that is not
// resident counts as existing while anything is swapped, for it may be in swap. To read a page that does not
// exist would make it.
uint64_t existing_pages(AddrRange part) {
  const uint64_t pages = part.size() / kPageSize, all = first_pages(pages);
  unsigned char resident[64];
  if (!swap_is_empty() || sys::call(__NR_mincore, part.start.value, part.size(), resident) != 0) return all;
  uint64_t mask = 0;
  for (uint64_t i = 0; i < pages; ++i) mask |= static_cast<uint64_t>(resident[i] & 1) << i;
  return swap_is_empty() ? mask : all;
}

}  // namespace

bool SharedLedger::reserve() {
  // A write beyond the limit would be a signal to the program.
  rlimit64 files{};
  if (sys::call(__NR_prlimit64, 0L, RLIMIT_FSIZE, 0L, &files) != 0 || files.rlim_cur != RLIM64_INFINITY)
    return false;
  if (!memory_.reserve(head_bytes(kMostUnits))) return false;
  const AddrRange own = memory_.range();
  sys::call(__NR_madvise, own.start.value, own.size(), 10L /* MADV_DONTFORK */);
  return true;
}

ScopedFd SharedLedger::make(const LedgerSize& size) {
  constexpr long kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  ScopedFd file(static_cast<int>(
      sys::call(__NR_memfd_create, "ckpt_rt.ledger", static_cast<long>(MFD_CLOEXEC | MFD_ALLOW_SEALING))));
  if (size.units == 0 || size.units > kMostUnits || !file.valid()) return {};
  const uint64_t bytes = head_bytes(size.units) + slots(size.units) * kUnit;
  Head head{};
  head.reading.store(size.members, std::memory_order_relaxed);
  if (sys::call(__NR_ftruncate, file.get(), bytes) != 0 ||
      sys::call(__NR_fcntl, file.get(), static_cast<long>(F_ADD_SEALS), kSeals) != 0 ||
      sys::call(__NR_pwrite64, file.get(), &head, sizeof(head), 0L) != sizeof(head)) {
    return {};
  }
  return file;
}

bool SharedLedger::join(ScopedFd file, const LedgerSize& size, std::span<const LedgerObject> objects) {
  leave();
  if (!file.valid() || size.units == 0 || size.units > kMostUnits || memory_.range().empty()) return false;
  // Its size is checked and sealed: no member can take a page away under our hands.
  struct stat st {};
  const uint64_t states = head_bytes(size.units), bytes = states + slots(size.units) * kUnit;
  const long seals = sys::call(__NR_fcntl, file.get(), static_cast<long>(F_GET_SEALS));
  if (sys::call(__NR_fstat, file.get(), &st) != 0 || static_cast<uint64_t>(st.st_size) != bytes ||
      seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return false;
  }
  for (const LedgerObject& o : objects) {
    const AddrRange range{Addr{o.start}, Addr{o.start + o.length}};
    if (o.length == 0 || range.end <= range.start || o.first_unit > size.units ||
        units_of(range) > size.units - o.first_unit) {
      return false;
    }
  }
  const long p = sys::call(__NR_mmap, memory_.range().start.value, states, PROT_READ | PROT_WRITE,
                           MAP_SHARED | MAP_FIXED, file.get(), 0L);
  if (sys::failed(p)) return false;
  sys::call(__NR_madvise, p, states, 10L /* MADV_DONTFORK */);
  head_ = reinterpret_cast<Head*>(p);
  states_ = reinterpret_cast<std::atomic<uint32_t>*>(p + static_cast<long>(kStates));
  file_ = std::move(file);
  size_ = size;
  objects_ = objects;
  copied_ = false;
  return true;
}

// The address space stays ours until the session ends, for it is in the list of what no image has.
void SharedLedger::leave() {
  if (head_ == nullptr) return;
  const AddrRange own = memory_.range();
  sys::call(__NR_mmap, own.start.value, head_bytes(size_.units), PROT_NONE,
            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1L, 0L);
  head_ = nullptr;
  states_ = nullptr;
  objects_ = {};
  file_.reset();
}

const LedgerObject* SharedLedger::find(uint64_t device, uint64_t inode) const {
  for (const LedgerObject& o : objects_) {
    if (o.device == device && o.inode == inode) return &o;
  }
  return nullptr;
}

// Calls use(part, unit's index, unit's address) for each unit that the range touches, until use() returns
// false. part: all that the object has of the unit, also outside of the range. Memory that is in no object is
// passed over.
template <typename Use>
bool SharedLedger::each_unit(AddrRange range, Use&& use) const {
  for (const LedgerObject& o : objects_) {
    const AddrRange part = range.common({Addr{o.start}, Addr{o.start + o.length}});
    if (part.empty()) continue;
    const uint64_t first = o.start / kUnit;
    for (uint64_t u = part.start.value / kUnit; u * kUnit < part.end.value; ++u) {
      const AddrRange unit{Addr{u * kUnit}, Addr{(u + 1) * kUnit}};
      if (!use(unit.common({Addr{o.start}, Addr{o.start + o.length}}), o.first_unit + (u - first),
               unit.start))
        return false;
    }
  }
  return true;
}

bool SharedLedger::write_slot(uint32_t slot, AddrRange part, Addr unit) {
  const uint64_t at = head_bytes(size_.units) + slot * kUnit;
  for (PageRun run : PageRuns(existing_pages(part))) {
    const AddrRange pages = run.at(part.start);
    for (uint64_t done = 0; done < pages.size();) {
      const long n = sys::call(__NR_pwrite64, file_.get(), pages.start.value + done, pages.size() - done,
                               static_cast<long>(at + (pages.start - unit) + done));
      if (n <= 0) return false;
      done += static_cast<uint64_t>(n);
    }
  }
  return true;
}

bool SharedLedger::overlay(std::byte* to, uint32_t slot, AddrRange part, Addr unit) const {
  const uint64_t at = head_bytes(size_.units) + slot * kUnit;
  for (uint64_t done = 0; done < part.size();) {
    const long n = sys::call(__NR_pread64, file_.get(), to + done, part.size() - done,
                             static_cast<long>(at + (part.start - unit) + done));
    if (n <= 0) return false;
    done += static_cast<uint64_t>(n);
  }
  return true;
}

void SharedLedger::save_for_others(AddrRange range) {
  if (!needed()) return;
  each_unit(range, [&](AddrRange part, uint64_t unit, Addr base) {
    // acquire: whoever has kept the unit did so before this process goes on to write.
    if (state(unit).load(std::memory_order_acquire) != 0) return true;
    // relaxed: a number that nobody else gets.
    const uint32_t slot = head_->next_slot.fetch_add(1, std::memory_order_relaxed);
    if (slot >= slots(size_.units) || !write_slot(slot, part, base)) {
      give_up();
      return true;
    }
    // The unit is protected in all members until its state changes here. So what was read above is as at the
    // stop if it was kUntouched all the time, which is what the exchange finds out. seq_cst, and release for
    // the slot: a reader that sees a byte of what this process writes from now on sees the new state as well
    // (read()).
    uint32_t untouched = 0;
    if (state(unit).compare_exchange_strong(untouched, slot + 1, std::memory_order_seq_cst))
      units_saved_.fetch_add(1, std::memory_order_relaxed);
    return true;
  });
}

bool SharedLedger::read(std::byte* to, AddrRange window) {
  const uint64_t exist = existing_pages(window);
  std::memset(to, 0, window.size());
  for (PageRun run : PageRuns(exist)) {
    const AddrRange pages = run.at(window.start);
    if (source_->read(to + (pages.start - window.start), pages.start, pages.size(), true) != 0) return false;
  }
  // The states are looked at after the bytes were read: without that order a unit could be found kUntouched,
  // then be written to, and then be read. So by an exchange that changes nothing, not by a load: before a
  // load the bytes' reads need not come. (Not a fence: ThreadSanitizer knows none.)
  uint64_t covered = 0;
  const bool done = each_unit(window, [&](AddrRange whole, uint64_t unit, Addr base) {
    const AddrRange part = whole.common(window);
    covered += part.size();
    const uint32_t saved = state(unit).fetch_add(0, std::memory_order_seq_cst);
    if (saved == 0) return true;
    return saved - 1 < slots(size_.units) && overlay(to + (part.start - window.start), saved - 1, part, base);
  });
  return done && covered == window.size();
}

void SharedLedger::copied() {
  if (head_ == nullptr || copied_) return;
  copied_ = true;
  // release, for needed(): our reads are over before another member writes without keeping.
  head_->reading.fetch_sub(1, std::memory_order_seq_cst);
  sys::call(__NR_futex, &head_->reading, long{FUTEX_WAKE}, 1L << 30, 0L, 0L, 0L);
}

bool SharedLedger::needed() const {
  return head_ != nullptr && head_->reading.load(std::memory_order_seq_cst) != 0;
}

void SharedLedger::give_up() {
  if (head_ != nullptr) head_->given_up.store(1, std::memory_order_seq_cst);
}

bool SharedLedger::given_up() const {
  return head_ != nullptr && head_->given_up.load(std::memory_order_seq_cst) != 0;
}

void SharedLedger::await_change() const {
  constexpr timespec kStep{0, 5'000'000};
  if (head_ == nullptr) return;
  const uint32_t reading = head_->reading.load(std::memory_order_seq_cst);
  if (reading != 0) sys::call(__NR_futex, &head_->reading, long{FUTEX_WAIT}, long{reading}, &kStep, 0L, 0L);
}

}  // namespace ckpt
