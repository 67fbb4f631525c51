#include "beside/traced_process.h"

#include <elf.h>
#include <errno.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>

#include "beside/beginning.h"

namespace ckpt::beside {

namespace {

constexpr size_t kSystemCallBytes = 2;
constexpr size_t kMostVectorRegisters = 16 << 10;

long trace(__ptrace_request request, int pid, uint64_t address, void* data) {
  return ptrace(request, pid, reinterpret_cast<void*>(address), data);
}

}  // namespace

Error TracedProcess::failed(const char* what) const {
  return make_error(ExitCode::kSystem, errno, "process {}: {} ({})", pid_, what, errno_name(errno));
}

Result<void> TracedProcess::seize() {
  if (trace(PTRACE_SEIZE, pid_, 0, reinterpret_cast<void*>(PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL)) == 0)
    return {};
  return make_error(ExitCode::kUnavailable, errno,
                    "the library is put beside a static program by ptrace(2), which is forbidden here ({}): "
                    "see kernel.yama.ptrace_scope, and the "
                    "container's rules",
                    errno_name(errno));
}

// The status of a stop. An error where the process has ended.
Result<int> TracedProcess::await_stop() {
  int status = 0;
  while (waitpid(pid_, &status, __WALL) < 0) {
    if (errno != EINTR) return failed("cannot be waited for");
  }
  if (!WIFSTOPPED(status)) {
    errno = ESRCH;
    return failed("ended while the library was put beside it");
  }
  return status;
}

// Lets it run to the next trap. All other signals are blocked, but SIGSTOP: that is for later.
Result<void> TracedProcess::resume(int request, const char* what) {
  for (;;) {
    if (trace(static_cast<__ptrace_request>(request), pid_, 0, nullptr) != 0) return failed(what);
    auto status = await_stop();
    if (!status.ok()) return status.error();
    if (*status >> 8 == SIGTRAP) return {};
    if (*status >> 16 != 0) continue;
    if (WSTOPSIG(*status) != SIGSTOP)
      return make_error(ExitCode::kInternal, 0, "process {}: got signal {} before the library was there",
                        pid_, WSTOPSIG(*status));
    stopped_ = true;
  }
}

Result<bool> TracedProcess::await_program() {
  for (;;) {
    int status = 0;
    while (waitpid(pid_, &status, __WALL) < 0) {
      if (errno != EINTR) return failed("cannot be waited for");
    }
    if (!WIFSTOPPED(status)) return false;
    if (status >> 8 == (SIGTRAP | PTRACE_EVENT_EXEC << 8)) break;
    // A signal before the program is there is the caller's; a stop of all is one until somebody continues it.
    const bool stands = status >> 16 == PTRACE_EVENT_STOP && WSTOPSIG(status) != SIGTRAP;
    const int signal = status >> 16 != 0 ? 0 : WSTOPSIG(status);
    trace(stands ? PTRACE_LISTEN : PTRACE_CONT, pid_, 0, reinterpret_cast<void*>(static_cast<long>(signal)));
  }
  if (trace(PTRACE_GETSIGMASK, pid_, sizeof(mask_), &mask_) != 0)
    return failed("its signal mask cannot be read");
  uint64_t all = ~(1ull << (SIGTRAP - 1));
  if (trace(PTRACE_SETSIGMASK, pid_, sizeof(all), &all) != 0) return failed("its signals cannot be blocked");
  // Still in execve(2): one step ends that call, and executes nothing.
  CKPT_TRY(resume(PTRACE_SINGLESTEP, "cannot be stepped"));
  if (trace(PTRACE_GETREGS, pid_, 0, &entry_) != 0) return failed("its registers cannot be read");
  vector_registers_.resize(kMostVectorRegisters);
  iovec into{vector_registers_.data(), vector_registers_.size()};
  if (trace(PTRACE_GETREGSET, pid_, NT_X86_XSTATE, &into) != 0)
    return failed("its vector registers cannot be read");
  vector_registers_.resize(into.iov_len);
  return true;
}

// Each static program has one in its text: nothing else makes system calls for it.
Result<void> TracedProcess::find_instruction() {
  if (instruction_ != 0) return {};
  char path[64];
  snprintf(path, sizeof(path), "/proc/%d/maps", pid_);
  const std::unique_ptr<FILE, int (*)(FILE*)> maps(fopen(path, "re"), fclose);
  char line[512];
  while (maps != nullptr && fgets(line, sizeof(line), maps.get()) != nullptr) {
    unsigned long first = 0, last = 0;
    char rights[5] = {};
    if (sscanf(line, "%lx-%lx %4s", &first, &last, rights) != 3 || rights[2] != 'x' || entry_.rip < first ||
        entry_.rip >= last)
      continue;
    std::vector<std::byte> text(1 << 20);
    for (uint64_t at = first; at < last; at += text.size() - 1) {
      const std::span part(text.data(), std::min<uint64_t>(text.size(), last - at));
      CKPT_TRY(read(at, part));
      constexpr std::byte kSystemCall[kSystemCallBytes] = {std::byte{0x0f}, std::byte{0x05}};
      const auto found =
          std::search(part.begin(), part.end(), std::begin(kSystemCall), std::end(kSystemCall));
      if (found == part.end()) continue;
      instruction_ = at + static_cast<uint64_t>(found - part.begin());
      return {};
    }
  }
  return make_error(ExitCode::kUnsupported, 0, "process {}: its program has no system call instruction",
                    pid_);
}

Result<long> TracedProcess::call(long number, std::initializer_list<uint64_t> arguments) {
  CKPT_TRY(find_instruction());
  user_regs_struct r = entry_;
  r.orig_rax = static_cast<unsigned long long>(-1);
  r.rax = static_cast<unsigned long long>(number);
  r.rip = instruction_;
  unsigned long long* const places[] = {&r.rdi, &r.rsi, &r.rdx, &r.r10, &r.r8, &r.r9};
  size_t i = 0;
  for (const uint64_t argument : arguments) *places[i++] = argument;
  if (trace(PTRACE_SETREGS, pid_, 0, &r) != 0) return failed("its registers cannot be set");
  CKPT_TRY(resume(PTRACE_SINGLESTEP, "cannot be stepped"));
  if (trace(PTRACE_GETREGS, pid_, 0, &r) != 0) return failed("its registers cannot be read");
  if (r.rip == instruction_ + kSystemCallBytes) return static_cast<long>(r.rax);
  return make_error(ExitCode::kInternal, 0, "process {}: a system call ended at {:x}", pid_, r.rip);
}

Result<void> TracedProcess::read(uint64_t at, std::span<std::byte> bytes) const {
  const iovec local{bytes.data(), bytes.size()}, remote{reinterpret_cast<void*>(at), bytes.size()};
  if (process_vm_readv(pid_, &local, 1, &remote, 1, 0) == static_cast<ssize_t>(bytes.size())) return {};
  return failed("its memory cannot be read");
}

Result<void> TracedProcess::write(uint64_t at, std::span<const std::byte> bytes) const {
  const iovec local{const_cast<std::byte*>(bytes.data()), bytes.size()},
      remote{reinterpret_cast<void*>(at), bytes.size()};
  if (process_vm_writev(pid_, &local, 1, &remote, 1, 0) == static_cast<ssize_t>(bytes.size())) return {};
  return failed("its memory cannot be written");
}

Result<uint64_t> TracedProcess::run(uint64_t instruction, uint64_t stack) {
  user_regs_struct r = entry_;
  r.orig_rax = static_cast<unsigned long long>(-1);
  r.rip = instruction;
  r.rsp = stack;
  r.rdx = 0;
  if (trace(PTRACE_SETREGS, pid_, 0, &r) != 0) return failed("its registers cannot be set");
  CKPT_TRY(resume(PTRACE_CONT, "cannot go on"));
  if (trace(PTRACE_GETREGS, pid_, 0, &trapped_) != 0) return failed("its registers cannot be read");
  return trapped_.rdi;
}

// Does a SIGCONT wait?
bool TracedProcess::is_continued() const {
  char path[64];
  snprintf(path, sizeof(path), "/proc/%d/status", pid_);
  const std::unique_ptr<FILE, int (*)(FILE*)> status(fopen(path, "re"), fclose);
  char line[256];
  unsigned long waiting = 0, some = 0;
  while (status != nullptr && fgets(line, sizeof(line), status.get()) != nullptr) {
    if (sscanf(line, "SigPnd: %lx", &some) == 1 || sscanf(line, "ShdPnd: %lx", &some) == 1) waiting |= some;
  }
  return (waiting >> (SIGCONT - 1) & 1) != 0;
}

Result<void> TracedProcess::set_as_at_entry(uint64_t mask) {
  // Back from execve(2), which has given 0.
  user_regs_struct r = entry_;
  r.orig_rax = static_cast<unsigned long long>(-1);
  const iovec from{vector_registers_.data(), vector_registers_.size()};
  if (trace(PTRACE_SETREGS, pid_, 0, &r) != 0 ||
      trace(PTRACE_SETREGSET, pid_, NT_X86_XSTATE, const_cast<iovec*>(&from)) != 0)
    return failed("its registers cannot be set");
  if (trace(PTRACE_SETSIGMASK, pid_, sizeof(mask), &mask) != 0)
    return failed("its signal mask cannot be set");
  return {};
}

// All signals stay blocked until it has begun.
Result<void> TracedProcess::set_to_begin_itself(uint64_t mask) {
  const Beginning beginning = beginning_at(entry_, mask);
  constexpr uint64_t kAligned = 64, kRedZone = 128;
  user_regs_struct r = trapped_;
  const uint64_t at = (r.rsp - kRedZone - sizeof(beginning)) & ~(kAligned - 1);
  CKPT_TRY(write(at, std::as_bytes(std::span(&beginning, 1))));
  r.orig_rax = static_cast<unsigned long long>(-1);
  r.rip = trapped_.rsi;
  r.rsp = at - sizeof(uint64_t);  // as behind a call
  r.rdi = static_cast<uint64_t>(getpid());
  r.rsi = at;
  if (trace(PTRACE_SETREGS, pid_, 0, &r) != 0) return failed("its registers cannot be set");
  return {};
}

Result<void> TracedProcess::detach(uint64_t open) {
  const bool is_its_child = getppid() == pid_ && trapped_.rsi != 0;
  CKPT_TRY(is_its_child ? set_to_begin_itself(mask_ & ~open) : set_as_at_entry(mask_ & ~open));
  // Else SIGCONT has come since: it would have ended the stop, and waits.
  if (stopped_ && !is_continued()) syscall(SYS_tgkill, pid_, pid_, SIGSTOP);
  if (trace(PTRACE_DETACH, pid_, 0, nullptr) != 0) return failed("cannot go on");
  return {};
}

void TracedProcess::end(int exit_code) { (void)call(SYS_exit_group, {static_cast<uint64_t>(exit_code)}); }

}  // namespace ckpt::beside
