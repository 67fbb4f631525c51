#include "cluster/srun/launcher/streams.h"

#include <errno.h>
#include <limits.h>
#include <unistd.h>

#include <algorithm>

namespace ckpt::cluster::srun {

namespace {

constexpr size_t kMostLine = 64 << 10;  // of a line that does not end

}  // namespace

std::string OutputStream::label_of(int task) const {
  std::string number = std::to_string(task);
  if (static_cast<int>(number.size()) < width_)
    number.insert(0, static_cast<size_t>(width_) - number.size(), ' ');
  return number + ": ";
}

void OutputStream::add(int node, int task, std::string_view bytes) {
  if (width_ == 0) {
    pieces_.push_back({node, bytes.size(), std::string(bytes)});
    return;
  }
  std::string& line = lines_[task];
  std::string text;
  for (const char c : bytes) {
    line += c;
    if (c != '\n' && line.size() < kMostLine) continue;
    text += label_of(task) + line + (c == '\n' ? "" : "\n");
    line.clear();
  }
  pieces_.push_back({node, bytes.size(), std::move(text)});
}

void OutputStream::end(int task) {
  const auto it = lines_.find(task);
  if (it == lines_.end()) return;
  if (!it->second.empty()) pieces_.push_back({0, 0, label_of(task) + it->second + "\n"});
  lines_.erase(it);
}

bool OutputStream::write_some(const std::function<void(int node, size_t bytes)>& passed_on) {
  int error = 0;
  while (!pieces_.empty()) {
    Piece& p = pieces_.front();
    if (!p.text.empty() && !closed_) {
      // So much a pipe that poll(2) calls writable takes at once.
      const ssize_t n = write(fd_, p.text.data(), std::min<size_t>(p.text.size(), PIPE_BUF));
      if (n < 0 && (errno == EINTR || errno == EAGAIN)) return true;
      closed_ = n < 0;
      if (n < 0) error = errno;
      if (n > 0) p.text.erase(0, static_cast<size_t>(n));
      if (!closed_ && !p.text.empty()) return true;
    }
    passed_on(p.node, p.bytes);
    pieces_.pop_front();
    if (!closed_) break;
  }
  errno = error;
  return error == 0;
}

}  // namespace ckpt::cluster::srun
