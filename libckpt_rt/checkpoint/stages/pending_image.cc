#include "libckpt_rt/checkpoint/stages/pending_image.h"

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "job/session/session.h"
#include "libckpt_rt/checkpoint/account/cost.h"
#include "libckpt_rt/checkpoint/image/image_history.h"
#include "libckpt_rt/checkpoint/stages/workspace.h"
#include "libckpt_rt/core/directory/log.h"
#include "libckpt_rt/core/directory/own_directory.h"
#include "libckpt_rt/core/process/fork/fork_hold.h"
#include "libckpt_rt/core/process/this_process.h"
#include "libckpt_rt/core/settings/own_key_file.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {

constexpr RingGuard kRingGuard{&fork_hold::hold, &fork_hold::release};

bool is_in_job_stream() { return job::place() != nullptr && job::place()->streamed; }

SinkOptions image_options(const Settings& settings, HelperThreads* helpers, ImageOutput* command,
                          ImageOutput* stream) {
  SinkOptions options;
  options.helpers = helpers;
  options.ring_guard = &kRingGuard;
  if (is_in_job_stream())
    options.output = stream;
  else if (job::is_streamed())
    options.output = command;
  set_compression(options, settings.compress);
  options.knowledge = &image_history.compression;
  return options;
}

}  // namespace

PendingImage::PendingImage(const Settings& settings)
    : settings_(settings), sink_(image_options(settings, &compression_threads_, &command_, &stream_)) {}

PendingImage::~PendingImage() {
  sink_.abort();
  if (key_ != nullptr) wipe(key_, sizeof(*key_));
}

Result<void> PendingImage::reserve(uint64_t most_saved) {
  const SinkOptions options = image_options(settings_, &compression_threads_, &command_, &stream_);
  return arena_.reserve(DirectSink::arena_bytes(options, most_saved)) ? Result<void>()
                                                                      : no_memory("the checkpoint's lists");
}

Result<void> PendingImage::read_key(Arena& arena) {
  if (own_key_file::path()[0] == '\0') return {};
  key_ = static_cast<ImageKey*>(arena.allocate(sizeof(ImageKey)));
  if (key_ == nullptr) return no_memory("the key");
  CKPT_TRY(read_key_file(own_key_file::path(), *key_));
  sink_.set_key(key_);
  return {};
}

Result<void> PendingImage::choose_name(Workspace& space, const ParentImage& parent, CheckpointCost& cost) {
  auto opened = job::open_log_directory();
  // A member that has become a user who may not reach the directory writes no log. Its image goes to where it
  // was handed.
  if (!opened.ok() && job::place() == nullptr) return opened.error();
  if (opened.ok()) space.directory() = std::move(*opened);
  const int directory = space.directory().get();
  CKPT_TRY(read_key(space.arena()));
  const job::Place* place = job::place();
  if (uint32_t removed = place == nullptr ? remove_dead_leftovers(directory) : 0; removed > 0) {
    log_format(space.log(), "removed {} unfinished images of processes that are gone", removed);
  }
  auto sequence =
      place == nullptr ? next_sequence(directory, this_process.run_id) : Result<uint64_t>(place->sequence);
  if (!sequence.ok()) return sequence.error();
  if (job::is_streamed()) {
    // Of a job they are counted in its directory (job/directory).
    if (place == nullptr) *sequence = std::max(*sequence, image_history.last_streamed + 1);
    image_history.last_streamed = *sequence;
  }
  std::memcpy(identity_.run_id, this_process.run_id, sizeof(identity_.run_id));
  identity_.sequence = *sequence;
  choose_parent(place != nullptr ? place->directory : directory, parent);
  identity_.realtime_ns = now_ns(CLOCK_REALTIME);
  name_ = compose_image_name(this_process.name, this_process.pid, this_process.run_id, *sequence);
  cost.parent_sequence = identity_.parent.sequence;
  cost.sequence = *sequence;
  if (place != nullptr) {
    std::memcpy(name_.text, place->name, sizeof(place->name));
    std::memcpy(cost.image, place->path, sizeof(place->path));
  } else if (job::is_streamed()) {
    *fmt::format_to_n(cost.image, sizeof(cost.image) - 1, "{}", name_.text).out = '\0';
  } else {
    *fmt::format_to_n(cost.image, sizeof(cost.image) - 1, "{}/{}", own_directory::name(), name_.text).out =
        '\0';
  }
  return {};
}

void PendingImage::choose_parent(int directory, const ParentImage& parent) {
  identity_.parent = {};
  if (job::is_streamed()) return;  // the receiver need not have the image before
  if (job::place() != nullptr && job::place()->full) return;
  if (parent.sequence == 0 || !chain_may_grow(parent, settings_.increments + 1)) return;
  // The program may have been restarted twice: both write into one directory, and prune it.
  parent_ = hold_image(directory, parent.name);
  if (parent_.valid() && parent_is_whole(directory, this_process.run_id, parent, key_))
    identity_.parent = parent;
  else
    parent_.reset();
}

Result<void> PendingImage::open(int directory, ReleaseBuffer release, void* context) {
  if (is_in_job_stream()) {
    stream_.open(job::place()->stream, static_cast<uint32_t>(this_process.pid), name_.text);
  } else if (job::is_streamed()) {
    const ImageCommand::Facts facts{name_.text, identity_.run_id, identity_.sequence, this_process.name,
                                    this_process.pid};
    CKPT_TRY(command_.start(settings_.to, facts, directory, arena_));
  }
  const int place = job::place() != nullptr ? job::place()->directory : directory;
  return sink_.open(place, name_.text, identity_, arena_, release, context);
}

}  // namespace ckpt
