#include "job/capture/coordinator/manifest_writer.h"

#include <errno.h>
#include <fcntl.h>

#include "base/raii_fd.h"
#include "image/format/checksum.h"
#include "image/format/io_error.h"
#include "job/format/job_name.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::job {

namespace {

// Text in an arena; what does not fit is noticed at the end.
class Text {
 public:
  explicit Text(Arena& arena) : bytes_(arena) {}
  template <typename... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    char line[512];
    const auto out = fmt::format_to_n(line, sizeof(line), format, std::forward<Args>(args)...);
    good_ = good_ && out.size <= sizeof(line) && bytes_.append(line, out.size);
  }
  // Quoted. Bytes that are no ASCII may be no UTF-8 either: a name is shown, and nothing is found by it.
  void add_quoted(std::string_view text) {
    add("\"");
    for (char c : text) {
      if (c == '"' || c == '\\')
        add("\\{}", c);
      else if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f)
        add("?");
      else
        add("{}", c);
    }
    add("\"");
  }
  bool good() const { return good_; }
  std::span<const char> bytes() const { return bytes_.span(); }

 private:
  ArenaVector<char> bytes_;
  bool good_ = true;
};

void add_member(Text& out, const ManifestEntry& m) {
  const ProcessLook& p = m.listed.look;
  out.add("{{\"pid\": {}, \"ppid\": {}, \"pgid\": {}, \"sid\": {}, \"name\": ", p.pid, p.ppid, p.pgid, p.sid);
  out.add_quoted(p.name);
  if (m.has_image) out.add(", \"image\": \"{}\"", member_image_name(p.pid).text);
  if (p.ended()) {
    out.add(", \"state\": \"zombie\", \"exit_status\": {}, \"exit_signal\": {}", p.exit_status,
            p.exit_signal);
  } else if (m.stop_signal != 0) {
    out.add(", \"state\": \"stopped\", \"stop_signal\": {}, \"stop_reported\": {}, \"exit_signal\": {}",
            m.stop_signal, m.stop_reported, p.exit_signal);
  } else {
    out.add(", \"state\": \"running\", \"exit_signal\": {}", p.exit_signal);
  }
  if (m.pdeath_signal != 0) out.add(", \"pdeath_signal\": {}", m.pdeath_signal);
  out.add(", \"orphan\": {}, \"subreaper\": {}, \"tty\": {}, \"foreground_group\": {}}}", m.listed.orphan,
          m.subreaper, p.tty, p.foreground_group);
}

void add_descriptions(Text& out, const ManifestSources& s) {
  uint32_t group = 0;
  for (const SharedUse& use : s.shared) {
    if (use.group != group) {
      out.add("{}\n  {{\"users\": [", group == 0 ? "" : "]},");
    } else {
      out.add(", ");
    }
    group = use.group;
    out.add("{{\"pid\": {}, \"open_file\": {}}}", s.shared_members[use.member].pid, use.open_file);
  }
  if (group != 0) out.add("]}}");
}

}  // namespace

Result<void> write_manifest(int directory, const ManifestSources& s, Arena& arena) {
  Text out(arena);
  out.add("{{\n \"format\": \"{}\", \"version\": {},\n \"job\": \"{}\", \"name\": ", kManifestFormat,
          kManifestVersion, job_text(s.job->id).text);
  out.add_quoted(s.name);
  out.add(
      ", \"sequence\": {}, \"time_ns\": {}, \"monotonic_ns\": {}, \"boottime_ns\": {}, \"pause_ns\": {},\n",
      s.sequence, s.realtime_ns, s.monotonic_ns, s.boottime_ns, s.pause_ns);
  if (s.part != nullptr) {
    out.add(" \"part_of\": {{\"hosts_checkpoint\": {}, \"host\": ", s.part->id);
    out.add_quoted(s.part->host);
    out.add("}},\n");
  }
  int root = 0;
  for (const ManifestEntry& m : s.members) {
    if (!m.left_out && (root == 0 || m.listed.look.pid == s.job->root)) root = m.listed.look.pid;
  }
  out.add(" \"root\": {},\n \"members\": [", root);
  bool first = true;
  for (const ManifestEntry& m : s.members) {
    if (m.left_out) continue;
    out.add("{}\n  ", first ? "" : ",");
    add_member(out, m);
    first = false;
  }
  out.add("],\n \"left_out\": [");
  first = true;
  for (const ManifestEntry& m : s.members) {
    if (!m.left_out) continue;
    out.add("{}\n  {{\"pid\": {}, \"ppid\": {}, \"name\": ", first ? "" : ",", m.listed.look.pid,
            m.listed.look.ppid);
    out.add_quoted(m.listed.look.name);
    out.add(", \"reason\": \"{}\"}}", m.reason);
    first = false;
  }
  out.add("],\n \"descriptions\": [");
  add_descriptions(out, s);
  out.add("],\n \"owners\": [");
  first = true;
  for (const SharedSaver& saver : s.savers) {
    out.add("{}\n  {{\"object\": {}, \"pid\": {}}}", first ? "" : ",", saver.object, saver.pid);
    first = false;
  }
  out.add("],\n \"connections\": [],\n \"files\": [");
  first = true;
  for (const ManifestEntry& m : s.members) {
    if (!m.has_image) continue;
    out.add("{}\n  {{\"name\": \"{}\", \"bytes\": {}, \"xxh3\": \"{:016x}\"}}", first ? "" : ",",
            member_image_name(m.listed.look.pid).text, m.image_bytes, m.image_state);
    first = false;
  }
  out.add("],\n ");
  const uint64_t checksum = checksum_of(std::as_bytes(out.bytes()));
  out.add("\"checksum\": \"{:016x}\"\n}}\n", checksum);
  if (!out.good()) return make_error(ExitCode::kInternal, ENOMEM, "no memory for the manifest");

  const long fd = sys::call(__NR_openat, directory, kManifestName,
                            O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600L);
  if (sys::failed(fd)) return image_io_error("create", kManifestName, fd);
  const ScopedFd file(static_cast<int>(fd));
  sys::call(__NR_fchmod, file.get(), 0600L);
  std::span<const char> left = out.bytes();
  while (!left.empty()) {
    const long n = sys::call(__NR_write, file.get(), left.data(), left.size());
    if (n == -EINTR) continue;
    if (n <= 0) return image_io_error("write", kManifestName, n == 0 ? -ENOSPC : n);
    left = left.subspan(static_cast<size_t>(n));
  }
  const long synced = sys::call(__NR_fsync, file.get());
  if (sys::failed(synced)) return image_io_error("make durable (fsync)", kManifestName, synced);
  return {};
}

}  // namespace ckpt::job
