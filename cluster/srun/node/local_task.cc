#include "cluster/srun/node/local_task.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <termios.h>
#include <unistd.h>

#include <cstdio>

#include "cluster/srun/node/binding.h"
#include "cluster/srun/node/task_environment.h"
#include "cluster/srun/signals.h"

namespace ckpt::cluster::srun {

namespace {

struct Ends {
  ScopedFd ours, theirs;
};

bool open_pipe(Ends& ends, bool we_write) {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return false;
  ends.ours.reset(fds[we_write ? 1 : 0]);
  ends.theirs.reset(fds[we_write ? 0 : 1]);
  return true;
}

// --unbuffered: the C library of a program writes to a terminal line by line.
bool open_terminal(Ends& ends) {
  const int ours = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (ours < 0) return false;
  ends.ours.reset(ours);
  char name[64];
  if (grantpt(ours) != 0 || unlockpt(ours) != 0 || ptsname_r(ours, name, sizeof(name)) != 0) return false;
  ends.theirs.reset(open(name, O_RDWR | O_NOCTTY | O_CLOEXEC));
  termios settings;
  if (!ends.theirs.valid() || tcgetattr(ends.theirs.get(), &settings) != 0) return false;
  settings.c_oflag &= ~static_cast<tcflag_t>(OPOST);
  return tcsetattr(ends.theirs.get(), TCSANOW, &settings) == 0;
}

bool open_file(Ends& ends, const std::string& name, int flags, std::string& why) {
  ends.theirs.reset(open(name.c_str(), flags | O_CLOEXEC, 0666));
  if (!ends.theirs.valid()) why = name + ": " + strerror(errno);
  return ends.theirs.valid();
}

bool open_shared(Ends& ends, const std::string& name, int flags, SharedFiles& files, std::string& why) {
  Ends opened;
  if (!files.contains(name)) {
    if (!open_file(opened, name, flags, why)) return false;
    files[name] = std::move(opened.theirs);
  }
  ends.theirs.reset(fcntl(files[name].get(), F_DUPFD_CLOEXEC, 3));
  if (!ends.theirs.valid()) why = name + ": " + strerror(errno);
  return ends.theirs.valid();
}

// Relative names are meant from where the task runs.
std::string from(const std::string& directory, const std::string& name) {
  return name[0] == '/' ? name : directory + "/" + name;
}

struct Streams {
  Ends in, out, err, pmi;
};

bool open_streams(const NodeOrder& order, const TaskOrder& wanted, SharedFiles& files, Streams& s,
                  std::string& why) {
  const int write_flags = O_WRONLY | O_CREAT | (order.append ? O_APPEND : O_TRUNC);
  if (!wanted.input.empty()) {
    if (!open_file(s.in, from(order.directory, wanted.input), O_RDONLY, why)) return false;
  } else if (!open_pipe(s.in, true)) {
    return false;
  }
  if (!wanted.output.empty()) {
    if (!open_shared(s.out, from(order.directory, wanted.output), write_flags, files, why)) return false;
  } else if (order.unbuffered ? !open_terminal(s.out) : !open_pipe(s.out, false)) {
    return false;
  }
  if (!wanted.error.empty()) {
    if (!open_shared(s.err, from(order.directory, wanted.error), write_flags, files, why)) return false;
  } else if (!open_pipe(s.err, false)) {
    return false;
  }
  int ends[2];
  if (order.has_pmi) {
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return false;
    s.pmi.ours.reset(ends[0]);
    s.pmi.theirs.reset(ends[1]);
  }
  return true;
}

// All that the child needs is made before fork.
struct Words {
  std::vector<std::string> environment;
  std::vector<char*> argv, envp;
  char pid[40] = "SLURM_TASK_PID=";

  Words(const NodeOrder& order, const TaskOrder& wanted, int pmi)
      : environment(environment_here(order.environment, wanted.environment, environ)) {
    if (pmi >= 0) environment.push_back("PMI_FD=" + std::to_string(pmi));
    for (const std::string& w : wanted.program) argv.push_back(const_cast<char*>(w.c_str()));
    for (const std::string& e : environment) envp.push_back(const_cast<char*>(e.c_str()));
    argv.push_back(nullptr);
    envp.push_back(pid);
    envp.push_back(nullptr);
  }
};

// As slurmstepd says it, and ends.
[[noreturn]] void run(const NodeOrder& order, const Streams& s, Words& words, pid_t node,
                      const std::vector<int>& processors) {
  setpgid(0, 0);
  // A node that is killed cannot end its tasks.
  prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  if (getppid() != node) _exit(128 + SIGKILL);
  give_signals_back();
  set_limits(order.inherited);
  dup2(s.in.theirs.get(), STDIN_FILENO);
  dup2(s.out.theirs.get(), STDOUT_FILENO);
  dup2(s.err.theirs.get(), STDERR_FILENO);
  if (s.pmi.theirs.valid()) fcntl(s.pmi.theirs.get(), F_SETFD, 0);
  std::snprintf(words.pid + strlen("SLURM_TASK_PID="), 20, "%d", getpid());
  if (chdir(order.directory.c_str()) != 0) {
    dprintf(STDERR_FILENO, "srun: error: couldn't chdir to `%s': %s: going to /tmp instead\n",
            order.directory.c_str(), strerror(errno));
    (void)!chdir("/tmp");
  }
  if (!processors.empty() && !bind_to(processors))
    dprintf(STDERR_FILENO, "srun: error: task is not bound to its processors: %s\n", strerror(errno));
  environ = words.envp.data();  // in whose PATH it is looked for
  execvp(words.argv[0], words.argv.data());
  const int error = errno;
  dprintf(STDERR_FILENO, "srun: error: execve(): %s: %s\n", words.argv[0], strerror(error));
  _exit(error);
}

}  // namespace

bool start_task(const NodeOrder& order, const TaskOrder& wanted, SharedFiles& files, LocalTask& task,
                std::string& why) {
  task.number = wanted.task;
  Streams s;
  bool opened = open_streams(order, wanted, files, s, why);
  if (opened) {
    Words words(order, wanted, s.pmi.theirs.get());
    const pid_t node = getpid();
    const std::vector<int> processors = processors_of(wanted.processors);
    if (processors.empty() && !wanted.processors.empty()) {
      why = "--cpu-bind: none of the processors that are named is here, or may be used";
      task.ended = true;
      return false;
    }
    task.pid = fork();
    if (task.pid == 0) run(order, s, words, node, processors);
    opened = task.pid > 0;
    // The child does it too: whoever is first. A signal may be the next that is sent there.
    if (opened) setpgid(task.pid, task.pid);
  }
  if (!opened) {
    if (why.empty()) why = strerror(errno);
    task.ended = true;
    return false;
  }
  for (const Ends* e : {&s.in, &s.out, &s.err, &s.pmi}) {
    if (e->ours.valid()) fcntl(e->ours.get(), F_SETFL, O_NONBLOCK);
  }
  task.in = std::move(s.in.ours);
  task.out = std::move(s.out.ours);
  task.err = std::move(s.err.ours);
  task.pmi = std::move(s.pmi.ours);
  return true;
}

void signal_task(const LocalTask& task, int signal) {
  if (task.pid <= 0 || task.ended) return;
  const bool leads = getpgid(task.pid) == task.pid;
  if (leads || signal == SIGKILL) kill(-task.pid, signal);
  if (!leads) kill(task.pid, signal);
}

}  // namespace ckpt::cluster::srun
