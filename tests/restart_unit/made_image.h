// Images made up by hand, and ckpt-restart run on them.
//
// Owner: tests/restart_unit.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "guest.h"
#include "image/write/direct_sink.h"
#include "image/write/meta_writer.h"

namespace ckpt {

struct MadeMapping {
  MappingRecord record{};
  std::string path;
  std::vector<std::byte> build_id;
  std::string bytes;  // from the mapping's start on; pages of zeros are left out
};

// A guest that runs steps, with whatever mappings a test adds. Addresses are far from everything.
class MadeImage {
 public:
  static constexpr uint64_t kCode = 0x10'0000'0000, kSteps = 0x10'0010'0000, kTexts = 0x10'0020'0000;
  MadeImage();

  ProcessRecord process{};
  MmRecord mm{};
  ResourceLimitsRecord limits{};
  std::string cwd = "/tmp", exe;
  std::vector<int> more_threads;
  Codec codec = Codec::kNone;
  std::string vdso_code;  // saved with the image; empty: not

  MadeMapping& add(uint64_t start, uint64_t end, uint32_t prot, MappingKind kind, std::string bytes = {});
  void step(GuestOp op, uint32_t value = 0, uint64_t address = 0, uint64_t length = 0);
  void cat(const std::string& path) { step(GuestOp::kCat, 0, text(path)); }
  uint64_t text(const std::string& text);  // address of a copy
  // Writes the image; path of the file.
  std::string write(const std::string& directory);

 private:
  std::vector<MadeMapping> mappings_;
  std::vector<GuestStep> steps_;
  std::string texts_;
};

struct RunResult {
  int status = 0;  // as waitpid gives it
  std::string out, err;
  int exit_code() const;
};
// before_exec: in the process that becomes ckpt-restart.
RunResult run_restart(std::vector<std::string> arguments, const std::string& input = {},
                      const std::function<void()>& before_exec = {});
// A seccomp filter of the calling process's own: from now on ioctl(fd, request) fails with `error`.
void refuse_ioctl(unsigned long request, int error);
// The same of mmap with this type (of MAP_TYPE).
void refuse_mmap(int type, int error);

// A pid that nothing has.
int free_pid();

}  // namespace ckpt
