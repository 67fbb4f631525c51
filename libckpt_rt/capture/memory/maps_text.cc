#include "libckpt_rt/capture/memory/maps_text.h"

#include <errno.h>
#include <fcntl.h>

#include <cstring>

#include "base/sys.h"
#include "libckpt_rt/core/kernel/proc_text.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {

constexpr const char* kMaps = "/proc/thread-self/maps";
constexpr size_t kMore = 64 << 10;  // bytes for what is mapped until the stop, and at least for each read
constexpr size_t kWorthTwo =
    32 << 10;  // of less text a second thread would read no more than its waking takes

Error no_memory() { return make_error(ExitCode::kInternal, ENOMEM, "no memory for the list of mappings"); }
Error unreadable(long error) {
  return make_error(ExitCode::kSystem, static_cast<int>(error), "cannot read {}", kMaps);
}

Result<ScopedFd> open_maps() {
  ScopedFd fd(static_cast<int>(sys::call(__NR_openat, AT_FDCWD, kMaps, O_RDONLY | O_CLOEXEC, 0)));
  if (fd.valid()) return fd;
  return cannot_open(kMaps, fd.release());
}

// Where the mapping of the line begins that begins at text[at]. Addresses are at least eight digits of
// lower-case hex.
uint64_t start_of_line(std::string_view text, size_t at) {
  uint64_t v = 0;
  for (; at < text.size() && text[at] != '-'; ++at) {
    const char c = text[at];
    v = v * 16 + static_cast<uint64_t>(c <= '9' ? c - '0' : c - 'a' + 10);
  }
  return v;
}

// The line before the one that begins at text[at]; 0: that is the first.
size_t line_before(std::string_view text, size_t at) {
  if (at < 2) return 0;
  const size_t end = text.rfind('\n', at - 2);
  return end == text.npos ? 0 : end + 1;
}

bool reaches(std::string_view text, uint64_t address) {
  return !text.empty() && start_of_line(text, line_before(text, text.size())) >= address;
}

std::span<char> make_room(Arena& arena, size_t bytes) {
  auto* room = static_cast<char*>(arena.allocate(bytes));
  if (room == nullptr) return {};
  std::memset(room, 0, bytes);  // touched now, not in the stop
  return {room, bytes};
}

}  // namespace

void MapsText::Part::read_more() {
  const long n = sys::call(__NR_read, file.get(), room.data() + have, room.size() - have);
  if (n < 0)
    error = n;
  else if (n == 0)
    at_end = true;
  else
    have += static_cast<size_t>(n);
}

Result<void> MapsText::read_ahead(Arena& arena) {
  for (size_t size = 4 * kMore;; size *= 2) {
    auto file = open_maps();
    if (!file.ok()) return file.error();
    front_ = Part{std::move(*file), make_room(arena, size)};
    if (front_.room.empty()) return no_memory();
    while (!front_.full() && !front_.at_end && front_.error == 0) front_.read_more();
    if (front_.error != 0) return unreadable(front_.error);
    if (front_.at_end) break;
  }
  ahead_ = front_.text();
  front_.file.reset();  // it may be the last descriptor that the program's limit allows
  front_.room = make_room(arena, ahead_.size() + kMore);
  if (front_.room.empty()) return no_memory();
  has_rest_ = false;
  return ahead_.size() < kWorthTwo ? Result<void>() : read_to_middle(arena);
}

Result<void> MapsText::read_to_middle(Arena& arena) {
  auto file = open_maps();
  if (!file.ok()) return {};
  rest_ = Part{std::move(*file), make_room(arena, ahead_.size() / 2 + 2 * kMore)};
  if (rest_.room.empty()) return no_memory();
  while (rest_.have < ahead_.size() / 2 && !rest_.at_end && rest_.error == 0) rest_.read_more();
  if (rest_.error != 0) return unreadable(rest_.error);
  const std::string_view read = rest_.text();
  middle_ = start_of_line(read, line_before(read, read.size()));
  has_rest_ = !rest_.at_end;
  rest_.have = 0;
  return {};
}

void MapsText::read_rest(void* part) {
  auto& rest = *static_cast<Part*>(part);
  while (!rest.full() && !rest.at_end && rest.error == 0) rest.read_more();
}

Result<std::string_view> MapsText::read_again(const OtherThreads& others, bool* fits) {
  const bool two = has_rest_ && others;
  has_rest_ = false;  // its file is read to the end once
  if (two) others.start(others.context, &read_rest, &rest_);
  auto file = open_maps();
  if (file.ok()) front_.file = std::move(*file);
  front_.have = 0;
  front_.at_end = !file.ok();
  auto read_to = [&](uint64_t address) {
    while (!front_.full() && !front_.at_end && front_.error == 0 && !reaches(front_.text(), address))
      front_.read_more();
  };
  if (two) {
    read_to(middle_);
    others.await(others.context);
  }
  rest_.file.reset();
  if (!file.ok()) return file.error();
  const bool use_rest = two && rest_.error == 0 && rest_.at_end && rest_.have != 0;
  const uint64_t meet = use_rest ? start_of_line(rest_.text(), 0) : UINT64_MAX;
  read_to(meet);
  front_.file.reset();
  if (front_.error != 0) return unreadable(front_.error);
  *fits = !front_.full();
  if (!use_rest || !*fits) return front_.text();
  size_t end = front_.have;
  for (size_t line; end != 0 && start_of_line(front_.text(), line = line_before(front_.text(), end)) >= meet;
       end = line) {
  }
  *fits = front_.room.size() - end >= rest_.have;
  if (!*fits) return std::string_view();
  std::memcpy(front_.room.data() + end, rest_.room.data(), rest_.have);
  return std::string_view(front_.room.data(), end + rest_.have);
}

}  // namespace ckpt
