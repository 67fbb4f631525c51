// The C interface (include/ckpt_rt.h).

#include <signal.h>
#include <string.h>

#include "base/memory/large_table.h"
#include "include/ckpt_rt.h"
#include "libckpt_rt/back/back_command.h"
#include "libckpt_rt/capture/advice/excluded_memory.h"
#include "libckpt_rt/checkpoint/preparation.h"
#include "libckpt_rt/checkpoint/stages/callbacks.h"
#include "libckpt_rt/core/process/fork/child.h"
#include "libckpt_rt/core/process/this_process.h"
#include "libckpt_rt/entry/agent.h"
#include "libckpt_rt/stop/critical_section.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::callbacks {

namespace {

struct Callback {
  ckpt_rt_callback_kind kind;
  ckpt_rt_callback function;
  void* context;
};
constexpr uint32_t kMost = 64;
constinit FutexLock<LockRank::kCallbacks> lock;
CKPT_LARGE_TABLE constinit Callback list[kMost]{};
constinit std::atomic<uint32_t> count{0};

}  // namespace

int add(ckpt_rt_callback_kind kind, ckpt_rt_callback function, void* context) {
  if (function == nullptr || kind < CKPT_RT_BEFORE_CHECKPOINT || kind > CKPT_RT_CAME_BACK)
    return CKPT_RT_USAGE;
  ScopedLock guard(lock);
  uint32_t n = count.load(std::memory_order_relaxed);
  if (n == kMost) return CKPT_RT_UNAVAILABLE;
  list[n] = {kind, function, context};
  count.store(n + 1, std::memory_order_release);
  return CKPT_RT_OK;
}

int remove(ckpt_rt_callback_kind kind, ckpt_rt_callback function, void* context) {
  ScopedLock guard(lock);
  uint32_t n = count.load(std::memory_order_relaxed);
  for (uint32_t i = 0; i < n; ++i) {
    if (list[i].kind != kind || list[i].function != function || list[i].context != context) continue;
    for (uint32_t j = i; j + 1 < n; ++j) list[j] = list[j + 1];
    count.store(n - 1, std::memory_order_release);
    return CKPT_RT_OK;
  }
  return CKPT_RT_USAGE;
}

bool any(ckpt_rt_callback_kind kind) {
  for (uint32_t i = 0; i < count.load(std::memory_order_acquire); ++i) {
    if (list[i].kind == kind) return true;
  }
  return false;
}

void run(ckpt_rt_callback_kind kind) {
  uint32_t n = count.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < n; ++i) {
    const Callback& c = list[kind == CKPT_RT_AFTER_CHECKPOINT ? n - 1 - i : i];
    if (c.kind == kind) c.function(kind, c.context);
  }
}

}  // namespace ckpt::callbacks

namespace {

using namespace ckpt;

void copy_text(char* to, size_t size, const char* from) {
  size_t n = strnlen(from, size - 1);
  memcpy(to, from, n);
  to[n] = '\0';
}

void fill(const agent::OwnRequest& r, ckpt_rt_result& out) {
  out.restarted = r.restarted;
  if (r.restarted != 0) return;
  copy_text(out.error, sizeof(out.error), r.error.text);
  if (!r.ok) return;
  const CheckpointCost& c = r.cost;
  out.attempts = c.attempts;
  out.sequence = c.sequence;
  out.pause_ns = c.pause_ns;
  out.longest_wait_ns = c.longest_wait_ns;
  out.durable_ns = c.durable_ns;
  out.forced_copies = c.forced_copies + c.release_copies;
  out.sequential_copies = c.sequential_copies;
  out.faults = c.faults;
  out.bytes_memory = c.bytes_memory;
  out.bytes_written = c.bytes_written;
  out.threads = c.threads;
  copy_text(out.mode, sizeof(out.mode), mode_name(c.mode));
  copy_text(out.image, sizeof(out.image), c.image);
}

AddrRange whole_pages(const void* start, size_t length) {
  Addr first = Addr::of(start).page_up();
  Addr end = (Addr::of(start) + length).page_down();
  return {first, end < first ? first : end};
}

}  // namespace

#define CKPT_API extern "C" __attribute__((visibility("default")))

CKPT_API int ckpt_rt_is_active(void) { return this_process.active ? 1 : 0; }

CKPT_API uint32_t ckpt_rt_restarted(void) {
  know_child();
  return this_process.generation;
}

CKPT_API int ckpt_rt_checkpoint(ckpt_rt_result* result) {
  if (result != nullptr && result->size < sizeof(size_t)) return CKPT_RT_USAGE;
  if (!this_process.active) return CKPT_RT_NOT_LOADED;
  know_child();
  if (critical_section::inside(sys::gettid())) return CKPT_RT_USAGE;
  agent::OwnRequest own;
  agent::Request request;
  request.own = &own;
  // The agent inherits our mask, and the handler of the stop must not meet its lock in our hands.
  uint64_t all = ~0ull, before = 0;
  sys::call(__NR_rt_sigprocmask, SIG_SETMASK, &all, &before, 8L);
  bool queued = agent::request(request);
  sys::call(__NR_rt_sigprocmask, SIG_SETMASK, &before, 0L, 8L);
  if (!queued) return CKPT_RT_UNAVAILABLE;
  while (own.done.load(std::memory_order_acquire) == 0) futex_wait(own.done, 0);
  if (result != nullptr) {
    ckpt_rt_result full{};
    full.size = result->size;
    fill(own, full);
    memcpy(result, &full, result->size < sizeof(full) ? result->size : sizeof(full));
  }
  if (own.ok && own.error.text[0] == '\0') return CKPT_RT_OK;
  return static_cast<int>(own.error.code);
}

CKPT_API int ckpt_rt_back(const char* image, char* error, size_t error_size) {
  if (error != nullptr && error_size != 0) error[0] = '\0';
  if (!this_process.active) return CKPT_RT_NOT_LOADED;
  know_child();
  if (critical_section::inside(sys::gettid())) return CKPT_RT_USAGE;
  const Error why = go_back_by_command(image);
  if (error != nullptr && error_size != 0) copy_text(error, error_size, why.text);
  return static_cast<int>(why.code);
}

CKPT_API int ckpt_rt_enter_critical(void) {
  if (!this_process.active) return CKPT_RT_OK;
  know_child();
  return critical_section::enter(sys::gettid()) ? CKPT_RT_OK : CKPT_RT_UNAVAILABLE;
}

CKPT_API int ckpt_rt_leave_critical(void) {
  if (!this_process.active) return CKPT_RT_OK;
  know_child();
  return critical_section::leave(sys::gettid()) ? CKPT_RT_OK : CKPT_RT_USAGE;
}

CKPT_API int ckpt_rt_add_callback(ckpt_rt_callback_kind kind, ckpt_rt_callback function, void* context) {
  return callbacks::add(kind, function, context);
}

CKPT_API int ckpt_rt_remove_callback(ckpt_rt_callback_kind kind, ckpt_rt_callback function, void* context) {
  return callbacks::remove(kind, function, context);
}

CKPT_API int ckpt_rt_serve(void) { return preparation::serve(); }

CKPT_API void ckpt_rt_refuse(const char* why) { preparation::refuse(why); }

CKPT_API int ckpt_rt_post(const char* subject, const char* host, int pid, const void* bytes, size_t length) {
  return preparation::post(subject, host, pid, bytes, length);
}

CKPT_API int ckpt_rt_take_over(int pid, const char* who) { return preparation::take_over(pid, who); }

CKPT_API int ckpt_rt_directory(char* now, char* later, size_t size) {
  return preparation::directory(now, later, size);
}

CKPT_API int ckpt_rt_next_message(const char* subject, uint32_t* position, ckpt_rt_message* message) {
  if (message->size < sizeof(*message)) return CKPT_RT_USAGE;
  return preparation::next(subject, position, *message);
}

CKPT_API int ckpt_rt_exclude(const void* start, size_t length) {
  return excluded_memory::exclude(whole_pages(start, length)) ? CKPT_RT_OK : CKPT_RT_UNAVAILABLE;
}

CKPT_API int ckpt_rt_include(const void* start, size_t length) {
  // Undoing reaches every page that the range touches.
  AddrRange pages{Addr::of(start).page_down(), (Addr::of(start) + length).page_up()};
  return excluded_memory::include(pages) ? CKPT_RT_OK : CKPT_RT_UNAVAILABLE;
}
