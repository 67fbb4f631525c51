// What is refused before anything is touched: one line that names the thing, and the exit code.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/exit_codes.h"
#include "made_image.h"
#include "restart/plan/check_files.h"

namespace ckpt {
namespace {

class Refusal : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/restart_unit.XXXXXX";
    directory_ = mkdtemp(name);
  }
  void TearDown() override { (void)!system(("rm -rf " + directory_).c_str()); }

  std::string write(MadeImage& image) {
    image.step(GuestOp::kGo);
    image.step(GuestOp::kEnd, 7);
    return image.write(directory_);
  }
  void expect(const std::string& argument, ExitCode code, const std::string& words,
              std::vector<std::string> options = {}) {
    options.push_back(argument);
    RunResult r = run_restart(options);
    EXPECT_EQ(r.exit_code(), static_cast<int>(code)) << r.err;
    EXPECT_NE(r.err.find(words), std::string::npos) << r.err;
    EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << r.err;
    EXPECT_EQ(r.out, "");
  }
  std::string directory_;
};

TEST_F(Refusal, WrongArguments) {
  RunResult r = run_restart({});
  EXPECT_EQ(r.exit_code(), 64);
  r = run_restart({"--nonsense", "x"});
  EXPECT_EQ(r.exit_code(), 64);
  r = run_restart({"--version"});
  EXPECT_EQ(r.exit_code(), 0);
}

TEST_F(Refusal, NoSuchImage) {
  expect(directory_ + "/none.ckpt", ExitCode::kNotFound, "none.ckpt");
  expect(directory_, ExitCode::kNotFound, directory_);
}

TEST_F(Refusal, AnyDamagedByte) {
  MadeImage image;
  image.add(0x20'0000'0000, 0x20'0004'0000, PROT_READ, MappingKind::kAnonymous, std::string(0x40000, 'x'));
  std::string path = write(image);
  struct stat st;
  ASSERT_EQ(stat(path.c_str(), &st), 0);
  int fd = open(path.c_str(), O_RDWR);
  for (off_t at :
       {off_t{0}, off_t{9}, off_t{4096 + 100}, st.st_size / 2, st.st_size - 4096 - 1, st.st_size - 20}) {
    char byte, flipped;
    ASSERT_EQ(pread(fd, &byte, 1, at), 1);
    flipped = static_cast<char>(byte ^ 0x10);
    ASSERT_EQ(pwrite(fd, &flipped, 1, at), 1);
    expect(path, ExitCode::kImageDamaged, path);
    ASSERT_EQ(pwrite(fd, &byte, 1, at), 1);
  }
  ASSERT_EQ(ftruncate(fd, st.st_size - 4096), 0);
  expect(path, ExitCode::kImageDamaged, path);
  close(fd);
}

TEST_F(Refusal, AnotherProcessorKernelOrLibrary) {
  {
    MadeImage image;
    image.process.xfeatures |= uint64_t{1} << 61;
    expect(write(image), ExitCode::kIncompatible, "processor");
  }
  {
    MadeImage image;
    image.process.vdso_hash ^= 1;
    expect(write(image), ExitCode::kIncompatible, "kernel");
  }
  {
    MadeImage image;
    image.process.restart_protocol = 99;
    expect(write(image), ExitCode::kIncompatible, "protocol 99");
  }
}

TEST_F(Refusal, FilesThatChanged) {
  std::string file = directory_ + "/data";
  int fd = open(file.c_str(), O_RDWR | O_CREAT, 0600);
  ASSERT_EQ(ftruncate(fd, 4096), 0);
  close(fd);
  for (bool gone : {false, true}) {
    MadeImage image;
    auto& m = image.add(0x20'0000'0000, 0x20'0000'1000, PROT_READ, MappingKind::kFilePrivate);
    m.path = gone ? directory_ + "/gone" : file;
    m.record.object_size = 8192;
    expect(write(image), ExitCode::kFileChanged, m.path);
  }
  MadeImage image;
  auto& m = image.add(0x20'0000'0000, 0x20'0000'1000, PROT_READ, MappingKind::kFilePrivate);
  m.path = "/proc/self/exe";
  m.build_id = std::vector<std::byte>(20, std::byte{1});
  expect(write(image), ExitCode::kFileChanged, "build id");
}

TEST_F(Refusal, AnImageThatOthersMayWrite) {
  MadeImage image;
  std::string path = write(image);
  chmod(path.c_str(), 0666);
  expect(path, ExitCode::kPermission, "--trust");
  EXPECT_EQ(run_restart({"--trust", path}).exit_code(), 7);
  if (geteuid() == 0) {
    chmod(path.c_str(), 0600);
    ASSERT_EQ(chown(path.c_str(), 4711, 4711), 0);
    expect(path, ExitCode::kPermission, "4711");
  }
}

TEST_F(Refusal, IdsInUseWithoutNamespaces) {
  MadeImage image;
  image.more_threads.push_back(getpid());
  expect(write(image), ExitCode::kUnavailable, std::to_string(getpid()), {"--namespaces=never"});
}

TEST_F(Refusal, NoWorkingDirectory) {
  MadeImage image;
  image.cwd = directory_ + "/gone";
  expect(write(image), ExitCode::kFileChanged, image.cwd);
}

TEST_F(Refusal, MemoryThatCannotBeMapped) {
  MadeImage image;
  image.add(0x20'0000'0000, 0x20'0000'0000 + (uint64_t{1} << 45), PROT_READ | PROT_WRITE,
            MappingKind::kAnonymous);
  expect(write(image), ExitCode::kSystem, "2000000000");
}

TEST_F(Refusal, CheckStartsNothing) {
  MadeImage image;
  std::string path = write(image);
  RunResult r = run_restart({"--check", path});
  EXPECT_EQ(r.exit_code(), 0) << r.err;
  EXPECT_NE(r.out.find("can be restarted"), std::string::npos);
  r = run_restart({"--check", "--json", path});
  EXPECT_NE(r.out.find("\"ok\":true"), std::string::npos);
}

// A Java that starts meanwhile removes the file of figures between the first look and this one.
TEST(MappedFiles, OneThatHasGoneSinceItWasLookedForIsMadeAgain) {
  ImageMeta meta{};
  ParsedMapping m{};
  m.record.kind = static_cast<uint32_t>(MappingKind::kFileShared);
  m.record.flags = kMapMayWrite | kMapWhole;
  m.record.start = 0x20'0000'0000;
  m.record.end = m.record.start + 4096;
  m.record.object_size = 4096;
  m.path = "/tmp/ckpt has no such file";
  meta.mappings.push_back(m);
  WrittenFiles written;
  add_written_files(meta, written);
  EXPECT_TRUE(check_mapped_files(meta, {}, written, {}).ok());
  meta.mappings[0].record.flags = kMapMayWrite;  // the image does not have all of it
  EXPECT_EQ(check_mapped_files(meta, {}, written, {}).error().code, ExitCode::kFileChanged);
}

}  // namespace
}  // namespace ckpt
