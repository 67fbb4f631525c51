#include "restart/plan/memory/restorer_range.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <linux/rseq.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/rseq.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/memory/own_place.h"
#include "base/sys.h"
#include "restart/plan/credentials.h"
#include "restart/plan/memory/address_space.h"
#include "restart/plan/vdso/old_vdso.h"
#include "restart/restorer/restorer_blob.h"

namespace ckpt {
namespace {

constexpr uint64_t kStackBytes = 64 << 10;
// Room between the range and any mapping, so that a stack next to it can still grow a little.
constexpr uint64_t kMargin = 1 << 20;
constexpr uint64_t kLowest = 1 << 20;
constexpr uint64_t kMostGroups = 65536;

// Where no hole of the program is, if there is room: a page of the range stays while memory is loaded, and
// another vdso for good.
Result<Addr> find_far_room(const std::vector<AddrRange>& taken, uint64_t bytes) {
  auto far = find_room(taken, bytes, kMargin, Addr{kOwnPlaces});
  return far.ok() ? far : find_room(taken, bytes, kMargin, Addr{kLowest});
}

uint64_t pages(uint64_t bytes) { return (bytes + kPageSize - 1) & ~(kPageSize - 1); }

}  // namespace

Result<void> RestorerRange::reserve(uint64_t view_bytes) {
  const ImageMeta& meta = image_.meta();
  std::vector<AddrRange> taken;
  for (const ParsedMapping& m : meta.mappings) taken.push_back({{m.record.start}, {m.record.end}});
  const ProcessRecord& p = meta.process.record;
  // Where the vdso goes with what belongs to it, and where the image's own was.
  uint64_t before_code = vdso_.code.start - vdso_.whole().start;
  bool other = is_other_vdso(meta, vdso_);
  if (vdso_.present()) {
    taken.push_back({{p.vdso_start - before_code}, {p.vdso_start + (vdso_.whole().end - vdso_.code.start)}});
  }
  taken.push_back({{p.vvar_start}, {p.vvar_end}});
  taken.push_back({{p.vdso_start}, {p.vdso_end}});
  auto own = own_mappings();
  if (!own.ok()) return own.error();
  for (const OwnMapping& m : *own) taken.push_back(m.range);

  vdso_code_ = p.vdso_start;
  if (other && vdso_.present()) {
    auto place = find_far_room(taken, vdso_.whole().size());
    if (!place.ok()) return place.error();
    vdso_code_ = place->value + before_code;
    taken.push_back({*place, *place + vdso_.whole().size()});
  }

  uint64_t code = pages(restorer_blob().size());
  uint64_t lists = pages(
      sizeof(RestorerArgs) + meta.mappings.size() * sizeof(RestorerMapping) +
      fill_.fills.size() * sizeof(RestorerFill) + (lazy_.registered.size() + 1) * sizeof(RestorerLazyRange) +
      std::min<uint64_t>(meta.process.groups.size(), kMostGroups) * sizeof(uint32_t) +
      descriptors_.locks.size() * sizeof(RestorerLock) + descriptors_.timers.size() * sizeof(RestorerTimer) +
      descriptors_.pending_seals.size() * sizeof(RestorerSeal) + meta.mm.auxv.size() +
      (other ? saved_vdso_code(meta).size() : 0) + 10 * 64);
  uint64_t parking = pages(vdso_.whole().size());
  uint64_t total = code + lists + kStackBytes + parking + pages(view_bytes) + (lazy_.any() ? kPageSize : 0);
  auto room = find_far_room(taken, total);
  if (!room.ok()) return room.error();
  start_ = room->value;
  end_ = start_ + total;
  void* got = mmap(room->as<void>(), total, PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
  uint64_t stack = start_ + code + lists;
  if (got != room->as<void>() ||
      mprotect(reinterpret_cast<void*>(start_), code + lists + kStackBytes, PROT_READ | PROT_WRITE) != 0) {
    return make_error(ExitCode::kSystem, errno, "no room for the restorer at {:#x} ({})", start_,
                      errno_name(errno));
  }
  auto blob = restorer_blob();
  std::memcpy(reinterpret_cast<void*>(start_), blob.data(), blob.size());
  mprotect(reinterpret_cast<void*>(start_), code, PROT_READ | PROT_EXEC);
  args_ = new (reinterpret_cast<void*>(start_ + code)) RestorerArgs{};
  lists_ = start_ + code + sizeof(RestorerArgs);
  lists_end_ = stack;
  stack_top_ = stack + kStackBytes;
  parking_ = stack_top_;
  views_ = parking_ + parking;
  if (lazy_.any()) {
    gate_ = end_ - kPageSize;
    mprotect(reinterpret_cast<void*>(gate_), kPageSize, PROT_READ);
  }
  return {};
}

template <typename T>
T* RestorerRange::place(const T* values, size_t count) {
  uint64_t at = (lists_ + 15) & ~uint64_t{15};
  size_t bytes = count * sizeof(T);
  if (at + bytes > lists_end_) _exit(static_cast<int>(ExitCode::kInternal));  // reserve() counted wrong
  if (bytes > 0) std::memcpy(reinterpret_cast<void*>(at), values, bytes);
  lists_ = at + bytes;
  return reinterpret_cast<T*>(at);
}

Result<void> RestorerRange::fill_in(const std::vector<RestorerMapping>& mappings, bool in_new_user,
                                    ReportChannel& report) {
  const ImageMeta& meta = image_.meta();
  RestorerArgs& a = *args_;
  a.range_start = start_;
  a.range_end = end_;
  a.task_end = kTaskEnd;
  a.stack_top = stack_top_;
  a.mapping_count = static_cast<uint32_t>(mappings.size());
  a.mappings = place(mappings.data(), mappings.size());
  a.fills = place(fill_.fills.data(), fill_.fills.size());
  describe_lazy();
  CKPT_TRY(plan_vdso());
  describe_own_rseq();
  describe_mm();

  const ProcessRecord& p = meta.process.record;
  a.saved_monotonic_ns = p.monotonic_ns;
  a.saved_boottime_ns = p.boottime_ns;
  a.personality = p.personality;
  // 2 ("readable by root only") cannot be set; 0 keeps what it is for.
  plan_limits(meta, a, report);
  plan_credentials(meta, in_new_user, a, report);
  a.group_count = static_cast<uint32_t>(std::min<uint64_t>(a.group_count, kMostGroups));
  a.groups = place(meta.process.groups.data(), a.group_count);

  std::vector<RestorerLock> locks;
  for (const ProcessLock& l : descriptors_.locks) locks.push_back({l.fd, l.type, l.start, l.length, l.had});
  a.lock_count = static_cast<uint32_t>(locks.size());
  a.locks = place(locks.data(), locks.size());
  std::vector<RestorerTimer> timers;
  for (const ProcessTimer& t : descriptors_.timers) {
    timers.push_back({t.fd,
                      t.flags,
                      {t.spec.it_interval.tv_sec, t.spec.it_interval.tv_nsec, t.spec.it_value.tv_sec,
                       t.spec.it_value.tv_nsec},
                      t.ticks});
  }
  a.timer_count = timers.size();
  a.timers = place(timers.data(), timers.size());
  std::vector<RestorerSeal> seals;
  for (const PendingSeals& s : descriptors_.pending_seals) seals.push_back({s.fd, s.seals});
  a.seal_count = static_cast<uint32_t>(seals.size());
  a.seals = place(seals.data(), seals.size());

  a.entry = p.restart_entry;
  a.library.protocol = kRestartProtocolVersion;
  a.library.restorer_start = start_;
  a.library.restorer_end = gate_ != 0 ? gate_ : end_;
  a.library.loading_gate = gate_;
  a.library.restart_state = p.restart_state;
  return {};
}

void RestorerRange::describe_lazy() {
  if (!lazy_.any()) return;
  std::vector<RestorerLazyRange> ranges;
  for (const AddrRange& r : lazy_.registered) ranges.push_back({r.start.value, r.size()});
  ranges.push_back({gate_, kPageSize});
  args_->lazy_count = ranges.size();
  args_->lazy = place(ranges.data(), ranges.size());
}

Result<void> RestorerRange::plan_vdso() {
  RestorerArgs& a = *args_;
  if (vdso_.pieces.size() > kMaxVdsoPieces) {
    return make_error(ExitCode::kIncompatible, 0, "this kernel's vdso has {} parts, more than {}",
                      vdso_.pieces.size(), kMaxVdsoPieces);
  }
  for (const VdsoPiece& piece : vdso_.pieces) {
    uint64_t into = piece.range.start - vdso_.whole().start;
    uint64_t from_code = vdso_.code.start - piece.range.start;  // wraps for what lies above; so does the sum
    a.vdso[a.vdso_count++] = {piece.range.start.value, parking_ + into, vdso_code_ - from_code,
                              piece.range.size()};
  }
  const ImageMeta& meta = image_.meta();
  if (is_other_vdso(meta, vdso_)) {
    auto code = redirect_vdso(saved_vdso_code(meta), vdso_, Addr{vdso_code_});
    a.old_vdso = {meta.process.record.vdso_start, code.size(), place(code.data(), code.size())};
  }
  return {};
}

void RestorerRange::describe_own_rseq() {
  // glibc 2.35 and later.
  const auto* size = static_cast<const unsigned*>(dlsym(RTLD_DEFAULT, "__rseq_size"));
  const auto* offset = static_cast<const ptrdiff_t*>(dlsym(RTLD_DEFAULT, "__rseq_offset"));
  if (size == nullptr || offset == nullptr || *size == 0) return;
  uint64_t area = reinterpret_cast<uint64_t>(__builtin_thread_pointer()) + static_cast<uint64_t>(*offset);
  // The length that libc registered: registering the same again is EBUSY, another one EINVAL.
  constexpr unsigned long kFeatureSize = 27;  // AT_RSEQ_FEATURE_SIZE
  uint32_t larger = (static_cast<uint32_t>(getauxval(kFeatureSize)) + 31) & ~31u;
  for (uint32_t length : {32u, larger}) {
    if (sys::call(__NR_rseq, area, length, 0L, RSEQ_SIG) != -EBUSY) continue;
    args_->rseq_address = area;
    args_->rseq_length = length;
    args_->rseq_signature = RSEQ_SIG;
    return;
  }
}

void RestorerRange::describe_mm() {
  const ParsedMm& mm = image_.meta().mm;
  const MmRecord& r = mm.record;
  RestorerArgs& a = *args_;
  a.start_code = r.start_code;
  a.end_code = r.end_code;
  a.start_data = r.start_data;
  a.end_data = r.end_data;
  a.start_brk = r.start_brk;
  a.brk = r.brk;
  a.start_stack = r.start_stack;
  a.arg_start = r.arg_start;
  a.arg_end = r.arg_end;
  a.env_start = r.env_start;
  a.env_end = r.env_end;
  // Up to its end mark: kernels differ in how much they keep behind it, and refuse more than they keep.
  size_t length = 0;
  while (length + sizeof(Elf64_auxv_t) <= mm.auxv.size()) {
    Elf64_auxv_t entry;
    std::memcpy(&entry, mm.auxv.data() + length, sizeof(entry));
    length += sizeof(entry);
    if (entry.a_type == AT_NULL) break;
  }
  a.auxv = place(mm.auxv.data(), length);
  a.auxv_length = static_cast<uint32_t>(length);
}

void RestorerRange::enter() {
  asm volatile(
      "mov %0, %%rsp\n\t"
      "xor %%ebp, %%ebp\n\t"
      "call *%1\n\t"
      "ud2"
      :
      : "r"(stack_top_), "r"(start_), "D"(args_)
      : "memory");
  __builtin_unreachable();
}

}  // namespace ckpt
