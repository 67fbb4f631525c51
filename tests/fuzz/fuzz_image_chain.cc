// An increment of any bytes on a parent that is whole: the chain is opened, merged, read and verified.
// The input is made to name the parent, so that most get past the search for it.
#include <fcntl.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "image/read/image_chain.h"
#include "image/read/saved_memory.h"
#include "tests/fuzz/image_mutator.h"
#include "tests/fuzz/verdict.h"
#include "tests/image/exercise_reader.h"

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

// What was read, as one number; or why the chain is not a good one.
ckpt::Result<uint64_t> read_chain(const std::string& path) {
  auto chain = ckpt::ImageChain::open(path);
  if (!chain.ok()) return chain.error();
  ckpt::SavedMemory memory(*chain);
  std::vector<std::byte> bytes;
  uint64_t sum = 0;
  ckpt::Addr last{0};
  for (const auto& piece : chain->pieces()) {
    if (piece.address < last || piece.into + piece.length > chain->extent_of(piece).length) abort();
    last = piece.address + piece.length;
    sum = (sum * 31 + piece.address.value) * 31 + piece.length;
    if (piece.length > 64 << 20) continue;
    bytes.resize(piece.length);
    if (memory.read(piece.address, bytes).ok()) sum = sum * 31 + ckpt::look_at(ckpt::Blob(bytes));
  }
  for (const auto& mapping : chain->meta().mappings) {
    for (const auto& run : memory.contents_of(mapping)) {
      if (run.range.start.value < mapping.record.start || run.range.end.value > mapping.record.end) abort();
      sum = sum * 31 + run.range.size() + ckpt::look_at(run.bytes);
    }
  }
  CKPT_TRY(chain->verify_used(1));
  CKPT_TRY(chain->verify_all(1));
  return sum;
}

void remove_directory() {
  std::error_code ignored;
  std::filesystem::remove_all(directory, ignored);
}

}  // namespace

// FUZZ_PARENT: the full image that fuzz_corpus wrote.
extern "C" int LLVMFuzzerInitialize(int*, char***) {
  const char* parent = getenv("FUZZ_PARENT");
  std::string pattern = (std::filesystem::temp_directory_path() / "ckpt-fuzz-XXXXXX").string();
  if (parent == nullptr || mkdtemp(pattern.data()) == nullptr) abort();
  directory = pattern;
  atexit(remove_directory);
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
  std::filesystem::remove(
      path);  // a file that is cut to nothing and written again is on the disk when it is closed
  std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(data), static_cast<long>(size));
  ckpt::judge(read_chain(path), directory);
  return 0;
}
