// trickle: reads its standard input at a given rate and throws it away: a disk slower than a program writes.
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "bench/common.h"

namespace bench {
namespace {

// Returns bytes read. Sleeps until what was read so far is due.
uint64_t trickle(uint64_t bytes_per_second) {
  std::vector<char> buffer(256 << 10);
  const auto begin = std::chrono::steady_clock::now();
  uint64_t total = 0;
  for (;;) {
    ssize_t n = read(STDIN_FILENO, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw std::runtime_error(fmt::format("standard input: {}", std::strerror(errno)));
    if (n == 0) return total;
    total += static_cast<uint64_t>(n);
    std::this_thread::sleep_until(
        begin + std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(
                    static_cast<double>(total) / static_cast<double>(bytes_per_second))));
  }
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  uint64_t rate = 200 << 20;
  bench::Program program;
  program.name = "trickle";
  program.description = "Reads its standard input at a given rate: a disk slower than a program writes.";
  program.configure = [&](bench::CommandLine& line) { line.size("--rate", rate, "Bytes a second", 1); };
  program.run = [&](const bench::CommonArguments&, bench::Results& results) {
    results.add("bytes", bench::trickle(rate));
    return bench::kExitOk;
  };
  return bench::run_program(program, argc, argv);
}
