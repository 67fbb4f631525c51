#include "cli/image/key_option.h"

#include <memory>

#include "cli/text/failure.h"
#include "image/read/sources/reading_key.h"

namespace ckpt::cli {

void add_key_option(CLI::App* command) {
  auto file = std::make_shared<std::string>();
  command->add_option("--key-file", *file, "the key of encrypted images (default: CKPT_KEY_FILE)")
      ->option_text("FILE");
  command->parse_complete_callback([file] {
    auto used = use_key_file(*file);
    if (!used.ok()) throw CLI::RuntimeError(static_cast<int>(report(used.error())));
  });
}

}  // namespace ckpt::cli
