#include "restart/descriptors/saved_mappings.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "image/format/saved_file_names.h"
#include "restart/descriptors/old_names.h"
#include "restart/files/vanished_file.h"

namespace ckpt {

namespace {

bool is_of_file(const ParsedMapping& m) {
  const auto kind = static_cast<MappingKind>(m.record.kind);
  return (kind == MappingKind::kFilePrivate || kind == MappingKind::kFileShared) &&
         (m.record.flags & kMapFileDeleted) == 0 && m.path.starts_with('/');
}

// By its size, and the time of its last change.
bool has_contents_of(const MappingRecord& r, const struct stat& st) {
  return S_ISREG(st.st_mode) && static_cast<uint64_t>(st.st_size) == r.object_size && r.file_mtime_ns != 0 &&
         int64_t{st.st_mtim.tv_sec} * 1'000'000'000 + st.st_mtim.tv_nsec == r.file_mtime_ns;
}

}  // namespace

void add_written_files(const ImageMeta& meta, WrittenFiles& files) {
  for (const ParsedMapping& m : meta.mappings) {
    if (static_cast<MappingKind>(m.record.kind) == MappingKind::kFileShared &&
        (m.record.flags & kMapMayWrite) != 0)
      files.emplace(m.path);
  }
}

void add_shared_files(const ImageMeta& meta, SharedFiles& files) {
  add_written_files(meta, files.written);
  for (const ParsedMapping& m : meta.mappings) {
    if (is_filled_by_mapping(m) && can_be_made_again(m)) files.in_image.emplace(m.path);
  }
}

std::string SavedMappings::of(const ParsedMapping& m) const {
  if (directory.empty() || !is_of_file(m) || shared.in_image.count(m.path) != 0) return {};
  const MappingRecord& r = m.record;
  const auto kept_as = [&](bool copy) {
    return directory + "/" + saved_file_name(r.device, r.inode, copy).text;
  };
  struct stat now, kept;
  const bool there = stat(std::string(m.path).c_str(), &now) == 0;
  if (there ? shared.written.count(m.path) != 0 : errno != ENOENT) return {};
  std::string link = kept_as(false);
  // Not its device: since a reboot the file system may have another number.
  if (lstat(link.c_str(), &kept) == 0 && S_ISREG(kept.st_mode) && kept.st_ino == r.inode) {
    const bool is_same = there && now.st_dev == kept.st_dev && now.st_ino == kept.st_ino;
    return !there || (!is_same && has_contents_of(r, kept)) ? link : std::string();
  }
  std::string copy = kept_as(true);
  return !there && lstat(copy.c_str(), &kept) == 0 && has_contents_of(r, kept) ? copy : std::string();
}

void put_back_mapped_files(const ImageMeta& meta, const SavedMappings& saved,
                           const std::function<void(std::string_view)>& say) {
  std::set<std::string_view> done;
  for (const ParsedMapping& m : meta.mappings) {
    if (!done.insert(m.path).second) continue;
    const std::string kept = saved.of(m), path(m.path);
    struct stat st;
    if (kept.empty() || lstat(path.c_str(), &st) == 0 || lstat(kept.c_str(), &st) != 0) continue;
    std::string why_not;
    if (auto opened = open_directory_of(path, meta.process.record); !opened.ok()) {
      why_not = opened.error().message();
    } else {
      const ScopedFd above(*opened);
      const std::string name = path.substr(path.rfind('/') + 1);
      const bool back =
          kept.ends_with(kSavedCopySuffix)
              ? copy_file(kept, fmt::format("/proc/self/fd/{}/{}", above.get(), name), st.st_mode)
              : linkat(AT_FDCWD, kept.c_str(), above.get(), name.c_str(), 0) == 0;
      if (!back) why_not = errno_name(errno);
    }
    if (say && why_not.empty()) {
      say(fmt::format(
          "{} was gone: it is there again{}", path,
          !kept.ends_with(kSavedCopySuffix) && st.st_nlink > 1 ? ", beside another name that it has" : ""));
    } else if (say) {
      say(fmt::format("{} was gone and cannot get its name back ({})", path, why_not));
    }
  }
}

}  // namespace ckpt
