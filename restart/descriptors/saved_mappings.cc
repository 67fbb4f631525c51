#include "restart/descriptors/saved_mappings.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "image/format/saved_file_names.h"
#include "restart/descriptors/old_names.h"

namespace ckpt {

namespace {

bool is_of_file(const ParsedMapping& m) {
  const auto kind = static_cast<MappingKind>(m.record.kind);
  return (kind == MappingKind::kFilePrivate || kind == MappingKind::kFileShared) &&
         (m.record.flags & kMapFileDeleted) == 0 && m.path.starts_with('/');
}

// Only one of the contents at the checkpoint.
bool is_its_copy(const MappingRecord& r, const struct stat& st) {
  return S_ISREG(st.st_mode) && static_cast<uint64_t>(st.st_size) == r.object_size && r.file_mtime_ns != 0 &&
         int64_t{st.st_mtim.tv_sec} * 1'000'000'000 + st.st_mtim.tv_nsec == r.file_mtime_ns;
}

}  // namespace

std::string SavedMappings::of(const ParsedMapping& m) const {
  if (directory.empty() || !is_of_file(m) || can_be_made_again(m) || returning.count(m.path) != 0) return {};
  const MappingRecord& r = m.record;
  const auto kept_as = [&](bool copy) {
    return directory + "/" + saved_file_name(r.device, r.inode, copy).text;
  };
  struct stat now, kept;
  const bool there = stat(std::string(m.path).c_str(), &now) == 0;
  if (!there && errno != ENOENT) return {};
  std::string link = kept_as(false);
  // Not its device: since a reboot the file system may have another number.
  if (lstat(link.c_str(), &kept) == 0 && S_ISREG(kept.st_mode) && kept.st_ino == r.inode)
    return there && now.st_dev == kept.st_dev && now.st_ino == kept.st_ino ? std::string() : link;
  std::string copy = kept_as(true);
  return !there && lstat(copy.c_str(), &kept) == 0 && is_its_copy(r, kept) ? copy : std::string();
}

Result<void> put_back_mapped_files(const ImageMeta& meta, const SavedMappings& saved,
                                   const std::function<void(std::string_view)>& say) {
  for (const ParsedMapping& m : meta.mappings) {
    const std::string kept = saved.of(m), path(m.path);
    struct stat st;
    if (kept.empty() || lstat(path.c_str(), &st) == 0 || lstat(kept.c_str(), &st) != 0) continue;
    auto opened = open_directory_of(path, meta.process.record);
    if (!opened.ok()) return opened.error();
    const ScopedFd above(*opened);
    const std::string name = path.substr(path.rfind('/') + 1);
    const bool is_copy = kept.ends_with(kSavedCopySuffix);
    if (is_copy ? copy_file(kept, fmt::format("/proc/self/fd/{}/{}", above.get(), name), st.st_mode)
                : linkat(AT_FDCWD, kept.c_str(), above.get(), name.c_str(), 0) == 0) {
      if (say) say(fmt::format("{} was gone: it is there again", path));
      continue;
    }
    // A link is mapped as it is.
    if (is_copy)
      return make_error(ExitCode::kFileChanged, errno,
                        "{}, which the program had mapped, is gone and cannot be made again ({})", path,
                        errno_name(errno));
    if (say) say(fmt::format("{} was gone and cannot get its name back ({})", path, errno_name(errno)));
  }
  return {};
}

}  // namespace ckpt
