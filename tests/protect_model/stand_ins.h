// What stands in for parts of the library that need a process around them: threads of ours, the stop,
// requests to the serving thread. One file of bodies, for the sources that are taken as they are.
#pragma once

#include <functional>

#include "libckpt_rt/core/threads/of_ours/raw_thread.h"

namespace ckpt::test::stand_ins {

// RawThread::spawn() and join() of the thread that serves faults.
extern std::function<void(const RawThread&, std::function<void()>)> spawn;
extern std::function<void()> join;

}  // namespace ckpt::test::stand_ins
