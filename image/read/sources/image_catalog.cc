#include "image/read/sources/image_catalog.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>
#include <memory>

#include "base/raii_fd.h"
#include "image/format/image_format.h"
#include "image/format/image_name.h"
#include "image/format/io_error.h"
#include "image/read/manifest.h"
#include "image/read/sources/reading_key.h"
#include "image/read/sources/reading_trust.h"

namespace ckpt {

namespace {

CatalogEntry examine(int dir_fd, const char* name, const ParsedImageName& parsed) {
  CatalogEntry entry;
  entry.file = name;
  entry.comm = parsed.comm;
  entry.pid = parsed.pid;
  entry.temporary = parsed.temporary;
  entry.sequence = parsed.sequence;
  ScopedFd fd(openat(dir_fd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!fd.valid()) {
    entry.problem = fmt::format("cannot be opened ({})", errno_name(errno));
    return entry;
  }
  struct stat st;
  if (fstat(fd.get(), &st) == 0) entry.file_bytes = static_cast<uint64_t>(st.st_size);
  if (parsed.temporary) {
    entry.problem = "not finished";
    return entry;
  }
  auto brief = probe_image(fd.get(), name, reading_key());
  if (!brief.ok()) {
    entry.locked = brief.error().code == ExitCode::kPermission;
    entry.problem = brief.error().message();
    return entry;
  }
  entry.brief = *brief;
  entry.sequence = brief->sequence;
  entry.complete = true;
  return entry;
}

// Without its parents an increment is no image.
void check_parents(std::vector<CatalogEntry>& entries) {
  std::vector<CatalogEntry*> by_sequence;
  for (auto& e : entries) {
    if (e.complete) by_sequence.push_back(&e);
  }
  std::sort(by_sequence.begin(), by_sequence.end(),
            [](const CatalogEntry* a, const CatalogEntry* b) { return a->sequence < b->sequence; });
  for (CatalogEntry* e : by_sequence) {
    const ParentImage& parent = e->brief.parent;
    if (parent.sequence == 0) continue;
    auto p =
        std::lower_bound(by_sequence.begin(), by_sequence.end(), parent.sequence,
                         [](const CatalogEntry* a, uint64_t sequence) { return a->sequence < sequence; });
    bool found = false;
    for (; !found && p != by_sequence.end() && (*p)->sequence == parent.sequence; ++p) {
      const ImageBrief& b = (*p)->brief;
      found = (*p)->complete && b.meta_checksum == parent.state &&
              std::memcmp(b.run_id, e->brief.run_id, sizeof(b.run_id)) == 0;
    }
    if (found) continue;
    e->complete = false;
    e->problem =
        fmt::format("{}: an increment to {}, which is missing, incomplete or another image; bring it back",
                    e->file, parent.name);
  }
}

constexpr int kListings = 10;  // at most: images may come faster than they are listed

bool is_gone(int dir_fd, const std::string& file) {
  struct stat st;
  return fstatat(dir_fd, file.c_str(), &st, AT_SYMLINK_NOFOLLOW) != 0 && errno == ENOENT;
}

std::string run_of(const CatalogEntry& e) { return run_id_text(e.brief.run_id); }

// One process that has executed other programs: its newest image is of the last of them.
bool are_of_one_process(const std::vector<CatalogEntry>& entries) {
  const CatalogEntry* first = nullptr;
  for (const CatalogEntry& e : entries) {
    if (!e.complete) continue;
    if (first == nullptr) first = &e;
    if (e.pid != first->pid || std::memcmp(e.brief.run_id + kRunIdOfJob, first->brief.run_id + kRunIdOfJob,
                                           sizeof(e.brief.run_id) - kRunIdOfJob) != 0)
      return false;
  }
  return true;
}

Error no_complete_image(const std::string& directory, const std::vector<CatalogEntry>& entries) {
  ShownPath shown = shown_path(directory.c_str());
  for (const auto& e : entries) {
    if (e.temporary) continue;
    return make_error(e.locked ? ExitCode::kPermission : ExitCode::kImageDamaged, 0,
                      "{}: no complete image; {}", shown.text, e.problem);
  }
  if (!entries.empty()) {
    return make_error(ExitCode::kNotFound, 0, "{}: no complete image, only {} that were never finished",
                      shown.text, entries.size());
  }
  return make_error(ExitCode::kNotFound, 0, "{}: no images in it; give the directory that CKPT_DIR named",
                    shown.text);
}

// "2026-11-21", "2026-11-21T10:00", "2026-11-21T10:00:30", with a Z for UTC. The end of what is named, in
// nanoseconds since 1970: with T10:00 the whole of that minute is meant.
bool parse_time(const std::string& text, int64_t* end_ns) {
  struct {
    const char* format;
    int64_t seconds;  // that it names
  } const kForms[] = {{"%Y-%m-%dT%H:%M:%S", 1}, {"%Y-%m-%dT%H:%M", 60}, {"%Y-%m-%d", 86400}};
  for (const auto& form : kForms) {
    tm parts{};
    const char* rest = strptime(text.c_str(), form.format, &parts);
    if (rest == nullptr) continue;
    bool utc = *rest == 'Z';
    if (rest[utc ? 1 : 0] != '\0') continue;
    parts.tm_isdst = -1;
    time_t seconds = utc ? timegm(&parts) : mktime(&parts);
    int64_t end = static_cast<int64_t>(seconds) + form.seconds;
    if (__builtin_mul_overflow(end, int64_t{1'000'000'000}, end_ns))
      *end_ns = end < 0 ? INT64_MIN : INT64_MAX;
    return true;
  }
  return false;
}

}  // namespace

std::string run_id_text(const uint8_t run_id[16]) {
  std::string text;
  for (int i = 0; i < 16; i++) text += fmt::format("{:02x}", run_id[i]);
  return text;
}

Result<ImageCatalog> ImageCatalog::list(const std::string& directory) {
  ShownPath shown = shown_path(directory.c_str());
  std::unique_ptr<DIR, int (*)(DIR*)> dir(opendir(directory.c_str()), closedir);
  if (dir == nullptr) {
    int e = errno;
    ExitCode code = e == ENOENT || e == ENOTDIR ? ExitCode::kNotFound
                    : e == EACCES               ? ExitCode::kPermission
                                                : ExitCode::kIo;
    return make_error(code, e, "{}: cannot be listed ({}); give a directory of images", shown.text,
                      errno_name(e));
  }
  ImageCatalog catalog;
  catalog.directory_ = directory;
  // Programs remove their old images and give new ones their names meanwhile. An entry whose file is gone is
  // not an image, and the file that took its place may not have been listed. A listing of which no file is
  // gone has the newest image.
  for (int left = kListings;; left--) {
    CKPT_TRY(catalog.read_entries(dir.get()));
    const size_t gone = std::erase_if(catalog.entries_, [&](const CatalogEntry& e) {
      return !e.complete && is_gone(dirfd(dir.get()), e.file);
    });
    if (gone == 0 || left == 1) return catalog;
    rewinddir(dir.get());
  }
}

Result<void> ImageCatalog::read_entries(DIR* dir) {
  entries_.clear();
  errno = 0;
  while (const dirent* d = readdir(dir)) {
    ParsedImageName parsed;
    if (parse_image_name(d->d_name, &parsed)) entries_.push_back(examine(dirfd(dir), d->d_name, parsed));
    errno = 0;
  }
  if (errno != 0) {
    return make_error(ExitCode::kIo, errno, "{}: cannot be listed ({}); see the kernel log",
                      shown_path(directory_.c_str()).text, errno_name(errno));
  }
  auto key = [](const CatalogEntry& e) {
    return std::make_tuple(std::string_view(e.comm), e.pid, e.sequence, std::string_view(e.file));
  };
  std::sort(entries_.begin(), entries_.end(),
            [&](const CatalogEntry& a, const CatalogEntry& b) { return key(a) < key(b); });
  check_parents(entries_);
  return {};
}

Result<const CatalogEntry*> ImageCatalog::select(const std::string& selector) const {
  ShownPath shown = shown_path(directory_.c_str());
  std::map<std::string, std::vector<const CatalogEntry*>> runs;
  std::map<std::string, std::string> programs;  // comm -> one of its images
  for (const auto& e : entries_) {
    if (!e.complete) continue;
    runs[run_of(e)].push_back(&e);
    programs.emplace(e.comm, e.file);
  }
  if (runs.empty()) return no_complete_image(directory_, entries_);
  if (programs.size() > 1 && !are_of_one_process(entries_)) {
    std::string names;
    for (const auto& [comm, file] : programs) names += (names.empty() ? "" : ", ") + comm + " (" + file + ")";
    return make_error(ExitCode::kUsage, 0, "{}: images of {} programs: give the file of one: {}", shown.text,
                      programs.size(), names);
  }
  auto newer = [](const CatalogEntry* a, const CatalogEntry* b) {
    return std::tie(a->brief.realtime_ns, a->sequence) < std::tie(b->brief.realtime_ns, b->sequence);
  };
  auto by_sequence = [](const CatalogEntry* a, const CatalogEntry* b) { return a->sequence < b->sequence; };
  const std::vector<const CatalogEntry*>* run = nullptr;
  const CatalogEntry* newest = nullptr;
  for (auto& [id, images] : runs) {
    std::sort(images.begin(), images.end(), by_sequence);
    // Within a run the sequence decides: the clock may have been set back.
    if (newest == nullptr || newer(newest, images.back())) {
      newest = images.back();
      run = &images;
    }
  }
  if (selector.empty()) return newest;

  int64_t end_ns = 0;
  if (parse_time(selector, &end_ns)) {
    const CatalogEntry *found = nullptr, *oldest = nullptr;
    for (const auto& [id, images] : runs) {
      for (const CatalogEntry* e : images) {
        if (oldest == nullptr || newer(e, oldest)) oldest = e;
        if (e->brief.realtime_ns < end_ns && (found == nullptr || newer(found, e))) found = e;
      }
    }
    if (found != nullptr) return found;
    return make_error(ExitCode::kNotFound, 0, "{}@{}: no complete image is that old; the oldest is {}",
                      shown.text, selector, oldest->file);
  }
  bool back = selector[0] == '-';
  uint64_t number = 0;
  const char* first = selector.data() + (back ? 1 : 0);
  const char* last = selector.data() + selector.size();
  auto [end, wrong] = std::from_chars(first, last, number);
  if (wrong != std::errc() || end != last || first == last) {
    return make_error(ExitCode::kUsage, 0,
                      "{}@{}: give @SEQUENCE, @-N for the Nth image before the newest, or @2026-11-21T10:00",
                      shown.text, selector.substr(0, 40));
  }
  if (back) {
    if (number < run->size()) return (*run)[run->size() - 1 - number];
    return make_error(ExitCode::kNotFound, 0, "{}@-{}: only {} complete images; 'ckpt ls' lists them",
                      shown.text, number, run->size());
  }
  for (const CatalogEntry* e : *run) {
    if (e->sequence == number) return e;
  }
  return make_error(ExitCode::kNotFound, 0,
                    "{}@{}: no complete image with that sequence ({} to {} are there)", shown.text, number,
                    run->front()->sequence, run->back()->sequence);
}

namespace {

// "X.job/PID": the image of one process of a job; or of its only one, "X.job". "": it is something else.
Result<std::string> resolve_member(const std::string& argument) {
  struct stat st;
  const std::string file = argument + ".ckpt";
  const size_t slash = argument.rfind('/');
  if (slash != std::string::npos && slash != 0 && stat(argument.c_str(), &st) != 0 &&
      is_job_directory(argument.substr(0, slash)) && stat(file.c_str(), &st) == 0) {
    return file;
  }
  if (!is_job_directory(argument)) return std::string();
  auto manifest = read_manifest(argument);
  if (!manifest.ok()) return manifest.error();
  if (manifest->files.size() == 1) return argument + "/" + manifest->files[0].name;
  std::string names;
  for (const ManifestMember& m : manifest->members) {
    if (!m.image.empty()) names += fmt::format("{}{} ({})", names.empty() ? "" : ", ", m.pid, m.name);
  }
  return make_error(ExitCode::kUsage, 0, "{}: a job of {} processes: name one, {}/PID: {}",
                    shown_path(argument.c_str()).text, manifest->files.size(),
                    shown_path(argument.c_str()).text, names);
}

}  // namespace

Result<std::string> resolve_image(const std::string& argument) {
  if (argument == "-") return argument;
  auto member = resolve_member(argument);
  if (!member.ok() || !member->empty()) return member;
  struct stat st;
  std::string directory = argument, selector;
  if (stat(argument.c_str(), &st) != 0) {
    size_t at = argument.rfind('@');
    if (at == std::string::npos || at == 0 || stat(argument.substr(0, at).c_str(), &st) != 0) {
      return make_error(ExitCode::kNotFound, ENOENT,
                        "{}: no such image or directory; give an image, a directory of images, or "
                        "DIRECTORY@SEQ, @-N, @TIME",
                        shown_path(argument.c_str()).text);
    }
    directory = argument.substr(0, at);
    selector = argument.substr(at + 1);
    if (selector.empty()) selector = "?";
  }
  if (!S_ISDIR(st.st_mode)) {
    if (selector.empty()) return argument;
    return make_error(ExitCode::kUsage, 0, "{}: '@' goes with a directory of images, not with a file",
                      shown_path(argument.c_str()).text);
  }
  CKPT_TRY(check_directory_trust(directory));
  auto catalog = ImageCatalog::list(directory);
  if (!catalog.ok()) return catalog.error();
  auto entry = catalog->select(selector);
  if (!entry.ok()) return entry.error();
  return catalog->path_of(**entry);
}

}  // namespace ckpt
