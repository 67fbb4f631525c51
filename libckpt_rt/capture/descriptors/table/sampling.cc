#include "libckpt_rt/capture/descriptors/table/sampling.h"

#include <errno.h>
#include <fcntl.h>

#include "base/checks/check.h"
#include "libckpt_rt/capture/descriptors/table/notes.h"
#include "libckpt_rt/capture/descriptors/table/sample.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {
namespace {

constexpr size_t kAtOnce = 32;  // samples that a thread takes

// Everything that tells one file from another, and a way of opening it from another way.
bool same_file(const DescriptorSample& a, const DescriptorSample& b) {
  constexpr uint32_t kFixedFlags = O_ACCMODE | O_PATH | O_DIRECTORY;
  return a.device == b.device && a.inode == b.inode && a.rdev == b.rdev && a.mode == b.mode &&
         (a.links == 0) == (b.links == 0) && (a.open_flags & kFixedFlags) == (b.open_flags & kFixedFlags);
}

}  // namespace

void DescriptorSampling::SampleJob::run(void* argument) {
  auto& job = *static_cast<SampleJob*>(argument);
  for (;;) {
    // relaxed: whose turn it is; what is sampled is published by the end of OtherThreads::await.
    const size_t from = job.next.fetch_add(kAtOnce, std::memory_order_relaxed);
    if (from >= job.count) return job.check_order();
    for (size_t i = from; i < job.count && i < from + kAtOnce; ++i) {
      const CapturedDescriptor& d = job.entries[i];
      sample_own_descriptor(d.fd, d.asks_partner ? d.partner : -1, job.samples[i]);
    }
  }
}

bool DescriptorSampling::SampleJob::has_much_left() const {
  // relaxed: a hint.
  return next.load(std::memory_order_relaxed) + 2 * kAtOnce < count;
}

void DescriptorSampling::SampleJob::check_order() {
  for (;;) {
    // relaxed: as in run().
    const size_t i = next_check.fetch_add(1, std::memory_order_relaxed);
    if (i >= checks.size()) return;
    checks[i].ask(tid, entries);
  }
}

Result<void> DescriptorSampling::begin(OtherThreads sharers) {
  // Fresh samples go beside the old ones: both are compared in take().
  const size_t known = files_.entries().size();
  fresh_ = ArenaVector<DescriptorSample>(files_.arena());
  DescriptorSample empty{};
  if (!fresh_.reserve(known + 1)) return arena_full(files_.arena());
  for (size_t i = 0; i < known; ++i) CHECK(fresh_.push_back(empty));
  job_.entries = files_.entries().data();
  job_.samples = fresh_.data();
  job_.count = known;
  job_.tid = access_.tid();
  CKPT_TRY(files_.list_order_checks());
  job_.checks = files_.order_checks();
  job_.next.store(0, std::memory_order_relaxed);
  job_.next_check.store(0, std::memory_order_relaxed);
  is_under_way_ = true;
  sharers_ = sharers;
  if (sharers) {
    sharers.start(sharers.context, &SampleJob::run, &job_);
  } else {
    for (size_t i = 0; i < known; ++i) {
      if (!sample_stopped(files_.entries()[i].fd, fresh_[i])) fresh_[i].error = EBADF;
    }
  }
  return {};
}

void DescriptorSampling::await() {
  if (is_under_way_ && sharers_) {
    // A second one only now: on our processor it would hold us up.
    if (job_.has_much_left()) sharers_.start(sharers_.context, &SampleJob::run, &job_);
    sharers_.await(sharers_.context);
  }
  is_under_way_ = false;
}

void DescriptorSampling::take_known() {
  ArenaVector<CapturedDescriptor>& entries = files_.entries();
  size_t left = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    CapturedDescriptor& d = entries[i];
    if (fresh_[i].error != 0) {  // closed since prepare
      files_.note_change();
      if (d.proc_fd >= 0) sys::call(__NR_close, d.proc_fd);
      continue;
    }
    if (!same_file(d.now, fresh_[i])) {
      d.looked = false;
      files_.note_change();
    } else if (d.now.ctime_ns != fresh_[i].ctime_ns) {
      // A rename changes it, and so does a write, which sets the other time as well.
      d.path_in_doubt = true;
      if (fresh_[i].ctime_ns != fresh_[i].mtime_ns) d.named = false;
    }
    d.now = fresh_[i];
    d.read_again = d.read_again && d.looked;
    if (left != i) entries[left] = d;
    ++left;
  }
  entries.truncate(left);
}

Result<void> DescriptorSampling::take(OtherThreads sharers) {
  take_known();
  const size_t known = files_.entries().size();
  const long count = count_descriptors(access_.tid());
  if (count == static_cast<long>(known) + (hidden_ >= 0 ? 1 : 0) && count != 0) return {};
  return take_new(sharers);
}

// Some are new (or this kernel does not count): they are found, and sampled alone.
Result<void> DescriptorSampling::take_new(OtherThreads sharers) {
  ArenaVector<CapturedDescriptor>& entries = files_.entries();
  const size_t known = entries.size();
  ArenaVector<int> fds(files_.arena());
  long r = list_descriptors(access_.tid(), fds);
  if (r == -ENOMEM) return arena_full(files_.arena());
  if (r < 0) {
    return make_error(ExitCode::kSystem, static_cast<int>(r), "cannot list the descriptors of thread {} ({})",
                      access_.tid(), errno_name(static_cast<int>(r)));
  }
  // /proc lists in ascending order, so did prepare: one walk over both.
  size_t at = 0;
  for (int fd : fds) {
    if (fd == hidden_) continue;
    while (at < known && entries[at].fd < fd) ++at;
    if (at < known && entries[at].fd == fd) continue;
    CapturedDescriptor d = unknown_descriptor(fd);
    if (sharers) {
      SampleJob job{&d, &d.now, 1, {}, access_.tid(), {}, {}};
      sharers.run(&SampleJob::run, &job);
      if (d.now.error != 0) continue;
    } else if (!sample_stopped(fd, d.now)) {
      continue;
    }
    files_.note_change();
    if (!entries.push_back(d)) return arena_full(files_.arena());
  }
  return {};
}

bool DescriptorSampling::sample_stopped(int fd, DescriptorSample& sample) {
  DescriptorSample outside{};
  if (!sample_from_outside(access_.tid(), fd, access_.text(), files_.arena(), outside)) return false;
  // A duplicate shows what /proc does not (bytes queued, owner, seals). Threads stand still, nobody
  // can miss an end of file because of it.
  int duplicate = access_.borrow(CapturedDescriptor{}, fd);
  if (duplicate < 0) {
    sample = outside;
    return true;
  }
  sample_own_descriptor(duplicate, -1, sample);
  sample.fd_flags = outside.fd_flags;  // ours always has FD_CLOEXEC
  sys::call(__NR_close, duplicate);
  return sample.error == 0;
}

}  // namespace ckpt
