// Which bytes of the images go where, and who brings them: the restorer reads what is stored as it is,
// ckpt-restart unpacks the rest and feeds it through a pipe in the same order.
//
// Owner:     restart. Callers: ckpt-restart builds the plan before the new process exists, so that both
//            have the same; the feeder runs on a thread of ckpt-restart.
// A pipe and not process_vm_writev: it needs no right over the new process, in any namespace.
#pragma once

#include <pthread.h>

#include <functional>
#include <optional>
#include <vector>

#include "restart/restorer_args.h"
#include "writer/image_chain.h"

namespace ckpt {

struct FeedPiece {
  uint32_t image, extent;  // as in MemoryPiece
  uint64_t offset;         // bytes into the extent's memory
  uint64_t length;
};

struct FillPlan {
  std::vector<RestorerFill> fills;  // stored ones in the order of image and file, then the fed ones
  std::vector<FeedPiece> feed;      // the fed ones, in the same order
  uint64_t bytes = 0;
  std::vector<uint32_t> filled;     // per mapping of the image: 1 when something goes into it
};

// wanted(i): does mapping i of the image take its bytes from the image?
FillPlan make_fill_plan(const ImageChain& image, const std::function<bool(uint32_t)>& wanted);

// Unpacks on a thread of its own, all signals blocked, and closes the pipe at the end.
class Feeder {
 public:
  Feeder(const ImageChain& image, const FillPlan& plan) : image_(image), plan_(plan) {}
  ~Feeder() { (void)join(); }
  Feeder(const Feeder&) = delete;
  Feeder& operator=(const Feeder&) = delete;

  Result<void> start(ScopedFd pipe);
  // After the pipe's other end is closed or all is read. The error that stopped the feeder, if any.
  Result<void> join();

 private:
  static void* run(void* self);
  Result<void> feed_all();

  const ImageChain& image_;
  const FillPlan& plan_;
  ScopedFd pipe_;
  pthread_t thread_{};
  bool started_ = false;
  std::optional<Error> error_;
};

}  // namespace ckpt
