// How members connect to the coordinator (coordinator.h), and what it takes from their connections. A member
// may be another user's, and that user's own program in place of our library: what it says is looked at.
#include "job/capture/coordinator/coordinator.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cstddef>

#include "base/clock.h"
#include "base/protocol/control_protocol.h"
#include "job/identity/own_job.h"
#include "libckpt_rt/core/kernel/proc_text.h"
#include "libckpt_rt/core/process/this_process.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::job {

namespace {

// Who connects without end is a stranger: between so many the coordinator looks at its deadlines.
constexpr int kMostAtOnce = 64;
// How long a member that has connected may say nothing before it is asked again.
constexpr int64_t kGreetingNs = 5'000'000'000;

struct Peer {
  int32_t pid;
  uint32_t uid, gid;
};

bool peer_of(int socket, Peer& peer) {
  socklen_t size = sizeof(peer);
  return sys::call(__NR_getsockopt, socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0;
}

uint32_t own_user() { return static_cast<uint32_t>(sys::call(__NR_geteuid)); }

bool is_thread_of(int tid, int pid) { return sys::call(__NR_tgkill, pid, tid, 0L) != -ESRCH; }

}  // namespace

Result<void> Coordinator::listen() {
  if (sys::call(__NR_getrandom, &cookie_, sizeof(cookie_), 0L) != sizeof(cookie_))
    cookie_ = static_cast<uint64_t>(now_ns(CLOCK_REALTIME)) * static_cast<uint64_t>(sys::gettid());
  cookie_ = (cookie_ | kJoinCookie | kLeastCookie) & ~kBackCookie;
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

// Never waits: all others would wait with it.
Result<void> Coordinator::accept_members() {
  for (int i = 0; i < kMostAtOnce; ++i) {
    const long fd =
        sys::call(__NR_accept4, listener_.get(), nullptr, nullptr, static_cast<long>(SOCK_CLOEXEC));
    // The listener would be ready for ever.
    if (fd == -EMFILE || fd == -ENFILE) return cannot_open("a connection of a member", static_cast<int>(fd));
    if (sys::failed(fd)) return {};
    ScopedFd socket(static_cast<int>(fd));
    Peer peer{};
    if (!peer_of(socket.get(), peer)) continue;
    Member* found = nullptr;
    for (Member& m : members_) {
      if (m.listed.look.pid == peer.pid && m.state == Member::State::kAsked) found = &m;
    }
    if (found == nullptr) continue;  // a stranger, or one that was asked twice
    timeval patience{5, 0};
    sys::call(__NR_setsockopt, fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    sys::call(__NR_setsockopt, fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
    const long high = sys::call(__NR_fcntl, fd, static_cast<long>(F_DUPFD_CLOEXEC), kFirstSocket);
    found->socket = sys::failed(high) ? socket.release() : static_cast<int>(high);
    found->of_other_user = peer.uid != own_user();
    found->state = Member::State::kConnected;
    found->connected_ns = now_ns();
    CKPT_TRY(greet(*found));
  }
  return {};
}

// It may be asked again.
void Coordinator::hang_up(Member& m) {
  sys::call(__NR_close, m.socket);
  m.socket = -1;
  m.state = Member::State::kAsked;
}

// Asks a member that has connected to join, as soon as it has said who it is.
Result<void> Coordinator::greet(Member& m) {
  ControlHello hello{};
  const long n = sys::call(__NR_recvfrom, m.socket, &hello, sizeof(hello),
                           static_cast<long>(MSG_PEEK | MSG_DONTWAIT), nullptr, nullptr);
  if (n != sizeof(hello)) {
    const bool may_come = n > 0 || n == -EAGAIN || n == -EINTR;
    if (!may_come || now_ns() - m.connected_ns > kGreetingNs) hang_up(m);
    return {};
  }
  if (!receive_exactly(m.socket, &hello, sizeof(hello))) {
    hang_up(m);
    return {};
  }
  if (hello.magic != kControlMagic || hello.version != kControlVersion)
    return name(m, ExitCode::kIncompatible, "has a library of another version");
  ControlRequest request{kControlMagic, kControlVersion, static_cast<uint32_t>(ControlOperation::kJoin), 0};
  JoinRequest join{};
  std::memcpy(join.job, own_job.identity.id, sizeof(join.job));
  join.sequence = place.sequence;
  if (told_ >= Step::kHold) join.flags |= kJoinHeld;
  if (place.by_fork) join.flags |= kJoinByFork;
  if (place.full) join.flags |= kJoinFull;
  if (place.stays) join.flags |= kJoinStays;
  if (over_hosts) join.flags |= kJoinHosts;
  if (in_rounds && round_ == 0 && told_ < Step::kHold) join.flags |= kJoinRounds;
  if (place.may_repeat) join.flags |= kJoinMayRepeat;
  if (place.streamed) join.flags |= kJoinStream;
  join.root = own_job.identity.root;
  *fmt::format_to_n(join.directory, sizeof(join.directory) - 1, "{}", directory_name_).out = '\0';
  std::memcpy(join.name, name_.text, sizeof(join.name));
  std::memcpy(join.temporary, name_.temporary, sizeof(join.temporary));
  if (place.streamed && m.of_other_user)
    return name(
        m, ExitCode::kUnsupported,
        "is of another user: a stream (CKPT_TO) does not tell whose word an image is; leave CKPT_TO out");
  // Before the descriptor is sent: the member may write as soon as it has it.
  if (m.of_other_user) CKPT_TRY(open_to_other_users());
  if (sys::call(__NR_sendto, m.socket, &request, sizeof(request), MSG_NOSIGNAL, 0L, 0L) != sizeof(request) ||
      !send_with_descriptor(m.socket, &join, sizeof(join), temporary_.get()) ||
      (place.streamed && (!send_with_descriptor(m.socket, "", 1, place.stream.pipe) ||
                          !send_with_descriptor(m.socket, "", 1, place.stream.turn)))) {
    hang_up(m);
    return {};
  }
  m.state = Member::State::kWithUs;
  m.reached = Step::kNone;
  watch_in_stream(m.socket);
  return {};
}

// Does the step follow what it has said, and what it was told? A member that left one out would be in no list
// of the manifest, or in one that is not true.
bool Coordinator::is_its_turn(const Member& m, Step step) const {
  const Step stands = over_hosts ? Step::kDrained : Step::kStanding;
  const bool samples = told_ >= Step::kSample && told_ < Step::kGo;
  switch (step) {
    case Step::kPosted:
      return in_rounds && told_ < Step::kHold && m.reached == Step::kNone;
    case Step::kPrepared:
      return told_ < Step::kHold && m.reached == Step::kNone;
    // Also where kHold is on its way: they are not waited for beyond their time.
    case Step::kConnectsHeld:
      return told_ >= Step::kHoldConnects && told_ <= Step::kHold && m.reached == Step::kPrepared;
    case Step::kAccepted:
      return told_ >= Step::kAccept && told_ <= Step::kHold && m.reached == Step::kConnectsHeld;
    case Step::kHeld:
      return told_ == Step::kHold && m.reached <= Step::kAccepted && m.reached != Step::kPosted;
    case Step::kStanding:
      return told_ == Step::kStop && m.reached == Step::kHeld;
    case Step::kDrained:
      return over_hosts && samples && m.reached == Step::kStanding;
    case Step::kUnreported:
      return samples && m.reached == stands;
    case Step::kSampled:
      return samples && (m.reached == stands || m.reached == Step::kUnreported);
    case Step::kWritten:
      return told_ == Step::kGo && m.reached == Step::kSampled;
    case Step::kReconnected:
      return told_ == Step::kReconnect && m.reached == Step::kWritten;
    default:
      return false;
  }
}

// Of another user: kcmp(2) is asked about these with our rights, and all stand meanwhile. Descriptors of some
// process of ours would look as if the member shared them; the same one again and again takes time.
bool Coordinator::are_its_own(const Member& m) {
  if (!is_thread_of(m.facts.tid, m.listed.look.pid)) return false;
  ArenaVector<uint64_t> descriptors(arena_);
  int known = m.facts.tid;
  for (const OpenFileKey& key : m.files) {
    const int tid = key.tid != 0 ? key.tid : m.facts.tid;
    if (tid != known && !is_thread_of(tid, m.listed.look.pid)) return false;
    known = tid;
    if (!descriptors.push_back(uint64_t{static_cast<uint32_t>(tid)} << 32 | static_cast<uint32_t>(key.fd)))
      return false;
  }
  std::sort(descriptors.begin(), descriptors.end());
  return std::adjacent_find(descriptors.begin(), descriptors.end()) == descriptors.end();
}

// The member's socket is closed, or was never there.
Result<void> Coordinator::lost(Member& m) {
  if (m.socket >= 0) sys::call(__NR_close, m.socket);
  m.socket = -1;
  if (told_ >= Step::kStop) {
    // Nothing more is wanted of it.
    if (m.reached == Step::kWritten || m.reached == Step::kReconnected) {
      m.state = Member::State::kEnded;
      return {};
    }
    again = came_or_went = true;
    return name(m, ExitCode::kInternal, "ended while its checkpoint was taken");
  }
  // The member has ended, or executes another program and is to be asked anew.
  m.state = Member::State::kStarting;
  m.was_lost = true;
  m.since_ns = now_ns();
  m.reached = Step::kNone;
  return {};
}

// A message comes whole before deadline_ns (0: none), or its member is lost.
Result<void> Coordinator::take_message(Member& m, int64_t deadline_ns) {
  Message message;
  const int64_t patience = now_ns() + kPatienceNs;
  const int64_t until = deadline_ns == 0 ? patience : std::min(patience, deadline_ns);
  if (receive_message(m.socket, until, arena_, message) != Received::kMessage) return lost(m);
  if (message.step == Step::kFailed) {
    const auto* failed = message.as<Failed>();
    if (failed == nullptr) return lost(m);
    if (static_cast<ExitCode>(failed->code) == ExitCode::kNoProcess && m.reached == Step::kNone) {
      // The process looked like a member, and is of another job.
      sys::call(__NR_close, m.socket);
      m.socket = -1;
      m.state = Member::State::kEnded;
      m.stranger = true;
      m.listed.look.state = 'X';
      return {};
    }
    const Again needs = Again{failed->again};
    again = again || needs != Again::kNever;
    passing = passing || needs == Again::kInAMoment || needs == Again::kAccepted;
    unaccepted = unaccepted || needs == Again::kAccepted;
    // Its last thread has ended, and nobody was told.
    came_or_went = came_or_went || static_cast<ExitCode>(failed->code) == ExitCode::kNoProcess;
    return make_error(static_cast<ExitCode>(failed->code), failed->sys_errno,
                      "process {} ({}) of the job: {}", m.listed.look.pid,
                      static_cast<const char*>(m.listed.look.name),
                      std::string_view(failed->text, strnlen(failed->text, sizeof(failed->text))));
  }
  const auto nonsense = [this, &m] {
    return name(m, ExitCode::kIncompatible, "says what no member would: it has a library of another version");
  };
  if (!is_its_turn(m, message.step)) return nonsense();
  if (message.step == Step::kSampled) {
    if (message.payload.size() < sizeof(Standing)) return nonsense();
    std::memcpy(&m.facts, message.payload.data(), sizeof(m.facts));
    const auto rest = message.payload.subspan(sizeof(Standing));
    m.files = {reinterpret_cast<const OpenFileKey*>(rest.data()), rest.size() / sizeof(OpenFileKey)};
    if (m.of_other_user && !are_its_own(m)) return nonsense();
  } else if (message.step == Step::kUnreported) {
    m.unreported = {reinterpret_cast<const ChildNotice*>(message.payload.data()),
                    message.payload.size() / sizeof(ChildNotice)};
  } else if (message.step == Step::kHeld) {
    Held held{};
    if (message.payload.size() < sizeof(held)) return nonsense();
    std::memcpy(&held, message.payload.data(), sizeof(held));
    const auto rest = message.payload.subspan(sizeof(held));
    m.can_share = held.can_share != 0;
    m.offers = {reinterpret_cast<const SharedOffer*>(rest.data()), rest.size() / sizeof(SharedOffer)};
  } else if (message.step == Step::kPosted) {
    m.posts = message.payload;
  } else if (message.step == Step::kDrained) {
    m.bookmarks = {reinterpret_cast<const Bookmark*>(message.payload.data()),
                   message.payload.size() / sizeof(Bookmark)};
  } else if (message.step == Step::kWritten) {
    const auto* written = message.as<Written>();
    if (written == nullptr) return nonsense();
    m.written = *written;
    watch_no_more(m.socket);
  }
  m.reached = message.step;
  return message.step == Step::kPrepared ? tell_again_of_connects(m) : Result<void>();
}

}  // namespace ckpt::job
