// What is kept beside an image of files that the program had open: a directory with the image's name and
// ".files" in place of ".ckpt", in it one name for each file.
//
// Owner:     image. Header only. Callers: both halves; in the victim too: no allocation.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <string_view>

namespace ckpt {

inline constexpr std::string_view kImageSuffix = ".ckpt", kSavedFilesSuffix = ".files",
                                  kSavedCopySuffix = ".copy";

// Instead of an image's name: what the members of a job have together.
inline constexpr const char* kJobSavedFiles = "job.ckpt";

struct SavedFileName {
  char text[300] = {};  // NUL-terminated; empty: the image has no such name
};

// image: its name or path.
inline SavedFileName saved_files_directory_of(std::string_view image) {
  SavedFileName name;
  if (!image.ends_with(kImageSuffix)) return name;
  image.remove_suffix(kImageSuffix.size());
  image.remove_prefix(image.rfind('/') + 1);
  *fmt::format_to_n(name.text, sizeof(name.text) - 1, "{}{}", image, kSavedFilesSuffix).out = '\0';
  return name;
}

// A hard link to the file, or a copy of it: which has its size and the time of its last change.
inline SavedFileName saved_file_name(uint64_t device, uint64_t inode, bool copy) {
  SavedFileName name;
  *fmt::format_to_n(name.text, sizeof(name.text) - 1, "{:x}-{}{}", device, inode,
                    copy ? kSavedCopySuffix : "")
       .out = '\0';
  return name;
}

// Copies that are under way, or whose maker has ended. pid 0: one process makes it for all that share the
// directory; else it is the process's own.
inline constexpr std::string_view kCopyUnderWaySuffix = ".tmp";

inline SavedFileName copy_under_way(const SavedFileName& copy, int pid) {
  SavedFileName name;
  constexpr size_t kRoom = sizeof(name.text) - 1;
  auto end = fmt::format_to_n(name.text, kRoom, "{}", copy.text).out;
  const auto room = [&] { return kRoom - static_cast<size_t>(end - name.text); };
  if (pid != 0) end = fmt::format_to_n(end, room(), ".{}", pid).out;
  *fmt::format_to_n(end, room(), "{}", kCopyUnderWaySuffix).out = '\0';
  return name;
}

// A symbolic link beside the link to a file that nobody had open: it says by which name the file was known.
// Its target is that name, behind one of two characters. Nobody follows it.
inline constexpr std::string_view kSavedNameSuffix = ".name";
inline constexpr char kSavedOneName = '1', kSavedManyNames = 'n';

inline SavedFileName saved_name_file(uint64_t device, uint64_t inode) {
  SavedFileName name;
  *fmt::format_to_n(name.text, sizeof(name.text) - 1, "{:x}-{}{}", device, inode, kSavedNameSuffix).out =
      '\0';
  return name;
}

}  // namespace ckpt
