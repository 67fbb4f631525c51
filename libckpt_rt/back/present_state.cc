#include "libckpt_rt/back/present_state.h"

#include <algorithm>

#include "base/locks/lock_ranks.h"
#include "job/identity/own_job.h"
#include "job/session/connecting.h"
#include "job/session/creation.h"
#include "job/session/session.h"
#include "libckpt_rt/capture/futex_words.h"
#include "libckpt_rt/core/directory/own_directory.h"
#include "libckpt_rt/core/hooks.h"
#include "libckpt_rt/core/process/fork/fork_hold.h"
#include "libckpt_rt/core/process/loading.h"
#include "libckpt_rt/core/process/own_files.h"
#include "libckpt_rt/core/process/this_process.h"
#include "libckpt_rt/core/threads/of_ours/own_threads.h"
#include "libckpt_rt/guard/guard.h"
#include "libckpt_rt/interpose/memory/gate.h"
#include "libckpt_rt/protect/release_guard.h"
#include "libckpt_rt/stop/stop_state.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

void PresentState::save() {
  for (size_t i = 0; i < std::size(kOwnThreads); ++i)
    std::memcpy(static_cast<void*>(&threads_[i]), kOwnThreads[i], sizeof(RawThread));
  own_page_ = own_page::place();
  statistics_ = statistics::read();
  std::memcpy(static_cast<void*>(&compression_), &image_history.compression, sizeof(compression_));
  in_force_ = in_force::all();
  agent::save_requests(agent_);
  guard_ = guard::own_range();
  generation_ = this_process.generation;
  memory_registered_ = hooks::memory_registered.load(std::memory_order_relaxed);
  monotonic_shift_ns_ = hooks::monotonic_shift_ns.load(std::memory_order_relaxed);
  job_sign_ = job::own_job.sign;
  last_streamed_ = image_history.last_streamed;
  has_forked_ = hooks::has_forked.load(std::memory_order_relaxed);
}

void PresentState::put_back(Watch* watch) {
  lock_ranks::forget();
  for (size_t i = 0; i < std::size(kOwnThreads); ++i)
    std::memcpy(static_cast<void*>(kOwnThreads[i]), &threads_[i], sizeof(RawThread));
  own_page::set_place(own_page_);
  statistics::reset_after_restart();
  statistics::put_back(statistics_);
  std::memcpy(static_cast<void*>(&image_history.compression), &compression_, sizeof(compression_));
  in_force::put_back(in_force_);
  this_process.generation = std::max(this_process.generation, generation_) + 1;
  hooks::monotonic_shift_ns.store(monotonic_shift_ns_, std::memory_order_relaxed);
  image_history.last_streamed = std::max(image_history.last_streamed, last_streamed_);
  if (has_forked_) hooks::has_forked.store(true, std::memory_order_relaxed);
  agent::put_back_requests(agent_, this_process.generation);

  job::own_job.sign = job_sign_;
  job::creation::reset();
  job::connecting::reset();
  fork_hold::reset();
  job::forget_session();
  own_directory::forget();
  own_files::forget();
  loading::begin(0);
  stop_state.world.reset_after_restart();
  release_guard::reset_after_restart();
  if (watch != nullptr) hooks::memory_registered.store(memory_registered_, std::memory_order_relaxed);
  const bool same_guard = guard::own_range().start == guard_.start;
  guard::reset(same_guard);
  if (!same_guard && !guard_.empty()) sys::call(__NR_munmap, guard_.start.value, guard_.size());
  reset_gate_after_restart();
  futex_words::reset_hold();
  Watch::forget_kept();
  if (watch != nullptr) watch->become_kept();
}

}  // namespace ckpt
