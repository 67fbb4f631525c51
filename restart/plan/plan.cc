#include "restart/plan/plan.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "image/format/saved_file_names.h"
#include "image/read/sources/reading_trust.h"
#include "restart/descriptors/descriptors.h"
#include "restart/plan/check_files.h"
#include "restart/plan/check_machine.h"
#include "restart/plan/memory/memory_plan.h"
#include "restart/plan/system_v.h"

namespace ckpt {
namespace {

std::string directory_of(const std::string& path) {
  size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

Result<RestartPlan> open_plan(const std::string& image_path) {
  auto image = ImageChain::open(image_path);
  if (!image.ok()) return image.error();
  RestartPlan plan;
  plan.image = std::make_unique<ImageChain>(std::move(*image));
  // The program comes back in its own working directory: what is written there later needs a whole path.
  char* whole = realpath(directory_of(image_path).c_str(), nullptr);
  plan.image_directory = whole != nullptr ? whole : directory_of(image_path);
  free(whole);
  for (const ParsedThread& t : plan.image->meta().threads) plan.tids.push_back(t.record.tid);
  for (const ParsedNote& n : plan.image->meta().notes) {
    if (n.severity == kNoRestart) {
      return make_error(ExitCode::kNotRestartable, 0, "{} cannot be restarted: {}", image_path, n.text);
    }
    if (n.severity == kChanged) plan.notes.emplace_back(n.text);
  }
  return plan;
}

namespace {

// Memory that others see: they keep what is put there, also when the restart fails afterwards.
bool is_of_others(const ParsedMapping& m) {
  const auto kind = static_cast<MappingKind>(m.record.kind);
  return kind == MappingKind::kFileShared || kind == MappingKind::kSysV;
}

// The Feeder and the loader check memory while they load it. That is too late for memory that others see.
Result<void> check_what_others_see(const RestartPlan& plan, const VerifyProgress& progress) {
  const auto& mappings = plan.image->meta().mappings;
  auto seen_by_others = [](const ParsedMapping& mapping) {
    return is_of_others(mapping) && takes_image_bytes(mapping);
  };
  if (std::none_of(mappings.begin(), mappings.end(), seen_by_others)) return {};
  std::vector<ExtentOfImage> extents;
  size_t m = 0;
  for (const MemoryPiece& p : plan.image->pieces()) {
    while (mappings[m].record.end <= p.address.value) ++m;
    bool seen = false;
    for (size_t i = m; i < mappings.size() && mappings[i].record.start < (p.address + p.length).value; ++i) {
      seen = seen || seen_by_others(mappings[i]);
    }
    if (seen) extents.push_back({&plan.image->image(p.image), &plan.image->extent_of(p)});
  }
  auto place = [](const ExtentOfImage& e) { return std::pair(e.image, e.extent->offset); };
  std::sort(extents.begin(), extents.end(),
            [&](const auto& a, const auto& b) { return place(a) < place(b); });
  extents.erase(std::unique(extents.begin(), extents.end(),
                            [&](const auto& a, const auto& b) { return place(a) == place(b); }),
                extents.end());
  return check_extents(std::move(extents), 2, progress);
}

DescriptorOptions options_of_check(const RestartPlan& plan) {
  DescriptorOptions options;
  options.image_directory = plan.image_directory;
  options.sequence = plan.image->brief().sequence;
  options.taken_ns = plan.image->meta().process.record.realtime_ns;
  options.saved_files = saved_files_of(*plan.image, plan.image_directory);
  return options;
}

}  // namespace

Result<void> load_eagerly(RestartPlan& plan, const VerifyProgress& progress) {
  const ImageMeta& meta = plan.image->meta();
  plan.lazy = {};
  CKPT_TRY(check_what_others_see(plan, progress));
  plan.fill = make_fill_plan(*plan.image, plan.image->size() == 1,
                             [&](uint32_t i) { return takes_image_bytes(meta.mappings[i]); });
  return {};
}

std::string saved_files_of(const ImageChain& image, const std::string& image_directory) {
  const bool of_job = image_directory.ends_with(".job");
  const SavedFileName name =
      saved_files_directory_of(of_job ? std::string_view(kJobSavedFiles) : image.path());
  return name.text[0] == '\0' ? "" : image_directory + "/" + name.text;
}

Result<void> check_is_whole(const RestartPlan& plan) {
  for (const ParsedMapping& m : plan.image->meta().mappings) {
    if ((m.record.flags & kMapElsewhere) == 0) continue;
    return make_error(
        ExitCode::kUnsupported, 0,
        "{} is of a member of a job, and memory at {:x}-{:x}, which it shares with others, is in "
        "another member's image: restart the job ({})",
        plan.image->path(), m.record.start, m.record.end, plan.image_directory);
  }
  return {};
}

void add_changing_files(const RestartPlan& plan, WrittenFiles& files) {
  add_written_files(plan.image->meta(), files);
  add_files_put_back(plan.image->meta(), options_of_check(plan), files);
}

Result<void> check_plan(RestartPlan& plan, Loading loading, const VerifyProgress& progress) {
  const ImageMeta& meta = plan.image->meta();
  auto vdso = find_vdso();
  if (!vdso.ok()) return vdso.error();
  plan.vdso = std::move(*vdso);
  CKPT_TRY(check_machine(*plan.image, plan.vdso));
  add_returning_files(meta, plan.returning);
  add_changing_files(plan, plan.written);
  add_shared_files(meta, plan.shared);
  DescriptorOptions options = options_of_check(plan);
  options.returning = plan.returning;
  CKPT_TRY(check_trust_in_saved_files(options.saved_files));
  CKPT_TRY(check_mapped_files(meta, plan.returning, plan.written, {options.saved_files, plan.shared}));
  CKPT_TRY(check_descriptors(meta, options));
  CKPT_TRY(check_system_v(meta, plan.notes));
  if (loading == Loading::kNone) CKPT_TRY(plan.image->verify_used(2, progress));
  if (loading == Loading::kNone || loading == Loading::kEager) return load_eagerly(plan, progress);
  LazyPlan lazy = make_lazy_plan(*plan.image);
  if (!lazy.any() || (loading == Loading::kAuto && lazy.bytes < kLazyFrom))
    return load_eagerly(plan, progress);
  if (auto allowed = probe_lazy(); !allowed.ok()) {
    if (loading == Loading::kLazy) {
      plan.notes.push_back(
          fmt::format("all memory is loaded before the program runs: {}", allowed.error().text));
    }
    return load_eagerly(plan, progress);
  }
  plan.lazy = std::move(lazy);
  CKPT_TRY(check_what_others_see(plan, progress));
  plan.fill = make_fill_plan(*plan.image, false, [&](uint32_t i) {
    return !plan.lazy.lazy(i) && takes_image_bytes(meta.mappings[i]);
  });
  return {};
}

}  // namespace ckpt
