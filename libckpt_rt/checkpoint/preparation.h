// What plug-ins and the program do ahead of a checkpoint, on a thread that they have given for it
// (ckpt_rt_serve()), and the messages that they exchange there (ckpt_rt_post()).
//
// Owner:     libckpt_rt. Callers: serve() and post(): threads of the program, outside of handlers.
//            Preparation and deliver(): the agent, one checkpoint at a time. next(): anywhere.
// Waits:     the agent for that thread, at most CKPT_PREPARE_TIMEOUT in each round. Nobody stands meanwhile.
//
// It is a thread of the program's since libc does not know the agent: nothing that calls libc can run there,
// and a thread that is stopped in a handler may hold any lock of libc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "include/ckpt_rt.h"

namespace ckpt::preparation {

// The constructor is through, whether or not the library is active.
void library_started();

int serve();
void refuse(const char* why);
int post(const char* subject, const char* host, int pid, const void* bytes, size_t length);
int take_over(int pid, const char* who);
int directory(char* now, char* later, size_t size);
int next(const char* subject, uint32_t* position, ckpt_rt_message& message);

// Is there any callback for the thread in ckpt_rt_serve(): ahead of a checkpoint, at its end, or after a
// restart?
bool wanted();
// Messages for this process, as they come: Post and bytes. False: there is no room.
bool deliver(std::span<const std::byte> posts);

// Around one checkpoint: what was prepared hears how it ends.
class Preparation {
 public:
  Preparation() = default;
  ~Preparation();
  Preparation(const Preparation&) = delete;
  Preparation& operator=(const Preparation&) = delete;

  // All rounds. An error: the checkpoint is to be given up, and says why.
  Result<void> begin();
  void is_durable();

 private:
  bool asked_ = false;  // callbacks were called, and have not heard how it ends
};

// A forked child (0), or a restarted process.
void reset(uint32_t generation);

}  // namespace ckpt::preparation
