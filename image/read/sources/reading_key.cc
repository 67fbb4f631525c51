#include "image/read/sources/reading_key.h"

#include <stdlib.h>

namespace ckpt {

namespace {
constinit ImageKey key{};
constinit bool has_key = false;
}  // namespace

Result<void> use_key_file(const std::string& path) {
  const char* variable = getenv("CKPT_KEY_FILE");
  const std::string file = !path.empty() ? path : variable != nullptr ? variable : "";
  if (file.empty()) return {};
  prepare_ciphers();
  CKPT_TRY(read_key_file(file.c_str(), key));
  has_key = true;
  return {};
}

const ImageKey* reading_key() { return has_key ? &key : nullptr; }

void forget_reading_key() {
  wipe(&key, sizeof(key));
  has_key = false;
}

}  // namespace ckpt
