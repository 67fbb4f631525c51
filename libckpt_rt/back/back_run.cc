#include "libckpt_rt/back/back_run.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>

#include "base/clock.h"
#include "image/write/directory/image_directory.h"
#include "job/identity/own_job.h"
#include "job/session/creation.h"
#include "libckpt_rt/core/directory/log.h"
#include "libckpt_rt/core/directory/own_directory.h"
#include "libckpt_rt/core/kernel/proc_text.h"
#include "libckpt_rt/core/kernel/task_list.h"
#include "libckpt_rt/core/process/fork/own_page.h"
#include "libckpt_rt/core/process/library_range.h"
#include "libckpt_rt/core/process/loading.h"
#include "libckpt_rt/core/process/this_process.h"
#include "libckpt_rt/core/threads/of_ours/own_threads.h"
#include "libckpt_rt/guard/guard.h"
#include "libckpt_rt/stop/stop_state.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {

// Where programs seldom map anything: what the image wants to map must not be ours.
constexpr uint64_t kNear = 0x2000'0000'0000, kWindowNear = 0x2100'0000'0000;
constexpr uint64_t kListBytes = 192 << 20;

Error no_room() {
  return make_error(ExitCode::kInternal, ENOMEM,
                    "no address space left to go back in; raise the limit (ulimit -v)");
}

Error hung_up() {
  return make_error(ExitCode::kUnavailable, 0, "the asker hung up; the program goes on as it was");
}

long receive(int socket, void* to, size_t bytes) {
  long got;
  while ((got = sys::call(__NR_recvfrom, socket, to, bytes, MSG_WAITALL, 0L, 0L)) == -EINTR) {
  }
  return got;
}

}  // namespace

BackRun::~BackRun() {
  if (parked_ && !committed_) {
    close_received();
    threads_.unpark();
  }
  if (stopped_) stop_state.world.release();
  if (held_ && !committed_) {
    job::creation::release();
    job::creation::release_end();
  }
  if (watch_ != nullptr && !committed_) {
    watch_->look_up_in(nullptr);
    watch_->become_kept();
  }
  if (window_ != nullptr) sys::call(__NR_munmap, window_, window_bytes_);
  for (int fd : {window_fd_, memory_fd_}) {
    if (fd >= 0) sys::call(__NR_close, fd);
  }
}

Result<void> BackRun::tell(const BackMessage& message) {
  if (sys::call(__NR_sendto, socket_, &message, sizeof(message), MSG_NOSIGNAL, 0L, 0L) != sizeof(message))
    return hung_up();
  return {};
}

Result<BackReply> BackRun::ask(const BackMessage& message) {
  CKPT_TRY(tell(message));
  return hear_reply();
}

Result<BackReply> BackRun::hear_reply() {
  BackReply reply;
  if (receive(socket_, &reply, sizeof(reply)) != sizeof(reply)) return hung_up();
  if (reply.kind != static_cast<uint32_t>(BackReplyKind::kGo) &&
      reply.kind != static_cast<uint32_t>(BackReplyKind::kCutting)) {
    answered_ = true;  // it knows why
    return make_error(ExitCode::kUnavailable, 0, "the asker gave up; the program goes on as it was");
  }
  return reply;
}

// Never again runs anything of the program: what it would see is partly of then, partly of now.
void BackRun::die(const char* what, long error, uint64_t where) {
  char text[320];
  const auto end =
      fmt::format_to_n(text, sizeof(text) - 1,
                       "error {} half of the program was put back already when {} failed at {:#x} ({}): it "
                       "was killed; restart it from an image with ckpt-restart\n",
                       static_cast<int>(ExitCode::kInternal), what, where,
                       error < 0 ? errno_name(static_cast<int>(-error)) : "no error");
  const size_t n = end.size < sizeof(text) - 1 ? end.size : sizeof(text) - 1;
  gate_.fail();
  sys::call(__NR_sendto, socket_, text, n, MSG_NOSIGNAL, 0L, 0L);
  const long dir = sys::call(__NR_openat, AT_FDCWD, directory_, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0L);
  if (!sys::failed(dir)) log_line(static_cast<int>(dir), {text + 9, n - 10});
  for (;;) sys::call(__NR_kill, pid_, SIGKILL);
}

Result<void> BackRun::take_order() {
  timeval patience{10, 0};
  sys::call(__NR_setsockopt, socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  iovec part{&order_, sizeof(order_)};
  alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  long got;
  while ((got = sys::call(__NR_recvmsg, socket_, &message, MSG_CMSG_CLOEXEC | MSG_WAITALL)) == -EINTR) {
  }
  const cmsghdr* c = CMSG_FIRSTHDR(&message);
  if (got != sizeof(order_) || c == nullptr || c->cmsg_type != SCM_RIGHTS) return hung_up();
  patience.tv_sec = order_.patience_s;
  sys::call(__NR_setsockopt, socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  int fds[2] = {-1, -1};
  const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
  std::memcpy(fds, CMSG_DATA(c), std::min<size_t>(count, 2) * sizeof(int));
  const bool only_stands = (order_.flags & kBackOnlyStands) != 0;
  if (!only_stands) window_fd_ = fds[0];
  const int gate = only_stands ? fds[0] : fds[1];
  if (order_.members != 0) {
    const long r = gate_.open(gate, order_.member, order_.members);
    if (sys::failed(r)) return no_room();
  }
  if (only_stands) return {};
  if (std::memcmp(order_.run_id, this_process.run_id, sizeof(order_.run_id)) != 0) {
    return make_error(ExitCode::kUsage, 0,
                      "that image is of another run of a program; ckpt ls shows which are of this one");
  }
  if (order_.restart_state != reinterpret_cast<uint64_t>(&this_process)) {
    return make_error(
        ExitCode::kIncompatible, 0,
        "the image was taken with another build of libckpt_rt.so, or with the library at another place; "
        "restart it with ckpt-restart");
  }
  return {};
}

void BackRun::own_ranges() {
  own_ = ArenaVector<AddrRange>(arena_);
  unwritable_ = ArenaVector<AddrRange>(arena_);
  const Addr window = Addr::of(window_);
  for (AddrRange r : {own_page::range(), arena_.range(), AddrRange{window, window + window_bytes_},
                      guard::own_range(), job::own_job.sign, gate_.range()}) {
    if (!r.empty() && !own_.push_back(r)) return;
  }
  const size_t mine = own_.size();
  if (watch_ != nullptr) watch_->own_ranges(own_);
  for (size_t i = mine; i < own_.size(); ++i) {
    own_[i] = {own_[i].start, own_[i].end.page_up()};
  }
}

Result<void> BackRun::prepare() {
  loading::await_end();
  pid_ = this_process.pid;
  filtered_ = is_filtered();
  own_directory::copy_name(directory_);
  // A watch knows what was written since the image that it builds on, and nothing of others.
  if (Watch::is_kept()) {
    watch_ = Watch::take();
    if (watch_->parent.sequence != order_.sequence || watch_->parent.state != order_.state) {
      watch_->end();
      watch_ = nullptr;
    }
  }
  // Addresses that the image wants to map must not be ours.
  if (watch_ != nullptr) watch_->spare.release();
  cost_.watched = watch_ != nullptr ? 1 : 0;
  if (!arena_.reserve(kListBytes, kNear)) return no_room();
  window_bytes_ = kBackDataAt + order_.data_bytes;
  const long p = sys::call(__NR_mmap, kWindowNear, window_bytes_, PROT_READ | PROT_WRITE,
                           MAP_SHARED | MAP_NORESERVE, window_fd_, 0L);
  if (sys::failed(p)) return no_room();
  window_ = reinterpret_cast<std::byte*>(p);
  plan_ = window_ + kBackMetaBytes;
  data_ = window_ + kBackDataAt;
  memory_fd_ =
      static_cast<int>(sys::call(__NR_openat, AT_FDCWD, "/proc/thread-self/mem", O_RDWR | O_CLOEXEC, 0L));
  if (memory_fd_ < 0) {
    return cannot_open("/proc/thread-self/mem", memory_fd_);
  }
  present_ = new (arena_.allocate(sizeof(PresentState), alignof(PresentState))) PresentState;
  const auto threads = static_cast<size_t>(std::max(count_tasks(), 1l));
  CKPT_TRY(threads_.reserve(arena_, threads + 64));
  own_ranges();
  CKPT_TRY(map_before_.read(own_.span()));
  return map_.read_ahead(own_.span());
}

Result<void> BackRun::list_unwritten(bool sure, uint64_t at, BackMessage& message) {
  message.ranges = at;
  message.range_count = 0;
  message.watched = watch_ != nullptr ? 1 : 0;
  if (watch_ == nullptr) return {};
  ArenaVector<AddrRange> unwritten(arena_);
  CKPT_TRY(watch_->arming.list_unwritten(sure, unwritten));
  const uint64_t bytes = unwritten.size() * sizeof(AddrRange);
  if (at + bytes > kBackMetaBytes) return {};  // then all of it is put back
  std::memcpy(window_ + at, unwritten.data(), bytes);
  message.range_count = unwritten.size();
  return {};
}

Result<void> BackRun::tell_ahead() {
  message_ = {};
  message_.says = static_cast<uint32_t>(BackSays::kAhead);
  late_ = library_data_range();
  message_.late_start = late_.start.page_down().value;
  message_.late_end = late_.end.page_up().value;
  CKPT_TRY(list_unwritten(false, 0, message_));
  auto reply = ask(message_);
  if (!reply.ok()) return reply.error();
  // So much is there already: in the pause it is not to fault. A hint.
  constexpr long kPopulateRead = 22;  // MADV_POPULATE_READ of Linux 5.14
  sys::call(__NR_madvise, data_, reply->fills, kPopulateRead);
  return {};
}

Result<void> BackRun::commit() {
  message_ = {};
  message_.says = static_cast<uint32_t>(BackSays::kMore);
  auto reply = ask(message_);
  bool cutting = false;
  // The asker may have much to cut: as long as the asker is there, this process waits.
  while ((reply.ok() && reply->kind == static_cast<uint32_t>(BackReplyKind::kCutting)) ||
         (cutting && !reply.ok() && !answered_ && !asker_is_gone())) {
    cutting = true;
    reply = hear_reply();
  }
  if (!reply.ok() && cutting && !answered_) die("hearing of the asker, who was cutting files,", -EPIPE, 0);
  if (!reply.ok()) return reply.error();
  committed_ = true;
  return {};
}

void BackRun::note_end(Part part) { part_ends_ns_[part] = now_ns(); }

void BackRun::log_parts() {
  int64_t us[kParts];
  for (int64_t i = 0, before = began_ns_; i < kParts; before = part_ends_ns_[i++])
    us[i] = (part_ends_ns_[i] - before) / 1000;
  auto directory = open_image_directory(directory_);
  if (!directory.ok()) return;
  log_format(directory->get(),
             "back at checkpoint {}{}, pause {} us: threads {}, description {}, unwritten {}, plan {}, "
             "parking {}, files {}, "
             "memory {}, library and descriptors {}, threads {}; {} bytes put back",
             order_.sequence, cost_.watched != 0 ? " (what was written since)" : "", cost_.pause_ns / 1000,
             us[kThreads], us[kDescription], us[kUnwritten], us[kPlan], us[kParked], us[kCommitted],
             us[kMemory], us[kLibrary], us[kRest], cost_.bytes);
}

Result<BackCost> BackRun::run() {
  CKPT_TRY(take_order());
  if ((order_.flags & kBackOnlyStands) != 0) return stand_by();
  CKPT_TRY(prepare());
  CKPT_TRY(tell_ahead());
  if (gate_.is_open()) CKPT_TRY(hold());
  CKPT_TRY(stand());
  CKPT_TRY(hear_plan());
  note_end(kPlan);
  CKPT_TRY(make_threads());
  CKPT_TRY(check_descriptor_limit());
  CKPT_TRY(receive_descriptors());
  CKPT_TRY(check_files());
  CKPT_TRY(check_channels());
  note_end(kParked);
  CKPT_TRY(gate_.is_open() ? commit_job() : commit());
  note_end(kCommitted);

  // From here on: die(), no return with an error, nothing of the library's data but where it says so.
  stopped_ = false;  // the stop in the library's data will be another
  const size_t before = threads_.threads().size();
  threads_.end_others(list<int32_t>(head_.threads, head_.thread_count));
  cost_.ended = static_cast<uint32_t>(before - threads_.threads().size());
  lengthen_files();
  change_memory(false);
  fill_all();
  protect_again();
  note_end(kMemory);
  put_library_back();
  if (gate_.is_open()) wait_for_ended();
  change_descriptors();
  for (part_ = 1; gate_.is_open() && part_ < kBackParts; ++part_) {
    come_to(part_, part_ == 1);
    change_descriptors();
  }
  // Behind this barrier no member sends anything to another.
  if (gate_.is_open()) {
    come_to(kBackParts, false);
    threads_.run_on(
        *threads_.executor(), [](void* self) { static_cast<BackRun*>(self)->close_connections(); }, this);
  }
  restore_rest();
  note_end(kLibrary);
  cost_.threads = static_cast<uint32_t>(threads_.threads().size());
  cost_.generation = this_process.generation;
  cost_.notes |= threads_.resume(&before_go, &all_ready, this);
  note_end(kRest);
  cost_.pause_ns = part_ends_ns_[kRest] - began_ns_;
  log_parts();
  return cost_;
}

}  // namespace ckpt
