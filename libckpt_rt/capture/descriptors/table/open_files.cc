#include "libckpt_rt/capture/descriptors/table/open_files.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <sys/stat.h>

#include <algorithm>

#include "base/checks/check.h"
#include "image/format/object_number.h"
#include "libckpt_rt/capture/descriptors/table/notes.h"
#include "libckpt_rt/core/preload_rules.h"

// Which descriptors share one open file description. kcmp(2) compares two of them and gives an order
// that is stable while both are open, so sorting finds all groups in n log n; files of different
// inodes cannot be the same description and are never asked about.

namespace ckpt {
namespace {

template <typename T>
int order_of(T a, T b) {
  return a < b ? -1 : a > b ? 1 : 0;
}

// Of kcmp(2), whatever it is asked.
bool is_refusal(long answer) { return answer == -EPERM || answer == -ENOSYS || answer == -EACCES; }

int compare_inodes(const CapturedDescriptor& a, const CapturedDescriptor& b) {
  if (int c = order_of(a.now.device, b.now.device)) return c;
  return order_of(a.now.inode, b.now.inode);
}

}  // namespace

void OpenFiles::begin(Arena& arena) {
  arena_ = &arena;
  entries_ = ArenaVector<CapturedDescriptor>(arena);
  order_ = ArenaVector<uint32_t>(arena);
  has_changed_ = is_refused_ = false;
}

int OpenFiles::compare(const CapturedDescriptor& a, const CapturedDescriptor& b) {
  if (int c = compare_inodes(a, b)) return c;
  if (a.fd == b.fd && a.in_flight == b.in_flight) return 0;
  if (!is_refused_) {
    long r = sys::call(__NR_kcmp, access_.tid_of(a), access_.tid_of(b), KCMP_FILE, a.fd, b.fd);
    if (r == 0) return 0;
    if (r == 1) return -1;
    if (r == 2) return 1;
    if (is_refusal(r)) {
      is_refused_ = true;
    } else {
      return order_of(a.fd, b.fd);  // closed meanwhile: the program runs, the stop looks again
    }
  }
  // Without kcmp: equal in all that can be seen counts as shared; DescriptorLosses says so.
  if (int c = order_of(static_cast<int>(a.kind), static_cast<int>(b.kind))) return c;
  if (int c = order_of(a.now.open_flags, b.now.open_flags)) return c;
  return order_of(a.now.offset, b.now.offset);
}

bool OpenFiles::begins_inode(size_t i) const {
  return i == 0 || compare_inodes(entries_[order_[i - 1]], entries_[order_[i]]) != 0;
}

std::span<const uint32_t> OpenFiles::same_inode(size_t first) const {
  size_t end = first + 1;
  while (end < order_.size() && compare_inodes(entries_[order_[first]], entries_[order_[end]]) == 0) ++end;
  return order().subspan(first, end - first);
}

// A merge sort, because it ends whatever the comparison says: while the program runs, answers may
// contradict each other.
Result<void> OpenFiles::sort_by_open_file() {
  const size_t n = entries_.size();
  ArenaVector<uint32_t> spare(*arena_);
  order_.clear();
  if (!order_.reserve(n + 1) || !spare.reserve(n + 1)) return arena_full(*arena_);
  for (uint32_t i = 0; i < n; ++i) {
    CHECK(order_.push_back(i) && spare.push_back(i));
  }
  uint32_t* from = order_.data();
  uint32_t* to = spare.data();
  for (size_t width = 1; width < n; width *= 2) {
    for (size_t low = 0; low < n; low += 2 * width) {
      size_t middle = low + width < n ? low + width : n;
      size_t high = low + 2 * width < n ? low + 2 * width : n;
      size_t a = low, b = middle;
      for (size_t k = low; k < high; ++k) {
        bool left = b == high || (a < middle && compare(entries_[from[a]], entries_[from[b]]) <= 0);
        to[k] = left ? from[a++] : from[b++];
      }
    }
    uint32_t* t = from;
    from = to;
    to = t;
  }
  if (n > 0 && from != order_.data()) std::memcpy(order_.data(), from, n * sizeof(uint32_t));
  for (size_t i = 0; i < n; ++i) {
    auto& d = entries_[order_[i]];
    const auto* before = i > 0 ? &entries_[order_[i - 1]] : nullptr;
    d.partner = before != nullptr && compare_inodes(*before, d) == 0 ? before->fd : -1;
    d.shares = d.partner >= 0 && compare(*before, d) == 0;
  }
  decide_who_asks();
  has_changed_ = false;
  return {};
}

// The part of order_ with one inode number.
template <typename Fn>
void OpenFiles::for_each_group(Fn fn) {
  for (size_t first = 0; first < order_.size();) {
    size_t end = first + 1;
    while (end < order_.size() && entries_[order_[end]].partner >= 0) ++end;
    fn(first, end);
    first = end;
  }
}

// With at most two open files of an inode it is enough to know which neighbours are the same; the sample says
// that.
void OpenFiles::decide_who_asks() {
  for_each_group([&](size_t first, size_t end) {
    uint32_t open_files = 1;
    for (size_t i = first + 1; i < end; ++i) open_files += !entries_[order_[i]].shares;
    for (size_t i = first; i < end; ++i) entries_[order_[i]].asks_partner = i > first && open_files <= 2;
  });
}

// With more: neighbours still compare as when they were sorted; then, by transitivity, all do. This is the
// dear part, and needs nobody's samples. The kinds of anonymous files have one inode number in common.
Result<void> OpenFiles::list_order_checks() {
  checks_ = ArenaVector<OrderCheck>(*arena_);
  if (!checks_.reserve(order_.size() + 1)) return arena_full(*arena_);
  if (is_refused_) return {};
  for_each_group([&](size_t first, size_t end) {
    bool neighbours = false, checked_before = false;
    uint32_t before = 0;
    for (size_t i = first; i < end; ++i) {
      CapturedDescriptor& d = entries_[order_[i]];
      // An eventfd has a number that no other has as long as it exists, and no second open file: the agent
      // reads it.
      d.by_number = !d.asks_partner && d.kind == OpenFileKind::kEventFd && d.proc_fd >= 0;
      const bool compared = !d.asks_partner && !d.by_number;
      // After others of another kind it cannot be the open file of its neighbour.
      d.in_order = compared && (neighbours || !d.shares);
      if (d.asks_partner) continue;
      if (compared) {
        if (checked_before && d.in_order) CHECK(checks_.push_back({before, order_[i], 0}));
        before = order_[i];
        checked_before = true;
      }
      neighbours = compared;
    }
  });
  return {};
}

void OpenFiles::OrderCheck::ask(int tid, const CapturedDescriptor* entries) {
  answer = static_cast<int>(sys::call(__NR_kcmp, tid, tid, KCMP_FILE, entries[before].fd, entries[d].fd));
}

void OpenFiles::take_order_checks() {
  for (OrderCheck& check : checks_) {
    CapturedDescriptor& d = entries_[check.d];
    // A filter of the thread that asked need not be ours.
    if (is_refusal(check.answer)) check.ask(access_.tid(), entries_.data());
    if (is_refusal(check.answer)) is_refused_ = true;
    d.in_order = check.answer == (d.shares ? 0 : 1);
  }
}

Result<bool> OpenFiles::sharing_unchanged() {
  if (order_.size() != entries_.size()) return false;
  ArenaVector<int64_t> numbers(*arena_);
  bool unchanged = true, room = true;
  for_each_group([&](size_t first, size_t end) {
    numbers.clear();
    for (size_t i = first; i < end; ++i) {
      const CapturedDescriptor& d = entries_[order_[i]];
      const CapturedDescriptor* before = i > first ? &entries_[order_[i - 1]] : nullptr;
      if (d.asks_partner && d.now.same >= 0) {
        unchanged = unchanged && (d.now.same == 1) == d.shares;
      } else if (d.asks_partner) {  // Linux before 6.10
        const int c = compare(*before, d);
        unchanged = unchanged && c <= 0 && (c == 0) == d.shares;
      } else if (!d.by_number) {
        unchanged = unchanged && d.in_order;
      } else if (d.kind != OpenFileKind::kEventFd || d.eventfd_id < 0) {
        unchanged = false;  // it was one, or the kernel does not say
      } else if (d.shares) {
        unchanged = unchanged && before != nullptr && before->by_number && before->eventfd_id == d.eventfd_id;
      } else {
        room = room && numbers.push_back(d.eventfd_id);
      }
    }
    std::sort(numbers.begin(), numbers.end());
    unchanged = unchanged && std::adjacent_find(numbers.begin(), numbers.end()) == numbers.end();
  });
  if (!room) return arena_full(*arena_);
  return unchanged;
}

void OpenFiles::number_open_files() {
  uint32_t open_files = 0;
  for (size_t i = 0; i < order_.size(); ++i) {
    auto& d = entries_[order_[i]];
    if (!d.shares) ++open_files;
    d.open_file = open_files;
  }
}

Result<std::span<const job::OpenFileKey>> OpenFiles::list_open_files() const {
  ArenaVector<job::OpenFileKey> keys(*arena_);
  for (uint32_t i : order_) {
    const auto& d = entries_[i];
    if (d.shares) continue;
    if (!keys.push_back({d.open_file, d.fd, d.now.device, d.now.inode, d.now.open_flags,
                         static_cast<uint32_t>(d.kind), d.in_flight ? sys::gettid() : 0, 0}))
      return arena_full(*arena_);
  }
  return std::span<const job::OpenFileKey>(keys.span());
}

bool OpenFiles::has_socket(uint64_t object) const {
  for (const auto& other : entries_) {
    if (S_ISSOCK(other.now.mode) && object_number(other.now.device, other.now.inode) == object) return true;
  }
  return false;
}

}  // namespace ckpt
