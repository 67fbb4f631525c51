#include "cli/back/process_back.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "base/memory/bytes.h"
#include "base/protocol/back_gate.h"
#include "base/protocol/library_notes.h"
#include "cli/back/program_look.h"
#include "cli/text/failure.h"
#include "cli/text/text_out.h"
#include "image/read/manifest.h"

namespace ckpt::cli {

namespace {
constexpr int64_t kLeastPatienceNs = 120'000'000'000;
constexpr uint64_t kHugePage = 2 << 20;
static_assert(kBackDataAt % kHugePage == 0);

uint64_t huge_up(uint64_t bytes) { return (bytes + kHugePage - 1) & ~(kHugePage - 1); }

}  // namespace

Result<ScopedFd> open_gate(const BackMember& part, bool with_lock) {
  ScopedFd fd(::open(fmt::format("/proc/self/fd/{}", part.gate).c_str(), O_RDWR | O_CLOEXEC));
  struct flock range {};
  range.l_type = F_WRLCK;
  range.l_whence = SEEK_SET;
  range.l_start = part.member;
  range.l_len = 1;
  if (fd.valid() && (!with_lock || fcntl(fd.get(), F_OFD_SETLK, &range) == 0)) return fd;
  return make_error(ExitCode::kSystem, errno, "no memory that the job's processes have in common ({})",
                    errno_name(errno));
}

bool send_order(int connection, const BackOrder& order, const std::vector<int>& fds) {
  iovec part{const_cast<BackOrder*>(&order), sizeof(order)};
  alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
  cmsghdr* c = CMSG_FIRSTHDR(&message);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
  std::memcpy(CMSG_DATA(c), fds.data(), fds.size() * sizeof(int));
  return sendmsg(connection, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof(order));
}

ProcessBack::~ProcessBack() {
  if (mapped_ != nullptr) munmap(mapped_, mapped_bytes_);
}

Result<void> ProcessBack::open(const std::string& path) {
  started_ns_ = now_ns();
  auto image = ImageChain::open(path);
  if (!image.ok()) return image.error();
  image_ = std::make_unique<ImageChain>(std::move(*image));
  CKPT_TRY(check_owner(*image_, trust_));
  return check_can();
}

Result<void> ProcessBack::begin(const BackMember* part) {
  CKPT_TRY(open_window(part != nullptr ? part->members : 1));
  AskOptions options;
  options.back_of_job = part != nullptr;
  auto connection = call(target_, ControlOperation::kBack, limits_, options);
  if (!connection.ok()) return connection.error();
  connection_ = std::move(*connection);
  CKPT_TRY(order(part));
  CKPT_TRY(hear(BackSays::kAhead));
  late_ = {Addr{heard_.late_start}, Addr{heard_.late_end}};
  source_ = std::make_unique<PageSource>(*image_, std::span(data_, window_bytes_ - kBackDataAt), late_);
  CKPT_TRY(source_->load(wanted_memory(*image_, unwritten())));
  join_pages();
  return reply(0, source_->used());
}

Result<void> ProcessBack::hear_held() { return hear(BackSays::kHeld); }
Result<void> ProcessBack::let_stand() { return reply(); }
Result<void> ProcessBack::hear_stopped() { return hear(BackSays::kStopped); }
Result<void> ProcessBack::let_look() { return reply(); }

Result<void> ProcessBack::hear_standing() {
  CKPT_TRY(hear(BackSays::kStanding));
  auto now = parse_meta({window_, heard_.meta}, "the program's description");
  if (!now.ok()) return now.error();
  now_ = std::move(*now);
  return {};
}

Result<void> ProcessBack::check_can() const {
  for (const ParsedNote& note : image_->meta().notes) {
    if (note.severity >= kNoRestart)
      return failure(ExitCode::kUnsupported, image_->path(), std::string(note.text),
                     "take another checkpoint");
  }
  return {};
}

Result<void> ProcessBack::open_window(uint32_t members) {
  // At most half of what is free, but always enough for the library's own data. Pages take memory only as
  // they are filled.
  const uint64_t most = std::max<uint64_t>(available_memory() / 2 / members, 64ull << 20);
  const uint64_t bytes = std::min<uint64_t>(most, image_->memory_bytes() + (4ull << 20));
  window_bytes_ = kBackDataAt + huge_up(bytes);
  memfd_ = ScopedFd(memfd_create("ckpt back", MFD_CLOEXEC));
  if (!memfd_.valid() || ftruncate(memfd_.get(), static_cast<off_t>(window_bytes_)) != 0) return no_memory();
  // At a place where huge pages of the file are huge pages of the mapping.
  mapped_bytes_ = window_bytes_ + kHugePage;
  void* p = mmap(nullptr, mapped_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return no_memory();
  mapped_ = static_cast<std::byte*>(p);
  window_ = reinterpret_cast<std::byte*>(huge_up(reinterpret_cast<uint64_t>(p)));
  p = mmap(window_, window_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED,
           memfd_.get(), 0);
  if (p == MAP_FAILED) return no_memory();
  plan_ = window_ + kBackMetaBytes;
  data_ = window_ + kBackDataAt;
  return {};
}

// What is loaded becomes huge pages: the program copies from them in half of the time. A hint.
void ProcessBack::join_pages() const {
  constexpr int kCollapse = 25;  // MADV_COLLAPSE of Linux 6.1
  madvise(data_, huge_up(source_->used()), kCollapse);
}

Error ProcessBack::no_memory() const {
  return make_error(ExitCode::kSystem, errno, "no memory for the pages of {} ({})", image_->path(),
                    errno_name(errno));
}

Result<void> ProcessBack::order(const BackMember* part) {
  const ProcessRecord& p = image_->meta().process.record;
  BackOrder order{};
  order.patience_s = static_cast<uint32_t>(std::max(limits_.answer_ns, kLeastPatienceNs) / 1'000'000'000);
  order.data_bytes = window_bytes_ - kBackDataAt;
  order.sequence = image_->brief().sequence;
  order.state = image_->brief().meta_checksum;
  std::memcpy(order.run_id, image_->brief().run_id, sizeof(order.run_id));
  order.restart_entry = p.restart_entry;
  order.restart_state = p.restart_state;
  order.vdso_start = p.vdso_start;
  order.vdso_hash = p.vdso_hash;
  std::vector<int> fds{memfd_.get()};
  ScopedFd gate;
  if (part != nullptr) {
    order.member = part->member;
    order.members = part->members;
    auto opened = open_gate(*part, true);
    if (!opened.ok()) return opened.error();
    gate = std::move(*opened);
    fds.push_back(gate.get());
  }
  if (send_order(connection_.get(), order, fds)) return {};
  return broke_off();
}

Error ProcessBack::broke_off() const {
  return failure(ExitCode::kInternal, fmt::format("{} ({})", target_.pid, target_.name), "broke off",
                 "see the log in its image directory");
}

Result<void> ProcessBack::hear(BackSays what) {
  CKPT_TRY(read_exactly(target_, connection_.get(), limits_, &heard_, sizeof(heard_)));
  if (heard_.says == static_cast<uint32_t>(BackSays::kError)) {
    heard_.text[sizeof(heard_.text) - 1] = '\0';
    return make_error(static_cast<ExitCode>(heard_.code), 0, "{} ({}): {}", target_.pid,
                      printable(target_.name), printable(heard_.text));
  }
  // A text line ("error CODE TEXT") in place of the struct: the program was killed half way.
  if (heard_.says != static_cast<uint32_t>(what)) return broke_off();
  return {};
}

Result<void> ProcessBack::reply(uint32_t more, uint64_t fills, uint64_t fill_count) {
  const BackReply reply{static_cast<uint32_t>(BackReplyKind::kGo), more, fills, fill_count};
  if (send(connection_.get(), &reply, sizeof(reply), MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof(reply)))
    return {};
  return broke_off();
}

void ProcessBack::give_up() {
  if (!connection_.valid()) return;
  const BackReply reply{static_cast<uint32_t>(BackReplyKind::kGiveUp), 0, 0, 0};
  (void)send(connection_.get(), &reply, sizeof(reply), MSG_NOSIGNAL);
}

// Half of the program's state is of then, half of now: it must not go on.
void ProcessBack::kill() const { syscall(SYS_pidfd_send_signal, target_.pidfd.get(), SIGKILL, nullptr, 0); }

std::vector<AddrRange> ProcessBack::ranges(uint64_t at, uint64_t count) const {
  std::vector<AddrRange> all(count);
  if (count != 0) std::memcpy(static_cast<void*>(all.data()), window_ + at, count * sizeof(AddrRange));
  return all;
}

// Copies bytes into the plan; `at` 0: behind what is there. Returns where they are; 0: no room.
uint64_t ProcessBack::put(Blob bytes, uint64_t at) {
  if (at == 0) at = plan_used_;
  if (at + bytes.size() > kBackPlanBytes) {
    plan_full_ = true;
    return 0;
  }
  if (!bytes.empty()) std::memcpy(plan_ + at, bytes.data(), bytes.size());
  plan_used_ = std::max(plan_used_, uint64_t{(at + bytes.size() + 15) & ~15ull});
  return at;
}

Result<void> ProcessBack::check_same_process() const {
  const ProcessRecord &was = image_->meta().process.record, &is = now_->process.record;
  auto changed = [&](const char* what, const char* remedy) {
    return failure(ExitCode::kUnsupported, fmt::format("{} ({})", target_.pid, target_.name), what, remedy);
  };
  constexpr const char* kRestart = "restart the image with ckpt-restart";
  if (was.vdso_start != is.vdso_start || was.vdso_hash != is.vdso_hash ||
      was.restart_entry != is.restart_entry)
    return failure(ExitCode::kIncompatible, image_->path(),
                   "is of another kernel, or of another start of the program", kRestart);
  if (std::memcmp(was.uid, is.uid, sizeof(was.uid)) != 0 ||
      std::memcmp(was.gid, is.gid, sizeof(was.gid)) != 0 ||
      image_->meta().process.groups != now_->process.groups)
    return changed("has changed its user or groups since the checkpoint", kRestart);
  if (was.cap_effective != is.cap_effective || was.cap_permitted != is.cap_permitted)
    return changed("has changed its capabilities since the checkpoint", kRestart);
  if (image_->meta().process.root != now_->process.root)
    return changed("has changed its root directory since", kRestart);
  // Other processes may have acted on them since, and what the kernel undoes at exit cannot be told to it
  // twice.
  if (!image_->meta().system_v.empty() || !now_->system_v.empty())
    return changed("uses System V semaphores or message queues, which cannot go back in place", kRestart);
  const bool exited = (image_->meta().threads.front().record.flags & kThreadLeaderExited) != 0;
  const bool exited_now = (now_->threads.front().record.flags & kThreadLeaderExited) != 0;
  if (!exited && exited_now)
    return changed("has ended its main thread since, which nobody can make again", kRestart);
  return {};
}

Result<void> ProcessBack::compare(const SharedParts& shared, ReplacedFiles replaced) {
  CKPT_TRY(check_same_process());
  // The program asks the kernel meanwhile what is unwritten: that is wanted last.
  CKPT_TRY(compare_open_files(shared, std::move(replaced)));
  CKPT_TRY(say_what_cannot(shared.of_job));
  const auto parts = kernel_mappings(target_.pid);
  CKPT_TRY(hear(BackSays::kUnwritten));
  auto memory = compare_memory(*image_, *now_, unwritten(), ranges(heard_.own, heard_.own_count), parts,
                               late_, shared.objects);
  if (!memory.ok()) return memory.error();
  memory_ = std::move(*memory);
  CKPT_TRY(source_->load(memory_->wanted));
  missing_ = source_->missing(memory_->wanted);
  return missing_.empty() ? Result<void>() : source_->check(missing_);
}

Result<void> ProcessBack::compare_open_files(const SharedParts& shared, ReplacedFiles replaced) {
  CKPT_TRY(working_.open_above(std::max(highest_descriptor(image_->meta()), highest_descriptor(*now_))));
  descriptor_options_.working = &working_;
  const std::string& path = image_->path();
  descriptor_options_.image_directory =
      path.rfind('/') == std::string::npos ? "." : path.substr(0, path.rfind('/'));
  descriptor_options_.sequence = image_->brief().sequence;
  descriptor_options_.say = [this](std::string_view text) { notes_.emplace_back(text); };
  for (const auto& m : image_->meta().mappings) {
    if (m.record.object != 0) descriptor_options_.mapped_objects.insert(m.record.object);
  }
  auto descriptors = compare_descriptors(image_->meta(), *now_, target_.pid, descriptor_options_, shared,
                                         std::move(replaced));
  if (!descriptors.ok()) return descriptors.error();
  descriptors_ = std::move(*descriptors);
  made_ = std::move(descriptors_->made);
  return {};
}

// Of a member of a job that goes back alone any other member may be one.
std::set<pid_t> ProcessBack::children_then() const {
  std::set<pid_t> all;
  for (const ParsedChild& child : image_->meta().children) all.insert(child.record.pid);
  if (auto manifest = read_manifest(descriptor_options_.image_directory); manifest.ok()) {
    for (const ManifestMember& member : manifest->members) all.insert(member.pid);
  }
  return all;
}

Result<void> ProcessBack::say_what_cannot(bool of_job) {
  std::vector<std::string> cannot = descriptors_->cannot;
  if (!of_job) {
    auto children = children_since(target_.pid, children_then(), image_->meta().process.record.realtime_ns);
    cannot.insert(cannot.end(), children.begin(), children.end());
  }
  if (cannot.empty()) return {};
  if (anyway_) {
    notes_.insert(notes_.end(), cannot.begin(), cannot.end());
    return {};
  }
  return failure(
      ExitCode::kUnsupported, fmt::format("{} ({})", target_.pid, target_.name),
      cannot.size() == 1 ? cannot[0] : fmt::format("{}, and {} more", cannot[0], cannot.size() - 1),
      "nothing was changed; --anyway goes back without that");
}

Result<void> ProcessBack::write_plan(const std::vector<int32_t>& ended,
                                     std::span<const AddressLine> addresses) {
  plan_used_ = sizeof(BackPlan);
  BackPlan head{};
  std::vector<BackMemoryOp> memory_ops;
  for (const auto& [op, path] : memory_->ops) {
    memory_ops.push_back(op);
    if (!path.empty()) memory_ops.back().path = put(std::as_bytes(std::span(path.c_str(), path.size() + 1)));
  }
  head.memory = put(std::as_bytes(std::span(memory_ops)));
  head.memory_count = memory_ops.size();
  std::vector<BackDescriptorOp> descriptor_ops;
  for (const auto& [op, data] : descriptors_->ops) {
    descriptor_ops.push_back(op);
    descriptor_ops.back().data = put(data);
    descriptor_ops.back().bytes = data.size();
  }
  head.descriptors = put(std::as_bytes(std::span(descriptor_ops)));
  head.descriptor_count = descriptor_ops.size();
  std::vector<int32_t> tids;
  for (const auto& t : image_->meta().threads) {
    if ((t.record.flags & kThreadLeaderExited) == 0) tids.push_back(t.record.tid);
  }
  std::sort(tids.begin(), tids.end());
  head.threads = put(std::as_bytes(std::span(tids)));
  head.thread_count = tids.size();
  head.ended = put(std::as_bytes(std::span(ended)));
  head.ended_count = ended.size();
  head.addresses = put(std::as_bytes(addresses));
  head.address_count = addresses.size();
  const auto fills = source_->fills(memory_->wanted);
  head.fills = put(std::as_bytes(std::span(fills)));
  head.fill_count = fills.size();
  fills_at_ = plan_used_;
  head.more = missing_.empty() ? 0 : 1;
  head.received = static_cast<uint32_t>(made_.size());
  head.first_free = descriptors_->first_free;
  if (!made_.empty()) {
    if (getrandom(&head.cookie, sizeof(head.cookie), 0) != sizeof(head.cookie)) return broke_off();
    auto listener = listen_near(target_, "ckpt_back", head.cookie);
    if (!listener.ok()) return listener.error();
    listener_ = std::move(*listener);
  }
  if (plan_full_)
    return make_error(ExitCode::kUnavailable, 0, "{}: too much has changed to go back in place; restart it",
                      image_->path());
  std::memcpy(plan_, &head, sizeof(head));
  return {};
}

// False: the library has sent a message instead, in which it says why it cannot go back. True also without
// an answer in time: then accept_from() fails.
bool ProcessBack::will_connect() const {
  pollfd fds[2] = {{listener_.get(), POLLIN, 0}, {connection_.get(), POLLIN, 0}};
  const int64_t until = now_ns() + limits_.answer_ns;
  while (now_ns() < until) {
    if (poll(fds, 2, 1000) <= 0) continue;
    if (fds[0].revents != 0) return true;
    if (fds[1].revents != 0) return false;
  }
  return true;
}

Result<void> ProcessBack::hand_over() {
  if (made_.empty()) return {};
  if (!will_connect()) return {};
  auto accepted = accept_from(target_, listener_.get(), limits_);
  if (!accepted.ok()) return accepted.error();
  constexpr size_t kAtOnce = 64;
  for (size_t first = 0; first < made_.size(); first += kAtOnce) {
    const size_t count = std::min(kAtOnce, made_.size() - first);
    char byte = 0;
    iovec part{&byte, 1};
    alignas(cmsghdr) char control[CMSG_SPACE(kAtOnce * sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(count * sizeof(int));
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(count * sizeof(int));
    for (size_t i = 0; i < count; ++i) {
      const int fd = made_[first + i].get();
      std::memcpy(CMSG_DATA(c) + i * sizeof(int), &fd, sizeof(fd));
    }
    if (sendmsg(accepted->get(), &message, MSG_NOSIGNAL) != 1) return broke_off();
  }
  made_.clear();
  return {};
}

Result<void> ProcessBack::hand_plan(const std::vector<int32_t>& ended,
                                    std::span<const AddressLine> addresses) {
  CKPT_TRY(write_plan(ended, addresses));
  return reply();
}

Result<void> ProcessBack::hear_ready() {
  CKPT_TRY(hand_over());
  return hear(BackSays::kMore);
}

Result<void> ProcessBack::tell_cutting() {
  const BackReply cutting{static_cast<uint32_t>(BackReplyKind::kCutting), 0, 0, 0};
  if (send(connection_.get(), &cutting, sizeof(cutting), MSG_NOSIGNAL) ==
      static_cast<ssize_t>(sizeof(cutting)))
    return {};
  return broke_off();
}

Result<void> ProcessBack::cut_files(const std::set<uint64_t>& open_in_job) {
  descriptor_options_.in_place = true;
  descriptor_options_.open_in_job = &open_in_job;
  DescriptorBuilder builder(image_->meta(), descriptor_options_);
  auto done = builder.set_aside_journals();
  if (done.ok()) done = builder.put_back_changes();
  if (done.ok()) done = builder.cut_grown_files();
  if (done.ok()) builder.make_journals();
  was_cut_ = builder.has_changed_files();
  return done;
}

Result<void> ProcessBack::commit() { return reply(); }

Result<void> ProcessBack::send_pages() {
  CKPT_TRY(hear(BackSays::kMore));
  auto fills = source_->next(missing_);
  if (!fills.ok()) return fills.error();
  // The new fills take the place of the old ones; the plan before them stays, for it is still in use.
  plan_used_ = sizeof(BackPlan);
  const uint64_t at = put(std::as_bytes(std::span(*fills)), fills_at_);
  return reply(missing_.empty() ? 0u : 1u, at, fills->size());
}

Result<Answer> ProcessBack::answer() {
  auto answer = read_answer(target_, connection_.get(), limits_, {});
  if (!answer.ok()) return answer.error();
  answer->emplace_back("image", image_->path());
  answer->emplace_back("sequence", fmt::format("{}", image_->brief().sequence));
  answer->emplace_back("total_ns", fmt::format("{}", now_ns() - started_ns_));
  const uint64_t of_library = number_of(*answer, "library_notes");
  std::erase_if(*answer, [](const auto& line) { return line.first == "library_notes"; });
  for (const std::string& note : notes_) answer->emplace_back("note", note);
  for (const LibraryNoteText& t : kLibraryNoteTexts) {
    if ((of_library & t.note) != 0) answer->emplace_back("note", t.line);
  }
  return answer;
}

}  // namespace ckpt::cli
