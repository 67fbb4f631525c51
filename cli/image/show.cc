// ckpt show: what is in an image.
#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "base/settings/settings.h"
#include "cli/image/commands.h"
#include "cli/image/core/image_backtrace.h"
#include "cli/image/jobs/job_images.h"
#include "cli/image/jobs/unpacked.h"
#include "cli/image/key_option.h"
#include "cli/image/record_names.h"
#include "cli/image/restartable.h"
#include "cli/text/cost.h"
#include "cli/text/failure.h"
#include "cli/text/human.h"
#include "cli/text/text_out.h"
#include "image/read/image_chain.h"
#include "image/read/sources/image_catalog.h"

namespace ckpt::cli {

namespace {

struct ShowOptions {
  std::string image;
  bool json = false;
  size_t frames = 16;
};

using OrderedJson = nlohmann::ordered_json;

std::string hex(uint64_t value) { return fmt::format("{:#x}", value); }

bool is_shared(const MappingRecord& m) {
  auto kind = static_cast<MappingKind>(m.kind);
  return kind == MappingKind::kFileShared || kind == MappingKind::kSharedAnonymous ||
         kind == MappingKind::kSysV ||
         ((kind == MappingKind::kMemfd || kind == MappingKind::kDevice) && (m.flags & kMapPrivate) == 0);
}

// Bytes of memory in the image for each mapping, and what they take in the file: both lists are in
// address order. An extent of several mappings costs each its share; memory that repeats another's costs
// nothing.
struct Saved {
  uint64_t memory = 0, file = 0;
};

std::vector<Saved> saved_bytes(const ImageChain& image) {
  const auto& mappings = image.meta().mappings;
  std::vector<Saved> saved(mappings.size());
  std::map<std::pair<uint32_t, uint64_t>, uint32_t> first;  // extent at a place of an image
  size_t at = 0;
  for (const MemoryPiece& p : image.pieces()) {
    uint64_t begin = p.address.value, end = begin + p.length;
    const Extent& e = image.extent_of(p);
    const bool repeats = first.try_emplace({p.image, e.offset.value}, p.extent).first->second != p.extent;
    while (at < mappings.size() && mappings[at].record.end <= begin) ++at;
    for (size_t i = at; i < mappings.size() && mappings[i].record.start < end; ++i) {
      uint64_t bytes = std::min(end, mappings[i].record.end) - std::max(begin, mappings[i].record.start);
      saved[i].memory += bytes;
      if (!repeats) saved[i].file += e.stored * bytes / e.length;
    }
  }
  return saved;
}

const char* severity_name(uint32_t severity) {
  constexpr const char* kNames[] = {"note", "changed after restart", "cannot be restarted"};
  return severity < 3 ? kNames[severity] : "?";
}

void heading(std::string_view text) { fmt::print("\n{}\n", text); }

void print_process(const ImageChain& image) {
  auto line = [](const char* what, const std::string& value) { fmt::print("  {:<24}{}\n", what, value); };
  const ImageMeta& m = image.meta();
  const ProcessRecord& p = m.process.record;
  fmt::print("{}\n", printable(as_given(image.path())));
  line("program", fmt::format("{} ({})", printable(m.process.comm), printable(m.mm.exe_path)));
  line("pid, parent, session", fmt::format("{}, {}, {}", p.pid, p.ppid, p.sid));
  line("user, group", fmt::format("{}, {}", p.uid[1], p.gid[1]));
  line("working directory", printable(m.process.cwd));
  line("taken", fmt::format("{}, as number {} of run {}", human_time(p.realtime_ns), image.brief().sequence,
                            run_id_text(image.brief().run_id).substr(0, 8)));
  uint64_t pages = 0;
  std::set<uint64_t> places;
  for (const Extent& e : image.newest().extents()) {
    if (places.insert(e.offset.value).second) pages += round_up_to_block(e.stored);
  }
  uint64_t index = image.brief().index_bytes + image.brief().inherited_bytes,
           description = image.brief().meta_bytes;
  line("memory, file",
       fmt::format("{}, {}", human_bytes(image.memory_bytes()), human_bytes(image.brief().file_bytes)));
  if (image.size() > 1) {
    line("increment to",
         fmt::format("number {}, {}", image.brief().parent.sequence, printable(image.brief().parent.name)));
    line("chain",
         fmt::format("{}, {}; {} of the memory are in this one", plural(image.size(), "image", "images"),
                     human_bytes(image.file_bytes()), human_bytes(image.brief().memory_bytes)));
  }
  line("of the file", fmt::format("{} memory, {} description, {} index, {} frame and padding",
                                  human_bytes(pages), human_bytes(description), human_bytes(index),
                                  human_bytes(image.brief().file_bytes - pages - description - index)));
  if (auto cost = cost_of(m)) {
    line("mode", mode_name(static_cast<Mode>(cost->mode)));
    line("threads stood", human_duration(cost->pause_ns));
    line("longest wait on a page", human_duration(cost->longest_wait_ns));
    line("copies", fmt::format("{} forced, {} sequential, {} at release", human_count(cost->forced_copies),
                               human_count(cost->sequential_copies), human_count(cost->release_copies)));
    line("copied after", human_duration(cost->copied_ns));
  }
  line("checkpoint signal", fmt::format("{}", p.checkpoint_signal));
  line("library", printable(m.process.library_path));
}

const char* thread_state(const ParsedThread& t, ImageBacktrace& backtrace) {
  if ((t.record.flags & kThreadLeaderExited) != 0) return "exited";
  return backtrace.was_in_system_call(t) ? "in a call" : "running";
}

std::string frame_text(const Frame& f) {
  std::string text = f.function.empty()
                         ? f.module.empty() ? "?" : fmt::format("{}+{:#x}", f.module, f.module_offset)
                         : fmt::format("{} + {:#x}", f.function, f.offset);
  if (!f.function.empty() && !f.module.empty()) text += fmt::format(" ({})", f.module);
  if (!f.source.empty()) text += fmt::format(" at {}", f.source);
  return printable(text);
}

void print_threads(const ImageChain& image, size_t frames) {
  SavedMemory memory(image);
  ImageBacktrace backtrace(image, memory);
  const auto& threads = image.meta().threads;
  heading(plural(threads.size(), "thread", "threads"));
  fmt::print("  {:>8}  {:<16} {:<9}  {:>18}  {:>16}\n", "TID", "NAME", "STATE", "SP", "BLOCKED SIGNALS");
  for (const ParsedThread& t : threads) {
    fmt::print("  {:>8}  {:<16} {:<9}  {:>#18x}  {:016x}\n", t.record.tid, printable(t.name),
               thread_state(t, backtrace), t.record.rsp, t.record.signal_mask);
    if (frames == 0) continue;
    size_t number = 0;
    for (const Frame& f : backtrace.of(t, frames))
      fmt::print("    #{:<3}{:#018x} {}\n", number++, f.ip, frame_text(f));
  }
  for (const std::string& file : backtrace.left_out()) {
    fmt::print("  no names from {}\n", printable(file));
  }
}

void print_lists(const ImageChain& image) {
  const ImageMeta& m = image.meta();
  heading(plural(m.mappings.size(), "mapping", "mappings"));
  std::vector<Saved> saved = saved_bytes(image);
  fmt::print("  {:<27} {:<4}  {:>9}  {:>9}  {:>9}  {:<16}  {}\n", "ADDRESS", "PROT", "SIZE", "SAVED",
             "IN FILE", "KIND", "PATH");
  for (size_t i = 0; i < m.mappings.size(); ++i) {
    const ParsedMapping& x = m.mappings[i];
    fmt::print("  {:012x}-{:012x}   {:<4}  {:>9}  {:>9}  {:>9}  {:<16}  {}\n", x.record.start, x.record.end,
               protection_text(x.record.prot, is_shared(x.record)),
               human_bytes(x.record.end - x.record.start), human_bytes(saved[i].memory),
               human_bytes(saved[i].file), mapping_kind_name(x.record.kind), printable(x.path));
  }
  heading(plural(m.descriptors.size(), "descriptor", "descriptors"));
  fmt::print("  {:>5}  {:<16}  {:<12}  {:>12}  {}\n", "FD", "KIND", "ACCESS", "OFFSET", "PATH");
  for (const DescriptorRecord& d : m.descriptors) {
    const ParsedOpenFile* f = m.open_file(d.open_file);
    if (f == nullptr) continue;
    fmt::print("  {:>5}  {:<16}  {:<12}  {:>12}  {}{}\n", d.fd, open_file_kind_name(f->record.kind),
               access_text(f->record.open_flags), f->record.offset, printable(f->path),
               (f->record.flags & kOpenFileDeleted) != 0 ? " (deleted, contents saved)" : "");
  }
  if (!m.actions.empty()) {
    heading(plural(m.actions.size(), "signal action", "signal actions"));
    for (const SignalActionRecord& a : m.actions) {
      fmt::print("  {:<14} {}\n", signal_text(static_cast<int>(a.signal)),
                 a.handler == 1 ? "ignored" : hex(a.handler));
    }
  }
  if (!m.pending.empty()) {
    heading(plural(m.pending.size(), "pending signal", "pending signals"));
    for (const PendingSignalRecord& s : m.pending) {
      fmt::print("  {:<14} of {}\n", signal_text(s.signal),
                 s.tid == 0 ? "the process" : fmt::format("thread {}", s.tid));
    }
  }
  if (!m.system_v.empty()) {
    heading(plural(m.system_v.size(), "System V object", "System V objects"));
    for (const ParsedSystemV& o : m.system_v) fmt::print("  {}\n", system_v_text(o));
  }
  for (const std::string& why : what_forbids_restart(m))
    fmt::print("\nCANNOT BE RESTARTED: {}\n", printable(why));
  if (!m.notes.empty()) heading(plural(m.notes.size(), "note", "notes"));
  for (const ParsedNote& n : m.notes) fmt::print("  {}: {}\n", severity_name(n.severity), printable(n.text));
}

OrderedJson system_v_json(const ParsedSystemV& o) {
  OrderedJson j{{"kind", system_v_kind_name(o.kind())},
                {"id", o.record.id},
                {"key", o.record.key},
                {"mode", o.record.mode},
                {"uid", o.record.uid}};
  if (o.kind() == SystemVKind::kSemaphores) {
    j["values"] = o.values;
  } else {
    j["limit"] = o.record.limit;
    j["messages"] = OrderedJson::array();
    for (const auto& [type, text] : o.messages)
      j["messages"].push_back({{"type", type}, {"bytes", text.size()}});
  }
  return j;
}

// Of the vdso's code, for a restart under another kernel.
uint64_t vdso_bytes(const ImageMeta& m) {
  for (const ParsedFileContent& c : m.contents) {
    if (c.record.open_file == 0 && c.record.object == kVdsoContentObject) return c.record.length;
  }
  return 0;
}

// Each image of the chain, and how much of it is in use.
OrderedJson chain_json(const ImageChain& image) {
  OrderedJson chain = OrderedJson::array();
  for (size_t i = 0; i < image.size(); ++i) {
    const ImageReader& one = image.image(i);
    uint64_t used = 0;
    for (const MemoryPiece& piece : image.pieces()) used += piece.image == i ? piece.length : 0;
    chain.push_back({{"image", one.path()},
                     {"sequence", one.brief().sequence},
                     {"bytes", one.brief().file_bytes},
                     {"bytes_memory", one.brief().memory_bytes},
                     {"bytes_used", used}});
  }
  return chain;
}

OrderedJson process_json(const ImageMeta& m) {
  const ProcessRecord& p = m.process.record;
  return {{"program", std::string(m.process.comm)},
          {"exe", std::string(m.mm.exe_path)},
          {"pid", p.pid},
          {"ppid", p.ppid},
          {"pgid", p.pgid},
          {"sid", p.sid},
          {"uid", p.uid[1]},
          {"gid", p.gid[1]},
          {"cwd", std::string(m.process.cwd)},
          {"umask", p.umask},
          {"checkpoint_signal", p.checkpoint_signal},
          {"library", std::string(m.process.library_path)},
          {"vdso_bytes_saved", vdso_bytes(m)}};
}

OrderedJson cost_json(const CostRecord& cost) {
  return {{"mode", mode_name(static_cast<Mode>(cost.mode))},
          {"attempts", cost.attempts},
          {"pause_ns", cost.pause_ns},
          {"longest_wait_ns", cost.longest_wait_ns},
          {"forced_copies", cost.forced_copies},
          {"sequential_copies", cost.sequential_copies},
          {"release_copies", cost.release_copies},
          {"faults", cost.faults},
          {"copied_ns", cost.copied_ns}};
}

OrderedJson thread_json(const ParsedThread& t, ImageBacktrace& backtrace, size_t frames) {
  OrderedJson stack = OrderedJson::array();
  for (const Frame& f : backtrace.of(t, frames)) {
    stack.push_back({{"ip", hex(f.ip)},
                     {"function", f.function},
                     {"offset", f.offset},
                     {"module", f.module},
                     {"module_offset", f.module_offset},
                     {"source", f.source}});
  }
  return {{"tid", t.record.tid},
          {"name", std::string(t.name)},
          {"state", thread_state(t, backtrace)},
          {"ip", hex(t.record.rip)},
          {"sp", hex(t.record.rsp)},
          {"fs_base", hex(t.record.fs_base)},
          {"signal_mask", hex(t.record.signal_mask)},
          {"nice", t.record.nice},
          {"exited", (t.record.flags & kThreadLeaderExited) != 0},
          {"backtrace", std::move(stack)}};
}

OrderedJson mapping_json(const ParsedMapping& x, const Saved& saved) {
  return {{"start", hex(x.record.start)},
          {"end", hex(x.record.end)},
          {"protection", protection_text(x.record.prot, is_shared(x.record))},
          {"kind", mapping_kind_name(x.record.kind)},
          {"bytes", x.record.end - x.record.start},
          {"bytes_saved", saved.memory},
          {"bytes_in_file", saved.file},
          {"offset", x.record.file_offset},
          {"path", std::string(x.path)}};
}

OrderedJson descriptor_json(const DescriptorRecord& d, const ParsedOpenFile& f) {
  return {{"fd", d.fd},
          {"open_file", d.open_file},
          {"kind", open_file_kind_name(f.record.kind)},
          {"access", access_text(f.record.open_flags)},
          {"offset", f.record.offset},
          {"size", f.record.size},
          {"deleted", (f.record.flags & kOpenFileDeleted) != 0},
          {"path", std::string(f.path)}};
}

OrderedJson json_of(const ImageChain& image, size_t frames) {
  const ImageMeta& m = image.meta();
  OrderedJson j;
  j["image"] = as_given(image.path());
  j["version"] = image.brief().version;
  j["run_id"] = run_id_text(image.brief().run_id);
  j["sequence"] = image.brief().sequence;
  j["parent"] = image.brief().parent.sequence;
  j["chain"] = chain_json(image);
  j["realtime_ns"] = m.process.record.realtime_ns;
  j["bytes"] = image.brief().file_bytes;
  j["bytes_memory"] = image.memory_bytes();
  j["process"] = process_json(m);
  if (auto cost = cost_of(m)) j["cost"] = cost_json(*cost);
  for (const char* list : {"threads", "mappings", "descriptors", "signals", "pending", "system_v", "notes"})
    j[list] = OrderedJson::array();
  SavedMemory memory(image);
  ImageBacktrace backtrace(image, memory);
  for (const ParsedThread& t : m.threads) j["threads"].push_back(thread_json(t, backtrace, frames));
  std::vector<Saved> saved = saved_bytes(image);
  for (size_t i = 0; i < m.mappings.size(); ++i)
    j["mappings"].push_back(mapping_json(m.mappings[i], saved[i]));
  for (const DescriptorRecord& d : m.descriptors) {
    const ParsedOpenFile* f = m.open_file(d.open_file);
    if (f != nullptr) j["descriptors"].push_back(descriptor_json(d, *f));
  }
  for (const SignalActionRecord& a : m.actions) {
    j["signals"].push_back({{"signal", signal_text(static_cast<int>(a.signal))},
                            {"handler", a.handler == 1 ? "ignored" : hex(a.handler)}});
  }
  for (const PendingSignalRecord& s : m.pending)
    j["pending"].push_back({{"signal", signal_text(s.signal)}, {"tid", s.tid}});
  for (const ParsedSystemV& o : m.system_v) j["system_v"].push_back(system_v_json(o));
  j["restartable"] = what_forbids_restart(m).empty();
  for (const ParsedNote& n : m.notes) {
    j["notes"].push_back({{"severity", severity_name(n.severity)}, {"text", std::string(n.text)}});
  }
  return j;
}

const char* member_state(MemberState state) {
  return state == MemberState::kZombie ? "ended" : state == MemberState::kStopped ? "stopped" : "running";
}

OrderedJson job_json(const JobEntry& job) {
  const Manifest& m = job.manifest;
  OrderedJson j{{"job", as_given(job.path)}, {"job_id", m.job},
                {"program", m.name},         {"sequence", m.sequence},
                {"realtime_ns", m.time_ns},  {"root", m.root},
                {"bytes", job.bytes},        {"bytes_memory", job.memory_bytes}};
  for (const char* list : {"members", "left_out", "descriptions"}) j[list] = OrderedJson::array();
  for (const ManifestMember& p : m.members) {
    OrderedJson one{{"pid", p.pid},     {"ppid", p.ppid},    {"group", p.pgid},
                    {"session", p.sid}, {"program", p.name}, {"state", member_state(p.state)}};
    if (!p.image.empty()) one["image"] = as_given(job.path) + "/" + p.image;
    if (p.state == MemberState::kZombie) one["exit_status"] = p.exit_status;
    j["members"].push_back(std::move(one));
  }
  for (const ManifestLeftOut& l : m.left_out)
    j["left_out"].push_back({{"pid", l.pid}, {"program", l.name}, {"reason", l.reason}});
  for (const auto& users : m.descriptions) {
    OrderedJson one = OrderedJson::array();
    for (const ManifestUser& u : users) one.push_back({{"pid", u.pid}, {"open_file", u.open_file}});
    j["descriptions"].push_back(std::move(one));
  }
  return j;
}

void print_job(const JobEntry& job) {
  const Manifest& m = job.manifest;
  fmt::print("job {} of {}: {} ({} of memory, {})\n", m.sequence, printable(m.name),
             printable(as_given(job.path)), human_bytes(job.memory_bytes), human_bytes(job.bytes));
  fmt::print("  {:>7} {:>7} {:>7} {:>7}  {:<8}  {:<16} {}\n", "PID", "PARENT", "GROUP", "SESSION", "STATE",
             "PROGRAM", "IMAGE");
  for (const ManifestMember& p : m.members) {
    fmt::print("  {:>7} {:>7} {:>7} {:>7}  {:<8}  {:<16} {}\n", p.pid, p.ppid, p.pgid, p.sid,
               member_state(p.state), printable(p.name),
               p.image.empty() ? fmt::format("status {:#x}", p.exit_status) : printable(p.image));
  }
  for (const ManifestLeftOut& l : m.left_out)
    fmt::print("  {:>7} left out: {} ({})\n", l.pid, printable(l.name), printable(l.reason));
  fmt::print("  {} shared by several processes; ckpt show {}/PID for one process\n",
             plural(m.descriptions.size(), "open file is", "open files are"), printable(as_given(job.path)));
}

Result<void> show_job(const std::string& path, bool json) {
  const JobEntry job = examine_job(path);
  if (!job.complete) return job.error;
  if (json) {
    print_json(job_json(job));
  } else {
    print_job(job);
  }
  return {};
}

Result<void> show(ShowOptions& o) {
  CKPT_TRY(unpack_stream(o.image));
  if (const std::string job = job_of(o.image); !job.empty()) return show_job(job, o.json);
  auto path = resolve_image(o.image);
  if (!path.ok()) return path.error();
  auto image = ImageChain::open(*path);
  if (!image.ok()) return image.error();
  if (o.json) {
    print_json(json_of(*image, o.frames));
  } else {
    print_process(*image);
    print_threads(*image, o.frames);
    print_lists(*image);
  }
  return {};
}

}  // namespace

void add_show(CLI::App& app, ExitCode& exit) {
  CLI::App* command = app.add_subcommand("show", "show what is in an image");
  auto o = std::make_shared<ShowOptions>();
  command
      ->add_option(
          "IMAGE", o->image,
          "an image; DIR for the newest of a directory, DIR@-1 for the one before, DIR@7 for number 7")
      ->required();
  command->add_flag("--json", o->json, "print it as JSON: times in ns, sizes in bytes");
  command->add_option("--frames", o->frames, "innermost calls shown of each thread, 0 none (default 16)");
  add_key_option(command);
  command->footer(
      "STATE: in a call (it waited in the kernel), running, exited (a main thread that ended before the "
      "others).\n"
      "Exit codes: 0 shown, 64 wrong arguments or several programs in the directory, 65 damaged (or no image "
      "at\n"
      "all), 66 not found, 68 image of another version or architecture, 74 cannot be read, 77 not "
      "permitted.");
  command->callback([o, &exit] {
    auto done = show(*o);
    exit = done.ok() ? ExitCode::kOk : report(done.error());
  });
}

}  // namespace ckpt::cli
