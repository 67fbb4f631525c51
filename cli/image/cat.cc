// ckpt cat: an image on standard output, full, for another machine or ckpt-restart -.
#include <signal.h>
#include <unistd.h>

#include <memory>

#include "cli/commands.h"
#include "cli/image/key_option.h"
#include "cli/text/failure.h"
#include "cli/text/progress.h"
#include "image/read/image_catalog.h"
#include "image/read/reading_key.h"
#include "image/rewrite/image_rewrite.h"
#include "image/write/image_stream.h"

namespace ckpt::cli {

namespace {

struct CatOptions {
  std::string image;
  std::string compress;
};

Result<void> cat(const CatOptions& o) {
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
  auto path = resolve_image(o.image);
  if (!path.ok()) return path.error();
  auto image = ImageChain::open(*path);
  if (!image.ok()) return image.error();
  if (o.compress.empty()) options.codec = codec_of(*image);
  signal(SIGPIPE, SIG_IGN);  // errors like any other
  signal(SIGXFSZ, SIG_IGN);
  ImageStream output(STDOUT_FILENO, "standard output");
  options.output = &output;
  options.key = reading_key();
  Progress progress(fmt::format("sending {}", brief(image->path())));
  auto stats = rewrite_as_full(*image, options, -1, "",
                               [&](uint64_t done, uint64_t total) { progress.update(done, total); });
  progress.clear();
  if (!stats.ok() && stats.error().sys_errno == EPIPE) {
    return failure(ExitCode::kIo, "standard output", "closed before the image was complete",
                   "see the command behind the pipe");
  }
  if (!stats.ok()) return stats.error();
  return {};
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
      "An increment is sent as a full image. Every byte is checked on the way: when something is wrong the "
      "image\n"
      "ends early and is refused by whoever reads it.\n"
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
