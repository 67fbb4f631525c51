#include "cluster/srun/frames.h"

#include <cstring>

namespace ckpt::cluster::srun {

namespace {

constexpr size_t kHead = 1 + 4 + 4;

void append_number(std::string& text, uint32_t number) {
  text.append(reinterpret_cast<const char*>(&number), sizeof(number));
}

uint32_t number_at(std::string_view bytes, size_t at) {
  uint32_t number = 0;
  memcpy(&number, bytes.data() + at, sizeof(number));
  return number;
}

}  // namespace

std::string write_frame(Say say, int task, std::string_view bytes) {
  std::string frame(1, static_cast<char>(say));
  append_number(frame, static_cast<uint32_t>(task));
  append_number(frame, static_cast<uint32_t>(bytes.size()));
  return frame.append(bytes);
}

bool FrameReader::feed(std::string_view bytes, std::vector<Frame>& frames) {
  left_ += bytes;
  size_t at = 0;
  while (left_.size() - at >= kHead) {
    const uint32_t length = number_at(left_, at + 5);
    if (length > kMostFrame) return false;
    if (left_.size() - at - kHead < length) break;
    frames.push_back({static_cast<Say>(left_[at]), static_cast<int>(number_at(left_, at + 1)),
                      left_.substr(at + kHead, length)});
    at += kHead + length;
  }
  left_.erase(0, at);
  return true;
}

std::string pack(const std::vector<std::string>& strings) {
  std::string bytes;
  append_number(bytes, static_cast<uint32_t>(strings.size()));
  for (const std::string& s : strings) {
    append_number(bytes, static_cast<uint32_t>(s.size()));
    bytes += s;
  }
  return bytes;
}

bool unpack(std::string_view bytes, std::vector<std::string>& strings) {
  if (bytes.size() < 4) return false;
  const uint32_t count = number_at(bytes, 0);
  bytes.remove_prefix(4);
  strings.clear();
  for (uint32_t i = 0; i < count; ++i) {
    if (bytes.size() < 4 || bytes.size() - 4 < number_at(bytes, 0)) return false;
    const uint32_t length = number_at(bytes, 0);
    strings.emplace_back(bytes.substr(4, length));
    bytes.remove_prefix(4 + length);
  }
  return bytes.empty();
}

}  // namespace ckpt::cluster::srun
