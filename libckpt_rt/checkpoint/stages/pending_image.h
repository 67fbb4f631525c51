// The image while it is not durable yet: its name, key, parent and sink.
//
// Owner:     one Attempt. Callers: the agent; append() of the sink: the writer thread, or the child of mode
//            fork.
#pragma once

#include "base/settings/settings.h"
#include "image/write/direct_sink.h"
#include "image/write/directory/image_directory.h"
#include "image/write/job_stream_output.h"
#include "libckpt_rt/checkpoint/image/compression_threads.h"
#include "libckpt_rt/checkpoint/image/image_command.h"

namespace ckpt {

struct CheckpointCost;
class Workspace;

class PendingImage {
 public:
  explicit PendingImage(const Settings& settings);
  ~PendingImage();
  PendingImage(const PendingImage&) = delete;
  PendingImage& operator=(const PendingImage&) = delete;

  // Memory for an image of up to so many bytes of pages.
  Result<void> reserve(uint64_t most_saved);
  // Opens the directory and chooses name and parent; of `parent` an increment is made if it can be.
  Result<void> choose_name(Workspace& space, const ParentImage& parent, CheckpointCost& cost);
  // Starts the command of CKPT_TO, creates the file. Which thread does so is the back end's choice.
  Result<void> open(int directory, ReleaseBuffer release, void* context);
  // Nothing of it is left, if it was not committed.
  void abort() { sink_.abort(); }

  DirectSink& sink() { return sink_; }
  AddrRange memory() const { return arena_.range(); }
  // Processor time of the compressing threads; valid after commit.
  ThreadTimes helper_times() const { return compression_threads_.times(); }
  CompressionThreads& compression_threads() { return compression_threads_; }
  bool has_parent() const { return identity_.parent.sequence != 0; }
  // Of CKPT_KEY_FILE, or nullptr.
  const ImageKey* key() const { return key_; }

 private:
  Result<void> read_key(Arena& arena);
  void choose_parent(int directory, const ParentImage& parent);

  const Settings& settings_;
  Arena arena_;
  ImageIdentity identity_{};
  ScopedFd parent_;  // held until this image is one of those that stay
  ImageName name_;
  ImageCommand command_;
  JobStreamOutput stream_;
  CompressionThreads compression_threads_;
  DirectSink sink_;
  ImageKey* key_ = nullptr;  // in memory that no image holds; wiped at the end
};

}  // namespace ckpt
