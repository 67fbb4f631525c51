#include "libckpt_rt/capture/descriptors/kinds/file_names.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statfs.h>

#include <cstring>

#include "image/format/object_number.h"
#include "image/write/directory/saved_files.h"
#include "libckpt_rt/capture/descriptors/kinds/file_systems.h"
#include "libckpt_rt/capture/memory/other_name.h"
#include "libckpt_rt/core/kernel/descriptor_info.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {
namespace {

constexpr std::string_view kDeletedSuffix = " (deleted)";

}  // namespace

Result<void> FileNames::read_path(CapturedDescriptor& d) {
  long n = read_link(access_.tid_of(d), d.fd, access_.text().data(), 8192);
  if (n == -ENOENT) d.looked = false;  // closed, perhaps for a moment: the stop looks again
  std::string_view link =
      n < 0 ? std::string_view("(path too long)") : std::string_view(access_.text().data(), n);
  d.named = false;
  if (link.starts_with('/')) {
    struct stat st;
    long r = sys::call(__NR_newfstatat, AT_FDCWD, access_.text().data(), &st,
                       S_ISLNK(d.now.mode) ? AT_SYMLINK_NOFOLLOW : 0);
    d.named = r == 0 && st.st_dev == d.now.device && st.st_ino == d.now.inode;
  }
  if (!d.named && d.now.links > 0 && (S_ISREG(d.now.mode) || S_ISFIFO(d.now.mode)) && link.starts_with('/')) {
    std::string_view removed = link;
    if (removed.ends_with(kDeletedSuffix)) removed.remove_suffix(kDeletedSuffix.size());
    if (take_other_name(d, removed)) return {};
  }
  if (!d.named && link.ends_with(kDeletedSuffix)) link.remove_suffix(kDeletedSuffix.size());
  if (d.path_len == link.size() && std::memcmp(d.path, link.data(), link.size()) == 0) return {};
  char* copy = static_cast<char*>(files_.arena().allocate(link.size() + 1, 1));
  if (copy == nullptr) return arena_full(files_.arena());
  std::memcpy(copy, link.data(), link.size());
  copy[link.size()] = '\0';
  d.path = copy;
  d.path_len = static_cast<uint32_t>(link.size());
  return {};
}

bool FileNames::has_names_of_others(const CapturedDescriptor& d) const {
  return d.now.links >
         (saved_files_ < 0 ? 0 : count_saved_links(saved_files_, saved_in_job_, d.now.device, d.now.inode));
}

bool FileNames::has_one_name(const CapturedDescriptor& d) const {
  if (d.kind != OpenFileKind::kRegular || !d.named || (d.flags & kOpenFileDeleted) != 0) return false;
  if (d.now.links <= 1 || saved_files_ < 0) return d.now.links == 1;
  return d.now.links <= 1 + count_saved_links(saved_files_, saved_in_job_, d.now.device, d.now.inode);
}

// Its first name was removed, it still has another.
bool FileNames::take_other_name(CapturedDescriptor& d, std::string_view removed) {
  auto take = [&](const char* name, uint32_t length) {
    d.other_name = d.path = name;
    d.other_name_len = d.path_len = length;
    return d.named = true;
  };
  if (d.other_name != nullptr && is_name_of(d.other_name, d.now.device, d.now.inode))
    return take(d.other_name, d.other_name_len);
  for (const auto& other : files_.entries()) {
    if (other.named && other.now.inode == d.now.inode && other.now.device == d.now.device &&
        is_name_of(other.path, d.now.device, d.now.inode))
      return take(other.path, other.path_len);
  }
  struct statfs fs {};
  if (access_.stands() || !has_names_of_others(d) ||
      sys::call(__NR_statfs, TaskPath(access_.tid(), "fd", d.fd).c_str(), &fs) != 0 ||
      has_volatile_inodes(fs.f_type) || has_no_bytes(fs.f_type)) {
    return false;
  }
  char found[4096];
  const size_t length = find_other_name(removed, d.now.device, d.now.inode, found);
  if (length == 0) return false;
  char* copy = static_cast<char*>(files_.arena().allocate(length + 1, 1));
  if (copy == nullptr) return false;
  std::memcpy(copy, found, length + 1);
  return take(copy, static_cast<uint32_t>(length));
}

// Of many files: one that is elsewhere now had been renamed before the stop, or was after it.
void FileNames::refresh_paths() {
  for (auto& d : files_.entries()) {
    if (!d.path_in_doubt || !d.named) continue;
    CapturedDescriptor now = d;
    if (read_path(now).ok() && now.named) d = now;
  }
}

// Files that lost the name by which they were opened just ahead of the stop, or whose other name moved: such
// a file is saved as one without a name, unless a name is found now.
void FileNames::find_late_names(DescriptorContents& contents, DescriptorNotes& notes) {
  for (auto& d : files_.entries()) {
    if ((d.flags & kOpenFileDeleted) == 0 || d.now.links == 0 || d.kind == OpenFileKind::kOther) continue;
    if (d.kind == OpenFileKind::kRegular && take_other_name(d, std::string_view(d.path, d.path_len))) {
      d.flags &= ~static_cast<uint32_t>(kOpenFileDeleted);
      const uint64_t object = object_number(d.now.device, d.now.inode);
      for (DescriptorContent& content : contents) {
        if (content.object == object) content.length = 0;
      }
    } else if (!d.shares && has_names_of_others(d)) {
      (void)notes.add(
          kChanged,
          "descriptor {} ({}): it has another name, which was not found, or something is mounted over "
          "its name: after a restart it is a copy of its own, and what is written to one is not in the "
          "other",
          d.fd, d.path);
    }
  }
}

}  // namespace ckpt
