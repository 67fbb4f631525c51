#include "timewarp/state/non_blocking.h"

namespace ckpt::timewarp {

std::unique_ptr<NonBlocking> make_non_blocking(const ckpt_tw_options&, size_t, uint32_t, std::string* why) {
  *why = "non-blocking copies: not built";
  return nullptr;
}

}  // namespace ckpt::timewarp
