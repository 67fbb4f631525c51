// fork(2) takes the snapshot; the child writes the image while the program runs on. Nothing that the program
// does can spoil it.
//
// Owner:     run_stages(). Callers: the agent; write_image(): the child.
#pragma once

#include "libckpt_rt/checkpoint/back_ends/still.h"

namespace ckpt {

class ForkBackEnd final : public StillBackEnd {
 public:
  using StillBackEnd::StillBackEnd;
  // A file that is open in the parent would be shared with the child.
  Result<void> open_image() override { return {}; }
  bool writes_in_child() const override { return true; }
  Result<void> get_ready() override;
  Result<void> capture_memory() override;
  Result<void> finish() override;

 private:
  struct Report;
  static void let_write(long child, Report& report);
  static void await_release(Report& report);
  void write_in_child(Report& report);
  Result<void> write_image();
  Result<void> await(long child, const Report& report);
};

}  // namespace ckpt
