#include "bench/gaps/surroundings.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

namespace bench {
namespace {

[[noreturn]] void fail(const char* what, const char* remedy) {
  throw std::runtime_error(fmt::format("{}: {}; {}", what, std::strerror(errno), remedy));
}

}  // namespace

Surroundings::~Surroundings() {
  {
    std::lock_guard lock(mutex_);
    end_ = true;
  }
  changed_.notify_all();
  for (auto& t : threads_) t.join();
  for (int fd : descriptors_) close(fd);
  if (mappings_ != nullptr) munmap(mappings_, mappings_bytes_);
}

void Surroundings::start_waiting_threads(unsigned count) {
  threads_.reserve(count);
  for (unsigned i = 0; i < count; ++i) {
    threads_.emplace_back([this] {
      std::unique_lock lock(mutex_);
      ++waiting_;
      changed_.notify_all();
      changed_.wait(lock, [this] { return end_; });
    });
  }
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return waiting_ == count; });
}

void Surroundings::open_descriptors(unsigned count) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur < count + 64) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  const char* remedy = "raise the limit (ulimit -n) or ask for fewer --descriptors";
  auto add = [&](int fd) {
    if (fd < 0) fail("cannot open a descriptor", remedy);
    descriptors_.push_back(fd);
  };
  for (unsigned kind = 0; descriptors_.size() < count; ++kind) {
    switch (kind % 4) {
      case 0: {
        int ends[2];
        if (count - descriptors_.size() < 2) break;
        if (pipe2(ends, O_CLOEXEC) != 0) fail("cannot make a pipe", remedy);
        add(ends[0]);
        add(ends[1]);
        break;
      }
      case 1:
        add(eventfd(0, EFD_CLOEXEC));
        break;
      case 2:
        add(open("/dev/null", O_RDWR | O_CLOEXEC));
        break;
      default:
        add(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
    }
  }
}

void Surroundings::make_mappings(unsigned count) {
  if (count == 0) return;
  constexpr size_t kBytes = 4 * 4096;
  const char* remedy = "raise vm.max_map_count or ask for fewer --mappings";
  mappings_bytes_ = count * kBytes;
  mappings_ = mmap(nullptr, mappings_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mappings_ == MAP_FAILED) {
    mappings_ = nullptr;
    fail("cannot map memory", remedy);
  }
  auto* bytes = static_cast<std::byte*>(mappings_);
  for (unsigned i = 0; i < count; ++i) {
    std::memset(bytes + i * kBytes, 1, kBytes);
    if (i % 2 == 1 && mprotect(bytes + i * kBytes, kBytes, PROT_READ) != 0)
      fail("cannot protect memory", remedy);
  }
}

}  // namespace bench
