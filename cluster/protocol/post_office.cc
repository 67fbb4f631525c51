#include "cluster/protocol/post_office.h"

#include <algorithm>
#include <utility>

namespace ckpt::cluster {

PostOffice::PostOffice(std::vector<std::string> hosts) {
  for (std::string& name : hosts) {
    hosts_.emplace_back();
    hosts_.back().name = std::move(name);
  }
}

void PostOffice::begin() {
  for (Host& h : hosts_) {
    h.handed_in = h.gone = h.any = h.waited = false;
    h.posts.clear();
  }
}

void PostOffice::submit(size_t host, bool any, std::vector<Post> posts) {
  Host& h = hosts_[host];
  if (h.handed_in || h.gone) return;
  h.handed_in = true;
  h.any = any || !posts.empty();
  h.posts = std::move(posts);
}

void PostOffice::comes_no_more(size_t host) { hosts_[host].gone = true; }

std::vector<PostOffice::Delivery> PostOffice::hand_out() {
  const auto there = [](const Host& h) { return h.handed_in || h.gone; };
  const auto in_round = [](const Host& h) { return h.handed_in; };
  if (!std::ranges::all_of(hosts_, there) || std::ranges::none_of(hosts_, in_round)) return {};
  const bool more = std::ranges::any_of(hosts_, [](const Host& h) { return h.any; });
  std::vector<Delivery> out(hosts_.size());
  for (size_t to = 0; to < hosts_.size(); ++to) {
    out[to].more = more;
    for (size_t from = 0; from < hosts_.size(); ++from) {
      if (from == to) continue;
      for (const Post& p : hosts_[from].posts) {
        if (p.to_host == "*" || p.to_host == hosts_[to].name) out[to].texts.push_back(p.text);
      }
    }
  }
  for (Host& h : hosts_) {
    h.waited = h.handed_in;
    h.handed_in = h.any = false;
    h.posts.clear();
  }
  return out;
}

}  // namespace ckpt::cluster
