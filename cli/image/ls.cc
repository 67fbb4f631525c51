// ckpt ls: the images of a directory.
#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/settings/settings.h"
#include "cli/image/commands.h"
#include "cli/image/jobs/job_images.h"
#include "cli/image/jobs/ls_hosts.h"
#include "cli/image/key_option.h"
#include "cli/image/restartable.h"
#include "cli/text/cost.h"
#include "cli/text/failure.h"
#include "cli/text/human.h"
#include "cli/text/text_out.h"
#include "image/read/image_reader.h"
#include "image/read/sources/image_catalog.h"

namespace ckpt::cli {

namespace {

struct LsOptions {
  std::string directory = ".";
  bool json = false;
};

// One image of the list. The pause is in META, which header and trailer do not vouch for.
struct Row {
  std::string path;
  CatalogEntry entry;
  std::optional<CostRecord> cost;
  std::vector<std::string> no_restart = {};  // what the image says of that
};

const char* state_of(const Row& r) {
  const CatalogEntry& e = r.entry;
  if (e.temporary) return "unfinished";
  if (e.complete && !r.no_restart.empty()) return "no restart";
  return e.complete ? "complete" : e.locked ? "locked" : "damaged";
}

const char* state_of(const JobEntry& j) {
  if (j.temporary) return "unfinished";
  return j.complete ? "complete" : j.error.code == ExitCode::kPermission ? "locked" : "damaged";
}

// What it needs to be restored, besides itself.
std::string kind_of(const CatalogEntry& e) {
  if (!e.complete) return "-";
  return e.brief.parent.sequence == 0 ? "full" : fmt::format("+{}", e.brief.parent.sequence);
}

void add_rows(const ImageCatalog& catalog, std::vector<Row>* rows) {
  for (const CatalogEntry& e : catalog.entries()) {
    Row row{catalog.path_of(e), e, std::nullopt};
    if (e.complete) {
      auto image = ImageReader::open(row.path, ImageParts::kDescription);
      if (image.ok()) {
        row.cost = cost_of(image->meta());
        row.no_restart = what_forbids_restart(image->meta());
      } else if (struct stat st;
                 image.error().code == ExitCode::kNotFound && lstat(row.path.c_str(), &st) != 0) {
        continue;  // removed since it was listed
      } else {
        row.entry.complete = false;
        row.entry.problem = std::string(image.error().message());
      }
    }
    rows->push_back(std::move(row));
  }
}

// Programs started without a directory leave theirs, "ckpt-NAME.PID", where they ran.
std::vector<std::string> default_directories(const std::string& where) {
  std::vector<std::string> found;
  std::unique_ptr<DIR, int (*)(DIR*)> dir(opendir(where.c_str()), closedir);
  if (!dir) return found;
  while (dirent* entry = readdir(dir.get())) {
    std::string name = entry->d_name;
    if (entry->d_type == DT_DIR && name.starts_with("ckpt-")) found.push_back(where + "/" + name);
  }
  std::sort(found.begin(), found.end());
  return found;
}

void print_table(const std::vector<Row>& rows) {
  fmt::print("{:>5}  {:<16} {:>7}  {:>11}  {:>9}  {:>9}  {:>9}  {:<10}  {:<5}  {:<10}  {}\n", "SEQ",
             "PROGRAM", "PID", "AGE", "MEMORY", "SIZE", "PAUSE", "MODE", "KIND", "STATE", "IMAGE");
  int64_t now = now_ns(CLOCK_REALTIME);
  for (const Row& r : rows) {
    const CatalogEntry& e = r.entry;
    fmt::print("{:>5}  {:<16} {:>7}  {:>11}  {:>9}  {:>9}  {:>9}  {:<10}  {:<5}  {:<10}  {}\n", e.sequence,
               printable(e.comm), e.pid,
               e.complete ? human_duration(std::max<int64_t>(now - e.brief.realtime_ns, 0)) : "-",
               e.complete ? human_bytes(e.brief.memory_bytes) : "-", human_bytes(e.file_bytes),
               r.cost ? human_duration(r.cost->pause_ns) : "-",
               r.cost ? mode_name(static_cast<Mode>(r.cost->mode)) : "-", kind_of(e), state_of(r),
               printable(r.path));
    if (!e.complete && !e.temporary) fmt::print("{:>5}  {}\n", "", printable(e.problem));
    for (const std::string& why : r.no_restart)
      fmt::print("{:>5}  cannot be restarted: {}\n", "", printable(why));
  }
}

void print_jobs(const std::vector<JobEntry>& jobs) {
  const int64_t now = now_ns(CLOCK_REALTIME);
  for (const JobEntry& j : jobs) {
    fmt::print("{:>5}  {:<16} {:>7}  {:>11}  {:>9}  {:>9}  {:>9}  {:<10}  {:<5}  {:<10}  {}\n", j.sequence,
               printable(j.comm), j.manifest.root != 0 ? fmt::format("{}", j.manifest.root) : "-",
               j.complete ? human_duration(std::max<int64_t>(now - j.manifest.time_ns, 0)) : "-",
               j.complete ? human_bytes(j.memory_bytes) : "-", human_bytes(j.bytes), "-",
               j.complete ? fmt::format("job of {}", j.manifest.files.size()) : "job",
               !j.complete   ? "-"
               : j.increment ? "+"
                             : "full",
               state_of(j), printable(j.path));
    if (!j.complete && !j.temporary) fmt::print("{:>5}  {}\n", "", printable(j.error.message()));
  }
}

void add_jobs_json(const std::vector<JobEntry>& jobs, nlohmann::ordered_json* json) {
  for (const JobEntry& j : jobs) {
    nlohmann::ordered_json one{{"job", j.path},          {"sequence", j.sequence}, {"program", j.comm},
                               {"pid", j.manifest.root}, {"state", state_of(j)},   {"bytes", j.bytes}};
    if (j.complete) {
      one["job_id"] = j.manifest.job;
      one["realtime_ns"] = j.manifest.time_ns;
      one["bytes_memory"] = j.memory_bytes;
      one["images"] = images_of_job(j);
    } else {
      one["problem"] = j.error.message();
    }
    json->push_back(std::move(one));
  }
}

void print_rows_json(const std::vector<Row>& rows, const std::vector<JobEntry>& jobs,
                     const std::vector<HostsEntry>& over_hosts) {
  auto json = nlohmann::ordered_json::array();
  for (const Row& r : rows) {
    const CatalogEntry& e = r.entry;
    nlohmann::ordered_json one;
    one["image"] = r.path;
    one["sequence"] = e.sequence;
    one["program"] = e.comm;
    one["pid"] = e.pid;
    one["state"] = state_of(r);
    if (e.complete) one["restartable"] = r.no_restart.empty();
    one["bytes"] = e.file_bytes;
    if (e.complete) {
      one["run_id"] = run_id_text(e.brief.run_id);
      one["realtime_ns"] = e.brief.realtime_ns;
      one["bytes_memory"] = e.brief.memory_bytes;
      one["parent"] = e.brief.parent.sequence;
    }
    if (r.cost) {
      one["mode"] = mode_name(static_cast<Mode>(r.cost->mode));
      one["pause_ns"] = r.cost->pause_ns;
    }
    if (!e.problem.empty()) one["problem"] = e.problem;
    json.push_back(std::move(one));
  }
  add_jobs_json(jobs, &json);
  add_hosts_jobs_json(over_hosts, &json);
  print_json(json);
}

Result<void> ls(const LsOptions& o) {
  auto catalog = ImageCatalog::list(o.directory);
  if (!catalog.ok()) return catalog.error();
  std::vector<Row> rows;
  add_rows(*catalog, &rows);
  std::vector<JobEntry> jobs = list_jobs(o.directory);
  std::vector<HostsEntry> over_hosts = list_hosts_jobs(o.directory);
  for (const std::string& directory : default_directories(o.directory)) {
    auto inner = ImageCatalog::list(directory);
    if (inner.ok()) add_rows(*inner, &rows);
    for (JobEntry& j : list_jobs(directory)) jobs.push_back(std::move(j));
    for (HostsEntry& j : list_hosts_jobs(directory)) over_hosts.push_back(std::move(j));
  }
  if (o.json) {
    print_rows_json(rows, jobs, over_hosts);
  } else if (rows.empty() && jobs.empty() && over_hosts.empty()) {
    fmt::print(stderr, "ckpt: {}: holds no images\n", brief(o.directory));
  } else {
    print_table(rows);
    print_jobs(jobs);
    print_hosts_jobs(over_hosts);
  }
  return {};
}

}  // namespace

void add_ls(CLI::App& app, ExitCode& exit) {
  CLI::App* command = app.add_subcommand("ls", "list the images of a directory");
  auto o = std::make_shared<LsOptions>();
  command->add_option("DIR", o->directory,
                      "directory of images (default: the current one); its ckpt-NAME.PID directories too");
  command->add_flag("--json", o->json, "print the list as JSON: times in ns, sizes in bytes");
  add_key_option(command);
  command->footer(
      "MODE 'job of N': a directory with the images of N processes, taken at one instant.\n"
      "'N hosts': a job over N hosts; whose parts are in other directories, or on their disks. unseen: not "
      "all\nof them can be seen from here, and what can be is whole.\n"
      "KIND: full, or +N: an increment to number N, without which it cannot be restored. MEMORY: in this "
      "file.\n"
      "STATE: complete; no restart (complete, but no restart of it can be: the line below says why); "
      "unfinished\n"
      "(being written, or left by a writer that died); damaged. A complete image "
      "has\n"
      "a valid header, description and end, and so have its parents; ckpt verify reads every byte.\n"
      "Exit codes: 0 listed (even if there are none), 64 wrong arguments, 66 no such directory, 77 not "
      "permitted.");
  command->callback([o, &exit] {
    auto done = ls(*o);
    exit = done.ok() ? ExitCode::kOk : report(done.error());
  });
}

}  // namespace ckpt::cli
