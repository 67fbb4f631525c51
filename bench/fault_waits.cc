// What a write costs that meets a protected page: an ordinary program writes one word in each piece of 64 KiB
// of its memory, in random order, and rests in between. The program prints the longest, the 99.9th percentile
// and the median of those writes that took longer than without us. Run it under each CKPT_FAULTS with
// CKPT_EVERY (docs/fault_back_ends.md).
//
//   fault_waits [MEGABYTES [SECONDS]]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

int main(int argc, char** argv) {
  using Clock = std::chrono::steady_clock;
  const size_t bytes = static_cast<size_t>(argc > 1 ? std::atol(argv[1]) : 256) << 20;
  const double seconds = argc > 2 ? std::atof(argv[2]) : 10;
  constexpr size_t kPiece = 64 << 10;
  constexpr double kOrdinary = 3;  // microseconds
  auto* memory = static_cast<volatile unsigned char*>(std::malloc(bytes));
  if (memory == nullptr || bytes < kPiece) {
    std::fprintf(stderr, "fault_waits: no memory; give fewer megabytes, at least 1\n");
    return 64;
  }
  std::memset(const_cast<unsigned char*>(memory), 1, bytes);
  std::vector<double> waits;
  waits.reserve(1 << 20);
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  for (unsigned long n = 1; Clock::now() < end; n = n * 6364136223846793005u + 1442695040888963407u) {
    const size_t at = (n >> 20) % (bytes / kPiece) * kPiece + (n >> 50) % kPiece;
    const auto before = Clock::now();
    memory[at] = static_cast<unsigned char>(n);
    const double us = std::chrono::duration<double, std::micro>(Clock::now() - before).count();
    if (us > kOrdinary && waits.size() < waits.capacity()) waits.push_back(us);
    for (const auto go = Clock::now() + std::chrono::microseconds(20); Clock::now() < go;) {
    }
  }
  std::sort(waits.begin(), waits.end());
  if (waits.empty()) {
    std::printf("no write waited\n");
    return 0;
  }
  std::printf("%zu writes waited: median %.1f us, 99.9%% %.1f us, longest %.1f us\n", waits.size(),
              waits[waits.size() / 2], waits[waits.size() * 999 / 1000], waits.back());
  return 0;
}
