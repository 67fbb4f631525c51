// Work that another thread of ours does beside the agent while threads stand still, for the second processor.
//
// Owner:     whoever has the thread (WriterThread). Header only. Callers: the agent.
// Never:     two works at a time. The work makes raw system calls on the agent's descriptors and touches
// nothing that
//            the agent uses between start and await.
#pragma once

namespace ckpt {

struct Beside {
  void* context = nullptr;
  void (*start)(void* context, void (*work)(void*), void* argument) = nullptr;  // nullptr: there is nobody
  void (*await)(void* context) = nullptr;
};

}  // namespace ckpt
