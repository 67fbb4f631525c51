#include "cli/image/core/core_notes.h"

#include <elf.h>
#include <sys/procfs.h>
#include <sys/user.h>
#include <ucontext.h>

#include <algorithm>
#include <cstring>

namespace ckpt::cli {

namespace {

constexpr uint32_t kExtendedMagic1 = 0x46505853;  // FP_XSTATE_MAGIC1 of asm/sigcontext.h
constexpr size_t kSoftwareBytes = 464;            // where the kernel notes the size in a signal frame
constexpr uint32_t kLargestState = 64u << 10;     // AMX needs 11 KiB

// struct _fpx_sw_bytes of asm/sigcontext.h.
struct SoftwareBytes {
  uint32_t magic1, extended_size;
  uint64_t xfeatures;
  uint32_t xstate_size, padding[7];
};

void append_padded(std::string& out, const void* data, size_t bytes) {
  out.append(static_cast<const char*>(data), bytes);
  out.append((4 - bytes % 4) % 4, '\0');
}

void append_note(std::string& out, const char* owner, uint32_t type, const void* data, size_t bytes) {
  Elf64_Nhdr head{};
  head.n_namesz = static_cast<Elf64_Word>(std::strlen(owner) + 1);
  head.n_descsz = static_cast<Elf64_Word>(bytes);
  head.n_type = type;
  out.append(reinterpret_cast<const char*>(&head), sizeof(head));
  append_padded(out, owner, head.n_namesz);
  append_padded(out, data, bytes);
}

template <typename T>
Result<T> read_struct(SavedMemory& memory, uint64_t address) {
  T value;
  CKPT_TRY(memory.read({address}, std::as_writable_bytes(std::span(&value, 1))));
  return value;
}

class Builder {
 public:
  Builder(const ImageMeta& meta, SavedMemory& memory) : meta_(meta), memory_(memory) {}

  Result<CoreNotes> build() {
    for (const ParsedThread& t : meta_.threads) {
      if ((t.record.flags & kThreadLeaderExited) != 0) continue;
      CKPT_TRY(add_thread(t));
      if (notes_.threads++ == 0) CKPT_TRY(add_process());
    }
    if (notes_.threads == 0) CKPT_TRY(add_process());
    return std::move(notes_);
  }

 private:
  Result<void> add_thread(const ParsedThread& t) {
    const ThreadRecord& r = t.record;
    const ProcessRecord& p = meta_.process.record;
    ucontext_t frame{};
    if (r.frame != 0) {
      // The kernel's part of it: what follows the signal mask belongs to libc or to nobody.
      auto bytes = std::as_writable_bytes(std::span(&frame, 1)).first(offsetof(ucontext_t, uc_sigmask));
      CKPT_TRY(memory_.read({r.frame}, bytes));
    }
    prstatus_t status{};
    status.pr_pid = r.tid;
    status.pr_ppid = p.ppid;
    status.pr_pgrp = p.pgid;
    status.pr_sid = p.sid;
    status.pr_sighold = r.signal_mask;
    for (const PendingSignalRecord& pending : meta_.pending) {
      if (pending.tid == 0 || pending.tid == r.tid) status.pr_sigpend |= 1ul << (pending.signal - 1);
    }
    user_regs_struct registers = registers_of(r, frame);
    static_assert(sizeof(registers) == sizeof(status.pr_reg));
    std::memcpy(&status.pr_reg, &registers, sizeof(registers));
    auto extended = extended_state(t, reinterpret_cast<uint64_t>(frame.uc_mcontext.fpregs));
    if (!extended.ok()) return extended.error();
    status.pr_fpvalid = !extended->empty();
    append_note(notes_.bytes, "CORE", NT_PRSTATUS, &status, sizeof(status));
    if (extended->empty()) return {};
    append_note(notes_.bytes, "CORE", NT_FPREGSET, extended->data(), sizeof(user_fpregs_struct));
    if (extended->size() > sizeof(user_fpregs_struct)) {
      append_note(notes_.bytes, "LINUX", NT_X86_XSTATE, extended->data(), extended->size());
    }
    return {};
  }

  static user_regs_struct registers_of(const ThreadRecord& r, const ucontext_t& frame) {
    user_regs_struct u{};
    u.r15 = r.r15, u.r14 = r.r14, u.r13 = r.r13, u.r12 = r.r12;
    u.r11 = r.r11, u.r10 = r.r10, u.r9 = r.r9, u.r8 = r.r8;
    u.rbp = r.rbp, u.rbx = r.rbx, u.rax = r.rax, u.rcx = r.rcx, u.rdx = r.rdx, u.rsi = r.rsi, u.rdi = r.rdi;
    u.orig_rax = ~0ull;  // no system call to be restarted: rip and rax say what happens next
    u.rip = r.rip, u.eflags = r.eflags, u.rsp = r.rsp;
    uint64_t selectors = static_cast<uint64_t>(frame.uc_mcontext.gregs[REG_CSGSFS]);
    constexpr uint64_t kUserCode = 0x33, kUserStack = 0x2b;
    u.cs = selectors != 0 ? selectors & 0xffff : kUserCode;
    u.ss = selectors >> 48 != 0 ? selectors >> 48 : kUserStack;
    u.fs_base = r.fs_base;
    u.gs_base = r.gs_base;
    return u;
  }

  // The XSAVE area as a debugger wants it: in META, or in the thread's signal frame. Empty: not saved.
  Result<std::string> extended_state(const ParsedThread& t, uint64_t area) {
    std::string state;
    if (t.xstate.size() >= sizeof(user_fpregs_struct)) {
      state.assign(reinterpret_cast<const char*>(t.xstate.data()), t.xstate.size());
    } else if (area != 0) {
      state.resize(sizeof(user_fpregs_struct));
      CKPT_TRY(memory_.read({area}, std::as_writable_bytes(std::span(state))));
    } else {
      return state;
    }
    SoftwareBytes software;
    std::memcpy(&software, &state[kSoftwareBytes], sizeof(software));
    if (software.magic1 != kExtendedMagic1) return state;
    if (t.xstate.empty() && software.xstate_size > state.size() && software.xstate_size <= kLargestState) {
      state.resize(software.xstate_size);
      CKPT_TRY(memory_.read({area}, std::as_writable_bytes(std::span(state))));
    }
    // In a core file these bytes begin with the components that the state has room for. That is what the
    // frame says, not XCR0: components that the process never asked for (AMX) are not in its frames.
    std::memset(&state[kSoftwareBytes], 0, sizeof(software));
    std::memcpy(&state[kSoftwareBytes], &software.xfeatures, sizeof(software.xfeatures));
    return state;
  }

  Result<void> add_process() {
    const ProcessRecord& p = meta_.process.record;
    prpsinfo_t info{};
    info.pr_sname = 'R';
    info.pr_nice = static_cast<char>(meta_.threads.front().record.nice);
    info.pr_uid = p.uid[0];
    info.pr_gid = p.gid[0];
    info.pr_pid = p.pid;
    info.pr_ppid = p.ppid;
    info.pr_pgrp = p.pgid;
    info.pr_sid = p.sid;
    std::memcpy(info.pr_fname, meta_.process.comm.data(),
                std::min(meta_.process.comm.size(), sizeof(info.pr_fname) - 1));
    const MmRecord& mm = meta_.mm.record;
    if (mm.arg_start < mm.arg_end) {
      char args[sizeof(info.pr_psargs)] = {};
      size_t n = std::min<uint64_t>(mm.arg_end - mm.arg_start, sizeof(args) - 1);
      CKPT_TRY(memory_.read({mm.arg_start}, std::as_writable_bytes(std::span(args, n))));
      while (n > 0 && args[n - 1] == '\0') n--;
      std::replace(args, args + n, '\0', ' ');
      std::memcpy(info.pr_psargs, args, n);
    }
    append_note(notes_.bytes, "CORE", NT_PRPSINFO, &info, sizeof(info));
    append_note(notes_.bytes, "CORE", NT_AUXV, meta_.mm.auxv.data(), meta_.mm.auxv.size());
    std::string files = mapped_files();
    append_note(notes_.bytes, "CORE", NT_FILE, files.data(), files.size());
    return {};
  }

  // count, unit of the offsets, {start, end, offset} of each, names.
  std::string mapped_files() const {
    std::string table, names;
    uint64_t count = 0;
    auto put = [](std::string& to, uint64_t value) {
      to.append(reinterpret_cast<const char*>(&value), sizeof(value));
    };
    for (const ParsedMapping& m : meta_.mappings) {
      auto kind = static_cast<MappingKind>(m.record.kind);
      if ((kind != MappingKind::kFilePrivate && kind != MappingKind::kFileShared) || m.path.empty()) continue;
      count++;
      put(table, m.record.start);
      put(table, m.record.end);
      put(table, m.record.file_offset / kPageSize);
      names.append(m.path).push_back('\0');
    }
    std::string head;
    put(head, count);
    put(head, kPageSize);
    return head + table + names;
  }

  const ImageMeta& meta_;
  SavedMemory& memory_;
  CoreNotes notes_;
};

}  // namespace

Result<CoreNotes> make_core_notes(const ImageMeta& meta, SavedMemory& memory) {
  return Builder(meta, memory).build();
}

}  // namespace ckpt::cli
