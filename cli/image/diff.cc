// ckpt diff: what changed between two images.
#include <memory>

#include "cli/image/commands.h"
#include "cli/image/image_diff.h"
#include "cli/image/jobs/job_images.h"
#include "cli/image/jobs/unpacked.h"
#include "cli/image/key_option.h"
#include "cli/image/record_names.h"
#include "cli/text/failure.h"
#include "cli/text/human.h"
#include "cli/text/progress.h"
#include "cli/text/text_out.h"
#include "image/read/sources/image_catalog.h"

namespace ckpt::cli {

namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr ExitCode kDifferent{1};  // as diff(1)

struct DiffOptions {
  std::string a, b;
  bool json = false;
};

const char* change_name(Change change) {
  constexpr const char* kNames[] = {"added", "removed", "changed"};
  return kNames[static_cast<int>(change)];
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& w : words) text += (text.empty() ? "" : ", ") + w;
  return text;
}

// "+ ", "- ", "! ", as diff(1) marks lines.
char mark(Change change) { return "+-!"[static_cast<int>(change)]; }

void print_text(const ImageDiff& d) {
  for (const std::string& what : d.process) fmt::print("! process: {}\n", printable(what));
  for (const ThreadDiff& t : d.threads) {
    fmt::print("{} thread {} {}: {}\n", mark(t.change), t.tid, printable(t.name),
               t.what.empty() ? change_name(t.change) : printable(joined(t.what)));
  }
  for (const MappingDiff& m : d.mappings) {
    std::string text = m.change == Change::kChanged ? joined(m.what) : change_name(m.change);
    if (m.change == Change::kChanged && m.pages_different != 0) {
      text += fmt::format("{}{} of {} pages ({})", text.empty() ? "" : ", ", human_count(m.pages_different),
                          human_count(m.pages), human_bytes(m.pages_different * kPageSize));
    } else if (m.change != Change::kChanged) {
      text += fmt::format(", {} saved", human_bytes(m.pages_different * kPageSize));
    }
    fmt::print("{} mapping {:012x}-{:012x} {}: {}\n", mark(m.change), m.start, m.end,
               m.path.empty() ? mapping_kind_name(m.kind) : printable(m.path), printable(text));
  }
  for (const DescriptorDiff& f : d.descriptors) {
    fmt::print("{} descriptor {} {} {}: {}\n", mark(f.change), f.fd, open_file_kind_name(f.kind),
               printable(f.path), f.what.empty() ? change_name(f.change) : printable(joined(f.what)));
  }
  if (d.pages_different != 0) {
    fmt::print("{} of memory differ\n", human_bytes(d.pages_different * kPageSize));
  }
}

OrderedJson json_of(const ImageDiff& d, const ImageChain& a, const ImageChain& b) {
  OrderedJson j{{"a", a.path()},
                {"b", b.path()},
                {"same", d.same()},
                {"pages_different", d.pages_different},
                {"bytes_different", d.pages_different * kPageSize},
                {"process", d.process}};
  for (const char* list : {"threads", "mappings", "descriptors"}) j[list] = OrderedJson::array();
  for (const ThreadDiff& t : d.threads) {
    j["threads"].push_back(
        {{"tid", t.tid}, {"name", t.name}, {"change", change_name(t.change)}, {"what", t.what}});
  }
  for (const MappingDiff& m : d.mappings) {
    j["mappings"].push_back({{"start", fmt::format("{:#x}", m.start)},
                             {"end", fmt::format("{:#x}", m.end)},
                             {"kind", mapping_kind_name(m.kind)},
                             {"path", m.path},
                             {"change", change_name(m.change)},
                             {"what", m.what},
                             {"pages", m.pages},
                             {"pages_different", m.pages_different}});
  }
  for (const DescriptorDiff& f : d.descriptors) {
    j["descriptors"].push_back({{"fd", f.fd},
                                {"kind", open_file_kind_name(f.kind)},
                                {"path", f.path},
                                {"change", change_name(f.change)},
                                {"what", f.what}});
  }
  return j;
}

Result<ImageChain> open_image(const std::string& argument) {
  auto path = resolve_image(argument);
  if (!path.ok()) return path.error();
  return ImageChain::open(*path);
}

// Process by process; who is in one only is new or gone.
Result<ExitCode> diff_jobs(const DiffOptions& o) {
  const JobEntry a = examine_job(o.a), b = examine_job(o.b);
  if (!a.complete) return a.error;
  if (!b.complete) return b.error;
  bool same = true;
  OrderedJson json = OrderedJson::array();
  auto report_member = [&](const ManifestMember& m, Change change) {
    same = false;
    if (o.json)
      json.push_back({{"pid", m.pid}, {"program", m.name}, {"change", change_name(change)}});
    else
      fmt::print("{} process {} ({})\n", mark(change), m.pid, printable(m.name));
  };
  for (const ManifestMember& m : a.manifest.members) {
    const ManifestMember* other = b.manifest.member(m.pid);
    if (other == nullptr) {
      report_member(m, Change::kRemoved);
      continue;
    }
    if (m.image.empty() || other->image.empty()) {
      if (m.image.empty() != other->image.empty()) report_member(m, Change::kChanged);
      continue;
    }
    auto before = ImageChain::open(a.path + "/" + m.image);
    if (!before.ok()) return before.error();
    auto after = ImageChain::open(b.path + "/" + other->image);
    if (!after.ok()) return after.error();
    auto d = compare_images(*before, *after, [](uint64_t, uint64_t) {});
    if (!d.ok()) return d.error();
    if (d->same()) continue;
    same = false;
    if (o.json) {
      OrderedJson one = json_of(*d, *before, *after);
      one["pid"] = m.pid;
      json.push_back(std::move(one));
    } else {
      fmt::print("process {} ({})\n", m.pid, printable(m.name));
      print_text(*d);
    }
  }
  for (const ManifestMember& m : b.manifest.members) {
    if (a.manifest.member(m.pid) == nullptr) report_member(m, Change::kAdded);
  }
  if (o.json) print_json(json);
  return same ? ExitCode::kOk : kDifferent;
}

Result<ExitCode> diff(DiffOptions& o) {
  CKPT_TRY(unpack_stream(o.a));
  CKPT_TRY(unpack_stream(o.b));
  if (!job_of(o.a).empty() && !job_of(o.b).empty()) return diff_jobs(o);

  auto a = open_image(o.a);
  if (!a.ok()) return a.error();
  auto b = open_image(o.b);
  if (!b.ok()) return b.error();
  Progress progress("comparing");
  auto d = compare_images(*a, *b, [&](uint64_t done, uint64_t total) { progress.update(done, total); });
  progress.clear();
  if (!d.ok()) return d.error();
  if (o.json) {
    print_json(json_of(*d, *a, *b));
  } else {
    print_text(*d);
  }
  return d->same() ? ExitCode::kOk : kDifferent;
}

}  // namespace

void add_diff(CLI::App& app, ExitCode& exit) {
  CLI::App* command = app.add_subcommand("diff", "show what changed between two images");
  auto o = std::make_shared<DiffOptions>();
  command->add_option("A", o->a, "an image, DIR, DIR@-1 or DIR@7")->required();
  command->add_option("B", o->b, "another one, usually a later one")->required();
  command->add_flag("--json", o->json, "print the differences as JSON");
  add_key_option(command);
  command->footer(
      "Threads, mappings and descriptors that came (+), went (-) or changed (!), and how many pages of each\n"
      "mapping differ. Clocks, timers and costs are not compared.\n"
      "Exit codes: 0 the same, 1 different, 64 wrong arguments, 65 damaged (or no image at all), 66 not "
      "found,\n"
      "68 image of another version or architecture, 74 cannot be read, 77 not permitted.");
  command->callback([o, &exit] {
    auto done = diff(*o);
    exit = done.ok() ? *done : report(done.error());
  });
}

}  // namespace ckpt::cli
