// Files whose names were removed: what is read of them, and what the running program must not notice of that.
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "tests/descriptors/harness.h"

namespace ckpt::test {
namespace {

class DeletedFiles : public testing::TestWithParam<bool> {
 protected:
  DeletedFiles() { trip.executor = GetParam(); }
  ScratchDirectory dir;
  RoundTrip trip;
};
INSTANTIATE_TEST_SUITE_P(Sampled, DeletedFiles, testing::Values(true, false), how_sampled);

// Of files that cannot be opened a second time, and whose bytes are found by searching for data.
TEST_P(DeletedFiles, OffsetsStayWhereTheProgramIsAfterADeletedFileWasCopied) {
  const std::string leased = dir / "leased", shut = dir / "shut";
  trip.setup = [&] {
    for (const auto& path : {leased, shut}) write_file(path, std::string(5000, 'a') + "end");
    open_at(5, leased, O_RDWR);
    VERIFY(fcntl(5, F_SETLEASE, F_WRLCK) == 0);
    // Large: copied while the program runs, if it can be.
    VERIFY(truncate(shut.c_str(), 1 << 20) == 0);
    const timespec old[2] = {{1, 1}, {1, 1}};
    VERIFY(utimensat(AT_FDCWD, shut.c_str(), old, 0) == 0);
    open_at(6, shut, O_RDWR);
    VERIFY(fchmod(6, 0) == 0);
    for (int fd : {5, 6}) lseek(fd, 4999, SEEK_SET);
    unlink(leased.c_str());
    unlink(shut.c_str());
    // The right to open it all the same goes, if there was one: of all threads to come.
    if (geteuid() == 0) VERIFY(syscall(SYS_setresuid, 65534, 65534, 65534) == 0);
    prctl(PR_SET_DUMPABLE, 1);
  };
  trip.before_stop = [] {
    for (int fd : {5, 6}) VERIFY_EQ(lseek(fd, 0, SEEK_CUR), 4999);
  };
  trip.after_stop = [] {
    for (int fd : {5, 6}) VERIFY_EQ(lseek(fd, 0, SEEK_CUR), 4999);
  };
  trip.verify = [] {
    for (int fd : {5, 6}) VERIFY_EQ(read_some(fd, 4), "aend");
  };
  trip.run();
}

TEST_P(DeletedFiles, ManyAttributesOfADeletedFile) {
  const std::string a = dir / "a";
  write_file(a, "bytes");
  for (int i = 0; i < 30; ++i) {
    if (setxattr(a.c_str(), ("user." + std::string(60, 'n') + std::to_string(i)).c_str(), "v", 1, 0) != 0)
      GTEST_SKIP() << "this file system has no extended attributes";
  }
  trip.setup = [&] {
    open_at(5, a, O_RDWR);
    unlink(a.c_str());
  };
  trip.verify = [] {
    VERIFY_EQ(read_some(5, 10), "bytes");
    for (int i = 0; i < 30; ++i) {
      char value[8];
      VERIFY_EQ(
          fgetxattr(5, ("user." + std::string(60, 'n') + std::to_string(i)).c_str(), value, sizeof(value)),
          1);
    }
  };
  trip.run();
  EXPECT_TRUE(trip.notes.empty()) << trip.notes[0];
}

}  // namespace
}  // namespace ckpt::test
