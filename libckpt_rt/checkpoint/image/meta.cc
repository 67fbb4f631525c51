#include "libckpt_rt/checkpoint/image/meta.h"

#include <errno.h>
#include <sys/shm.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/machine/cpu_features.h"
#include "base/protocol/restart_protocol.h"
#include "libckpt_rt/capture/memory/lost_mappings.h"
#include "libckpt_rt/core/process/restart_entry.h"
#include "libckpt_rt/core/process/this_process.h"
#include "libckpt_rt/core/request/own_signal.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

void describe_thread(const ThreadSlot& slot, int leader_tid, StoppedThread& out) {
  out = {};
  out.knows_user = slot.credentials.known && slot.credentials.knows_groups();
  ThreadRecord& r = out.record;
  r.tid = slot.tid;
  r.flags = slot.tid == leader_tid ? kThreadLeader : 0u;
  r.slot = reinterpret_cast<uint64_t>(&slot);
  r.frame = reinterpret_cast<uint64_t>(slot.frame);
  r.fs_base = slot.fs_base;
  r.gs_base = slot.gs_base;
  const auto& g = slot.frame->uc_mcontext.gregs;
  auto reg = [&](int index) { return static_cast<uint64_t>(g[index]); };
  r.rax = reg(REG_RAX);
  r.rbx = reg(REG_RBX);
  r.rcx = reg(REG_RCX);
  r.rdx = reg(REG_RDX);
  r.rsi = reg(REG_RSI);
  r.rdi = reg(REG_RDI);
  r.rbp = reg(REG_RBP);
  r.rsp = reg(REG_RSP);
  r.r8 = reg(REG_R8);
  r.r9 = reg(REG_R9);
  r.r10 = reg(REG_R10);
  r.r11 = reg(REG_R11);
  r.r12 = reg(REG_R12);
  r.r13 = reg(REG_R13);
  r.r14 = reg(REG_R14);
  r.r15 = reg(REG_R15);
  r.rip = reg(REG_RIP);
  r.eflags = reg(REG_EFL);
  std::memcpy(&r.signal_mask, &slot.frame->uc_sigmask, sizeof(r.signal_mask));
  r.altstack_base = reinterpret_cast<uint64_t>(slot.frame->uc_stack.ss_sp);
  r.altstack_size = slot.frame->uc_stack.ss_size;
  r.altstack_flags = static_cast<uint32_t>(slot.frame->uc_stack.ss_flags);
  r.robust_list = slot.robust_list;
  r.robust_list_len = slot.robust_list_len;
  r.clear_child_tid = slot.clear_child_tid;
  r.rseq = slot.rseq;
  r.rseq_len = slot.rseq_len;
  r.rseq_signature = slot.rseq_signature;
  r.sched_policy = static_cast<int32_t>(slot.sched.policy);
  r.sched_priority = static_cast<int32_t>(slot.sched.priority);
  r.nice = slot.sched.nice;
  r.sched_flags = static_cast<uint32_t>(slot.sched.flags);
  r.sched_runtime = slot.sched.runtime;
  r.sched_deadline = slot.sched.deadline;
  r.sched_period = slot.sched.period;
  r.timer_slack_ns = slot.timer_slack_ns;
  r.affinity_len = slot.affinity_len;
  std::memcpy(out.affinity, slot.affinity, sizeof(out.affinity));
  std::memcpy(out.name, slot.name, sizeof(out.name));
  r.name_len = static_cast<uint32_t>(strnlen(out.name, sizeof(out.name)));
}

namespace {

void write_process(const MetaSources& s, MetaWriter& meta) {
  ProcessRecord p = s.facts->process;
  CpuFeatures cpu = collect_cpu_features();
  auto cpu_bytes = std::as_bytes(std::span(&cpu, 1));
  p.checkpoint_signal = own_signal.number;
  p.thread_count = static_cast<uint32_t>(s.threads.size());
  p.realtime_ns = s.state->realtime_ns;
  p.monotonic_ns = s.state->monotonic_ns;
  p.boottime_ns = s.state->boottime_ns;
  p.vdso_start = s.map->vdso.start.value;
  p.vdso_end = s.map->vdso.end.value;
  p.vvar_start = s.map->vvar.start.value;
  p.vvar_end = s.map->vvar.end.value;
  p.vdso_hash = s.map->vdso.empty() ? 0 : XXH3_64bits(s.map->vdso.start.as(), s.map->vdso.size());
  p.restart_entry = reinterpret_cast<uint64_t>(&ckpt_restart_entry);
  p.restart_state = reinterpret_cast<uint64_t>(&this_process);
  p.restart_protocol = kRestartProtocolVersion;
  p.membarrier = s.state->membarrier;
  p.cpu_features_len = static_cast<uint32_t>(cpu_bytes.size());
  p.cwd_len = static_cast<uint32_t>(s.facts->cwd.size());
  p.root_len = static_cast<uint32_t>(s.facts->root.size());
  p.comm_len = static_cast<uint32_t>(s.facts->comm.size());
  const Mapping* own = s.map->find(Addr{p.restart_entry});
  std::string_view library_path =
      own != nullptr ? std::string_view(own->path, own->path_len) : std::string_view();
  p.library_path_len = static_cast<uint32_t>(library_path.size());
  meta.record(RecordType::kProcess, p, s.facts->groups, cpu_bytes, s.facts->cwd, s.facts->root, s.facts->comm,
              library_path);

  MmRecord mm = s.facts->mm;
  mm.brk = s.state->brk;
  mm.auxv_len = static_cast<uint32_t>(s.facts->auxv.size());
  mm.exe_path_len = static_cast<uint32_t>(s.facts->exe.size());
  meta.record(RecordType::kMm, mm, s.facts->auxv, s.facts->exe);
  meta.record(RecordType::kResourceLimits, s.state->limits);
  meta.record(RecordType::kIntervalTimers, s.state->timers.interval);
}

void write_mapping(const MetaSources& s, const Mapping& m, MetaWriter& meta) {
  MappingRecord r{};
  r.start = m.range.start.value;
  r.end = m.range.end.value;
  r.file_offset = m.file_offset;
  r.prot = m.prot;
  r.kind = static_cast<uint32_t>(m.kind);
  r.flags = m.map_flags & ~uint32_t{kMapOnlySaid};
  r.page_size = m.page_size;
  r.device = m.device;
  r.inode = m.inode;
  r.object = m.object;
  std::span<const std::byte> build_id;
  std::string_view path(m.path, m.path_len);
  if (m.kind == MappingKind::kFilePrivate || m.kind == MappingKind::kFileShared) {
    if (const FileIdentity* f = s.files->find(m)) {
      r.object_size = f->size;
      r.file_mtime_ns = f->mtime_ns;
      r.file_hash = f->hash;
      // All of /dev/shm that is mapped is in the image.
      if (m.kind == MappingKind::kFileShared && m.whole && f->of_job && (m.map_flags & kMapMayWrite) == 0)
        r.flags |= kMapWhole;
      build_id = std::as_bytes(std::span(f->build_id, f->build_id_len));
    }
  } else if (m.kind == MappingKind::kMemfd) {
    constexpr std::string_view kPrefix = "/memfd:", kSuffix = " (deleted)";
    path.remove_prefix(kPrefix.size());
    if (path.size() >= kSuffix.size() && path.substr(path.size() - kSuffix.size()) == kSuffix)
      path.remove_suffix(kSuffix.size());
  } else if (m.kind == MappingKind::kSysV) {
    // The inode of a SysV segment is its id; the key is in the name, "/SYSV%08x".
    r.sysv_shmid = static_cast<int32_t>(m.inode);
    uint32_t key = 0;
    for (size_t i = 5; i < 13 && i < path.size(); ++i) {
      char c = path[i];
      key = key * 16 + static_cast<uint32_t>(c <= '9' ? c - '0' : c - 'a' + 10);
    }
    r.sysv_key = static_cast<int32_t>(key);
    r.sysv_mode = 0600;
    // A removed segment goes when no process has it any more; it has lost its key.
    shmid_ds state{};
    if (sys::call(__NR_shmctl, r.sysv_shmid, IPC_STAT, &state) == 0) {
      r.sysv_mode = state.shm_perm.mode & (0777u | SHM_DEST);
      if ((r.sysv_mode & SHM_DEST) != 0) r.sysv_key = IPC_PRIVATE;
    }
  }
  if (r.object != 0 && r.object_size == 0) {
    for (const Mapping& o : s.map->mappings()) {
      if (o.object == m.object && o.file_offset + o.range.size() > r.object_size) {
        r.object_size = o.file_offset + o.range.size();
      }
    }
  }
  r.path_len = static_cast<uint32_t>(path.size());
  r.build_id_len = static_cast<uint32_t>(build_id.size());
  meta.record(RecordType::kMapping, r, path, build_id);
}

// Would the kernel have made one mapping of the two? The kernel does not where one is registered with a
// userfaultfd while the other comes into being; what a restart maps shall not be in more and more pieces.
bool could_be_one(const Mapping& m, const Mapping& next) {
  return m.range.end == next.range.start && m.kind == MappingKind::kAnonymous && next.kind == m.kind &&
         !m.shared && !next.shared && next.prot == m.prot && next.map_flags == m.map_flags &&
         next.page_size == m.page_size && (m.map_flags & kMapGrowsDown) == 0 &&
         std::string_view(m.path, m.path_len) == std::string_view(next.path, next.path_len);
}

}  // namespace

Result<void> write_meta(const MetaSources& s, Arena&, MetaWriter& meta) {
  write_process(s, meta);
  const auto mappings = s.map->mappings();
  for (size_t i = 0; i < mappings.size(); ++i) {
    Mapping m = mappings[i];
    while (i + 1 < mappings.size() && could_be_one(m, mappings[i + 1])) m.range.end = mappings[++i].range.end;
    if (!m.is_vdso_part()) write_mapping(s, m, meta);
  }
  if (!s.map->vdso.empty()) {
    // Under another kernel the saved code is led to that kernel's own (restart/plan/vdso/old_vdso.cc).
    std::span code(s.map->vdso.start.as<const std::byte>(), s.map->vdso.size());
    meta.record(RecordType::kFileContent, FileContentRecord{0, 0, kVdsoContentObject, 0, code.size()}, code);
  }
  for (const StoppedThread& t : s.threads) {
    meta.record(RecordType::kThread, t.record, std::string_view(t.name, t.record.name_len),
                std::as_bytes(std::span(t.affinity, t.record.affinity_len)));
  }
  for (uint32_t sig = 1; sig <= ProcessState::kSignals; ++sig) {
    const KernelSigaction& a = s.state->actions[sig - 1];
    if (a.handler == 0 && a.flags == 0) continue;
    meta.record(RecordType::kSignalAction,
                SignalActionRecord{sig, 0, a.handler, a.flags, a.restorer, a.mask});
  }
  for (uint32_t i = 0; i < s.state->timers.count; ++i) {
    if (s.state->timers.list[i].id >= 0) meta.record(RecordType::kPosixTimer, s.state->timers.list[i]);
  }
  for (const PendingSignalRecord& p : s.pending) meta.record(RecordType::kPendingSignal, p);
  for (const LostChild& c : s.facts->children)
    meta.record(RecordType::kChild, c.record, std::string_view(c.name, c.record.name_len));
  for (const CapturedSystemV& c : s.system_v)
    meta.record(RecordType::kSystemV, c.record, std::span<const std::byte>(c.data, c.record.data_len));
  for (const NoteLine& n : s.notes) {
    NoteRecord r{n.severity, static_cast<uint32_t>(std::strlen(n.text))};
    meta.record(RecordType::kNote, r, std::string_view(n.text));
  }
  CostRecord cost{};
  cost.mode = static_cast<uint32_t>(s.cost->mode);
  cost.attempts = s.cost->attempts;
  cost.pause_ns = s.cost->pause_ns;
  cost.longest_wait_ns = s.cost->longest_wait_ns;
  cost.forced_copies = s.cost->forced_copies;
  cost.sequential_copies = s.cost->sequential_copies;
  cost.release_copies = s.cost->release_copies;
  cost.faults = s.cost->faults;
  cost.bytes_memory = s.cost->bytes_memory;
  cost.copied_ns = s.copied_ns;
  meta.record(RecordType::kCost, cost);
  if (!meta.ok())
    return make_error(ExitCode::kInternal, ENOMEM, "no memory to describe the process and its {} mappings",
                      s.map->mappings().size());
  if (!meta.append_records([&](ByteWriter& out) { return s.descriptors->serialize(out); })) {
    return make_error(ExitCode::kInternal, ENOMEM, "no memory to describe the descriptors");
  }
  meta.finish();
  if (!meta.ok()) return make_error(ExitCode::kInternal, ENOMEM, "no memory to describe the process");
  return {};
}

}  // namespace ckpt
