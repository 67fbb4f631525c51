#include "restart/output.h"

#include <unistd.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "image/read/sources/keeper_images.h"

namespace ckpt {
namespace {

using Json = nlohmann::json;

// Is how far a check is on the terminal's last line?
constinit bool progress_is_shown = false;

void clear_progress() {
  if (progress_is_shown) std::fprintf(stderr, "\r\033[K");
  progress_is_shown = false;
}

}  // namespace

int finish_with_error(const RestartOptions& options, const Error& error) {
  clear_progress();
  if (options.json) {
    Json j{{"ok", false},
           {"error", with_keepers_named(error.message())},
           {"exit_code", static_cast<int>(error.code)}};
    std::fprintf(options.check ? stdout : stderr, "%s\n",
                 j.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
  } else {
    std::fprintf(stderr, "ckpt-restart: %s\n", with_keepers_named(error.message()).c_str());
  }
  return static_cast<int>(error.code);
}

void print_note(const RestartOptions& options, const std::string& text) {
  if (!options.quiet && !options.json)
    std::fprintf(stderr, "ckpt-restart: note: %s\n", with_keepers_named(text).c_str());
}

std::function<void(const std::string&)> notes_at_once(const RestartOptions& options) {
  if (options.json) return {};
  return [&options](const std::string& text) { print_note(options, text); };
}

VerifyProgress progress_on_terminal(const RestartOptions& options, const char* what) {
  if (options.quiet || options.json || isatty(STDERR_FILENO) == 0) return {};
  return [what, last = int64_t{0}, begin = now_ns()](uint64_t done, uint64_t total) mutable {
    constexpr int64_t kPatience = 500'000'000, kStep = 100'000'000;
    int64_t now = now_ns();
    if (done == total) {
      clear_progress();
    } else if (now - begin >= kPatience && now - last >= kStep) {
      last = now;
      std::fprintf(stderr, "\rckpt-restart: %s the image: %d%%\033[K", what,
                   static_cast<int>(done * 100 / total));
      progress_is_shown = true;
    }
  };
}

}  // namespace ckpt
