// How fast redundancy is made, kept up to date and used, in bytes of data a second; memcpy beside it.
//   redundancy_speed [--benchmark_filter=rs:4.2]
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <cstring>

#include "cluster/redundancy/code.h"

namespace ckpt::redundancy {
namespace {

constexpr size_t kBlock = 1 << 20;

struct Blocks_ {
  explicit Blocks_(size_t count) {
    for (size_t i = 0; i < count; ++i) {
      blocks.push_back(static_cast<std::byte*>(std::aligned_alloc(Code::kAlignment, kBlock)));
      std::memset(blocks.back(), static_cast<int>(i + 1), kBlock);
    }
  }
  ~Blocks_() {
    for (std::byte* block : blocks) std::free(block);
  }
  std::vector<std::byte*> blocks;
};

void copy(benchmark::State& state) {
  Blocks_ b(2);
  for (auto _ : state) {
    std::memcpy(b.blocks[1], b.blocks[0], kBlock);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * kBlock));
}

std::unique_ptr<Code> make(const char* text) {
  auto scheme = parse_scheme(text, 4);
  return scheme.ok() ? std::move(*Code::make(*scheme)) : nullptr;
}

void encode(benchmark::State& state, const char* text) {
  const auto code = make(text);
  Blocks_ b(code->data() + code->checks());
  const std::vector<const std::byte*> data(b.blocks.begin(), b.blocks.begin() + code->data());
  for (auto _ : state) {
    code->encode(data, Blocks(b.blocks).subspan(code->data()), kBlock);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * kBlock * code->data()));
}

void update(benchmark::State& state, const char* text) {
  const auto code = make(text);
  Blocks_ b(code->data() + code->checks() + 1);
  for (auto _ : state) {
    code->update(1, b.blocks.back(), 0, kBlock, Blocks(b.blocks).subspan(code->data(), code->checks()),
                 kBlock);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * kBlock));
}

void recover(benchmark::State& state, const char* text) {
  const auto code = make(text);
  Blocks_ b(code->data() + code->checks());
  const std::vector<const std::byte*> data(b.blocks.begin(), b.blocks.begin() + code->data());
  code->encode(data, Blocks(b.blocks).subspan(code->data()), kBlock);
  std::vector<bool> lost(b.blocks.size());
  for (unsigned i = 0; i < survives(code->scheme()); ++i) lost[i] = true;
  for (auto _ : state) benchmark::DoNotOptimize(code->recover(b.blocks, lost, kBlock).ok());
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * kBlock * survives(code->scheme())));
}

}  // namespace
}  // namespace ckpt::redundancy

int main(int argc, char** argv) {
  namespace r = ckpt::redundancy;
  benchmark::RegisterBenchmark("memcpy", r::copy);
  for (const char* text : {"mirror", "parity", "parity:2", "evenodd", "rs:4+1", "rs:4+2", "rs:4+3"}) {
    benchmark::RegisterBenchmark(fmt::format("encode {}", text).c_str(),
                                 [text](auto& s) { r::encode(s, text); });
    benchmark::RegisterBenchmark(fmt::format("update {}", text).c_str(),
                                 [text](auto& s) { r::update(s, text); });
    benchmark::RegisterBenchmark(fmt::format("recover {}", text).c_str(),
                                 [text](auto& s) { r::recover(s, text); });
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
