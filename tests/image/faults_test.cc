// Every write of an image fails in every way: nothing is left under the final name, the previous image
// stays whole, and one line says what happened.
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "base/machine/kernel_caps.h"
#include "tests/image/faulty_backend.h"
#include "tests/image/image_fixture.h"

namespace ckpt {
namespace {

// With each way to write: pages copied into chunks, and pages written from where they are.
class Faults : public ImageTest, public ::testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    ImageTest::SetUp();
    auto stats = write_image(1, memory_);
    ASSERT_TRUE(stats.ok()) << stats.error().message();
  }
  SinkOptions small(FileBackend& backend) const {
    SinkOptions options;
    options.backend = &backend;
    options.chunk_bytes = GetParam() ? 128 << 10 : 64 << 10;
    options.in_flight = 3;
    options.held_buffers = GetParam() ? 64 : 0;
    return options;
  }
  void expect_previous_image_whole() {
    auto image = ImageReader::open(path(name(1)));
    ASSERT_TRUE(image.ok()) << image.error().message();
    auto verified = image->verify_data(1);
    ASSERT_TRUE(verified.ok()) << verified.error().message();
  }
  int writes_of_one_image() {
    PwritevBackend real;
    FaultyBackend counting(real);
    auto stats = write_image(2, memory_, ~0ull, small(counting));
    EXPECT_TRUE(stats.ok());
    std::filesystem::remove(path(name(2)));
    return counting.writes();
  }
  Result<SinkStats> write_faulty(FileBackend& real, Fault fault) {
    FaultyBackend faulty(real, fault);
    std::string torn = path(name(2) + ".tmp");
    faulty.torn_path = torn.c_str();
    return write_image(2, memory_, ~0ull, small(faulty));
  }

  TestMemory memory_{160};
};

TEST_P(Faults, AtEveryWrite) {
  int writes = writes_of_one_image();
  ASSERT_GT(writes, 8);
  size_t released = released_;
  for (Fault::Kind kind : {Fault::kRefuse, Fault::kFail, Fault::kTorn, Fault::kNothing, Fault::kTooMuch}) {
    for (int error : {ENOSPC, EIO, EDQUOT, EFBIG}) {
      for (int at = 0; at < writes; at++) {
        SCOPED_TRACE(fmt::format("kind {} error {} write {}", static_cast<int>(kind), error, at));
        PwritevBackend real;
        auto stats = write_faulty(real, {kind, at, error});
        ASSERT_FALSE(stats.ok());
        EXPECT_EQ(stats.error().code, ExitCode::kIo);
        EXPECT_NE(stats.error().message().find(name(2)), std::string_view::npos) << stats.error().message();
        ASSERT_EQ(files(), 1u);
      }
    }
  }
  EXPECT_GT(released_, released);
  expect_previous_image_whole();
}

// Errors that arrive later, while other writes are on their way.
TEST_P(Faults, AtEveryWriteOfTheRing) {
  if (!probe_io_uring().ok()) GTEST_SKIP() << "io_uring is not allowed here";
  int writes = writes_of_one_image();
  for (Fault::Kind kind : {Fault::kRefuse, Fault::kFail, Fault::kTorn, Fault::kNothing}) {
    for (int error : {ENOSPC, EIO, EDQUOT}) {
      for (int at = 0; at < writes; at++) {
        SCOPED_TRACE(fmt::format("kind {} error {} write {}", static_cast<int>(kind), error, at));
        UringBackend ring;
        auto stats = write_faulty(ring, {kind, at, error});
        ASSERT_FALSE(stats.ok());
        EXPECT_EQ(stats.error().code, ExitCode::kIo);
        ASSERT_EQ(files(), 1u);
      }
    }
  }
  expect_previous_image_whole();
}

TEST_P(Faults, BuffersComeBackWhateverHappens) {
  int writes = writes_of_one_image();
  for (int at = 0; at < writes; at++) {
    PwritevBackend real;
    FaultyBackend faulty(real, {Fault::kFail, at, EIO});
    arena_.reset();
    DirectSink sink(small(faulty));
    released_ = 0;
    auto opened = sink.open(dir_fd_.get(), name(2).c_str(), identity(2), arena_, count_release, &released_);
    if (!opened.ok()) continue;
    auto list = segments(memory_);
    (void)sink.append(list);  // may fail or not: the fault may come later
    if (!GetParam()) {
      EXPECT_EQ(released_, list.size());
    }
    sink.abort();
    sink.abort();
    EXPECT_EQ(released_, list.size());
  }
  EXPECT_EQ(files(), 1u);
}

TEST_P(Faults, ShortWritesAreFinished) {
  for (bool uring : {false, true}) {
    if (uring && !probe_io_uring().ok()) GTEST_SKIP() << "io_uring is not allowed here";
    for (Fault::Kind kind : {Fault::kShort, Fault::kOddShort}) {
      SCOPED_TRACE(fmt::format("uring {} kind {}", uring, static_cast<int>(kind)));
      PwritevBackend plain;
      UringBackend ring;
      FileBackend& real = uring ? static_cast<FileBackend&>(ring) : plain;
      auto stats = write_faulty(real, {kind, -1, 0});
      ASSERT_TRUE(stats.ok()) << stats.error().message();
      auto image = ImageReader::open(path(name(2)));
      ASSERT_TRUE(image.ok()) << image.error().message();
      ASSERT_TRUE(image->verify_data().ok());
      expect_memory(*image, memory_);
      std::filesystem::remove(path(name(2)));
    }
  }
}

// O_DIRECT was taken at open, and the write is refused: some file systems learn it only then.
TEST_P(Faults, DirectWritesRefused) {
  int writes = writes_of_one_image();
  for (int at = 0; at < writes; at++) {
    PwritevBackend real;
    auto stats = write_faulty(real, {Fault::kFail, at, EINVAL});
    ASSERT_TRUE(stats.ok()) << stats.error().message();
    auto image = ImageReader::open(path(name(2)));
    ASSERT_TRUE(image.ok()) << image.error().message();
    ASSERT_TRUE(image->verify_data().ok());
    std::filesystem::remove(path(name(2)));
  }
  PwritevBackend real;
  auto always = write_faulty(real, {Fault::kFail, -1, EINVAL});
  ASSERT_FALSE(always.ok());
  EXPECT_EQ(files(), 1u);
}

TEST_P(Faults, WhenMadeDurable) {
  for (Fault::Kind kind : {Fault::kFailSync, Fault::kFailDirSync}) {
    for (int error : {EIO, ENOSPC, EDQUOT}) {
      PwritevBackend real;
      auto stats = write_faulty(real, {kind, 0, error});
      ASSERT_FALSE(stats.ok());
      EXPECT_EQ(stats.error().code, ExitCode::kIo);
      EXPECT_EQ(files(), 1u);
    }
  }
  expect_previous_image_whole();
}

// Death of the process at every write: what it left behind is no image, and does not keep the next
// one from being written.
TEST_P(Faults, KilledAtEveryWrite) {
  int writes = writes_of_one_image();
  for (int at = -2; at < writes; at++) {
    SCOPED_TRACE(at);
    Fault fault{Fault::kKill, at, 0};
    if (at == -1) fault.kind = Fault::kKillSync;
    if (at == -2) fault.kind = Fault::kKillDirSync;
    pid_t child = fork();
    if (child == 0) {
      PwritevBackend real;
      auto stats = write_faulty(real, fault);
      _exit(stats.ok() ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    if (at == -2) {
      auto image = ImageReader::open(path(name(2)));
      ASSERT_TRUE(image.ok()) << image.error().message();
      EXPECT_TRUE(image->verify_data().ok());
    } else {
      EXPECT_FALSE(exists(name(2)));
      EXPECT_TRUE(exists(name(2) + ".tmp"));
      ASSERT_TRUE(write_image(2, memory_).ok());
    }
    EXPECT_EQ(files(), 2u);
    std::filesystem::remove(path(name(2)));
  }
  expect_previous_image_whole();
}

TEST_P(Faults, FileSizeLimit) {
  pid_t child = fork();
  if (child == 0) {
    rlimit limit{200 << 10, RLIM_INFINITY};
    setrlimit(RLIMIT_FSIZE, &limit);
    auto stats = write_image(2, memory_);
    bool right = !stats.ok() && stats.error().code == ExitCode::kIo && stats.error().sys_errno == EFBIG &&
                 stats.error().message().find("ulimit -f") != std::string_view::npos &&
                 stats.error().message().find("204800") != std::string_view::npos;
    if (!right) fprintf(stderr, "%s\n", stats.ok() ? "no error" : stats.error().text);
    // A limit that the image fits under does no harm, although blocks are reserved in larger steps.
    limit.rlim_cur = 1 << 20;
    setrlimit(RLIMIT_FSIZE, &limit);
    auto fits = write_image(3, memory_);
    if (!fits.ok()) fprintf(stderr, "%s\n", fits.error().text);
    _exit(right && fits.ok() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(files(), 2u);
  expect_previous_image_whole();
}

// A file system that is really full: a tmpfs in a mount namespace of the child's own.
TEST_P(Faults, FullFileSystem) {
  pid_t child = fork();
  if (child == 0) {
    if ((geteuid() != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) ||
        (geteuid() == 0 && unshare(CLONE_NEWNS) != 0) ||
        mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("ckpt", directory_.c_str(), "tmpfs", 0, "size=256k") != 0) {
      _exit(77);
    }
    dir_fd_.reset(::open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    auto stats = write_image(2, memory_);
    bool right = !stats.ok() && stats.error().sys_errno == ENOSPC && files() == 0;
    if (!right) fprintf(stderr, "%s\n", stats.ok() ? "no error" : stats.error().text);
    TestMemory little(10);
    auto fits = write_image(3, little);
    if (!fits.ok()) fprintf(stderr, "%s\n", fits.error().text);
    _exit(right && fits.ok() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) GTEST_SKIP() << "no mount namespaces here";
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST_P(Faults, TheNameIsTaken) {
  write_file(path(name(2)), "mine");
  auto stats = write_image(2, memory_);
  ASSERT_FALSE(stats.ok());
  EXPECT_EQ(stats.error().code, ExitCode::kCannotCreate);
  EXPECT_EQ(read_file(path(name(2))), "mine");
  EXPECT_EQ(files(), 2u);
}

TEST_P(Faults, LeftoverOfADeadRunIsReplaced) {
  write_file(path(name(2) + ".tmp"), std::string(100000, 'x'));
  ASSERT_TRUE(write_image(2, memory_).ok());
  EXPECT_EQ(files(), 2u);
}

TEST_P(Faults, LinkInPlaceOfTheTemporaryFileIsNotFollowed) {
  write_file(path("victim"), "precious");
  std::filesystem::create_symlink(path("victim"), path(name(2) + ".tmp"));
  ASSERT_TRUE(write_image(2, memory_).ok());
  EXPECT_EQ(read_file(path("victim")), "precious");
  EXPECT_TRUE(std::filesystem::is_regular_file(std::filesystem::symlink_status(path(name(2)))));
}

TEST_P(Faults, TemporaryFileOfALivingWriterIsRespected) {
  Arena other;
  ASSERT_TRUE(other.reserve(64 << 20));
  DirectSink first;
  ASSERT_TRUE(first.open(dir_fd_.get(), name(2).c_str(), identity(2), other, count_release, &released_).ok());
  auto second = write_image(2, memory_);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, ExitCode::kCannotCreate);
  EXPECT_NE(second.error().message().find("another process"), std::string_view::npos);
  EXPECT_TRUE(exists(name(2) + ".tmp"));
  first.abort();
  EXPECT_EQ(files(), 1u);
}

TEST_P(Faults, ArenaTooSmall) {
  Arena little;
  ASSERT_TRUE(little.reserve(1 << 20));
  DirectSink sink;
  auto opened = sink.open(dir_fd_.get(), name(2).c_str(), identity(2), little, count_release, &released_);
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().code, ExitCode::kInternal);
  EXPECT_EQ(files(), 1u);
}

INSTANTIATE_TEST_SUITE_P(Buffers, Faults, ::testing::Bool(), [](const ::testing::TestParamInfo<bool>& how) {
  return how.param ? "held" : "copied";
});

}  // namespace
}  // namespace ckpt
