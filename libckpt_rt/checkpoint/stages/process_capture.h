// What an attempt finds out about the program: ahead of the stop, then in it. The image's META section is
// written from it.
//
// Owner:     one Attempt. Callers: the agent. Filled while the attempt prepares (map_before, files,
//            waiting, probe, descriptors, pages, still_memory) and by Stop (the rest).
#pragma once

#include "libckpt_rt/capture/advice/still_memory.h"
#include "libckpt_rt/capture/descriptors/descriptors.h"
#include "libckpt_rt/capture/memory/mapped_files.h"
#include "libckpt_rt/capture/memory/memory_map.h"
#include "libckpt_rt/capture/memory/page_scan.h"
#include "libckpt_rt/capture/process/process_state.h"
#include "libckpt_rt/capture/system_v/system_v.h"
#include "libckpt_rt/checkpoint/image/meta.h"
#include "libckpt_rt/core/threads/of_ours/other_threads.h"

namespace ckpt {

struct ProcessCapture {
  explicit ProcessCapture(Arena& arena) : map_before(arena), files(arena), map(arena) {}
  // When the arena has memory.
  void make_lists(Arena& arena) {
    free_heap = ArenaVector<AddrRange>(arena);
    threads = ArenaVector<StoppedThread>(arena);
    waiting = ArenaVector<int>(arena);
    pending = ArenaVector<PendingSignalRecord>(arena);
  }

  // Ahead of the stop.
  MemoryMap map_before;
  MappedFiles files;
  ArenaVector<int> waiting;  // threads that waited just ahead of the stop
  Addr probe;                // of the kernel, in the program's code (probes.h); 0: none

  // In the stop.
  MemoryMap map;
  ProcessFacts facts;
  ArenaVector<AddrRange> free_heap;  // pages whose content nobody needs
  ArenaVector<StoppedThread> threads;
  ArenaVector<PendingSignalRecord> pending;
  std::span<const CapturedSystemV> system_v;
  bool between_requests = false;  // what asynchronous I/O is under way cannot be told at this instant

  // By which it is found out.
  ProcessTexts texts;
  DescriptorCapture descriptors;
  PageScan pages;
  StillMemory still_memory;
  OtherThreads others;  // read half of the mappings
};

}  // namespace ckpt
