#include "tests/protect_model/fake_kernel.h"

#include <errno.h>
#include <sys/mman.h>

#include <algorithm>

#include "libckpt_rt/capture/futex_words.h"

namespace ckpt::test {
namespace {
FakeKernel* kernel = nullptr;
}

FakeKernel::FakeKernel(Kind kind, unsigned seed) : kind_(kind), random_(seed) {
  kernel = this;
  hot_ = any(kPages);
  // A few mappings, one of them larger than the blocks that are looked at for pages, and gaps.
  for (size_t at = any(8); at < kPages;) {
    const size_t count = std::min(kPages - at, now_and_then(3) ? 600 + any(200) : 1 + any(90));
    map_new(at, count);
    for (size_t i = at; i < at + count; ++i) {
      if (any(10) < 6) store(i);
    }
    at += count + (now_and_then(2) ? 0 : any(20));
  }
}

FakeKernel::~FakeKernel() { kernel = nullptr; }

void FakeKernel::map_new(size_t first, size_t count) {
  ++mappings_;
  for (size_t i = first; i < first + count; ++i) pages_[i] = {mappings_, false, false, false, 0};
}

std::vector<Mapping> FakeKernel::map() const {
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

void FakeKernel::store(size_t i) {
  pages_[i].exists = true;
  pages_[i].content = ++contents_;
}

void FakeKernel::beside() {
  if (stopped_ || depth_ > 2) return;
  ++depth_;
  for (size_t n = any(5); n > 0; --n) {
    Thread& t = threads_[any(kThreads)];
    if (t.doing == Doing::kNothing)
      begin_something(t);
    else
      go_on(t);
    // The thread that serves runs whenever nobody else has the lock.
    if (kind_ == Kind::kHandler && !locked_ && arming_ != nullptr && now_and_then(2)) {
      locked_ = true;
      read_messages();
      serve_backlog();
      locked_ = false;
    }
  }
  --depth_;
}

void FakeKernel::begin_something(Thread& t) {
  t = {};
  t.first = now_and_then(8) ? any(kPages) : (hot_ + any(kHot)) % kPages;
  if (any(10) < 7) {
    Page& p = pages_[t.first];
    if (p.mapping == 0) return;
    if (!p.is_protected) return store(t.first);
    t.doing = kind_ == Kind::kHandler ? Doing::kFaulting : Doing::kWantsTurn;
    t.count = 0;
    return;
  }
  t.count = std::min(kPages - t.first, 1 + any(now_and_then(4) ? 60 : 6));
  const size_t call = any(kind_ == Kind::kGuard ? 10 : 6);
  t.call = call < 3    ? Call::kGiveBack
           : call == 3 ? Call::kUnmap
           : call < 6  ? Call::kMapOver
                       : Call::kKernelWrites;
  if (!call_allowed(t.call)) return;
  if (kind_ == Kind::kGuard) {
    t.doing = Doing::kWantsTurn;
    return;
  }
  const bool watched =
      std::any_of(&pages_[t.first], &pages_[t.first] + t.count, [](const Page& p) { return p.registered; });
  // Pages go after the event was read; mappings before it is. Where nothing is registered there is neither an
  // event nor a registration in between.
  if (t.call != Call::kGiveBack || !watched) do_call(t);
  if (watched) t.doing = Doing::kTelling;
}

void FakeKernel::go_on(Thread& t) {
  switch (t.doing) {
    case Doing::kFaulting:
      if (pages_[t.first].is_protected) return;  // in its fault
      if (t.queued && std::find(backlog_.begin(), backlog_.end(), &t - threads_) != backlog_.end()) return;
      if (pages_[t.first].mapping != 0) store(t.first);
      t.doing = Doing::kNothing;
      return;
    case Doing::kTelling:
      return;  // until the event is read
    case Doing::kCalling:
      if (!now_and_then(40)) return;  // it takes its time: whole passes
      do_call(t);
      t.doing = Doing::kNothing;
      return;
    case Doing::kWantsTurn:
      if (locked_) return;
      locked_ = true;
      take_turn(t);
      locked_ = false;
      return;
    case Doing::kNothing:
      return;
  }
}

// kGuard, with the lock: what a handler of the guard, or the wrapper of a call does.
void FakeKernel::take_turn(Thread& t) {
  if (t.count == 0) {
    bool was_writable = false;
    if (pages_[t.first].is_protected && arming_ != nullptr)
      arming_->fault_in_thread(range_of(t.first, 1).start, &was_writable);
    if (pages_[t.first].is_protected) {
      if (was_writable) wrong.push_back("a thread is told that a page is writable, and it is protected");
      return;  // it faults again
    }
    if (pages_[t.first].mapping != 0) store(t.first);
    t.doing = Doing::kNothing;
    return;
  }
  const AddrRange range = range_of(t.first, t.count);
  t.opened = true;
  if (arming_ != nullptr) {
    arming_->open_for_kernel(range);
    if (t.call != Call::kKernelWrites) arming_->removed(range);
  }
  t.doing = Doing::kCalling;
}

void FakeKernel::do_call(Thread& t) {
  for (size_t i = t.first; i < t.first + t.count; ++i) {
    Page& p = pages_[i];
    switch (t.call) {
      case Call::kGiveBack:
        p.exists = p.is_protected = false;
        break;
      case Call::kUnmap:
        p = {};
        break;
      case Call::kMapOver:
        break;
      case Call::kKernelWrites:
        if (p.mapping == 0) break;
        if (p.is_protected)
          wrong.push_back("the kernel meets protected page " + std::to_string(i));
        else
          store(i);
    }
  }
  if (t.call == Call::kMapOver) map_new(t.first, t.count);
}

void FakeKernel::stop() {
  for (bool more = true; more;) {
    more = false;
    for (Thread& t : threads_) {
      if (t.doing == Doing::kNothing) continue;
      more = true;
      if (kind_ == Kind::kHandler && arming_ != nullptr && !locked_) {
        locked_ = true;
        read_messages();
        serve_backlog();
        locked_ = false;
      }
      go_on(t);
    }
  }
  stopped_ = true;
}

void FakeKernel::replace_unseen() {
  const size_t first = any(kPages), count = std::min(kPages - first, 1 + any(40));
  for (size_t i = first; i < first + count; ++i) {
    Page& p = pages_[i];
    if (p.mapping == 0) continue;
    p.registered = p.is_protected = false;
    if (p.exists) p.content = ++contents_;
  }
}

void FakeKernel::write_freely(size_t i) { store(i); }
void FakeKernel::give_back_freely(size_t i) { pages_[i].exists = pages_[i].is_protected = false; }

long FakeKernel::add(AddrRange range) {
  beside();
  for (size_t i = index(range.start); i < index(range.end); ++i) {
    if (pages_[i].mapping == 0) return -ENOMEM;
    if (pages_[i].mapping % 5 == 0) return -EINVAL;
  }
  for (size_t i = index(range.start); i < index(range.end); ++i) pages_[i].registered = true;
  return 0;
}

long FakeKernel::write_protect(AddrRange range, bool on) {
  beside();
  // EAGAIN, until whoever serves has read the event.
  if (kind_ == Kind::kHandler && locked_) read_messages();
  long result = 0;
  for (size_t i = index(range.start); i < index(range.end) && result == 0; ++i) {
    if (!pages_[i].registered)
      result = -ENOENT;
    else
      pages_[i].is_protected = on;
    if (on && result == 0 && !stopped_ && (noted.count(i) != 0 || open.count(i) != 0))
      wrong.push_back("protected ahead of the stop: page " + std::to_string(i) +
                      ", to which the kernel writes");
  }
  beside();
  return result;
}

long FakeKernel::protect(AddrRange range) {
  if (kind_ == Kind::kGuard && !locked_) wrong.push_back("protected without the lock");
  const long r = write_protect(range, true);
  if (r != 0 && kind_ == Kind::kGuard) unprotect(range);
  return r;
}

long FakeKernel::unprotect(AddrRange range) {
  const long r = write_protect(range, false);
  if (r != 0 && kind_ == Kind::kGuard) {
    for (size_t i = index(range.start); i < index(range.end); ++i) {
      if (pages_[i].registered) pages_[i].is_protected = false;
    }
  }
  return r;
}

bool FakeKernel::read_messages() {
  bool any_read = false;
  for (size_t n = 0; n < kThreads; ++n) {
    Thread& t = threads_[n];
    if (t.queued || (t.doing != Doing::kFaulting && t.doing != Doing::kTelling)) continue;
    any_read = true;
    if (t.doing == Doing::kFaulting) {
      t.queued = true;
      backlog_.push_back(n);
      continue;
    }
    if (arming_ != nullptr) arming_->removed(range_of(t.first, t.count));
    t.doing = t.call == Call::kGiveBack ? Doing::kCalling : Doing::kNothing;
  }
  return any_read;
}

bool FakeKernel::serve_backlog() {
  if (backlog_.empty()) return false;
  while (!backlog_.empty()) {
    Thread& t = threads_[backlog_.front()];
    backlog_.erase(backlog_.begin());
    t.queued = false;  // it may fault again
    if (arming_ != nullptr) arming_->fault(range_of(t.first, 1).start + 8);
  }
  return true;
}

void FakeKernel::serve_waiting() {
  if (arming_ != nullptr && time_may_be_up && now_and_then(30)) arming_->limit(0);
  if (kind_ == Kind::kHandler) {
    read_messages();
    serve_backlog();
  } else {
    for (Thread& t : threads_) {
      if (t.doing == Doing::kWantsTurn) take_turn(t);
    }
  }
}

void FakeKernel::begin_serving(Served served) {
  beside();
  if (locked_) wrong.push_back("the lock is taken twice");
  locked_ = true;
  if (kind_ == Kind::kGuard) return;
  do {
    serve_waiting();
  } while (served == Served::kAll && (read_messages() || !backlog_.empty()));
}

void FakeKernel::end_serving() {
  if (kind_ == Kind::kHandler) {
    read_messages();
    serve_backlog();
  }
  locked_ = false;
  beside();
}

void FakeKernel::each_busy(void (*visit)(void*, AddrRange), void* context) {
  if (kind_ == Kind::kHandler) return;
  for (size_t i : open) visit(context, range_of(i, 1));
  for (const Thread& t : threads_) {
    if (t.doing == Doing::kCalling && t.opened) visit(context, range_of(t.first, t.count));
  }
}

}  // namespace ckpt::test

// What Arming asks of the rest of the library, answered by the fake kernel.
namespace ckpt {

using test::FakeKernel;

Result<void> PageScan::scan(const Mapping& m, ArenaVector<AddrRange>& runs) {
  test::kernel->beside();
  saw_protected_ = false;
  for (size_t i = FakeKernel::index(m.range.start); i < FakeKernel::index(m.range.end); ++i) {
    if (!test::kernel->page(i).exists) continue;
    saw_protected_ = saw_protected_ || test::kernel->page(i).is_protected;
    const AddrRange page = FakeKernel::range_of(i, 1);
    if (!runs.empty() && runs.back().end == page.start)
      runs.back().end = page.end;
    else if (!runs.push_back(page))
      return no_memory_for_segments();
  }
  test::kernel->beside();
  return {};
}

Result<void> PageScan::scan_unprotected(AddrRange range, bool announced, ArenaVector<AddrRange>& runs) {
  test::kernel->beside();
  const size_t end = std::min(FakeKernel::index(range.end), FakeKernel::kPages);
  for (size_t i = FakeKernel::index(range.start); i < end; ++i) {
    const FakeKernel::Page& p = test::kernel->page(i);
    if (p.is_protected || (announced && p.mapping == 0)) continue;
    const AddrRange page = FakeKernel::range_of(i, 1);
    if (!runs.empty() && runs.back().end == page.start)
      runs.back().end = page.end;
    else if (!runs.push_back(page))
      return no_memory_for_segments();
  }
  return {};
}

size_t mapping_at(std::span<const Mapping> map, Addr a) {
  return static_cast<size_t>(
      std::partition_point(map.begin(), map.end(), [a](const Mapping& m) { return m.range.end <= a; }) -
      map.begin());
}

namespace futex_words {

Hold::Hold(AddrRange) {}
Hold::~Hold() {}

bool noted_in(AddrRange range) {
  const auto next = test::kernel->noted.lower_bound(FakeKernel::index(range.start));
  return next != test::kernel->noted.end() && *next < FakeKernel::index(range.end);
}

}  // namespace futex_words
}  // namespace ckpt
