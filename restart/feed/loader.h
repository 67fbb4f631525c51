// The process that loads the memory of a lazily restarted program, and the one that watches it.
//
//   ckpt-restart ── loader ── guard
//
// The loader outlives ckpt-restart if need be (--detach, kill -9): the program needs it. The guard shares
// its descriptors, and so holds on to every userfaultfd: if the loader fails or is killed, missing pages
// stay missing, and threads that touch them wait instead of seeing zeros, until the guard has killed the
// program. Nobody has the ids of children that the program has forked meanwhile: those get SIGBUS.
//
// Owner:     restart. Callers: ckpt-restart's main thread; start() while it has one thread.
// Never:     writes to stdout: that is the program's.
#pragma once

#include <optional>
#include <string>

#include "restart/feed/lazy_memory.h"

namespace ckpt {

// On the loader's socket, from the new process, with its userfaultfd and a pidfd of itself.
struct LoaderHello {
  uint64_t gate;  // address of the page that is filled last
};

struct LoaderOptions {
  bool quiet = false, json = false;  // as ckpt-restart's
};

class Loader {
 public:
  Loader() = default;
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // Once more after a restart that did not come to a program: a new loader, the old one has ended.
  Result<void> start(const ImageChain& image, const LazyPlan& plan, LoaderOptions options);
  bool started() const { return pid_ > 0; }
  int pid() const { return pid_; }

  // The new process's end of the socket; ckpt-restart gives it up when that process is there.
  int process_fd() const { return process_end_.get(); }
  void give_up_process_end() { process_end_.reset(); }

  // Readable when the loader has ended; -1 when that is known.
  int pidfd() const { return pidfd_.get(); }
  // Looks whether it has ended, and how. Never waits.
  void reap();
  bool loaded() const { return loaded_; }  // all memory is there
  const std::optional<Error>& error() const { return error_; }
  // One line for people, or one JSON object.
  std::string loaded_text(bool json) const;

  // Nobody of ckpt-restart will be there to speak for the loader.
  void detach();

 private:
  struct State;
  [[noreturn]] void run(const ImageChain& image, const LazyPlan& plan, ScopedFd socket,
                        LoaderOptions options);
  Result<bool> load(const ImageChain& image, const LazyPlan& plan, int socket);
  [[noreturn]] void guard(int loader);
  bool must_speak() const;

  State* state_ = nullptr;  // shared by the three processes
  std::string image_path_;
  ScopedFd process_end_, pidfd_;
  int supervisor_ = -1;  // in the loader and the guard: a pidfd of ckpt-restart
  int pid_ = 0;
  bool loaded_ = false;
  std::optional<Error> error_;
};

// Gives the new process's userfaultfd to the loader. In the new process.
Result<void> introduce_to_loader(int socket, int uffd, uint64_t gate);

}  // namespace ckpt
