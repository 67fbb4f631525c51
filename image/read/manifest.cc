#include "image/read/manifest.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/raii_fd.h"
#include "image/format/checksum.h"
#include "image/format/io_error.h"

namespace ckpt {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kMostBytes = 64u << 20;
constexpr int kMostPid = 4 << 20;
constexpr size_t kMostMembers = 1u << 15;
constexpr size_t kMostName = 255;
constexpr int kVersion = 1;

bool is_hexadecimal(std::string_view text, size_t digits) {
  return text.size() == digits && text.find_first_not_of("0123456789abcdef") == text.npos;
}

// A name in the job's directory, and nothing that leads out of it.
bool is_file_name(std::string_view name) {
  return !name.empty() && name.size() <= kMostName && name != "." && name != ".." &&
         name.find('/') == name.npos && name.find('\0') == name.npos;
}

class Parser {
 public:
  explicit Parser(const std::string& path) : path_(path) {}

  Result<Manifest> parse(std::string_view text) {
    CKPT_TRY(check_checksum(text));
    const Json top = Json::parse(text, nullptr, false);
    if (!top.is_object()) return damaged("it is no JSON object");
    if (string(top, "format") != "ckpt_rt job") return damaged("it is not the manifest of a job");
    if (const auto version = number(top, "version", 0, INT32_MAX); version && *version != kVersion) {
      return make_error(ExitCode::kIncompatible, 0,
                        "{} has version {}, this program reads version {}: use the ckpt_rt that wrote it",
                        path_, *version, kVersion);
    }
    take(top);
    check();
    if (problem_) return damaged(*problem_);
    return std::move(out_);
  }

 private:
  Error damaged(std::string_view what) const {
    return make_error(ExitCode::kImageDamaged, 0, "{}: the manifest of the job is damaged: {}",
                      shown_path(path_.c_str()).text, what);
  }
  void wrong(std::string what) {
    if (!problem_) problem_ = std::move(what);
  }

  // The checksum comes last and covers all that is before it.
  Result<void> check_checksum(std::string_view text) const {
    constexpr std::string_view kKey = "\"checksum\"";
    const size_t at = text.rfind(kKey);
    if (at == text.npos) return damaged("it has no checksum; it may be cut off");
    std::string_view rest = text.substr(at + kKey.size());
    const size_t open = rest.find('"');
    const size_t close = open == rest.npos ? rest.npos : rest.find('"', open + 1);
    if (close == rest.npos) return damaged("its checksum is cut off");
    const auto sum = checksum_of(std::as_bytes(std::span(text.data(), at)));
    if (rest.substr(open + 1, close - open - 1) != fmt::format("{:016x}", sum))
      return damaged("its checksum does not fit");
    return {};
  }

  const Json* find(const Json& object, const char* key) {
    const auto it = object.find(key);
    return it == object.end() ? nullptr : &*it;
  }

  std::optional<int64_t> number(const Json& object, const char* key, int64_t least, int64_t most) {
    const Json* value = find(object, key);
    if (value == nullptr || !value->is_number_integer()) {
      wrong(fmt::format("\"{}\" is missing or no integer", key));
      return std::nullopt;
    }
    if (value->is_number_unsigned() && value->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
      wrong(fmt::format("\"{}\" is too large", key));
      return std::nullopt;
    }
    const auto n = value->get<int64_t>();
    if (n >= least && n <= most) return n;
    wrong(fmt::format("\"{}\" is {}, which is not between {} and {}", key, n, least, most));
    return std::nullopt;
  }
  int integer(const Json& object, const char* key, int64_t least, int64_t most) {
    return static_cast<int>(number(object, key, least, most).value_or(least));
  }
  int integer_or(const Json& object, const char* key, int64_t least, int64_t most, int otherwise) {
    return find(object, key) == nullptr ? otherwise : integer(object, key, least, most);
  }
  uint64_t object_number(const Json& object, const char* key) {
    const Json* value = find(object, key);
    if (value != nullptr && value->is_number_unsigned()) return value->get<uint64_t>();
    wrong(fmt::format("\"{}\" is missing or no number of an object", key));
    return 0;
  }
  std::string string(const Json& object, const char* key) {
    const Json* value = find(object, key);
    if (value == nullptr || !value->is_string()) {
      wrong(fmt::format("\"{}\" is missing or no text", key));
      return {};
    }
    auto text = value->get<std::string>();
    if (text.size() <= kMostName && text.find('\0') == text.npos) return text;
    wrong(fmt::format("\"{}\" is too long, or has a zero in it", key));
    return {};
  }
  bool flag(const Json& object, const char* key) {
    const Json* value = find(object, key);
    if (value == nullptr) return false;
    if (value->is_boolean()) return value->get<bool>();
    wrong(fmt::format("\"{}\" is neither true nor false", key));
    return false;
  }

  template <typename Visit>
  void each(const Json& object, const char* key, bool required, Visit visit) {
    const Json* list = find(object, key);
    if (list == nullptr && !required) return;
    if (list == nullptr || !list->is_array()) {
      wrong(fmt::format("\"{}\" is missing or no list", key));
      return;
    }
    for (const Json& item : *list) {
      if (problem_) return;
      if (!item.is_object()) {
        wrong(fmt::format("\"{}\" has something in it that is no object", key));
        return;
      }
      visit(item);
    }
  }

  void take(const Json& top) {
    out_.job = string(top, "job");
    out_.name = string(top, "name");
    out_.sequence = static_cast<uint64_t>(number(top, "sequence", 0, INT64_MAX).value_or(0));
    out_.time_ns = number(top, "time_ns", 0, INT64_MAX).value_or(0);
    out_.monotonic_ns = number(top, "monotonic_ns", 0, INT64_MAX).value_or(0);
    if (find(top, "boottime_ns") != nullptr)
      out_.boottime_ns = number(top, "boottime_ns", 0, INT64_MAX).value_or(0);
    out_.root = integer(top, "root", 1, kMostPid);
    each(top, "members", true, [&](const Json& m) { out_.members.push_back(take_member(m)); });
    each(top, "left_out", false, [&](const Json& l) {
      out_.left_out.push_back({integer(l, "pid", 1, kMostPid), string(l, "name"), string(l, "reason")});
    });
    each(top, "descriptions", false, [&](const Json& d) {
      out_.descriptions.emplace_back();
      each(d, "users", true, [&](const Json& u) {
        out_.descriptions.back().push_back(
            {integer(u, "pid", 1, kMostPid),
             static_cast<uint32_t>(number(u, "open_file", 1, UINT32_MAX).value_or(1))});
      });
    });
    each(top, "owners", false, [&](const Json& o) {
      out_.owners.emplace_back(object_number(o, "object"), integer(o, "pid", 1, kMostPid));
    });
    each(top, "files", true, [&](const Json& f) {
      ManifestFile file{
          string(f, "name"), static_cast<uint64_t>(number(f, "bytes", 0, INT64_MAX).value_or(0)), {}};
      if (find(f, "xxh3") != nullptr) file.checksum = string(f, "xxh3");
      out_.files.push_back(std::move(file));
    });
  }

  ManifestMember take_member(const Json& m) {
    ManifestMember out;
    out.pid = integer(m, "pid", 1, kMostPid);
    out.ppid = integer(m, "ppid", 0, kMostPid);
    out.pgid = integer(m, "pgid", 0, kMostPid);
    out.sid = integer(m, "sid", 0, kMostPid);
    out.name = string(m, "name");
    const std::string state = string(m, "state");
    if (state == "zombie") {
      out.state = MemberState::kZombie;
      out.exit_status = integer(m, "exit_status", 0, 0xffff);
    } else if (state == "stopped") {
      out.state = MemberState::kStopped;
      out.stop_signal = static_cast<uint8_t>(integer_or(m, "stop_signal", 1, 64, SIGSTOP));
      out.stop_reported = find(m, "stop_reported") == nullptr || flag(m, "stop_reported");
    } else if (state != "running") {
      wrong("\"state\" is neither running nor stopped nor zombie");
    }
    if (out.state != MemberState::kZombie) out.image = string(m, "image");
    out.exit_signal = integer_or(m, "exit_signal", 0, 64, SIGCHLD);
    out.pdeath_signal = integer_or(m, "pdeath_signal", 0, 64, 0);
    out.orphan = flag(m, "orphan");
    out.subreaper = flag(m, "subreaper");
    if (find(m, "tty") != nullptr)
      out.terminal = static_cast<uint64_t>(number(m, "tty", INT32_MIN, UINT32_MAX).value_or(0));
    out.foreground_group = integer_or(m, "foreground_group", -1, kMostPid, -1);
    return out;
  }

  void check() {
    if (problem_) return;
    if (!is_hexadecimal(out_.job, 32)) return wrong("\"job\" is not 32 hexadecimal digits");
    if (out_.members.empty() || out_.members.size() > kMostMembers)
      return wrong("it has no members, or too many");
    std::set<std::string> images;
    for (size_t i = 0; i < out_.members.size(); ++i) {
      const ManifestMember& m = out_.members[i];
      if (!by_pid_.emplace(m.pid, i).second) return wrong(fmt::format("process {} is in it twice", m.pid));
      if (m.state == MemberState::kZombie) {
        const bool ended =
            WIFEXITED(m.exit_status) || (WIFSIGNALED(m.exit_status) && WTERMSIG(m.exit_status) <= 64);
        if (!ended) return wrong(fmt::format("the exit status of process {} is none", m.pid));
      } else if (!is_file_name(m.image) || !images.insert(m.image).second) {
        return wrong(
            fmt::format("the image of process {} is no file of its own in the job's directory", m.pid));
      }
    }
    const ManifestMember* root = member(out_.root);
    if (root == nullptr || root->state == MemberState::kZombie)
      return wrong(fmt::format("its topmost process {} has no image", out_.root));
    check_parents();
    check_shared();
    check_files(images);
  }

  // Each is followed up to one that is known to be good.
  void check_parents() {
    std::vector<uint32_t> seen(out_.members.size(), 0);  // by whose way up; 0: not yet
    for (uint32_t way = 1; way <= out_.members.size(); ++way) {
      const ManifestMember* m = &out_.members[way - 1];
      while (seen[index_of(*m)] == 0) {
        seen[index_of(*m)] = way;
        const ManifestMember* parent = m->orphan ? nullptr : member(m->ppid);
        if (parent == nullptr) break;
        if (parent->state == MemberState::kZombie)
          return wrong(fmt::format("process {} is the child of one that has ended", m->pid));
        if (seen[index_of(*parent)] == way)
          return wrong(fmt::format("process {} is its own ancestor", parent->pid));
        m = parent;
      }
    }
  }
  size_t index_of(const ManifestMember& m) const { return static_cast<size_t>(&m - out_.members.data()); }

  void check_shared() {
    std::set<std::pair<int, uint32_t>> known;
    for (const auto& users : out_.descriptions) {
      if (users.empty()) return wrong("a description has no users");
      for (const ManifestUser& u : users) {
        if (!has_image(u.pid)) return wrong(fmt::format("process {} shares a file and has no image", u.pid));
        if (!known.emplace(u.pid, u.open_file).second)
          return wrong(fmt::format("open file {} of process {} is shared twice", u.open_file, u.pid));
      }
    }
    for (const auto& [object, pid] : out_.owners) {
      if (!has_image(pid)) return wrong(fmt::format("process {} saved an object and has no image", pid));
    }
  }

  void check_files(const std::set<std::string>& images) {
    std::set<std::string> names;
    for (const ManifestFile& f : out_.files) {
      if (!is_file_name(f.name) || !names.insert(f.name).second)
        return wrong("a file has no name of its own");
      if (!f.checksum.empty() && !is_hexadecimal(f.checksum, 16))
        return wrong("a checksum of a file is not 16 hexadecimal digits");
    }
    for (const std::string& image : images) {
      if (names.count(image) == 0) return wrong(fmt::format("the file {} is in no list", image));
    }
  }

  const ManifestMember* member(int pid) const {
    const auto it = by_pid_.find(pid);
    return it == by_pid_.end() ? nullptr : &out_.members[it->second];
  }
  bool has_image(int pid) const {
    const ManifestMember* m = member(pid);
    return m != nullptr && m->state != MemberState::kZombie;
  }

  const std::string& path_;
  Manifest out_;
  std::map<int, size_t> by_pid_;
  std::optional<std::string> problem_;
};

std::string path_in(const std::string& directory) {
  const bool slash = !directory.empty() && directory.back() == '/';
  return directory + (slash ? "" : "/") + kManifestName;
}

}  // namespace

const ManifestMember* Manifest::member(int pid) const {
  const auto it =
      std::find_if(members.begin(), members.end(), [pid](const ManifestMember& m) { return m.pid == pid; });
  return it == members.end() ? nullptr : &*it;
}

Result<Manifest> parse_manifest(std::string_view text, const std::string& path) {
  return Parser(path).parse(text);
}

Result<Manifest> read_manifest(const std::string& directory) {
  const std::string path = path_in(directory);
  ScopedFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY));
  struct stat st;
  if (!fd.valid() || fstat(fd.get(), &st) != 0) {
    return make_error(errno == ENOENT ? ExitCode::kNotFound : ExitCode::kIo, errno,
                      "{} cannot be opened ({})", shown_path(path.c_str()).text, errno_name(errno));
  }
  if (!S_ISREG(st.st_mode) || static_cast<uint64_t>(st.st_size) > kMostBytes) {
    return make_error(ExitCode::kImageDamaged, 0,
                      "{} is no manifest: it is no regular file, or far too large",
                      shown_path(path.c_str()).text);
  }
  std::string text(static_cast<size_t>(st.st_size), '\0');
  for (size_t at = 0; at < text.size();) {
    const ssize_t n = pread(fd.get(), text.data() + at, text.size() - at, static_cast<off_t>(at));
    if (n < 0) return image_io_error("read", path.c_str(), errno);
    if (n == 0) {
      text.resize(at);
      break;
    }
    at += static_cast<size_t>(n);
  }
  return parse_manifest(text, path);
}

std::string with_sizes(std::string text, const std::map<std::string, uint64_t>& sizes) {
  for (const auto& [name, bytes] : sizes) {
    const std::string key = fmt::format("{{\"name\": \"{}\", \"bytes\": ", name);
    const size_t at = text.find(key);
    if (at == text.npos) continue;
    const size_t from = at + key.size();
    text.replace(from, text.find_first_not_of("0123456789", from) - from, fmt::format("{}", bytes));
  }
  text.resize(std::min(text.size(), text.rfind("\"checksum\"")));
  const auto sum = checksum_of(std::as_bytes(std::span(text)));
  return text + fmt::format("\"checksum\": \"{:016x}\"\n}}\n", sum);
}

bool is_job_directory(const std::string& path) {
  struct stat st;
  return lstat(path_in(path).c_str(), &st) == 0 && S_ISREG(st.st_mode);
}

}  // namespace ckpt
