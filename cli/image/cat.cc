// ckpt cat: an image on standard output, full, for another machine or ckpt-restart -.
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <span>

#include "cli/image/commands.h"
#include "cli/image/jobs/job_images.h"
#include "cli/image/jobs/unpacked.h"
#include "cli/image/key_option.h"
#include "cli/text/failure.h"
#include "cli/text/progress.h"
#include "image/read/sources/image_catalog.h"
#include "image/read/sources/reading_key.h"
#include "image/rewrite/image_rewrite.h"
#include "image/write/image_stream.h"
#include "image/write/job_stream_output.h"
#include "job/format/job_name.h"

namespace ckpt::cli {

namespace {

struct CatOptions {
  std::string image;
  std::string compress;
};

// Returns the bytes sent.
Result<uint64_t> send(const CatOptions& o, SinkOptions options, const std::string& path) {
  auto image = ImageChain::open(path);
  if (!image.ok()) return image.error();
  if (o.compress.empty()) options.codec = codec_of(*image);
  Progress progress(fmt::format("sending {}", brief(image->path())));
  auto stats = rewrite_as_full(*image, options, -1, "",
                               [&](uint64_t done, uint64_t total) { progress.update(done, total); });
  progress.clear();
  return stats.ok() ? Result<uint64_t>(stats->bytes_written) : stats.error();
}

// As its processes stream it (image/format/job_stream.h). Images that are full now say the same of
// themselves, and have another size.
Result<void> send_job(const CatOptions& o, SinkOptions options, const std::string& directory) {
  const JobEntry job = examine_job(directory);
  if (!job.complete) return job.error;
  const JobStreamEnds ends{STDOUT_FILENO};
  auto put = [](long r) {
    return r == 0 ? Result<void>()
                  : make_error(ExitCode::kIo, static_cast<int>(-r), "standard output: cannot be written ({})",
                               errno_name(static_cast<int>(r)));
  };
  CKPT_TRY(put(write_job_head(ends)));
  std::map<std::string, uint64_t> sizes;
  for (const ManifestMember& m : job.manifest.members) {
    if (m.image.empty()) continue;
    struct stat st;
    if (stat((job.path + "/" + m.image).c_str(), &st) == 0 && st.st_uid != geteuid() && st.st_uid != 0)
      return failure(ExitCode::kUnsupported, job.path + "/" + m.image,
                     fmt::format("belongs to user {}, which a stream does not tell", st.st_uid),
                     "send the directory as it is (tar)");
    JobStreamOutput output;
    output.open(ends, static_cast<uint32_t>(m.pid), "standard output");
    options.output = &output;
    auto sent = send(o, options, job.path + "/" + m.image);
    if (!sent.ok()) return sent.error();
    sizes[m.image] = *sent;
  }
  std::ifstream file(job.path + "/" + job::kManifestName, std::ios::binary);
  const std::string text = with_sizes({std::istreambuf_iterator<char>(file), {}}, sizes);
  const std::span<const std::byte> bytes = std::as_bytes(std::span(text));
  CKPT_TRY(put(write_job_frame(ends, JobFrame::kBytes, kJobManifestEntry, bytes.size(), bytes.data())));
  CKPT_TRY(put(write_job_frame(ends, JobFrame::kWhole, kJobManifestEntry, bytes.size())));
  return put(write_job_frame(ends, JobFrame::kEnd, static_cast<uint32_t>(sizes.size()) + 1, 0));
}

Result<void> cat(CatOptions& o) {
  SinkOptions options;
  if (!o.compress.empty()) {
    auto compression = parse_compression("--compress", o.compress.c_str());
    if (!compression.ok()) return compression.error();
    set_compression(options, *compression);
  }
  if (isatty(STDOUT_FILENO) != 0) {
    return failure(ExitCode::kUsage, "standard output", "is a terminal, and an image no text",
                   "pipe it, or send it to a file");
  }
  CKPT_TRY(unpack_stream(o.image));
  signal(SIGPIPE, SIG_IGN);  // errors like any other
  signal(SIGXFSZ, SIG_IGN);
  options.key = reading_key();
  auto sent = Result<void>();
  if (const std::string job = job_of(o.image); !job.empty()) {
    sent = send_job(o, options, job);
  } else {
    auto path = resolve_image(o.image);
    if (!path.ok()) return path.error();
    ImageStream output(STDOUT_FILENO, "standard output");
    options.output = &output;
    auto bytes = send(o, options, *path);
    if (!bytes.ok()) sent = bytes.error();
  }
  if (sent.ok() || sent.error().sys_errno != EPIPE) return sent;
  return failure(ExitCode::kIo, "standard output", "closed before the image was complete",
                 "see the command behind the pipe");
}

}  // namespace

void add_cat(CLI::App& app, ExitCode& exit) {
  CLI::App* command = app.add_subcommand("cat", "write an image to standard output, with its parents as one");
  auto o = std::make_shared<CatOptions>();
  command
      ->add_option(
          "IMAGE", o->image,
          "an image; DIR for the newest of a directory, DIR@-1 for the one before, DIR@7 for number 7; - for "
          "standard input")
      ->required();
  command
      ->add_option("--compress", o->compress,
                   "none, lz4, zstd, zstd:1 to zstd:19, or auto (default: as it is)")
      ->option_text("HOW");
  add_key_option(command);
  command->footer(
      "An increment is sent as a full image, the checkpoint of a job with all its images.\n"
      "Every byte is checked on the way: when something is wrong the stream ends early and is refused by\n"
      "whoever reads it.\n"
      "    ckpt cat images | ssh other ckpt-restart -\n"
      "Exit codes: 0 done, 64 wrong arguments or several programs in the directory, 65 damaged (or no image "
      "at all),\n"
      "66 not found, 68 image of another version or architecture, 74 read or write error, 77 not permitted.");
  command->callback([o, &exit] {
    auto done = cat(*o);
    exit = done.ok() ? ExitCode::kOk : report(done.error());
  });
}

}  // namespace ckpt::cli
