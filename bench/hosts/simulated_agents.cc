#include "bench/hosts/simulated_agents.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "base/clock.h"

namespace ckpt::bench {

using cli::Json;
using cluster::AgentAction;
using cluster::Order;
using cluster::Step;

namespace {

constexpr int64_t kMs = 1'000'000, kPreparedNs = 60'000 * kMs, kInDoubtNs = 30'000 * kMs;

[[noreturn]] void die(const char* what) {
  fmt::print(stderr, "agents: {}\n", what);
  exit(1);
}

}  // namespace

SimulatedAgents::SimulatedAgents(cli::Crew& crew, int64_t stop_timeout_ns)
    : agents_(crew.hosts().size()), in_stop_ns_(stop_timeout_ns / 4 * 3) {
  epoll_.reset(epoll_create1(EPOLL_CLOEXEC));
  wake_.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  const cluster::Secret secret = cluster::make_secret();
  for (size_t h = 0; h < agents_.size(); ++h) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) die("no sockets: raise ulimit -n");
    std::thread other([&] {
      auto link = cluster::SealedLink::connect(ScopedFd(ends[1]), secret);
      if (link.ok()) agents_[h].link = std::move(*link);
    });
    auto link = cluster::SealedLink::accept(ScopedFd(ends[0]), secret);
    other.join();
    if (!link.ok() || !agents_[h].link.valid()) die("two ends of a link do not meet");
    crew.hosts()[h].link = std::move(*link);
    crew.hosts()[h].address = "127.0.0.1";
    epoll_event event{EPOLLIN, {.u64 = h}};
    epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, agents_[h].link.fd(), &event);
  }
  epoll_event event{EPOLLIN, {.u64 = ~0ull}};
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event);
  thread_ = std::thread([this] { loop(); });
}

SimulatedAgents::~SimulatedAgents() {
  done_ = true;
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof(one));
  thread_.join();
}

void SimulatedAgents::begin(const Trouble& trouble) {
  const std::lock_guard<std::mutex> guard(lock_);
  trouble_ = trouble;
  seen_ = {};
  for (Agent& a : agents_) a.durable = false;
}

bool SimulatedAgents::settle(int64_t patience_ns) {
  const int64_t end = now_ns() + patience_ns;
  for (;;) {
    {
      const std::lock_guard<std::mutex> guard(lock_);
      const bool quiet = std::ranges::all_of(agents_, [](const Agent& a) {
        return !a.link.valid() ||
               (a.stood_ns == 0 && a.machine.phase() == cluster::AgentMachine::Phase::kIdle);
      });
      if (quiet) return true;
    }
    if (now_ns() > end) return false;
    usleep(1000);
  }
}

Seen SimulatedAgents::seen() const {
  const std::lock_guard<std::mutex> guard(lock_);
  Seen seen = seen_;
  for (const Agent& a : agents_) seen.parts += a.durable ? 1 : 0;
  return seen;
}

void SimulatedAgents::end_program() {
  const std::lock_guard<std::mutex> guard(lock_);
  for (Agent& a : agents_) {
    if (!a.link.valid()) continue;
    tell(a, {{"say", "ended"}, {"status", 0}});
    return;
  }
}

// About as long as processes of some 100 MiB take.
int64_t SimulatedAgents::time_for(Step step) {
  const auto between = [this](int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random_);
  };
  switch (step) {
    case Step::kPrepared:
      return between(2 * kMs, 8 * kMs);
    case Step::kStanding:
      return between(kMs / 5, 2 * kMs);
    case Step::kDrained:
    case Step::kSampled:
      return between(kMs / 10, kMs / 2);
    case Step::kDurable:
      return between(40 * kMs, 80 * kMs);
    default:
      return kMs / 10;
  }
}

void SimulatedAgents::tell(Agent& agent, const Json& what) {
  const std::string text = what.dump();
  ++seen_.to_head;
  seen_.bytes += text.size();
  if (!agent.link.send(text)) agent.link.close();
}

void SimulatedAgents::loop() {
  std::vector<epoll_event> ready(256);
  while (!done_) {
    int64_t next = now_ns() + 50 * kMs;
    {
      const std::lock_guard<std::mutex> guard(lock_);
      const int64_t now = now_ns();
      while (!events_.empty() && events_.top().at_ns <= now) {
        const Event event = events_.top();
        events_.pop();
        happen(event);
      }
      for (size_t h = 0; h < agents_.size(); ++h) {
        Agent& a = agents_[h];
        if (a.deadline_ns == 0) continue;
        if (a.deadline_ns > now) {
          next = std::min(next, a.deadline_ns);
          continue;
        }
        a.deadline_ns = 0;
        cluster::AgentMachine::Actions out;
        a.machine.timed_out(out);
        act(static_cast<int>(h), out);
      }
      if (!events_.empty()) next = std::min(next, events_.top().at_ns);
    }
    const int64_t left = std::max<int64_t>(next - now_ns(), 0);
    const timespec wait{left / 1'000'000'000, left % 1'000'000'000};
    const int n = epoll_pwait2(epoll_.get(), ready.data(), static_cast<int>(ready.size()), &wait, nullptr);
    const std::lock_guard<std::mutex> guard(lock_);
    for (int i = 0; i < n; ++i) {
      if (ready[static_cast<size_t>(i)].data.u64 != ~0ull)
        hear(static_cast<int>(ready[static_cast<size_t>(i)].data.u64));
    }
  }
}

void SimulatedAgents::hear(int host) {
  Agent& a = agents_[static_cast<size_t>(host)];
  std::vector<std::string> messages;
  const bool there = a.link.receive(messages, false);
  for (const std::string& m : messages) {
    const Json j = Json::parse(m, nullptr, false);
    ++seen_.to_hosts;
    seen_.bytes += m.size();
    if (a.cut_off || j.value("say", "") != "order") continue;
    cluster::AgentMachine::Actions out;
    a.machine.ordered(j.value("id", uint64_t{0}), static_cast<Order>(j.value("order", 6)), out);
    act(host, out);
  }
  if (there) return;
  a.link.close();
  cluster::AgentMachine::Actions out;
  a.machine.lost_head(out);
  act(host, out);
}

void SimulatedAgents::go_on(Agent& agent) {
  if (agent.stood_ns == 0) return;
  seen_.longest_stand_ns = std::max(seen_.longest_stand_ns, now_ns() - agent.stood_ns);
  agent.stood_ns = 0;
}

void SimulatedAgents::plan(int host, Step step) {
  Agent& a = agents_[static_cast<size_t>(host)];
  events_.push({now_ns() + time_for(step), host, ++a.generation, step});
  if (host != trouble_.host || step != trouble_.step || step == Step::kNone) return;
  switch (trouble_.kind) {
    case Trouble::Kind::kNone:
      break;
    case Trouble::Kind::kSlow:
      events_.push({now_ns() + trouble_.slow_ns, host, ++a.generation, step});
      break;
    case Trouble::Kind::kFails:
      events_.push({now_ns() + time_for(step), host, ++a.generation, Step::kNone});
      break;
    case Trouble::Kind::kFailedBefore:
      // That the checkpoint before this one failed here, it says late.
      tell(a, {{"say", "failed"}, {"id", a.machine.id() - 1}, {"code", 70}, {"text", "the one before"}});
      break;
    case Trouble::Kind::kDies:
      ++a.generation;
      go_on(a);
      a.link.close();
      break;
    case Trouble::Kind::kCutOff:
      // Its time-outs run, and nothing that it says arrives.
      a.cut_off = true;
      break;
  }
}

void SimulatedAgents::happen(const Event& event) {
  Agent& a = agents_[static_cast<size_t>(event.host)];
  if (event.generation != a.generation) return;
  if (event.step == Step::kStanding) a.stood_ns = now_ns();
  if (event.step == Step::kDurable) a.durable = true;
  cluster::AgentMachine::Actions out;
  if (event.step == Step::kNone) {
    go_on(a);
    a.machine.ended(out);
  } else {
    a.machine.came_to(event.step, out);
  }
  act(event.host, out);
}

void SimulatedAgents::act(int host, const cluster::AgentMachine::Actions& actions) {
  using K = AgentAction::Kind;
  Agent& a = agents_[static_cast<size_t>(host)];
  for (const AgentAction& action : actions) {
    switch (action.kind) {
      case K::kBegin:
        plan(host, Step::kPrepared);
        break;
      case K::kContinue:
        if (action.step == Step::kSampled) go_on(a);
        plan(host, action.step == Step::kDurable ? Step::kNone : cluster::next_step(action.step));
        break;
      case K::kGiveUp:
        a.durable = false;
        go_on(a);
        plan(host, Step::kNone);
        break;
      case K::kKeepPart:
        plan(host, Step::kNone);
        break;
      case K::kReached:
        if (a.cut_off) break;
        tell(a, {{"say", "reached"},
                 {"id", action.id},
                 {"step", static_cast<int>(action.step)},
                 {"part", action.step == Step::kDurable ? "/images/part" : ""},
                 {"checksum", "0123456789abcdef"}});
        break;
      case K::kFailed:
        if (a.cut_off) break;
        tell(a,
             {{"say", "failed"}, {"id", action.id}, {"code", 75}, {"text", cluster::name_of(action.step)}});
        break;
      case K::kSetTimer:
        a.deadline_ns = now_ns() + (action.step == Step::kPrepared  ? kPreparedNs
                                    : action.step == Step::kDurable ? kInDoubtNs
                                                                    : in_stop_ns_);
        break;
      case K::kStopTimer:
        a.deadline_ns = 0;
        break;
    }
  }
}

}  // namespace ckpt::bench
