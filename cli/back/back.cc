// ckpt back: a running program becomes again what it was at a checkpoint, in place (docs/back.md).
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
#include <memory>
#include <nlohmann/json.hpp>

#include "base/back_protocol.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/settings.h"
#include "cli/ask/answer_json.h"
#include "cli/ask/asker.h"
#include "cli/back/descriptor_difference.h"
#include "cli/back/memory_difference.h"
#include "cli/back/page_source.h"
#include "cli/back/program_look.h"
#include "cli/commands.h"
#include "cli/image/key_option.h"
#include "cli/text/failure.h"
#include "cli/text/human.h"
#include "cli/text/text_out.h"
#include "restart/descriptors/builder.h"

namespace ckpt::cli {

namespace {

struct Options {
  std::string pid, image, timeout;
  bool json = false, anyway = false;
};

class Back {
 public:
  Back(const Options& options, const Target& target, const AskLimits& limits)
      : options_(options), target_(target), limits_(limits) {}
  ~Back() {
    if (window_ != nullptr) munmap(window_, window_bytes_);
  }

  Result<Answer> run(const std::string& path) {
    started_ns_ = now_ns();
    auto image = ImageChain::open(path);
    if (!image.ok()) return image.error();
    image_ = std::make_unique<ImageChain>(std::move(*image));
    CKPT_TRY(check_owner(*image_));
    CKPT_TRY(check_can());
    CKPT_TRY(open_window());
    auto connection = call(target_, ControlOperation::kBack, limits_);
    if (!connection.ok()) return connection.error();
    connection_ = std::move(*connection);
    CKPT_TRY(order());
    CKPT_TRY(hear(BackSays::kAhead));
    late_ = {Addr{heard_.late_start}, Addr{heard_.late_end}};
    source_ = std::make_unique<PageSource>(*image_, std::span(data_, window_bytes_ - kBackDataAt), late_);
    if (auto loaded = source_->load(wanted_memory(*image_, unwritten())); !loaded.ok())
      return give_up(loaded.error());
    CKPT_TRY(reply({static_cast<uint32_t>(BackReplyKind::kGo), 0, source_->used(), 0}));

    CKPT_TRY(hear(BackSays::kStanding));
    const int64_t standing_ns = now_ns();
    if (auto planned = plan(); !planned.ok()) return give_up(planned.error());
    planned_ns_ = now_ns() - standing_ns;
    CKPT_TRY(reply({static_cast<uint32_t>(BackReplyKind::kGo), 0, 0, 0}));
    CKPT_TRY(hand_over());
    CKPT_TRY(hear(BackSays::kMore));
    if (auto cut = cut_files(); !cut.ok()) {
      if (was_cut_) return kill_it(cut.error());
      return give_up(cut.error());
    }
    CKPT_TRY(reply({static_cast<uint32_t>(BackReplyKind::kGo), 0, 0, 0}));
    while (!missing_.empty()) {
      CKPT_TRY(hear(BackSays::kMore));
      auto fills = source_->next(missing_);
      if (!fills.ok()) return kill_it(fills.error());
      // The new fills take the place of the old ones; the plan before them stays, for it is still in use.
      plan_used_ = sizeof(BackPlan);
      const uint64_t at = put(std::as_bytes(std::span(*fills)), fills_at_);
      CKPT_TRY(
          reply({static_cast<uint32_t>(BackReplyKind::kGo), missing_.empty() ? 0u : 1u, at, fills->size()}));
    }
    auto answer = read_answer(target_, connection_.get(), limits_, {});
    if (!answer.ok()) return answer.error();
    answer->emplace_back("image", path);
    answer->emplace_back("sequence", fmt::format("{}", image_->brief().sequence));
    answer->emplace_back("total_ns", fmt::format("{}", now_ns() - started_ns_));
    for (const std::string& note : notes_) answer->emplace_back("note", note);
    return answer;
  }

 private:
  Result<void> check_can() const {
    for (const ParsedNote& note : image_->meta().notes) {
      if (note.severity >= 2)
        return failure(ExitCode::kUnsupported, image_->path(), std::string(note.text),
                       "take another checkpoint");
    }
    return {};
  }

  Result<void> open_window() {
    // At most half of what is free, but always enough for the library's own data. Pages take memory only as
    // they are filled.
    const uint64_t most = std::max<uint64_t>(available_memory() / 2, 64ull << 20);
    const uint64_t bytes = std::min<uint64_t>(most, image_->memory_bytes() + (4ull << 20));
    window_bytes_ = kBackDataAt + ((bytes + kPageSize - 1) & ~(kPageSize - 1));
    memfd_ = ScopedFd(memfd_create("ckpt back", MFD_CLOEXEC));
    if (!memfd_.valid() || ftruncate(memfd_.get(), static_cast<off_t>(window_bytes_)) != 0)
      return no_memory();
    void* p =
        mmap(nullptr, window_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, memfd_.get(), 0);
    if (p == MAP_FAILED) return no_memory();
    window_ = static_cast<std::byte*>(p);
    plan_ = window_ + kBackMetaBytes;
    data_ = window_ + kBackDataAt;
    return {};
  }
  Error no_memory() const {
    return make_error(ExitCode::kSystem, errno, "no memory for the pages of {} ({})", image_->path(),
                      errno_name(errno));
  }

  Result<void> order() {
    const ProcessRecord& p = image_->meta().process.record;
    BackOrder order{};
    order.data_bytes = window_bytes_ - kBackDataAt;
    order.sequence = image_->brief().sequence;
    order.state = image_->brief().meta_checksum;
    std::memcpy(order.run_id, image_->brief().run_id, sizeof(order.run_id));
    order.restart_entry = p.restart_entry;
    order.restart_state = p.restart_state;
    order.vdso_start = p.vdso_start;
    order.vdso_hash = p.vdso_hash;
    iovec part{&order, sizeof(order)};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    const int fd = memfd_.get();
    std::memcpy(CMSG_DATA(c), &fd, sizeof(fd));
    if (sendmsg(connection_.get(), &message, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof(order))) return {};
    return broke_off();
  }
  Error broke_off() const {
    return failure(ExitCode::kInternal, fmt::format("{} ({})", target_.pid, target_.name), "broke off",
                   "see the log in its image directory");
  }

  Result<void> hear(BackSays what) {
    CKPT_TRY(read_exactly(target_, connection_.get(), limits_, &heard_, sizeof(heard_)));
    if (heard_.says == static_cast<uint32_t>(BackSays::kError)) {
      heard_.text[sizeof(heard_.text) - 1] = '\0';
      return make_error(static_cast<ExitCode>(heard_.code), 0, "{} ({}): {}", target_.pid,
                        printable(target_.name), printable(heard_.text));
    }
    if (heard_.says != static_cast<uint32_t>(what)) {
      // A text line ("error CODE TEXT") in place of the struct: the program was killed half way.
      return broke_off();
    }
    return {};
  }
  Result<void> reply(const BackReply& reply) {
    if (send(connection_.get(), &reply, sizeof(reply), MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof(reply)))
      return {};
    return broke_off();
  }
  Error give_up(const Error& why) {
    (void)reply({static_cast<uint32_t>(BackReplyKind::kGiveUp), 0, 0, 0});
    return why;
  }
  // Half of the program's state is of then, half of now: it must not go on.
  Error kill_it(const Error& why) {
    syscall(SYS_pidfd_send_signal, target_.pidfd.get(), SIGKILL, nullptr, 0);
    return make_error(why.code, why.sys_errno, "{} ({}) was killed half way back: {}", target_.pid,
                      printable(target_.name), why.message());
  }

  std::vector<AddrRange> ranges(uint64_t at, uint64_t count) const {
    std::vector<AddrRange> all(count);
    if (count != 0) std::memcpy(static_cast<void*>(all.data()), window_ + at, count * sizeof(AddrRange));
    return all;
  }
  std::vector<AddrRange> unwritten() const { return ranges(heard_.ranges, heard_.range_count); }

  // Copies bytes into the plan; `at` 0: behind what is there. Returns where they are; 0: no room.
  uint64_t put(Blob bytes, uint64_t at = 0) {
    if (at == 0) at = plan_used_;
    if (at + bytes.size() > kBackPlanBytes) {
      plan_full_ = true;
      return 0;
    }
    if (!bytes.empty()) std::memcpy(plan_ + at, bytes.data(), bytes.size());
    plan_used_ = std::max(plan_used_, uint64_t{(at + bytes.size() + 15) & ~15ull});
    return at;
  }

  Result<void> check_same_process(const ImageMeta& now) const {
    const ProcessRecord &was = image_->meta().process.record, &is = now.process.record;
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
        image_->meta().process.groups != now.process.groups)
      return changed("has changed its user or groups since the checkpoint", kRestart);
    if (was.cap_effective != is.cap_effective || was.cap_permitted != is.cap_permitted)
      return changed("has changed its capabilities since the checkpoint", kRestart);
    if (image_->meta().process.root != now.process.root)
      return changed("has changed its root directory since", kRestart);
    // Other processes may have acted on them since, and what the kernel undoes at exit cannot be told to it
    // twice.
    if (!image_->meta().system_v.empty() || !now.system_v.empty())
      return changed("uses System V semaphores or message queues, which cannot go back in place", kRestart);
    const bool exited = (image_->meta().threads.front().record.flags & kThreadLeaderExited) != 0;
    const bool exited_now = (now.threads.front().record.flags & kThreadLeaderExited) != 0;
    if (!exited && exited_now)
      return changed("has ended its main thread since, which nobody can make again", kRestart);
    return {};
  }

  Result<void> plan() {
    const auto unwritten_now = unwritten();
    auto now = parse_meta({window_, heard_.meta}, "the program's description");
    if (!now.ok()) return now.error();
    CKPT_TRY(check_same_process(*now));
    auto memory = compare_memory(*image_, *now, unwritten_now, ranges(heard_.own, heard_.own_count),
                                 kernel_mappings(target_.pid), late_);
    if (!memory.ok()) return memory.error();
    CKPT_TRY(source_->load(memory->wanted));
    missing_ = source_->missing(memory->wanted);
    if (!missing_.empty()) CKPT_TRY(source_->check(missing_));

    CKPT_TRY(working_.open_above(std::max(highest_descriptor(image_->meta()), highest_descriptor(*now))));
    descriptor_options_.working = &working_;
    const std::string& path = image_->path();
    descriptor_options_.image_directory =
        path.rfind('/') == std::string::npos ? "." : path.substr(0, path.rfind('/'));
    descriptor_options_.sequence = image_->brief().sequence;
    descriptor_options_.say = [this](std::string_view text) {
      notes_.emplace_back(text);
      was_cut_ = was_cut_ || text.find("cut back") != text.npos;
    };
    for (const auto& m : image_->meta().mappings) {
      if (m.record.object != 0) descriptor_options_.mapped_objects.insert(m.record.object);
    }
    auto descriptors = compare_descriptors(image_->meta(), *now, target_.pid, descriptor_options_);
    if (!descriptors.ok()) return descriptors.error();
    made_ = std::move(descriptors->made);
    CKPT_TRY(say_what_cannot(descriptors->cannot));
    return write_plan(*memory, *descriptors);
  }

  Result<void> say_what_cannot(std::vector<std::string> cannot) {
    auto children = children_since(target_.pid, image_->meta().process.record.realtime_ns);
    cannot.insert(cannot.end(), children.begin(), children.end());
    if (cannot.empty()) return {};
    if (options_.anyway) {
      notes_.insert(notes_.end(), cannot.begin(), cannot.end());
      return {};
    }
    return failure(
        ExitCode::kUnsupported, fmt::format("{} ({})", target_.pid, target_.name),
        cannot.size() == 1 ? cannot[0] : fmt::format("{}, and {} more", cannot[0], cannot.size() - 1),
        "nothing was changed; --anyway goes back without that");
  }

  Result<void> write_plan(const MemoryDifference& memory, const DescriptorDifference& descriptors) {
    plan_used_ = sizeof(BackPlan);
    BackPlan head{};
    std::vector<BackMemoryOp> memory_ops;
    for (const auto& [op, path] : memory.ops) {
      memory_ops.push_back(op);
      if (!path.empty())
        memory_ops.back().path = put(std::as_bytes(std::span(path.c_str(), path.size() + 1)));
    }
    head.memory = put(std::as_bytes(std::span(memory_ops)));
    head.memory_count = memory_ops.size();
    std::vector<BackDescriptorOp> descriptor_ops;
    for (const auto& [op, data] : descriptors.ops) {
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
    const auto fills = source_->fills(memory.wanted);
    head.fills = put(std::as_bytes(std::span(fills)));
    head.fill_count = fills.size();
    fills_at_ = plan_used_;
    head.more = missing_.empty() ? 0 : 1;
    head.received = static_cast<uint32_t>(made_.size());
    head.first_free = descriptors.first_free;
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
  bool will_connect() const {
    pollfd fds[2] = {{listener_.get(), POLLIN, 0}, {connection_.get(), POLLIN, 0}};
    const int64_t until = now_ns() + limits_.answer_ns;
    while (now_ns() < until) {
      if (poll(fds, 2, 1000) <= 0) continue;
      if (fds[0].revents != 0) return true;
      if (fds[1].revents != 0) return false;
    }
    return true;
  }

  Result<void> hand_over() {
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

  Result<void> cut_files() {
    return DescriptorBuilder(image_->meta(), descriptor_options_).cut_grown_files();
  }

  const Options& options_;
  const Target& target_;
  const AskLimits limits_;
  int64_t started_ns_ = 0, planned_ns_ = 0;
  std::unique_ptr<ImageChain> image_;
  ScopedFd memfd_, connection_, listener_;
  std::byte *window_ = nullptr, *plan_ = nullptr, *data_ = nullptr;
  uint64_t window_bytes_ = 0, plan_used_ = 0, fills_at_ = 0;
  bool plan_full_ = false, was_cut_ = false;
  BackMessage heard_{};
  std::unique_ptr<PageSource> source_;
  AddrRange late_{};  // the library's data
  std::vector<AddrRange> missing_;
  std::vector<ScopedFd> made_;
  WorkingFds working_;
  DescriptorOptions descriptor_options_;
  std::vector<std::string> notes_;
};

void print_cost(const Target& t, const Answer& a) {
  auto line = [](const char* what, const std::string& value) {
    fmt::print("  {:<24}{}\n", what, printable(value));
  };
  fmt::print("{} (pid {}) is back at checkpoint {}\n", printable(t.name), t.pid, text_of(a, "sequence"));
  line("image", text_of(a, "image"));
  line("threads stood", fmt::format("{} ({})", human_duration(static_cast<int64_t>(number_of(a, "pause_ns"))),
                                    plural(number_of(a, "threads"), "thread", "threads")));
  line("memory put back", fmt::format("{}{}", human_bytes(number_of(a, "bytes")),
                                      number_of(a, "watched") != 0 ? " (what was written since)" : ""));
  if (number_of(a, "threads_ended") != 0) line("threads ended", text_of(a, "threads_ended"));
  if (number_of(a, "threads_made") != 0) line("threads made again", text_of(a, "threads_made"));
  line("time in all", human_duration(static_cast<int64_t>(number_of(a, "total_ns"))));
  for (const auto& [key, value] : a) {
    if (key == "note") line("note", value);
  }
}

Result<void> back(const Options& o) {
  auto pid = parse_pid(o.pid);
  if (!pid.ok()) return pid.error();
  AskLimits limits;
  limits.answer_ns = 120'000'000'000;
  if (!o.timeout.empty()) {
    auto timeout = parse_duration("--timeout", o.timeout.c_str());
    if (!timeout.ok()) return timeout.error();
    if (*timeout <= 0)
      return failure(ExitCode::kUsage, "--timeout", "must be more than 0", "give for example 30s");
    limits = {*timeout, *timeout};
  }
  auto target = examine_target(*pid);
  if (!target.ok()) return target.error();
  std::string path = o.image;
  if (path.empty()) {
    auto stat = ask(*target, ControlOperation::kStat, limits, {});
    if (!stat.ok()) return stat.error();
    path = text_of(*stat, "last_image");
    if (path.empty()) {
      return failure(ExitCode::kNotFound, fmt::format("{} ({})", target->pid, target->name),
                     "has taken no checkpoint yet", "take one with ckpt now, or name an image");
    }
  }
  auto answer = Back(o, *target, limits).run(path);
  if (!answer.ok()) return answer.error();
  if (o.json)
    print_json(answer_json(*target, *answer));
  else
    print_cost(*target, *answer);
  return {};
}

}  // namespace

void add_back(CLI::App& app, ExitCode& exit) {
  CLI::App* command = app.add_subcommand("back", "take a running program back to a checkpoint, in place");
  auto o = std::make_shared<Options>();
  command->add_option("PID", o->pid, "process id of the program")->required();
  command->add_option("IMAGE", o->image, "an image of this very program (default: its newest)");
  command->add_flag("--json", o->json, "print what it cost as JSON: times in ns, sizes in bytes");
  command->add_flag("--anyway", o->anyway,
                    "also where something cannot go back: children born since live on, what was\n"
                    "closed and cannot be opened again stays closed");
  command->add_option("--timeout", o->timeout,
                      "give up waiting after this time, for example 30s (default: 120s)");
  add_key_option(command);
  command->footer(
      "Memory, threads, descriptors, files' lengths, signals and timers become what they were; the process "
      "is not\n"
      "ended. What cannot go back is said, and nothing is changed then.\n"
      "Exit codes: 0 it is back, 64 wrong arguments or an image of another run, 65 image damaged, 66 no such "
      "image,\n"
      "67 no such process or not preloaded, 68 library or kernel changed, 69 a thread cannot be made again,\n"
      "70 given up (the message says whether the program goes on), 72 a file is gone or shorter, 75 no "
      "answer in\n"
      "time, 77 not yours, 78 something cannot go back.");
  command->callback([o, &exit] {
    auto done = back(*o);
    exit = done.ok() ? ExitCode::kOk : report(done.error());
  });
}

}  // namespace ckpt::cli
