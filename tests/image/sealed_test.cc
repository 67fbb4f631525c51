// Encrypted images: what is changed, moved, cut or of another image is refused, and so is another key.
#include "image/read/image_chain.h"
#include "image/read/sources/reading_key.h"
#include "image/write/sink/slot_writer.h"
#include "tests/image/exercise_reader.h"
#include "tests/image/image_fixture.h"

namespace ckpt {
namespace {

class Sealed : public ImageTest {
 protected:
  void SetUp() override {
    ImageTest::SetUp();
    prepare_ciphers();
    write_key("key", std::string(32, 'k'));
    ASSERT_TRUE(read_key_file(path("key").c_str(), key_).ok());
    ASSERT_TRUE(use_key_file(path("key")).ok());
    options_.key = &key_;
    options_.uring = false;
  }
  void TearDown() override {
    forget_reading_key();
    ImageTest::TearDown();
  }
  void write_key(const std::string& name, const std::string& bytes, mode_t mode = 0600) {
    write_file(path(name), bytes);
    ASSERT_EQ(chmod(path(name).c_str(), mode), 0);
  }
  // Opened and read to the last byte.
  Result<void> check(const std::string& bytes) {
    write_file(path("changed"), bytes);
    auto image = ImageReader::open(path("changed"));
    if (!image.ok()) return image.error();
    return image->verify_data(1);
  }
  void expect_damaged(const std::string& bytes, const std::string& how) {
    auto result = check(bytes);
    ASSERT_FALSE(result.ok()) << how;
    EXPECT_EQ(result.error().code, ExitCode::kImageDamaged) << how << ": " << result.error().message();
  }

  ImageKey key_;
  SinkOptions options_;
};

TEST(SealedFormat, LengthsAndPlacesFit) {
  for (uint64_t n = 1; n < 1100; n++) {
    EXPECT_EQ(sealed_block_count(sealed_file_bytes(n)), n);
    EXPECT_EQ(sealed_tag_offset(n - 1, n) / kBlockSize, sealed_file_bytes(n) / kBlockSize - 1) << n;
    for (uint64_t i : {uint64_t{0}, n / 2, n - 1}) EXPECT_LT(sealed_block_offset(i), sealed_tag_offset(i, n));
  }
  // A group without blocks, and files shorter than one block with its tag.
  EXPECT_EQ(sealed_block_count(sealed_file_bytes(256) + kBlockSize), 0u);
  for (uint64_t bytes : {uint64_t{0}, kBlockSize, 2 * kBlockSize, 3 * kBlockSize + 1})
    EXPECT_EQ(sealed_block_count(bytes), 0u);
}

// Takes everything at once.
class Nowhere final : public ImageOutput, public FileBackend {
 public:
  int fd() const override { return -1; }
  bool direct() const override { return true; }
  const char* path() const override { return "nowhere"; }
  FileBackend* only_backend() override { return this; }
  void reserve_until(uint64_t) override {}
  Result<void> publish(FileBackend&, uint64_t, bool) override { return {}; }
  void remove() override {}
  long attach(int, std::span<std::byte>, uint32_t) override { return 0; }
  long write(const WriteRequest& request) override {
    done_.push_back({request.slot, static_cast<long>(request.bytes)});
    return 0;
  }
  WriteResult wait() override {
    const WriteResult first = done_.front();
    done_.erase(done_.begin());
    return first;
  }
  long sync(int) override { return 0; }
  void detach() override {}
  const char* name() const override { return "nowhere"; }

 private:
  std::vector<WriteResult> done_;
};

// In processor time of this thread, so that it does not matter who else has the processor.
TEST_F(Sealed, EncryptingIsNoWaitingForTheDevice) {
  options_.adaptive = true;
  options_.clock = [] { return now_ns(CLOCK_THREAD_CPUTIME_ID); };
  Nowhere nowhere;
  Arena arena;
  ASSERT_TRUE(arena.reserve(DirectSink::arena_bytes(options_, 16 << 20)));
  SlotWriter writer;
  const uint8_t run_id[16] = {};
  ASSERT_TRUE(writer.start(options_, run_id, nowhere, arena).ok());
  for (int i = 0; i < 16; i++) {
    auto slot = writer.acquire();
    ASSERT_TRUE(slot.ok());
    ASSERT_TRUE(writer.write(*slot, writer.slot_bytes(), i == 15).ok());
  }
  ASSERT_TRUE(writer.drain().ok());
  const int64_t waited = writer.take_waited(), sealed = writer.take_sealed();
  EXPECT_LT(waited * 4, sealed);
  writer.abandon();
}

// The example of docs/image_format.md.
TEST(SealedFormat, KnownAnswer) {
  auto hex = [](const void* p, size_t n) {
    std::string text;
    for (size_t i = 0; i < n; i++) text += fmt::format("{:02x}", static_cast<const uint8_t*>(p)[i]);
    return text;
  };
  std::string file = (std::filesystem::temp_directory_path() / "ckpt-key-XXXXXX").string();
  int fd = mkstemp(file.data());
  uint8_t bytes[32];
  for (uint8_t i = 0; i < 32; i++) bytes[i] = i;
  ASSERT_EQ(write(fd, bytes, sizeof(bytes)), ssize_t{sizeof(bytes)});
  close(fd);
  ImageKey key;
  ASSERT_TRUE(read_key_file(file.c_str(), key).ok());
  std::filesystem::remove(file);
  EXPECT_EQ(hex(key.bytes, 32), "cb2f5160fc1f7e05a55ef49d340b48da2e5a78099d53393351cd579dd42503d6");

  SealedHeader header{};
  std::memcpy(header.magic, kHeaderMagic, sizeof(header.magic));
  header.version = kSealedVersion;
  for (uint8_t i = 0; i < 16; i++) {
    header.nonce[i] = static_cast<uint8_t>(0xa0 + i);
    header.run_id[i] = static_cast<uint8_t>(0xb0 + i);
  }
  const uint8_t check[] = {0x03, 0xee, 0x32, 0x96, 0x02, 0x52, 0x74, 0xfa,
                           0x31, 0x05, 0xdf, 0x1f, 0xe0, 0x36, 0x41, 0x65};
  std::memcpy(header.key_check, check, sizeof(check));
  EXPECT_TRUE(key_fits(key, header));
  std::byte plain[kBlockSize] = {}, sealed[kBlockSize], tag[kTagBytes];
  BlockCipher cipher(key, header);
  cipher.seal(5, true, plain, sealed, tag);
  EXPECT_EQ(hex(sealed, 16), "fa72a889340ad9cfaa81ced1e773fd13");
  EXPECT_EQ(hex(tag, 16), "dc0ed0bfd6b229256ecc52d983d78cc3");
  EXPECT_TRUE(cipher.open(5, true, sealed, tag, sealed));
  EXPECT_EQ(std::memcmp(sealed, plain, kBlockSize), 0);
}

TEST_F(Sealed, ComesBackAndHidesWhatItHolds) {
  // The description's working directory and command, one behind the other. Random bytes have four given ones
  // in a row once in 4 GiB.
  const char kNames[] = "/tmpprog";
  uint64_t sequence = 1;
  ASSERT_TRUE(write_image(sequence, TestMemory(1)).ok());
  ASSERT_NE(read_file(path(name(sequence))).find(kNames), std::string::npos) << "what is looked for below";
  std::filesystem::remove(path(name(sequence++)));
  for (Codec codec : {Codec::kNone, Codec::kLz4}) {
    for (size_t pages : {1u, 200u, 1000u}) {
      TestMemory memory(pages);
      const char secret[] = "the secret of this program, in clear";
      std::memcpy(memory.bytes + 100, secret, sizeof(secret));
      options_.codec = codec;
      auto stats = write_image(sequence, memory, ~0ull, options_);
      ASSERT_TRUE(stats.ok()) << stats.error().message();
      EXPECT_EQ(stats->bytes_written, std::filesystem::file_size(path(name(sequence))));
      const std::string file = read_file(path(name(sequence)));
      EXPECT_EQ(file.find(secret), std::string::npos);
      EXPECT_EQ(file.find(kNames), std::string::npos);
      EXPECT_EQ(file.find(std::string(reinterpret_cast<const char*>(key_.bytes), 32)), std::string::npos);
      auto image = ImageReader::open(path(name(sequence)));
      ASSERT_TRUE(image.ok()) << image.error().message();
      EXPECT_TRUE(image->brief().encrypted);
      EXPECT_FALSE(image->stored_plainly());
      auto verified = image->verify_data();
      ASSERT_TRUE(verified.ok()) << verified.error().message();
      expect_memory(*image, memory);
      sequence++;
    }
  }
}

TEST_F(Sealed, TheSameImageIsNeverTheSameBytes) {
  TestMemory memory(10);
  ASSERT_TRUE(write_image(1, memory, ~0ull, options_).ok());
  const std::string first = read_file(path(name(1)));
  std::filesystem::remove(path(name(1)));
  ASSERT_TRUE(write_image(1, memory, ~0ull, options_).ok());
  const std::string second = read_file(path(name(1)));
  ASSERT_EQ(first.size(), second.size());
  for (uint64_t i = 0; i < sealed_block_count(first.size()); i++) {
    const uint64_t at = sealed_block_offset(i);
    EXPECT_NE(first.substr(at, kBlockSize), second.substr(at, kBlockSize)) << i;
  }
}

TEST_F(Sealed, AnyByteChanged) {
  ASSERT_TRUE(write_image(1, TestMemory(3), ~0ull, options_).ok());
  const std::string whole = read_file(path(name(1)));
  ASSERT_TRUE(check(whole).ok());
  ScopedFd file = file_in_memory(whole);
  const std::string in_memory = "/proc/self/fd/" + std::to_string(file.get());
  for (size_t at = 0; at < whole.size(); at++) {
    const char byte = static_cast<char>(whole[at] ^ (at % 2 == 0 ? 0x10 : 0xff));
    ASSERT_EQ(pwrite(file.get(), &byte, 1, static_cast<off_t>(at)), 1);
    auto image = ImageReader::open(in_memory);
    auto result = image.ok() ? image->verify_data(1) : Result<void>(image.error());
    ASSERT_FALSE(result.ok()) << at;
    // Whether it is an encrypted image at all is said by its first twelve bytes.
    if (at >= 12) {
      ASSERT_EQ(result.error().code, ExitCode::kImageDamaged) << at << ": " << result.error().message();
    }
    ASSERT_EQ(pwrite(file.get(), &whole[at], 1, static_cast<off_t>(at)), 1);
  }
  ASSERT_TRUE(exercise_reader(file));
}

TEST_F(Sealed, EveryLengthIsRefused) {
  ASSERT_TRUE(write_image(1, TestMemory(3), ~0ull, options_).ok());
  const std::string whole = read_file(path(name(1)));
  ScopedFd file = file_in_memory(whole);
  ASSERT_TRUE(exercise_reader(file));
  for (size_t n = whole.size(); n-- > 0;) {
    ASSERT_EQ(ftruncate(file.get(), static_cast<off_t>(n)), 0);
    ASSERT_FALSE(exercise_reader(file)) << n;
  }
}

TEST_F(Sealed, CutAnywhere) {
  ASSERT_TRUE(write_image(1, TestMemory(600), ~0ull, options_).ok());
  const std::string whole = read_file(path(name(1)));
  const uint64_t blocks = sealed_block_count(whole.size());
  ASSERT_GT(blocks, 2 * kBlocksOfGroup);
  for (size_t n = kBlockSize; n < whole.size(); n += kBlockSize)
    expect_damaged(whole.substr(0, n), std::to_string(n));
  for (size_t n : {size_t{1}, size_t{4095}, size_t{8191}, whole.size() - 1}) {
    EXPECT_FALSE(check(whole.substr(0, n)).ok()) << n;
  }
  expect_damaged(whole + whole.substr(whole.size() - kBlockSize), "more behind it");
  // After a whole group, with its tags: nothing is missing but the rest.
  expect_damaged(whole.substr(0, sealed_file_bytes(kBlocksOfGroup)), "at a group's end");
}

TEST_F(Sealed, BlocksMovedAndExchanged) {
  ASSERT_TRUE(write_image(1, TestMemory(20), ~0ull, options_).ok());
  ASSERT_TRUE(write_image(2, TestMemory(20), ~0ull, options_).ok());
  const std::string one = read_file(path(name(1))), two = read_file(path(name(2)));
  ASSERT_EQ(one.size(), two.size());
  const uint64_t n = sealed_block_count(one.size());
  auto copy_block = [n](const std::string& from, uint64_t i, std::string& to, uint64_t k) {
    to.replace(sealed_block_offset(k), kBlockSize, from, sealed_block_offset(i), kBlockSize);
    to.replace(sealed_tag_offset(k, n), kTagBytes, from, sealed_tag_offset(i, n), kTagBytes);
  };
  for (uint64_t i = 0; i < n; i++) {
    std::string moved = one, spliced = one;
    copy_block(one, i, moved, (i + 1) % n);
    expect_damaged(moved, "repeated " + std::to_string(i));
    copy_block(two, i, spliced, i);
    expect_damaged(spliced, "of another image " + std::to_string(i));
  }
  // All blocks of another image under this one's header.
  std::string body = two;
  body.replace(0, kBlockSize, one, 0, kBlockSize);
  expect_damaged(body, "another image's blocks");
}

TEST_F(Sealed, TheRightKeyOrNone) {
  ASSERT_TRUE(write_image(1, TestMemory(5), ~0ull, options_).ok());
  ASSERT_TRUE(write_image(2, TestMemory(5)).ok());
  auto refused = [&](uint64_t sequence, const char* word) {
    auto image = ImageReader::open(path(name(sequence)));
    ASSERT_FALSE(image.ok()) << word;
    EXPECT_EQ(image.error().code, ExitCode::kPermission);
    EXPECT_NE(image.error().message().find(word), std::string_view::npos) << image.error().message();
  };
  refused(2, "not encrypted");
  forget_reading_key();
  refused(1, "encrypted; give its key");
  write_key("other", std::string(32, 'o'));
  ASSERT_TRUE(use_key_file(path("other")).ok());
  refused(1, "another key");
}

TEST_F(Sealed, AChainIsEncryptedOrNot) {
  TestMemory memory(100);
  forget_reading_key();
  ASSERT_TRUE(write_image(1, memory).ok());
  ASSERT_TRUE(write_image(2, memory, 1, {}, 1).ok());
  ASSERT_TRUE(ImageChain::open(path(name(2))).ok());
  // The increment encrypted, its parent not.
  std::filesystem::remove(path(name(2)));
  ASSERT_TRUE(write_image(2, memory, 1, options_, 1).ok());
  ASSERT_TRUE(use_key_file(path("key")).ok());
  auto mixed = ImageChain::open(path(name(2)));
  ASSERT_FALSE(mixed.ok());
  EXPECT_EQ(mixed.error().code, ExitCode::kPermission) << mixed.error().message();
  // Both.
  std::filesystem::remove(path(name(1)));
  std::filesystem::remove(path(name(2)));
  ASSERT_TRUE(write_image(1, memory, ~0ull, options_).ok());
  ASSERT_TRUE(write_image(2, memory, 1, options_, 1).ok());
  auto chain = ImageChain::open(path(name(2)));
  ASSERT_TRUE(chain.ok()) << chain.error().message();
  EXPECT_TRUE(chain->verify_all().ok());
  // The parent encrypted, the increment not.
  std::filesystem::remove(path(name(2)));
  ASSERT_TRUE(write_image(2, memory, 1, {}, 1).ok());
  forget_reading_key();
  EXPECT_FALSE(ImageChain::open(path(name(2))).ok());
}

TEST_F(Sealed, KeyFiles) {
  ImageKey key, same;
  write_key("hex", "000102030405060708090a0b0c0d0e0f101112131415161718191A1B1C1D1E1F\n");
  std::string raw;
  for (int i = 0; i < 32; i++) raw.push_back(static_cast<char>(i));
  write_key("raw", raw, 0400);
  ASSERT_TRUE(read_key_file(path("hex").c_str(), key).ok());
  ASSERT_TRUE(read_key_file(path("raw").c_str(), same).ok());
  EXPECT_EQ(std::memcmp(&key, &same, sizeof(key)), 0);
  write_key("long", std::string(4096, 'x'));
  EXPECT_TRUE(read_key_file(path("long").c_str(), key).ok());

  auto code = [&](const std::string& file) {
    auto r = read_key_file(path(file).c_str(), key);
    EXPECT_TRUE(r.ok() || r.error().message().find(file) != std::string_view::npos) << r.error().message();
    return r.ok() ? ExitCode::kOk : r.error().code;
  };
  EXPECT_EQ(code("none"), ExitCode::kNotFound);
  write_key("short", std::string(31, 'x'));
  EXPECT_EQ(code("short"), ExitCode::kPermission);
  write_key("empty", "");
  EXPECT_EQ(code("empty"), ExitCode::kPermission);
  write_key("endless", std::string(4097, 'x'));
  EXPECT_EQ(code("endless"), ExitCode::kPermission);
  for (mode_t mode : {0640u, 0604u, 0620u, 0602u, 0700u}) {
    write_key("open", raw, mode);
    EXPECT_EQ(code("open"), ExitCode::kPermission) << mode;
  }
  std::filesystem::create_directory(path("directory"));
  EXPECT_EQ(code("directory"), ExitCode::kPermission);
}

}  // namespace
}  // namespace ckpt
