#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/programs/files/files.h"

namespace files {

using namespace victim;

namespace {

constexpr uint64_t kPages = 700;

std::byte* map_file(int fd, int flags) {
  void* p = mmap(nullptr, kPages * kPage, PROT_READ | PROT_WRITE, flags, fd, 0);
  require_call(p != MAP_FAILED, "mmap of a file");
  return static_cast<std::byte*>(p);
}

uint64_t original(uint64_t page) { return mix(page + 5000); }

// A file of kPages pages, each beginning and ending with original().
int make_file(const char* path) {
  int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  require_call(fd >= 0, path);
  std::vector<uint64_t> page(kPage / 8);
  for (uint64_t i = 0; i < kPages; ++i) {
    page.front() = page.back() = original(i);
    require_call(write(fd, page.data(), kPage) == static_cast<ssize_t>(kPage), "write");
  }
  return fd;
}

// Page i is written at the steps n with n * 61 mod kPages == i; private memory counts along.
std::string count_along(const char* name, std::byte* memory, uint64_t iterations) {
  std::byte* own = map_pages(kPages);
  for (uint64_t n = 0; n < iterations; ++n) {
    uint64_t at = n * 61 % kPages * kPage + 64;
    uint64_t a = word_at(own + at).load(std::memory_order_relaxed);
    uint64_t b = word_at(memory + at).load(std::memory_order_relaxed);
    require(a == n / kPages && b == a, "{}: step {} finds {} in private and {} in mapped memory", name, n, a,
            b);
    word_at(own + at).store(a + 1, std::memory_order_relaxed);
    word_at(memory + at).store(a + 1, std::memory_order_relaxed);
  }
  for (uint64_t i = 0; i < kPages; ++i) {
    uint64_t first = word_at(memory + i * kPage).load(), last = word_at(memory + (i + 1) * kPage - 8).load();
    require(first == original(i) && last == original(i), "{}: page {} has lost what the file gave it", name,
            i);
  }
  munmap(own, kPages * kPage);
  return fmt::format("{} steps over {} pages", iterations, kPages);
}

}  // namespace

std::string devshm(uint64_t iterations) {
  std::string path = fmt::format("/dev/shm/ckpt-test.{}", getpid());
  int fd = make_file(path.c_str());
  std::byte* memory = map_file(fd, MAP_SHARED);
  unlink(path.c_str());
  close(fd);
  std::string result = count_along("devshm", memory, iterations);
  munmap(memory, kPages * kPage);
  return result;
}

std::string shared_mapping(uint64_t iterations) {
  int fd = make_file("files.shared");
  std::byte* memory = map_file(fd, MAP_SHARED);
  std::string result = count_along("sharedmap", memory, iterations);
  // The bytes written through memory are in the file.
  for (uint64_t i = 0; i < kPages; ++i) {
    uint64_t got = 0;
    require_call(pread(fd, &got, sizeof(got), static_cast<off_t>(i * kPage + 64)) == sizeof(got), "pread");
    require(got == word_at(memory + i * kPage + 64).load(), "sharedmap: page {} of the file holds {}", i,
            got);
  }
  munmap(memory, kPages * kPage);
  close(fd);
  return result;
}

std::string private_mapping(uint64_t iterations) {
  int fd = make_file("files.private");
  std::byte* memory = map_file(fd, MAP_PRIVATE);
  close(fd);
  std::string result = count_along("privatemap", memory, iterations);
  munmap(memory, kPages * kPage);
  return result;
}

}  // namespace files
