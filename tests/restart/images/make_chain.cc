// Makes a chain of increments of a directory of full images of one run: each image but the first says
// only what differs from the one before. What the library's tracking of writes would have written, found
// by comparing. Usage: make_chain DIRECTORY
#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <cstring>
#include <memory>

#include "image/read/saved_memory.h"
#include "image/read/sources/image_catalog.h"
#include "image/write/direct_sink.h"

namespace ckpt {
namespace {

Result<SinkStats> rewrite(const ImageChain& before, const ImageChain& now, const ParentImage& parent,
                          int dir_fd, const char* name) {
  Arena arena;
  SinkOptions options;
  options.replace = true;
  DirectSink sink(options);
  if (!arena.reserve(DirectSink::arena_bytes({}, now.memory_bytes())))
    return make_error(ExitCode::kSystem, 0, "no memory");
  ImageIdentity identity{};
  std::memcpy(identity.run_id, now.brief().run_id, sizeof(identity.run_id));
  identity.sequence = now.brief().sequence;
  identity.realtime_ns = now.brief().realtime_ns;
  identity.parent = parent;
  CKPT_TRY(sink.open(
      dir_fd, name, identity, arena, [](void*, uint32_t) {}, nullptr));
  CKPT_TRY(sink.set_meta(now.newest().meta_bytes()));
  SavedMemory old_memory(before), memory(now);
  alignas(4096) static std::byte pages[16 * kPageSize];
  static std::byte old_pages[16 * kPageSize];
  for (const MemoryPiece& p : now.pieces()) {
    for (Addr at = p.address, end = at + p.length; at < end;) {
      // The unit of copying: aligned to 64 KiB.
      uint64_t n = std::min(end - at, sizeof(pages) - at.value % sizeof(pages));
      CKPT_TRY(memory.read(at, std::span(pages, n)));
      CKPT_TRY(old_memory.read(at, std::span(old_pages, n)));
      uint64_t written = 0;
      for (uint64_t page = 0; page * kPageSize < n; page++) {
        if (std::memcmp(pages + page * kPageSize, old_pages + page * kPageSize, kPageSize) != 0) {
          written |= 1ull << page;
          continue;
        }
        AddrRange same{at + page * kPageSize, at + (page + 1) * kPageSize};
        CKPT_TRY(sink.inherit({&same, 1}));
      }
      CopiedSegment segment{at, written, pages, 0};
      CKPT_TRY(sink.append({&segment, 1}));
      at = at + n;
    }
  }
  return sink.commit();
}

Result<void> make(const std::string& directory) {
  auto catalog = ImageCatalog::list(directory);
  if (!catalog.ok()) return catalog.error();
  ScopedFd dir(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  std::unique_ptr<ImageChain> before;
  ParentImage parent{};
  for (const CatalogEntry& e : catalog->entries()) {
    auto now = ImageChain::open(catalog->path_of(e));
    if (!now.ok()) return now.error();
    if (before == nullptr) {
      parent.sequence = now->brief().sequence;
      parent.state = now->brief().meta_checksum;
      parent.full_bytes = parent.chain_bytes = now->brief().file_bytes;
      parent.chain_length = 1;
      std::strncpy(parent.name, e.file.c_str(), sizeof(parent.name) - 1);
    } else {
      auto stats = rewrite(*before, *now, parent, dir.get(), e.file.c_str());
      if (!stats.ok()) return stats.error();
      parent = stats->as_parent;
      fmt::print("{}: {} of {} bytes of memory\n", e.file, stats->bytes_memory, now->memory_bytes());
    }
    before = std::make_unique<ImageChain>(std::move(*now));
  }
  return {};
}

}  // namespace
}  // namespace ckpt

int main(int argc, char** argv) {
  if (argc != 2) return 64;
  auto made = ckpt::make(argv[1]);
  if (made.ok()) return 0;
  fmt::print(stderr, "make_chain: {}\n", made.error().message());
  return static_cast<int>(made.error().code);
}
