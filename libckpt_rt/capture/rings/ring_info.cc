#include "libckpt_rt/capture/rings/ring_info.h"

#include <fcntl.h>

#include <cstring>
#include <string_view>

#include "base/raii_fd.h"
#include "base/sys.h"
#include "libckpt_rt/capture/rings/registered_buffers.h"
#include "libckpt_rt/capture/rings/registered_files.h"
#include "libckpt_rt/core/kernel/descriptor_info.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::rings {
namespace {

class Parser {
 public:
  Parser(RingState& state, std::span<HeldBack> held) : state_(state), held_(held) {}

  void take(std::string_view line) {
    // Lines of a list are indented.
    if (line.starts_with(' ')) return take_entry(line);
    list_ = line.starts_with("PollList:")         ? List::kPolls
            : line.starts_with("CqOverflowList:") ? List::kHeldBack
            : line.starts_with("UserFiles:")      ? List::kFiles
            : line.starts_with("UserBufs:")       ? List::kBuffers
            : line.starts_with("Personalities:")  ? List::kPersonalities
                                                  : List::kOther;
    uint64_t n = 0;
    if (line.starts_with("ino:") && number_after(line, "ino:", 10, n)) {
      state_.inode = n;
      forget_buffers(n);
    }
    auto number = [&](std::string_view key, uint32_t& to) {
      if (!line.starts_with(key) || !number_after(line, key, 10, n)) return false;
      to = static_cast<uint32_t>(n);
      return true;
    };
    number("SqHead:", state_.submission_head);
    number("SqTail:", state_.submission_tail);
    number("CqHead:", state_.completion_head);
    // The last of those that are there only if the kernel got hold of the ring.
    if (number("CqTail:", state_.completion_tail)) state_.told = true;
    number("UserFiles:", state_.files);
    number("UserBufs:", state_.buffers);
  }

 private:
  enum class List { kOther, kFiles, kBuffers, kPolls, kHeldBack, kPersonalities };

  void take_entry(std::string_view line) {
    uint64_t user_data = 0, result = 0, flags = 0;
    if (list_ == List::kFiles) return take_file(line);
    if (list_ == List::kBuffers) return take_buffer(line);
    if (list_ == List::kPolls) ++state_.polls;
    if (list_ == List::kPersonalities) ++state_.personalities;
    if (list_ != List::kHeldBack || !number_after(line, "user_data=", 10, user_data)) return;
    number_after(line, "res=", 10, result);
    number_after(line, "flags=", 16, flags);
    if (state_.held_back < held_.size()) held_[state_.held_back] = {user_data, static_cast<int32_t>(result)};
    if (flags != 0) state_.held_back_with_flags = true;
    ++state_.held_back;
  }

  // "    3: /path"
  void take_file(std::string_view line) {
    uint64_t place = 0;
    const size_t colon = line.find(": ");
    if (colon == line.npos || !number_after(line, "", 10, place)) return;
    if (!is_noted_file(state_.inode, static_cast<uint32_t>(place), line.substr(colon + 2)))
      ++state_.unknown_files;
  }

  // "    3: 0x7f12345678/4096"; "    3: <none>"
  void take_buffer(std::string_view line) {
    uint64_t place = 0, start = 0, bytes = 0;
    if (!number_after(line, "", 10, place) || !number_after(line, ": 0x", 16, start)) return;
    if (!number_after(line, "/", 10, bytes) ||
        !note_buffer(state_.inode, static_cast<uint32_t>(place), start, bytes))
      ++state_.unknown_buffers;
  }

  RingState& state_;
  const std::span<HeldBack> held_;
  List list_ = List::kOther;
};

}  // namespace

RingState read_ring_info(int tid, int fd, std::span<HeldBack> held) {
  RingState state;
  const TaskPath path(tid, "fdinfo", fd);
  const ScopedFd file(
      static_cast<int>(sys::call(__NR_openat, long{AT_FDCWD}, path.c_str(), long{O_RDONLY | O_CLOEXEC}, 0L)));
  if (!file.valid()) return state;
  Parser parser(state, held);
  char buffer[4096];
  size_t filled = 0;
  for (;;) {
    // Only names of files are long; what is cut off of one is taken for a line of no meaning.
    if (filled == sizeof(buffer)) filled = 0;
    const long n = sys::call(__NR_read, file.get(), buffer + filled, sizeof(buffer) - filled);
    if (n <= 0) return state;
    filled += static_cast<size_t>(n);
    std::string_view text(buffer, filled);
    for (size_t end; (end = text.find('\n')) != text.npos; text.remove_prefix(end + 1))
      parser.take(text.substr(0, end));
    filled = text.size();
    std::memmove(buffer, text.data(), filled);
  }
}

}  // namespace ckpt::rings
