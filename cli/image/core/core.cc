// ckpt core: an image as an ELF core file.
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <list>
#include <memory>
#include <set>

#include "cli/image/commands.h"
#include "cli/image/core/elf_core.h"
#include "cli/image/jobs/unpacked.h"
#include "cli/image/key_option.h"
#include "cli/text/failure.h"
#include "cli/text/human.h"
#include "cli/text/progress.h"
#include "cli/text/text_out.h"
#include "image/read/manifest.h"
#include "image/read/sources/image_catalog.h"

namespace ckpt::cli {

namespace {

struct CoreOptions {
  std::string image, output;
};

// Shared memory of a job is in the image of one of its processes (docs/shared_memory.md).
class Savers {
 public:
  Result<void> open(const std::string& path, const ImageChain& image) {
    const auto& mappings = image.meta().mappings;
    std::set<uint64_t> wanted;
    for (const ParsedMapping& m : mappings) {
      if ((m.record.flags & kMapElsewhere) != 0) wanted.insert(m.record.object);
    }
    if (wanted.empty()) return {};
    const std::string directory = std::filesystem::path(path).parent_path();
    auto manifest = read_manifest(directory.empty() ? "." : directory);
    if (!manifest.ok()) return manifest.error();
    std::set<int> pids;
    for (const auto& [object, pid] : manifest->owners) {
      if (wanted.count(object) != 0) pids.insert(pid);
    }
    for (const int pid : pids) {
      const std::string name = manifest->member(pid)->image;
      const std::string whole = std::filesystem::path(directory) / name;
      auto saver = ImageChain::open(whole);
      if (!saver.ok()) return saver.error();
      for (const ManifestFile& f : manifest->files) {
        const ImageBrief& is = saver->brief();
        if (f.name == name &&
            (f.bytes != is.file_bytes ||
             (!f.checksum.empty() && f.checksum != fmt::format("{:016x}", is.meta_checksum))))
          return failure(ExitCode::kImageDamaged, whole, "is not of this job's checkpoint",
                         "put its own image there");
      }
      memories_.emplace_back(images_.emplace_back(std::move(*saver)));
    }
    for (const ParsedMapping& m : mappings) {
      if ((m.record.flags & kMapElsewhere) != 0 && !is_saved(m))
        return failure(
            ExitCode::kImageDamaged, path,
            fmt::format("shares memory at {:x}-{:x} with other processes of its job, and it is in no "
                        "image",
                        m.record.start, m.record.end),
            "images of different checkpoints are mixed: put its own beside it");
    }
    return {};
  }
  void add_to(SavedMemory& memory) {
    for (SavedMemory& m : memories_) memory.add_member(m);
  }

 private:
  bool is_saved(const ParsedMapping& wanted) const {
    return std::any_of(images_.begin(), images_.end(), [&](const ImageChain& image) {
      const auto& mappings = image.meta().mappings;
      return std::any_of(mappings.begin(), mappings.end(),
                         [&](const ParsedMapping& m) { return has_bytes_of(m.record, wanted.record); });
    });
  }

  std::list<ImageChain> images_;
  std::list<SavedMemory> memories_;
};

Result<void> core(CoreOptions& o) {
  CKPT_TRY(unpack_stream(o.image));
  auto path = resolve_image(o.image);
  if (!path.ok()) return path.error();
  auto image = ImageChain::open(*path);
  if (!image.ok()) return image.error();
  std::string output = o.output;
  if (output.empty())
    output = fmt::format("core.{}.{}", image->meta().process.record.pid, image->brief().sequence);
  signal(SIGXFSZ, SIG_IGN);  // an error like any other
  Savers savers;
  CKPT_TRY(savers.open(*path, *image));
  SavedMemory memory(*image);
  savers.add_to(memory);
  Progress progress(fmt::format("writing {}", brief(output)));
  auto size = write_core(*image, memory, output,
                         [&](uint64_t done, uint64_t total) { progress.update(done, total); });
  progress.clear();
  if (!size.ok()) return size.error();
  fmt::print("{}: {}, {} of memory; gdb {} {}\n", printable(output),
             plural(size->threads, "thread", "threads"), human_bytes(size->memory_bytes),
             printable(image->meta().mm.exe_path), printable(output));
  return {};
}

}  // namespace

void add_core(CLI::App& app, ExitCode& exit) {
  CLI::App* command = app.add_subcommand("core", "make an ELF core file of an image, for gdb");
  auto o = std::make_shared<CoreOptions>();
  command
      ->add_option(
          "IMAGE", o->image,
          "an image; DIR for the newest of a directory, DIR@-1 for the one before, DIR@7 for number 7")
      ->required();
  command->add_option("-o,--output", o->output,
                      "the file to write (default: core.PID.SEQUENCE in the current directory)");
  add_key_option(command);
  command->footer(
      "All threads with all registers, and all memory that the image holds; holes take no space. Code and "
      "other\n"
      "unchanged pages of files are left out: the debugger takes them from the files, which must be the "
      "same.\n"
      "Exit codes: 0 written, 64 wrong arguments or several programs in the directory, 65 damaged (or no "
      "image at\n"
      "all), 66 not found, 68 image of another version or architecture, 73 cannot be created, 74 read or "
      "write\n"
      "error, 77 not permitted.");
  command->callback([o, &exit] {
    auto done = core(*o);
    exit = done.ok() ? ExitCode::kOk : report(done.error());
  });
}

}  // namespace ckpt::cli
