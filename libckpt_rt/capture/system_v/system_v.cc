#include "libckpt_rt/capture/system_v/system_v.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/sem.h>
#include <sys/shm.h>

#include <utility>

#include "base/raii_fd.h"
#include "base/sys.h"
#include "libckpt_rt/capture/process/process_state.h"
#include "libckpt_rt/capture/system_v/kernel_undo.h"
#include "libckpt_rt/capture/system_v/undo.h"
#include "libckpt_rt/capture/system_v/used_objects.h"
#include "libckpt_rt/core/preload_rules.h"

#ifndef MSG_COPY
#define MSG_COPY 040000
#endif

namespace ckpt {

namespace {

using system_v::UsedObject;

void take_permissions(const ipc_perm& p, SystemVRecord& r) {
  r.key = p.__key;
  r.mode = static_cast<uint32_t>(p.mode) & 0777;
  r.uid = p.uid;
  r.gid = p.gid;
  r.creator_uid = p.cuid;
  r.creator_gid = p.cgid;
}

bool is_gone(long error) { return error == -EINVAL || error == -EIDRM; }

class Capture {
 public:
  explicit Capture(Arena& arena) : arena_(arena), list_(arena), lines_(arena), lost_(arena) {}

  Result<SystemVState> run() {
    if (system_v::is_list_full())
      say("the program uses more System V semaphore sets or message queues than can be known "
          "(ipcmni_extend)");
    UsedObject object{};
    bool asked = false, filtered = false;
    for (uint32_t at = 0; system_v::next_used(at, object);) {
      if (!asked) filtered = sys::call(__NR_prctl, PR_GET_SECCOMP, 0L, 0L, 0L, 0L) != 0;
      asked = true;
      if (object.kind == system_v::kSharedMemory) {
        if (!filtered) look_at_memory(object.id);
        continue;
      }
      if (filtered) {
        say("the program uses System V semaphores or message queues and has forbidden itself system calls "
            "(seccomp): nobody may look at them");
        break;
      }
      CapturedSystemV captured{};
      captured.record.kind = static_cast<uint32_t>(object.kind);
      captured.record.id = object.id;
      const bool there =
          object.kind == SystemVKind::kSemaphores ? look_at_set(captured) : look_at_queue(captured);
      if (there && !list_.push_back(captured)) return no_room();
    }
    note_numbers();
    if (system_v::are_debts_unknown(sys::getpid()))
      say("the program has used more semaphores with SEM_UNDO than can be reckoned");
    if (full_) return no_room();
    return SystemVState{list_, lines_, lost_};
  }

 private:
  static Error no_room() {
    return make_error(ExitCode::kInternal, ENOMEM,
                      "no address space left for the list of System V objects; raise the limit (ulimit -v)");
  }

  template <typename... Args>
  void say(fmt::format_string<Args...> format, Args&&... args) {
    say_in(lines_, format, std::forward<Args>(args)...);
  }

  template <typename... Args>
  void say_in(ArenaVector<const char*>& lines, fmt::format_string<Args...> format, Args&&... args) {
    constexpr size_t kMost = 320;
    char* text = static_cast<char*>(arena_.allocate(kMost, 1));
    full_ = full_ || text == nullptr || !lines.push_back(text);
    if (text != nullptr) *fmt::format_to_n(text, kMost - 1, format, std::forward<Args>(args)...).out = '\0';
  }

  // An object that is gone at the restart is made again with its number, which few may choose. This process
  // may do what a restart by the same user may do.
  void note_numbers() {
    if (list_.empty()) return;
    const SystemVRecord& r = list_[0].record;
    const bool set = static_cast<SystemVKind>(r.kind) == SystemVKind::kSemaphores;
    const char* const file = set ? "/proc/sys/kernel/sem_next_id" : "/proc/sys/kernel/msg_next_id";
    const ScopedFd next(
        static_cast<int>(sys::call(__NR_openat, AT_FDCWD, file, long{O_WRONLY | O_CLOEXEC}, 0L)));
    if (next.valid()) return;
    say_in(lost_,
           "the program uses the System V {} {}{}: if it is gone at the restart, as after a boot, only root "
           "or a process with CAP_CHECKPOINT_RESTORE can restart the program",
           set ? "semaphore set" : "message queue", r.id, list_.size() > 1 ? ", and other objects" : "");
  }

  // Shared memory that a process has attached is saved with its memory. A program may also attach it for each
  // access (shmread of perl).
  void look_at_memory(int id) {
    shmid_ds state{};
    if (sys::call(__NR_shmctl, long{id}, long{IPC_STAT}, &state) != 0 || state.shm_nattch != 0) return;
    say_in(lost_,
           "the program uses the System V shared memory {} (key {:#x}), which nobody has attached at this "
           "moment: it is not saved, and a restarted program finds in it what it holds then",
           id, static_cast<uint32_t>(state.shm_perm.__key));
  }

  // Both: false: it is not there any more, or it is there and a note says why it cannot be saved.
  bool look_at_set(CapturedSystemV& out) {
    SystemVRecord& r = out.record;
    semid_ds state{};
    long result = sys::call(__NR_semctl, long{r.id}, 0L, long{IPC_STAT}, &state);
    if (is_gone(result)) return false;
    take_permissions(state.sem_perm, r);
    auto* values = static_cast<uint16_t*>(arena_.allocate(state.sem_nsems * sizeof(uint16_t)));
    if (result == 0 && values == nullptr) result = -ENOMEM;
    if (result == 0) result = sys::call(__NR_semctl, long{r.id}, 0L, long{GETALL}, values);
    if (result != 0) {
      say("the program uses the System V semaphore set {} (key {:#x}), which cannot be read ({})", r.id,
          static_cast<uint32_t>(r.key), errno_name(static_cast<int>(-result)));
      return false;
    }
    r.count = static_cast<uint32_t>(state.sem_nsems);
    r.data_len = r.count * static_cast<uint32_t>(sizeof(uint16_t));
    out.data = reinterpret_cast<const std::byte*>(values);
    settle_debts(r, values, state.sem_ctime);
    return true;
  }

  // Another process has set values of the set: the kernel then forgot what this one owed it, and the list
  // does not know. The kernel is asked.
  void settle_debts(const SystemVRecord& r, const uint16_t* values, int64_t changed_s) {
    for (const system_v::Debt& d : system_v::debts(sys::getpid())) {
      if (d.id != r.id || d.number >= r.count || !system_v::may_be_forgiven(d, changed_s)) continue;
      const auto undo = system_v::ask_kernel_undo(r.id, d.number, values[d.number]);
      if (undo.known) {
        system_v::settle(d, undo.value);
        continue;
      }
      say("another process has set values of the System V semaphore set {} while this one owed it something "
          "(SEM_UNDO). What is left of that the kernel cannot be asked",
          r.id);
      break;
    }
  }

  bool look_at_queue(CapturedSystemV& out) {
    SystemVRecord& r = out.record;
    msqid_ds state{};
    long result = sys::call(__NR_msgctl, long{r.id}, long{IPC_STAT}, &state);
    if (is_gone(result)) return false;
    take_permissions(state.msg_perm, r);
    r.limit = state.msg_qbytes;
    if (result == 0) result = copy_messages(state, out);
    if (result == 0) return true;
    const char* remedy = result == -ENOSYS
                             ? ": this kernel cannot (CONFIG_CHECKPOINT_RESTORE); ask when it is empty"
                         : result == -EAGAIN ? ": somebody who is not in the checkpoint changes it"
                                             : "";
    say("the program uses the System V message queue {} (key {:#x}), whose messages cannot be read ({}){}",
        r.id, static_cast<uint32_t>(r.key), errno_name(static_cast<int>(-result)), remedy);
    return false;
  }

  // 0 or the error; EAGAIN: the queue changes under our hands.
  long copy_messages(const msqid_ds& state, CapturedSystemV& out) {
    const uint64_t text = state.__msg_cbytes, count = state.msg_qnum;
    if (count == 0) return 0;
    constexpr uint64_t kMost = 1u << 30;
    if (text > kMost || count > kMost / 32) return -EFBIG;
    const uint64_t room = text + count * (sizeof(SystemVMessage) + 8);
    auto* all = static_cast<std::byte*>(arena_.allocate(room));
    // As msgrcv(2) writes it: the type, then the text. There is room for more than any message that may come.
    auto* one = static_cast<std::byte*>(arena_.allocate(sizeof(long) + text + 8));
    if (all == nullptr || one == nullptr) return -ENOMEM;
    uint64_t used = 0;
    for (uint64_t i = 0; i < count; ++i) {
      const long n = sys::call(__NR_msgrcv, long{out.record.id}, one, text, i, MSG_COPY | IPC_NOWAIT);
      if (n == -ENOMSG || n == -E2BIG) return -EAGAIN;
      if (n < 0) return n;
      const auto bytes = static_cast<uint64_t>(n), padded = (bytes + 7) & ~uint64_t{7};
      if (used + sizeof(SystemVMessage) + padded > room) return -EAGAIN;
      SystemVMessage head{0, static_cast<uint32_t>(bytes), 0};
      std::memcpy(&head.type, one, sizeof(head.type));
      std::memcpy(all + used, &head, sizeof(head));
      std::memcpy(all + used + sizeof(head), one + sizeof(long), bytes);
      used += sizeof(head) + padded;
    }
    out.record.count = static_cast<uint32_t>(count);
    out.record.data_len = static_cast<uint32_t>(used);
    out.data = all;
    return 0;
  }

  Arena& arena_;
  ArenaVector<CapturedSystemV> list_;
  ArenaVector<const char*> lines_, lost_;
  bool full_ = false;
};

}  // namespace

std::span<const CapturedSystemV> first_system_v(Arena& arena) {
  ArenaVector<CapturedSystemV> list(arena);
  UsedObject object{};
  for (uint32_t at = 0; system_v::next_used(at, object);) {
    if (object.kind == system_v::kSharedMemory || is_filtered() || !system_v::exists(object.kind, object.id))
      continue;
    CapturedSystemV one{};
    one.record.kind = static_cast<uint32_t>(object.kind);
    one.record.id = object.id;
    return list.push_back(one) ? list.span() : std::span<CapturedSystemV>();
  }
  return {};
}

Result<SystemVState> capture_system_v(Arena& arena) { return Capture(arena).run(); }

}  // namespace ckpt
