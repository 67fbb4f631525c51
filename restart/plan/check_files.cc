#include "restart/plan/check_files.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <tuple>

#include "base/raii_fd.h"
#include "image/format/file_hash.h"
#include "restart/files/shut_file.h"
#include "restart/plan/elf_build_id.h"

namespace ckpt {
namespace {

constexpr const char* kRemedy = "put the old file back (reinstall that version), or take a new checkpoint";

int64_t mtime_of(const struct stat& st) {
  return int64_t{st.st_mtim.tv_sec} * 1'000'000'000 + st.st_mtim.tv_nsec;
}

Result<uint64_t> hash_file(int fd, uint64_t size, const std::string& path) {
  constexpr size_t kBuffer = 1 << 20;
  auto buffer = std::make_unique<std::byte[]>(kBuffer);
  int error = 0;
  const uint64_t hash =
      hash_of_file(size, {buffer.get(), kBuffer}, [&](std::byte* to, size_t bytes, uint64_t offset) {
        size_t done = 0;
        while (done < bytes) {
          ssize_t n = pread(fd, to + done, bytes - done, static_cast<off_t>(offset + done));
          if (n < 0) error = errno;
          if (n <= 0) break;
          done += static_cast<size_t>(n);
        }
        return done;
      });
  if (error != 0) return make_error(ExitCode::kIo, error, "cannot read {} ({})", path, errno_name(error));
  return hash;
}

Result<void> check_unchanged(const ParsedMapping& m, int fd, const std::string& path) {
  struct stat st;
  if (fstat(fd, &st) != 0)
    return make_error(ExitCode::kIo, errno, "cannot stat {} ({})", path, errno_name(errno));
  const MappingRecord& r = m.record;
  // A truncated or extended file keeps its build id, so compare sizes first.
  if (r.object_size != 0 && static_cast<uint64_t>(st.st_size) != r.object_size) {
    return make_error(ExitCode::kFileChanged, 0,
                      "{} has changed since the checkpoint (it has {} bytes, had {}): {}", path,
                      static_cast<uint64_t>(st.st_size), r.object_size, kRemedy);
  }
  if (!m.build_id.empty()) {
    auto id = read_build_id(fd);
    if (id.size() == m.build_id.size() && std::memcmp(id.data(), m.build_id.data(), id.size()) == 0)
      return {};
    return make_error(ExitCode::kFileChanged, 0,
                      "{} has changed since the checkpoint (its build id differs): {}", path, kRemedy);
  }
  const auto size = static_cast<uint64_t>(st.st_size);
  bool same_content = true;
  if (r.file_hash != 0) {
    auto hash = hash_file(fd, size, path);
    if (!hash.ok()) return hash.error();
    same_content = *hash == r.file_hash;
  }
  if (same_content) {
    if (r.file_hash != 0 && size <= kHashedWhole) return {};
    if (r.file_mtime_ns == 0 || mtime_of(st) == r.file_mtime_ns) return {};
  }
  return make_error(ExitCode::kFileChanged, 0, "{} has changed since the checkpoint (its {} differs): {}",
                    path, same_content ? "modification time" : "content", kRemedy);
}

Result<void> check_one(const ParsedMapping& m, bool may_differ, const ReturningFiles& returning,
                       const SavedMappings& kept) {
  auto kind = static_cast<MappingKind>(m.record.kind);
  std::string path(m.path);
  const std::string saved = kept.of(m);
  ScopedFd fd(open(saved.empty() ? path.c_str() : saved.c_str(),
                   (kind == MappingKind::kDevice ? O_PATH : O_RDONLY) | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!fd.valid()) {
    // Or it has gone while others were looked at: each Java that starts removes the files of those that have
    // ended.
    if (errno == ENOENT && (returning.count(path) != 0 || can_be_made_again(m))) return {};
    const int error = errno;
    struct stat st;
    // The contents cannot be seen: the file's size, and its time where that is known, have to do.
    const MappingRecord& r = m.record;
    if (opens_later(path, error, st) &&
        (may_differ || (r.object_size == static_cast<uint64_t>(st.st_size) &&
                        (r.file_mtime_ns == 0 || r.file_mtime_ns == mtime_of(st)))))
      return {};
    errno = error;
    return make_error(ExitCode::kFileChanged, errno,
                      "{}, which the program had mapped, cannot be opened ({}): {}", path, errno_name(errno),
                      kRemedy);
  }
  if (kind == MappingKind::kDevice) return {};
  struct stat st;
  if (fstat(fd.get(), &st) != 0 || !S_ISREG(st.st_mode)) {
    return make_error(ExitCode::kFileChanged, 0, "{} is no regular file any more: {}", path, kRemedy);
  }
  if (may_differ) return {};
  return check_unchanged(m, fd.get(), path);
}

}  // namespace

Result<void> check_mapped_files(const ImageMeta& meta, const ReturningFiles& returning,
                                const WrittenFiles& written, const SavedMappings& saved) {
  std::set<std::tuple<std::string_view, uint32_t>> done;
  for (const ParsedMapping& m : meta.mappings) {
    auto kind = static_cast<MappingKind>(m.record.kind);
    bool from_file =
        kind == MappingKind::kFilePrivate || kind == MappingKind::kFileShared || kind == MappingKind::kDevice;
    if (!from_file || (m.record.flags & kMapFileDeleted) != 0) continue;
    if (!done.emplace(m.path, m.record.kind).second) continue;
    CKPT_TRY(check_one(m, written.count(m.path) != 0, returning, saved));
  }
  return {};
}

}  // namespace ckpt
