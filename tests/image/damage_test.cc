// Damaged, cut and foreign images: every one is refused, with the right exit code and a useful line.
#include <fcntl.h>
#include <sys/stat.h>

#include <cstring>

#include "tests/image/exercise_reader.h"
#include "tests/image/image_fixture.h"
#include "tests/image/reseal.h"

namespace ckpt {
namespace {

class Damage : public ImageTest {
 protected:
  std::string small_image(Codec codec = Codec::kNone) {
    TestMemory memory(4);
    std::memset(memory.bytes, 7, 2 * 4096);
    SinkOptions options;
    options.codec = codec;
    auto stats = write_image(1, memory, 0b1011, options);
    EXPECT_TRUE(stats.ok());
    std::string bytes = read_file(path(name(1)));
    std::filesystem::remove(path(name(1)));
    return bytes;
  }
  // The error of opening these bytes, or of verifying them.
  Error error_of(const std::string& bytes, const char* file = "image") {
    write_file(path(file), bytes);
    auto image = ImageReader::open(path(file));
    if (!image.ok()) return image.error();
    auto verified = image->verify_data(1);
    if (!verified.ok()) return verified.error();
    Error none;
    none.code = ExitCode::kOk;
    return none;
  }
  void expect(const std::string& bytes, ExitCode code, const char* words) {
    Error e = error_of(bytes);
    EXPECT_EQ(static_cast<int>(e.code), static_cast<int>(code)) << e.message();
    EXPECT_NE(e.message().find(words), std::string_view::npos) << e.message();
    EXPECT_NE(e.message().find("image"), std::string_view::npos) << e.message();
  }
};

TEST_F(Damage, EveryFlippedByteIsSeen) {
  for (Codec codec : {Codec::kNone, Codec::kLz4}) {
    const std::string whole = small_image(codec);
    ASSERT_EQ(error_of(whole).code, ExitCode::kOk);
    ASSERT_LT(whole.size(), 48u << 10);
    ScopedFd file = file_in_memory(whole);
    auto set = [&](size_t i, int value) {
      char byte = static_cast<char>(value);
      ASSERT_EQ(pwrite(file.get(), &byte, 1, static_cast<off_t>(i)), 1);
    };
    for (size_t i = 0; i < whole.size(); i++) {
      for (int flip : {0x01, 0xff}) {
        set(i, whole[i] ^ flip);
        ASSERT_FALSE(exercise_reader(file)) << "byte " << i;
      }
      set(i, whole[i]);
    }
    ASSERT_TRUE(exercise_reader(file));
  }
}

TEST_F(Damage, EveryLengthIsRefused) {
  const std::string whole = small_image();
  ScopedFd file = file_in_memory(whole);
  for (size_t n = whole.size(); n-- > 0;) {
    ASSERT_EQ(ftruncate(file.get(), static_cast<off_t>(n)), 0);
    ASSERT_FALSE(exercise_reader(file)) << n;
  }
  expect("", ExitCode::kImageDamaged, "empty");
  expect(whole.substr(0, 100), ExitCode::kImageDamaged, "truncated");
  expect(whole.substr(0, 4096), ExitCode::kImageDamaged, "truncated");
  expect(whole.substr(0, 12288), ExitCode::kImageDamaged, "truncated or never finished");
  expect(whole.substr(0, whole.size() - 1), ExitCode::kImageDamaged, "truncated");
  expect(whole + "x", ExitCode::kImageDamaged, "appended");
  expect(whole + std::string(4096, '\0'), ExitCode::kImageDamaged, "never finished");
  expect(whole.substr(0, 4096) + whole, ExitCode::kImageDamaged, "bytes long instead of");
}

TEST_F(Damage, ForeignFiles) {
  expect("#!/bin/sh\necho hello\n", ExitCode::kImageDamaged, "not a ckpt_rt image");
  expect(std::string(20000, '\0'), ExitCode::kImageDamaged, "not a ckpt_rt image");
  auto directory = ImageReader::open(directory_);
  ASSERT_FALSE(directory.ok());
  EXPECT_NE(directory.error().message().find("not a regular file"), std::string_view::npos);
  ASSERT_EQ(mkfifo(path("fifo").c_str(), 0600), 0);
  EXPECT_FALSE(ImageReader::open(path("fifo")).ok());
  EXPECT_FALSE(ImageReader::open("/dev/null").ok());
  auto missing = ImageReader::open(path("missing"));
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, ExitCode::kNotFound);
}

template <typename T>
void set_field(std::string& image, uint64_t at, T value) {
  std::memcpy(image.data() + at, &value, sizeof(value));
}
template <typename T>
T field(const std::string& image, uint64_t at) {
  T value;
  std::memcpy(&value, image.data() + at, sizeof(value));
  return value;
}

TEST_F(Damage, ImagesFromElsewhere) {
  const std::string whole = small_image();
  struct {
    size_t at;
    uint32_t value;
    const char* words;
  } cases[] = {{offsetof(FileHeader, version), 1, "format version 1, this ckpt_rt reads 4"},
               {offsetof(FileHeader, byte_order), 0x04030201, "byte order"},
               {offsetof(FileHeader, machine), 183, "ELF machine 183"},
               {offsetof(FileHeader, page_size), 65536, "page size 65536"}};
  for (const auto& c : cases) {
    std::string bytes = whole;
    set_field(bytes, c.at, c.value);
    expect(bytes, ExitCode::kImageDamaged, "checksum of the header");
    reseal(bytes);
    expect(bytes, ExitCode::kIncompatible, c.words);
  }
}

TEST_F(Damage, PartsOfTwoImages) {
  TestMemory memory(4);
  ASSERT_TRUE(write_image(1, memory).ok());
  ASSERT_TRUE(write_image(2, memory).ok());
  std::string one = read_file(path(name(1))), two = read_file(path(name(2)));
  ASSERT_EQ(one.size(), two.size());
  for (size_t block = 0; block < one.size(); block += 4096) {
    if (one.compare(block, 4096, two, block, 4096) == 0) continue;  // the memory is the same
    std::string mixed = one;
    mixed.replace(block, 4096, two, block, 4096);
    EXPECT_EQ(static_cast<int>(error_of(mixed).code), static_cast<int>(ExitCode::kImageDamaged)) << block;
  }
}

// Values that contradict each other, under right checksums.
class HostileIndex : public Damage {
 protected:
  void SetUp() override {
    Damage::SetUp();
    whole_ = small_image();  // extents of two pages and one
    trailer_at_ = whole_.size() - 4096;
    index_ = field<uint64_t>(whole_, trailer_at_ + offsetof(FileTrailer, index_offset));
    entry_ = index_ + 4096;
    ASSERT_EQ(field<uint64_t>(whole_, trailer_at_ + offsetof(FileTrailer, extent_count)), 2u);
    for (uint64_t at = 4096; at < trailer_at_;) {
      auto head = field<SectionHead>(whole_, at);
      if (head.kind == static_cast<uint32_t>(SectionKind::kChunk)) chunk_ = at;
      at += head.head_bytes + head.body_bytes;
    }
    ASSERT_NE(chunk_, 0u);
  }
  template <typename T>
  void expect_refused(uint64_t at, T value, const char* words) {
    std::string bytes = whole_;
    set_field(bytes, at, value);
    reseal(bytes);
    expect(bytes, ExitCode::kImageDamaged, words);
  }
  std::string whole_;
  uint64_t trailer_at_ = 0, index_ = 0, entry_ = 0, chunk_ = 0;
};

TEST_F(HostileIndex, Extents) {
  const uint64_t second = entry_ + sizeof(IndexEntry);
  auto first_address = field<uint64_t>(whole_, entry_);
  auto address = offsetof(IndexEntry, address), length = offsetof(IndexEntry, length);
  auto stored = offsetof(IndexEntry, stored), offset = offsetof(IndexEntry, offset);
  expect_refused(entry_ + address, uint64_t{1}, "impossible address");
  expect_refused(entry_ + address, ~uint64_t{4095}, "impossible address");
  expect_refused(entry_ + address, uint64_t{0x4000'0000}, "out of order");
  expect_refused(second + address, first_address, "overlap");
  expect_refused(second + address, first_address + 4096, "overlap");
  expect_refused(entry_ + address, uint64_t{0}, "no saved mapping");
  expect_refused(second + address, uint64_t{0x7f00'0000'0000}, "no saved mapping");
  expect_refused(entry_ + length, uint32_t{0}, "impossible address or length");
  expect_refused(entry_ + length, uint32_t{4097}, "impossible address or length");
  expect_refused(entry_ + length, uint32_t{0xffff'f000}, "another length");
  expect_refused(entry_ + stored, uint32_t{100}, "another length");
  expect_refused(entry_ + offset, uint64_t{100}, "impossible place");
  expect_refused(entry_ + offset, uint64_t{0}, "outside the data");
  expect_refused(entry_ + offset, ~uint64_t{4095}, "outside the data");
  expect_refused(entry_ + offset, trailer_at_, "outside the data");
  expect_refused(entry_ + offset, field<uint64_t>(whole_, second + offset), "disagree");
  expect_refused(entry_ + offsetof(IndexEntry, codec), uint32_t{9}, "unknown codec");
  expect_refused(entry_ + offsetof(IndexEntry, codec), uint32_t{1}, "compressed extent");
  expect_refused(entry_ + offsetof(IndexEntry, reserved), uint32_t{1}, "impossible place");
}

TEST_F(HostileIndex, Sections) {
  auto head = [&](uint64_t section, size_t f) { return section + f; };
  expect_refused(head(index_, offsetof(SectionHead, magic)), uint32_t{0}, "no section starts here");
  expect_refused(head(index_, offsetof(SectionHead, head_bytes)), uint32_t{0xffff'f000}, "");
  expect_refused(head(index_, offsetof(SectionHead, head_bytes)), uint32_t{0}, "");
  expect_refused(head(index_, offsetof(SectionHead, kind)), uint32_t{2}, "");
  expect_refused(head(index_, offsetof(SectionHead, entry_count)), uint32_t{3}, "another size");
  expect_refused(head(index_, offsetof(SectionHead, content_bytes)), ~uint64_t{0}, "");
  expect_refused(head(index_, offsetof(SectionHead, body_bytes)), ~uint64_t{4095}, "");
  expect_refused(head(index_, offsetof(SectionHead, ordinal)), uint64_t{77}, "another size");
  expect_refused(head(chunk_, offsetof(SectionHead, entry_count)), uint32_t{1}, "");
  expect_refused(head(chunk_, offsetof(SectionHead, entry_count)), uint32_t{1000}, "more extents than fit");
  expect_refused(head(chunk_, offsetof(SectionHead, ordinal)), uint64_t{5}, "missing or repeated");
  expect_refused(head(chunk_, offsetof(SectionHead, kind)), uint32_t{7}, "");
  expect_refused(head(chunk_, offsetof(SectionHead, kind)), uint32_t{1}, "");
  expect_refused(chunk_ + sizeof(SectionHead), uint64_t{0x20000}, "disagree");
  expect_refused(chunk_ + 4095, uint8_t{1}, "padding");
}

TEST_F(HostileIndex, Trailer) {
  auto at = [&](size_t f) { return trailer_at_ + f; };
  expect_refused(at(offsetof(FileTrailer, meta_offset)), uint64_t{1}, "");
  expect_refused(at(offsetof(FileTrailer, meta_offset)), ~uint64_t{4095}, "outside the file");
  expect_refused(at(offsetof(FileTrailer, meta_bytes)), ~uint64_t{0}, "not what the trailer says");
  expect_refused(at(offsetof(FileTrailer, index_offset)), uint64_t{0}, "outside the file");
  expect_refused(at(offsetof(FileTrailer, index_offset)), trailer_at_, "outside the file");
  expect_refused(at(offsetof(FileTrailer, index_bytes)), uint64_t{40}, "another size");
  expect_refused(at(offsetof(FileTrailer, extent_count)), uint64_t{1} << 60, "another size");
  expect_refused(at(offsetof(FileTrailer, section_count)), uint64_t{9}, "another size");
  expect_refused(at(offsetof(FileTrailer, memory_bytes)), uint64_t{4096}, "other memory");
  expect_refused(at(offsetof(FileTrailer, file_bytes)), uint64_t{0}, "instead of 0");
  expect_refused(at(offsetof(FileTrailer, zeros)), uint8_t{1}, "reserved");
  expect_refused(at(offsetof(FileTrailer, sequence)), uint64_t{9}, "different images");
  expect_refused(offsetof(FileHeader, zeros), uint8_t{1}, "reserved");
  expect_refused(offsetof(FileHeader, parent), uint64_t{5}, "sequence");
}

// A section that the file has for nothing is refused before memory is asked for it.
TEST_F(HostileIndex, ALargeSectionThatIsAHole) {
  constexpr uint64_t kHole = 96u << 20;
  FileTrailer trailer;
  std::memcpy(&trailer, whole_.data() + trailer_at_, sizeof(trailer));
  SectionHead head;
  const uint64_t at = trailer.meta_offset;
  std::memcpy(&head, whole_.data() + at, sizeof(head));
  const uint64_t body = at + head.head_bytes, shift = kHole - head.body_bytes;
  ASSERT_LT(at, trailer.index_offset);
  std::string image =
      whole_.substr(0, body) + std::string(kHole, '\0') + whole_.substr(body + head.body_bytes);
  head.content_bytes = head.body_bytes = trailer.meta_bytes = kHole;
  std::memcpy(image.data() + at, &head, sizeof(head));
  trailer.index_offset += shift;
  trailer.file_bytes += shift;
  std::memcpy(image.data() + trailer_at_ + shift, &trailer, sizeof(trailer));
  reseal(image);
  write_file(path("image"), image);
  auto refusal = [&] {
    auto opened = ImageReader::open(path("image"));
    EXPECT_FALSE(opened.ok());
    return std::string(opened.ok() ? "" : opened.error().message());
  };
  EXPECT_EQ(refusal().find("next to nothing"), std::string::npos) << "all of it is in the file";
  ScopedFd file(open(path("image").c_str(), O_WRONLY | O_CLOEXEC));
  ASSERT_EQ(fallocate(file.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(body),
                      static_cast<off_t>(kHole)),
            0);
  EXPECT_NE(refusal().find("next to nothing"), std::string::npos) << refusal();
}

}  // namespace
}  // namespace ckpt
