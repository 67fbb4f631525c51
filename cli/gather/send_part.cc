#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <set>
#include <vector>

#include "base/raii_fd.h"
#include "cli/gather/part_stream.h"
#include "cli/text/failure.h"
#include "cli/text/json_lines.h"
#include "image/format/image_probe.h"
#include "image/format/saved_file_names.h"
#include "job/format/job_name.h"

namespace ckpt::cli {

namespace {

Error cannot_read(const std::string& path) {
  return failure(errno == ENOENT ? ExitCode::kNotFound : ExitCode::kIo, path,
                 fmt::format("cannot be read: {}", strerror(errno)), "see whether it was pruned meanwhile");
}

std::vector<std::string> names_in(const std::string& directory) {
  std::vector<std::string> names;
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(opendir(directory.c_str()), closedir);
  while (dir != nullptr) {
    const dirent* entry = readdir(dir.get());
    if (entry == nullptr) break;
    if (entry->d_name[0] != '.') names.push_back(entry->d_name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool write_all(int fd, const char* bytes, size_t n) {
  while (n != 0) {
    const ssize_t done = write(fd, bytes, n);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return false;
    bytes += done;
    n -= static_cast<size_t>(done);
  }
  return true;
}

class Sender {
 public:
  Sender(std::string directory, int out) : directory_(std::move(directory)), out_(out) {}

  Result<void> send(const std::string& part) {
    parts_.push_back(part);
    known_.insert(part);
    for (bool first = true; !parts_.empty(); first = false) {
      const std::string name = parts_.front();
      parts_.pop_front();
      // The own manifest comes when all else is there.
      CKPT_TRY(send_directory(name, first));
      if (!first) CKPT_TRY(send_file(name + "/" + job::kManifestName, name + "/" + job::kManifestName));
    }
    return send_file(part + "/" + job::kManifestName, part + "/" + job::kManifestName);
  }

 private:
  Error gone() const {
    return failure(ExitCode::kIo, "standard output", fmt::format("cannot be written: {}", strerror(errno)),
                   "ckpt gather reads it");
  }
  Result<void> say(const Json& line) {
    const std::string text = line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
    return write_all(out_, text.data(), text.size()) ? Result<void>() : gone();
  }

  // Of a parent, whose files are not needed, only its images.
  Result<void> send_directory(const std::string& part, bool with_files) {
    for (const std::string& name : names_in(directory_ + "/" + part)) {
      const std::string path = part + "/" + name;
      if (name.ends_with(kImageSuffix)) {
        CKPT_TRY(send_file(path, path));
        CKPT_TRY(add_parent(path));
      } else if (name.ends_with(kSavedFilesSuffix) && with_files) {
        CKPT_TRY(send_saved_files(path));
      } else if (with_files && name != job::kManifestName) {
        CKPT_TRY(send_file(path, path));
      }
    }
    return {};
  }

  // A hard link to a file of the program is here a copy of it (image/format/saved_file_names.h).
  Result<void> send_saved_files(const std::string& directory) {
    const auto names = names_in(directory_ + "/" + directory);
    for (const std::string& name : names) {
      const std::string path = directory + "/" + name;
      if (name.ends_with(kSavedNameSuffix)) {
        char target[4096] = {};
        const ssize_t n = readlink((directory_ + "/" + path).c_str(), target, sizeof(target) - 1);
        if (n > 0) CKPT_TRY(say({{"path", path}, {"link", std::string(target, static_cast<size_t>(n))}}));
        continue;
      }
      const std::string copy = name + std::string(kSavedCopySuffix);
      const bool is_copy = name.ends_with(kSavedCopySuffix);
      if (!is_copy && std::binary_search(names.begin(), names.end(), copy)) continue;
      CKPT_TRY(send_file(path, is_copy ? path : directory + "/" + copy));
    }
    return {};
  }

  Result<void> send_file(const std::string& path, const std::string& as) {
    const std::string full = directory_ + "/" + path;
    const ScopedFd fd(open(full.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
    struct stat st;
    if (!fd.valid() || fstat(fd.get(), &st) != 0) return cannot_read(full);
    if (!S_ISREG(st.st_mode)) return {};
    CKPT_TRY(say({{"path", as},
                  {"bytes", st.st_size},
                  {"mtime_ns", int64_t{st.st_mtim.tv_sec} * 1'000'000'000 + st.st_mtim.tv_nsec}}));
    const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> hash(XXH3_createState(),
                                                                               XXH3_freeState);
    XXH3_64bits_reset(hash.get());
    std::vector<char> bytes(1 << 20);
    for (auto left = static_cast<uint64_t>(st.st_size); left != 0;) {
      const ssize_t n = read(fd.get(), bytes.data(), std::min<uint64_t>(bytes.size(), left));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return cannot_read(full);
      XXH3_64bits_update(hash.get(), bytes.data(), static_cast<size_t>(n));
      if (!write_all(out_, bytes.data(), static_cast<size_t>(n))) return gone();
      left -= static_cast<uint64_t>(n);
    }
    const std::string sum = fmt::format("{:016x}", XXH3_64bits_digest(hash.get()));
    return write_all(out_, sum.data(), sum.size()) ? Result<void>() : gone();
  }

  void add(const std::string& part) {
    if (known_.insert(part).second) parts_.push_back(part);
  }

  // Adds the parent. Its name is unreadable without the key; then adds all older parts.
  Result<void> add_parent(const std::string& image) {
    const std::string full = directory_ + "/" + image;
    const ScopedFd fd(open(full.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
    auto brief = probe_image(fd.get(), full.c_str());
    if (brief.ok()) {
      const std::string parent(brief->parent.name, strnlen(brief->parent.name, sizeof(brief->parent.name)));
      constexpr size_t kUp = 3;  // "../"
      if (job::is_parent_in_job(parent)) add(parent.substr(kUp, parent.rfind('/') - kUp));
      return {};
    }
    if (brief.error().code != ExitCode::kPermission) return brief.error();
    job::ParsedJobName own, other;
    const std::string part = image.substr(0, image.find('/'));
    if (!job::parse_job_name(part, &own)) return {};
    for (const std::string& name : names_in(directory_)) {
      if (job::parse_job_name(name, &other) && !other.temporary && other.sequence < own.sequence) add(name);
    }
    return {};
  }

  const std::string directory_;
  const int out_;
  std::deque<std::string> parts_;
  std::set<std::string> known_;
};

}  // namespace

Result<void> send_part(const std::string& part, int fd) {
  const size_t slash = part.rfind('/');
  struct stat st;
  if (slash == std::string::npos || slash == 0 || lstat(part.c_str(), &st) != 0 || !S_ISDIR(st.st_mode))
    return failure(ExitCode::kNotFound, part, "is not here", "it is on the host that wrote it");
  return Sender(part.substr(0, slash), fd).send(part.substr(slash + 1));
}

}  // namespace ckpt::cli
