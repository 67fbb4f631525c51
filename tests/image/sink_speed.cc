// How fast images are written: the sink with each back end against plain sequential O_DIRECT writes of
// the same size. Not a test; prints one line for each.
// Half of each block of 256 bytes is zero: memory that compresses about 2:1, quickly.
//     sink_speed DIRECTORY [MiB] [MiB of one chunk] [chunks in flight] [none|lz4|zstd[:LEVEL]|auto] [KEY FILE
//     or ''] [most helpers]
#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "image/write/direct_sink.h"
#include "image/write/meta_writer.h"

namespace {

constexpr size_t kSegment = 64 << 10;

double cpu_seconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  auto s = [](timeval t) { return double(t.tv_sec) + double(t.tv_usec) / 1e6; };
  return s(usage.ru_utime) + s(usage.ru_stime);
}

// The most threads this process had while `run` went: none may come from the kernel.
template <typename Run>
int threads_during(Run run) {
  std::atomic<bool> stop{false};
  int most = 0;
  std::thread watcher([&] {
    while (!stop) {
      int n = 0;
      DIR* d = opendir("/proc/self/task");
      while (dirent* e = readdir(d)) n += e->d_name[0] != '.';
      closedir(d);
      if (n > most) most = n;
      usleep(2000);
    }
  });
  run();
  stop = true;
  watcher.join();
  return most;
}

void report(const char* what, double mib, int64_t ns, double cpu, const char* more) {
  std::printf("%-22s %8.0f MiB/s   %5.2f s   %5.2f s cpu   %s\n", what, mib / (double(ns) / 1e9),
              double(ns) / 1e9, cpu, more);
}

void plain(const std::string& dir, std::byte* data, size_t bytes) {
  std::string file = dir + "/plain";
  int fd = open(file.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_DIRECT, 0600);
  double cpu = cpu_seconds();
  int64_t start = ckpt::now_ns();
  size_t step = 1 << 20;
  for (size_t at = 0; at < bytes; at += step) {
    if (pwrite(fd, data + at, step, static_cast<off_t>(at)) != static_cast<ssize_t>(step))
      std::perror("pwrite");
  }
  fsync(fd);
  report("plain O_DIRECT", double(bytes) / (1 << 20), ckpt::now_ns() - start, cpu_seconds() - cpu, "");
  close(fd);
  unlink(file.c_str());
}

class Helpers final : public ckpt::HelperThreads {
 public:
  explicit Helpers(uint32_t most) : most_(most) {}
  uint32_t most() const override { return most_; }
  bool start(void (*fn)(void*), void* arg) override {
    threads_.emplace_back(fn, arg);
    return true;
  }
  void join() override {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

 private:
  uint32_t most_;
  std::vector<std::thread> threads_;
};

void sink(const std::string& dir, std::byte* data, size_t bytes, ckpt::SinkOptions options) {
  int dir_fd = open(dir.c_str(), O_RDONLY | O_DIRECTORY);
  ckpt::Arena arena;
  if (!arena.reserve(ckpt::DirectSink::arena_bytes(options, bytes))) std::abort();
  ckpt::ImageIdentity id{};
  id.sequence = 1;
  double cpu = cpu_seconds();
  int64_t start = ckpt::now_ns();
  std::string more;
  int64_t ns = 0;
  const char* name = "";
  double written = 0;
  int threads = threads_during([&] {
    ckpt::DirectSink sink(options);
    auto fine = [](const auto& r) {
      if (!r.ok()) {
        std::fprintf(stderr, "%s\n", r.error().text);
        std::exit(1);
      }
    };
    fine(sink.open(
        dir_fd, "speed", id, arena, [](void*, uint32_t) {}, nullptr));
    name = sink.backend_name();
    std::byte meta[64] = {};
    fine(sink.set_meta(meta));
    for (size_t at = 0; at < bytes; at += kSegment) {
      ckpt::CopiedSegment segment{ckpt::Addr{0x10000000 + at}, (1u << (kSegment / 4096)) - 1, data + at, 0};
      fine(sink.append({&segment, 1}));
    }
    auto stats = sink.commit();
    fine(stats);
    written = double(stats->bytes_written);
    more = "writes not started at once: " + std::to_string(sink.writes_done_here());
    ns = ckpt::now_ns() - start;
  });
  more +=
      ", threads " + std::to_string(threads) + ", file " + std::to_string(long(written / (1 << 20))) + " MiB";
  report(name, double(bytes) / (1 << 20), ns, cpu_seconds() - cpu, more.c_str());
  unlinkat(dir_fd, "speed", 0);
  close(dir_fd);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(
        stderr,
        "usage: %s DIRECTORY [MiB] [MiB of one chunk] [chunks in flight] [none|lz4|zstd[:LEVEL]|auto] "
        "[KEY FILE or ''] [most helpers, 1]\n",
        argv[0]);
    return 64;
  }
  size_t bytes = (argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 2048) << 20;
  ckpt::SinkOptions options;
  if (argc > 3) options.chunk_bytes = static_cast<uint32_t>(std::strtod(argv[3], nullptr) * (1 << 20));
  if (argc > 4) options.in_flight = static_cast<uint32_t>(std::strtoul(argv[4], nullptr, 10));
  auto compression = ckpt::parse_compression("compression", argc > 5 ? argv[5] : "none");
  if (!compression.ok()) {
    std::fprintf(stderr, "%s\n", compression.error().text);
    return 64;
  }
  ckpt::set_compression(options, *compression);
  options.held_buffers = 96;  // what is appended stays as it is
  ckpt::ImageKey key;
  if (argc > 6 && argv[6][0] != '\0') {
    ckpt::prepare_ciphers();
    auto read = ckpt::read_key_file(argv[6], key);
    if (!read.ok()) {
      std::fprintf(stderr, "%s\n", read.error().text);
      return 64;
    }
    options.key = &key;
  }
  Helpers helpers(argc > 7 ? static_cast<uint32_t>(std::strtoul(argv[7], nullptr, 10)) : 1);
  options.helpers = &helpers;
  auto* data = static_cast<std::byte*>(std::aligned_alloc(1 << 21, bytes));
  uint32_t x = 1;
  for (size_t i = 0; i < bytes; i += 4) {
    x = x * 1664525u + 1013904223u;
    uint32_t word = i % 256 < 128 ? x : 0;
    std::memcpy(data + i, &word, 4);
  }
  for (int round = 0; round < 3; round++) {
    plain(argv[1], data, bytes);
    options.uring = true;
    sink(argv[1], data, bytes, options);
    options.uring = false;
    sink(argv[1], data, bytes, options);
  }
  std::free(data);
  return 0;
}
