#include "tests/protect_model/stand_ins.h"

#include <sys/mman.h>

#include "base/settings/settings.h"
#include "libckpt_rt/capture/futex_words.h"
#include "libckpt_rt/core/threads/of_ours/urgency.h"
#include "libckpt_rt/protect/release_guard.h"
#include "libckpt_rt/stop/stop_world.h"

namespace ckpt {
namespace test::stand_ins {
std::function<void(const RawThread&, std::function<void()>)> spawn;
std::function<void()> join;
}  // namespace test::stand_ins

bool RawThread::reserve() {
  void* p =
      mmap(nullptr, kBlockBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  block_ = Addr::of(p);
  return p != MAP_FAILED;
}
long RawThread::spawn(void (*fn)(void*), void* arg, DescriptorTable) {
  test::stand_ins::spawn(*this, [fn, arg] { fn(arg); });
  return 0;
}
void RawThread::join() { test::stand_ins::join(); }

// Said in messages alone.
const char* fault_back_end_name(FaultBackEnd) { return "a back end"; }

// The threads of the program are never so many that it matters.
bool many_threads_run() { return false; }
void Urgency::begin() {
  before_ = 0;
  slice_before_ = 0;
}
void Urgency::end() {}

// A thread that stands does what it is told: here it is the caller.
void StopWorld::start_on(ThreadSlot&, void (*work)(void*), void* argument) { work(argument); }
void StopWorld::await(ThreadSlot&) {}

// No word in the program's memory is one that the kernel changes; open pages are the tests' own.
namespace futex_words {
Hold::Hold(AddrRange) {}
Hold::~Hold() {}
bool noted_in(AddrRange) { return false; }
}  // namespace futex_words

// The program makes its calls itself: nobody asks.
namespace release_guard {
void begin(Addr) {}
void note_registration() {}
void serve(WriteProtection&) {}
void end() {}
}  // namespace release_guard

}  // namespace ckpt
