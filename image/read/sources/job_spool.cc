#include "image/read/sources/job_spool.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <vector>

#include "base/raii_fd.h"
#include "base/sys.h"
#include "image/format/io_error.h"
#include "image/format/job_stream.h"
#include "image/read/manifest.h"
#include "image/read/sources/image_spool.h"
#include "image/read/sources/reading_trust.h"
#include "job/format/job_name.h"

namespace ckpt {

namespace {

constexpr uint32_t kMostEntries = 1 << 20;
constexpr const char* kSpoolName = "/ckpt-job-";
constexpr const char* kLeft = "CKPT_RESTART_SPOOL";
constexpr size_t kSpoolStep = 1 << 20;

// The bytes of a descriptor, the first of which were read already.
class Bytes {
 public:
  Bytes(int fd, std::string_view before) : fd_(fd), before_(before) {}

  // As many as there are, at most `bytes`; less: its end. -1: errno.
  ssize_t read(void* to, size_t bytes) {
    size_t have = std::min(bytes, before_.size());
    std::copy_n(before_.data(), have, static_cast<char*>(to));
    before_.remove_prefix(have);
    while (have < bytes) {
      const ssize_t n = ::read(fd_, static_cast<char*>(to) + have, bytes - have);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return -1;
      if (n == 0) break;
      have += static_cast<size_t>(n);
    }
    return static_cast<ssize_t>(have);
  }

 private:
  int fd_;
  std::string_view before_;
};

bool is_job_stream(std::string_view first) {
  return first.substr(0, sizeof(kJobStreamMagic)) ==
         std::string_view(kJobStreamMagic, sizeof(kJobStreamMagic));
}

std::string file_of(uint32_t entry) {
  return entry == kJobManifestEntry ? job::kManifestName
                                    : job::member_image_name(static_cast<int>(entry)).text;
}

Error damaged(const std::string& name, const std::string& what) {
  return make_error(ExitCode::kImageDamaged, 0, "{}: {}; the stream of a job's checkpoint is damaged", name,
                    what);
}

Error no_room(const std::string& directory, int error) {
  return make_error(ExitCode::kIo, error,
                    "{}: no room for the job's images ({}); set TMPDIR to a directory with room",
                    shown_path(directory.c_str()).text, errno_name(error));
}

// What came of an entry so far.
struct Entry {
  uint64_t bytes = 0;
  bool whole = false;
};

// Writes the files of a stream into a directory, and checks that it is whole.
class Unpacking {
 public:
  Unpacking(Bytes& from, const std::string& name, const std::string& directory)
      : from_(from), name_(name), directory_(directory) {}

  Result<void> run() {
    JobStreamHead head;
    CKPT_TRY(take(&head, sizeof(head)));
    if (head.version != kJobStreamVersion) {
      return make_error(ExitCode::kIncompatible, 0,
                        "{}: a stream of a job of version {}, this program reads {}", name_, head.version,
                        kJobStreamVersion);
    }
    for (;;) {
      JobStreamFrame frame;
      CKPT_TRY(take(&frame, sizeof(frame)));
      switch (static_cast<JobFrame>(frame.kind)) {
        case JobFrame::kBytes:
          CKPT_TRY(take_bytes(frame));
          break;
        case JobFrame::kWhole:
          CKPT_TRY(end_entry(frame));
          break;
        case JobFrame::kEnd:
          return end(frame);
        default:
          return damaged(name_, fmt::format("no frame has the kind {}", frame.kind));
      }
    }
  }

 private:
  Result<void> take(void* to, size_t bytes) {
    const ssize_t n = from_.read(to, bytes);
    if (n == static_cast<ssize_t>(bytes)) return {};
    if (n < 0) return make_error(ExitCode::kIo, errno, "{}: cannot be read ({})", name_, errno_name(errno));
    return damaged(name_, fmt::format("it ends after {} processes", entries_.size()));
  }

  Result<void> take_bytes(const JobStreamFrame& frame) {
    if (frame.bytes > kMostFrameBytes || entries_.size() > kMostEntries || frame.entry > INT32_MAX)
      return damaged(name_, "a frame is longer than any");
    auto [at, is_new] = entries_.try_emplace(frame.entry);
    if (at->second.whole)
      return damaged(name_, fmt::format("{} goes on behind its end", file_of(frame.entry)));
    const std::string path = directory_ + "/" + file_of(frame.entry);
    const ScopedFd file(open(
        path.c_str(), O_WRONLY | O_APPEND | O_NOFOLLOW | O_CLOEXEC | (is_new ? O_CREAT | O_EXCL : 0), 0600));
    if (!file.valid()) return no_room(directory_, errno);
    if (buffer_.empty()) buffer_.resize(kSpoolStep);
    for (uint64_t left = frame.bytes; left > 0;) {
      const size_t step = std::min<uint64_t>(left, kSpoolStep);
      CKPT_TRY(take(buffer_.data(), step));
      for (size_t done = 0; done < step;) {
        const ssize_t n = write(file.get(), buffer_.data() + done, step - done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return no_room(directory_, n < 0 ? errno : ENOSPC);
        done += static_cast<size_t>(n);
      }
      left -= step;
    }
    at->second.bytes += frame.bytes;
    return {};
  }

  Result<void> end_entry(const JobStreamFrame& frame) {
    const auto at = entries_.find(frame.entry);
    if (at == entries_.end() || at->second.whole || at->second.bytes != frame.bytes)
      return damaged(name_, fmt::format("{} is not as long as it says", file_of(frame.entry)));
    at->second.whole = true;
    return {};
  }

  Result<void> end(const JobStreamFrame& frame) {
    for (const auto& [entry, state] : entries_) {
      if (!state.whole) return damaged(name_, fmt::format("{} is not whole", file_of(entry)));
    }
    if (frame.bytes != 0 || frame.entry != entries_.size() || entries_.count(kJobManifestEntry) == 0)
      return damaged(name_, "its end does not fit what came before");
    char more;
    if (from_.read(&more, 1) != 0) return damaged(name_, "something follows its end");
    return {};
  }

  Bytes& from_;
  const std::string& name_;
  const std::string& directory_;
  std::map<uint32_t, Entry> entries_;
  std::vector<char> buffer_;
};

// A process that removes the directory when nobody has the other end of its pipe any more. -1: there is none,
// and it stays if this process is killed.
ScopedFd start_janitor(const std::string& directory) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ScopedFd();
  ScopedFd wait(ends[0]), hold(ends[1]);
  const pid_t child = fork();
  if (child == 0) {
    if (fork() != 0) _exit(0);  // nobody's child: who waits for all children does not find it
    setsid();
    for (int signal = 1; signal < NSIG; ++signal) ::signal(signal, SIG_IGN);
    prctl(PR_SET_NAME, "ckpt-janitor");
    if (dup2(wait.get(), 0) != 0) _exit(0);
    sys::call(__NR_close_range, 1L, ~0u, 0L);
    char none;
    while (read(0, &none, 1) < 0 && errno == EINTR) {
    }
    std::error_code ignored;
    std::filesystem::remove_all(directory, ignored);
    _exit(0);
  }
  if (child < 0) return ScopedFd();
  while (waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  return hold;
}

}  // namespace

Result<std::unique_ptr<JobSpool>> JobSpool::of(const std::string& argument) {
  ScopedFd file;
  std::string first;
  const bool standard = argument == "-";
  const std::string name = standard ? kStandardInput : shown_path(argument.c_str()).text;
  if (standard) {
    auto begins = peek_standard_input(sizeof(kJobStreamMagic));
    if (!begins.ok()) return begins.error();
    first = *begins;
  } else {
    struct stat st;
    file.reset(open(argument.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    if (!file.valid() || fstat(file.get(), &st) != 0 || !S_ISREG(st.st_mode))
      return std::unique_ptr<JobSpool>();
    char text[sizeof(kJobStreamMagic)];
    const ssize_t n = pread(file.get(), text, sizeof(text), 0);
    first.assign(text, n > 0 ? static_cast<size_t>(n) : 0);
  }
  if (!is_job_stream(first)) return std::unique_ptr<JobSpool>();
  if (!standard) CKPT_TRY(check_trust(file.get(), argument));
  const char* wanted = getenv("TMPDIR");
  std::string outer =
      (wanted != nullptr && *wanted != '\0' ? wanted : "/tmp") + std::string(kSpoolName) + "XXXXXX";
  if (mkdtemp(outer.data()) == nullptr) {
    return make_error(
        ExitCode::kCannotCreate, errno,
        "{}: no directory for the job's images can be made ({}); set TMPDIR to one that you may write",
        shown_path(outer.c_str()).text, errno_name(errno));
  }
  std::unique_ptr<JobSpool> spool(new JobSpool(outer, start_janitor(outer)));
  const bool from_pipe = standard && !standard_input_is_at_start();
  CKPT_TRY(spool->fill(standard ? STDIN_FILENO : file.get(), name,
                       from_pipe ? std::string_view(first) : std::string_view()));
  return spool;
}

Result<void> JobSpool::fill(int fd, const std::string& name, std::string_view before) {
  job_ = outer_ + "/stream.000000" + std::string(kJobSuffix);
  if (mkdir(job_.c_str(), 0700) != 0) return no_room(outer_, errno);
  Bytes bytes(fd, before);
  CKPT_TRY(Unpacking(bytes, name, job_).run());
  auto manifest = read_manifest(job_);
  if (!manifest.ok()) return manifest.error();
  const std::string own = outer_ + "/" + job::compose_job_name(manifest->name, manifest->sequence).text;
  if (own == job_ || rename(job_.c_str(), own.c_str()) == 0) job_ = own;
  return {};
}

void JobSpool::leave_to_next_execution() {
  if (hold_.valid()) fcntl(hold_.get(), F_SETFD, 0);
  setenv(kLeft, fmt::format("{}:{}:{}", owner_, hold_.get(), job_).c_str(), 1);
}

std::unique_ptr<JobSpool> JobSpool::left_before() {
  const char* text = getenv(kLeft);
  if (text == nullptr) return nullptr;
  int pid = 0, hold = -1, at = 0;
  const int found = std::sscanf(text, "%d:%d:%n", &pid, &hold, &at);
  const std::string path = found == 2 ? text + at : "";
  unsetenv(kLeft);
  const size_t slash = path.rfind('/');
  struct stat st;
  // An execution keeps the pid. Another process that sets the variable must not have a directory of its
  // choice removed.
  if (pid != getpid() || slash == std::string::npos || lstat(path.substr(0, slash).c_str(), &st) != 0 ||
      !S_ISDIR(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 077) != 0 ||
      path.find(kSpoolName) == std::string::npos)
    return nullptr;
  if (hold >= 0) fcntl(hold, F_SETFD, FD_CLOEXEC);
  std::unique_ptr<JobSpool> spool(new JobSpool(path.substr(0, slash), ScopedFd(hold)));
  spool->job_ = path;
  return spool;
}

JobSpool::~JobSpool() {
  if (owner_ == getpid()) remove();
}

void JobSpool::remove() {
  std::error_code ignored;
  if (!outer_.empty()) std::filesystem::remove_all(outer_, ignored);
  outer_.clear();
  hold_.reset();
}

}  // namespace ckpt
