#include "cluster/srun/launcher/far_node.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <unistd.h>

#include "cluster/srun/signals.h"

namespace ckpt::cluster::srun {

namespace {

std::string own_path() {
  char path[PATH_MAX];
  const ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 1);
  return {path, n > 0 ? static_cast<size_t>(n) : 0};
}

std::string quoted(const std::string& word) {
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? "'\\''" : std::string(1, c);
  return text + "'";
}

}  // namespace

bool FarNode::connect(const std::string& name, bool here) {
  name_ = name;
  int there[2], back[2];
  if (pipe2(there, O_CLOEXEC) != 0) return false;
  ScopedFd their_input(there[0]);
  to_.reset(there[1]);
  if (pipe2(back, O_CLOEXEC) != 0) return false;
  from_.reset(back[0]);
  ScopedFd their_output(back[1]);
  const std::string self = own_path(), on = self.substr(0, self.rfind('/') + 1) + "ckpt-on",
                    command = "exec " + quoted(self) + " --node";
  pid_ = fork();
  if (pid_ == 0) {
    give_signals_back();
    // Ctrl-C at a terminal is the launcher's: it may be meant for the tasks, or not.
    setpgid(0, 0);
    dup2(their_input.get(), STDIN_FILENO);
    dup2(their_output.get(), STDOUT_FILENO);
    if (here)
      execl(self.c_str(), "ckpt-srun", "--node", static_cast<char*>(nullptr));
    else
      execl(on.c_str(), "ckpt-on", name.c_str(), command.c_str(), static_cast<char*>(nullptr));
    _exit(127);
  }
  for (const int fd : {to_.get(), from_.get()}) fcntl(fd, F_SETFL, O_NONBLOCK);
  return pid_ > 0;
}

void FarNode::write_some() {
  while (!out_.empty() && to_.valid()) {
    const ssize_t n = write(to_.get(), out_.data() + written_, out_.size() - written_);
    if (n > 0) {
      written_ += static_cast<size_t>(n);
      if (written_ < out_.size() / 2 + 1) continue;
      out_.erase(0, written_);
      written_ = 0;
    } else if (errno != EINTR) {
      if (errno != EAGAIN) to_.reset();
      return;
    }
  }
}

bool FarNode::read_some(std::vector<Frame>& frames) {
  char bytes[64 << 10];
  const ssize_t n = read(from_.get(), bytes, sizeof(bytes));
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (n > 0 && reader_.feed({bytes, static_cast<size_t>(n)}, frames)) return true;
  from_.reset();
  to_.reset();
  return false;
}

}  // namespace ckpt::cluster::srun
