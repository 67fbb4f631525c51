#include "cli/text/json_lines.h"

#include <errno.h>
#include <fmt/core.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>

#include "base/clock.h"

namespace ckpt::cli {

Json json_of_bytes(const std::string& bytes) {
  try {
    (void)Json(bytes).dump();
    return bytes;
  } catch (const Json::type_error&) {  // no UTF-8
    std::string hex;
    for (const char c : bytes) hex += fmt::format("{:02x}", static_cast<uint8_t>(c));
    return {{"hex", hex}};
  }
}

std::string bytes_in(const Json& json) {
  if (json.is_string()) return json.get<std::string>();
  const std::string hex = json.is_object() ? json.value("hex", "") : "";
  std::string bytes;
  for (size_t at = 0; at + 2 <= hex.size(); at += 2) {
    uint8_t byte = 0;
    std::from_chars(hex.data() + at, hex.data() + at + 2, byte, 16);
    bytes += static_cast<char>(byte);
  }
  return bytes;
}

bool write_line(int fd, const Json& line) {
  const std::string text = line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = send(fd, text.data() + done, text.size() - done, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    done += static_cast<size_t>(n);
  }
  return true;
}

// Takes no byte behind the line, for another reader may want it: looks at the bytes of a socket before it
// takes them, and takes those of a pipe one by one.
bool read_line(int fd, Json& line, int timeout_ms) {
  constexpr size_t kMostBytes = 64 << 20;
  std::string text;
  const int64_t deadline = now_ns() + int64_t{timeout_ms} * 1'000'000;
  for (;;) {
    pollfd wait{fd, POLLIN, 0};
    // The limit is for the whole line: a peer that sends a byte now and then does not extend it.
    const int64_t left = timeout_ms < 0 ? -1 : std::max<int64_t>((deadline - now_ns()) / 1'000'000, 0);
    const int ready = poll(&wait, 1, static_cast<int>(left));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0 || text.size() > kMostBytes) return false;
    char bytes[4096];
    ssize_t n = recv(fd, bytes, sizeof(bytes), MSG_PEEK | MSG_DONTWAIT);
    if (n < 0 && errno == ENOTSOCK) {
      n = read(fd, bytes, 1);
    } else if (n > 0) {
      const void* end = memchr(bytes, '\n', static_cast<size_t>(n));
      if (end != nullptr) n = static_cast<const char*>(end) - bytes + 1;
      n = read(fd, bytes, static_cast<size_t>(n));
    }
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n <= 0) return false;
    text.append(bytes, static_cast<size_t>(n));
    if (text.back() == '\n') break;
  }
  line = Json::parse(text, nullptr, false);
  return line.is_object();
}

}  // namespace ckpt::cli
