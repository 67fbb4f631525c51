#include "cli/hosts/checkpoints/disk_saves.h"

#include <errno.h>
#include <sys/stat.h>

#include "cli/hosts/job/hosts_manifest.h"
#include "cli/hosts/job/hosts_run.h"
#include "cli/text/text_out.h"

namespace ckpt::cli {

namespace {

constexpr int kSavesKept = 2;

}  // namespace

DiskSaves::DiskSaves(Crew& crew, const std::string& directory, const std::string& job, const HostsRun& run)
    : crew_(crew),
      directory_(directory + kOnDisk),
      every_(run.disk_every),
      records_(directory_, job, kSavesKept, 0) {
  if (every_ == 0) return;
  auto newest = read_hosts_manifest(newest_hosts_manifest(directory, job));
  if (!newest.ok()) return;
  const Json was = newest->run.value("saves", Json::object());
  since_ = was.value("since", 0u);
  begun_ = was.value("begun", uint64_t{0});
  // The last save was lost with a host: the next checkpoint is saved in its place.
  auto saved = read_hosts_manifest(newest_hosts_manifest(directory_, job));
  if (!saved.ok() ? begun_ != 0 : begun_ > saved->id) since_ = every_ - 1;
}

Json DiskSaves::noted(uint64_t id) const {
  if (every_ == 0) return Json::object();
  const bool begins = since_ + 1 >= every_ && !saving_;
  const uint64_t begun = begins ? id : saving_ ? saving_->id : begun_;
  return {{"since", begins ? 0 : since_ + 1}, {"begun", begun}};
}

void DiskSaves::counts(const HostsManifest& manifest) {
  if (every_ == 0 || ++since_ < every_) return;
  if (saving_)
    next_ = manifest;
  else
    begin(manifest);
}

void DiskSaves::begin(const HostsManifest& manifest) {
  since_ = 0;
  begun_ = manifest.id;
  saving_ = manifest;
  missing_ = manifest.parts.size();
  failed_ = false;
  for (size_t i = 0; i < manifest.parts.size(); ++i) {
    const HostsManifest::Part& part = manifest.parts[i];
    crew_.tell(static_cast<int>(i), {{"say", "save"},
                                     {"plan",
                                      {{"id", manifest.id},
                                       {"self", i},
                                       {"part", part.directory},
                                       {"key_file", manifest.run.value("key_file", "")},
                                       {"to", directory_ + "/" + part.host}}}});
  }
}

void DiskSaves::heard(int host, const Json& said) {
  if (!saving_ || said.value("id", uint64_t{0}) != saving_->id) return;
  HostsManifest::Part& part = saving_->parts[static_cast<size_t>(host)];
  if (said.value("say", "") == "saved") {
    part.directory = said.value("part", "");
    part.checksum = said.value("checksum", "");
  } else {
    // A program that takes many may have given it up before it was opened: the next one is saved.
    if (said.value("code", 0) == static_cast<int>(ExitCode::kNotFound))
      since_ = every_;
    else
      fmt::print(stderr, "ckpt: checkpoint {} is not on the disk: {}: {}\n", saving_->id,
                 printable(part.host), printable(said.value("text", "")));
    failed_ = true;
  }
  if (--missing_ != 0) return;
  const std::optional<HostsManifest> next = std::move(next_);
  next_.reset();
  if (!failed_) return finish();
  saving_.reset();
  if (next) begin(*next);
}

void DiskSaves::finish() {
  HostsManifest manifest = std::move(*saving_);
  saving_.reset();
  manifest.redundancy = Json::object();
  manifest.run["on_disk"] = true;
  if (mkdir(directory_.c_str(), 0700) != 0 && errno != EEXIST) errno = 0;  // said below
  if (auto written = write_hosts_manifest(directory_, manifest); !written.ok()) {
    fmt::print(stderr, "ckpt: checkpoint {} is not on the disk: {}\n", manifest.id,
               printable(std::string(written.error().message())));
    return;
  }
  records_.counts(manifest, true);
  const auto stay = records_.give_up_older();
  for (size_t i = 0; i < stay.size(); ++i)
    crew_.tell(static_cast<int>(i),
               {{"say", "stay"}, {"in", directory_ + "/" + manifest.parts[i].host}, {"parts", stay[i]}});
}

}  // namespace ckpt::cli
