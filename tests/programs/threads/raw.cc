#include <asm/prctl.h>
#include <linux/futex.h>
#include <linux/sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/programs/threads/threads.h"

namespace threads {

using namespace victim;

namespace {

// A raw thread has no libc: what it touches is here, and it ends by a bare exit system call.
struct RawThread {
  uint32_t tid;  // set by the kernel, cleared when the thread has ended (CLONE_CHILD_CLEARTID)
  uint32_t own_tid;
  uint64_t steps;
  uint64_t counter;
  uint64_t fault;    // step in which something was wrong, 0: none
  uint64_t tls[8];   // what its TLS register points at, if it has its own
  uint64_t own_tls;  // 1: check it
  std::byte* stack;
};
constexpr size_t kStackBytes = 64 << 10;

long raw_syscall(long number, long a, long b = 0) {
  long result;
  asm volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b) : "rcx", "r11", "memory");
  return result;
}

// Runs in the new thread. No thread-local storage may be touched here, nor a stack guard read.
__attribute__((noinline, noreturn, no_stack_protector)) void raw_body(RawThread* self) {
  self->own_tid = static_cast<uint32_t>(raw_syscall(SYS_gettid, 0));
  uint64_t x = self->counter;
  for (uint64_t n = 1; n <= self->steps; ++n) {
    x = x * 6364136223846793005u + 1442695040888963407u;
    if (n % 65536 != 0) continue;
    self->counter = x;
    if (static_cast<uint32_t>(raw_syscall(SYS_gettid, 0)) != self->own_tid) self->fault = n;
    if (self->own_tls != 0) {
      uint64_t first;
      asm volatile("mov %%fs:0, %0" : "=r"(first));
      if (first != reinterpret_cast<uint64_t>(self->tls)) self->fault = n;
    }
  }
  self->counter = x;
  for (;;) raw_syscall(SYS_exit, 0);
}

// clone(2): the child goes on from the system call on its own stack, on whose top lie the function
// and its argument.
long clone_raw(RawThread* thread, uint64_t flags) {
  auto* top = reinterpret_cast<uint64_t*>(thread->stack + kStackBytes);
  *--top = 0;
  *--top = reinterpret_cast<uint64_t>(thread);
  *--top = reinterpret_cast<uint64_t>(&raw_body);
  register uint32_t* child_tid asm("r10") = &thread->tid;
  register uint64_t* tls asm("r8") = thread->tls;
  long result;
  asm volatile(
      "syscall\n\t"
      "test %%rax, %%rax\n\t"
      "jnz 1f\n\t"
      "xor %%ebp, %%ebp\n\t"
      "pop %%rax\n\t"
      "pop %%rdi\n\t"
      "call *%%rax\n\t"
      "hlt\n"
      "1:"
      : "=a"(result)
      : "a"(SYS_clone), "D"(flags), "S"(top), "d"(&thread->tid), "r"(child_tid), "r"(tls)
      : "rcx", "r11", "memory");
  return result;
}

}  // namespace

std::string raw(uint64_t iterations) {
  constexpr unsigned kThreads = 4;
  RawThread threads[kThreads] = {};
  for (unsigned t = 0; t < kThreads; ++t) {
    RawThread& thread = threads[t];
    thread.steps = iterations / kThreads;
    thread.counter = t;
    thread.stack = map_pages(kStackBytes / kPage);
    thread.tls[0] = reinterpret_cast<uint64_t>(thread.tls);  // as the ABI wants it
    uint64_t flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM |
                     CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID;
    if (t % 2 == 0) {
      flags |= CLONE_SETTLS;
      thread.own_tls = 1;
    }
    require_call(clone_raw(&thread, flags) > 0, "clone");
  }
  uint64_t digest = 0;
  for (unsigned t = 0; t < kThreads; ++t) {
    RawThread& thread = threads[t];
    for (;;) {
      uint32_t tid = __atomic_load_n(&thread.tid, __ATOMIC_ACQUIRE);
      if (tid == 0) break;
      syscall(SYS_futex, &thread.tid, FUTEX_WAIT, tid, nullptr, nullptr, 0);
    }
    require(thread.fault == 0, "raw: thread {} has another tid or TLS register in step {}", t, thread.fault);
    uint64_t x = t;
    for (uint64_t n = 0; n < thread.steps; ++n) x = x * 6364136223846793005u + 1442695040888963407u;
    require(x == thread.counter, "raw: thread {} counted to {:x}, not {:x}", t, thread.counter, x);
    digest = mix(digest ^ x);
    munmap(thread.stack, kStackBytes);
  }
  return fmt::format("{} threads, digest {:016x}", kThreads, digest);
}

}  // namespace threads
