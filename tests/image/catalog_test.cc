// Which images a directory holds, and which one somebody means.
#include <atomic>
#include <thread>

#include "image/read/sources/image_catalog.h"
#include "tests/image/image_fixture.h"

namespace ckpt {
namespace {

class Catalog : public ImageTest {
 protected:
  void write_of(const char* comm, uint8_t run, uint64_t sequence, int64_t seconds) {
    ImageIdentity id = identity(sequence);
    std::memset(id.run_id, run, 16);
    id.realtime_ns = seconds * 1'000'000'000;
    arena_.reset();
    DirectSink sink;
    TestMeta meta({});
    std::string file = compose_image_name(comm, 7, id.run_id, sequence).text;
    ASSERT_TRUE(sink.open(dir_fd_.get(), file.c_str(), id, arena_, count_release, &released_).ok());
    ASSERT_TRUE(sink.set_meta(meta.writer.span()).ok());
    ASSERT_TRUE(sink.commit().ok());
  }
  std::string of(const char* comm, uint8_t run, uint64_t sequence) const {
    uint8_t id[16];
    std::memset(id, run, 16);
    return path(compose_image_name(comm, 7, id, sequence).text);
  }
  void expect_error(const std::string& argument, ExitCode code, const char* words) {
    auto r = resolve_image(argument);
    ASSERT_FALSE(r.ok()) << *r;
    EXPECT_EQ(static_cast<int>(r.error().code), static_cast<int>(code)) << r.error().message();
    EXPECT_NE(r.error().message().find(words), std::string_view::npos) << r.error().message();
  }
};

TEST_F(Catalog, ListsWhatIsThere) {
  write_of("prog", 1, 2, 100);
  write_of("prog", 1, 1, 50);
  write_file(path("prog.7.01010101.000003.ckpt.tmp"), "x");
  write_file(path("prog.7.01010101.000004.ckpt"), "x");
  write_file(path("README"), "x");
  auto catalog = ImageCatalog::list(directory_);
  ASSERT_TRUE(catalog.ok()) << catalog.error().message();
  ASSERT_EQ(catalog->entries().size(), 4u);
  const auto& e = catalog->entries();
  EXPECT_TRUE(e[0].complete);
  EXPECT_EQ(e[0].sequence, 1u);
  EXPECT_EQ(e[0].brief.realtime_ns, 50'000'000'000);
  EXPECT_EQ(e[0].comm, "prog");
  EXPECT_EQ(run_id_text(e[0].brief.run_id), "01010101010101010101010101010101");
  EXPECT_EQ(e[1].sequence, 2u);
  EXPECT_TRUE(e[2].temporary);
  EXPECT_FALSE(e[3].complete);
  EXPECT_NE(e[3].problem.find("not a ckpt_rt image"), std::string::npos) << e[3].problem;
  EXPECT_EQ(*resolve_image(directory_), of("prog", 1, 2));
}

TEST_F(Catalog, Selectors) {
  for (uint64_t s : {3, 4, 6}) write_of("prog", 1, s, 100 - static_cast<int64_t>(s));  // the clock goes back
  EXPECT_EQ(*resolve_image(directory_), of("prog", 1, 6));
  EXPECT_EQ(*resolve_image(directory_ + "@-0"), of("prog", 1, 6));
  EXPECT_EQ(*resolve_image(directory_ + "@-1"), of("prog", 1, 4));
  EXPECT_EQ(*resolve_image(directory_ + "@-2"), of("prog", 1, 3));
  EXPECT_EQ(*resolve_image(directory_ + "@4"), of("prog", 1, 4));
  EXPECT_EQ(*resolve_image(of("prog", 1, 3)), of("prog", 1, 3));
  expect_error(directory_ + "@-3", ExitCode::kNotFound, "only 3 complete images");
  expect_error(directory_ + "@5", ExitCode::kNotFound, "3 to 6");
  expect_error(directory_ + "@", ExitCode::kUsage, "@SEQUENCE");
  expect_error(directory_ + "@-", ExitCode::kUsage, "@SEQUENCE");
  expect_error(directory_ + "@x", ExitCode::kUsage, "@SEQUENCE");
  expect_error(directory_ + "@99999999999999999999999", ExitCode::kUsage, "@SEQUENCE");
  expect_error(of("prog", 1, 3) + "@1", ExitCode::kUsage, "directory");
  expect_error(path("none"), ExitCode::kNotFound, "no such image or directory");
  expect_error(path("none@1"), ExitCode::kNotFound, "no such image or directory");
  // A directory with the sign in its name is itself.
  std::filesystem::create_directory(path("odd@1"));
  expect_error(path("odd@1"), ExitCode::kNotFound, "no images");
}

TEST_F(Catalog, SeveralRuns) {
  write_of("prog", 1, 9, 100);
  write_of("prog", 2, 1, 200);
  write_of("prog", 2, 2, 300);
  EXPECT_EQ(*resolve_image(directory_), of("prog", 2, 2));
  EXPECT_EQ(*resolve_image(directory_ + "@1"), of("prog", 2, 1));
  write_of("other", 3, 1, 50);
  expect_error(directory_, ExitCode::kUsage, "prog.7.");
  expect_error(directory_, ExitCode::kUsage, "other.7.03030303.000001.ckpt");
}

TEST_F(Catalog, NothingComplete) {
  expect_error(directory_, ExitCode::kNotFound, "no images");
  write_file(path("prog.7.01010101.000003.ckpt.tmp"), "x");
  expect_error(directory_, ExitCode::kNotFound, "never finished");
  write_file(path("prog.7.01010101.000004.ckpt"), "x");
  expect_error(directory_, ExitCode::kImageDamaged, "not a ckpt_rt image");
}

// One image at a time, replaced by the next at some instant of each listing.
TEST_F(Catalog, WhileImagesAreReplaced) {
  write_of("prog", 1, 1, 100);
  const std::string bytes = read_file(of("prog", 1, 1));
  constexpr uint64_t kRounds = 3000;
  std::atomic<uint64_t> asked{0}, done{0};
  std::thread program([&] {
    uint32_t x = 1;
    for (uint64_t round = 1; round <= kRounds; round++) {
      while (asked < round) std::this_thread::yield();
      for (uint32_t wait = (x = x * 1664525u + 1013904223u) >> 17; wait > 0; wait--) (void)asked.load();
      const std::string next = of("prog", 1, round + 1);
      write_file(next + ".tmp", bytes);
      std::filesystem::rename(next + ".tmp", next);
      std::filesystem::remove(of("prog", 1, round));
      done = round;
    }
  });
  for (uint64_t round = 1; round <= kRounds; round++) {
    asked = round;
    auto catalog = ImageCatalog::list(directory_);
    while (done < round) std::this_thread::yield();
    EXPECT_TRUE(catalog.ok());
    if (!catalog.ok()) continue;
    size_t complete = 0;
    for (const CatalogEntry& e : catalog->entries()) {
      EXPECT_TRUE(e.complete || e.temporary) << e.problem;
      complete += e.complete;
    }
    EXPECT_GE(complete, 1u);
  }
  program.join();
}

}  // namespace
}  // namespace ckpt
