// io_setup, io_submit, io_getevents, io_pgetevents, io_destroy: the functions of libaio, whose results are
// system calls' own (-errno). libaio has its own system call instructions; what it submits could not be
// counted, and its waits would end with EINTR at each checkpoint.
#include <linux/aio_abi.h>
#include <time.h>

#include <atomic>

#include "libckpt_rt/capture/aio/aio_contexts.h"
#include "libckpt_rt/core/process/dynamic_linker.h"
#include "libckpt_rt/interpose/abi.h"
#include "libckpt_rt/interpose/calls.h"
#include "libckpt_rt/core/preload_rules.h"

using namespace ckpt;

namespace {

using Setup = int(int, aio_context_t*);
using Destroy = int(aio_context_t);
using Submit = int(aio_context_t, long, iocb**);
using GetEvents = int(aio_context_t, long, long, io_event*, timespec*);
using PGetEvents = int(aio_context_t, long, long, io_event*, timespec*, void*);

// Functions of that name in a library that is not libaio: theirs are called.
struct Others {
  std::atomic<void*> setup, destroy, submit, get_events, pget_events;
};
constinit Others others{};

[[gnu::constructor(101)]] void find_other_functions() {
  if (dynamic_linker::find(RTLD_NEXT, "io_queue_init") != nullptr) return;  // libaio
  auto find = [](std::atomic<void*>& to, const char* name) {
    to.store(dynamic_linker::find(RTLD_NEXT, name), std::memory_order_relaxed);
  };
  find(others.setup, "io_setup");
  find(others.destroy, "io_destroy");
  find(others.submit, "io_submit");
  find(others.get_events, "io_getevents");
  find(others.pget_events, "io_pgetevents");
}

template <typename Function>
Function* other(const std::atomic<void*>& of) {
  return reinterpret_cast<Function*>(of.load(std::memory_order_relaxed));
}

}  // namespace

CKPT_INTERPOSE(int, io_setup, int requests, aio_context_t* context) {
  if (auto* theirs = other<Setup>(others.setup)) return theirs(requests, context);
  return static_cast<int>(aio_contexts::setup(requests, context));
}

CKPT_INTERPOSE(int, io_destroy, aio_context_t context) {
  if (auto* theirs = other<Destroy>(others.destroy)) return theirs(context);
  return static_cast<int>(aio_contexts::destroy(context));
}

CKPT_INTERPOSE(int, io_submit, aio_context_t context, long count, iocb** list) {
  if (auto* theirs = other<Submit>(others.submit)) return theirs(context, count, list);
  return static_cast<int>(aio_contexts::submit(context, count, list));
}

CKPT_INTERPOSE(int, io_getevents, aio_context_t context, long least, long most, io_event* events,
               timespec* timeout) {
  if (auto* theirs = other<GetEvents>(others.get_events))
    return theirs(context, least, most, events, timeout);
  return static_cast<int>(calls::io_getevents(static_cast<long>(context), least, most, events, timeout));
}

CKPT_INTERPOSE(int, io_pgetevents, aio_context_t context, long least, long most, io_event* events,
               timespec* timeout, void* mask) {
  if (auto* theirs = other<PGetEvents>(others.pget_events))
    return theirs(context, least, most, events, timeout, mask);
  const KernelMaskArgument argument{static_cast<const uint64_t*>(mask), 8};
  return static_cast<int>(
      calls::io_pgetevents(static_cast<long>(context), least, most, events, timeout, &argument));
}
