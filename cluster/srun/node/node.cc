#include "cluster/srun/node/node.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "cluster/srun/signals.h"

namespace ckpt::cluster::srun {

namespace {

constexpr size_t kMostOut = 1 << 20;      // kept for a launcher that does not read
constexpr size_t kMostAnswers = 1 << 20;  // kept for a task that does not

// Writes what can be written now. False: nobody reads it any more.
bool write_some(int fd, std::string& bytes) {
  while (!bytes.empty()) {
    const ssize_t n = write(fd, bytes.data(), bytes.size());
    if (n > 0) {
      bytes.erase(0, static_cast<size_t>(n));
      continue;
    }
    if (n < 0 && errno == EINTR) continue;
    return n < 0 && errno == EAGAIN;
  }
  return true;
}

}  // namespace

int Node::run() {
  // A process whose parent, a task, has ended becomes a child of this one, and ends with the step, as with
  // slurmstepd.
  prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
  signal(SIGPIPE, SIG_IGN);
  take_signals({SIGCHLD, SIGHUP, SIGTERM, SIGINT});
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO}) fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  while (!over_) {
    wait_and_pass_on();
    if (has_come(SIGHUP) || has_come(SIGTERM) || has_come(SIGINT)) over_ = true;
    reap();
  }
  kill_all(SIGKILL);
  end_left_over();
  while (waitpid(-1, nullptr, 0) > 0 || errno == EINTR) end_left_over();
  return 0;
}

void Node::wait_and_pass_on() {
  std::vector<pollfd> polls{{STDIN_FILENO, POLLIN, 0}, {out_.empty() ? -1 : STDOUT_FILENO, POLLOUT, 0}};
  const bool room = outputs_.room() != 0;
  for (const LocalTask& t : tasks_) {
    polls.push_back({room ? t.out.get() : -1, POLLIN, 0});
    polls.push_back({room ? t.err.get() : -1, POLLIN, 0});
    polls.push_back({t.input.empty() ? -1 : t.in.get(), POLLOUT, 0});
    const int events = (may_ask(t) ? POLLIN : 0) | (t.answers.empty() ? 0 : POLLOUT);
    // A closed one would end the wait even if nothing is to be done with it now.
    polls.push_back({events != 0 ? t.pmi.get() : -1, static_cast<short>(events), 0});
  }
  polls.push_back({pmix_ != nullptr ? pmix_->fd() : -1, POLLIN, 0});
  if (ppoll(polls.data(), polls.size(), nullptr, wait_mask()) < 0) return;
  if (polls.back().revents != 0) pass_on_pmix();
  for (size_t i = 0; i < tasks_.size(); ++i) {
    LocalTask& t = tasks_[i];
    const pollfd* p = &polls[2 + 4 * i];
    if (p[0].revents != 0) read_stream(t, t.out, Say::kOutput, Say::kOutputEnd);
    if (p[1].revents != 0) read_stream(t, t.err, Say::kError, Say::kErrorEnd);
    if (p[2].revents != 0) feed(t);
    if (p[3].revents != 0) read_pmi(t);
  }
  if (polls[0].revents != 0) read_orders();
  if (const std::string word = inputs_.word(); !word.empty()) say(Say::kTaken, -1, word.substr(1));
  write_out();
}

// Answers to what it asks are kept here until it reads them.
bool Node::may_ask(const LocalTask& t) const {
  return out_.size() < kMostOut && t.answers.size() < kMostAnswers;
}

void Node::write_out() {
  if (!write_some(STDOUT_FILENO, out_)) over_ = true;
}

void Node::read_orders() {
  char bytes[64 << 10];
  const ssize_t n = read(STDIN_FILENO, bytes, sizeof(bytes));
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  std::vector<Frame> frames;
  if (n <= 0 || !reader_.feed({bytes, static_cast<size_t>(n)}, frames)) {
    over_ = true;
    return;
  }
  for (const Frame& f : frames) obey(f);
}

LocalTask* Node::find(int number) {
  const auto it =
      std::find_if(tasks_.begin(), tasks_.end(), [&](const LocalTask& t) { return t.number == number; });
  return it != tasks_.end() ? &*it : nullptr;
}

void Node::obey(const Frame& f) {
  LocalTask* one = f.task >= 0 ? find(f.task) : nullptr;
  const auto each = [&](auto&& act) {
    for (LocalTask& t : tasks_) {
      if (f.task < 0 || &t == one) act(t);
    }
  };
  switch (f.say) {
    case Say::kStart:
      start(f);
      break;
    case Say::kInput:
      inputs_.took_frame();
      input_bytes_ += f.bytes.size();
      // All have it before it is counted how much each has taken.
      each([&](LocalTask& t) {
        if (t.in.valid()) t.input += f.bytes;
      });
      each([&](LocalTask& t) { feed(t); });
      break;
    case Say::kInputEnd:
      each([&](LocalTask& t) {
        t.input_ends = true;
        feed(t);
      });
      break;
    case Say::kSignal:
      each([&](LocalTask& t) { signal_task(t, atoi(f.bytes.c_str())); });
      break;
    case Say::kPmi:
      if (one != nullptr) one->answers += f.bytes;
      break;
    case Say::kPmiEnd:
      if (one != nullptr) one->pmi_ends = true;
      break;
    case Say::kPmix:
      if (PmixMessage m; pmix_ != nullptr && read_message(f.bytes, m)) pmix_->hear(m);
      break;
    case Say::kTaken:
      outputs_.heard(f.bytes);
      break;
    // Nobody reads these any more: a task is to find its pipe closed.
    case Say::kOutputEnd:
      each([](LocalTask& t) { t.out.reset(); });
      break;
    case Say::kErrorEnd:
      each([](LocalTask& t) { t.err.reset(); });
      break;
    case Say::kAllSaid:
      over_ = true;
      break;
    default:
      break;
  }
  if (one != nullptr && (f.say == Say::kPmi || f.say == Say::kPmiEnd) && one->pmi.valid()) {
    if (!write_some(one->pmi.get(), one->answers)) one->answers.clear();
    if (one->pmi_ends && one->answers.empty()) one->pmi.reset();
  }
}

void Node::start(const Frame& f) {
  if (started_) return;
  if (!read_order(f.bytes, order_)) {
    say(Say::kNotStarted, -1, "the order of the step cannot be read: is another version of ckpt there?");
    return;
  }
  started_ = true;
  if (order_.pmix.count != 0 && !start_pmix()) return;
  umask(order_.inherited.umask);
  SharedFiles files;
  tasks_.resize(order_.tasks.size());
  for (size_t i = 0; i < tasks_.size(); ++i) {
    std::string why;
    if (!start_task(order_, order_.tasks[i], files, tasks_[i], why))
      say(Say::kNotStarted, order_.tasks[i].task, why);
  }
}

bool Node::start_pmix() {
  std::string why;
  pmix_ = std::make_unique<PmixHost>();
  if (!pmix_->begin(order_.pmix, why)) {
    say(Say::kNotStarted, -1, why);
    return false;
  }
  for (TaskOrder& t : order_.tasks) {
    std::vector<std::string> pairs;
    if (!pmix_->environment_of(t.task, pairs, why)) {
      say(Say::kNotStarted, -1, why);
      return false;
    }
    for (const std::string& pair : pairs) {
      const size_t equals = std::min(pair.find('='), pair.size());
      t.environment[pair.substr(0, equals)] = pair.substr(std::min(equals + 1, pair.size()));
    }
  }
  return true;
}

void Node::pass_on_pmix() {
  if (pmix_ == nullptr) return;
  for (const PmixMessage& m : pmix_->take()) say(Say::kPmix, -1, write_message(m));
}

void Node::read_stream(LocalTask& t, ScopedFd& fd, Say what, Say end) {
  char bytes[kMostInFrame];
  const size_t room = outputs_.room();
  if (!fd.valid() || room == 0) return;
  const ssize_t n = read(fd.get(), bytes, room);
  if (n > 0) {
    outputs_.sent(static_cast<size_t>(n));
    say(what, t.number, {bytes, static_cast<size_t>(n)});
  } else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {  // EIO: the last has closed the terminal
    fd.reset();
    say(end, t.number);
  }
}

void Node::read_pmi(LocalTask& t) {
  if (!t.answers.empty() && !write_some(t.pmi.get(), t.answers)) t.answers.clear();
  if (t.pmi_ends && t.answers.empty()) {
    t.pmi.reset();
    return;
  }
  if (!may_ask(t)) return;
  char bytes[kMostInFrame];
  const ssize_t n = read(t.pmi.get(), bytes, sizeof(bytes));
  if (n > 0)
    say(Say::kPmi, t.number, {bytes, static_cast<size_t>(n)});
  else if (n == 0 || (errno != EAGAIN && errno != EINTR))
    t.pmi.reset();
}

// A task that reads slowly holds back the input of all tasks, by the window.
void Node::feed(LocalTask& t) {
  if (!t.in.valid() || !write_some(t.in.get(), t.input)) {
    t.in.reset();
    t.input.clear();
  }
  if (t.input_ends && t.input.empty()) t.in.reset();
  size_t waits = 0;
  for (const LocalTask& one : tasks_) waits = std::max(waits, one.input.size());
  const size_t taken = std::max(input_taken_, input_bytes_ - std::min(waits, input_bytes_));
  inputs_.passed_on(taken - input_taken_);
  input_taken_ = taken;
}

void Node::reap() {
  if (has_come(SIGCHLD)) {
    int status = 0;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
      const auto it = std::find_if(tasks_.begin(), tasks_.end(),
                                   [&](const LocalTask& t) { return t.pid == pid && !t.ended; });
      if (it == tasks_.end()) continue;
      it->ended = true;
      it->input.clear();
      it->input_ends = true;
      feed(*it);
      pass_on_pmix();  // that it has done with PMIx comes first
      say(Say::kEnded, it->number, std::to_string(status));
    }
  }
  if (!started_ || done_ ||
      !std::all_of(tasks_.begin(), tasks_.end(), [](const LocalTask& t) { return t.ended; }))
    return;
  // Processes that the tasks have left behind end with them, and with these their streams.
  end_left_over();
  for (const LocalTask& t : tasks_) {
    if (t.out.valid() || t.err.valid()) return;
  }
  done_ = true;
  say(Say::kDone, -1);
}

void Node::kill_all(int signal) {
  for (const LocalTask& t : tasks_) signal_task(t, signal);
}

void Node::end_left_over() {
  const std::string self = std::to_string(getpid());
  std::ifstream children("/proc/self/task/" + self + "/children");
  for (pid_t child = 0; children >> child;) kill(child, SIGKILL);
}

}  // namespace ckpt::cluster::srun
