#include "image/rewrite/image_rewrite.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <system_error>
#include <thread>
#include <vector>

#include "base/memory/page_runs.h"

namespace ckpt {

namespace {

constexpr uint64_t kStep = 64 * kPageSize;  // what one CopiedSegment can hold

struct FreePages {
  void operator()(std::byte* p) const { std::free(p); }
};

class Helpers final : public HelperThreads {
 public:
  uint32_t most() const override { return std::max(1u, std::thread::hardware_concurrency()) - 1; }
  bool start(void (*fn)(void*), void* arg) override {
    try {
      threads_.emplace_back(fn, arg);
      return true;
    } catch (const std::system_error&) {
      return false;
    }
  }
  void join() override {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

 private:
  std::vector<std::thread> threads_;
};

Result<void> copy_memory(const ImageChain& image, DirectSink& sink, const VerifyProgress& progress) {
  std::unique_ptr<std::byte, FreePages> pages(static_cast<std::byte*>(std::aligned_alloc(kPageSize, kStep)));
  std::vector<std::byte> memory;
  const Extent* have = nullptr;
  uint64_t done = 0;
  for (const MemoryPiece& p : image.pieces()) {
    const Extent& extent = image.extent_of(p);
    if (have != &extent) {
      memory.resize(extent.length);
      CKPT_TRY(image.image(p.image).read_extent(extent, memory));
      have = &extent;
    }
    for (uint64_t at = 0; at < p.length; at += kStep) {
      uint64_t n = std::min(kStep, p.length - at);
      std::copy_n(memory.data() + p.into + at, n, pages.get());
      CopiedSegment segment{p.address + at, first_pages(n / kPageSize), pages.get(), 0};
      CKPT_TRY(sink.append({&segment, 1}));
    }
    done += p.length;
    if (progress) progress(done, image.memory_bytes());
  }
  return {};
}

}  // namespace

Codec codec_of(const ImageChain& image) {
  for (const MemoryPiece& p : image.pieces()) {
    if (image.extent_of(p).codec != Codec::kNone) return image.extent_of(p).codec;
  }
  return Codec::kNone;
}

Result<SinkStats> rewrite_as_full(const ImageChain& image, const SinkOptions& wanted, int dir_fd,
                                  const char* name, const VerifyProgress& progress) {
  const ImageBrief& brief = image.brief();
  Helpers helpers;
  SinkOptions options = wanted;
  if (options.helpers == nullptr) options.helpers = &helpers;
  Arena arena;
  // Reserved, not used: pages come when they are touched.
  if (!arena.reserve(DirectSink::arena_bytes(options, image.memory_bytes()))) {
    return make_error(ExitCode::kSystem, 0, "no address space to rewrite {}; raise the limit (ulimit -v)",
                      image.path());
  }
  ImageIdentity identity{};
  std::copy_n(brief.run_id, sizeof(identity.run_id), identity.run_id);
  identity.sequence = brief.sequence;
  identity.realtime_ns = brief.realtime_ns;
  DirectSink sink(options);
  CKPT_TRY(sink.open(
      dir_fd, name, identity, arena, [](void*, uint32_t) {}, nullptr));
  CKPT_TRY(sink.set_meta(image.newest().meta_bytes()));
  CKPT_TRY(copy_memory(image, sink, progress));
  return sink.commit();
}

}  // namespace ckpt
