#include "cluster/keeper/part_stream.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "cluster/keeper/running_sum.h"

namespace ckpt::keeper {

namespace {

constexpr size_t kStep = 1 << 20;
constexpr int64_t kSecond = 1'000'000'000;

Error cannot(const char* what, const std::string& name) {
  const bool full = errno == ENOSPC;
  return make_error(ExitCode::kIo, errno, "{}: cannot be {} ({}){}", name.substr(0, 100), what,
                    errno_name(errno),
                    full              ? ": the keeper's memory is used up; start it with more --memory"
                    : errno == EMFILE ? ": raise ulimit -n"
                                      : "");
}

// Names of regular files, sorted.
Result<void> list(int directory, const std::string& before, std::vector<PartFile>& files) {
  const int again = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(again < 0 ? nullptr : fdopendir(again), closedir);
  if (dir == nullptr) return cannot("listed", before.empty() ? "the part" : before);
  while (const dirent* entry = readdir(dir.get())) {
    const std::string name = entry->d_name;
    if (name == "." || name == "..") continue;
    struct stat st {};
    if (fstatat(directory, name.c_str(), &st, AT_SYMLINK_NOFOLLOW) != 0) return cannot("examined", name);
    if (S_ISREG(st.st_mode)) {
      files.push_back({before + name, static_cast<uint64_t>(st.st_size), st.st_mode & 07777u,
                       st.st_mtim.tv_sec * kSecond + st.st_mtim.tv_nsec, st.st_uid, st.st_gid});
    } else if (S_ISDIR(st.st_mode) && before.empty()) {
      const ScopedFd below(openat(directory, name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
      if (!below.valid()) return cannot("opened", name);
      CKPT_TRY(list(below.get(), name + "/", files));
    }
  }
  return {};
}

}  // namespace

bool is_part_file_name(const std::string& name) {
  const size_t slash = name.find('/');
  const auto fine = [](std::string_view part) {
    return !part.empty() && part != "." && part != ".." && part.size() < 256 &&
           part.find('\0') == part.npos && part.find('/') == part.npos;
  };
  if (slash == std::string::npos) return fine(name);
  return fine(std::string_view(name).substr(0, slash)) && fine(std::string_view(name).substr(slash + 1));
}

Result<void> PartStream::place(PartWords words) {
  words_ = words.fd;
  bytes_ = 0;
  for (size_t i = 0; i < files_.size(); ++i) {
    const PartFile& file = files_[i];
    Open& open = open_[i];
    open.offset = bytes_;
    open.bytes = file.words != 0 ? file.words : file.bytes;
    open.at = file.words != 0 ? words.at : 0;
    if (open.bytes > UINT64_MAX / 4 - bytes_ || (file.words != 0 && open.bytes > UINT64_MAX / 4 - words.at))
      return make_error(ExitCode::kImageDamaged, 0, "the list of a part's files is damaged");
    words.at += file.words;
    bytes_ += open.bytes;
  }
  return {};
}

Result<void> PartStream::set_words(const std::vector<PartFile>& with_words, PartWords words) {
  for (PartFile& file : files_) {
    for (const PartFile& other : with_words) {
      if (other.name != file.name || other.bytes != file.bytes) continue;
      file.words = other.words;
      file.sum = other.sum;
    }
  }
  return place(words);
}

uint64_t PartStream::bytes_of_files() const {
  uint64_t bytes = 0;
  for (const PartFile& file : files_) bytes += file.bytes;
  return bytes;
}

Result<void> PartStream::read_words(size_t file, uint64_t at, std::span<std::byte> to) const {
  return read(open_[file].offset + at, to);
}

Result<PartStream> PartStream::open(int directory) {
  PartStream stream;
  CKPT_TRY(list(directory, "", stream.files_));
  std::sort(stream.files_.begin(), stream.files_.end(),
            [](const PartFile& a, const PartFile& b) { return a.name < b.name; });
  for (const PartFile& file : stream.files_) {
    ScopedFd fd(openat(directory, file.name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    if (!fd.valid()) return cannot("opened", file.name);
    stream.open_.push_back({std::move(fd)});
  }
  CKPT_TRY(stream.place({}));
  return stream;
}

Result<PartStream> PartStream::create(int directory, std::vector<PartFile> files, PartWords words) {
  PartStream stream;
  for (const PartFile& file : files) {
    if (!is_part_file_name(file.name) || file.bytes > UINT64_MAX / 4)
      return make_error(ExitCode::kImageDamaged, 0, "the list of a part's files names one that cannot be");
    if (const size_t slash = file.name.find('/'); slash != std::string::npos)
      mkdirat(directory, file.name.substr(0, slash).c_str(), 0700);
    ScopedFd fd(
        openat(directory, file.name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!fd.valid() || ftruncate(fd.get(), static_cast<off_t>(file.bytes)) != 0)
      return cannot("made", file.name);
    stream.open_.push_back({std::move(fd)});
  }
  stream.files_ = std::move(files);
  CKPT_TRY(stream.place(words));
  return stream;
}

// visit(file, offset in it, bytes, offset in the block) for what lies before the end.
template <typename Visit>
Result<void> PartStream::each(uint64_t offset, uint64_t bytes, Visit visit) const {
  for (size_t i = 0; i < files_.size(); ++i) {
    const uint64_t begin = std::max(offset, open_[i].offset);
    const uint64_t end = std::min(offset + bytes, open_[i].offset + open_[i].bytes);
    if (begin < end) CKPT_TRY(visit(i, open_[i].at + begin - open_[i].offset, end - begin, begin - offset));
  }
  return {};
}

Result<void> PartStream::read(uint64_t offset, std::span<std::byte> block) const {
  if (offset + block.size() > bytes_) {
    const uint64_t there = offset < bytes_ ? bytes_ - offset : 0;
    std::fill(block.begin() + static_cast<std::ptrdiff_t>(there), block.end(), std::byte{});
  }
  return each(
      offset, block.size(), [&](size_t file, uint64_t at, uint64_t bytes, uint64_t to) -> Result<void> {
        for (uint64_t done = 0; done < bytes;) {
          const ssize_t n =
              pread(source(file), block.data() + to + done, bytes - done, static_cast<off_t>(at + done));
          if (n == 0) errno = EIO;
          if (n <= 0) return cannot("read", files_[file].name);
          done += static_cast<uint64_t>(n);
        }
        return {};
      });
}

Result<void> PartStream::write(uint64_t offset, std::span<const std::byte> block) {
  return each(
      offset, block.size(), [&](size_t file, uint64_t at, uint64_t bytes, uint64_t from) -> Result<void> {
        for (uint64_t done = 0; done < bytes;) {
          const ssize_t n =
              pwrite(source(file), block.data() + from + done, bytes - done, static_cast<off_t>(at + done));
          if (n <= 0) return cannot("written", files_[file].name);
          done += static_cast<uint64_t>(n);
        }
        return {};
      });
}

Result<void> PartStream::dress() {
  for (size_t i = 0; i < files_.size(); ++i) {
    const PartFile& file = files_[i];
    const int fd = open_[i].fd.get();
    const timespec times[2] = {{0, UTIME_OMIT}, {file.modified_ns / kSecond, file.modified_ns % kSecond}};
    // The owner first: a change of it takes bits of the mode away.
    if ((geteuid() == 0 && fchown(fd, file.user, file.group) != 0) || fchmod(fd, file.mode) != 0 ||
        (file.modified_ns != 0 && futimens(fd, times) != 0))
      return cannot("given its mode and time", file.name);
  }
  return {};
}

Result<uint64_t> PartStream::checksum() const {
  RunningSum sum;
  std::vector<std::byte> step(kStep);
  for (uint64_t at = 0; at < bytes_; at += kStep) {
    const std::span<std::byte> part = std::span(step).first(std::min<uint64_t>(kStep, bytes_ - at));
    CKPT_TRY(read(at, part));
    sum.add(part);
  }
  return sum.value();
}

Result<uint64_t> checksum_of(int fd) {
  RunningSum sum;
  std::vector<std::byte> step(kStep);
  for (off_t at = 0;;) {
    const ssize_t n = pread(fd, step.data(), step.size(), at);
    if (n < 0) return cannot("read", "a file of checks");
    if (n == 0) return sum.value();
    sum.add(std::span(step).first(static_cast<size_t>(n)));
    at += n;
  }
}

}  // namespace ckpt::keeper
