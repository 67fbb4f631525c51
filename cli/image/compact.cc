// ckpt compact: makes a full image of an increment and its parents.
#include <signal.h>

#include <memory>

#include "cli/image/commands.h"
#include "cli/image/key_option.h"
#include "cli/text/failure.h"
#include "cli/text/human.h"
#include "cli/text/progress.h"
#include "cli/text/text_out.h"
#include "image/format/image_name.h"
#include "image/read/sources/image_catalog.h"
#include "image/read/sources/reading_key.h"
#include "image/rewrite/image_rewrite.h"
#include "image/write/directory/image_directory.h"

namespace ckpt::cli {

namespace {

struct CompactOptions {
  std::string image;
  bool json = false;
};

Result<void> compact(const CompactOptions& o) {
  auto path = resolve_image(o.image);
  if (!path.ok()) return path.error();
  auto image = ImageChain::open(*path);
  if (!image.ok()) return image.error();
  uint64_t images = image->size(), before = image->file_bytes(), after = before;
  if (images > 1) {
    size_t slash = path->rfind('/');
    std::string name = slash == std::string::npos ? *path : path->substr(slash + 1);
    ParsedImageName parsed;
    if (!parse_image_name(name, &parsed) || parsed.temporary) {
      return failure(ExitCode::kUsage, *path, "has not the name of an image",
                     "give it back the name it was written with");
    }
    auto directory =
        open_image_directory(slash == std::string::npos ? "." : path->substr(0, slash + 1).c_str());
    if (!directory.ok()) return directory.error();
    signal(SIGXFSZ, SIG_IGN);  // an error like any other
    Progress progress(fmt::format("compacting {}", brief(*path)));
    SinkOptions options;
    options.codec = codec_of(*image);
    options.replace = true;
    options.key = reading_key();
    auto stats = rewrite_as_full(*image, options, directory->get(), name.c_str(),
                                 [&](uint64_t done, uint64_t total) { progress.update(done, total); });
    progress.clear();
    if (!stats.ok()) return stats.error();
    after = stats->bytes_written;
  }
  if (o.json) {
    print_json({{"image", *path}, {"images", images}, {"bytes_before", before}, {"bytes", after}});
  } else if (images == 1) {
    fmt::print("{}: is a full image\n", printable(*path));
  } else {
    fmt::print("{}: {} ({}) are one of {}; its parents are needed for their own sake only\n",
               printable(*path), plural(images, "image", "images"), human_bytes(before), human_bytes(after));
  }
  return {};
}

}  // namespace

void add_compact(CLI::App& app, ExitCode& exit) {
  CLI::App* command = app.add_subcommand("compact", "make an increment a full image");
  auto o = std::make_shared<CompactOptions>();
  command
      ->add_option(
          "IMAGE", o->image,
          "an image; DIR for the newest of a directory, DIR@-1 for the one before, DIR@7 for number 7")
      ->required();
  command->add_flag("--json", o->json, "print what became of it as JSON");
  add_key_option(command);
  command->footer(
      "The new file replaces the old one when it is durable, in one step: whenever this is interrupted, the "
      "image\n"
      "can be restored. It needs room for both. Images that are increments to it stay so; its parents stay "
      "until\n"
      "ckpt gc. The program may go on taking checkpoints meanwhile.\n"
      "Exit codes: 0 done, or full already; 64 wrong arguments or several programs in the directory, 65 "
      "damaged (or\n"
      "no image at all), 66 not found, 68 image of another version or architecture, 73 directory cannot be "
      "written,\n"
      "74 read or write error, 77 not yours.");
  command->callback([o, &exit] {
    auto done = compact(*o);
    exit = done.ok() ? ExitCode::kOk : report(done.error());
  });
}

}  // namespace ckpt::cli
