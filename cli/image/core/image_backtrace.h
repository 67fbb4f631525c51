// Backtraces of an image's threads, from its memory and the files that were mapped.
//
// Owner:     cli. Ordinary code, one thread. elfutils' libdwfl does the work.
// A file that is gone or no longer the one that was mapped (build id) is left out: frames in it have
// no names, and below one of them the backtrace may end.
// Callers:   `ckpt show`.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "image/read/saved_memory.h"

namespace ckpt::cli {

struct Frame {
  uint64_t ip = 0;
  std::string function;  // demangled; empty if unknown
  uint64_t offset = 0;   // into the function
  std::string module;    // file name without directories, or ""
  uint64_t module_offset = 0;
  std::string source;  // "file.c:12", where there is debugging information
};

class ImageBacktrace {
 public:
  // Image and memory must outlive this.
  ImageBacktrace(const ImageChain& image, SavedMemory& memory);
  ~ImageBacktrace();
  ImageBacktrace(const ImageBacktrace&) = delete;
  ImageBacktrace& operator=(const ImageBacktrace&) = delete;

  // Innermost first, at most `limit`. Empty: a thread without registers.
  std::vector<Frame> of(const ParsedThread& thread, size_t limit);
  // Did the thread stand in a system call? Then it waited; otherwise it ran.
  bool was_in_system_call(const ParsedThread& thread);
  // Files that were left out, with the reason: "/lib/x.so: is another file now".
  const std::vector<std::string>& left_out() const { return left_out_; }

 private:
  struct Session;
  void report_modules();
  std::unique_ptr<Session> session_;
  std::vector<std::string> left_out_;
};

}  // namespace ckpt::cli
