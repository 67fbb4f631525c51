#include "tests/protect_model/small_kernel.h"

#include <errno.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "base/machine/kernel_caps.h"
#include "tests/protect_model/fibers.h"

namespace ckpt::test {

std::vector<Mapping> SmallKernel::map() const {
  std::vector<Mapping> all;
  for (size_t i = 0; i < kPages; ++i) {
    if (pages_[i].mapping == 0) continue;
    if (i == 0 || pages_[i - 1].mapping != pages_[i].mapping) {
      Mapping m;
      m.range = range_of(i, 0);
      m.prot = PROT_READ | PROT_WRITE;
      m.handling = Handling::kTracked;
      all.push_back(m);
    }
    all.back().range.end = range_of(i, 1).end;
  }
  return all;
}

void SmallKernel::map_new(size_t first, size_t count) {
  ++mappings_;
  for (size_t i = first; i < first + count; ++i) {
    pages_[i] = {};
    pages_[i].mapping = mappings_;
  }
}

void SmallKernel::store(size_t i) {
  pages_[i].exists = true;
  pages_[i].content = ++contents_;
}

void SmallKernel::wait_in_fault(size_t i) {
  Message fault{true, range_of(i, 1)};
  messages_.push_back(&fault);
  sleeping_.push_back(&fault);
  while (!fault.woken) Fiber::suspend();
  std::erase(messages_, &fault);  // who is woken before is not read any more
}

void SmallKernel::tell(size_t first, size_t count, bool removes) {
  if ((features_ & (removes ? UFFD_FEATURE_EVENT_REMOVE : UFFD_FEATURE_EVENT_UNMAP)) == 0) return;
  Message event{false, range_of(first, count), removes};
  ++changing_;
  messages_.push_back(&event);
  while (!event.read) Fiber::suspend();
  --changing_;
}

long SmallKernel::control_faults(unsigned long request, long argument) {
  if (request == UFFDIO_API) {
    auto& api = *reinterpret_cast<uffdio_api*>(argument);
    if (version_ == Version::kNoHoles && (api.features & kUffdFeatureWpUnpopulated) != 0) return -EINVAL;
    features_ = api.features;
    return 0;
  }
  if (request == UFFDIO_WRITEPROTECT) {
    const auto& wp = *reinterpret_cast<const uffdio_writeprotect*>(argument);
    return write_protect({Addr{wp.range.start}, Addr{wp.range.start + wp.range.len}},
                         (wp.mode & UFFDIO_WRITEPROTECT_MODE_WP) != 0);
  }
  // All others begin with a range; a registration goes on with a mode.
  const auto& range = *reinterpret_cast<const uffdio_range*>(argument);
  const AddrRange pages{Addr{range.start}, Addr{range.start + range.len}};
  if (!is_here(pages.start)) return 0;
  const size_t first = index(pages.start), end = index(pages.end);
  auto is_mapped = [](const Page& p) { return p.mapping != 0; };
  if (request == UFFDIO_WAKE) {
    wake(pages);
    return 0;
  }
  if (std::none_of(&pages_[first], &pages_[0] + end, is_mapped)) return -EINVAL;
  const bool is_on = request == UFFDIO_REGISTER && (reinterpret_cast<const uffdio_register*>(argument)->mode &
                                                    UFFDIO_REGISTER_MODE_WP) != 0;
  for (size_t i = first; i < end; ++i) {
    if (pages_[i].mapping == 0) continue;
    pages_[i].registered = is_on;
    if (request == UFFDIO_UNREGISTER) pages_[i].marked = false;
  }
  if (!is_on) wake(pages);
  return 0;
}

// The call stops at the first mapping that is not registered, and passes over holes.
long SmallKernel::write_protect(AddrRange range, bool on) {
  if (!is_here(range.start)) return -ENOENT;
  if (changing_ != 0) return -EAGAIN;
  long result = -ENOENT;
  for (size_t i = index(range.start); i < index(range.end); ++i) {
    Page& p = pages_[i];
    if (p.mapping == 0) continue;
    if (!p.registered) return -ENOENT;
    if (!on || p.exists || (features_ & kUffdFeatureWpUnpopulated) != 0) p.marked = on;
    result = 0;
  }
  if (result == 0 && !on) wake(range);
  return result;
}

void SmallKernel::wake(AddrRange range) {
  std::erase_if(sleeping_, [&](Message* fault) {
    if (!range.overlaps(fault->range)) return false;
    fault->woken = true;
    return true;
  });
}

// Faults come before events.
long SmallKernel::read_messages(long to, long bytes) {
  auto* out = reinterpret_cast<uffd_msg*>(to);
  const size_t most = static_cast<size_t>(bytes) / sizeof(uffd_msg);
  size_t count = 0;
  for (const bool faults : {true, false}) {
    for (size_t i = 0; i < messages_.size() && count < most;) {
      Message& m = *messages_[i];
      if (m.is_fault != faults) {
        ++i;
        continue;
      }
      messages_.erase(messages_.begin() + static_cast<long>(i));
      m.read = true;
      uffd_msg& message = out[count++];
      message = {};
      if (m.is_fault) {
        message.event = UFFD_EVENT_PAGEFAULT;
        message.arg.pagefault.address = m.range.start.value + 8;
      } else {
        message.event = m.removes ? UFFD_EVENT_REMOVE : UFFD_EVENT_UNMAP;
        message.arg.remove.start = m.range.start.value;
        message.arg.remove.end = m.range.end.value;
      }
    }
  }
  return count == 0 ? -EAGAIN : static_cast<long>(count * sizeof(uffd_msg));
}

// Of the thread that serves: the userfaultfd, and the event that ends it.
long SmallKernel::poll(long fds) {
  auto* both = reinterpret_cast<pollfd*>(fds);
  for (;;) {
    both[0].revents = messages_.empty() ? 0 : POLLIN;
    ::poll(both + 1, 1, 0);
    if (both[0].revents != 0 || both[1].revents != 0) return 1;
    Fiber::suspend();
  }
}

void SmallKernel::end_userfaultfd() {
  for (Page& p : pages_) p.registered = p.marked = false;
  wake(range_of(0, kPages));
  features_ = 0;
}

long SmallKernel::change_protection(AddrRange range, bool writable) {
  for (size_t i = index(range.start); i < index(range.end); ++i) {
    if (pages_[i].mapping == 0) return -ENOMEM;
    pages_[i].writable = writable;
  }
  return 0;
}

bool SmallKernel::read_page(Addr from, std::byte* to) const {
  const Page& p = pages_[index(from)];
  if (p.mapping == 0) return false;
  // The first and the last word are enough to see what was copied.
  const uint64_t content = p.exists ? p.content : 0;
  std::memcpy(to, &content, sizeof(content));
  std::memcpy(to + kPageSize - sizeof(content), &content, sizeof(content));
  return true;
}

// What PAGEMAP_SCAN says of a page.
uint64_t SmallKernel::categories(Addr page, bool only_written) const {
  constexpr uint64_t kWritten = 1 << 1, kPresent = 1 << 3, kSwapped = 1 << 4;
  const Page& p = pages_[index(page)];
  if (p.mapping == 0) return 0;
  if (p.exists) return kPresent | (p.marked ? 0 : kWritten);
  if (p.marked) return kSwapped;
  return only_written ? kWritten : 0;
}

long SmallKernel::scan(long argument) const {
  struct Arguments {
    uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages, inverted, mask, any_of, returned;
  };
  struct Region {
    uint64_t start, end, categories;
  };
  if (version_ != Version::kNew) return -ENOTTY;
  auto& a = *reinterpret_cast<Arguments*>(argument);
  auto* out = reinterpret_cast<Region*>(a.vec);
  constexpr uint64_t kWritten = 1 << 1;
  const bool only_written = a.mask == kWritten && a.inverted == 0 && a.any_of == 0;
  uint64_t count = 0;
  a.walk_end = a.end;
  if (!is_here(Addr{a.start})) {
    // Memory of the library: the one question is whether the fast answer has what is missing
    // (missing_are_written).
    if (only_written) out[count++] = {a.start, a.end, kWritten};
    return static_cast<long>(count);
  }
  for (Addr page{a.start}; page.value < a.end; page = page + kPageSize) {
    const uint64_t found = is_here(page) ? categories(page, only_written) : 0;
    const uint64_t asked = found ^ a.inverted;
    if (found == 0 || (asked & a.mask) != a.mask || (a.any_of != 0 && (asked & a.any_of) == 0)) continue;
    const uint64_t shown = found & a.returned;
    if (count != 0 && out[count - 1].end == page.value && out[count - 1].categories == shown) {
      out[count - 1].end += kPageSize;
    } else if (count == a.vec_len) {
      a.walk_end = page.value;
      break;
    } else {
      out[count++] = {page.value, page.value + kPageSize, shown};
    }
  }
  return static_cast<long>(count);
}

long SmallKernel::read_pagemap(long to, long bytes, long offset) const {
  auto* entries = reinterpret_cast<uint64_t*>(to);
  for (long i = 0; i < bytes / 8; ++i) {
    const Page& p = pages_[index(Addr{static_cast<uint64_t>(offset / 8 + i) * kPageSize})];
    entries[i] = p.mapping != 0 && p.exists ? 1ull << 63 : 0;
  }
  return bytes;
}

}  // namespace ckpt::test
