// ckpt gc: removes the images that nobody needs any more.
#include <sys/stat.h>

#include <memory>
#include <set>

#include "base/settings/settings.h"
#include "cli/image/commands.h"
#include "cli/image/jobs/job_images.h"
#include "cli/image/key_option.h"
#include "cli/text/failure.h"
#include "cli/text/human.h"
#include "cli/text/text_out.h"
#include "image/read/sources/image_catalog.h"
#include "image/read/sources/reading_key.h"
#include "image/write/directory/image_directory.h"
#include "job/directory/directory_lock.h"
#include "job/directory/job_directory.h"

namespace ckpt::cli {

namespace {

struct GcOptions {
  std::string directory;
  uint32_t keep = 0;
  bool json = false;
};

uint64_t bytes_in(const ImageCatalog& catalog) {
  uint64_t bytes = 0;
  for (const CatalogEntry& e : catalog.entries()) bytes += e.file_bytes;
  return bytes;
}

uint64_t bytes_in(const std::vector<JobEntry>& jobs) {
  uint64_t bytes = 0;
  for (const JobEntry& j : jobs) bytes += j.bytes;
  return bytes;
}

// A directory with the images of a job counts as one.
Result<void> prune_jobs(int directory, const GcOptions& o, const std::vector<JobEntry>& jobs, Pruned* all) {
  if (jobs.empty()) return {};
  job::DirectoryLock lock;
  if (!lock.try_take(directory) || job::is_one_made(directory)) {
    return failure(ExitCode::kUnavailable, o.directory, "a job's checkpoint is being written there",
                   "try again when it is complete");
  }
  all->leftovers += job::remove_dead_jobs(directory);
  std::set<std::string> ids;
  for (const JobEntry& j : jobs) {
    if (!j.complete || !ids.insert(j.manifest.job).second) continue;
    uint8_t id[16];
    for (size_t i = 0; i < sizeof(id); ++i)
      id[i] = static_cast<uint8_t>(std::stoi(j.manifest.job.substr(2 * i, 2), nullptr, 16));
    auto pruned = job::prune_jobs(directory, id, o.keep, reading_key());
    if (!pruned.ok()) return pruned.error();
    all->images += pruned->removed;
    all->kept += pruned->kept;
  }
  return {};
}

Result<void> gc(const GcOptions& o) {
  if (o.keep > kMostKept) {
    return failure(ExitCode::kUsage, "--keep", fmt::format("must be at most {}", kMostKept),
                   "give 0 to keep all");
  }
  auto before = ImageCatalog::list(o.directory);
  if (!before.ok()) return before.error();
  // As for writing: who may remove images here decides what is restarted.
  auto directory = open_image_directory(o.directory.c_str());
  if (!directory.ok()) return directory.error();
  std::set<std::string> runs;
  Pruned all;
  for (const CatalogEntry& e : before->entries()) {
    if (!e.complete || !runs.insert(run_id_text(e.brief.run_id)).second) continue;
    auto pruned = prune_images(directory->get(), e.brief.run_id, o.keep, reading_key());
    if (!pruned.ok()) return pruned.error();
    all.images += pruned->images;
    all.leftovers += pruned->leftovers;
    all.kept += pruned->kept;
  }
  const std::vector<JobEntry> jobs_before = list_jobs(o.directory);
  CKPT_TRY(prune_jobs(directory->get(), o, jobs_before, &all));
  // Of runs that have no image, too.
  all.leftovers += remove_dead_leftovers(directory->get());
  auto after = ImageCatalog::list(o.directory);
  if (!after.ok()) return after.error();
  const uint64_t had = bytes_in(*before) + bytes_in(jobs_before);
  const uint64_t has = bytes_in(*after) + bytes_in(list_jobs(o.directory)), freed = had > has ? had - has : 0;
  if (o.json) {
    print_json({{"directory", o.directory},
                {"images_removed", all.images},
                {"leftovers_removed", all.leftovers},
                {"images_kept", all.kept},
                {"bytes_freed", freed}});
  } else {
    fmt::print("{}: {} removed ({}), {} kept\n", printable(o.directory),
               plural(all.images + all.leftovers, "image", "images"), human_bytes(freed), all.kept);
  }
  return {};
}

}  // namespace

void add_gc(CLI::App& app, ExitCode& exit) {
  CLI::App* command = app.add_subcommand("gc", "remove old images");
  auto o = std::make_shared<GcOptions>();
  command->add_option("DIR", o->directory, "directory of images")->required();
  command
      ->add_option("--keep", o->keep,
                   "complete images of each run that stay, 0 all (then only leftovers of dead writers go)")
      ->required();
  command->add_flag("--json", o->json, "print what was removed as JSON");
  add_key_option(command);
  command->footer(
      "The newest images stay, and every image that one of them is an increment to. Damaged ones are left "
      "alone;\n"
      "remove them by hand when you have looked at them.\n"
      "Exit codes: 0 done, 64 wrong arguments, 66 no such directory, 73 directory cannot be written, 74 read "
      "or\n"
      "write error, 77 not yours.");
  command->callback([o, &exit] {
    auto done = gc(*o);
    exit = done.ok() ? ExitCode::kOk : report(done.error());
  });
}

}  // namespace ckpt::cli
