// A member that is not the coordinator: it follows the coordinator's messages, and lets its threads go when
// none comes in time.
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <utility>

#include "base/checks/named_points.h"
#include "base/clock.h"
#include "image/format/keeper_client.h"
#include "job/capture/channel.h"
#include "job/capture/members/process_look.h"
#include "job/capture/reconnect.h"
#include "job/capture/take.h"
#include "job/directory/directory_lock.h"
#include "job/directory/job_directory.h"
#include "job/format/job_name.h"
#include "job/identity/own_job.h"
#include "job/session/connecting.h"
#include "job/session/creation.h"
#include "job/session/servers.h"
#include "job/session/session.h"
#include "libckpt_rt/checkpoint/preparation.h"
#include "libckpt_rt/core/kernel/proc_text.h"
#include "libckpt_rt/core/process/this_process.h"
#include "libckpt_rt/core/request/interval.h"
#include "libckpt_rt/core/settings/user_settings.h"
#include "libckpt_rt/stop/tracing/service.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::job {

namespace {

// Twice as long as the coordinator waits for other members (kPatienceNs).
constexpr int64_t kHeldNs = 60'000'000'000;
// Between two looks at what else may have happened, while the coordinator says nothing.
constexpr int64_t kBetweenNs = 100'000'000;

Again what_it_takes(const Session& session) {
  if (session.unaccepted) return Again::kAccepted;
  if (session.passing) return Again::kInAMoment;
  return session.again ? Again::kAtOnce : Again::kNever;
}

class MemberSession final : public Session {
 public:
  // temporary: the checkpoint's directory, open.
  MemberSession(int socket, int temporary, const JoinRequest& request)
      : socket_(socket), request_(request), temporary_(temporary) {}
  ~MemberSession() {
    connecting::release();
    creation::release();
    creation::release_end();
  }

  // What came with the request: the pipe of the job's stream and the eventfd of its turns.
  void join_stream(ScopedFd pipe, ScopedFd turn) {
    stream_pipe_ = std::move(pipe);
    stream_turn_ = std::move(turn);
    place.streamed = true;
    place.stream = {stream_pipe_.get(), stream_turn_.get(), socket_};
  }

  Result<void> open() {
    in_rounds = (request_.flags & kJoinRounds) != 0;
    // In each round a message comes, but all of them together have no more than kMostMailBytes.
    if (!reserve_own(arena_, in_rounds ? 2 << 20 : 1 << 20))
      return make_error(ExitCode::kInternal, ENOMEM, "no memory for a job's messages");
    own_memory[0] = arena_.range();
    reserve_ledger();
    // A member of another user, or with another root, may not reach the directory: then it writes no log, and
    // removes nothing.
    if (keeper_part(request_.directory) != 0) {
      if (auto in_keeper = open_keeper_directory(request_.directory); in_keeper.ok())
        directory_ = std::move(*in_keeper);
    } else {
      const long fd =
          sys::call(__NR_openat, AT_FDCWD, request_.directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0L);
      if (!sys::failed(fd)) directory_.reset(static_cast<int>(fd));
    }
    fill_place(place, temporary_.get(), request_.directory, request_.name, request_.temporary,
               this_process.pid, request_.sequence);
    over_hosts = (request_.flags & kJoinHosts) != 0;
    place.by_fork = (request_.flags & kJoinByFork) != 0;
    place.full = (request_.flags & kJoinFull) != 0;
    place.stays = (request_.flags & kJoinStays) != 0;
    place.may_repeat = (request_.flags & kJoinMayRepeat) != 0;
    if ((request_.flags & kJoinHeld) != 0) hold();
    // Ahead of the first word to the coordinator, which asks those that we trace then.
    return tracing_.begin(user_settings().stop_timeout_ns, coordinator());
  }

  Result<bool> exchange(std::span<const std::byte> posts) override {
    if (!send_message(socket_, Step::kPosted, posts.data(), posts.size())) return lost_coordinator();
    Message message;
    CKPT_TRY(judge(hear(message), Step::kHandedOut, message));
    RoundEnd end{};
    if (message.payload.size() < sizeof(end)) return lost_coordinator();
    std::memcpy(&end, message.payload.data(), sizeof(end));
    if (!preparation::deliver(message.payload.subspan(sizeof(end)))) return no_room_for_mail();
    return end.more != 0;
  }

  Result<void> prepared() override {
    points::at("member.prepared");
    if ((request_.flags & kJoinHeld) == 0) {
      CKPT_TRY(say(Step::kPrepared));
      CKPT_TRY(await_hold());
      hold();
    }
    const Held held{can_share, 0};
    if (!send_message(socket_, Step::kHeld, &held, sizeof(held), offers.data(), offers.size_bytes()))
      return lost_coordinator();
    points::at("member.held");
    // Forks of the program wait meanwhile: not for ever, if the coordinator is stopped.
    const int64_t until = now_ns() + kHeldNs;
    while (connecting::is_holding() && wait_for_bytes(socket_, now_ns() + kBetweenNs) == Received::kTimeout)
      release_if_late();
    Message message;
    CKPT_TRY(expect(Step::kStop, until, message));
    return take_order(message.payload);
  }

  Result<void> standing() override {
    points::at("member.stopped");
    CKPT_TRY(check_tracees());
    CKPT_TRY(say(Step::kStanding));
    points::at("member.standing");
    Message sample;
    CKPT_TRY(expect(Step::kSample, deadline(), sample));
    if (sample.payload.size() == sizeof(stop_signal))
      std::memcpy(&stop_signal, sample.payload.data(), sizeof(stop_signal));
    return {};
  }

  Result<void> drained(std::span<const Bookmark> connections) override {
    if (!send_message(socket_, Step::kDrained, connections.data(), connections.size_bytes()))
      return lost_coordinator();
    return expect(Step::kPeek, deadline());
  }

  Result<void> sampled(std::span<const OpenFileKey> files, const Standing& facts,
                       std::span<const ChildNotice> unreported) override {
    if (!unreported.empty() &&
        !send_message(socket_, Step::kUnreported, unreported.data(), unreported.size_bytes()))
      return lost_coordinator();
    if (!send_message(socket_, Step::kSampled, &facts, sizeof(facts), files.data(), files.size_bytes()))
      return lost_coordinator();
    points::at("member.sampled");
    Message go;
    CKPT_TRY(writes_in_stop ? judge(hear(go), Step::kGo, go) : expect(Step::kGo, deadline(), go));
    if (const auto* others = go.as<uint32_t>()) going = *others;
    tracing_.let_go();
    points::at("member.go");
    creation::release();
    return {};
  }

  Result<void> written(const Written& facts) override {
    points::at("member.image");
    // The stream ends when all that may write to it have let go.
    stream_pipe_.reset();
    if (!send_message(socket_, Step::kWritten, &facts, sizeof(facts))) return lost_coordinator();
    // The image does not need this process any more.
    creation::release_end();
    points::at("member.written");
    CKPT_TRY(await_done());
    points::at("member.done");
    interval::put_off();
    return {};
  }

  Result<void> still_on() override {
    pollfd wait{socket_, POLLIN, 0};
    constexpr timespec kAtOnce{};
    // Nothing is said between kGo and kWritten but that it is over.
    return sys::call(__NR_ppoll, &wait, 1L, &kAtOnce, nullptr, 8L) > 0 ? expect(Step::kNone, 0)
                                                                       : Result<void>();
  }

  // Of a stream the child watches it too, for the coordinator's end; it goes with this process.
  void in_writing_child() override {
    if (!place.streamed) sys::call(__NR_close, socket_);
  }

  // For the coordinator, if it still wants to know.
  void tell(const Error& error) {
    if (told_) return;
    Failed failed{
        static_cast<uint32_t>(error.code), static_cast<uint32_t>(what_it_takes(*this)), error.sys_errno, {}};
    std::memcpy(failed.text, error.text, sizeof(failed.text));
    send_message(socket_, Step::kFailed, &failed, sizeof(failed));
  }
  // The coordinator is gone, and the checkpoint was not complete: the first member that gets the lock removes
  // its temporary directory, if no other one has that name by now.
  void tidy() {
    DirectoryLock lock;
    if (!gone_ || !directory_.valid() || !lock.try_take(directory_.get())) return;
    remove_dead_job(directory_.get(), request_.temporary);
  }

 private:
  // Twice as long as a member may take to stop: a coordinator that has said nothing by then is gone.
  static int64_t deadline() { return now_ns() + 2 * user_settings().stop_timeout_ns; }

  // Returns when creation is to be held. Ahead of it connections may be.
  Result<void> await_hold() {
    Servers servers(own_descriptors, &pause_for_coordinator, this);
    for (;;) {
      Message message;
      const Received got = hear(message);
      if (got == Received::kMessage && message.step == Step::kHoldConnects) {
        const auto* how = message.as<HoldConnects>();
        // It makes clients: none is to come that is not held.
        holds_early_ = !servers.hold_in_turn() && how != nullptr && how->creation_too != 0;
        if (holds_early_) creation::hold();
        CKPT_TRY(say(Step::kConnectsHeld));
      } else if (got == Received::kMessage && message.step == Step::kAccept) {
        servers.await_accepted();
        CKPT_TRY(say(Step::kAccepted));
      } else {
        return judge(got, Step::kHold, message);
      }
    }
  }

  // Until the coordinator says something, or is gone.
  static bool pause_for_coordinator(void* member, int64_t ns) {
    const int socket = static_cast<MemberSession*>(member)->socket_;
    return wait_for_bytes(socket, now_ns() + ns) == Received::kTimeout;
  }

  void release_if_late() {
    if (connecting::release_if_late() && std::exchange(holds_early_, false)) creation::release();
  }

  void hold() {
    holds_early_ = false;
    creation::hold();
    creation::hold_end();
  }

  Error lost_coordinator() {
    gone_ = told_ = true;
    return make_error(ExitCode::kInternal, 0,
                      "the process that led the job's checkpoint is gone; it was given up");
  }

  Result<void> say(Step step) { return send_message(socket_, step) ? Result<void>() : lost_coordinator(); }

  // The payload stays in the arena.
  Result<void> take_order(std::span<const std::byte> payload) {
    StopOrder order{};
    if (payload.size() < sizeof(order)) return lost_coordinator();
    std::memcpy(&order, payload.data(), sizeof(order));
    payload = payload.subspan(sizeof(order));
    if (payload.size() / sizeof(SharedSaver) < order.savers) return lost_coordinator();
    savers = {reinterpret_cast<const SharedSaver*>(payload.data()), order.savers};
    payload = payload.subspan(savers.size_bytes());
    return order.has_ledger == 0 ? Result<void>() : join_ledger(payload);
  }

  Result<void> join_ledger(std::span<const std::byte> payload) {
    LedgerSize size{};
    char byte;
    int descriptor = -1;
    const bool received = receive_with_descriptor(socket_, &byte, sizeof(byte), &descriptor);
    ScopedFd file(descriptor);
    if (payload.size() >= sizeof(size)) std::memcpy(&size, payload.data(), sizeof(size));
    if (received && payload.size() == sizeof(size) + size.objects * sizeof(LedgerObject) &&
        ledger.join(std::move(file), size,
                    {reinterpret_cast<const LedgerObject*>(payload.data() + sizeof(size)), size.objects})) {
      return {};
    }
    again = true;
    return make_error(
        ExitCode::kInternal, 0,
        "the ledger of the job's shared memory cannot be mapped; the checkpoint is taken again");
  }

  Result<void> expect(Step step, int64_t until_ns) {
    Message message;
    return expect(step, until_ns, message);
  }

  Result<void> expect(Step step, int64_t until_ns, Message& message) {
    return judge(receive_message(socket_, until_ns, arena_, message), step, message);
  }

  // Where threads stand until the end, another host may be left meanwhile. A process that cannot take its new
  // sockets stands until it is ended: with some of them it must not go on.
  Result<void> await_done() {
    for (;;) {
      Message message;
      const Received got = place.stays ? receive_message(socket_, 0, arena_, message) : hear(message);
      if (got == Received::kTimeout) told_ = true;  // the image counts, whatever becomes of this process
      const auto* cookie = message.as<uint64_t>();
      if (got != Received::kMessage || message.step != Step::kReconnect || cookie == nullptr)
        return judge(got, Step::kDone, message);
      if (!reconnect(*cookie)) continue;
      points::at("member.reconnected");
      CKPT_TRY(say(Step::kReconnected));
    }
  }

  // The next message, for which the coordinator may wait for others as long as it likes, but
  // not stand. One that is stopped, and that nobody traces, says nothing until somebody continues it.
  Received hear(Message& message) {
    for (int64_t stood_ns = 0; stood_ns < 2 * user_settings().stop_timeout_ns;) {
      if (wait_for_bytes(socket_, now_ns() + kBetweenNs) != Received::kTimeout)
        return receive_message(socket_, now_ns() + kHeldNs, arena_, message);
      release_if_late();
      if (!tracing_.check().ok()) break;
      // Counted in looks: this process may be stopped as well meanwhile.
      stood_ns = coordinator_stands() ? stood_ns + kBetweenNs : 0;
    }
    return Received::kTimeout;
  }

  // Its process; 0: it cannot be seen.
  int coordinator() const {
    struct {
      int32_t pid;
      uint32_t uid, gid;
    } peer{};
    socklen_t size = sizeof(peer);
    return sys::call(__NR_getsockopt, socket_, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 ? peer.pid : 0;
  }
  bool coordinator_stands() const {
    const int pid = coordinator();
    return pid != 0 && has_stopped_thread(pid) && tracer_of(pid) == 0;
  }

  Result<void> check_tracees() {
    Result<void> able = tracing_.check();
    again = again || !able.ok();
    return able;
  }

  Result<void> judge(Received got, Step step, const Message& message) {
    switch (got) {
      case Received::kMessage:
        if (message.step == step) return {};
        told_ = true;
        if (message.step == Step::kAbort)
          return make_error(ExitCode::kInternal, 0,
                            "the job's checkpoint was given up by the process that led it");
        return make_error(ExitCode::kInternal, 0, "the job's checkpoint was given up: step {} instead of {}",
                          static_cast<uint32_t>(message.step), static_cast<uint32_t>(step));
      case Received::kTimeout:
        CKPT_TRY(check_tracees());
        return make_error(ExitCode::kTimeout, 0,
                          "the process that leads the job's checkpoint said nothing; its threads go on");
      case Received::kClosed:
        break;
    }
    return lost_coordinator();
  }

  const int socket_;
  const JoinRequest& request_;
  Arena arena_;
  tracing::Service tracing_;
  ScopedFd directory_, temporary_, stream_pipe_, stream_turn_;
  bool told_ = false, gone_ = false;
  bool holds_early_ = false;  // creation, ahead of kHold
};

}  // namespace

void serve_join(int socket) {
  JoinRequest request;
  int temporary = -1;
  bool is_whole = false;
  const bool received = receive_with_descriptor(socket, &request, sizeof(request), &temporary, &is_whole);
  request.directory[sizeof(request.directory) - 1] = '\0';
  request.name[sizeof(request.name) - 1] = request.temporary[sizeof(request.temporary) - 1] = '\0';
  MemberSession session(socket, temporary, request);
  if (!received) {
    // All of it has come but the descriptor: the coordinator must not take it for a member that executes
    // another program.
    if (is_whole) session.tell(cannot_open("the checkpoint's directory, which was handed over", EMFILE));
    return;
  }
  if ((request.flags & kJoinStream) != 0) {
    int ends[2] = {-1, -1};
    char byte;
    for (int& end : ends) {
      if (receive_with_descriptor(socket, &byte, sizeof(byte), &end, &is_whole)) continue;
      if (is_whole) session.tell(cannot_open("the job's stream, which was handed over", EMFILE));
      return;
    }
    session.join_stream(ScopedFd(ends[0]), ScopedFd(ends[1]));
  }
  if (std::memcmp(request.job, own_job.identity.id, sizeof(request.job)) != 0 ||
      own_job.identity.root != request.root) {
    // The same job with another first process: its CKPT_JOB comes from another host, or was made up. The
    // coordinator has found this process among the job's own, so it must not be passed over.
    const bool other = std::memcmp(request.job, own_job.identity.id, sizeof(request.job)) != 0;
    session.tell(other ? make_error(ExitCode::kNoProcess, 0, "it is of another job")
                       : make_error(ExitCode::kUnsupported, 0,
                                    "its environment (CKPT_JOB) names another first process of this job, {}",
                                    own_job.identity.root));
    return;
  }
  points::at("member.joined");
  if (const Result<void> opened = session.open(); !opened.ok()) {
    session.tell(opened.error());
    return;
  }
  Result<void> result;
  {
    ScopedSession scope(session);
    auto taken = take_checkpoint();
    if (!taken.ok()) result = taken.error();
  }
  if (!result.ok()) {
    session.tell(result.error());
    session.tidy();
  }
}

}  // namespace ckpt::job
