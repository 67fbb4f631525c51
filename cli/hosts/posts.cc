#include "cli/hosts/posts.h"

#include <charconv>

namespace ckpt::cli {

namespace {

void append_number(std::string& to, auto number) {
  to.append(reinterpret_cast<const char*>(&number), sizeof(number));
}

// "PID HEX". False: it is no such text.
bool append_post(std::string& mail, const std::string& text) {
  int32_t pid = 0;
  const char* end = text.data() + text.size();
  const char* at = std::from_chars(text.data(), end, pid).ptr;
  if (at == end || *at != ' ' || (end - ++at) % 2 != 0) return false;
  std::string bytes;
  for (; at != end; at += 2) {
    uint8_t byte = 0;
    if (std::from_chars(at, at + 2, byte, 16).ptr != at + 2) return false;
    bytes += static_cast<char>(byte);
  }
  append_number(mail, pid);
  mail += bytes;
  return true;
}

}  // namespace

Json message_of_posts(const Answer& lines, uint64_t id) {
  Json said{{"say", "posts"}, {"id", id}, {"any", false}, {"posts", Json::array()}};
  for (const auto& [key, value] : lines) {
    if (key == "posts") said["any"] = true;
    if (key == "post") said["posts"].push_back(value);
  }
  return said;
}

std::vector<cluster::PostOffice::Post> posts_in(const Json& said) {
  std::vector<cluster::PostOffice::Post> posts;
  const Json list = said.value("posts", Json::array());
  for (const auto& one : list) {
    const std::string text = one.is_string() ? one.get<std::string>() : "";
    const size_t space = text.find(' ');
    if (space != std::string::npos) posts.push_back({text.substr(0, space), text.substr(space + 1)});
  }
  return posts;
}

std::vector<std::string> names_of(Crew& crew) {
  std::vector<std::string> names;
  for (const CrewHost& h : crew.hosts()) names.push_back(h.name);
  return names;
}

Json message_of_delivery(const cluster::PostOffice::Delivery& delivery, uint64_t id) {
  return {{"say", "posts"}, {"id", id}, {"more", delivery.more}, {"posts", delivery.texts}};
}

std::string mail_of(const Json& said) {
  std::string posts;
  const Json list = said.value("posts", Json::array());
  for (const auto& one : list) {
    if (one.is_string()) append_post(posts, one.get<std::string>());
  }
  std::string mail;
  append_number(mail, uint64_t{said.value("more", false) ? 1u : 0u});
  append_number(mail, static_cast<uint32_t>(posts.size()));
  return mail + posts;
}

}  // namespace ckpt::cli
