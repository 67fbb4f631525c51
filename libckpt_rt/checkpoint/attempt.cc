#include "libckpt_rt/checkpoint/attempt.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>

#include "base/checks/named_points.h"
#include "base/clock.h"
#include "copier/segment_size.h"
#include "image/format/saved_file_names.h"
#include "image/write/directory/image_directory.h"
#include "image/write/directory/saved_files.h"
#include "job/identity/own_job.h"
#include "job/session/session.h"
#include "libckpt_rt/capture/advice/advice_notes.h"
#include "libckpt_rt/capture/advice/memory_advice.h"
#include "libckpt_rt/capture/memory/probes.h"
#include "libckpt_rt/capture/process/process_state.h"
#include "libckpt_rt/checkpoint/stages/back_end.h"
#include "libckpt_rt/checkpoint/stages/files/file_saver.h"
#include "libckpt_rt/checkpoint/stages/memory/page_list.h"
#include "libckpt_rt/checkpoint/stages/memory/shared_of_job.h"
#include "libckpt_rt/checkpoint/stages/restart_verdict.h"
#include "libckpt_rt/checkpoint/stages/waits_for_child.h"
#include "libckpt_rt/checkpoint/stages/what_is_lost.h"
#include "libckpt_rt/core/directory/log.h"
#include "libckpt_rt/core/directory/own_directory.h"
#include "libckpt_rt/core/kernel/task_list.h"
#include "libckpt_rt/core/process/fork/own_page.h"
#include "libckpt_rt/core/process/this_process.h"
#include "libckpt_rt/core/request/own_signal.h"
#include "libckpt_rt/core/threads/of_ours/own_threads.h"
#include "libckpt_rt/guard/guard.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {

// A watch that was kept knows what is protected by segments of its size.
uint64_t choose_segment(const Settings& settings, const Watch& watch, uint64_t resident) {
  if (!settings.segment_auto) return settings.segment_bytes;
  const uint64_t kept = watch.table.segment_bytes();
  return kept != 0 ? kept : bounded_segment(in_force::next_segment(), resident, settings.pool_bytes);
}

// Settings for copies in order, with a back end that makes none.
void say_what_is_not_used(Attempt& attempt, const BackEnd& back_end) {
  attempt.in_force.in_order = back_end.copies_in_order();
  const bool engine = attempt.settings.dma, order = attempt.settings.order != Order::kAddress;
  if (back_end.copies_in_order() || (!engine && !order)) return;
  log_format(attempt.space.log(), "{}{}{}{} {} not used: mode {} copies nothing in order",
             engine ? "CKPT_ENGINE=dma" : "", engine && order ? " and " : "", order ? "CKPT_ORDER=" : "",
             order ? order_name(attempt.settings.order) : "", engine && order ? "are" : "is",
             mode_name(attempt.cost.mode));
}

void choose_increments(Attempt& attempt, const BackEnd& back_end) {
  if (attempt.settings.increments == 0) return;
  const char* why = job::is_streamed() ? "whoever gets images by CKPT_TO need not have the one before"
                                       : back_end.why_no_increments();
  attempt.in_force.increments = why == nullptr;
  if (why != nullptr) log_format(attempt.space.log(), "no increments: {}; images are full", why);
}

// A seccomp filter may kill a thread that makes a call that the program does not make.
bool saves_files(const Settings& settings) {
  return !job::is_streamed() && settings.files != SavedFiles::kNone && !is_filtered();
}

// In the image, so wherever that goes.
bool saves_contents(const Settings& settings) {
  const SavedFiles how = settings.files;
  return (how == SavedFiles::kAuto || how == SavedFiles::kCopies) && !is_filtered();
}

// In a job's checkpoint one place for all, in the job's directory: members share many files.
int place_of_saved_files(const Attempt& attempt) {
  return job::place() != nullptr ? job::place()->directory : attempt.space.log();
}

void save_files_of(Attempt& attempt) {
  attempt.file_saver.open(attempt.space.arena(), place_of_saved_files(attempt),
                          job::place() != nullptr ? kJobSavedFiles : attempt.cost.image,
                          attempt.settings.files);
  attempt.file_saver.save_all(attempt.space.log(), FileSaver::Time::kFirst);
}

// One member of a job is enough for the directory of temporary files that all use.
bool is_first_of_job() {
  const int root = job::own_job.identity.root;
  return root == 0 || root == sys::getpid();
}

void own_ranges(Attempt& attempt, BackEnd& back_end) {
  Workspace& space = attempt.space;
  for (AddrRange r : {own_page::range(), space.arena().range(), attempt.image.memory(), guard::own_range()}) {
    if (!space.own(r)) return;
  }
  if (!space.own(job::own_job.sign) || !space.own(own_signal.sign)) return;
  for (AddrRange r : job::own_memory()) {
    if (!space.own(r)) return;
  }
  const size_t watch = space.own().size();
  attempt.watch.own_ranges(space.own_list());
  if (!back_end.writes_in_child()) {
    for (AddrRange r : {space.arena().range(), attempt.image.memory()}) hide_from_children(r);
    for (AddrRange r : space.own().subspan(watch)) hide_from_children(r);
  }
  back_end.add_own_ranges();
  for (AddrRange r : attempt.image.sink().own_mappings().ranges) {
    if (!space.own(r)) return;
  }
}

Result<void> prepare(Attempt& attempt, BackEnd& back_end) {
  Workspace& space = attempt.space;
  ProcessCapture& capture = attempt.capture;
  const MemorySize memory = memory_size();
  attempt.in_force.segment_bytes = choose_segment(attempt.settings, attempt.watch, memory.resident);
  // A description of a page run or segment takes up to 64 bytes; half of all pages could be runs.
  const BackEnd::Room room{memory, list_bytes(memory) + memory.resident / 32 +
                                       table_bytes(memory, attempt.in_force.segment_bytes)};
  CKPT_TRY(space.reserve(room.list_bytes, attempt.watch.spare));
  CKPT_TRY(waits_for_child::await_none(space.arena()));
  // Until the stop the program goes on, and what is swapped out is in no figure.
  CKPT_TRY(attempt.image.reserve(std::min(memory.mapped + (64ull << 20), memory.resident + (4ull << 30))));
  capture.make_lists(space.arena());
  attempt.eager.make_lists(space.arena());
  CKPT_TRY(back_end.reserve(room));

  CKPT_TRY(attempt.image.choose_name(space, attempt.watch.parent, attempt.cost));
  CKPT_TRY(back_end.open_image());
  points::at("prepare.image");
  attempt.in_force.files = saves_files(attempt.settings);
  if (attempt.in_force.files) {
    if (job::session() == nullptr) remove_orphaned_saved_files(space.log());
    save_files_of(attempt);
    if (is_first_of_job()) attempt.file_saver.save_temporary();
    capture.descriptors.set_saved_files(place_of_saved_files(attempt), job::place() != nullptr);
  }
  CKPT_TRY(capture.still_memory.open());
  if (job::session() != nullptr) capture.descriptors.expect_partners();
  if (job::over_hosts()) capture.descriptors.expect_hosts(&job::drained);
  if (saves_contents(attempt.settings)) capture.descriptors.save_contents();
  CKPT_TRY(capture.descriptors.prepare(space.arena(), this_process.pid));
  CKPT_TRY(back_end.open(room));
  points::at("prepare.open");
  CKPT_TRY(capture.pages.open(space.arena(), attempt.watch.pagemap()));
  say_what_is_not_used(attempt, back_end);
  choose_increments(attempt, back_end);
  own_ranges(attempt, back_end);
  memory_advice::begin_recent();
  capture.map_before.expect(memory.mappings);
  CKPT_TRY(capture.map_before.read(space.own()));
  // Where a filter forbids system calls, files are not read again.
  if (!is_filtered()) capture.probe = find_probe(capture.map_before, capture.pages, space.arena());
  attempt.watch.look_up_in(&capture.map_before);
  CKPT_TRY(memory_advice::find_flags(capture.map_before, memory.resident));
  CKPT_TRY(capture.files.read(capture.map_before, space.arena()));
  if (attempt.in_force.files) attempt.file_saver.save_mapped(capture.map_before, space.log());
  CKPT_TRY(back_end.get_ready());
  points::at("prepare.ready");
  return {};
}

Result<void> run_all(Attempt& attempt, BackEnd& back_end) {
  CKPT_TRY(prepare(attempt, back_end));
  if (job::session() != nullptr && !job::session()->can_share)
    CKPT_TRY(offer_shared_memory(attempt.capture.map_before.mappings(), false, attempt.space.arena()));
  CKPT_TRY(job::prepared(attempt.capture.descriptors));
  CKPT_TRY(attempt.stop.stop(back_end));
  points::at("stop.standing");
  CKPT_TRY(job::standing(attempt.clock.began_ns()));
  CKPT_TRY(attempt.stop.list_signals(back_end));
  const Result<void> looked = attempt.stop.look(attempt.watch);
  if (attempt.capture.map.has_unknown_name() || attempt.capture.between_requests)
    attempt.outcome.spoiled = true;
  if (!looked.ok()) return looked.error();
  if (attempt.in_force.files) attempt.file_saver.save_new(attempt.capture.descriptors.entries());
  CKPT_TRY(leave_to_savers(attempt.capture.map.mappings()));
  points::at("stop.looked");
  CKPT_TRY(back_end.capture_memory());
  points::at("stop.captured");
  const Result<void> sampled = job::sampled(attempt.capture.descriptors);
  attempt.capture.descriptors.close_in_flight();
  attempt.capture.descriptors.hold_back_senders();
  CKPT_TRY(sampled);
  return back_end.finish();
}

}  // namespace

Result<void> run_stages(Attempt& attempt, BackEnd& back_end) {
  Result<void> result = run_all(attempt, back_end);
  // After a success nearly nothing of this is left to do.
  back_end.release_faults();
  // After a failure sockets are still set to send at once, for the stop, and ends of pipes that wait in them
  // are open: the program must not see that.
  attempt.capture.descriptors.close_in_flight();
  attempt.capture.descriptors.hold_back_senders();
  // Before anything that waits for threads of the program: faults are still let go.
  attempt.stop.release();
  back_end.end();
  attempt.watch.look_up_in(nullptr);
  attempt.image.abort();
  attempt.capture.descriptors.release();
  back_end.release_buffers();
  if (result.ok() && attempt.outcome.keeps_watch) {
    attempt.eager.leave_to(attempt.watch.spare);
    attempt.space.leave_to(attempt.watch.spare);
  }
  const int directory = attempt.space.log();
  if (directory >= 0 && saves_files(attempt.settings)) {
    const bool saved =
        job::place() != nullptr && job::place()->stays;  // before the job's commit, which has been
    if (result.ok() && !saved) {
      attempt.file_saver.save_all(attempt.space.log(), FileSaver::Time::kLast);
      if (job::place() == nullptr) attempt.file_saver.make_durable(attempt.space.log());
    } else if (!result.ok() && attempt.cost.image[0] != '\0' && job::session() == nullptr) {
      remove_saved_files(directory, attempt.cost.image);
    }
  }
  return result;
}

Result<void> Attempt::get_ready(const OtherThreads& others) {
  CKPT_TRY(capture.map.read_ahead(space.own()));
  capture.map.remember_flags_of(capture.map_before);
  capture.texts.open();
  capture.others = others;
  const auto threads = static_cast<size_t>(std::max(count_tasks(), 1l));
  if (!capture.threads.reserve(threads + 16)) return no_memory("the list of threads");
  // Room for what the stop adds to the lists: a page that is touched for the first time costs a microsecond
  // or two.
  constexpr size_t kAlways = 512 << 10, kThread = 1 << 10, kDescriptor = 512, kMost = 64 << 20;  // bytes
  space.arena().populate(std::min(kMost, kAlways + threads * kThread +
                                             capture.descriptors.descriptor_count() * kDescriptor +
                                             capture.map.mappings().size() * sizeof(Mapping)));
  return {};
}

void Attempt::after_stop() {
  capture.descriptors.release();
  file_saver.after_stop();
}

Result<void> Attempt::describe() {
  note_what_is_lost(capture.facts, capture.threads.span(), space);
  const std::string_view why = why_no_restart(capture, space);
  std::memcpy(cost.why_not_restartable, why.data(),
              std::min(why.size(), sizeof(cost.why_not_restartable) - 1));
  MetaWriter meta(space.arena());
  MetaSources sources{
      &capture.facts,          &saved_process,         &capture.map,  &capture.files,   &capture.descriptors,
      capture.threads.span(),  capture.pending.span(), space.notes(), capture.system_v, &cost,
      copied_ns - requested_ns};
  CKPT_TRY(write_meta(sources, space.arena(), meta));
  return image.sink().set_meta(meta.span());
}

job::Written to_written_message(const CheckpointCost& cost) {
  job::Written facts{cost.resumed_ns, cost.bytes_memory, cost.bytes_written, cost.image_state, {}};
  static_assert(sizeof(facts.why_not_restartable) == sizeof(cost.why_not_restartable));
  std::memcpy(facts.why_not_restartable, cost.why_not_restartable, sizeof(cost.why_not_restartable));
  return facts;
}

Result<void> Attempt::commit() {
  log_heap(settings, space.log(), capture.free_heap.span());
  if (auto hold = checks.result(); !hold.ok()) {
    outcome.spoiled = true;
    return hold.error();
  }
  points::at("commit.described");
  if (in_force.files && job::place() == nullptr) file_saver.make_durable(space.log());
  auto stats = image.sink().commit();
  cost.account.helpers += image.helper_times();
  if (!stats.ok()) return stats.error();
  if (job::place() == nullptr) CKPT_TRY(check_images_stay(space.log(), own_directory::name()));
  cost.bytes_memory = stats->bytes_memory;
  cost.bytes_written = stats->bytes_written;
  cost.image_state = stats->as_parent.state;
  cost.durable_ns = now_ns() - requested_ns;
  watch.parent = stats->as_parent;
  watch.image_bytes = stats->bytes_memory;
  return {};
}

}  // namespace ckpt
