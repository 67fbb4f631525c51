#include "libckpt_rt/core/kernel/file_turn.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <utility>

#include "base/clock.h"
#include "base/sys.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {
namespace {

long lock(int socket, short type) {
  struct flock whole {};
  whole.l_type = type;
  whole.l_whence = SEEK_SET;
  return sys::call(__NR_fcntl, socket, static_cast<long>(F_SETLK), &whole);
}

uint64_t number_of(int socket) {
  struct stat st {};
  sys::call(__NR_fstat, socket, &st);
  return st.st_ino;
}

// Not F_SETLKW, which may last: a stopped process keeps its turn.
bool take(int socket) {
  constexpr timespec kWhile{0, 50'000};
  const int64_t until = now_ns() + FileTurn::kLongestTurn;
  for (;;) {
    const long r = lock(socket, F_WRLCK);
    // Where there are no such locks nobody can have one.
    if (r != -EAGAIN && r != -EACCES) return true;
    if (now_ns() > until) return false;
    sys::call(__NR_nanosleep, &kWhile, nullptr);
  }
}

}  // namespace

FileTurn::FileTurn(int socket, int other) : sockets_{socket, other} {
  // In one order everywhere: two that want both never wait for each other.
  if (other >= 0 && number_of(other) < number_of(socket)) std::swap(sockets_[0], sockets_[1]);
  taken_ = take(sockets_[0]) && (sockets_[1] < 0 || take(sockets_[1]));
}

FileTurn::~FileTurn() {
  for (int socket : sockets_) {
    if (socket >= 0) lock(socket, F_UNLCK);
  }
}

}  // namespace ckpt
