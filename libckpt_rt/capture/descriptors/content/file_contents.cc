#include "libckpt_rt/capture/descriptors/content/file_contents.h"

#include <algorithm>
#include <string_view>

#include "libckpt_rt/core/preload_rules.h"

// Small files are copied in the stop. Large ones are copied while the program still runs, and again in the
// stop if they have changed.

namespace ckpt {
namespace {

constexpr uint64_t kEarlyBytes = 256 << 10;

// With a name in /dev/shm, which the program may remove at any time. Larger ones are mapped, as a rule, and
// their memory is in the image.
bool is_small_shared_memory(const CapturedDescriptor& d) {
  constexpr std::string_view kPlace = "/dev/shm/";
  constexpr uint64_t kSmall = 64 << 10;
  const std::string_view path(d.path, d.path_len);
  return d.kind == OpenFileKind::kRegular && (d.flags & kOpenFileDeleted) == 0 && d.now.size <= kSmall &&
         path.starts_with(kPlace) && path.find('/', kPlace.size()) == path.npos;
}

bool has_no_name(const CapturedDescriptor& d) {
  return d.kind == OpenFileKind::kRegular && !S_ISLNK(d.now.mode) && (d.flags & kOpenFileDeleted) != 0;
}

}  // namespace

void FileContents::begin(Arena& arena) {
  attributes_.forget();
  early_.begin(arena);
  queues_.begin(arena);
}

Result<void> FileContents::copy_ahead() {
  uint64_t room = named_.begin(), being_written = 0;
  reader_.forget();
  for (size_t i = 0; i < files_.order().size(); ++i) {
    const CapturedDescriptor& d = files_.in_order(i);
    if (!files_.begins_inode(i)) continue;  // another open of the same file
    const bool nameless = has_no_name(d);
    if (nameless ? d.now.size < kEarlyBytes : !named_.may_overwrite(i)) continue;
    const uint64_t bytes = nameless ? d.now.size : named_.bytes_ahead(i);
    if (!nameless && bytes > room) continue;
    Result<bool> copied = early_.copy(d, nameless ? FileReader::kAny : room);
    if (!copied.ok()) return copied.error();
    if (nameless) continue;
    room -= bytes;
    if (!*copied) being_written += bytes;
  }
  if (being_written != 0) reader_.get_memory_ahead(being_written);
  return {};
}

void FileContents::number_contents(size_t from, uint32_t open_file) {
  for (size_t c = from; c < contents_.size(); ++c) contents_[c].open_file = open_file;
}

// Of a file with a name. Without them the file is as it will be.
bool FileContents::copy_named(size_t first_in_order, bool whole, uint64_t most) {
  const CapturedDescriptor& d = files_.in_order(first_in_order);
  const size_t before = contents_.size();
  // sem_open(3), for example, removes the name that its file had at first.
  bool had = early_.take(d, contents_);
  if (!had) {
    contents_.truncate(before);
    had = reader_.copy(d, contents_, most).ok();
  }
  if (!had) {
    contents_.truncate(before);
    return false;
  }
  for (const uint32_t k : files_.same_inode(first_in_order))
    files_.entries()[k].flags |= kOpenFileContents | (whole ? kOpenFileWhole : 0u);
  number_contents(before, d.open_file);
  return true;
}

bool FileContents::copy_sparse(size_t first_in_order) {
  const size_t before = contents_.size();
  if (!copy_named(first_in_order, true, named_.room())) return false;
  uint64_t bytes = 0;
  for (size_t c = before; c < contents_.size(); ++c) bytes += contents_[c].length;
  return named_.take_room(std::min(bytes, named_.room()));
}

Result<void> FileContents::copy_nameless(CapturedDescriptor& d) {
  const size_t before = contents_.size();
  if (d.now.size == 0 || early_.take(d, contents_)) return {};
  contents_.truncate(before);
  const Result<void> copied = reader_.copy(d, contents_);
  number_contents(before, d.open_file);
  return copied;
}

Result<void> FileContents::copy_stopped() {
  size_t too_long = 0;
  const CapturedDescriptor* first_too_long = nullptr;
  for (size_t i = 0; i < files_.order().size(); ++i) {
    CapturedDescriptor& d = files_.in_order(i);
    if (!files_.begins_inode(i)) continue;
    Result<void> copied;
    const size_t before = contents_.size();
    if (d.kind == OpenFileKind::kPipe || d.kind == OpenFileKind::kFifo) {
      copied = pipes_.copy(i, contents_);
    } else if (d.kind == OpenFileKind::kMessageQueue) {
      CKPT_TRY(queues_.copy(i, contents_));
      continue;
    } else if (const bool changes = named_.may_overwrite(i); changes && named_.is_sparse(i)) {
      if (!copy_sparse(i) && ++too_long == 1) first_too_long = &d;
      continue;
    } else if (const bool whole = changes && named_.take_room(d.now.size);
               whole || is_small_shared_memory(d)) {
      copy_named(i, whole);
      continue;
    } else if (changes) {
      if (++too_long == 1) first_too_long = &d;
    } else if (d.kind == OpenFileKind::kMemfd || has_no_name(d)) {
      CKPT_TRY(attributes_.take(d));
      copied = copy_nameless(d);
    }
    if (copied) continue;
    contents_.truncate(before);
    CKPT_TRY(notes_.add(kChanged,
                        "descriptor {} ({}): its {} bytes cannot be read ({}); after restart it gives errors",
                        d.fd, d.path, d.now.size, copied.error().message()));
    // All that lead to this inode.
    for (const uint32_t k : files_.same_inode(i)) files_.entries()[k].kind = OpenFileKind::kOther;
  }
  pipes_.close();
  return too_long == 0 ? Result<void>() : NamedFiles::note_too_long(notes_, too_long, *first_too_long);
}

}  // namespace ckpt
