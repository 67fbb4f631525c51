#include "image/write/directory/saved_files.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>

#include <cstring>

#include "base/files/directory_scan.h"
#include "base/raii_fd.h"
#include "base/sys.h"
#include "image/format/image_name.h"
#include "image/format/saved_file_names.h"
#include "base/preload_rules.h"

namespace ckpt {

namespace {

bool is_there(int dir_fd, const char* name) { return sys::call(__NR_faccessat, dir_fd, name, 0L) == 0; }

}  // namespace

void remove_saved_files(int dir_fd, const char* image) {
  const SavedFileName name = saved_files_directory_of(image);
  if (name.text[0] == '\0') return;
  const ScopedFd saved(static_cast<int>(
      sys::call(__NR_openat, dir_fd, name.text, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0L)));
  if (!saved.valid()) return;
  // A directory may leave entries out while some are removed.
  for (bool some = true; some;) {
    some = false;
    scan_directory(saved.get(), [&](std::string_view entry) {
      if (entry != "." && entry != "..") some |= sys::call(__NR_unlinkat, saved.get(), entry.data(), 0L) == 0;
    });
  }
  sys::call(__NR_unlinkat, dir_fd, name.text, static_cast<long>(AT_REMOVEDIR));
}

uint32_t count_saved_links(int dir_fd, bool in_job, uint64_t device, uint64_t inode) {
  uint32_t count = 0;
  const SavedFileName link = saved_file_name(device, inode, false),
                      of_job = saved_files_directory_of(kJobSavedFiles);
  auto look = [&](int at, std::string_view directory, std::string_view saved) {
    char path[600];
    auto end = fmt::format_to_n(path, sizeof(path) - 1, "{}/{}/{}", directory, saved, link.text);
    if (end.size >= sizeof(path)) return;
    *end.out = '\0';
    if (is_there(at, path)) ++count;
  };
  // Opened here: the members of a job have dir_fd together, and with it the place up to which it was read.
  const ScopedFd images(static_cast<int>(sys::call(__NR_openat, dir_fd, in_job ? ".." : ".",
                                                   O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0L)));
  if (!images.valid()) {  // a member of another user may not list them
    if (in_job) look(dir_fd, ".", of_job.text);
    return count;
  }
  scan_directory(images.get(), [&](std::string_view entry) {
    if (entry.ends_with(kSavedFilesSuffix)) look(images.get(), ".", entry);
    if (entry.ends_with(".job") || entry.ends_with(".job.tmp")) look(images.get(), entry, of_job.text);
  });
  return count;
}

void remove_orphaned_saved_files(int dir_fd) {
  scan_directory(dir_fd, [&](std::string_view entry) {
    char image[300];
    if (!entry.ends_with(kSavedFilesSuffix) || entry.size() + sizeof(".tmp") >= sizeof(image)) return;
    const size_t stem = entry.size() - kSavedFilesSuffix.size();
    std::memcpy(image, entry.data(), stem);
    std::memcpy(image + stem, ".ckpt.tmp", sizeof(".ckpt.tmp"));
    if (is_there(dir_fd, image)) return;
    image[stem + kImageSuffix.size()] = '\0';
    ParsedImageName parsed;
    if (is_there(dir_fd, image) || !parse_image_name(image, &parsed)) return;
    // A program that lives may be about to write the image: it has the directory locked
    // (SavedFilesDirectory). That program may have published the image and taken the lock away since we
    // looked. Without locks nobody can tell.
    const ScopedFd saved(static_cast<int>(
        sys::call(__NR_openat, dir_fd, entry.data(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0L)));
    if (!saved.valid() ||
        sys::failed(sys::call(__NR_flock, saved.get(), static_cast<long>(LOCK_EX | LOCK_NB))))
      return;
    if (!is_there(dir_fd, image)) remove_saved_files(dir_fd, image);
  });
}

}  // namespace ckpt
