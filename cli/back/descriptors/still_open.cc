#include "cli/back/descriptors/still_open.h"

#include <algorithm>
#include <filesystem>

#include "base/memory/bytes.h"
#include "cli/back/descriptors/waiting_messages.h"
#include "image/format/records/fanotify_records.h"
#include "job/format/job_name.h"
#include "restart/descriptors/builder.h"

namespace ckpt::cli {

namespace {

bool same_file(const ParsedOpenFile& a, const ParsedOpenFile& b) {
  constexpr uint32_t kFixed = O_ACCMODE | O_PATH;
  const bool same_kind = a.record.kind == b.record.kind || is_channel(kind_of(a)) || is_channel(kind_of(b));
  return same_kind && a.record.device == b.record.device && a.record.inode == b.record.inode &&
         a.record.rdev == b.record.rdev && (a.record.open_flags & kFixed) == (b.record.open_flags & kFixed);
}

bool is_of_job(const std::string& image_directory) {
  const std::string whole = std::filesystem::absolute(image_directory).lexically_normal().string();
  job::ParsedJobName parsed;
  return job::parse_job_name(whole.substr(whole.rfind('/') + 1), &parsed);
}

}  // namespace

int first_descriptor(const ImageMeta& meta, uint32_t id) {
  for (const auto& d : meta.descriptors) {
    if (d.open_file == id) return d.fd;
  }
  return -1;
}

std::vector<std::byte> content_of(const ImageMeta& meta, uint32_t id) {
  std::vector<std::byte> all;
  for (const auto& c : meta.contents) {
    if (c.record.open_file == id) all.insert(all.end(), c.bytes.begin(), c.bytes.end());
  }
  return all;
}

StillOpenFiles::StillOpenFiles(const ImageMeta& then, const ImageMeta& now,
                               const std::set<uint32_t>& with_others, const std::string& image_directory,
                               const ReplacedFiles& replaced)
    : then_(then), now_(now), with_others_(with_others), of_job_(is_of_job(image_directory)) {
  find_same(replaced);
  drop_broken_pairs();
}

const StillOpenFiles::File* StillOpenFiles::find(uint32_t id) const {
  const auto found = files_.find(id);
  return found == files_.end() ? nullptr : &found->second;
}

void StillOpenFiles::find_same(const ReplacedFiles& replaced) {
  std::map<int, const DescriptorRecord*> now_at;
  for (const auto& d : now_.descriptors) now_at[d.fd] = &d;
  std::set<uint32_t> taken;
  for (const auto& f : then_.open_files) {
    // What watches files is made anew: the events that wait in it came after the checkpoint.
    if (watches_files(kind_of(f)) || replaced.contains(f.record.id)) continue;
    for (const auto& d : then_.descriptors) {
      if (d.open_file != f.record.id) continue;
      const auto at = now_at.find(d.fd);
      if (at == now_at.end() || taken.count(at->second->open_file) != 0) continue;
      const ParsedOpenFile* is = now_.open_file(at->second->open_file);
      if (is == nullptr || !same_file(f, *is)) continue;
      taken.insert(is->record.id);
      files_[f.record.id] = {is, d.fd};
      break;
    }
  }
}

// A pipe or pair of which one end was closed is made again whole: the end that is left leads nowhere.
void StillOpenFiles::drop_broken_pairs() {
  std::set<uint64_t> broken;  // objects
  for (const auto& f : then_.open_files) {
    if (!is_pair(kind_of(f)) || leads_outside(f) || with_others_.count(f.record.id) != 0) continue;
    bool all = true;
    for (const auto& other : then_.open_files) {
      const bool belongs = other.record.object == f.record.object ||
                           (f.record.value != 0 && other.record.object == f.record.value);
      all = all && (!belongs || find(other.record.id) != nullptr);
    }
    const File* file = find(f.record.id);
    const bool same = kind_of(f) != OpenFileKind::kSocketPair ||
                      (file != nullptr && what_waits(f, *file->now) == Waits::kTheSame);
    if (!all || !same) broken.insert(f.record.object);
  }
  for (const auto& f : then_.open_files) {
    if (broken.count(f.record.object) != 0 && is_pair(kind_of(f))) {
      files_.erase(f.record.id);
      if (f.record.value != 0) broken.insert(f.record.value);
    }
  }
  for (const auto& f : then_.open_files) {
    if (kind_of(f) == OpenFileKind::kSocketPair && broken.count(f.record.object) != 0)
      files_.erase(f.record.id);
  }
}

bool StillOpenFiles::leads_outside(const ParsedOpenFile& f) const {
  bool outside = false;
  for_each_detail<SocketLinkDetail>(f, OpenFileDetail::kSocketLink, [&](const SocketLinkDetail& l, Blob) {
    outside = (l.flags & kLinkOutside) != 0;
  });
  constexpr uint32_t kBoth = kOpenFilePipeReadEnd | kOpenFilePipeWriteEnd;
  if (kind_of(f) != OpenFileKind::kPipe || !of_job_) return outside;
  uint32_t ends = 0;
  for (const auto& other : then_.open_files) {
    if (kind_of(other) == OpenFileKind::kPipe && other.record.object == f.record.object)
      ends |= other.record.flags & kBoth;
  }
  // In an image of a job, `value` other than 0 says that the other end was closed.
  return ends != kBoth && f.record.value == 0;
}

namespace {

// The messages that the bytes in a row do not tell: of a stream, which has no borders, only those with
// descriptors.
std::vector<WaitingMessage> beside_bytes(const ImageMeta& meta, const ParsedOpenFile& file) {
  bool stream = false;
  for_each_detail<SocketDetail>(file, OpenFileDetail::kSocket,
                                [&](const SocketDetail& s, Blob) { stream = s.type == SOCK_STREAM; });
  auto messages = waiting_messages(meta, file);
  if (stream) std::erase_if(messages, [](const WaitingMessage& m) { return m.files.empty(); });
  for (WaitingMessage& m : messages) {
    m.bytes.clear();
    m.detail.flags = 0;
    if (stream) m.detail.length = 0;
  }
  return messages;
}

}  // namespace

bool StillOpenFiles::same_content(const ParsedOpenFile& f) const {
  const File* file = find(f.record.id);
  return file != nullptr && content_of(then_, f.record.id) == content_of(now_, file->now->record.id);
}

StillOpenFiles::Waits StillOpenFiles::what_waits(const ParsedOpenFile& f, const ParsedOpenFile& is) const {
  const auto was = content_of(then_, f.record.id), now = content_of(now_, is.record.id);
  const auto messages_was = beside_bytes(then_, f), messages_now = beside_bytes(now_, is);
  if (was == now && messages_was == messages_now) return Waits::kTheSame;
  const auto begins_with = [](const auto& all, const auto& first) {
    return first.size() <= all.size() && std::equal(first.begin(), first.end(), all.begin());
  };
  return begins_with(now, was) && begins_with(messages_now, messages_was) ? Waits::kMore : Waits::kOther;
}

}  // namespace ckpt::cli
