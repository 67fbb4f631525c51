#include "tests/protect_model/small_program.h"

#include <cstdio>
#include <cstdlib>

#include "copier/copier.h"
#include "libckpt_rt/core/threads/of_ours/own_threads.h"
#include "libckpt_rt/guard/record.h"
#include "tests/protect_model/stand_ins.h"

namespace ckpt::test {
namespace {

// Threads of the program stand on the alternate stacks of their records: there the guard looks for them.
AddrRange stack_of_thread(size_t i) {
  const Addr block{guard::window.blocks + i * guard::kBlockBytes};
  return {block + kPageSize, block + guard::kBlockBytes};
}

AddrRange stack_of(const RawThread& thread) { return {thread.block().start + kPageSize, thread.block().end}; }

}  // namespace

std::string text_of(const std::vector<Step>& steps) {
  constexpr const char* kNames[] = {"store",     "give back",   "give back late", "unmap", "map over",
                                    "move away", "map another", "kernel writes",  "pause", "long pause"};
  std::string text;
  for (const Step& s : steps) {
    text += std::to_string(s.instant) + ": " + kNames[static_cast<int>(s.what)] + " " +
            std::to_string(s.page) + "+" + std::to_string(s.count) + "; ";
  }
  return text;
}

SmallProgram::SmallProgram(SmallKernel& kernel, bool guarded, std::vector<Step> steps)
    : kernel_(kernel), guarded_(guarded), steps_(std::move(steps)) {
  kernel_.before_call = [this] { before_call(); };
  stand_ins::spawn = [this](const RawThread& thread, std::function<void()> body) {
    server_.begin(stack_of(thread), std::move(body));
  };
  stand_ins::join = [this] {
    while (!server_.done()) Fiber::suspend();
  };
}

SmallProgram::~SmallProgram() {
  kernel_.before_call = [] {};
  stand_ins::spawn = nullptr;
  stand_ins::join = nullptr;
}

bool SmallProgram::all_done() const {
  bool done = true;
  for (const Fiber& t : threads_) done = done && t.done();
  return done;
}

void SmallProgram::others_go_on() {
  if (server_.can_go_on()) server_.resume();
  if (writer_.can_go_on()) writer_.resume();
  for (Fiber& t : threads_) {
    if (t.can_go_on()) t.resume();
  }
}

void SmallProgram::run(std::function<void()> agent) {
  agent_.begin(stack_of(own_threads.agent), std::move(agent));
  // Nobody computes for long: who is not done after so many turns waits for ever.
  constexpr int kMostTurns = 5000;
  for (int turns = 0; !agent_.done() || !all_done() || !server_.done() || !writer_.done(); ++turns) {
    if (turns == kMostTurns) {
      std::fprintf(stderr, "somebody waits for ever:%s%s%s%s, after %s\n", agent_.done() ? "" : " the agent",
                   server_.done() ? "" : " the serving thread", writer_.done() ? "" : " the writer",
                   all_done() ? "" : " the program", text_of(steps_).c_str());
      std::abort();  // nobody can go back from the stacks on which they wait
    }
    if (agent_.can_go_on()) agent_.resume();
    others_go_on();
  }
}

void SmallProgram::start_writer(std::function<void()> body) {
  writer_.begin(stack_of(own_threads.writer), std::move(body));
}

void SmallProgram::stop() {
  standing_ = true;
  while (!all_done()) Fiber::suspend();
}

void SmallProgram::before_call() {
  const Fiber* caller = Fiber::current();
  if (standing_ || (caller != &agent_ && caller != &server_)) return;
  ++instants_;
  while (!pausing_ && next_ < steps_.size() && steps_[next_].instant <= instants_) {
    const Step& step = steps_[next_++];
    if (step.what == What::kLongPause) {
      pausing_ = true;  // nothing else begins until it is over
      for (size_t i = 0; caller == &agent_ && i < step.count; ++i) others_go_on();
      pausing_ = false;
      continue;
    }
    if (step.what != What::kPause)
      begin(step);
    else if (caller == &server_)
      Fiber::suspend();
    else
      others_go_on();
  }
}

void SmallProgram::begin(const Step& step) {
  for (size_t i = 0; i < kThreads; ++i) {
    if (!threads_[i].done()) continue;
    threads_[i].begin(stack_of_thread(i), [this, step] { act(step); });
    threads_[i].resume();
    return;
  }
  kernel_.wrong.push_back("the model has too few threads");
}

void SmallProgram::act(const Step& step) {
  auto each_page = [&](auto&& use) {
    for (size_t i = step.page; i < step.page + step.count; ++i) use(kernel_.page(i));
  };
  if (step.what == What::kStore) {
    for (size_t i = step.page; i < step.page + step.count; ++i) store(i);
    return;
  }
  announce(step);
  bool told = false;  // by the kernel
  each_page([&](const SmallKernel::Page& p) { told = told || p.registered; });
  if (step.what != What::kMapAnother && step.what != What::kKernelWrites) ++removals_;
  switch (step.what) {
    case What::kGiveBack:
    case What::kGiveBackLate:
      // Where nothing is registered there is neither an event nor a registration before the pages go.
      if (told) kernel_.tell(step.page, step.count, true);
      if (step.what == What::kGiveBackLate && (told || guarded_)) Fiber::suspend();
      each_page([](SmallKernel::Page& p) { p.exists = p.marked = false; });
      break;
    case What::kUnmap:
      each_page([](SmallKernel::Page& p) { p = {}; });
      if (told) kernel_.tell(step.page, step.count, false);
      break;
    case What::kMapOver:
      kernel_.map_new(step.page, step.count);
      if (told) kernel_.tell(step.page, step.count, false);
      break;
    case What::kMoveAway:
      each_page([](SmallKernel::Page& p) { p = {}; });
      break;
    case What::kMapAnother:
      if (kernel_.page(step.page).mapping != 0) break;
      kernel_.map_new(step.page, step.count);
      for (size_t i = step.page; i < step.page + step.count; ++i) kernel_.store(i);
      break;
    case What::kKernelWrites:
      Fiber::suspend();
      for (size_t i = step.page; i < step.page + step.count; ++i) {
        if (!guarded_)
          store(i);
        else if (kernel_.page(i).is_protected())
          kernel_.wrong.push_back("the kernel meets a protected page");
        else if (kernel_.page(i).mapping != 0)
          kernel_.store(i);
      }
      break;
    default:
      break;
  }
  if (!guarded_) return;
  guard::record_of(__builtin_frame_address(0))->busy_count.store(0, std::memory_order_relaxed);
}

// Under guard, as guard/dispatch.cc does ahead of a call.
void SmallProgram::announce(const Step& step) {
  if (!guarded_ || !guard::is_open()) return;
  const AddrRange range = SmallKernel::range_of(step.page, step.count);
  if (!guard::is_ahead())
    guard::make_writable(range);
  else if (step.what == What::kKernelWrites)
    guard::open_for_kernel(*guard::record_of(__builtin_frame_address(0)), range);
  else
    guard::open_for_change(*guard::record_of(__builtin_frame_address(0)), range);
}

void SmallProgram::store(size_t i) {
  while (kernel_.page(i).is_protected()) {
    if (guarded_)
      handle_fault(i);
    else
      kernel_.wait_in_fault(i);
  }
  if (kernel_.page(i).mapping != 0) kernel_.store(i);
}

// As guard/signals.cc does: on_fault().
void SmallProgram::handle_fault(size_t i) {
  const AddrRange page = SmallKernel::range_of(i, 1);
  if (!guard::is_open()) {
    kernel_.wrong.push_back("a page is protected, and nobody handles its fault");
    kernel_.page(i).marked = false;
    kernel_.page(i).writable = true;
    return;
  }
  if (guard::is_ahead()) {
    if (!guard::make_writable_ahead(*guard::record_of(__builtin_frame_address(0)), page.start))
      kernel_.wrong.push_back("a fault of ours is taken for the program's own");
    return;
  }
  bool copied = false;
  if (!guard::window.copier->tracks(page.start, &copied))
    kernel_.wrong.push_back("a protected page is in no segment");
  if (!guard::make_writable(page)) Fiber::suspend();
}

}  // namespace ckpt::test
