#include "libckpt_rt/core/threads/thread_context.h"

#include <asm/prctl.h>
#include <errno.h>
#include <linux/rseq.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include <cstring>

#include "base/machine/cpuid_allowed.h"
#include "base/protocol/restart_protocol.h"
#include "base/sys.h"
#include "libckpt_rt/core/kernel/signal_limit.h"
#include "libckpt_rt/core/threads/late_signals.h"
#include "libckpt_rt/core/threads/own_rseq.h"
#include "libckpt_rt/core/preload_rules.h"

#ifndef PR_GET_TID_ADDRESS
#define PR_GET_TID_ADDRESS 40
#endif

namespace ckpt {

namespace {

// Of libc's rseq areas; an image holds it.
struct RseqLayout {
  int64_t offset = 0;
  uint32_t length = 0;
};
constinit RseqLayout rseq_layout;

constexpr uint32_t kRseqSignature = 0x53053053;  // glibc's RSEQ_SIG on x86-64
constexpr size_t kSigsetBytes = 8;               // the kernel's sigset_t
constexpr long kIoPriorityOfThread = 1;          // IOPRIO_WHO_PROCESS

// Is `area` registered for this thread? `area` may be that of another thread, which has ended, and its memory
// gone: so the first question has no effect. To unregister with a wrong signature is EPERM for what is
// registered, and EINVAL for all else. Then registering it again is EBUSY, if the signature is right.
bool rseq_registered(const own_rseq::Area& area) {
  return sys::call(__NR_rseq, area.address, area.length, RSEQ_FLAG_UNREGISTER, ~area.signature) == -EPERM &&
         sys::call(__NR_rseq, area.address, area.length, 0L, area.signature) == -EBUSY;
}

// maxnode counts one more than it says. A kernel without nodes (ENOSYS) has no policies.
constexpr long kMaxNode = MemoryPolicy::kMostNodes + 1;

MemoryPolicy memory_policy() {
  MemoryPolicy policy;
  if (sys::call(__NR_get_mempolicy, &policy.mode, policy.nodes, kMaxNode, 0L, 0L) != 0) return {};
  return policy;
}

// Libc's, else one of the program's own. address 0: none.
own_rseq::Area rseq_area(uint64_t fs_base) {
  const own_rseq::Area of_libc{fs_base + static_cast<uint64_t>(rseq_layout.offset), rseq_layout.length,
                               kRseqSignature};
  if (of_libc.length != 0 && fs_base != 0 && rseq_registered(of_libc)) return of_libc;
  const own_rseq::Area own = own_rseq::find(fs_base);
  return own.address != 0 && rseq_registered(own) ? own : own_rseq::Area{};
}

Speculation speculation() {
  Speculation now;
  for (int kind = 0; kind < Speculation::kKinds; ++kind) {
    const long value = sys::call(__NR_prctl, PR_GET_SPECULATION_CTRL, kind, 0L, 0L, 0L);
    if (value > 0 && (value & PR_SPEC_PRCTL) != 0)
      now.allowed[kind] = static_cast<uint8_t>(value & ~long{PR_SPEC_PRCTL});
  }
  return now;
}

// Where it is another: what was forbidden for good (PR_SPEC_FORCE_DISABLE) stays so.
void restore_speculation(const Speculation& saved) {
  const Speculation now = speculation();
  for (int kind = 0; kind < Speculation::kKinds; ++kind) {
    if (saved.allowed[kind] != 0 && now.allowed[kind] != 0 && saved.allowed[kind] != now.allowed[kind])
      sys::call(__NR_prctl, PR_SET_SPECULATION_CTRL, kind, long{saved.allowed[kind]}, 0L, 0L);
  }
}

// To load a segment that is not there would be a fault.
bool is_there(uint16_t segment) {
  constexpr uint32_t kPresent = 1u << 15;
  uint32_t rights = 0;
  bool known;
  asm volatile("lar %2, %1" : "=@ccz"(known), "+r"(rights) : "r"(uint32_t{segment}));
  return known && (rights & kPresent) != 0;
}

bool may_read(uint16_t segment) {
  bool readable;
  asm volatile("verr %1" : "=@ccz"(readable) : "r"(segment));
  return readable && is_there(segment);
}

// A thread of `ckpt back` may have others now: what is not there is emptied. FS and GS after their bases.
void load_segments(const ThreadSlot& slot, uint32_t& notes) {
  auto loadable = [&](uint16_t segment) {
    if (segment == 0 || may_read(segment)) return segment;
    notes |= kNoteSegments;
    return uint16_t{0};
  };
  const uint16_t data = loadable(slot.data_segment), extra = loadable(slot.extra_segment);
  asm volatile("mov %0, %%ds\n\tmov %1, %%es" : : "r"(data), "r"(extra));
  // To set the base empties the register (arch_prctl(2)), and to load it sets the base: what is loaded is
  // right where the base is the segment's, as it is for who has loaded one.
  const uint16_t fs = loadable(slot.fs_segment), gs = loadable(slot.gs_segment);
  uint64_t base = 0;
  if (fs != 0) {
    asm volatile("mov %0, %%fs" : : "r"(fs));
    sys::call(__NR_arch_prctl, ARCH_GET_FS, &base);
    if (base != slot.fs_base) sys::call(__NR_arch_prctl, ARCH_SET_FS, slot.fs_base);
  }
  if (gs != 0) {
    asm volatile("mov %0, %%gs" : : "r"(gs));
    sys::call(__NR_arch_prctl, ARCH_GET_GS, &base);
    if (base != slot.gs_base) sys::call(__NR_arch_prctl, ARCH_SET_GS, slot.gs_base);
  }
  const auto code = static_cast<uint16_t>(slot.frame->uc_mcontext.gregs[REG_CSGSFS]);
  const auto stack = static_cast<uint16_t>(slot.frame->uc_mcontext.gregs[REG_CSGSFS] >> 48);
  constexpr uint16_t kOfProgram = 4;  // in the table of modify_ldt(2)
  for (const uint16_t segment : {code, stack}) {
    if ((segment & kOfProgram) != 0 && !is_there(segment)) notes |= kNoteSegments;
  }
}

}  // namespace

void know_rseq_area(int64_t offset, uint32_t length) {
  rseq_layout.offset = offset;
  rseq_layout.length = length;
}

void forget_rseq_area() {
  if (rseq_layout.length != 0)
    sys::call(
        __NR_rseq,
        reinterpret_cast<uint64_t>(__builtin_thread_pointer()) + static_cast<uint64_t>(rseq_layout.offset),
        rseq_layout.length, RSEQ_FLAG_UNREGISTER, kRseqSignature);
  rseq_layout = {};
}

void save_thread_in_handler(ThreadSlot& slot, ucontext_t* frame) {
  slot.tid = sys::gettid();
  slot.frame = frame;
  // A program that was executed by a thread with an alternate stack has none, but the kernel's flags of it
  // stay. From a frame it would not take them: a process that was restarted, or has gone back, would keep the
  // stack that it has meanwhile.
  if (frame->uc_stack.ss_size == 0) frame->uc_stack.ss_flags = SS_DISABLE;
  sys::call(__NR_arch_prctl, ARCH_GET_FS, &slot.fs_base);
  sys::call(__NR_arch_prctl, ARCH_GET_GS, &slot.gs_base);
  sys::call(__NR_get_robust_list, 0L, &slot.robust_list, &slot.robust_list_len);
  sys::call(__NR_prctl, PR_GET_TID_ADDRESS, &slot.clear_child_tid);
  const own_rseq::Area rseq = rseq_area(slot.fs_base);
  slot.rseq = rseq.address;
  slot.rseq_len = rseq.length;
  slot.rseq_signature = rseq.signature;
  sys::call(__NR_prctl, PR_GET_NAME, slot.name);
  slot.used = processor_time::of_thread();
  slot.sched.size = sizeof(slot.sched);
  sys::call(__NR_sched_getattr, 0L, &slot.sched, sizeof(slot.sched), 0L);
  long n = sys::call(__NR_sched_getaffinity, 0L, sizeof(slot.affinity), slot.affinity);
  slot.affinity_len = n > 0 ? static_cast<uint32_t>(n) : 0;
  long io_priority = sys::call(__NR_ioprio_get, kIoPriorityOfThread, 0L);
  slot.io_priority = io_priority > 0 ? static_cast<int32_t>(io_priority) : 0;
  long slack = sys::call(__NR_prctl, PR_GET_TIMERSLACK);
  slot.timer_slack_ns = slack > 0 ? static_cast<uint64_t>(slack) : 0;
  sys::call(__NR_prctl, PR_GET_PDEATHSIG, &slot.parent_death_signal);
  slot.machine_check = static_cast<int32_t>(sys::call(__NR_prctl, PR_MCE_KILL_GET, 0L, 0L, 0L, 0L));
  asm volatile("mov %%ds, %0" : "=r"(slot.data_segment));
  asm volatile("mov %%es, %0" : "=r"(slot.extra_segment));
  asm volatile("mov %%fs, %0" : "=r"(slot.fs_segment));
  asm volatile("mov %%gs, %0" : "=r"(slot.gs_segment));
  save_credentials_in_handler(slot.credentials);
  if (slot.credentials.known) {  // filters may punish the questions
    slot.memory_policy = memory_policy();
    sys::call(__NR_prctl, PR_GET_TSC, &slot.time_stamps);
    slot.speculation = speculation();
    slot.cpuid_forbidden = is_cpuid_forbidden();
  }
  sys::call(__NR_rt_sigpending, &slot.pending_mask, kSigsetBytes);
}

void take_pending(uint64_t wanted, int tid, PendingSignals& all) {
  const timespec kNow{0, 0};
  while (all.count < PendingSignals::kMost) {
    PendingSignal& p = all.list[all.count];
    long sig = sys::call(__NR_rt_sigtimedwait, &wanted, &p.info, &kNow, kSigsetBytes);
    if (sig <= 0) return;
    p.tid = tid;
    p.signal = static_cast<int32_t>(sig);
    ++all.count;
  }
  all.overflow = true;
}

void queue_again(const PendingSignals& pending, uint32_t from, uint64_t signals) {
  int pid = sys::getpid();
  for (uint32_t i = from; i < pending.count; ++i) {
    const PendingSignal& p = pending.list[i];
    if ((signals >> (p.signal - 1) & 1) == 0) continue;
    // Taking a timer's signal armed the timer again, so besides our copy it may queue one of its own:
    // of one timer's signals only the first goes back, or every checkpoint would add one.
    bool again = false;
    for (uint32_t j = from; p.info.si_code == SI_TIMER && j < i; ++j) {
      const siginfo_t& other = pending.list[j].info;
      again = again || (other.si_code == SI_TIMER && other.si_timerid == p.info.si_timerid);
    }
    if (again) continue;
    auto queue = [&] {
      return p.tid == 0 ? sys::call(__NR_rt_sigqueueinfo, pid, p.signal, &p.info)
                        : sys::call(__NR_rt_tgsigqueueinfo, pid, p.tid, p.signal, &p.info);
    };
    long r = queue();
    if (r == -EAGAIN) {
      // The signal was queued under a higher limit, or others of its user have taken its place meanwhile.
      SignalLimitRaised raised;
      r = queue();
    }
    if (r != -EPERM && r != -EAGAIN) continue;
    // A signal with a value waits for its place.
    if (r == -EAGAIN && p.signal >= SIGRTMIN && late_signals::add(p)) continue;
    if (p.tid == 0)
      sys::call(__NR_kill, pid, p.signal);
    else
      sys::call(__NR_tgkill, pid, p.tid, p.signal);
  }
}

long restore_thread_in_handler(const ThreadSlot& slot, uint32_t& notes) {
  long first_error = 0;
  auto check = [&](long r) {
    if (sys::failed(r) && first_error == 0) first_error = r;
  };
  check(sys::call(__NR_arch_prctl, ARCH_SET_FS, slot.fs_base));
  // In `ckpt back` the thread may have one of later.
  uint64_t gs_base = 0;
  sys::call(__NR_arch_prctl, ARCH_GET_GS, &gs_base);
  uint16_t gs_segment;
  asm volatile("mov %%gs, %0" : "=r"(gs_segment));
  if (gs_base != slot.gs_base || gs_segment != 0)
    check(sys::call(__NR_arch_prctl, ARCH_SET_GS, slot.gs_base));
  if (slot.robust_list != 0) check(sys::call(__NR_set_robust_list, slot.robust_list, slot.robust_list_len));
  sys::call(__NR_set_tid_address, slot.clear_child_tid);
  if (slot.rseq != 0) check(sys::call(__NR_rseq, slot.rseq, slot.rseq_len, 0L, slot.rseq_signature));
  sys::call(__NR_prctl, PR_SET_NAME, slot.name);
  if (slot.timer_slack_ns != 0) sys::call(__NR_prctl, PR_SET_TIMERSLACK, slot.timer_slack_ns);
  if (slot.machine_check >= 0)
    sys::call(__NR_prctl, PR_MCE_KILL, PR_MCE_KILL_SET, long{slot.machine_check}, 0L, 0L);
  if (slot.time_stamps != 0) sys::call(__NR_prctl, PR_SET_TSC, long{slot.time_stamps});
  if (slot.cpuid_forbidden) allow_cpuid(false);
  restore_speculation(slot.speculation);
  load_segments(slot, notes);
  // A narrower machine or fewer rights must not keep a program from coming back: affinity and
  // scheduling are restored as far as they go.
  auto try_to = [&](long r, uint32_t note) {
    if (sys::failed(r)) notes |= note;
  };
  if (slot.affinity_len != 0)
    try_to(sys::call(__NR_sched_setaffinity, 0L, slot.affinity_len, slot.affinity), kNoteAffinity);
  if (slot.sched.size != 0) try_to(sys::call(__NR_sched_setattr, 0L, &slot.sched, 0L), kNoteScheduling);
  // sched_setattr(2) takes the nice value of SCHED_OTHER and SCHED_BATCH only.
  if (slot.sched.size != 0 && slot.sched.policy == SCHED_IDLE)
    try_to(sys::call(__NR_setpriority, long{PRIO_PROCESS}, 0L, long{slot.sched.nice}), kNoteScheduling);
  if (slot.memory_policy.mode != 0) {
    try_to(sys::call(__NR_set_mempolicy, long{slot.memory_policy.mode}, slot.memory_policy.nodes, kMaxNode),
           kNoteMemoryPolicy);
  }
  const long io_priority = sys::call(__NR_ioprio_get, kIoPriorityOfThread, 0L);
  if (!sys::failed(io_priority) && io_priority != slot.io_priority) {
    try_to(sys::call(__NR_ioprio_set, kIoPriorityOfThread, 0L, long{slot.io_priority}), kNoteIoPriority);
  }
  return first_error;
}

}  // namespace ckpt
