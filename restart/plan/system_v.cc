#include "restart/plan/system_v.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <fstream>
#include <set>
#include <sstream>

#include "base/raii_fd.h"

namespace ckpt {
namespace {

// What the kernel says of one that is there; or nothing is there.
struct Present {
  bool there = false;
  ipc_perm perm{};
  uint64_t semaphores = 0, limit = 0;
  std::set<pid_t> users;  // who did the last operations
  time_t used_s = 0;      // and when, or when values were set
};

bool is_set(const SystemVRecord& r) { return r.kind == static_cast<uint32_t>(SystemVKind::kSemaphores); }

std::string name_of(const SystemVRecord& r) {
  return fmt::format("System V {} {} (key {:#x})", is_set(r) ? "semaphore set" : "message queue", r.id,
                     static_cast<uint32_t>(r.key));
}

Error failed(const SystemVRecord& r, const char* what) {
  return make_error(ExitCode::kSystem, errno, "{}: {} ({})", name_of(r), what, errno_name(errno));
}

int control(const SystemVRecord& r, int command, void* argument) {
  return is_set(r) ? semctl(r.id, 0, command, argument)
                   : msgctl(r.id, command, static_cast<msqid_ds*>(argument));
}

Result<Present> look(const SystemVRecord& r) {
  Present now;
  int result;
  if (is_set(r)) {
    semid_ds state{};
    result = semctl(r.id, 0, IPC_STAT, &state);
    now.perm = state.sem_perm;
    now.semaphores = state.sem_nsems;
    now.used_s = std::max(state.sem_otime, state.sem_ctime);
    for (uint32_t i = 0; result == 0 && i < r.count && i < state.sem_nsems; ++i)
      now.users.insert(semctl(r.id, static_cast<int>(i), GETPID));
  } else {
    msqid_ds state{};
    result = msgctl(r.id, IPC_STAT, &state);
    now.perm = state.msg_perm;
    now.limit = state.msg_qbytes;
    now.users = {state.msg_lspid, state.msg_lrpid};
    now.used_s = std::max(state.msg_stime, state.msg_rtime);
  }
  now.there = result == 0;
  if (result != 0 && errno != EINVAL && errno != EIDRM) {
    return make_error(
        ExitCode::kUnavailable, errno,
        "{}: there is one of that number now that may not be looked at ({}): it belongs to somebody "
        "else, who has to remove it (ipcrm -{} {})",
        name_of(r), errno_name(errno), is_set(r) ? 's' : 'q', r.id);
  }
  return now;
}

// Is what is there the object of the checkpoint?
Result<void> check_same(const SystemVRecord& r, const Present& now) {
  const char* differs = now.perm.__key != r.key                                   ? "has another key"
                        : now.perm.uid != r.uid || now.perm.cuid != r.creator_uid ? "belongs to somebody else"
                        : is_set(r) && now.semaphores != r.count ? "has another number of semaphores"
                                                                 : nullptr;
  if (differs == nullptr) return {};
  return make_error(ExitCode::kUnavailable, 0,
                    "{}: what has that number now {}: if nobody needs it, remove it (ipcrm -{} {})",
                    name_of(r), differs, is_set(r) ? 's' : 'q', r.id);
}

// Is there a process of that number that may have used something at used_s, seconds of CLOCK_REALTIME? A
// process that began later has only the number of the one that did. A process that may not be looked at
// (hidepid) counts.
bool may_have_used(pid_t pid, time_t used_s) {
  if (kill(pid, 0) != 0 && errno != EPERM) return false;
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string text;
  std::getline(file, text);
  const size_t close = text.rfind(')');
  if (close == std::string::npos) return true;
  std::istringstream fields(text.substr(close + 1));
  std::string state, skipped;
  constexpr int kBetween = 18;  // proc(5): the state is field 3, when it began field 22
  fields >> state;
  for (int i = 0; i < kBetween; ++i) fields >> skipped;
  uint64_t ticks = 0;
  fields >> ticks;
  timespec realtime{}, boottime{};
  clock_gettime(CLOCK_REALTIME, &realtime);
  clock_gettime(CLOCK_BOOTTIME, &boottime);
  const auto since_boot_s = static_cast<time_t>(ticks / static_cast<uint64_t>(sysconf(_SC_CLK_TCK)));
  constexpr time_t kRounding = 1;
  return state != "Z" && state != "X" &&
         realtime.tv_sec - boottime.tv_sec + since_boot_s <= used_s + kRounding;
}

// A process that runs and has used it, 0: none.
pid_t living_user(const Present& now) {
  for (const pid_t user : now.users)
    if (user > 0 && user != getpid() && may_have_used(user, now.used_s)) return user;
  return 0;
}

bool is_of_other(const SystemVRecord& r, const ProcessRecord& p) {
  const uint32_t user = p.uid[1];
  return user != 0 && r.uid != user && r.creator_uid != user && geteuid() != 0;
}

const char* next_id_file(const SystemVRecord& r) {
  return is_set(r) ? "/proc/sys/kernel/sem_next_id" : "/proc/sys/kernel/msg_next_id";
}

// Nothing has the number: may it be chosen, and is the key free?
Result<void> check_makeable(const SystemVRecord& r) {
  if (r.key != IPC_PRIVATE) {
    const int other = is_set(r) ? semget(r.key, 0, 0) : msgget(r.key, 0);
    if (other >= 0 || errno != ENOENT) {
      return make_error(
          ExitCode::kUnavailable, 0,
          "{}: is gone, and another one has its key: if nobody needs that, remove it (ipcrm -{} {:#x})",
          name_of(r), is_set(r) ? 'S' : 'Q', static_cast<uint32_t>(r.key));
    }
  }
  ScopedFd next_id(open(next_id_file(r), O_WRONLY | O_CLOEXEC));
  if (next_id.valid()) return {};
  return make_error(
      ExitCode::kUnavailable, errno,
      "{}: is gone, and no right to make one with that number ({}: {}): restart as root, or with "
      "CAP_CHECKPOINT_RESTORE",
      name_of(r), next_id_file(r), errno_name(errno));
}

// The caller's effective user and group for a moment, by the kernel's own calls: libc's would look for other
// threads. Whoever may not change them stays what it is.
class ScopedUser {
 public:
  ScopedUser(uint32_t uid, uint32_t gid) : uid_(geteuid()), gid_(getegid()) { become(gid, uid, true); }
  ~ScopedUser() { become(gid_, uid_, false); }
  ScopedUser(const ScopedUser&) = delete;
  ScopedUser& operator=(const ScopedUser&) = delete;

 private:
  // Only the first user has the right to choose a group.
  static void become(uint32_t gid, uint32_t uid, bool group_first) {
    constexpr uint32_t kStay = ~0u;
    if (group_first) syscall(SYS_setresgid, kStay, gid, kStay);
    syscall(SYS_setresuid, kStay, uid, kStay);
    if (!group_first) syscall(SYS_setresgid, kStay, gid, kStay);
  }
  uint32_t uid_, gid_;
};

// By the object's creator, whom no call changes later: a creator may always remove it, and the next restart
// of the same image knows it by its creator (check_same()).
// Negative: -errno.
int make_as_creator(const SystemVRecord& r) {
  const int flags = IPC_CREAT | IPC_EXCL | static_cast<int>(r.mode);
  const ScopedUser creator(r.creator_uid, r.creator_gid);
  const int id = is_set(r) ? semget(r.key, static_cast<int>(r.count), flags) : msgget(r.key, flags);
  return id < 0 ? -errno : id;
}

// The kernel gives the number in next_id_file() to the next object that any process makes. If another process
// is first, the number is written again.
Result<void> make(const SystemVRecord& r) {
  constexpr int kTries = 10;
  for (int i = 0; i < kTries; ++i) {
    ScopedFd next_id(open(next_id_file(r), O_WRONLY | O_CLOEXEC));
    const std::string number = fmt::format("{}", r.id);
    if (!next_id.valid() || write(next_id.get(), number.data(), number.size()) < 0) return check_makeable(r);
    const int id = make_as_creator(r);
    if (id == r.id) return {};
    if (id < 0) {
      errno = -id;
      return failed(r, "cannot be made again");
    }
    if (is_set(r))
      semctl(id, 0, IPC_RMID);
    else
      msgctl(id, IPC_RMID, nullptr);
  }
  return make_error(ExitCode::kUnavailable, 0,
                    "{}: cannot be made with its number, whose place another one has (see ipcs -{})",
                    name_of(r), is_set(r) ? 's' : 'q');
}

Result<void> put_values(const ParsedSystemV& o) {
  std::vector<uint16_t> values = o.values;
  if (semctl(o.record.id, 0, SETALL, values.data()) != 0) return failed(o.record, "its values cannot be set");
  return {};
}

Result<void> empty(const SystemVRecord& r) {
  struct {
    long type;
    char text[1];
  } one;
  constexpr int kMost = 1 << 24;
  for (int i = 0; i < kMost; ++i) {
    if (msgrcv(r.id, &one, sizeof(one.text), 0, IPC_NOWAIT | MSG_NOERROR) >= 0) continue;
    return errno == ENOMSG ? Result<void>() : failed(r, "messages that came since cannot be taken out");
  }
  return make_error(ExitCode::kUnavailable, 0, "{}: somebody sends to it without rest", name_of(r));
}

Result<void> put_messages(const ParsedSystemV& o) {
  CKPT_TRY(empty(o.record));
  std::vector<char> one;
  for (const auto& [type, text] : o.messages) {
    const long number = type;
    one.resize(sizeof(long) + text.size());
    std::memcpy(one.data(), &number, sizeof(number));
    if (!text.empty()) std::memcpy(one.data() + sizeof(number), text.data(), text.size());
    if (msgsnd(o.record.id, one.data(), text.size(), IPC_NOWAIT) != 0)
      return failed(o.record, "a message that waited in it cannot be put back");
  }
  return {};
}

Result<void> set_attributes(const SystemVRecord& r, const Present& now) {
  if (now.perm.uid == r.uid && now.perm.gid == r.gid && (now.perm.mode & 0777u) == r.mode &&
      (is_set(r) || now.limit == r.limit))
    return {};
  union {
    semid_ds set;
    msqid_ds queue;
  } state{};
  if (control(r, IPC_STAT, &state) != 0) return failed(r, "cannot be looked at");
  ipc_perm& perm = is_set(r) ? state.set.sem_perm : state.queue.msg_perm;
  perm.uid = r.uid;
  perm.gid = r.gid;
  perm.mode = static_cast<unsigned short>(r.mode);
  if (!is_set(r)) state.queue.msg_qbytes = r.limit;
  if (control(r, IPC_SET, &state) != 0) return failed(r, "its owner, rights or size cannot be set");
  return {};
}

Result<void> put_back(const ParsedSystemV& o) {
  const SystemVRecord& r = o.record;
  auto now = look(r);
  if (!now.ok()) return now.error();
  if (now->there) {
    CKPT_TRY(check_same(r, *now));
  } else {
    CKPT_TRY(make(r));
    now = look(r);
    if (!now.ok()) return now.error();
  }
  // Before its messages: how much the queue may hold.
  CKPT_TRY(set_attributes(r, *now));
  return is_set(r) ? put_values(o) : put_messages(o);
}

}  // namespace

Result<void> check_system_v(const ImageMeta& meta, std::vector<std::string>& notes) {
  for (const ParsedSystemV& o : meta.system_v) {
    const SystemVRecord& r = o.record;
    auto now = look(r);
    if (!now.ok()) return now.error();
    if (!now->there) {
      CKPT_TRY(check_makeable(r));
      continue;
    }
    CKPT_TRY(check_same(r, *now));
    if (is_of_other(r, meta.process.record)) {
      notes.push_back(
          fmt::format("{} belongs to user {}, not to the program's: it stays as it is", name_of(r), r.uid));
      continue;
    }
    const pid_t user = living_user(*now);
    if (user == 0) continue;
    // Nobody finds it but by its number, which other programs get as well, after a boot and on another
    // machine.
    if (r.key == IPC_PRIVATE) {
      return make_error(
          ExitCode::kUnavailable, 0,
          "{}: what has that number now is used by process {}, and no key tells whether it is the same one: "
          "end that process, or, if nobody needs it, remove it (ipcrm -{} {})",
          name_of(r), user, is_set(r) ? 's' : 'q', r.id);
    }
    notes.push_back(fmt::format("{} is in use, last by process {}: its contents go back to the checkpoint",
                                name_of(r), user));
  }
  return {};
}

Result<void> put_back_system_v(const std::vector<const ImageMeta*>& members) {
  std::set<std::pair<uint32_t, int32_t>> done;
  for (const ImageMeta* meta : members) {
    for (const ParsedSystemV& o : meta->system_v) {
      if (is_of_other(o.record, meta->process.record)) continue;
      if (!done.emplace(o.record.kind, o.record.id).second) continue;
      CKPT_TRY(put_back(o));
    }
  }
  return {};
}

}  // namespace ckpt
