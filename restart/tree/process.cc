#include "restart/tree/process.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/userfaultfd.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "base/machine/kernel_caps.h"
#include "restart/descriptors/descriptors.h"
#include "restart/feed/loader.h"
#include "restart/files/working_fds.h"
#include "restart/plan/memory/memory_plan.h"
#include "restart/plan/memory/restorer_range.h"
#include "restart/plan/plan.h"
#include "restart/plan/shared_objects.h"
#include "restart/plan/system_v.h"
#include "restart/tree/lost_children.h"
#include "restart/tree/namespaces.h"

#ifndef PR_SET_THP_DISABLE
#define PR_SET_THP_DISABLE 41
#endif

namespace ckpt {
namespace {

// Signals that arrive from now on wait for the program.
void reset_signals() {
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  for (int s = 1; s < NSIG; ++s) {
    if (s != SIGKILL && s != SIGSTOP) signal(s, SIG_DFL);
  }
}

struct OwnFds {
  WorkingFds working;
  int status = -1, exe = -1;
  FeedFds feed;
  int loader = -1, userfaultfd = -1;  // of memory that comes later
  int put_userfaultfd = -1;           // of memory that the Feeder puts there
  int together = -1, go = -1;         // of a job
};

Result<void> clear_the_way(const ProcessSpec& spec, ReportChannel& report, OwnFds& fds) {
  CKPT_TRY(fds.working.open_above(spec.job != nullptr ? spec.job->highest_descriptor
                                                      : highest_descriptor(spec.image->meta())));
  if (spec.job != nullptr) fds.working.know_objects(spec.job->objects);
  auto park = [&](int fd, int& to, const char* what) -> Result<void> {
    auto parked = fds.working.park(ScopedFd(fd), what);
    if (!parked.ok()) return parked.error();
    to = *parked;
    return {};
  };
  int channel = -1;
  CKPT_TRY(park(report.fd(), channel, "messages"));
  report.move_to(channel);
  CKPT_TRY(park(spec.status_fd, fds.status, "stages"));
  if (spec.feed.ring >= 0) {
    CKPT_TRY(park(spec.feed.ring, fds.feed.ring, "memory"));
    CKPT_TRY(park(spec.feed.orders, fds.feed.orders, "memory"));
    CKPT_TRY(park(spec.feed.emptied, fds.feed.emptied, "memory"));
  }
  if (spec.feed.socket >= 0) CKPT_TRY(park(spec.feed.socket, fds.feed.socket, "memory"));
  if (spec.loader_fd >= 0) CKPT_TRY(park(spec.loader_fd, fds.loader, "the loader"));
  if (spec.job != nullptr) {
    CKPT_TRY(park(spec.job->together_fd, fds.together, "the job"));
    CKPT_TRY(park(spec.job->go_fd, fds.go, "the job"));
  }
  // Other descriptors that ckpt-restart was started with are not the program's.
  if (fds.working.first() > 3)
    sys::call(__NR_close_range, 3, static_cast<unsigned>(fds.working.first()) - 1, 0);
  return {};
}

// The saved directory had no name any more, in an image of an older build: makes a new one, and removes its
// name.
bool enter_unnamed_directory(const std::string& image_directory) {
  for (const std::string& where : {image_directory, std::string("/tmp")}) {
    std::string name = where + "/.ckpt-restored-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) continue;
    const bool entered = chdir(name.c_str()) == 0;
    rmdir(name.c_str());
    if (entered) return true;
  }
  return chdir("/") == 0;
}

// As chdir(2), which takes no path of more than 4,095 bytes: such a one is entered in parts.
int enter_directory(std::string_view path) {
  while (path.size() >= PATH_MAX) {
    const size_t end = path.rfind('/', PATH_MAX - 1);
    if (end == 0 || end == std::string_view::npos) {
      errno = ENAMETOOLONG;
      return -1;
    }
    if (chdir(std::string(path.substr(0, end)).c_str()) != 0) return -1;
    path.remove_prefix(end + 1);
  }
  return chdir(std::string(path).c_str());
}

Result<void> restore_surroundings(const ImageMeta& meta, const std::string& image_directory) {
  const ParsedProcess& process = meta.process;
  std::string cwd(process.cwd);
  constexpr std::string_view kDeleted = " (deleted)";
  // One that had been removed is entered when it is made, with the open files.
  const bool is_made = removed_working_directory(meta) != nullptr && chdir("/") == 0;
  if (!is_made && enter_directory(cwd) != 0) {
    bool was_deleted = cwd.size() > kDeleted.size() &&
                       std::string_view(cwd).substr(cwd.size() - kDeleted.size()) == kDeleted;
    if (!was_deleted || !enter_unnamed_directory(image_directory)) {
      return make_error(ExitCode::kFileChanged, errno,
                        "the program's working directory {} cannot be entered ({}): make it again", cwd,
                        errno_name(errno));
    }
  }
  umask(process.record.umask);
  if (process.record.no_new_privs == 1) prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  prctl(PR_SET_THP_DISABLE, process.record.thp_disable != 0, 0, 0, 0);
  prctl(PR_SET_CHILD_SUBREAPER, process.record.child_subreaper != 0, 0, 0, 0);
  prctl(PR_SET_NAME, std::string(process.comm).c_str());
  return {};
}

int open_exe(const ImageMeta& meta, const SavedMappings& kept, OwnFds& fds) {
  std::string path(meta.mm.exe_path);
  // Where another program has its name by now.
  const auto mapped = std::find_if(meta.mappings.begin(), meta.mappings.end(),
                                   [&](const ParsedMapping& m) { return m.path == path; });
  if (mapped != meta.mappings.end()) {
    if (std::string saved = kept.of(*mapped); !saved.empty()) path = std::move(saved);
  }
  ScopedFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return -1;
  auto parked = fds.working.park(std::move(fd), "the program's file");
  return parked.ok() ? *parked : -1;
}

Result<TimeNamespace> continue_time(OwnFds& fds, ReportChannel& report) {
  TimeNamespace time = prepare_time_namespace();
  if (!time.prepared()) {
    report.note(
        "CLOCK_MONOTONIC jumps: no time namespace is allowed here (CAP_SYS_ADMIN, or a user namespace)");
    return time;
  }
  for (ScopedFd* fd : {&time.offsets, &time.entry}) {
    auto parked = fds.working.park(std::move(*fd), "the time namespace");
    if (!parked.ok()) return parked.error();
    *fd = ScopedFd(*parked);
  }
  return time;
}

// The loader knows the process before the restorer registers anything.
Result<void> prepare_lazy_memory(OwnFds& fds, const RestorerRange& range) {
  auto uffd = open_lazy_userfaultfd();
  if (!uffd.ok()) return uffd.error();
  auto parked = fds.working.park(ScopedFd(*uffd), "a userfaultfd");
  if (!parked.ok()) return parked.error();
  fds.userfaultfd = *parked;
  return introduce_to_loader(fds.loader, fds.userfaultfd, range.gate());
}

// Without a userfaultfd the restorer copies. No right is needed: no thread touches that memory before it is
// there.
Result<void> prepare_puts(OwnFds& fds) {
  ScopedFd uffd(open_userfaultfd(O_CLOEXEC | O_NONBLOCK, nullptr));
  uffdio_api api{};
  api.api = UFFD_API;
  if (uffd.valid() && ioctl(uffd.get(), UFFDIO_API, &api) == 0) {
    auto parked = fds.working.park(std::move(uffd), "a userfaultfd");
    if (parked.ok()) fds.put_userfaultfd = *parked;
  }
  return introduce_to_feeder(fds.feed.socket, fds.put_userfaultfd);
}

Result<void> run_restorer(const ProcessSpec& spec, ReportChannel& report, bool in_new_user) {
  const ImageMeta& meta = spec.image->meta();
  OwnFds fds;
  take_job_place(spec.place);
  CKPT_TRY(clear_the_way(spec, report, fds));
  report.send(ReportKind::kStage, static_cast<int32_t>(RestartStage::kProcess));
  CKPT_TRY(restore_surroundings(meta, spec.image_directory));
  if (spec.is_alone) make_lost_children(meta, report);
  if (spec.job == nullptr) CKPT_TRY(put_back_system_v({&meta}));
  SharedObjects objects(meta);
  DescriptorOptions options;
  options.working = &fds.working;
  options.image = spec.image;
  options.image_directory = spec.image_directory;
  options.sequence = spec.image->brief().sequence;
  options.taken_ns = meta.process.record.realtime_ns;
  options.saved_files = saved_files_of(*spec.image, spec.image_directory);
  options.say = [&report](std::string_view line) { report.note(line); };
  options.say_at_once = [&report](std::string_view line) { report.note(line, true); };
  add_returning_files(meta, options.returning);
  options.watch_later = true;
  options.mapped_objects = objects.numbers();
  if (spec.job != nullptr) {
    options.mapped_objects.insert(spec.job->mapped_objects.begin(), spec.job->mapped_objects.end());
    options.inherited = &spec.job->files;
    options.lone_pipes = &spec.job->lone_pipes;
    options.processes = &spec.job->processes;
  }
  auto descriptors = restore_descriptors(meta, options);
  if (!descriptors.ok()) return descriptors.error();
  report.send(ReportKind::kStage, static_cast<int32_t>(RestartStage::kDescriptors));

  // Of a job it has been prepared for all.
  auto time = spec.job != nullptr ? Result<TimeNamespace>(TimeNamespace{}) : continue_time(fds, report);
  if (!time.ok()) return time.error();
  const SavedMappings kept{options.saved_files, *spec.shared};
  fds.exe = open_exe(meta, kept, fds);

  RestorerRange range(*spec.image, *spec.fill, *spec.lazy, *spec.vdso, *descriptors);
  CKPT_TRY(range.reserve(objects.view_bytes()));
  CKPT_TRY(
      objects.make(range.views_at(), fds.working, report, spec.job != nullptr ? &spec.job->views : nullptr));
  MemoryPlan memory(meta, *spec.fill, objects, kept);
  CKPT_TRY(memory.build(fds.working, report));
  if (spec.job != nullptr) {
    spec.job->opened();
    if (has_file_watches(meta, options) && !spec.job->all_opened(fds.go))
      _exit(static_cast<int>(ExitCode::kSystem));
  }
  restore_file_watches(meta, options);
  if (fds.loader >= 0) CKPT_TRY(prepare_lazy_memory(fds, range));
  if (fds.feed.socket >= 0) CKPT_TRY(prepare_puts(fds));

  RestorerArgs& args = range.args();
  args.ring_fd = fds.feed.ring;
  args.orders_fd = fds.feed.orders;
  args.emptied_fd = fds.feed.emptied;
  args.slot_bytes = spec.feed.slot_bytes;
  args.feed_socket = fds.feed.socket;
  args.put_userfaultfd = fds.put_userfaultfd;
  args.loader_fd = fds.loader;
  args.userfaultfd = fds.userfaultfd;
  args.exe_fd = fds.exe;
  args.first_working_fd = static_cast<uint32_t>(fds.working.first());
  args.time_offsets_fd = time->offsets.release();
  args.time_ns_fd = time->entry.release();
  args.outer_monotonic_ns = time->outer_monotonic_ns;
  args.outer_boottime_ns = time->outer_boottime_ns;
  args.together_fd = fds.together;
  if (spec.job != nullptr) {
    args.time_ns_fd = spec.job->time_ns_fd;
    args.parent_death_signal = static_cast<uint64_t>(spec.job->parent_death_signal);
    args.library.stopped = static_cast<uint32_t>(spec.job->stopped);
    args.library.stopped_children = spec.job->stopped_children;
  }
  args.library.go_fd = fds.go;
  args.library.status_fd = fds.status;
  CKPT_TRY(range.fill_in(memory.mappings(), in_new_user, report));
  range.enter();
}

}  // namespace

ProcessSpec process_of(const RestartPlan& plan) {
  ProcessSpec process;
  process.image = plan.image.get();
  process.fill = &plan.fill;
  process.lazy = &plan.lazy;
  process.vdso = &plan.vdso;
  process.shared = &plan.shared;
  process.image_directory = plan.image_directory;
  return process;
}

void become_program(const ProcessSpec& spec, ReportChannel& report, bool in_new_user) {
  reset_signals();
  if (auto failed = run_restorer(spec, report, in_new_user); !failed.ok()) report.error(failed.error());
  _exit(static_cast<int>(ExitCode::kSystem));
}

}  // namespace ckpt
