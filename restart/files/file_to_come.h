// A file, directory or FIFO that a restart makes again under the name that the program knows: it gets that
// name when it is complete, and is nowhere, or under another name, until then. So a restart that is killed
// meanwhile leaves nothing that the next one, or somebody else, takes for it.
//
// Owner:     restart/files. Callers: what puts files back (vanished_file.cc; saved_files.cc, old_names.cc,
//            changed_files.cc of descriptors/).
// Never:     replaces what has the name already.
#pragma once

#include <sys/types.h>

#include <string>

#include "base/raii_fd.h"

namespace ckpt {

class FileToCome {
 public:
  // In a directory, which stays open; name: without a slash. After an error errno says why.
  static FileToCome regular(int directory, const std::string& name);
  static FileToCome folder(int directory, const std::string& name);  // fd(): open for reading
  static FileToCome fifo(int directory, const std::string& name);    // fd(): O_PATH
  // By its path.
  static FileToCome regular(const std::string& path);

  FileToCome(FileToCome&& other) noexcept;
  FileToCome& operator=(FileToCome&&) = delete;
  ~FileToCome();

  bool valid() const { return fd_.valid(); }
  int fd() const { return fd_.get(); }
  // Another name in the same directory, since the one asked for is taken.
  void ask_for(const std::string& name) { name_ = name; }
  // Gives it its name. False: errno says why; EEXIST: the name is taken.
  bool take_name();

 private:
  FileToCome();
  int directory() const { return own_directory_.valid() ? own_directory_.get() : directory_; }
  void make_regular();

  int directory_ = -1;
  ScopedFd own_directory_, fd_;
  std::string name_, passing_;
  bool has_passing_name_ = false, is_folder_ = false;
};

// A name beside `path`, that nobody has, for a file that is to replace it.
std::string passing_name_beside(const std::string& path);

}  // namespace ckpt
