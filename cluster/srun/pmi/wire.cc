#include "cluster/srun/pmi/wire.h"

#include <charconv>

namespace ckpt::cluster::srun {

namespace {

constexpr size_t kLengthDigits = 6, kMostPairs = 4096;

// "key=value" into the message; the first is `cmd`.
bool take_pair(std::string_view pair, PmiMessage& message) {
  const size_t equals = pair.find('=');
  if (equals == pair.npos || equals == 0 || message.pairs.size() >= kMostPairs) return false;
  const std::string key(pair.substr(0, equals));
  std::string value(pair.substr(equals + 1));
  if (message.command.empty()) {
    if ((key != "cmd" && key != "mcmd") || value.empty()) return false;
    message.command = std::move(value);
  } else {
    message.pairs.emplace_back(key, std::move(value));
  }
  return true;
}

// Words between blanks. A value may have blanks itself: the last one, of `put`.
bool parse_first(std::string_view line, PmiMessage& message) {
  while (!line.empty()) {
    const size_t begin = line.find_first_not_of(' ');
    if (begin == line.npos) break;
    line.remove_prefix(begin);
    const size_t end = line.starts_with("value=") ? line.npos : line.find(' ');
    if (!take_pair(line.substr(0, end), message)) return false;
    line.remove_prefix(end == line.npos ? line.size() : end);
  }
  return !message.command.empty();
}

// Pairs that each end with a semicolon; two of them are one in a value.
bool parse_second(std::string_view text, PmiMessage& message) {
  std::string pair;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != ';') {
      pair += text[i];
    } else if (i + 1 < text.size() && text[i + 1] == ';') {
      pair += text[i++];
    } else {
      if (!take_pair(pair, message)) return false;
      pair.clear();
    }
  }
  return pair.empty() && !message.command.empty();
}

}  // namespace

std::string PmiMessage::get(std::string_view key) const {
  for (const auto& [name, value] : pairs) {
    if (name == key) return value;
  }
  return {};
}

bool PmiMessage::is_true(std::string_view key) const {
  const std::string value = get(key);
  return value == "TRUE" || value == "true" || value == "1";
}

bool PmiReader::take_line(std::string_view line, std::vector<PmiMessage>& messages) {
  if (in_spawn_ && line == "endcmd") {
    in_spawn_ = false;
    messages.push_back(std::move(spawn_));
    spawn_ = {};
    return true;
  }
  if (in_spawn_) {
    spawn_bytes_ += line.size();
    return spawn_bytes_ <= kMostMessage && take_pair(line, spawn_);
  }
  if (line.starts_with("mcmd=")) {
    in_spawn_ = true;
    spawn_bytes_ = line.size();
    return take_pair(line, spawn_);
  }
  PmiMessage message;
  if (!parse_first(line, message)) return false;
  second_ = message.command == "init" && message.get("pmi_version") == "2";
  messages.push_back(std::move(message));
  return true;
}

bool PmiReader::feed(std::string_view bytes, std::vector<PmiMessage>& messages) {
  left_ += bytes;
  while (!broken_) {
    if (!second_) {
      const size_t end = left_.find('\n');
      broken_ = end == left_.npos && left_.size() > kMostMessage;
      if (end == left_.npos) break;
      broken_ = !take_line(std::string_view(left_).substr(0, end), messages);
      left_.erase(0, end + 1);
      continue;
    }
    if (left_.size() < kLengthDigits) break;
    // The number stands to the left (MPICH) or to the right of its six places.
    std::string_view digits = std::string_view(left_).substr(0, kLengthDigits);
    const size_t begin = digits.find_first_not_of(' '), end = digits.find_last_not_of(' ');
    size_t length = 0;
    if (begin == digits.npos) {
      broken_ = true;
      break;
    }
    digits = digits.substr(begin, end - begin + 1);
    const auto [at, error] = std::from_chars(digits.data(), digits.data() + digits.size(), length);
    broken_ = error != std::errc() || at != digits.data() + digits.size() || length > kMostMessage;
    if (broken_ || left_.size() < kLengthDigits + length) break;
    PmiMessage message;
    message.second = true;
    broken_ = !parse_second(std::string_view(left_).substr(kLengthDigits, length), message);
    if (!broken_) messages.push_back(std::move(message));
    left_.erase(0, kLengthDigits + length);
  }
  if (broken_) left_.clear();
  return !broken_;
}

std::string write_message(bool second, const PmiMessage& message) {
  std::string text = "cmd=" + message.command;
  if (!second) {
    for (const auto& [key, value] : message.pairs) text += " " + key + "=" + value;
    return text + "\n";
  }
  text += ';';
  for (const auto& [key, value] : message.pairs) {
    text += key + "=";
    for (const char c : value) text.append(c == ';' ? 2 : 1, c);
    text += ';';
  }
  std::string length = std::to_string(text.size());
  length.resize(kLengthDigits, ' ');
  return length + text;
}

}  // namespace ckpt::cluster::srun
