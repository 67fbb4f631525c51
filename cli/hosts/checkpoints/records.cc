#include "cli/hosts/checkpoints/records.h"

#include <unistd.h>

#include <algorithm>
#include <set>

#include "cli/hosts/checkpoints/redundancy.h"

namespace ckpt::cli {

namespace {

uint64_t bytes_of(const HostsManifest& manifest) { return how_protected(manifest.redundancy).images; }

}  // namespace

Records::Records(std::string directory, std::string job, int keep, uint32_t most_increments)
    : directory_(std::move(directory)), job_(std::move(job)), keep_(keep), most_(most_increments) {
  for (const std::string& path : hosts_manifests_in(directory_)) {
    auto manifest = read_hosts_manifest(path);
    if (manifest.ok() && manifest->job == job_) all_[manifest->id] = record_of(*manifest, path);
  }
}

Records::Record Records::record_of(const HostsManifest& manifest, std::string path) {
  Record record{std::move(path), needed_by(manifest), {}};
  for (const HostsManifest::Part& part : manifest.parts) record.parts.push_back(part.directory);
  return record;
}

bool Records::next_is_full() const {
  return base_.empty() || base_.size() - full_at_ > most_ || more_bytes_ > full_bytes_;
}

std::vector<std::string> Records::ground() const {
  const auto it = all_.find(ground_);
  return it == all_.end() ? std::vector<std::string>() : it->second.parts;
}

std::vector<uint64_t> Records::needed(bool full, bool compared) const {
  if (!full) return base_;
  return compared ? std::vector<uint64_t>{ground_} : std::vector<uint64_t>();
}

void Records::counts(const HostsManifest& manifest, bool full) {
  if (full) {
    base_ = needed_by(manifest);
    full_at_ = base_.size();
    const Protected how = how_protected(manifest.redundancy);
    if (!how.by_differences)
      ground_ = manifest.id;
    else if (how.stream > how.images / 2)
      ground_ = 0;
    full_bytes_ = bytes_of(manifest);
    more_bytes_ = 0;
  } else {
    more_bytes_ += bytes_of(manifest);
  }
  base_.push_back(manifest.id);
  all_[manifest.id] = record_of(manifest, hosts_manifest_path(directory_, manifest));
}

std::vector<std::vector<std::string>> Records::parts(size_t many) const {
  std::vector<std::vector<std::string>> parts(many);
  for (const auto& [id, record] : all_) {
    for (const uint64_t need : record.needs) {
      if (!all_.contains(need)) return {};
    }
    if (record.parts.size() != many) return {};
    for (size_t i = 0; i < many; ++i) parts[i].push_back(record.parts[i]);
  }
  return parts;
}

std::vector<std::vector<std::string>> Records::give_up_older() {
  std::set<uint64_t> stays;
  int newest = 0;
  for (auto it = all_.rbegin(); it != all_.rend(); ++it) {
    if (keep_ > 0 && newest++ == keep_) break;
    stays.insert(it->first);
    stays.insert(it->second.needs.begin(), it->second.needs.end());
  }
  // A record that cannot be read has parts whose names are not known here.
  for (const uint64_t id : stays) {
    if (!all_.contains(id)) return {};
  }
  // The newest first: what is left is never a checkpoint without what it needs.
  for (auto it = all_.end(); it != all_.begin();) {
    --it;
    if (stays.contains(it->first)) continue;
    unlink(it->second.path.c_str());
    it = all_.erase(it);
  }
  return all_.empty() ? std::vector<std::vector<std::string>>() : parts(all_.begin()->second.parts.size());
}

}  // namespace ckpt::cli
