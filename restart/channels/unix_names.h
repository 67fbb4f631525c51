// Names of Unix sockets that are paths: a relative one is of a directory, and the file of a socket may have
// been renamed.
//
// Owner:     restart/channels. Callers: ChannelBuilder.
// Never:     leaves the working directory another one than it was.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <string>

#include "base/raii_fd.h"
#include "restart/channels/channel_builder.h"

namespace ckpt {

// As long as it lives the working directory is this one, if it is there; an empty path changes nothing.
class InDirectory {
 public:
  explicit InDirectory(const std::string& path) {
    if (path.empty()) return;
    here_.reset(open(".", O_PATH | O_DIRECTORY | O_CLOEXEC));
    is_there_ = here_.valid() && chdir(path.c_str()) == 0;
    if (!is_there_) here_.reset();
  }
  // False: a relative name would lead elsewhere.
  bool is_there() const { return is_there_; }
  ~InDirectory() {
    if (here_.valid() && fchdir(here_.get()) != 0) return;
  }
  InDirectory(const InDirectory&) = delete;
  InDirectory& operator=(const InDirectory&) = delete;

 private:
  ScopedFd here_;
  bool is_there_ = true;
};

bool is_path(const SocketName& name);
bool is_relative(const SocketName& name);

// The directory that this socket's own name is of; empty: the name says it.
std::string directory_of(const ChannelSocket& s);
// The name, absolute.
std::string place_of(const ChannelSocket& s);

// A socket's file that nobody listens on any more, as the killed program left it.
bool is_left_over(const std::string& path, int type);

// What its detail says of the file.
void read_file(ChannelSocket& s);

}  // namespace ckpt
