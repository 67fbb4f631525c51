// ckpt verify: is every byte of an image, or of all images of a directory, as it was written?
#include <sys/stat.h>

#include <memory>

#include "cli/image/commands.h"
#include "cli/image/jobs/job_images.h"
#include "cli/image/jobs/unpacked.h"
#include "cli/image/key_option.h"
#include "cli/image/restartable.h"
#include "cli/text/failure.h"
#include "cli/text/human.h"
#include "cli/text/progress.h"
#include "cli/text/text_out.h"
#include "image/read/image_chain.h"
#include "image/read/sources/image_catalog.h"

namespace ckpt::cli {

namespace {

struct VerifyOptions {
  std::string what;
  bool json = false, restartable = false;
  std::string key_file;
};

struct Verdict {
  std::string path;
  bool ok = false;
  uint64_t bytes = 0;
  Error error;
  std::optional<Error> no_restart;  // whole, but cannot be restarted here; asked for only with --restartable
};

// Parents too, unless these are verified for themselves.
Verdict verify_one(const VerifyOptions& o, const std::string& path, bool parents) {
  Verdict v;
  v.path = path;
  auto image = ImageChain::open(path);
  if (!image.ok()) {
    v.error = image.error();
    return v;
  }
  v.bytes = parents ? image->file_bytes() : image->brief().file_bytes;
  Progress progress(fmt::format("verifying {}", brief(path)));
  auto report = [&](uint64_t done, uint64_t total) { progress.update(done, total); };
  auto whole = parents ? image->verify_all(2, report) : image->newest().verify_data(2, report);
  progress.clear();
  v.ok = whole.ok();
  if (!whole.ok()) v.error = whole.error();
  if (v.ok && o.restartable) v.no_restart = why_not_restartable_here(path, o.key_file);
  return v;
}

// Whether they belong together is looked at first: an image of another checkpoint can be whole.
Result<void> add_job(const JobEntry& job, std::vector<std::string>* paths) {
  if (!job.complete) return job.error;
  for (std::string& path : images_of_job(job)) paths->push_back(std::move(path));
  return {};
}

Result<std::vector<std::string>> images_of(const std::string& what) {
  struct stat st;
  std::vector<std::string> paths;
  if (const std::string job = job_of(what); !job.empty()) {
    CKPT_TRY(add_job(examine_job(job), &paths));
    return paths;
  }
  if (stat(what.c_str(), &st) != 0 || !S_ISDIR(st.st_mode)) {
    auto path = resolve_image(what);
    if (!path.ok()) return path.error();
    return std::vector<std::string>{*path};
  }
  auto catalog = ImageCatalog::list(what);
  if (!catalog.ok()) return catalog.error();
  for (const CatalogEntry& e : catalog->entries()) {
    // Half an image is no damage while it has its temporary name: nothing restarts it.
    if (e.temporary) {
      fmt::print(stderr, "ckpt: {}: unfinished, not verified\n", printable(brief(catalog->path_of(e))));
    } else {
      paths.push_back(catalog->path_of(e));
    }
  }
  for (const JobEntry& job : list_jobs(what)) {
    if (job.temporary)
      fmt::print(stderr, "ckpt: {}: unfinished, not verified\n", printable(brief(job.path)));
    else
      CKPT_TRY(add_job(job, &paths));
  }
  if (paths.empty())
    return failure(ExitCode::kNotFound, what, "holds no images", "name a directory that ckpt ls shows");
  return paths;
}

ExitCode verify(VerifyOptions& o) {
  if (auto r = unpack_stream(o.what); !r.ok()) return report(r.error());
  auto paths = images_of(o.what);
  if (!paths.ok()) return report(paths.error());
  ExitCode exit = ExitCode::kOk;
  auto json = nlohmann::ordered_json::array();
  struct stat st;
  bool verified = false;
  const bool directory = stat(o.what.c_str(), &st) == 0 && S_ISDIR(st.st_mode);
  for (const std::string& path : *paths) {
    Verdict v = verify_one(o, path, !directory);
    if (directory && !v.ok && v.error.code == ExitCode::kNotFound && lstat(path.c_str(), &st) != 0) {
      // As programs do with their old images, parents last.
      fmt::print(stderr, "ckpt: {}: removed meanwhile, not verified\n", printable(brief(path)));
      continue;
    }
    verified = true;
    // The first thing wrong decides the code, but damage outranks what merely cannot be read here.
    if (!v.ok && (exit == ExitCode::kOk || v.error.code == ExitCode::kImageDamaged)) exit = v.error.code;
    if (v.no_restart && exit == ExitCode::kOk) exit = v.no_restart->code;
    if (o.json) {
      nlohmann::ordered_json one{{"image", as_given(v.path)}, {"ok", v.ok}, {"bytes", v.bytes}};
      if (!v.ok) {
        one["code"] = static_cast<int>(v.error.code);
        one["problem"] = std::string(v.error.message());
      } else if (o.restartable) {
        one["restartable"] = !v.no_restart;
        if (v.no_restart) {
          one["code"] = static_cast<int>(v.no_restart->code);
          one["problem"] = std::string(v.no_restart->message());
        }
      }
      json.push_back(std::move(one));
    } else if (v.ok) {
      fmt::print("{}: whole ({}){}\n", printable(as_given(v.path)), human_bytes(v.bytes),
                 !o.restartable ? ""
                 : v.no_restart ? ", cannot be restarted here"
                                : ", can be restarted here");
      if (v.no_restart) fmt::print(stderr, "ckpt: {}\n", printable(v.no_restart->message()));
    } else {
      fmt::print(stderr, "ckpt: {}\n", printable(v.error.message()));
    }
  }
  if (!verified)
    return report(
        failure(ExitCode::kNotFound, o.what, "all its images were removed meanwhile", "verify it again"));
  if (o.json) print_json(json);
  return exit;
}

}  // namespace

void add_verify(CLI::App& app, ExitCode& exit) {
  CLI::App* command = app.add_subcommand("verify", "check every byte of an image against its checksums");
  auto o = std::make_shared<VerifyOptions>();
  command->add_option("IMAGE", o->what, "an image with its parents, or a directory for all of its images")
      ->required();
  command->add_flag("--json", o->json, "print the verdicts as JSON");
  command->add_flag("--restartable", o->restartable,
                    "also check all that a restart needs here: files, addresses, the machine; nothing is\n"
                    "started or changed");
  add_key_option(command);
  command->footer(
      "Exit codes: 0 whole, 64 wrong arguments, 65 damaged (or no image at all), 66 not found, 68 image of "
      "another\n"
      "version or architecture, 74 cannot be read, 77 not permitted; with --restartable 76 no restart of it "
      "can "
      "be,\n"
      "else that of ckpt-restart: 69 ids in use, 72 a file is missing or has changed.");
  command->callback([o, command, &exit] {
    o->key_file = command->get_option("--key-file")->as<std::string>();
    exit = verify(*o);
  });
}

}  // namespace ckpt::cli
