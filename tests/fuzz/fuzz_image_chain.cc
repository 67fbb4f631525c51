// An increment of any bytes on a parent that is whole: the chain is opened, merged, read and verified.
// The input is made to name the parent, so that most get past the search for it.
#include <fcntl.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/fuzz/image_mutator.h"
#include "writer/image_chain.h"
#include "writer/saved_memory.h"

namespace {

constexpr const char* kParent = "prog.1.00000000.000001.ckpt";
std::string directory;
uint64_t parent_state;

void adopt(std::string& bytes) {
  if (bytes.size() < ckpt::kBlockSize) return;
  auto& header = *reinterpret_cast<ckpt::FileHeader*>(bytes.data());
  std::memset(header.run_id, 0, sizeof(header.run_id));
  header.parent.sequence = 1;
  header.parent.state = parent_state;
  std::memset(header.parent.name, 0, sizeof(header.parent.name));
  std::strcpy(header.parent.name, kParent);
}

}  // namespace

// FUZZ_PARENT: the full image that fuzz_corpus wrote.
extern "C" int LLVMFuzzerInitialize(int*, char***) {
  const char* parent = getenv("FUZZ_PARENT");
  std::string pattern = (std::filesystem::temp_directory_path() / "ckpt-fuzz-XXXXXX").string();
  if (parent == nullptr || mkdtemp(pattern.data()) == nullptr) abort();
  directory = pattern;
  std::filesystem::copy_file(parent, directory + "/" + kParent);
  auto image = ckpt::ImageReader::open(directory + "/" + kParent);
  if (!image.ok()) abort();
  parent_state = image->brief().meta_checksum;
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  return ckpt::mutate_image(data, size, max_size, seed, [](std::string& bytes, std::mt19937& random) {
    if (random() % 8 != 0) adopt(bytes);
  });
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string path = directory + "/prog.1.00000000.000002.ckpt";
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(reinterpret_cast<const char*>(data), static_cast<long>(size));
  auto chain = ckpt::ImageChain::open(path);
  if (!chain.ok()) return 0;
  ckpt::SavedMemory memory(*chain);
  std::vector<std::byte> bytes;
  ckpt::Addr last{0};
  for (const auto& piece : chain->pieces()) {
    if (piece.address < last || piece.into + piece.length > chain->extent_of(piece).length) abort();
    last = piece.address + piece.length;
    if (piece.length > 64 << 20) continue;
    bytes.resize(piece.length);
    (void)memory.read(piece.address, bytes);
  }
  (void)chain->verify_used(1);
  (void)chain->verify_all(1);
  return 0;
}
