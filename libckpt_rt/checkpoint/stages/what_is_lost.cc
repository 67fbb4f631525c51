#include "libckpt_rt/checkpoint/stages/what_is_lost.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <linux/kcmp.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstring>

#include "job/identity/own_job.h"
#include "job/session/session.h"
#include "libckpt_rt/capture/descriptors/noted/directory_notices.h"
#include "libckpt_rt/capture/threads/own_directories.h"
#include "libckpt_rt/core/kernel/proc_text.h"
#include "libckpt_rt/core/kernel/task_list.h"
#include "libckpt_rt/core/process/seccomp/own_filters.h"
#include "libckpt_rt/core/process/seccomp/seccomp_state.h"
#include "libckpt_rt/core/process/this_process.h"
#include "libckpt_rt/core/threads/own_dispatch.h"
#include "libckpt_rt/stop/tracing/service.h"
#include "libckpt_rt/stop/tracing/traced_thread.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {

void note_settings(const ProcessFacts& facts, Workspace& space) {
  const bool some_live = std::any_of(facts.children.begin(), facts.children.end(), [](const LostChild& c) {
    return c.record.state == static_cast<uint32_t>(ChildState::kLives);
  });
  if (job::session() == nullptr && (some_live || (facts.has_children && facts.children.empty()))) {
    space.note(
        kChanged,
        "the program has child processes, which are not in the image: after a restart they have been "
        "killed, which it learns by SIGCHLD and wait(2), and what memory it shared with them is its own");
  }
  if (facts.seccomp_filters > seccomp_state.before_program && !own_filters::come_back()) {
    space.note(
        kChanged,
        "the program has filters of system calls (seccomp) of which not all is known: not for the whole "
        "process, with a listener, or set past libc. After a restart it has none, for the kernel shows them "
        "to nobody");
  }
  const bool filtered = is_filtered();
  struct statx root {};
  const bool told = !filtered && sys::call(__NR_statx, AT_FDCWD, "/", 0L, 0L, &root) == 0;
  if (told && (root.stx_attributes_mask & ~root.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0) {
    space.note(kChanged,
               "the program has changed its root directory (chroot): a restart looks for its files from the "
               "root of ckpt-restart, which is to be run in that directory");
  }
  constexpr long kKeepCapabilities = 1L << 4;
  const long bits = saved_process.secure_bits;
  const bool may_set_them = (facts.process.cap_permitted >> CAP_SETPCAP & 1) != 0;
  if (bits > 0 && (bits & ~kKeepCapabilities) != 0 && !may_set_them) {
    space.note(
        kChanged,
        "the program has changed what being root means to it (PR_SET_SECUREBITS) and given up the right to "
        "do so: after a restart it means what it does by default, unless ckpt-restart has that right "
        "(CAP_SETPCAP)");
  }
  if (saved_process.timers.interval_unknown) {
    space.note(kChanged,
               "the program's filters (seccomp) refuse to tell what is left of its interval timers "
               "(getitimer): those that run are lost after a restart");
  }
  if (facts.parent_death_signal != 0 && job::session() == nullptr) {  // of a job the manifest has it
    space.note(kChanged,
               "the program is to get a signal when its parent ends (PR_SET_PDEATHSIG): after a restart it "
               "gets none");
  }
}

template <typename... Args>
void say(Workspace& space, uint32_t severity, fmt::format_string<Args...> format, Args&&... args) {
  constexpr size_t kMost = 400;
  auto* text = static_cast<char*>(space.arena().allocate(kMost, 1));  // as long as the image is made
  if (text == nullptr) return;
  *fmt::format_to_n(text, kMost - 1, format, std::forward<Args>(args)...).out = '\0';
  space.note(severity, text);
}

template <typename... Args>
void say(Workspace& space, fmt::format_string<Args...> format, Args&&... args) {
  say(space, kChanged, format, std::forward<Args>(args)...);
}

// 0: it cannot be told.
uint64_t namespace_of(int pid, const char* kind) {
  char path[64];
  *fmt::format_to_n(path, sizeof(path) - 1, "/proc/{}/ns/{}", pid, kind).out = '\0';
  struct statx found {};
  return sys::call(__NR_statx, AT_FDCWD, path, 0L, STATX_INO, &found) == 0 ? found.stx_ino : 0;
}

// A restart makes the program in the namespaces that ckpt-restart is in. Namespaces of its own show beside
// those of the parent, which has others; where the parent may not be looked at, by what the program has
// called.
void note_namespaces(int parent, Workspace& space) {
  constexpr struct {
    const char *name, *what;
    int flag;
  } kKinds[] = {{"net", "network", CLONE_NEWNET},
                {"uts", "host name", CLONE_NEWUTS},
                {"ipc", "System V IPC", CLONE_NEWIPC},
                {"mnt", "mounts", CLONE_NEWNS},
                {"user", "users", CLONE_NEWUSER}};
  const int left = seccomp_state.left_namespaces.load(std::memory_order_relaxed);
  char list[100] = {};
  char* end = list;
  for (const auto& kind : kKinds) {
    const uint64_t own = namespace_of(this_process.pid, kind.name), other = namespace_of(parent, kind.name);
    if (own == 0 || other == 0 ? (left & kind.flag) == 0 : own == other) continue;
    end = fmt::format_to_n(end, static_cast<size_t>(list + sizeof(list) - 1 - end), "{}{}",
                           end != list ? ", " : "", kind.what)
              .out;
  }
  if (end == list) return;
  say(space,
      "the program is in namespaces of its own ({}): a restart puts it into those of ckpt-restart, which is "
      "to be run "
      "in them (nsenter)",
      static_cast<const char*>(list));
}

// A restart continues one CLOCK_MONOTONIC for the whole job. A member with other clocks would wait for ever,
// or not at all, for each time that it has in its memory.
void note_other_clocks(Workspace& space) {
  const int first = job::own_job.identity.root;
  if (job::session() == nullptr || this_process.pid == first) return;
  const uint64_t own = namespace_of(this_process.pid, "time"), of_first = namespace_of(first, "time");
  if (own == 0 || of_first == 0 || own == of_first) return;
  space.note(
      kNoRestart,
      "the process has clocks of its own (a time namespace, unshare --time): a restart has one clock for "
      "the whole job; start the first process of the job in that namespace");
}

// Tells apart users and groups of threads. 0: not known.
uint64_t credentials_of(int tid) {
  constexpr std::string_view kLines[] = {"Uid:", "Gid:", "Groups:"};
  char path[64];
  *fmt::format_to_n(path, sizeof(path) - 1, "/proc/{}/task/{}/status", this_process.pid, tid).out = '\0';
  return digest_status(path, kLines);
}

// Of threads that have called setgroups(2) past libc. /proc is all that is asked: also where calls are
// filtered.
void note_other_groups(std::span<const StoppedThread> threads, Workspace& space) {
  uint64_t of_first = 0;
  for (const StoppedThread& t : threads) {
    if (t.record.tid == this_process.pid || t.knows_user) continue;
    if (of_first == 0) of_first = credentials_of(this_process.pid);
    const uint64_t own = credentials_of(t.record.tid);
    if (own == 0 || of_first == 0) {
      say(space, "what users thread {} has cannot be read (/proc): after a restart it has those of the first",
          t.record.tid);
      return;
    }
    if (own == of_first) continue;
    say(space,
        "thread {} has other groups than the first thread (setgroups by syscall), more than are remembered: "
        "after a restart it has those of the first",
        t.record.tid);
    return;
  }
}

// Threads run again by now. A thread that ends gives up what it had in common with the others some time
// before its number: it counts as apart only where a thread has called unshare(2) for such a thing.
bool is_apart(int first, int tid, int what, int unshared) {
  if (sys::call(__NR_kcmp, first, tid, what, 0L, 0L) <= 0) return false;
  if ((seccomp_state.left_namespaces.load(std::memory_order_relaxed) & unshared) != 0) return true;
  const auto is_there = [](int t) {
    TaskFacts facts;
    return read_task_facts(t, facts) && !facts.is_exiting;
  };
  return is_there(first) && is_there(tid);
}

// Notes threads that have called unshare(2) for themselves, and so have something apart that a restart cannot
// give them.
void note_apart_threads(std::span<const StoppedThread> threads, Workspace& space) {
  int other_directory = 0, other_files = 0;
  int first = 0;  // that has not exited: one that has, has neither
  for (const StoppedThread& t : threads) {
    if (first == 0 && (t.record.flags & kThreadLeaderExited) == 0) first = t.record.tid;
    if (t.record.tid == this_process.pid || t.record.tid == first) continue;
    if (other_directory == 0 && !own_directories::is_saved(t.record.tid) &&
        is_apart(first, t.record.tid, KCMP_FS, CLONE_FS | CLONE_NEWNS | CLONE_NEWUSER))
      other_directory = t.record.tid;
    if (other_files == 0 && is_apart(first, t.record.tid, KCMP_FILES, CLONE_FILES))
      other_files = t.record.tid;
  }
  if (other_directory != 0) {
    say(space,
        "thread {} has a working directory and umask of its own (unshare) that cannot be found again: it was "
        "removed, is shared with another such thread, or unshare was called past libc. After a restart the "
        "thread has those of the first",
        other_directory);
  }
  // The image does not say which descriptors these are. Under their numbers the thread would meet another
  // file.
  if (other_files != 0) {
    space.note(
        kNoRestart,
        "a thread has descriptors of its own (unshare(CLONE_FILES)), which are not saved: the program can be "
        "restarted when that thread has ended");
  }
}

bool is_system_call(uint64_t address) {
  uint8_t instruction[2] = {};
  const iovec to{instruction, sizeof(instruction)}, from{Addr{address}.as<void>(), sizeof(instruction)};
  return sys::call(__NR_process_vm_readv, sys::gettid(), &to, 1L, &from, 1L, 0L) == sizeof(instruction) &&
         instruction[0] == 0x0f && instruction[1] == 0x05;
}

// Also past libc, as long as it waits: the kernel has put the registers back, to make the call again.
bool waits_by_thread(const ThreadRecord& r) {
  const uint64_t options = r.rax == __NR_wait4 ? r.rdx : r.rax == __NR_waitid ? r.r10 : 0;
  return (options & __WNOTHREAD) != 0 && is_system_call(r.rip);
}

bool has_children(int tid) {
  char text[16];
  return read_small_file(TaskPath(tid, "children").c_str(), text, sizeof(text)) != 0;
}

// A restart makes all children those of the first thread.
void note_waits_of_threads(std::span<const StoppedThread> threads, Workspace& space) {
  const bool some_wait = seccomp_state.waits_by_thread.load(std::memory_order_relaxed) ||
                         std::any_of(threads.begin(), threads.end(),
                                     [](const StoppedThread& t) { return waits_by_thread(t.record); });
  if (!some_wait) return;
  for (const StoppedThread& t : threads) {
    if (t.record.tid == this_process.pid || !has_children(t.record.tid)) continue;
    say(space, kNoRestart,
        "thread {} has child processes, and threads of the program wait for their own children alone "
        "(__WNOTHREAD): after a restart all would be children of the first thread; wait for them without it",
        t.record.tid);
    return;
  }
}

void note_keyrings(Workspace& space) {
  if (seccomp_state.session_keys.load(std::memory_order_relaxed)) {
    space.note(
        kChanged,
        "the program has put keys into the keyring of its session (add_key): after a restart it has the "
        "session keyring of ckpt-restart, which has them only in the same session");
  }
  if (!seccomp_state.own_keyring.load(std::memory_order_relaxed)) return;
  space.note(
      kChanged,
      "the program has a keyring of its own (keyctl): after a restart it has that of ckpt-restart, without "
      "the keys");
}

void note_landlock(Workspace& space) {
  if (!seccomp_state.landlocked.load(std::memory_order_relaxed)) return;
  say(space,
      "the program has forbidden itself access to files or ports (landlock): after a restart it may, for the "
      "kernel shows the rules to nobody");
}

// Of processes made by clone(2) that are no threads, and have more in common than fork(2) leaves.
void note_common_tables(int parent, Workspace& space) {
  auto common = [parent](int what) {
    return sys::call(__NR_kcmp, this_process.pid, parent, what, 0L, 0L) == 0;
  };
  if (common(KCMP_FILES)) {
    say(space,
        "the program has one table of descriptors with its parent, process {} (CLONE_FILES): after a restart "
        "each "
        "has its own",
        parent);
  }
  if (common(KCMP_FS)) {
    say(space,
        "the program has its working directory and umask together with its parent, process {} (CLONE_FS): "
        "after a "
        "restart each has its own",
        parent);
  }
}

void note_tracing(Workspace& space) {
  const bool in_job = job::session() != nullptr;
  if (const int tid = tracing::left_out(in_job); tid != 0)
    say(space,
        "the program traces process {} (ptrace), which is not saved with it: after a restart it traces "
        "nobody "
        "there",
        tid);
  if (!in_job && traced::has_tracer())
    space.note(
        kChanged,
        "the program is traced by another process (ptrace), which is not saved with it: after a restart "
        "nobody traces it");
}

}  // namespace

void note_what_is_lost(const ProcessFacts& facts, std::span<const StoppedThread> threads, Workspace& space) {
  note_settings(facts, space);
  note_tracing(space);
  if (job::session() != nullptr && facts.continued.count > ContinuedChildren::kMost) {
    say(space,
        "{} children of the program were continued, which the program has not asked for yet (WCONTINUED): "
        "after a restart it is told of {} of them",
        facts.continued.count, ContinuedChildren::kMost);
  }
  if (seccomp_state.queue_notice.load(std::memory_order_relaxed)) {
    space.note(
        kChanged,
        "the program has asked to be told of messages in a queue (mq_notify): the kernel ends that when a "
        "checkpoint is taken; it has to ask again, also after a restart");
  }
  if (own_dispatch::is_full()) {
    space.note(
        kNoRestart,
        "more threads of the program catch system calls themselves (PR_SET_SYSCALL_USER_DISPATCH) than "
        "are remembered: the kernel shows to nobody which");
  }
  note_waits_of_threads(threads, space);
  if (directory_notices::is_full()) {
    space.note(kChanged,
               "the program has asked to be told what happens in more directories (F_NOTIFY) than are "
               "remembered: after a "
               "restart it is not told of all");
  }
  note_other_groups(threads, space);
  if (is_filtered()) return;
  note_namespaces(facts.process.ppid, space);
  note_keyrings(space);
  note_landlock(space);
  note_common_tables(facts.process.ppid, space);
  note_other_clocks(space);
  note_apart_threads(threads, space);
}

}  // namespace ckpt
