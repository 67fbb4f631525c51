#include "cli/hosts/crew/crew.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <limits.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "base/clock.h"
#include "cli/hosts/job/hosts_run.h"
#include "cli/starting/run_command.h"
#include "cli/text/failure.h"

namespace ckpt::cli {

namespace {

constexpr int64_t kAssembleNs = 60'000'000'000;
constexpr int64_t kAnswerNs = 60'000'000'000;  // and as long as a host may be silent

// The path of this program, which must be the same on the other hosts.
std::string own_path() {
  char path[PATH_MAX];
  const ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 1);
  return std::string(path, n > 0 ? static_cast<size_t>(n) : 0);
}

Json own_addresses() {
  Json addresses = Json::array();
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return addresses;
  for (int family : {AF_INET, AF_INET6}) {
    for (ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
      if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != family || (i->ifa_flags & IFF_UP) == 0)
        continue;
      char text[INET6_ADDRSTRLEN] = {};
      const auto* six = reinterpret_cast<const sockaddr_in6*>(i->ifa_addr);
      if (family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&six->sin6_addr)) continue;
      const void* at = family == AF_INET6 ? static_cast<const void*>(&six->sin6_addr)
                                          : &reinterpret_cast<const sockaddr_in*>(i->ifa_addr)->sin_addr;
      if ((i->ifa_flags & IFF_LOOPBACK) == 0) addresses.push_back(inet_ntop(family, at, text, sizeof(text)));
    }
  }
  freeifaddrs(list);
  // Last: agents on this very host, where there is nothing else.
  addresses.push_back(kLoopback);
  return addresses;
}

// An error if such a signal has come.
Result<void> look_for_signal() {
  const int signal = signal_to_end();
  if (signal == 0) return {};
  return make_error(static_cast<ExitCode>(128 + signal), EINTR, "given up, for signal {} came", signal);
}

}  // namespace

int signal_to_end() {
  sigset_t pending;
  sigpending(&pending);
  for (const int s : {SIGINT, SIGTERM, SIGHUP}) {
    if (sigismember(&pending, s) == 1) return s;
  }
  return 0;
}

std::vector<std::string> adapters_of(const CrewHost& host) {
  const Json named = host.here.value("adapters", Json::array());
  std::vector<std::string> adapters;
  for (const Json& one : named) {
    if (one.is_string()) adapters.push_back(one.get<std::string>());
  }
  return adapters;
}

Crew::Crew(std::vector<std::string> names, std::vector<std::string> where, std::string launch, int silence_ms,
           bool fenced)
    : launch_(std::move(launch)), silence_ms_(silence_ms), fenced_(fenced) {
  for (size_t i = 0; i < names.size(); ++i) {
    hosts_.emplace_back();
    hosts_.back().name = std::move(names[i]);
    hosts_.back().where = std::move(where[i]);
  }
}

Crew::~Crew() { dismiss(); }

// The secret goes over its standard input, which nobody else can read: not on a command line, not in a file.
Result<void> Crew::start(CrewHost& host, const Json& task) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return failure(ExitCode::kSystem, host.where, "no socket for its agent", "raise ulimit -n");
  std::vector<std::string> words = launch_words(launch_, host.where);
  words.push_back(own_path());
  words.push_back("agent");
  host.launch = fork();
  if (host.launch == 0) {
    // Signals of the terminal are for the head, which tells the agents.
    setpgid(0, 0);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    dup2(ends[1], STDIN_FILENO);
    become(words);
  }
  const ScopedFd ours(ends[0]), theirs(ends[1]);
  if (host.launch < 0)
    return failure(ExitCode::kSystem, host.where, "no process for its agent", "raise ulimit -u");
  if (!write_line(ours.get(), task))
    return failure(ExitCode::kSystem, host.where, "its agent takes nothing", "report it");
  return {};
}

void Crew::take_in(Admission::Guest guest) {
  for (CrewHost& h : hosts_) {
    if (h.name != guest.here.value("host", "") || h.link.valid()) continue;
    h.link = std::move(guest.link);
    h.link.allow_silence(silence_ms_);
    h.address = guest.here.value("address", "");
    h.here = std::move(guest.here);
    return;
  }
}

Result<void> Crew::assemble() {
  const cluster::Secret secret = cluster::make_secret();
  int port = 0;
  // Both kinds of addresses; where the kernel has no IPv6, the one that is left.
  auto listener = cluster::listen_at("::", 0, &port);
  if (!listener.ok()) listener = cluster::listen_at("0.0.0.0", 0, &port);
  if (!listener.ok()) return listener.error();
  for (CrewHost& h : hosts_) {
    if (h.link.valid()) continue;
    CKPT_TRY(start(h, {{"secret", cluster::hex_of(secret)},
                       {"addresses", own_addresses()},
                       {"port", port},
                       {"silence_ms", fenced_ ? silence_ms_ / 2 : silence_ms_},
                       {"host", h.name}}));
  }
  const int64_t deadline = now_ns() + kAssembleNs;
  Admission admission(secret);
  for (;;) {
    for (Admission::Guest& guest : admission.take()) take_in(std::move(guest));
    CrewHost* missing = nullptr;
    for (CrewHost& h : hosts_) {
      if (!h.link.valid() && missing == nullptr) missing = &h;
    }
    if (missing == nullptr) return {};  // and nobody listens any more
    if (auto wanted = look_for_signal(); !wanted.ok()) {
      for (CrewHost& h : hosts_) h.gone = h.gone || !h.link.valid();
      return wanted;
    }
    for (CrewHost& h : hosts_) {
      int status = 0;
      if (h.link.valid() || h.launch <= 0 || waitpid(h.launch, &status, WNOHANG) != h.launch) continue;
      h.launch = -1;
      h.gone = true;
      return failure(ExitCode::kUnavailable, h.where,
                     fmt::format("its agent could not be started: the command of --launch ended with {}",
                                 WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status)),
                     "see its words above, and that ckpt is at the same path there");
    }
    missing->gone = now_ns() > deadline;
    if (missing->gone)
      return failure(ExitCode::kTimeout, missing->where, "its agent did not come within 60 s",
                     "look whether this host can be reached from there");
    constexpr int kLookMs = 10;  // for those who are being met
    pollfd wait{admission.has_room() ? listener->get() : -1, POLLIN, 0};
    if (poll(&wait, 1, kLookMs) <= 0) continue;
    ScopedFd peer(accept4(listener->get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (peer.valid()) admission.meet(std::move(peer));
  }
}

bool Crew::tell(int host, const Json& what) {
  CrewHost& h = hosts_[static_cast<size_t>(host)];
  return h.link.valid() && h.link.send(what.dump(-1, ' ', false, Json::error_handler_t::replace));
}

void Crew::tell_all(const Json& what) {
  for (size_t i = 0; i < hosts_.size(); ++i) tell(static_cast<int>(i), what);
}

bool Crew::hear(int host, std::vector<Json>& out) {
  CrewHost& h = hosts_[static_cast<size_t>(host)];
  out.insert(out.end(), h.early.begin(), h.early.end());
  h.early.clear();
  std::vector<std::string> messages;
  const bool there = h.link.valid() && h.link.receive(messages, false);
  for (const std::string& m : messages) {
    Json j = Json::parse(m, nullptr, false);
    if (j.is_object()) out.push_back(std::move(j));
  }
  if (!there) h.link.close();
  h.gone = h.gone || !there;
  return there;
}

Result<std::vector<Json>> Crew::expect_all(const std::string& say, int64_t patience_ns) {
  std::vector<Json> all(hosts_.size());
  std::vector<std::vector<Json>> asked(hosts_.size());  // by users, who are answered later
  const int64_t deadline = now_ns() + patience_ns;
  const auto put_asked_back = [&] {
    for (size_t i = 0; i < hosts_.size(); ++i)
      hosts_[i].early.insert(hosts_[i].early.begin(), asked[i].begin(), asked[i].end());
  };
  for (;;) {
    std::vector<pollfd> polls;
    int missing = -1;
    for (size_t i = 0; i < hosts_.size(); ++i) {
      if (all[i].is_null()) missing = static_cast<int>(i);
      polls.push_back({all[i].is_null() ? hosts_[i].link.fd() : -1, POLLIN, 0});
    }
    if (missing < 0) {
      put_asked_back();
      return all;
    }
    CKPT_TRY(look_for_signal());
    if (now_ns() > deadline)
      return failure(ExitCode::kTimeout, hosts_[static_cast<size_t>(missing)].where, "did not answer in time",
                     "look at that host");
    (void)!poll(polls.data(), polls.size(), 100);
    for (size_t i = 0; i < hosts_.size(); ++i) {
      if (polls[i].revents == 0) continue;
      std::vector<Json> messages;
      const bool there = hear(static_cast<int>(i), messages);
      for (Json& m : messages) {
        if (!all[i].is_null()) {
          hosts_[i].early.push_back(std::move(m));
        } else if (m.value("say", "") == say) {
          all[i] = std::move(m);
        } else if (m.value("say", "") == "ask") {
          asked[i].push_back(std::move(m));
        } else if (m.value("say", "") == "cannot") {
          return make_error(static_cast<ExitCode>(m.value("code", 70)), 0, "{}: {}", hosts_[i].where,
                            m.value("text", ""));
        } else if (m.value("say", "") == "ended") {
          return failure(
              ExitCode::kUnavailable, hosts_[i].where,
              fmt::format("its processes could not be started: exit code {}", m.value("status", 0)),
              "see the words above");
        }
      }
      if (!there && all[i].is_null())
        return failure(ExitCode::kUnavailable, hosts_[i].where, "its agent is gone", "look at that host");
    }
  }
}

// The middle of a question and its answer is when the other clock was read; of five the quickest.
Result<void> Crew::measure_clocks() {
  for (int round = 0; round < 5; ++round) {
    for (size_t i = 0; i < hosts_.size(); ++i) {
      CrewHost& h = hosts_[i];
      const int64_t before = now_ns(CLOCK_REALTIME), steady = now_ns();
      if (!tell(static_cast<int>(i), {{"say", "clock"}}))
        return failure(ExitCode::kUnavailable, h.where, "its agent is gone", "look at that host");
      std::vector<std::string> messages;
      if (!h.link.receive(messages, true))
        return failure(ExitCode::kUnavailable, h.where, "its agent is gone", "look at that host");
      const int64_t took = now_ns() - steady;
      const Json j = Json::parse(messages[0], nullptr, false);
      if (round != 0 && took >= h.round_trip_ns) continue;
      h.round_trip_ns = took;
      h.clock_offset_ns = j.value("ns", int64_t{0}) - (before + took / 2);
    }
  }
  return {};
}

Result<void> Crew::check_alike(const CrewHost& first) const {
  for (const CrewHost& h : hosts_) {
    for (const char* what : {"version", "machine"}) {
      if (h.here.value(what, "") == first.here.value(what, "")) continue;
      return failure(ExitCode::kIncompatible, h.where,
                     fmt::format("has {} {}, and {} has {}", what, h.here.value(what, ""), first.where,
                                 first.here.value(what, "")),
                     "install the same ckpt on all hosts");
    }
    for (const auto& [name, sum] : first.here["files"].items()) {
      if (h.here["files"].value(name, "") == sum) continue;
      return failure(ExitCode::kIncompatible, h.where,
                     fmt::format("has another {} than {}", name, first.where),
                     "a process could not come back there: install the same packages on all hosts");
    }
  }
  return {};
}

std::vector<int> Crew::find_gone() {
  std::vector<bool> asked(hosts_.size());
  std::vector<std::vector<Json>> others(hosts_.size());  // for whoever hears next
  for (size_t i = 0; i < hosts_.size(); ++i) {
    CrewHost& h = hosts_[i];
    if (!h.link.valid()) continue;
    asked[i] = tell(static_cast<int>(i), {{"say", "clock"}});
    h.gone = h.gone || !asked[i];
  }
  const int64_t deadline = now_ns() + kAnswerNs + int64_t{silence_ms_} * 1'000'000;
  for (;;) {
    std::vector<pollfd> polls;
    for (size_t i = 0; i < hosts_.size(); ++i)
      polls.push_back({asked[i] ? hosts_[i].link.fd() : -1, POLLIN, 0});
    if (std::find(asked.begin(), asked.end(), true) == asked.end()) break;
    if (now_ns() > deadline) {
      // A host that is silent for so long takes part in nothing.
      for (size_t i = 0; i < hosts_.size(); ++i) hosts_[i].gone = hosts_[i].gone || asked[i];
      break;
    }
    (void)!poll(polls.data(), polls.size(), 100);
    for (size_t i = 0; i < hosts_.size(); ++i) {
      if (polls[i].revents == 0) continue;
      std::vector<Json> messages;
      const bool there = hear(static_cast<int>(i), messages);
      if (!there) asked[i] = false;
      for (Json& m : messages) {
        if (m.value("say", "") == "clock")
          asked[i] = false;
        else
          others[i].push_back(std::move(m));
      }
    }
  }
  for (size_t i = 0; i < hosts_.size(); ++i)
    hosts_[i].early.insert(hosts_[i].early.end(), others[i].begin(), others[i].end());
  std::vector<int> all;
  for (size_t i = 0; i < hosts_.size(); ++i) {
    if (hosts_[i].gone) all.push_back(static_cast<int>(i));
  }
  return all;
}

void Crew::replace(int host, const std::string& where) {
  CrewHost& h = hosts_[static_cast<size_t>(host)];
  // Nobody answers there, and the command may wait for minutes.
  if (h.launch > 0) {
    kill(h.launch, SIGTERM);
    left_.push_back(h.launch);
  }
  std::string name = std::move(h.name);
  h = CrewHost{};
  h.name = std::move(name);
  h.where = where;
}

void Crew::dismiss() {
  for (size_t i = 0; i < hosts_.size(); ++i) {
    Json end{{"say", "end"}, {"at_once", at_once_}};
    if (stay_.size() == hosts_.size()) end["parts"] = stay_[i];
    tell(static_cast<int>(i), end);
  }
  // Nobody answers there, and the command that called it may wait for minutes.
  for (const CrewHost& h : hosts_) {
    if (h.gone && h.launch > 0) kill(h.launch, SIGTERM);
  }
  const int64_t deadline = now_ns() + 10'000'000'000;
  for (CrewHost& h : hosts_) {
    // An agent whose head is gone ends as well.
    while (h.launch > 0 && waitpid(h.launch, nullptr, WNOHANG) == 0) {
      if (now_ns() > deadline) {
        kill(h.launch, SIGTERM);
        break;
      }
      (void)!poll(nullptr, 0, 10);
    }
    h.launch = -1;
    h.link.close();
  }
  for (const pid_t launch : left_) (void)waitpid(launch, nullptr, WNOHANG);
  left_.clear();
}

}  // namespace ckpt::cli
