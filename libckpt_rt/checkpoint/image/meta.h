// Writing down what was found at the stop: the META section of the image.
//
// Owner:     libckpt_rt. Callers: the agent, after the threads were released (or a forked child).
#pragma once

#include "image/write/meta_writer.h"
#include "libckpt_rt/capture/descriptors/descriptors.h"
#include "libckpt_rt/capture/memory/mapped_files.h"
#include "libckpt_rt/capture/memory/memory_map.h"
#include "libckpt_rt/capture/process/process_state.h"
#include "libckpt_rt/capture/system_v/system_v.h"
#include "libckpt_rt/checkpoint/account/cost.h"
#include "libckpt_rt/checkpoint/stages/workspace.h"
#include "libckpt_rt/stop/stop_world.h"

namespace ckpt {

struct StoppedThread {
  ThreadRecord record;
  char name[16];
  uint8_t affinity[128];
  bool knows_user;  // its slot has its users and groups (thread_credentials.h)
};

struct MetaSources {
  const ProcessFacts* facts;
  const ProcessState* state;
  const MemoryMap* map;
  const MappedFiles* files;
  const DescriptorCapture* descriptors;
  std::span<const StoppedThread> threads;
  std::span<const PendingSignalRecord> pending;
  std::span<const NoteLine> notes;
  std::span<const CapturedSystemV> system_v;
  const CheckpointCost* cost;
  int64_t copied_ns;
};

// What the slot and its signal frame say, while the thread stands.
void describe_thread(const ThreadSlot& slot, int leader_tid, StoppedThread& out);

Result<void> write_meta(const MetaSources& sources, Arena& arena, MetaWriter& meta);

}  // namespace ckpt
