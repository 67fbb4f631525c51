#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <filesystem>
#include <memory>
#include <set>
#include <vector>

#include "base/raii_fd.h"
#include "cli/gather/part_stream.h"
#include "cli/hosts/job/hosts_manifest.h"
#include "cli/text/failure.h"
#include "cli/text/json_lines.h"
#include "image/format/saved_file_names.h"
#include "job/format/job_name.h"

namespace ckpt::cli {

namespace {

namespace fs = std::filesystem;

// PART/NAME or PART/NAME.files/NAME, and nothing that leads elsewhere.
bool is_good_path(const std::string& path) {
  std::vector<std::string> words;
  std::string word;
  for (char c : path + "/") {
    if (c != '/') {
      word += c;
      continue;
    }
    if (word.empty() || word[0] == '.' || word.size() > 255) return false;
    words.push_back(std::move(word));
    word.clear();
  }
  job::ParsedJobName parsed;
  if (path.find('\0') != path.npos || words.size() < 2 || words.size() > 3) return false;
  if (!job::parse_job_name(words[0], &parsed) || parsed.temporary) return false;
  return words.size() == 2 || words[1].ends_with(kSavedFilesSuffix);
}

class Receiver {
 public:
  Receiver(int in, std::string directory, std::string host)
      : in_(in), directory_(std::move(directory)), host_(std::move(host)) {}
  ~Receiver() {
    std::error_code ignored;
    for (const std::string& part : made_) fs::remove_all(temporary(part), ignored);
  }
  Receiver(const Receiver&) = delete;
  Receiver& operator=(const Receiver&) = delete;

  Result<void> run() {
    for (;;) {
      Json line;
      if (!read_head(line)) return broken("ended before all had come");
      if (line.value("end", false)) return {};
      if (line.contains("code"))
        return make_error(static_cast<ExitCode>(line.value("code", 70)), 0, "{}: {}", host_,
                          line.value("error", ""));
      CKPT_TRY(take(line));
    }
  }

  // All that has come gets its name: what others build on first.
  Result<void> commit(const std::string& own, const std::string& checksum) {
    if (made_.count(own) == 0 || checksum_of_file(temporary(own) + "/" + job::kManifestName) != checksum)
      return failure(ExitCode::kImageDamaged, fmt::format("{}: {}", host_, own),
                     "is not the part that belongs to this checkpoint", "take another checkpoint");
    std::vector<std::string> order(made_.begin(), made_.end());
    std::erase(order, own);
    order.push_back(own);
    for (const std::string& part : order) CKPT_TRY(commit_one(part));
    const ScopedFd in(open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!in.valid() || fsync(in.get()) != 0) return cannot_write(directory_);
    return {};
  }

  uint64_t bytes() const { return bytes_; }

 private:
  std::string temporary(const std::string& part) const { return directory_ + "/." + part + ".gather"; }

  Error broken(const char* what) const {
    return failure(ExitCode::kUnavailable, host_, fmt::format("its stream of images {}", what),
                   "see what it has said, and run it again");
  }
  static Error cannot_write(const std::string& path) {
    return failure(ExitCode::kIo, path, fmt::format("cannot be written: {}", strerror(errno)),
                   "see the disk");
  }

  bool read_exactly(char* to, size_t n) {
    while (n != 0) {
      const ssize_t got = read(in_, to, n);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return false;
      to += got;
      n -= static_cast<size_t>(got);
    }
    return true;
  }
  // Byte by byte: what follows is a file's.
  bool read_head(Json& line) {
    std::string text;
    for (char c = 0;; text += c) {
      if (!read_exactly(&c, 1) || text.size() > 16384) return false;
      if (c == '\n') break;
    }
    line = Json::parse(text, nullptr, false);
    return line.is_object();
  }

  Result<void> make_directory(const std::string& path) {
    if (mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) return {};
    return failure(ExitCode::kCannotCreate, path, fmt::format("cannot be created: {}", strerror(errno)),
                   "name another directory");
  }

  Result<void> take(const Json& line) {
    const Json path_word = line.value("path", Json());
    if (!path_word.is_string() || !is_good_path(path_word.get<std::string>()))
      return broken("has a name that leads elsewhere");
    const auto path = path_word.get<std::string>();
    const std::string part = path.substr(0, path.find('/')), inside = path.substr(part.size() + 1);
    if (made_.insert(part).second) {
      std::error_code ignored;
      fs::remove_all(temporary(part), ignored);  // of a run that was interrupted
      CKPT_TRY(make_directory(temporary(part)));
    }
    if (const size_t slash = inside.find('/'); slash != inside.npos)
      CKPT_TRY(make_directory(temporary(part) + "/" + inside.substr(0, slash)));
    const std::string full = temporary(part) + "/" + inside;
    if (line.contains("link")) {
      if (!line["link"].is_string() || !inside.ends_with(kSavedNameSuffix))
        return broken("has a link that nobody made");
      return symlink(line["link"].get<std::string>().c_str(), full.c_str()) == 0 ? Result<void>()
                                                                                 : cannot_write(full);
    }
    return take_file(line, full);
  }

  Result<void> take_file(const Json& line, const std::string& path) {
    if (!line.contains("bytes") || !line["bytes"].is_number_integer())
      return broken("has a file without a size");
    const ScopedFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!fd.valid()) return cannot_write(path);
    const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> hash(XXH3_createState(),
                                                                               XXH3_freeState);
    XXH3_64bits_reset(hash.get());
    std::vector<char> bytes(1 << 20);
    for (auto left = line["bytes"].get<uint64_t>(); left != 0;) {
      const size_t n = std::min<uint64_t>(bytes.size(), left);
      if (!read_exactly(bytes.data(), n)) return broken("ended in the middle of a file");
      XXH3_64bits_update(hash.get(), bytes.data(), n);
      if (write(fd.get(), bytes.data(), n) != static_cast<ssize_t>(n)) return cannot_write(path);
      left -= n;
      bytes_ += n;
    }
    char sum[17] = {};
    if (!read_exactly(sum, 16)) return broken("ended in the middle of a file");
    if (fmt::format("{:016x}", XXH3_64bits_digest(hash.get())) != sum)
      return failure(ExitCode::kImageDamaged, fmt::format("{}: {}", host_, path), "was damaged on its way",
                     "run it again");
    const int64_t mtime = line.value("mtime_ns", int64_t{0});
    const timespec times[2] = {{0, UTIME_OMIT}, {mtime / 1'000'000'000, mtime % 1'000'000'000}};
    if (futimens(fd.get(), times) != 0 || fsync(fd.get()) != 0) return cannot_write(path);
    return {};
  }

  Result<void> commit_one(const std::string& part) {
    const std::string path = directory_ + "/" + part, from = temporary(part);
    const std::string there = checksum_of_file(path + "/" + job::kManifestName);
    if (!there.empty() && there == checksum_of_file(from + "/" + job::kManifestName)) return {};
    std::vector<std::string> directories{from};
    for (const auto& entry : fs::recursive_directory_iterator(from)) {
      if (entry.is_directory() && !entry.is_symlink()) directories.push_back(entry.path());
    }
    for (const std::string& directory : directories) {
      const ScopedFd in(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
      if (!in.valid() || fsync(in.get()) != 0) return cannot_write(directory);
    }
    if (rename(from.c_str(), path.c_str()) == 0) return {};
    return failure(ExitCode::kCannotCreate, path,
                   errno == ENOTEMPTY || errno == EEXIST ? std::string("is another checkpoint")
                                                         : fmt::format("cannot be made: {}", strerror(errno)),
                   "name another directory");
  }

  const int in_;
  const std::string directory_, host_;
  std::set<std::string> made_;
  uint64_t bytes_ = 0;
};

}  // namespace

Result<void> receive_part(int fd, const std::string& directory, const std::string& part,
                          const std::string& checksum, const std::string& host, uint64_t* bytes) {
  Receiver receiver(fd, directory, host);
  CKPT_TRY(receiver.run());
  *bytes += receiver.bytes();
  return receiver.commit(part, checksum);
}

}  // namespace ckpt::cli
