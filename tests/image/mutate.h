// One to four random changes to a file: bits, fields, blocks, length.
#pragma once

#include <cstdint>
#include <cstring>
#include <random>
#include <string>

namespace ckpt {

inline void mutate(std::string& bytes, std::mt19937& random) {
  static constexpr uint64_t kInteresting[] = {0,
                                              1,
                                              7,
                                              8,
                                              40,
                                              4095,
                                              4096,
                                              4097,
                                              0x7fffffff,
                                              0x80000000,
                                              0xffffffff,
                                              1ull << 32,
                                              ~0ull,
                                              ~4095ull,
                                              1ull << 63,
                                              INT64_MAX,
                                              0x7ffffffff000ull};
  auto below = [&](size_t n) { return n == 0 ? size_t{0} : static_cast<size_t>(random()) % n; };
  size_t changes = 1 + below(4);
  for (size_t i = 0; i < changes && bytes.size() >= 8192; i++) {
    // Most bytes are memory or padding; fields are near the start of a block.
    size_t block = below(bytes.size() / 4096) * 4096;
    size_t at = block + (below(4) != 0 ? below(48) * 8 : below(4096 - 8));
    switch (below(6)) {
      case 0:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
        break;
      case 1: {
        uint64_t value = kInteresting[below(std::size(kInteresting))];
        std::memcpy(bytes.data() + at, &value, sizeof(value));
        break;
      }
      case 2: {
        uint32_t value = static_cast<uint32_t>(kInteresting[below(std::size(kInteresting))]);
        std::memcpy(bytes.data() + at, &value, sizeof(value));
        break;
      }
      case 3: {
        uint64_t value;
        std::memcpy(&value, bytes.data() + at, sizeof(value));
        value += below(2) == 0 ? 4096 : -uint64_t{4096};
        std::memcpy(bytes.data() + at, &value, sizeof(value));
        break;
      }
      case 4:
        std::memcpy(bytes.data() + block, bytes.data() + below(bytes.size() / 4096) * 4096, 4096);
        break;
      default:
        if (below(4) == 0) bytes.resize(bytes.size() - (below(2) == 0 ? 4096 : below(4096)));
        break;
    }
  }
}

}  // namespace ckpt
