#include "cluster/srun/launcher/launcher.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <map>

#include "base/clock.h"
#include "cluster/srun/asked/hostlist.h"
#include "cluster/srun/asked/output_name.h"
#include "cluster/srun/signals.h"

namespace ckpt::cluster::srun {

namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kKillWait = 30 * kSecond;  // as Slurm's, unless a site sets another

// "task 3", "tasks 0-2,5"
std::string tasks_text(const std::vector<int>& tasks) {
  std::vector<std::string> numbers;
  for (const int t : tasks) numbers.push_back(std::to_string(t));
  std::string list = compress_hostlist(numbers);
  std::erase_if(list, [](char c) { return c == '[' || c == ']'; });
  return (tasks.size() == 1 ? "task " : "tasks ") + list;
}

// CKPT_HOSTS is JOB:HOST. Without it the job has this host alone.
bool is_here(const std::string& node) {
  const char* hosts = getenv("CKPT_HOSTS");
  if (hosts == nullptr) {
    char name[256] = {};
    gethostname(name, sizeof(name) - 1);
    const char* slurm = getenv("SLURMD_NODENAME");
    return node == name || (slurm != nullptr && node == slurm);
  }
  const char* colon = strrchr(hosts, ':');
  return colon != nullptr && node == colon + 1;
}

}  // namespace

Launcher::Launcher(Step step)
    : step_(std::move(step)),
      nodes_(step_.layout.nodes.size()),
      has_ended_(step_.layout.node_of.size()),
      left_(step_.layout.count()) {
  own_words_ = &streams_.emplace_back(STDERR_FILENO, 0);
  if (serves_pmi(step_.options.mpi)) pmi_ = std::make_unique<PmiServer>(step_.layout, step_.id());
  if (step_.options.mpi == Mpi::kPmix) pmix_ = std::make_unique<PmixRouter>(step_.layout);
}

template <typename... Args>
void Launcher::say(const char* format, Args&&... args) {
  if (step_.options.quiet && !std::string_view(format).starts_with("error:")) return;
  own_words_->say("srun: " + fmt::format(fmt::runtime(format), std::forward<Args>(args)...) + "\n");
}

bool Launcher::open_streams() {
  const Options& o = step_.options;
  const int width = o.label ? static_cast<int>(std::to_string(step_.layout.count() - 1).size()) : 0;
  const auto open_one = [&](const std::string& name, int flags) {
    const std::string path = file_name(name, step_, -1, -1);
    files_.emplace_back(open(path.c_str(), flags | O_CLOEXEC, 0666));
    if (!files_.back().valid()) say("error: {}: cannot be opened ({})", path, strerror(errno));
    return files_.back().get();
  };
  const int write_flags = O_WRONLY | O_CREAT | (o.append ? O_APPEND : O_TRUNC);
  const auto stream = [&](const std::string& name, int standard) -> OutputStream* {
    if (name == "none" || is_opened_by_node(name)) return nullptr;
    const int fd = is_file(name) ? open_one(name, write_flags) : standard;
    if (fd >= 0) streams_.emplace_back(fd, width);
    return fd >= 0 ? &streams_.back() : nullptr;
  };
  out_ = stream(o.output, STDOUT_FILENO);
  // Output and errors go to one file, if not said otherwise.
  const bool same = is_file(o.output) && (o.error.empty() || o.error == o.output);
  err_ = same ? out_ : stream(o.error.empty() ? o.output : o.error, STDERR_FILENO);
  input_ = o.input == "none" || is_opened_by_node(o.input) ? -1
           : is_file(o.input)                              ? open_one(o.input, O_RDONLY)
                                                           : STDIN_FILENO;
  // In order with the tasks' errors, where these go to the same place.
  if (err_ != nullptr && err_->fd() == STDERR_FILENO) own_words_ = err_;
  return std::all_of(files_.begin(), files_.end(), [](const ScopedFd& f) { return f.valid(); });
}

bool Launcher::connect() {
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const std::string& name = step_.layout.nodes[i];
    const bool here = is_here(name);
    if (!here && getenv("CKPT_ON") == nullptr) {
      say("error: {} is another host, and this job has one only; use ckpt run -- srun, or ckpt run --hosts "
          "allocation",
          name);
      code_ = static_cast<int>(ExitCode::kUnsupported);
      return false;
    }
    if (!nodes_[i].connect(name, here)) {
      say("error: no process for {} ({})", name, strerror(errno));
      code_ = 1;
      return false;
    }
    nodes_[i].say(Say::kStart, -1, write_order(order_for(step_, static_cast<int>(i), environ)));
  }
  return true;
}

int Launcher::run() {
  signal(SIGPIPE, SIG_IGN);
  take_signals({SIGCHLD, SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGCONT, SIGALRM});
  tick();
  if (!open_streams()) {
    code_ = 1;
  } else if (connect()) {
    while (!all_done()) {
      wait_and_pass_on();
      tick();
      take_interrupts();
      look_at_clock();
    }
  }
  end_nodes();
  return code_;
}

void Launcher::end_nodes() {
  for (FarNode& n : nodes_) {
    if (n.there()) n.say(Say::kAllSaid, -1);
  }
  int stop = SIGTERM;
  while (true) {
    std::vector<pid_t> waited_for;
    std::vector<pollfd> polls;
    for (FarNode& n : nodes_) {
      n.write_some();
      if (!n.wants_to_write()) n.end();
      if (n.pid() > 0 && waitpid(n.pid(), nullptr, WNOHANG) == 0) {
        waited_for.push_back(n.pid());
        polls.push_back({n.from(), POLLIN, 0});
        polls.push_back({n.wants_to_write() ? n.to() : -1, POLLOUT, 0});
      }
    }
    for (const OutputStream& s : streams_) {
      if (s.wants_to_write()) polls.push_back({s.fd(), POLLOUT, 0});
    }
    if (polls.empty() && waited_for.empty()) return;
    if (ppoll(polls.data(), polls.size(), nullptr, wait_mask()) > 0) {
      for (OutputStream& s : streams_) {
        const auto it =
            std::find_if(polls.begin(), polls.end(), [&](const pollfd& p) { return p.fd == s.fd(); });
        if (it != polls.end() && it->revents != 0 && s.wants_to_write()) write_stream(s);
      }
      // Nothing that counts: a way is not to be held up by what it still carries.
      std::vector<Frame> frames;
      for (FarNode& n : nodes_) {
        const auto it =
            std::find_if(polls.begin(), polls.end(), [&](const pollfd& p) { return p.fd == n.from(); });
        if (n.there() && it != polls.end() && it->revents != 0) n.read_some(frames);
      }
    }
    bool ends = false;
    for (const int s : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) ends = has_come(s) || ends;
    if (!ends) continue;
    // The user waits no longer: for the nodes, nor for those who do not read.
    if (waited_for.empty()) return;
    for (const pid_t pid : waited_for) kill(pid, stop);
    stop = SIGKILL;
  }
}

bool Launcher::all_done() const {
  for (const FarNode& n : nodes_) {
    if (n.there() && !n.done) return false;
  }
  return std::none_of(streams_.begin(), streams_.end(),
                      [](const OutputStream& s) { return s.wants_to_write(); });
}

OutputStream* Launcher::stream_of(int task, bool error) {
  const Options& o = step_.options;
  const std::string& name = error && !o.error.empty() ? o.error : o.output;
  // The number of a task: that one's alone.
  if (!is_file(name) && name != "all" && name != std::to_string(task)) return nullptr;
  return error ? err_ : out_;
}

void Launcher::wait_and_pass_on() {
  std::vector<pollfd> polls;
  const bool reads = input_ >= 0 && !input_ended_ &&
                     std::all_of(nodes_.begin(), nodes_.end(),
                                 [](const FarNode& n) { return !n.there() || n.inputs.room() != 0; });
  polls.push_back({reads ? input_ : -1, POLLIN, 0});
  for (OutputStream& s : streams_) polls.push_back({s.wants_to_write() ? s.fd() : -1, POLLOUT, 0});
  for (FarNode& n : nodes_) {
    polls.push_back({n.is_behind() ? -1 : n.from(), POLLIN, 0});
    polls.push_back({n.wants_to_write() ? n.to() : -1, POLLOUT, 0});
  }
  const bool clock =
      kill_at_ns_ != 0 || step_.options.time_s != 0 || (step_.options.wait_s != 0 && first_end_ns_ != 0);
  constexpr timespec kLook{1, 0};
  if (ppoll(polls.data(), polls.size(), clock ? &kLook : nullptr, wait_mask()) < 0) return;
  if (polls[0].revents != 0) read_input();
  size_t at = 1;
  for (OutputStream& s : streams_) {
    if (polls[at++].revents == 0) continue;
    write_stream(s);
  }
  for (size_t i = 0; i < nodes_.size(); ++i, at += 2) {
    FarNode& n = nodes_[i];
    if (polls[at].revents != 0) {
      std::vector<Frame> frames;
      const bool there = n.read_some(frames);
      for (const Frame& f : frames) hear(i, f);
      say_ends(i);
      if (!there) lose(i);
    }
    if (const std::string word = n.outputs.word(); !word.empty()) n.say(Say::kTaken, -1, word.substr(1));
  }
  for (FarNode& n : nodes_) n.write_some();
}

void Launcher::write_stream(OutputStream& s) {
  const bool read = s.write_some(
      [this](int node, size_t bytes) { nodes_[static_cast<size_t>(node)].outputs.passed_on(bytes); });
  if (read) return;
  const int error = errno;
  // Both may lead there.
  for (FarNode& n : nodes_) {
    if (&s == err_) n.say(Say::kErrorEnd, -1);
    if (&s == out_) n.say(Say::kOutputEnd, -1);
  }
  if (error == EPIPE) return;  // the reader has seen enough
  code_ = std::max(code_, 1);
  const std::string& name =
      &s == out_ || step_.options.error.empty() ? step_.options.output : step_.options.error;
  say("error: {}: cannot be written ({})",
      is_file(name)             ? file_name(name, step_, -1, -1)
      : s.fd() == STDOUT_FILENO ? "standard output"
                                : "standard error",
      strerror(error));
}

void Launcher::hear(size_t node, const Frame& f) {
  FarNode& n = nodes_[node];
  const bool of_node = f.task >= 0 && f.task < step_.layout.count() &&
                       step_.layout.node_of[static_cast<size_t>(f.task)] == static_cast<int>(node);
  if (f.say == Say::kTaken) n.inputs.heard(f.bytes);
  if (f.say == Say::kDone) n.done = true;
  if (f.say == Say::kPmix) route(node, f);
  if (f.say == Say::kNotStarted && f.task < 0) {
    say("error: {}: {}", n.name(), f.bytes);
    lose(node);
  }
  if (!of_node) return;
  const bool error = f.say == Say::kError || f.say == Say::kErrorEnd;
  OutputStream* stream = stream_of(f.task, error);
  switch (f.say) {
    case Say::kOutput:
    case Say::kError:
      n.outputs.took_frame();
      if (stream != nullptr)
        stream->add(static_cast<int>(node), f.task, f.bytes);
      else
        n.outputs.passed_on(f.bytes.size());
      break;
    case Say::kOutputEnd:
    case Say::kErrorEnd:
      if (stream != nullptr) stream->end(f.task);
      break;
    case Say::kPmi:
      if (pmi_ != nullptr) {
        PmiServer::Actions actions;
        pmi_->hear(f.task, f.bytes, actions);
        act(actions);
      }
      break;
    case Say::kNotStarted:
      say("error: {}: task {}: cannot be started: {}", n.name(), f.task, f.bytes);
      code_ = std::max(code_, 1);
      has_ended_[static_cast<size_t>(f.task)] = true;
      --left_;
      end_step(SIGKILL);
      break;
    case Say::kEnded:
      hear_end(f.task, atoi(f.bytes.c_str()));
      break;
    default:
      break;
  }
}

void Launcher::act(const PmiServer::Actions& actions) {
  for (const auto& [task, bytes] : actions.answers) node_of(task).say(Say::kPmi, task, bytes);
  for (const int task : actions.close) node_of(task).say(Say::kPmiEnd, task);
  if (actions.aborted_by >= 0) {
    abort_step(actions.aborted_by, actions.why);
  } else if (!actions.why.empty()) {
    say("error: {}", actions.why);
  }
}

void Launcher::route(size_t node, const Frame& f) {
  PmixMessage m;
  if (pmix_ == nullptr || !read_message(f.bytes, m)) return;
  PmixRouter::Actions actions;
  pmix_->hear(static_cast<int>(node), m, actions);
  for (const auto& [to, message] : actions.send)
    nodes_[static_cast<size_t>(to)].say(Say::kPmix, -1, write_message(message));
  if (actions.aborted_by >= 0) abort_step(actions.aborted_by, actions.why, actions.status);
}

void Launcher::abort_step(int task, const std::string& why, std::optional<int> status) {
  say("error: task {} has aborted the step{}{}", task, why.empty() ? "" : ": ", why);
  if (status && aborted_with_ < 0 && !ending_) {
    // As exit() has it; an abort is no success.
    aborted_with_ = (*status & 0xff) != 0 ? *status & 0xff : 1;
    code_ = std::max(code_, aborted_with_);
  }
  end_step(SIGKILL);
}

void Launcher::hear_end(int task, int status) {
  if (has_ended_[static_cast<size_t>(task)]) return;
  has_ended_[static_cast<size_t>(task)] = true;
  --left_;
  if (first_end_ns_ == 0) first_end_ns_ = run_ns_;
  ends_.push_back({task, status});
  const bool by_abort = aborted_with_ >= 0 && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  code_ = std::max(code_, by_abort              ? aborted_with_
                          : WIFSIGNALED(status) ? 128 + WTERMSIG(status)
                                                : WEXITSTATUS(status));
  if (ending_) return;
  // Others would wait for it in MPI for ever.
  const bool in_mpi = ((pmi_ != nullptr && pmi_->is_in(task)) || (pmix_ != nullptr && pmix_->is_in(task))) &&
                      left_ > 0 && step_.options.kill_on_bad_exit != 0;
  if ((status != 0 && step_.options.kill_on_bad_exit > 0) || in_mpi) {
    if (in_mpi && status == 0) say("error: task {} has ended without MPI_Finalize", task);
    say("Terminating StepId={}", step_.id());
    end_step(SIGTERM);
  }
}

// Names the tasks of one node that have ended alike in one line.
void Launcher::say_ends(size_t node) {
  std::map<int, std::vector<int>> alike;
  for (const Ended& e : ends_) {
    if (e.status != 0) alike[e.status].push_back(e.task);
  }
  ends_.clear();
  for (auto& [status, tasks] : alike) {
    std::sort(tasks.begin(), tasks.end());
    const std::string& host = nodes_[node].name();
    if (WIFSIGNALED(status))
      say("error: {}: {}: {}{}", host, tasks_text(tasks), strsignal(WTERMSIG(status)),
          WCOREDUMP(status) ? " (core dumped)" : "");
    else
      say("error: {}: {}: Exited with exit code {}", host, tasks_text(tasks), WEXITSTATUS(status));
  }
}

// Its half of ckpt-srun has ended, or the way there.
void Launcher::lose(size_t node) {
  FarNode& n = nodes_[node];
  if (n.done) return;
  n.done = true;
  if (!ending_) say("error: {}: its part of the step has ended before its tasks", n.name());
  for (const int task : step_.layout.tasks[node]) {
    // With labels a begun line may be left.
    for (const bool error : {false, true}) {
      if (OutputStream* stream = stream_of(task, error)) stream->end(task);
    }
    if (has_ended_[static_cast<size_t>(task)]) continue;
    has_ended_[static_cast<size_t>(task)] = true;
    --left_;
  }
  code_ = std::max(code_, 1);
  end_step(SIGKILL);
}

void Launcher::read_input() {
  const std::string& mode = step_.options.input;
  const bool one = mode != "all" && !is_file(mode);
  size_t room = kMostInFrame;
  for (const FarNode& n : nodes_) {
    if (n.there()) room = std::min(room, n.inputs.room());
  }
  char bytes[kMostInFrame];
  const ssize_t n = room != 0 ? read(input_, bytes, room) : 0;
  if (room == 0 || (n < 0 && (errno == EINTR || errno == EAGAIN))) return;
  input_ended_ = n <= 0;
  const auto send = [&](FarNode& to, int task) {
    if (n > 0) to.inputs.sent(static_cast<size_t>(n));
    to.say(n > 0 ? Say::kInput : Say::kInputEnd, task, {bytes, static_cast<size_t>(std::max<ssize_t>(n, 0))});
  };
  if (one) return send(node_of(std::stoi(mode)), std::stoi(mode));
  for (FarNode& to : nodes_) {
    if (to.there()) send(to, -1);
  }
}

void Launcher::signal_tasks(int signal) {
  for (FarNode& n : nodes_) {
    if (n.there()) n.say(Say::kSignal, -1, std::to_string(signal));
  }
}

void Launcher::end_step(int signal) {
  ending_ = true;
  kill_at_ns_ = run_ns_ + kKillWait;
  signal_tasks(signal);
}

void Launcher::take_interrupts() {
  for (const int s : {SIGUSR1, SIGUSR2, SIGCONT, SIGALRM}) {
    if (has_come(s)) signal_tasks(s);
  }
  if (has_come(SIGTERM) || has_come(SIGHUP) || has_come(SIGQUIT)) {
    say("forcing job termination");
    end_step(SIGKILL);
  }
  if (!has_come(SIGINT)) return;
  const int64_t now = run_ns_;
  if (ending_) {
    say("forcing job termination");
    end_step(SIGKILL);
  } else if (interrupted_ns_ != 0 && now - interrupted_ns_ < kSecond) {
    say("sending Ctrl-C to StepId={}", step_.id());
    end_step(SIGINT);
  } else {
    std::vector<int> running;
    for (int t = 0; t < step_.layout.count(); ++t) {
      if (!has_ended_[static_cast<size_t>(t)]) running.push_back(t);
    }
    say("interrupt (one more within 1 sec to abort)");
    say("StepId={} {}: running", step_.id(), tasks_text(running));
    interrupted_ns_ = now;
  }
}

void Launcher::tick() {
  // Longer than any look takes: between them lies a restart, or a sleep of the host.
  constexpr int64_t kMost = 2 * kSecond;
  const int64_t now = now_ns();
  if (looked_ns_ != 0) run_ns_ += std::clamp<int64_t>(now - looked_ns_, 0, kMost);
  looked_ns_ = now;
}

// --time and --wait.
void Launcher::look_at_clock() {
  const Options& o = step_.options;
  const int64_t now = run_ns_;
  if (kill_at_ns_ != 0 && now > kill_at_ns_) {
    kill_at_ns_ = 0;
    signal_tasks(SIGKILL);
  }
  if (ending_ || left_ == 0) return;
  if (o.time_s != 0 && now > o.time_s * kSecond) {
    say("error: StepId={} has come to its time limit", step_.id());
    end_step(SIGKILL);
  } else if (o.wait_s != 0 && first_end_ns_ != 0 && now - first_end_ns_ > o.wait_s * kSecond) {
    say("First task exited {}s ago", o.wait_s);
    say("Terminating StepId={}", step_.id());
    end_step(SIGKILL);
  }
}

}  // namespace ckpt::cluster::srun
