// Does with an image all that a reader can do, and looks at all that it says: for fuzzing.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "image/read/image_reader.h"

namespace ckpt {

inline uint64_t look_at(std::string_view text) {
  uint64_t sum = 0;
  for (char c : text) sum = sum * 31 + static_cast<unsigned char>(c);
  return sum;
}
inline uint64_t look_at(Blob blob) {
  return look_at(std::string_view(reinterpret_cast<const char*>(blob.data()), blob.size()));
}

// A file in memory with these bytes.
inline ScopedFd file_in_memory(std::string_view bytes) {
  ScopedFd fd(memfd_create("image", MFD_CLOEXEC));
  for (size_t at = 0; fd.valid() && at < bytes.size();) {
    ssize_t n = write(fd.get(), bytes.data() + at, bytes.size() - at);
    if (n <= 0) return ScopedFd();
    at += static_cast<size_t>(n);
  }
  return fd;
}

inline std::string path_of(const ScopedFd& fd) { return "/proc/self/fd/" + std::to_string(fd.get()); }

// What was read, as one number; or why the image is not a good one.
inline Result<uint64_t> exercise_reader(const ScopedFd& fd) {
  auto image = ImageReader::open(path_of(fd));
  if (!image.ok()) return image.error();
  uint64_t sum = 0;
  auto see = [&](auto... values) { ((sum = sum * 31 + static_cast<uint64_t>(values)), ...); };
  const ImageMeta& m = image->meta();
  see(look_at(m.process.cwd), look_at(m.process.root), look_at(m.process.comm),
      look_at(m.process.library_path), look_at(m.process.cpu_features), look_at(m.mm.auxv),
      look_at(m.mm.exe_path), look_at(m.cost));
  for (uint32_t group : m.process.groups) see(group);
  for (const auto& x : m.mappings) see(x.record.start, x.record.end, look_at(x.path), look_at(x.build_id));
  for (const auto& x : m.threads) see(x.record.tid, look_at(x.name), look_at(x.affinity), look_at(x.xstate));
  for (const auto& x : m.open_files) see(x.record.id, look_at(x.path), look_at(x.details));
  for (const auto& x : m.contents) see(x.record.open_file, look_at(x.bytes));
  for (const auto& x : m.notes) see(look_at(x.text));
  for (const auto& x : m.descriptors) see(x.fd, m.open_file(x.open_file) != nullptr);
  for (const AddrRange& x : image->inherited()) see(x.start.value, x.end.value);
  std::vector<std::byte> memory;
  for (const Extent& e : image->extents()) {
    see(e.address.value, e.length);
    if (e.length > 64 << 20) continue;  // more than a fuzzer's memory limit likes
    memory.resize(e.length);
    if (image->read_extent(e, memory).ok()) see(look_at(Blob(memory)));
  }
  CKPT_TRY(image->verify_data(1));
  return sum;
}
inline Result<uint64_t> exercise_reader(std::string_view bytes) {
  return exercise_reader(file_in_memory(bytes));
}

}  // namespace ckpt
