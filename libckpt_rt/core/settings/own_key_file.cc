#include "libckpt_rt/core/settings/own_key_file.h"

#include <fmt/core.h>

#include <cstring>

#include "base/memory/fork_path.h"
#include "base/memory/large_table.h"
#include "base/sys.h"
#include "image/format/encryption/image_key.h"
#include "libckpt_rt/core/settings/user_settings.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::own_key_file {

namespace {

CKPT_LARGE_TABLE constinit char absolute[2100] = {};

}  // namespace

const char* path() { return absolute; }

CKPT_START_PATH void choose() {
  const char* wanted = user_settings().key_file;
  if (wanted[0] == '\0') return;
  char cwd[1024] = {};
  if (wanted[0] != '/') {
    const long n = sys::call(__NR_getcwd, cwd, sizeof(cwd) - 1);
    if (n <= 0) cwd[0] = '\0';
    std::strcat(cwd, "/");
  }
  *fmt::format_to_n(absolute, sizeof(absolute) - 1, "{}{}", static_cast<const char*>(cwd), wanted).out = '\0';
  prepare_ciphers();
}

}  // namespace ckpt::own_key_file
