// The process that loads the memory of a lazily restarted program, and the one that watches it.
//
//   ckpt-restart ── loader ── sentry
//
// The loader outlives ckpt-restart if need be (--detach, kill -9): the program needs it. The sentry shares
// the loader's descriptors, and so keeps every userfaultfd open. If the loader fails or is killed, missing
// pages therefore stay missing: threads that touch them wait, instead of seeing zeros, until the sentry has
// killed the program. Children that the program has forked meanwhile cannot be killed, since their ids are
// not known: they get SIGBUS (refuse_pages.h).
//
// Owner:     restart. Callers: ckpt-restart's main thread; start() while that is the only thread.
// Never:     writes to stdout: that is the program's.
#pragma once

#include <optional>
#include <string>

#include "restart/feed/lazy_memory.h"

namespace ckpt {

// What the new process sends on the loader's socket, with its userfaultfd and a pidfd of itself.
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

  // May be called again after an attempt in which no program came to run: waits for the old loader's end, and
  // starts a new one.
  Result<void> start(const ImageChain& image, const LazyPlan& plan, LoaderOptions options);
  // The same for an attempt that needs no loader: the old one is not watched any more.
  void forget();
  bool started() const { return pid_ > 0; }
  int pid() const { return pid_; }

  // The new process's end of the socket; ckpt-restart closes it when that process exists.
  int process_fd() const { return process_end_.get(); }
  void give_up_process_end() { process_end_.reset(); }

  // Readable when the loader has ended; -1 once reap() has seen that.
  int pidfd() const { return pidfd_.get(); }
  // Looks whether the loader has ended, and how. Never waits.
  void reap();
  bool loaded() const { return loaded_; }  // all memory is there
  const std::optional<Error>& error() const { return error_; }
  // One line for people, or one JSON object.
  std::string loaded_text(bool json) const;

  // ckpt-restart is about to leave: the loader itself reports how the loading ends.
  void detach();

 private:
  struct State;
  [[noreturn]] void run(const ImageChain& image, const LazyPlan& plan, ScopedFd socket,
                        LoaderOptions options);
  Result<bool> load(const ImageChain& image, const LazyPlan& plan, int socket);
  [[noreturn]] void sentry(int loader);
  bool must_speak() const;

  State* state_ = nullptr;  // shared by the three processes
  std::string image_path_;
  ScopedFd process_end_, pidfd_;
  int supervisor_ = -1;  // in the loader and the sentry: a pidfd of ckpt-restart
  int pid_ = 0;
  bool loaded_ = false;
  std::optional<Error> error_;
};

// Gives the new process's userfaultfd to the loader. In the new process.
Result<void> introduce_to_loader(int socket, int uffd, uint64_t gate);

}  // namespace ckpt
