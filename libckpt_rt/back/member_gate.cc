#include "libckpt_rt/back/member_gate.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>

#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {
// Where programs seldom map anything, as the rest of what goes back with us (back_run.cc).
constexpr uint64_t kNear = 0x2080'0000'0000;
}  // namespace

long MemberGate::open(int fd, uint32_t member, uint32_t members) {
  fd_ = fd;
  if (members > kMostBackMembers || member >= members) return -EINVAL;
  const long p =
      sys::call(__NR_mmap, kNear, kBackGateBytes, PROT_READ | PROT_WRITE, MAP_SHARED, long{fd}, 0L);
  if (sys::failed(p)) return p;
  gate_ = reinterpret_cast<BackGate*>(p);
  member_ = member;
  return 0;
}

MemberGate::~MemberGate() {
  if (gate_ != nullptr) sys::call(__NR_munmap, gate_, kBackGateBytes);
  if (fd_ >= 0) sys::call(__NR_close, fd_);
}

AddrRange MemberGate::range() const {
  if (gate_ == nullptr) return {};
  const Addr start = Addr::of(reinterpret_cast<std::byte*>(gate_));
  return {start, start + kBackGateBytes};
}

// A member whose lock is free has closed its open file of the gate: before the last barrier only the end of
// its process does that.
bool MemberGate::somebody_died(uint32_t barrier) const {
  for (uint32_t i = 0; i < gate_->members; ++i) {
    if (i == member_ || gate_->passed[i].load() >= barrier) continue;
    struct flock range {};
    range.l_type = F_WRLCK;
    range.l_whence = SEEK_SET;
    range.l_start = i;
    range.l_len = 1;
    const long r = sys::call(__NR_fcntl, fd_, F_OFD_GETLK, &range);
    // The member may have come to the barrier between the two looks, and be gone since.
    if (r == 0 && range.l_type == F_UNLCK && gate_->passed[i].load() < barrier) return true;
  }
  return false;
}

MemberGate::Waited MemberGate::await(uint32_t barrier, bool asker_is_gone, int64_t longest_ns) {
  const timespec longest{0, longest_ns};
  const uint32_t seen = gate_->turns.load();
  if (gate_->all_at(barrier)) return Waited::kAll;
  if (gate_->failed.load() != 0) return Waited::kFailed;
  if (asker_is_gone && somebody_died(barrier)) {
    gate_->fail();
    return Waited::kFailed;
  }
  gate_->wait(seen, longest);
  return Waited::kNotYet;
}

}  // namespace ckpt
