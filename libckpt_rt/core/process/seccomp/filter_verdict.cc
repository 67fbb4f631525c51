#include "libckpt_rt/core/process/seccomp/filter_verdict.h"

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/sched.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cstring>
#include <iterator>

#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::filter_verdict {

namespace {

struct Machine {
  uint32_t a, x, memory[BPF_MEMWORDS];
};

uint32_t word_at(const seccomp_data& call, uint32_t offset) {
  uint32_t word = 0;
  if (offset <= sizeof(call) - sizeof(word))
    std::memcpy(&word, reinterpret_cast<const char*>(&call) + offset, sizeof(word));
  return word;
}

uint32_t loaded(const sock_filter& i, const Machine& m, const seccomp_data& call) {
  switch (BPF_MODE(i.code)) {
    case BPF_ABS:
      return word_at(call, i.k);
    case BPF_LEN:
      return sizeof(call);
    case BPF_MEM:
      return m.memory[i.k % BPF_MEMWORDS];
    default:
      return i.k;
  }
}

uint32_t reckoned(uint32_t operation, uint32_t a, uint32_t b) {
  switch (operation) {
    case BPF_ADD:
      return a + b;
    case BPF_SUB:
      return a - b;
    case BPF_MUL:
      return a * b;
    case BPF_DIV:
      return b != 0 ? a / b : 0;
    case BPF_OR:
      return a | b;
    case BPF_AND:
      return a & b;
    case BPF_LSH:
      return b < 32 ? a << b : 0;
    case BPF_RSH:
      return b < 32 ? a >> b : 0;
    case BPF_XOR:
      return a ^ b;
    default:
      return 0 - a;
  }
}

bool holds(uint32_t operation, uint32_t a, uint32_t b) {
  switch (operation) {
    case BPF_JEQ:
      return a == b;
    case BPF_JGT:
      return a > b;
    case BPF_JGE:
      return a >= b;
    default:
      return (a & b) != 0;
  }
}

}  // namespace

uint32_t of(std::span<const sock_filter> code, const seccomp_data& call) {
  Machine m{};
  // Jumps lead forward only.
  for (size_t at = 0; at < code.size(); ++at) {
    const sock_filter& i = code[at];
    const uint32_t operand = BPF_SRC(i.code) == BPF_X ? m.x : i.k;
    switch (BPF_CLASS(i.code)) {
      case BPF_LD:
        m.a = loaded(i, m, call);
        break;
      case BPF_LDX:
        m.x = loaded(i, m, call);
        break;
      case BPF_ST:
        m.memory[i.k % BPF_MEMWORDS] = m.a;
        break;
      case BPF_STX:
        m.memory[i.k % BPF_MEMWORDS] = m.x;
        break;
      case BPF_ALU:
        m.a = reckoned(BPF_OP(i.code), m.a, operand);
        break;
      case BPF_JMP:
        at += BPF_OP(i.code) == BPF_JA ? i.k : holds(BPF_OP(i.code), m.a, operand) ? i.jt : i.jf;
        break;
      case BPF_RET:
        return BPF_RVAL(i.code) == BPF_A ? m.a : i.k;
      default:
        (BPF_MISCOP(i.code) == BPF_TAX ? m.x : m.a) = BPF_MISCOP(i.code) == BPF_TAX ? m.a : m.x;
    }
  }
  return SECCOMP_RET_ALLOW;
}

bool ends_at_checkpoint(std::span<const sock_filter> code) {
  constexpr uint64_t kThread = CLONE_VM | CLONE_FS | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;
  const seccomp_data needed[] = {
      {__NR_rt_sigreturn, AUDIT_ARCH_X86_64, 0, {}},
      {__NR_clone, AUDIT_ARCH_X86_64, 0, {kThread}},
      {__NR_openat, AUDIT_ARCH_X86_64, 0, {static_cast<uint64_t>(AT_FDCWD), 0, O_RDONLY | O_CLOEXEC}}};
  return std::any_of(std::begin(needed), std::end(needed), [code](const seccomp_data& call) {
    const uint32_t action = of(code, call) & SECCOMP_RET_ACTION_FULL;
    return action == SECCOMP_RET_KILL_PROCESS || action == SECCOMP_RET_KILL_THREAD;
  });
}

}  // namespace ckpt::filter_verdict
