// Does with an image all that a reader can do, and looks at all that it says: for fuzzing.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "writer/image_reader.h"

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

// True when the image was taken as a good one.
inline bool exercise_reader(const ScopedFd& fd) {
  auto image = ImageReader::open("/proc/self/fd/" + std::to_string(fd.get()));
  if (!image.ok()) return false;
  [[maybe_unused]] static volatile uint64_t sink;
  const ImageMeta& m = image->meta();
  uint64_t sum = look_at(m.process.cwd) + look_at(m.process.root) + look_at(m.process.comm) +
                 look_at(m.process.library_path) + look_at(m.process.cpu_features) + look_at(m.mm.auxv) +
                 look_at(m.mm.exe_path) + look_at(m.cost) + m.process.groups.size();
  for (const auto& x : m.mappings) sum += look_at(x.path) + look_at(x.build_id);
  for (const auto& x : m.threads) sum += look_at(x.name) + look_at(x.affinity) + look_at(x.xstate);
  for (const auto& x : m.open_files) sum += look_at(x.path) + look_at(x.details);
  for (const auto& x : m.contents) sum += look_at(x.bytes);
  for (const auto& x : m.notes) sum += look_at(x.text);
  for (const auto& x : m.descriptors) sum += m.open_file(x.open_file) != nullptr;
  std::vector<std::byte> memory;
  for (const Extent& e : image->extents()) {
    if (e.length > 64 << 20) continue;  // more than a fuzzer's memory limit likes
    memory.resize(e.length);
    if (image->read_extent(e, memory).ok()) sum += look_at(Blob(memory));
  }
  bool good = image->verify_data(1).ok();
  sink = sum;
  return good;
}
inline bool exercise_reader(std::string_view bytes) { return exercise_reader(file_in_memory(bytes)); }

}  // namespace ckpt
