// A program that does with malloc what it is told, a line each, and answers each with a line. It checks what
// it holds.
//   fill N BYTES    N more blocks, each filled with its number
//   thin K          frees all blocks but every K-th
//   check           is every block as it was filled?
//   zeros N BYTES   N blocks by calloc: is every byte zero? Filled with something else, then freed.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

struct Block {
  unsigned char* bytes;
  size_t size;
  unsigned char tag;
};

bool holds(const unsigned char* p, size_t size, unsigned char value) {
  for (size_t i = 0; i < size; ++i) {
    if (p[i] != value) return false;
  }
  return true;
}

std::vector<Block> blocks;

bool fill(size_t n, size_t size) {
  for (; n > 0; --n) {
    Block block{static_cast<unsigned char*>(std::malloc(size)), size,
                static_cast<unsigned char>(1 + blocks.size() % 251)};
    if (block.bytes == nullptr) return false;
    std::memset(block.bytes, block.tag, size);
    blocks.push_back(block);
  }
  return true;
}

void thin(size_t k) {
  std::vector<Block> left;
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (i % k == 0)
      left.push_back(blocks[i]);
    else
      std::free(blocks[i].bytes);
  }
  blocks = left;
}

bool check() {
  for (const Block& block : blocks) {
    if (!holds(block.bytes, block.size, block.tag)) return false;
  }
  return true;
}

bool zeros(size_t n, size_t size) {
  std::vector<unsigned char*> got;
  bool good = true;
  for (; n > 0; --n) {
    got.push_back(static_cast<unsigned char*>(std::calloc(1, size)));
    good = good && got.back() != nullptr && holds(got.back(), size, 0);
    if (got.back() != nullptr) std::memset(got.back(), 0xcc, size);
  }
  for (unsigned char* p : got) std::free(p);
  return good;
}

}  // namespace

int main() {
  char line[256];
  std::puts("up");
  std::fflush(stdout);
  while (std::fgets(line, sizeof(line), stdin) != nullptr) {
    size_t a = 0, b = 0;
    bool good = true;
    if (std::sscanf(line, "fill %zu %zu", &a, &b) == 2)
      good = fill(a, b);
    else if (std::sscanf(line, "thin %zu", &a) == 1)
      thin(a);
    else if (std::strcmp(line, "check\n") == 0)
      good = check();
    else if (std::sscanf(line, "zeros %zu %zu", &a, &b) == 2)
      good = zeros(a, b);
    else
      good = false;
    std::puts(good ? "good" : "BAD");
    std::fflush(stdout);
  }
  return 0;
}
