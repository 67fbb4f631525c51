#include "libckpt_rt/checkpoint/back_ends/still.h"

#include <errno.h>

#include <bit>

#include "base/checks/named_points.h"
#include "base/clock.h"
#include "base/memory/page_runs.h"
#include "job/session/session.h"
#include "libckpt_rt/checkpoint/account/progress.h"
#include "libckpt_rt/checkpoint/stages/memory/page_list.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

Result<void> StillBackEnd::open_image() {
  // No segment has a buffer that could be released.
  return attempt_.image.open(
      attempt_.space.log(),
      [](void* image, uint32_t) {
        checkpoint_progress::written(static_cast<PendingImage*>(image)->sink().memory_bytes());
      },
      &attempt_.image);
}

Result<void> StillBackEnd::list_memory(EagerCopies* eager) {
  return list_pages(attempt_.capture, attempt_.in_force.segment_bytes, attempt_.space, table_, eager);
}

Result<void> StillBackEnd::describe_and_commit() {
  CKPT_TRY(attempt_.describe());
  return attempt_.commit();
}

Result<void> StillBackEnd::read_pages(const Segment& segment, bool file, std::byte* bounce, uint64_t* mask) {
  const bool readable = table_.region(segment).readable;
  StillMemory& memory = attempt_.capture.still_memory;
  const uint64_t first = std::countr_zero(*mask) * kPageSize, end = std::bit_width(*mask) * kPageSize;
  // Nearly always there are no holes.
  if (const uint64_t bytes = end - first;
      static_cast<uint64_t>(std::popcount(*mask)) * kPageSize == bytes &&
      memory.read(bounce + first, segment.base + first, bytes, readable) == 0)
    return {};
  uint64_t unread = 0;
  for_each_page(*mask, [&](uint32_t page) {
    const uint64_t offset = page * kPageSize;
    if (unread != 0 && !file) return;
    if (memory.read(bounce + offset, segment.base + offset, kPageSize, readable) != 0)
      unread |= uint64_t{1} << page;
  });
  if (unread != 0 && !file) {
    const uint64_t offset = static_cast<uint64_t>(std::countr_zero(unread)) * kPageSize;
    return make_error(ExitCode::kInternal, EFAULT, "cannot read the program's memory at {:#x}",
                      segment.base.value + offset);
  }
  *mask &= ~unread;
  return {};
}

Result<void> StillBackEnd::write_table(Part part) {
  for (SegmentId id{0}; id.value < table_.size(); ++id.value) {
    Segment& s = table_[id];
    std::byte* data = s.base.as();
    uint64_t mask = s.present;
    // Files may be shorter than their mapping, and other mappings unreadable: through the kernel.
    const Mapping* m = attempt_.capture.map.find(table_.window(s).start);
    const bool file = m != nullptr && m->inode != 0, shared = m != nullptr && m->shared;
    if (mask == 0 || (part != Part::kAll && shared != (part == Part::kShared))) continue;
    if (!table_.region(s).readable || file) {
      if (bounce_ == nullptr)
        bounce_ = static_cast<std::byte*>(attempt_.space.arena().allocate(table_.segment_bytes(), kPageSize));
      if (bounce_ == nullptr)
        return make_error(ExitCode::kInternal, ENOMEM, "no memory to read unreadable pages");
      CKPT_TRY(read_pages(s, file, bounce_, &mask));
      data = bounce_;
    }
    // A page of zeros in a file mapping differs from the file: it must be in the image.
    for_each_page(file ? 0 : mask, [&](uint32_t page) {
      if (page_is_zero(data + size_t{page} * kPageSize)) mask &= ~(1ull << page);
    });
    if (mask == 0) continue;
    CopiedSegment segment{s.base, mask, data, kNoBuffer};
    CKPT_TRY(attempt_.image.sink().append({&segment, 1}));
    ++attempt_.cost.sequential_copies;
  }
  attempt_.copied_ns = now_ns();
  return {};
}

// A member of a job goes on as soon as its own image is written, and writes to shared memory then: the images
// of the others must have it already, unless no member goes on before all images are complete.
Result<void> SequentialBackEnd::capture_memory() {
  if (job::session() == nullptr || job::place()->stays) return list_memory(nullptr);
  if (job::place()->streamed || job::over_hosts()) return copy_shared();
  job::session()->writes_in_stop = true;
  CKPT_TRY(list_memory(nullptr));
  left_ = Part::kPrivate;
  CKPT_TRY(write_table(Part::kShared));
  points::at("member.shared");
  return {};
}

// The stream of images begins only when all members go on; other hosts wait for a time that the writing might
// not keep.
Result<void> SequentialBackEnd::copy_shared() {
  for (Mapping& m : attempt_.capture.map.mappings()) {
    if (m.handling != Handling::kSkip) m.handling = m.shared ? Handling::kEager : Handling::kTracked;
  }
  CKPT_TRY(list_memory(&attempt_.eager));
  CKPT_TRY(attempt_.eager.copy(attempt_.capture.map, attempt_.capture.still_memory));
  // A child that is forked before the image is committed would keep them.
  hide_from_children(attempt_.eager.memory());
  return {};
}

Result<void> SequentialBackEnd::finish() {
  CKPT_TRY(attempt_.image.sink().append(attempt_.eager.segments()));
  CKPT_TRY(write_table(left_));
  points::at("still.written");
  const bool stays = job::place() != nullptr && job::place()->stays;
  if (stays) CKPT_TRY(commit_standing());
  attempt_.stop.go();
  attempt_.after_stop();
  return stays ? Result<void>() : describe_and_commit();
}

// The job may be ended at this instant, and go on elsewhere: then this does not return.
Result<void> SequentialBackEnd::commit_standing() {
  CheckpointCost& cost = attempt_.cost;
  cost.resumed_ns = now_ns();
  cost.pause_ns = cost.resumed_ns - attempt_.clock.began_ns();
  CKPT_TRY(describe_and_commit());
  if (attempt_.in_force.files) attempt_.file_saver.save_all(attempt_.space.log(), FileSaver::Time::kLast);
  return job::written(to_written_message(cost));
}

Result<void> ConcurrentBackEnd::reserve(const Room& room) {
  return attempt_.eager.make_room_for_all(room.memory.resident, attempt_.space);
}

Result<void> ConcurrentBackEnd::capture_memory() {
  for (Mapping& m : attempt_.capture.map.mappings()) {
    if (m.handling != Handling::kSkip) m.handling = Handling::kEager;
  }
  CKPT_TRY(list_memory(&attempt_.eager));
  CKPT_TRY(attempt_.eager.copy(attempt_.capture.map, attempt_.capture.still_memory));
  points::at("still.copied");
  return {};
}

Result<void> ConcurrentBackEnd::finish() {
  attempt_.copied_ns = now_ns();
  attempt_.stop.go();
  attempt_.after_stop();
  CKPT_TRY(attempt_.image.sink().append(attempt_.eager.segments()));
  points::at("still.appended");
  return describe_and_commit();
}

}  // namespace ckpt
