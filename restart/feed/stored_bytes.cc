#include "restart/feed/stored_bytes.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "base/units.h"
#include "image/format/io_error.h"
#include "image/read/section_reader.h"

namespace ckpt {

StoredBytes::StoredBytes(const ImageChain& image) : image_(image) {
  for (size_t i = 0; i < image.size(); ++i) {
    File file;
    if (!image.image(i).stored_plainly()) {
      files_.push_back(std::move(file));
      continue;
    }
    const std::string path = fmt::format("/proc/self/fd/{}", image.image(i).fd());
    file.direct = ScopedFd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT));
    // No read-ahead: it would bring the next bytes into the cache, where cached() would find them and read
    // through the cache again; O_DIRECT would never be used.
    if (file.direct.valid()) posix_fadvise(image.image(i).fd(), 0, 0, POSIX_FADV_RANDOM);
    file.bytes = image.image(i).brief().file_bytes;
    void* view = mmap(nullptr, file.bytes, PROT_READ, MAP_SHARED, image.image(i).fd(), 0);
    if (view != MAP_FAILED) file.view = view;
    files_.push_back(std::move(file));
  }
}

StoredBytes::~StoredBytes() {
  for (File& file : files_) {
    if (file.view != nullptr) munmap(file.view, file.bytes);
  }
}

bool StoredBytes::cached(const File& file, uint64_t offset, size_t bytes) const {
  unsigned char there[512];
  size_t pages = std::min(bytes / kPageSize, sizeof(there));
  if (file.view == nullptr || offset + pages * kPageSize > file.bytes) return true;
  if (mincore(static_cast<char*>(file.view) + offset, pages * kPageSize, there) != 0) return true;
  return std::all_of(there, there + pages, [](unsigned char c) { return (c & 1) != 0; });
}

Result<void> StoredBytes::read(uint32_t image, std::span<StoredRead> reads, DirectReads& direct) const {
  const File& file = files_[image];
  if (const ImageReader& reader = image_.image(image); !reader.stored_plainly()) {
    for (const StoredRead& r : reads) {
      CKPT_TRY(reader.bytes().read(r.out.data(), r.out.size(), r.offset, reader.path().c_str()));
    }
    return {};
  }
  std::vector<StoredRead*> past_cache;
  for (StoredRead& r : reads) {
    if (file.direct.valid() && !cached(file, r.offset, r.out.size())) past_cache.push_back(&r);
  }
  if (past_cache.size() == 1) {
    StoredRead& r = *past_cache.front();
    r.done = pread(file.direct.get(), r.out.data(), r.out.size(), static_cast<off_t>(r.offset)) ==
             static_cast<ssize_t>(r.out.size());
  } else if (!past_cache.empty()) {
    direct.read(file.direct.get(), past_cache);
  }
  for (const StoredRead& r : reads) {
    if (!r.done) CKPT_TRY(read_one(image, r));
  }
  return {};
}

Result<void> StoredBytes::read_one(uint32_t image, const StoredRead& read) const {
  int error = 0;
  const ImageReader& reader = image_.image(image);
  if (read_exactly(reader.fd(), read.out.data(), read.out.size(), read.offset, &error)) return {};
  return make_error(ExitCode::kIo, error, "{}: cannot be read at byte {} ({}); see the kernel log",
                    shown_path(reader.path().c_str()).text, read.offset,
                    error == 0 ? "it has become shorter" : errno_name(error));
}

}  // namespace ckpt
