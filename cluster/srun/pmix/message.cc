#include "cluster/srun/pmix/message.h"

#include <charconv>
#include <vector>

#include "cluster/srun/frames.h"

namespace ckpt::cluster::srun {

namespace {

template <typename T>
bool read_number(const std::string& text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

std::string write_message(const PmixMessage& m) {
  return pack({std::string(1, static_cast<char>(m.what)), m.ranks, std::to_string(m.id),
               std::to_string(m.node), std::to_string(m.rank), std::to_string(m.status), m.data});
}

bool read_message(std::string_view bytes, PmixMessage& m) {
  std::vector<std::string> parts;
  if (!unpack(bytes, parts) || parts.size() != 7 || parts[0].size() != 1) return false;
  m.what = static_cast<PmixMessage::What>(parts[0][0]);
  m.ranks = std::move(parts[1]);
  m.data = std::move(parts[6]);
  return read_number(parts[2], m.id) && read_number(parts[3], m.node) && read_number(parts[4], m.rank) &&
         read_number(parts[5], m.status);
}

}  // namespace ckpt::cluster::srun
