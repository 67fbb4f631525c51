// CKPT_TO: each image goes to the standard input of a shell command, which makes it durable by ending with 0.
//
// Owner:     libckpt_rt. Callers: start() by the agent (mode fork: the forked child); then the sink, on the
//            writer thread.
// Invisible: the program sees no child. The command is our grandchild, since exec(2) gives a child the exit
//            signal SIGCHLD whatever it was made with; the child between, made without exit signal, shares
//            our memory, stays until the command ends, and dies with us.
//
//   agent --clone, no exit signal--> nanny (session of its own) --vfork, exec--> sh -c COMMAND
//     | writes the image to the pipe                | waits for the command      | reads the pipe
//     | closes it, waits for the nanny <------------+ leaves its status, exits
//
// What the command gets: the environment of the program's start without LD_PRELOAD of ours and settings of
//            ours, CKPT_IMAGE_NAME, CKPT_SEQUENCE, CKPT_RUN_ID, CKPT_PROGRAM, CKPT_PID; no signal blocked or
//            ignored; umask 077; the program's working directory; the log of the image directory (or
//            /dev/null) as output.
// Given up:  an image that is not finished ends the command by SIGTERM before its input ends, so that it
//            does not take half an image for a whole one. If the program dies its input ends early: the
//            trailer is missing.
#pragma once

#include "base/memory/arena.h"
#include "base/raii_fd.h"
#include "image/write/backend/stream_backend.h"
#include "image/write/image_output.h"
#include "image/write/image_sink.h"

namespace ckpt {

// In the constructor of the library, if CKPT_TO is set: keeps a copy of the environment for commands.
void remember_command_environment(char** environment);

class ImageCommand final : public ImageOutput {
 public:
  // What the command is told, and must outlive it. name: of the image, or of the job's checkpoint.
  struct Facts {
    const char* name;
    const uint8_t* run_id;  // 16 bytes; of a job: its id
    uint64_t sequence;
    const char* program;
    int pid;
  };
  // Starts the command. dir_fd: where the log is.
  Result<void> start(const char* command, const Facts& facts, int dir_fd, Arena& arena);
  // The same in three steps, of which the second takes microseconds: from the first on fd() can be written
  // to.
  Result<void> prepare(const char* command, const Facts& facts, int dir_fd, Arena& arena);
  Result<void> launch();
  Result<void> await_launch();
  // Of what launch() has started; 0: nothing.
  bool is_launched() const { return nanny_ != 0; }

  int fd() const override { return pipe_.get(); }
  bool direct() const override { return false; }
  const char* path() const override { return name_; }
  FileBackend* only_backend() override { return &backend_; }
  void reserve_until(uint64_t) override {}
  Result<void> publish(FileBackend& backend, uint64_t bytes, bool replace) override;
  void remove() override;
  Error explain(const Error& error) override;

 private:
  struct Shared;
  static void nanny(void* shared);
  static void execute(void* shared);
  bool ends_within(int64_t ms) const;
  // Waits until the command has ended; its wait status, or -1 when that is not known.
  int wait_for_end();
  Error ended(int status, const char* when) const;
  Error not_started(long error) const;

  Shared* shared_ = nullptr;
  const char* command_ = "";
  const char* name_ = "";
  long nanny_ = 0;                                       // pid; 0: not running
  ScopedFd pipe_, input_, output_, started_, starting_;  // all but the first until it runs
  StreamBackend backend_;
};

}  // namespace ckpt
