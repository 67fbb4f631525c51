#include "libckpt_rt/capture/descriptors/descriptors.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "libckpt_rt/capture/descriptors/kinds/pipe_kinds.h"
#include "libckpt_rt/capture/descriptors/noted/file_signals.h"
#include "libckpt_rt/capture/descriptors/table/notes.h"
#include "libckpt_rt/capture/descriptors/table/sample.h"
#include "libckpt_rt/core/kernel/descriptor_info.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {
namespace {

constexpr uint32_t kMostPathsInStop = 256;  // 3 µs each

}  // namespace

Result<void> DescriptorCapture::prepare(Arena& arena, int tid) {
  release();
  watches_.begin();
  files_.begin(arena);
  contents_ = DescriptorContents(arena);
  file_contents_.begin(arena);
  notes_.begin(arena);
  sockets_.begin(arena);
  complete_ = false;
  sampling_.forget();
  CKPT_TRY(access_.begin(arena, tid));

  ArenaVector<int> fds(arena);
  long r = list_descriptors(tid, fds);
  if (r == -ENOMEM) return arena_full(files_.arena());
  if (r < 0) {
    return make_error(ExitCode::kSystem, static_cast<int>(r),
                      "cannot list the descriptors of thread {} ({}): is /proc mounted?", tid,
                      errno_name(static_cast<int>(r)));
  }
  if (!files_.entries().reserve(fds.size() + fds.size() / 8 + 16)) return arena_full(files_.arena());
  held_.begin();
  for (int fd : fds) {
    CapturedDescriptor d = unknown_descriptor(fd);
    if (!sample_from_outside(tid, fd, access_.text(), arena, d.now))
      continue;  // closed since the list was made
    d.offset_ahead = d.now.offset;
    CKPT_TRY(classifier_.classify(d));
    held_.hold(d);
    if (!files_.entries().push_back(d)) return arena_full(files_.arena());
  }
  CKPT_TRY(files_.sort_by_open_file());
  return file_contents_.copy_ahead();
}

Result<void> DescriptorCapture::recheck_stopped(int tid, OtherThreads sharers) {
  if (!sampling_.is_under_way()) CKPT_TRY(begin_sampling(tid, sharers));
  access_.stand(true);
  // While others sample: what does not need their answers.
  CKPT_TRY(held_.read_held());
  sampling_.help();
  await_samples();
  files_.take_order_checks();
  CKPT_TRY(sampling_.take(sharers));
  CKPT_TRY(find_changes());
  CKPT_TRY(held_.read_rest());
  if (!files_.has_changed() && !files_.is_refused()) {
    auto unchanged = files_.sharing_unchanged();
    if (!unchanged.ok()) return unchanged.error();
    if (!*unchanged) files_.note_change();
  }
  if (files_.has_changed() || files_.is_refused()) CKPT_TRY(files_.sort_by_open_file());
  SocketLook sockets(files_.arena());
  CKPT_TRY(sockets_.look(sockets));
  CKPT_TRY(directory_.look(tid));
  if (files_.has_changed()) CKPT_TRY(files_.sort_by_open_file());
  files_.number_open_files();
  CKPT_TRY(sockets_.describe(sockets));
  CKPT_TRY(terminals_.look_stopped());
  decide_kinds_of_ends(files_, access_, partners_.any);
  CKPT_TRY(list_owners());
  CKPT_TRY(file_contents_.copy_stopped());
  // Another member may have one as well: the coordinator compares them.
  if (!partners_.any) close_in_flight();
  // hold_back_senders() borrows them once more.
  if (!sockets_.has_senders()) access_.give_up();
  complete_ = true;
  return losses_.note_all();
}

Result<void> DescriptorCapture::begin_sampling(int tid, OtherThreads sharers) {
  access_.begin_sampling(tid);
  return sampling_.begin(sharers);
}

// Threads that are told by a signal what happens to a file.
Result<void> DescriptorCapture::list_owners() {
  file_signals::begin();
  for (const auto& d : files_.entries()) {
    if (d.in_flight || d.now.owner == 0 || d.now.owner_type != F_OWNER_TID ||
        file_signals::add_thread(d.fd, d.now.owner))
      continue;
    return notes_.add(kChanged,
                      "descriptor {} ({}): the thread {}, which gets signals of it, does not after a restart",
                      d.fd, d.path, d.now.owner);
  }
  return {};
}

Result<void> DescriptorCapture::find_changes() {
  // First what is no file: a group of fanotify(7) whose permission is asked for must be refused before a
  // directory is opened.
  for (auto& d : files_.entries()) {
    if (!d.looked && (d.now.mode & S_IFMT) == 0) CKPT_TRY(classifier_.classify(d));
  }
  // After the stop its name may be one that the program gives it only then: a rename to that name would fail.
  uint32_t most = kMostPathsInStop;
  for (auto& d : files_.entries()) {
    if (d.looked && d.named && d.path_in_doubt && d.kind == OpenFileKind::kRegular && most > 0) {
      --most;
      CKPT_TRY(names_.read_path(d));
      d.path_in_doubt = false;
    }
    if (!d.looked) {
      CKPT_TRY(classifier_.classify(d));
    } else if (!d.named && (d.kind == OpenFileKind::kRegular || d.kind == OpenFileKind::kDirectory ||
                            d.kind == OpenFileKind::kFifo || d.kind == OpenFileKind::kDevice ||
                            d.kind == OpenFileKind::kTerminal)) {
      CKPT_TRY(classifier_.classify(d));  // renamed, or without this name now
    }
  }
  return {};
}

void DescriptorCapture::hold_back_senders() {
  sockets_.hold_back_senders();
  if (complete_) access_.give_up();
}

void DescriptorCapture::release() {
  await_samples();
  if (sockets_.has_senders()) hold_back_senders();
  file_contents_.send_the_rest();
  // Once only: the arena may be gone when the destructor comes.
  if (held_.holds_any()) {
    if (complete_) {
      names_.refresh_paths();
      access_.stand(false);
      names_.find_late_names(contents_, notes_);
      held_.note_late_locks(notes_);
      watches_.name_all();
    }
    held_.close_all();
  }
  close_in_flight();
  file_contents_.close_pipe();
  access_.give_up();
}

}  // namespace ckpt
