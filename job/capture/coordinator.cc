#include "job/capture/coordinator.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cstddef>

#include "base/clock.h"
#include "base/control_protocol.h"
#include "base/named_points.h"
#include "image/format/image_probe.h"
#include "job/directory/job_directory.h"
#include "job/identity/own_job.h"
#include "job/session/creation.h"
#include "libckpt_rt/core/directory/log.h"
#include "libckpt_rt/core/process/this_process.h"
#include "libckpt_rt/core/request/interval.h"
#include "libckpt_rt/core/settings/own_key_file.h"
#include "libckpt_rt/core/settings/user_settings.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::job {

namespace {

// A member that does not answer: it has not started yet, or something has eaten the signal.
constexpr int64_t kPatienceNs = 10'000'000'000, kStartNs = 5'000'000'000;
// "12,busybox": pids and program names, or "all".
bool is_listed(std::string_view list, const ProcessLook& look) {
  char pid[16];
  *fmt::format_to_n(pid, sizeof(pid) - 1, "{}", look.pid).out = '\0';
  while (!list.empty()) {
    const size_t end = list.find(',');
    const std::string_view one = list.substr(0, end);
    if (one == "all" || one == std::string_view(pid) || one == std::string_view(look.name)) return true;
    list.remove_prefix(end == list.npos ? list.size() : end + 1);
  }
  return false;
}

// Members' sockets are above it, where the limit on descriptors allows: a process that writes our image
// closes them.
constexpr long kFirstSocket = 200;
// A child between fork and the library's notice of it drops the signal: it is sent again.
constexpr int64_t kAskAgainNs = 50'000'000, kLookNs = 2'000'000;

// As they were listed they would be, but for whoever leads and who came late.
void put_parents_first(ArenaVector<ManifestMember>& list) {
  for (size_t i = 0; i < list.size(); ++i) {
    for (size_t tries = list.size(); tries > 0; --tries) {
      size_t parent = i;
      for (size_t k = i + 1; k < list.size(); ++k) {
        if (list[k].listed.look.pid == list[i].listed.look.ppid) parent = k;
      }
      if (parent == i) break;
      std::swap(list[i], list[parent]);
    }
  }
}

}  // namespace

Error Coordinator::name(const Member& m, ExitCode code, const char* what) {
  return make_error(code, 0, "process {} ({}) of the job {}", m.listed.look.pid,
                    static_cast<const char*>(m.listed.look.name), what);
}

Result<void> Coordinator::listen() {
  if (sys::call(__NR_getrandom, &cookie_, sizeof(cookie_), 0L) != sizeof(cookie_))
    cookie_ = static_cast<uint64_t>(now_ns(CLOCK_REALTIME)) * static_cast<uint64_t>(sys::gettid());
  cookie_ |= kJoinCookie | kLeastCookie;
  const long fd = sys::call(__NR_socket, AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (sys::failed(fd)) {
    return make_error(ExitCode::kSystem, static_cast<int>(fd), "cannot make a socket for the job ({})",
                      errno_name(static_cast<int>(fd)));
  }
  listener_.reset(static_cast<int>(fd));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const auto end =
      fmt::format_to_n(address.sun_path + 1, sizeof(address.sun_path) - 1, "ckpt_rt.{:016x}", cookie_);
  const auto length = offsetof(sockaddr_un, sun_path) + 1 + end.size;
  long r = sys::call(__NR_bind, fd, &address, length);
  if (r == 0) r = sys::call(__NR_listen, fd, 4096L);
  if (r == 0) return {};
  return make_error(ExitCode::kSystem, static_cast<int>(r), "cannot listen for the job's members ({})",
                    errno_name(static_cast<int>(r)));
}

Result<void> Coordinator::begin(uint32_t attempt, std::span<const Listed> members) {
  attempt_ = attempt;
  began_ = true;
  if (!reserve_own(arena_, 256 << 20))
    return make_error(ExitCode::kInternal, ENOMEM, "no memory to lead a job");
  own_memory[0] = arena_.range();
  members_ = ArenaVector<Member>(arena_);
  member_files_ = ArenaVector<MemberFiles>(arena_);
  shared_ = ArenaVector<SharedUse>(arena_);
  auto sequence = next_job_sequence(directory_);
  if (!sequence.ok()) return sequence.error();
  const char* comm = this_process.name;
  for (const Listed& m : members) {
    if (m.look.pid == own_job.identity.root) comm = m.look.name;
  }
  name_ = compose_job_name(comm, *sequence);
  CKPT_TRY(listen());
  for (const Listed& m : members) CKPT_TRY(add(m));
  auto temporary = make_temporary(directory_, name_);
  if (!temporary.ok()) return temporary.error();
  temporary_ = std::move(*temporary);
  fill_place(place, temporary_.get(), directory_name_, name_.text, this_process.pid, *sequence);
  place.may_repeat = attempt < 3 && !over_hosts;  // else all hosts would have to
  place.by_fork = attempt >= 3;
  for (Member& m : members_) CKPT_TRY(ask(m));
  points::at("leader.asked");
  return {};
}

Result<void> Coordinator::add(const Listed& listed) {
  if (listed.look.pid == this_process.pid) {
    self_ = listed;
    return {};
  }
  Member m{};
  m.listed = listed;
  m.socket = -1;
  m.state = listed.look.ended() ? Member::State::kEnded : Member::State::kStarting;
  m.since_ns = now_ns();
  if (!members_.push_back(m))
    return make_error(ExitCode::kInternal, ENOMEM, "no memory for the job's members");
  return {};
}

// Signals the member if the library in it can take the signal.
Result<void> Coordinator::ask(Member& m) {
  if (m.state != Member::State::kStarting && m.state != Member::State::kAsked) return {};
  const int pid = m.listed.look.pid;
  ProcessLook look;
  if (!look_at(pid, look) || look.started != m.listed.look.started) {
    m.state = Member::State::kEnded;
    m.listed.look.state = 'X';
    return {};
  }
  m.listed.look = look;
  if (look.ended()) {
    m.state = Member::State::kEnded;
    return {};
  }
  if (look.state == 'T')
    return name(m, ExitCode::kUnavailable,
                "is stopped and cannot answer; continue it (kill -CONT), or take one process with --only");
  int signal = user_settings().signal;
  m.preloaded = look_for_library(pid, signal);
  switch (m.preloaded) {
    case Preloaded::kGone:
      return {};  // seen the next time
    case Preloaded::kBare:
      if (now_ns() - m.since_ns < kStartNs) return {};
      [[fallthrough]];
    case Preloaded::kStatic:
    case Preloaded::kClean:
    case Preloaded::kAsleep: {
      // It may have executed another program between two of the questions.
      if (++m.looks < 3) return {};
      if (is_listed(options_.leave_out, look) || is_listed(user_settings().leave_out, look)) {
        m.state = Member::State::kLeftOut;
        return {};
      }
      const char* why = m.preloaded == Preloaded::kStatic
                            ? "is a static program, which the library cannot be in"
                        : m.preloaded == Preloaded::kAsleep ? "was started with CKPT_DISABLE=1"
                                                            : "runs without libckpt_rt.so";
      return make_error(
          ExitCode::kUnsupported, 0,
          "process {} ({}) of the job {}: leave it out (--leave-out {}), or take one process with "
          "--only",
          pid, static_cast<const char*>(look.name), why, pid);
    }
    case Preloaded::kNotYet:
      m.looks = 0;
      if (now_ns() - m.since_ns > kStartNs)
        return name(m, ExitCode::kTimeout, "has the library but does not handle its signal; see the log");
      return {};
    case Preloaded::kReady:
      m.looks = 0;
      break;
  }
  // A child of vfork is its parent until it executes another program.
  if (sys::call(__NR_kcmp, pid, look.ppid, KCMP_VM, 0L, 0L) == 0) {
    if (now_ns() - m.since_ns > kStartNs)
      return name(m, ExitCode::kUnsupported,
                  "shares its memory with its parent; take one process with --only");
    return {};
  }
  siginfo_t info{};
  info.si_signo = signal;
  info.si_code = SI_QUEUE;
  info.si_pid = this_process.pid;
  info.si_uid = static_cast<uint32_t>(sys::call(__NR_getuid));
  info.si_value.sival_ptr = reinterpret_cast<void*>(cookie_);
  const long r = sys::call(__NR_rt_sigqueueinfo, pid, signal, &info);
  m.asked_ns = now_ns();
  if (r == -ESRCH) return {};
  if (r == -EPERM)
    return name(m, ExitCode::kPermission,
                "belongs to another user; ask for the checkpoint as root, of a process of root's");
  if (r == -EAGAIN)
    return name(m, ExitCode::kUnavailable,
                "cannot be signalled: too many signals are queued; raise ulimit -i");
  if (r != 0) return name(m, ExitCode::kSystem, "cannot be signalled");
  m.state = Member::State::kAsked;
  return {};
}

Result<void> Coordinator::accept_members() {
  for (;;) {
    const long fd =
        sys::call(__NR_accept4, listener_.get(), nullptr, nullptr, static_cast<long>(SOCK_CLOEXEC));
    if (sys::failed(fd)) return {};
    ScopedFd peer(static_cast<int>(fd));
    struct {
      int32_t pid;
      uint32_t uid, gid;
    } who{};
    socklen_t size = sizeof(who);
    if (sys::call(__NR_getsockopt, fd, SOL_SOCKET, SO_PEERCRED, &who, &size) != 0) continue;
    Member* found = nullptr;
    for (Member& m : members_) {
      if (m.listed.look.pid == who.pid && m.state == Member::State::kAsked) found = &m;
    }
    if (found == nullptr) continue;  // a stranger, or one that was asked twice
    timeval patience{5, 0};
    sys::call(__NR_setsockopt, fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    sys::call(__NR_setsockopt, fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
    ControlHello hello{};
    if (!receive_exactly(peer.get(), &hello, sizeof(hello))) continue;
    if (hello.magic != kControlMagic || hello.version != kControlVersion)
      return name(*found, ExitCode::kIncompatible, "has a library of another version");
    ControlRequest request{kControlMagic, kControlVersion, static_cast<uint32_t>(ControlOperation::kJoin), 0};
    JoinRequest join{};
    std::memcpy(join.job, own_job.identity.id, sizeof(join.job));
    join.sequence = place.sequence;
    if (told_ >= Step::kHold) join.flags |= kJoinHeld;
    if (place.by_fork) join.flags |= kJoinByFork;
    if (over_hosts) join.flags |= kJoinHosts;
    if (place.may_repeat) join.flags |= kJoinMayRepeat;
    join.root = own_job.identity.root;
    *fmt::format_to_n(join.directory, sizeof(join.directory) - 1, "{}", directory_name_).out = '\0';
    std::memcpy(join.name, name_.text, sizeof(join.name));
    std::memcpy(join.temporary, name_.temporary, sizeof(join.temporary));
    if (sys::call(__NR_sendto, fd, &request, sizeof(request), MSG_NOSIGNAL, 0L, 0L) != sizeof(request) ||
        !send_with_descriptor(peer.get(), &join, sizeof(join), temporary_.get())) {
      continue;
    }
    if (who.uid != static_cast<uint32_t>(sys::call(__NR_geteuid))) let_others_write();
    const long high = sys::call(__NR_fcntl, fd, static_cast<long>(F_DUPFD_CLOEXEC), kFirstSocket);
    found->socket = sys::failed(high) ? peer.release() : static_cast<int>(high);
    found->state = Member::State::kWithUs;
    found->reached = Step::kNone;
  }
}

// Members of another user make their images in it by the descriptor that they got. Nobody else comes to it:
// the directory above is ours alone.
void Coordinator::let_others_write() {
  if (!foreign_) sys::call(__NR_fchmod, temporary_.get(), 01733L);
  foreign_ = true;
}

// Its socket is closed, or never came to be.
Result<void> Coordinator::lost(Member& m) {
  if (m.socket >= 0) sys::call(__NR_close, m.socket);
  m.socket = -1;
  if (told_ >= Step::kStop) {
    if (m.reached == Step::kWritten) {  // nothing more is wanted of it
      m.state = Member::State::kEnded;
      return {};
    }
    again = true;
    return name(m, ExitCode::kInternal, "ended while its checkpoint was taken");
  }
  // It has ended, or executes another program and is to be asked anew.
  m.state = Member::State::kStarting;
  m.since_ns = now_ns();
  m.reached = Step::kNone;
  return {};
}

Result<void> Coordinator::take_message(Member& m) {
  Message message;
  if (receive_message(m.socket, now_ns() + kPatienceNs, arena_, message) != Received::kMessage)
    return lost(m);
  if (message.step == Step::kFailed) {
    const auto* failed = message.as<Failed>();
    if (failed == nullptr) return lost(m);
    if (static_cast<ExitCode>(failed->code) == ExitCode::kNoProcess && m.reached == Step::kNone) {
      // It looked like one, and is of another job.
      sys::call(__NR_close, m.socket);
      m.socket = -1;
      m.state = Member::State::kEnded;
      m.stranger = true;
      m.listed.look.state = 'X';
      return {};
    }
    again = again || failed->again != 0;
    return make_error(static_cast<ExitCode>(failed->code), 0, "process {} ({}) of the job: {}",
                      m.listed.look.pid, static_cast<const char*>(m.listed.look.name),
                      std::string_view(failed->text, strnlen(failed->text, sizeof(failed->text))));
  }
  if (message.step == Step::kSampled) {
    if (message.payload.size() < sizeof(Standing)) return lost(m);
    std::memcpy(&m.facts, message.payload.data(), sizeof(m.facts));
    const auto rest = message.payload.subspan(sizeof(Standing));
    m.files = {reinterpret_cast<const OpenFileKey*>(rest.data()), rest.size() / sizeof(OpenFileKey)};
  } else if (message.step == Step::kDrained) {
    m.bookmarks = {reinterpret_cast<const Bookmark*>(message.payload.data()),
                   message.payload.size() / sizeof(Bookmark)};
  } else if (message.step == Step::kWritten) {
    if (const auto* written = message.as<Written>()) m.written = *written;
  }
  m.reached = message.step;
  return {};
}

Result<void> Coordinator::look_at_silent(int64_t now) {
  for (Member& m : members_) {
    if (m.state == Member::State::kStarting) CKPT_TRY(ask(m));
    if (m.state != Member::State::kAsked) continue;
    ProcessLook look;
    const bool there = look_at(m.listed.look.pid, look) && !look.ended();
    if (!there || now - m.asked_ns > kAskAgainNs) CKPT_TRY(ask(m));
    if (m.state == Member::State::kAsked && now - m.since_ns > kPatienceNs)
      return name(m, ExitCode::kTimeout, "did not answer within 10 s");
  }
  return {};
}

// Who is stopped (a terminal's Ctrl-Z) does not come any further, and others may be held meanwhile.
Result<void> Coordinator::look_for_stopped(Step step) {
  for (const Member& m : members_) {
    ProcessLook look;
    if (m.state != Member::State::kWithUs || m.reached >= step) continue;
    if (look_at(m.listed.look.pid, look) && look.state == 'T')
      return name(m, ExitCode::kUnavailable, "was stopped; continue it (kill -CONT), and ask again");
  }
  return {};
}

// Until every member that is there has come as far. deadline_ns: CLOCK_MONOTONIC, 0 never.
Result<void> Coordinator::await(Step step, int64_t deadline_ns) {
  auto* polls = static_cast<pollfd*>(arena_.allocate((members_.size() + 1) * sizeof(pollfd)));
  auto* who = static_cast<uint32_t*>(arena_.allocate((members_.size() + 1) * sizeof(uint32_t)));
  if (polls == nullptr || who == nullptr)
    return make_error(ExitCode::kInternal, ENOMEM, "no memory to lead a job");
  for (;;) {
    size_t count = 0;
    bool all = true, silent = false;
    for (uint32_t i = 0; i < members_.size(); ++i) {
      const Member& m = members_[i];
      if (m.state == Member::State::kEnded || m.state == Member::State::kLeftOut) continue;
      if (m.reached < step) all = false;
      if (m.state == Member::State::kWithUs) {
        who[count] = i;
        polls[count++] = {m.socket, POLLIN, 0};
      } else {
        silent = true;
      }
    }
    if (all) return {};
    polls[count] = {listener_.get(), POLLIN, 0};
    const int64_t now = now_ns();
    int64_t wait = silent ? kLookNs : 1'000'000'000;
    if (deadline_ns != 0 && now >= deadline_ns) {
      for (const Member& m : members_) {
        if (m.state == Member::State::kEnded || m.state == Member::State::kLeftOut || m.reached >= step)
          continue;
        return name(m, ExitCode::kTimeout,
                    step <= Step::kHeld
                        ? "was not ready in time; the checkpoint was given up"
                        : "did not stand in time (CKPT_STOP_TIMEOUT); the checkpoint was given up");
      }
    }
    if (deadline_ns != 0) wait = std::min(wait, deadline_ns - now);
    const timespec left{wait / 1'000'000'000, wait % 1'000'000'000};
    const long ready = sys::call(__NR_ppoll, polls, count + 1, &left, nullptr, 8L);
    if (ready > 0) {
      for (size_t i = 0; i < count; ++i) {
        if (polls[i].revents != 0) CKPT_TRY(take_message(members_[who[i]]));
      }
      if (polls[count].revents != 0) CKPT_TRY(accept_members());
    }
    if (silent) CKPT_TRY(look_at_silent(now_ns()));
    if (ready == 0 && !silent) CKPT_TRY(look_for_stopped(step));
  }
}

Result<void> Coordinator::tell_all(Step step) {
  told_ = step;
  for (Member& m : members_) {
    if (m.state == Member::State::kWithUs && !send_message(m.socket, step)) CKPT_TRY(lost(m));
  }
  return {};
}

// True: there were processes that nobody knew, or known ones have executed another program.
Result<bool> Coordinator::add_new() {
  ArenaVector<Listed> now(arena_);
  if (!list_members(own_job.identity, this_process.pid, arena_, now))
    return make_error(ExitCode::kInternal, ENOMEM, "no memory for the job's members");
  bool any = false;
  for (const Listed& l : now) {
    if (l.look.pid == this_process.pid) {
      self_ = l;
      continue;
    }
    Member* known = nullptr;
    for (Member& m : members_) {
      if (m.listed.look.pid == l.look.pid && m.listed.look.started == l.look.started) known = &m;
    }
    if (known != nullptr) {
      // Group and session may have changed, and who has ended has his status.
      if (!known->stranger) known->listed = l;
      if (l.look.ended() && known->state == Member::State::kWithUs && told_ < Step::kStop)
        CKPT_TRY(lost(*known));
      continue;
    }
    CKPT_TRY(add(l));
    if (l.look.ended()) continue;
    any = true;
    CKPT_TRY(ask(members_.back()));
  }
  // Of those that have ended the ones that somebody has waited for are no part of the job any more.
  for (Member& m : members_) {
    if (m.state != Member::State::kEnded) continue;
    const bool there = std::any_of(now.begin(), now.end(), [&](const Listed& l) {
      return l.look.pid == m.listed.look.pid && l.look.started == m.listed.look.started;
    });
    if (!there) m.listed.look.state = 'X';
  }
  return any;
}

// Groups, sessions and terminals as they are now; who has ended, and may have been waited for.
void Coordinator::look_again() {
  look_at(this_process.pid, self_.look);
  for (Member& m : members_) {
    ProcessLook look;
    if (m.stranger || !look_at(m.listed.look.pid, look) || look.started != m.listed.look.started)
      m.listed.look.state = 'X';
    else
      m.listed.look = look;
  }
}

Result<void> Coordinator::prepared() {
  points::at("leader.armed");
  CKPT_TRY(await(Step::kPrepared, 0));
  points::at("leader.prepared");
  if (over_hosts) CKPT_TRY(with_all_hosts("prepared", 0));
  creation::hold();
  creation::hold_end();
  CKPT_TRY(tell_all(Step::kHold));
  // Who was made before everybody held: it is held at once, and small, since it is young.
  for (;;) {
    CKPT_TRY(await(Step::kHeld, now_ns() + kPatienceNs));
    newest_pid_ = newest_pid();
    auto any = add_new();
    if (!any.ok()) return any.error();
    if (!*any) break;
  }
  points::at("leader.held");
  CKPT_TRY(tell_all(Step::kStop));
  points::at("leader.stop");
  return {};
}

Result<void> Coordinator::standing() {
  points::at("leader.stopped");
  CKPT_TRY(await(Step::kStanding, now_ns() + 2 * user_settings().stop_timeout_ns));
  points::at("leader.standing");
  if (over_hosts) CKPT_TRY(with_all_hosts("standing", user_settings().stop_timeout_ns));
  realtime_ns_ = now_ns(CLOCK_REALTIME);
  monotonic_ns_ = now_ns();
  boottime_ns_ = now_ns(CLOCK_BOOTTIME);
  // No process or thread has come to be anywhere since: nor in the job.
  const int newest = newest_pid();
  if (newest > 0 && newest == newest_pid_) {
    look_again();
    return tell_all(Step::kSample);
  }
  auto any = add_new();
  if (!any.ok()) return any.error();
  if (*any) {
    again = true;
    return name(members_.back(), ExitCode::kInternal,
                "was made while the others stopped; the checkpoint is taken again");
  }
  return tell_all(Step::kSample);
}

Result<void> Coordinator::sampled(std::span<const OpenFileKey> files, const Standing& facts) {
  own_facts_ = facts;
  own_files_ = files;
  CKPT_TRY(await(Step::kSampled, now_ns() + 2 * user_settings().stop_timeout_ns));
  if (!member_files_.push_back({this_process.pid, facts.tid, files}))
    return make_error(ExitCode::kInternal, ENOMEM, "no memory for the job's members");
  for (const Member& m : members_) {
    if (m.state == Member::State::kWithUs &&
        !member_files_.push_back({m.listed.look.pid, m.facts.tid, m.files}))
      return make_error(ExitCode::kInternal, ENOMEM, "no memory for the job's members");
  }
  points::at("leader.sampled");
  if (over_hosts) CKPT_TRY(with_all_hosts("sampled", user_settings().stop_timeout_ns));
  CKPT_TRY(find_shared(member_files_.span(), arena_, shared_));
  CKPT_TRY(tell_all(Step::kGo));
  points::at("leader.go");
  creation::release();
  return {};
}

Result<void> Coordinator::written(const Written& facts) {
  own_written_ = facts;
  creation::let_end();
  points::at("leader.image");
  CKPT_TRY(await(Step::kWritten, 0));
  points::at("leader.written");
  CKPT_TRY(commit());
  if (over_hosts) CKPT_TRY(agree_with_hosts());
  prune();
  done_ = true;
  interval::put_off();
  (void)tell_all(Step::kDone);
  return {};
}

Result<void> Coordinator::commit() {
  ImageKey* key = nullptr;
  if (own_key_file::path()[0] != '\0') {
    key = static_cast<ImageKey*>(arena_.allocate(sizeof(ImageKey)));
    if (key == nullptr) return make_error(ExitCode::kInternal, ENOMEM, "no memory for the key");
    CKPT_TRY(read_key_file(own_key_file::path(), *key));
  }
  int64_t began = own_facts_.began_ns, resumed = own_written_.resumed_ns;
  ArenaVector<ManifestMember> list(arena_);
  auto add_image = [&](const Listed& listed, const Standing& facts) -> Result<void> {
    ManifestMember one{};
    one.listed = listed;
    one.has_image = true;
    one.subreaper = facts.subreaper != 0;
    one.pdeath_signal = facts.pdeath_signal;
    const MemberImageName image = member_image_name(listed.look.pid);
    const long fd = sys::call(__NR_openat, temporary_.get(), image.text,
                              O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0L);
    const ScopedFd file(sys::failed(fd) ? -1 : static_cast<int>(fd));
    // Whose process has written it stays its owner: what it says is that user's word, at a restart too.
    auto brief = probe_image(file.get(), image.text, key);
    if (!brief.ok()) return brief.error();
    one.image_bytes = brief->file_bytes;
    one.image_state = brief->meta_checksum;
    if (!list.push_back(one)) return make_error(ExitCode::kInternal, ENOMEM, "no memory for the manifest");
    ++report_.members;
    return {};
  };
  report_.members = report_.ended = report_.left_out = 0;
  if (foreign_) sys::call(__NR_fchmod, temporary_.get(), 0700L);
  CKPT_TRY(add_image(self_, own_facts_));
  for (const Member& m : members_) {
    if (m.reached == Step::kWritten) {
      began = std::min(began, m.facts.began_ns);
      resumed = std::max(resumed, m.written.resumed_ns);
      CKPT_TRY(add_image(m.listed, m.facts));
    } else if (m.state == Member::State::kEnded && m.listed.look.state == 'Z') {
      ManifestMember one{};
      one.listed = m.listed;
      if (!list.push_back(one)) return make_error(ExitCode::kInternal, ENOMEM, "no memory for the manifest");
      ++report_.ended;
    } else if (m.state == Member::State::kLeftOut) {
      ManifestMember one{};
      one.listed = m.listed;
      one.left_out = true;
      one.reason = preloaded_reason(m.preloaded);
      if (!list.push_back(one)) return make_error(ExitCode::kInternal, ENOMEM, "no memory for the manifest");
      ++report_.left_out;
    }
  }
  report_.pause_ns = resumed - began;
  put_parents_first(list);
  const char* comm = self_.look.name;
  for (const ManifestMember& m : list) {
    if (m.listed.look.pid == own_job.identity.root) comm = m.listed.look.name;
  }
  const ManifestSources sources{&own_job.identity,
                                comm,
                                place.sequence,
                                realtime_ns_,
                                monotonic_ns_,
                                boottime_ns_,
                                report_.pause_ns,
                                list.span(),
                                shared_.span(),
                                member_files_.span(),
                                over_hosts ? &options_.part : nullptr};
  CKPT_TRY(write_manifest(temporary_.get(), sources, arena_));
  points::at("leader.manifest");
  CKPT_TRY(commit_directory(directory_, temporary_.get(), name_));
  points::at("leader.renamed");
  *fmt::format_to_n(report_.path, sizeof(report_.path) - 1, "{}/{}", directory_name_,
                    static_cast<const char*>(name_.text))
       .out = '\0';
  if (key != nullptr) wipe(key, sizeof(*key));
  return {};
}

void Coordinator::prune() {
  ImageKey* key = nullptr;
  if (own_key_file::path()[0] != '\0') {
    key = static_cast<ImageKey*>(arena_.allocate(sizeof(ImageKey)));
    if (key == nullptr || !read_key_file(own_key_file::path(), *key).ok()) return;
  }
  auto pruned = prune_jobs(directory_, own_job.identity.id, user_settings().keep, key);
  if (!pruned.ok()) log_line(directory_, pruned.error().message());
  if (key != nullptr) wipe(key, sizeof(*key));
}

void Coordinator::in_writing_child() {
  // The list of members is not in the child's memory.
  sys::call(__NR_close_range, kFirstSocket, ~0u, 0L);
  listener_.reset();
}

Coordinator::~Coordinator() {
  creation::release();
  creation::let_end();
  if (!began_) return;
  if (!done_) (void)tell_all(Step::kAbort);
  // Their files go with them: whoever has closed his socket writes no more.
  const int64_t deadline = now_ns() + user_settings().stop_timeout_ns;
  for (Member& m : members_) {
    if (m.socket < 0) continue;
    Message message;
    while (!done_ && receive_message(m.socket, deadline, arena_, message) == Received::kMessage) {
    }
    sys::call(__NR_close, m.socket);
  }
  if (!done_ && temporary_.valid()) remove_job_directory(directory_, name_.temporary);
}

}  // namespace ckpt::job
