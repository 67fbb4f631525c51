#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <filesystem>

#include "tests/descriptors/harness.h"

namespace ckpt::test {
namespace {

off_t offset_of(int fd) { return lseek(fd, 0, SEEK_CUR); }

class Files : public testing::TestWithParam<bool> {
 protected:
  Files() { trip.executor = GetParam(); }
  ScratchDirectory dir;
  RoundTrip trip;
};
INSTANTIATE_TEST_SUITE_P(Sampled, Files, testing::Values(true, false), how_sampled);

// Many open files of one inode: which descriptors share one changes after the look ahead, between any two of
// them.
TEST_P(Files, SharingChangesBeforeTheStop) {
  const std::string path = dir / "f";
  constexpr int kFirst = 40, kCount = 9;
  trip.setup = [&] {
    write_file(path, "0123456789");
    for (int i = 0; i < kCount; ++i) open_at(kFirst + i, path, O_RDONLY);
    dup2(kFirst, kFirst + kCount);
  };
  trip.before_stop = [&] {
    // All at the same offset, so that nothing but the kernel's comparison can tell.
    dup2(kFirst + 1, kFirst + 7);
    open_at(kFirst + kCount, path, O_RDONLY);
    dup2(kFirst + 4, kFirst + 3);
  };
  trip.verify = [] {
    auto moves = [](int a, int b) {
      lseek(a, 0, SEEK_SET);
      lseek(b, 0, SEEK_SET);
      return lseek(a, 5, SEEK_SET) == 5 && lseek(b, 0, SEEK_CUR) == 5;
    };
    for (int a = kFirst; a <= kFirst + kCount; ++a) {
      for (int b = a + 1; b <= kFirst + kCount; ++b) {
        const bool one = (a == kFirst + 1 && b == kFirst + 7) || (a == kFirst + 3 && b == kFirst + 4);
        VERIFY_EQ(moves(a, b), one);
      }
    }
  };
  trip.run();
}

TEST_P(Files, OffsetFlagsAndCloseOnExec) {
  const std::string a = dir / "a";
  trip.setup = [&] {
    write_file(a, "0123456789");
    open_at(5, a, O_RDONLY);
    lseek(5, 4, SEEK_SET);
    open_at(7, a, O_RDWR | O_APPEND | O_NONBLOCK);
    fcntl(7, F_SETFD, FD_CLOEXEC);
    lseek(7, 2, SEEK_SET);
    open_at(9, a, O_WRONLY | O_CREAT | O_SYNC);
  };
  trip.verify = [&] {
    VERIFY_EQ(offset_of(5), 4);
    VERIFY_EQ(fcntl(5, F_GETFD), 0);
    VERIFY_EQ(fcntl(5, F_GETFL) & (O_ACCMODE | O_APPEND | O_NONBLOCK), O_RDONLY);
    VERIFY_EQ(read_some(5, 100), "456789");
    VERIFY_EQ(offset_of(7), 2);
    VERIFY_EQ(fcntl(7, F_GETFD), FD_CLOEXEC);
    VERIFY_EQ(fcntl(7, F_GETFL) & (O_ACCMODE | O_APPEND | O_NONBLOCK), O_RDWR | O_APPEND | O_NONBLOCK);
    VERIFY_EQ(fcntl(9, F_GETFL) & (O_ACCMODE | O_SYNC), O_WRONLY | O_SYNC);
    VERIFY_EQ(write(7, "x", 1), 1);
    VERIFY_EQ(offset_of(7), 11);
  };
  trip.run();
  EXPECT_EQ(read_file(a), "0123456789x");
  EXPECT_TRUE(trip.notes.empty());
}

TEST_P(Files, DuplicatesShareAndOthersDoNot) {
  const std::string a = dir / "a";
  trip.setup = [&] {
    write_file(a, std::string(100, 'a'));
    open_at(5, a, O_RDONLY);
    open_at(6, a, O_RDONLY);
    dup2(5, 20);
    dup2(5, 3);
    dup2(6, 21);
    lseek(5, 10, SEEK_SET);
    lseek(6, 10, SEEK_SET);
  };
  trip.verify = [&] {
    lseek(5, 50, SEEK_SET);
    VERIFY_EQ(offset_of(20), 50);
    VERIFY_EQ(offset_of(3), 50);
    VERIFY_EQ(offset_of(6), 10);
    lseek(21, 60, SEEK_SET);
    VERIFY_EQ(offset_of(6), 60);
    VERIFY_EQ(offset_of(5), 50);
  };
  trip.run();
}

// Everything that can happen to a table between the two halves.
TEST_P(Files, ChangesBetweenPrepareAndStop) {
  trip.setup = [&] {
    for (const char* name : {"a", "b", "c", "d"}) write_file(dir / name, std::string(100, name[0]));
    open_at(5, dir / "a", O_RDONLY);
    open_at(6, dir / "a", O_RDONLY);
    open_at(7, dir / "b", O_RDONLY);
    open_at(8, dir / "c", O_RDONLY);
    open_at(10, dir / "d", O_RDWR);
    dup2(10, 11);
    open_at(12, dir / "renamed-from", O_RDWR | O_CREAT);
    open_at(13, dir / "unlinked", O_RDWR | O_CREAT);
    open_at(14, dir / "renamed-and-written", O_RDWR | O_CREAT);
    VERIFY(write(13, "contents", 8) == 8);
  };
  trip.before_stop = [&] {
    dup2(5, 6);                        // was another open of the same file
    close(7);                          // closed
    open_at(8, dir / "b", O_RDWR);     // replaced
    open_at(11, dir / "d", O_RDWR);    // was a duplicate
    open_at(30, dir / "c", O_RDONLY);  // new
    lseek(5, 33, SEEK_SET);
    fcntl(10, F_SETFD, FD_CLOEXEC);
    fcntl(10, F_SETFL, O_APPEND);
    std::filesystem::rename(dir / "renamed-from", dir / "renamed-to");
    std::filesystem::remove(dir / "unlinked");
    std::filesystem::rename(dir / "renamed-and-written", dir / "written");
    VERIFY(write(14, "x", 1) == 1);
  };
  trip.verify = [&] {
    VERIFY_EQ(offset_of(6), 33);
    lseek(6, 34, SEEK_SET);
    VERIFY_EQ(offset_of(5), 34);
    VERIFY_EQ(fcntl(7, F_GETFD), -1);
    VERIFY_EQ(read_some(8, 3), "bbb");
    lseek(10, 5, SEEK_SET);
    VERIFY_EQ(offset_of(11), 0);
    VERIFY_EQ(fcntl(10, F_GETFD), FD_CLOEXEC);
    VERIFY_EQ(fcntl(10, F_GETFL) & O_APPEND, O_APPEND);
    VERIFY_EQ(read_some(30, 3), "ccc");
    VERIFY_EQ(std::filesystem::read_symlink("/proc/self/fd/12").string(), dir / "renamed-to");
    VERIFY_EQ(std::filesystem::read_symlink("/proc/self/fd/14").string(), dir / "written");
    VERIFY_EQ(offset_of(13), 8);
    lseek(13, 0, SEEK_SET);
    VERIFY_EQ(read_some(13, 20), "contents");
  };
  trip.run();
}

TEST_P(Files, DeletedFileComesBackWithItsContents) {
  std::string big(3 << 20, 'x');
  for (size_t i = 0; i < big.size(); i += 7) big[i] = static_cast<char>('a' + i % 26);
  trip.setup = [&] {
    open_at(5, dir / "gone", O_RDWR | O_CREAT);
    VERIFY(write(5, big.data(), big.size()) == static_cast<ssize_t>(big.size()));
    VERIFY(ftruncate(5, 1 << 24) == 0);  // a hole at the end
    lseek(5, 1000, SEEK_SET);
    open_at(6, dir / "gone", O_RDONLY);
    open_at(7, dir / "gone", O_WRONLY | O_APPEND);
    std::filesystem::remove(dir / "gone");
    open_at(8, dir.path(), O_TMPFILE | O_RDWR);
    VERIFY(write(8, "tmp", 3) == 3);
    struct timespec old[2] = {{1, 0}, {1, 0}};
    futimens(5, old);  // so that the copy before the stop is good
  };
  trip.verify = [&] {
    struct stat st;
    VERIFY(fstat(5, &st) == 0 && st.st_nlink == 0 && st.st_size == 1 << 24);
    VERIFY(st.st_blocks * 512 < 8 << 20);
    VERIFY_EQ(offset_of(5), 1000);
    std::string back(big.size(), '\0');
    VERIFY_EQ(pread(6, back.data(), back.size(), 0), static_cast<ssize_t>(big.size()));
    VERIFY(back == big);
    VERIFY(pwrite(5, "W", 1, 0) == 1);
    VERIFY_EQ(read_some(6, 1), "W");
    VERIFY_EQ(write(7, "end", 3), 3);
    VERIFY_EQ(lseek(5, 0, SEEK_END), (1 << 24) + 3);
    VERIFY_EQ(fcntl(6, F_GETFL) & O_ACCMODE, O_RDONLY);
    VERIFY_EQ(offset_of(8), 3);
    lseek(8, 0, SEEK_SET);
    VERIFY_EQ(read_some(8, 10), "tmp");
  };
  trip.run();
}

TEST_P(Files, DeletedFileWrittenBetweenPrepareAndStop) {
  trip.setup = [&] {
    open_at(5, dir / "gone", O_RDWR | O_CREAT);
    std::string big(1 << 20, 'o');
    VERIFY(write(5, big.data(), big.size()) > 0);
    std::filesystem::remove(dir / "gone");
    struct timespec old[2] = {{1, 0}, {1, 0}};
    futimens(5, old);
  };
  trip.before_stop = [&] { VERIFY(pwrite(5, "new", 3, 4096) == 3); };
  trip.verify = [&] {
    char back[3];
    VERIFY(pread(5, back, 3, 4096) == 3 && memcmp(back, "new", 3) == 0);
  };
  trip.run();
}

// Which name is left, and when the other was removed.
TEST_P(Files, RemovedNameOfAFileWithAnother) {
  struct stat before[4];
  trip.setup = [&] {
    for (const char* d : {"tmp", "new", "far", "far/away"}) std::filesystem::create_directory(dir / d);
    const char* const removed[] = {"a", "tmp/mail", "b", "late"};
    const char* const other[] = {"other", "new/mail", "far/away/b", "kept"};
    for (int i = 0; i < 4; ++i) {
      const int fd = open_at(10 + i, dir / removed[i], O_RDWR | O_CREAT);
      VERIFY(write(fd, "before ", 7) == 7);
      std::filesystem::create_hard_link(dir / removed[i], dir / other[i]);
      if (i < 3) std::filesystem::remove(dir / removed[i]);
    }
    open_at(20, "/proc/self/fd/10", O_RDONLY);
  };
  trip.before_stop = [&] { std::filesystem::remove(dir / "late"); };
  trip.verify = [&] {
    for (int fd = 10; fd < 14; ++fd) VERIFY(write(fd, "after", 5) == 5);
    VERIFY_EQ(read_some(20, 20), "before after");
  };
  trip.meanwhile = [&] {
    int i = 0;
    for (const char* name : {"other", "new/mail", "far/away/b", "kept"})
      stat((dir / name).c_str(), &before[i++]);
  };
  trip.run();
  for (const char* name : {"other", "new/mail", "kept"})
    EXPECT_EQ(read_file(dir / name), "before after") << name;
  struct stat now;
  stat((dir / "other").c_str(), &now);
  EXPECT_EQ(now.st_ino, before[0].st_ino);
  // Too far away: a copy, and that is said.
  EXPECT_EQ(read_file(dir / "far/away/b"), "before ");
  ASSERT_EQ(trip.notes.size(), 1u);
  EXPECT_NE(trip.notes[0].find("another name"), std::string::npos) << trip.notes[0];
}

TEST_P(Files, RemovedDeviceAndFifo) {
  trip.setup = [&] {
    mkfifo((dir / "fifo").c_str(), 0600);
    open_at(5, dir / "fifo", O_RDWR);
    VERIFY(write(5, "in it", 5) == 5);
    std::filesystem::remove(dir / "fifo");
    if (mknod((dir / "null").c_str(), S_IFCHR | 0600, makedev(1, 3)) != 0) return;
    if (const int fd = open((dir / "null").c_str(), O_RDWR); fd >= 0) move_to(fd, 6);  // mounted nodev?
    std::filesystem::remove(dir / "null");
  };
  trip.verify = [&] {
    VERIFY_EQ(read_some(5, 10), "in it");
    VERIFY(write(5, "again", 5) == 5);
    if (fcntl(6, F_GETFD) == 0) VERIFY_EQ(write(6, "x", 1), 1);
  };
  trip.run();
  EXPECT_TRUE(trip.notes.empty());
}

TEST_P(Files, GrownFileIsCutAndItsTailKept) {
  const std::string log = dir / "log", read_only = dir / "read-only";
  trip.setup = [&] {
    write_file(log, "at the checkpoint\n");
    write_file(read_only, "data");
    open_at(5, log, O_WRONLY | O_APPEND);
    open_at(6, read_only, O_RDONLY);
  };
  trip.meanwhile = [&] {
    write_file(log, "later\n", true);
    write_file(read_only, "more", true);
  };
  trip.verify = [&] { VERIFY(write(5, "again\n", 6) == 6); };
  trip.run();
  EXPECT_EQ(read_file(log), "at the checkpoint\nagain\n");
  EXPECT_EQ(read_file(read_only), "datamore");
  ASSERT_EQ(trip.lines.size(), 1u);
  EXPECT_NE(trip.lines[0].find("cut back to 18 bytes, the other 6 are in "), std::string::npos)
      << trip.lines[0];
  EXPECT_NE(trip.lines[0].find(".tail-7"), std::string::npos);
}

TEST_P(Files, TailIsCopiedWholeAndNeverOverwritten) {
  const std::string log = dir / "log";
  std::string tail(3'000'000, 't');
  for (size_t i = 0; i < tail.size(); i += 3) tail[i] = static_cast<char>('a' + i % 23);
  std::string name;
  trip.setup = [&] {
    write_file(log, "head");
    open_at(5, log, O_WRONLY);
    struct stat st;
    fstat(5, &st);
    write_file(dir / "inode", std::to_string(st.st_ino));
  };
  trip.meanwhile = [&] {
    write_file(log, tail, true);
    name = trip.images / ("log." + read_file(dir / "inode") + ".tail-7");
    write_file(name, "of an earlier restart");
  };
  trip.run();
  EXPECT_EQ(read_file(log), "head");
  EXPECT_EQ(read_file(name), "of an earlier restart");
  EXPECT_EQ(read_file(name + ".2"), tail);
}

TEST_P(Files, ChangedInPlaceIsSaid) {
  const std::string a = dir / "a", b = dir / "b";
  trip.setup = [&] {
    write_file(a, "0123456789");
    write_file(b, "0123456789");
    open_at(5, a, O_RDWR);
    open_at(6, b, O_RDWR);
    // Times are those of the kernel's last tick: on a quick machine both writes would have the same one.
    const timespec old[2] = {{1, 0}, {1, 0}};
    futimens(5, old);
  };
  trip.meanwhile = [&] { write_file(a, "9876543210"); };
  trip.run();
  ASSERT_EQ(trip.lines.size(), 1u);
  EXPECT_EQ(trip.lines[0].find(a + " was written since the checkpoint"), 0u) << trip.lines[0];
}

TEST_P(Files, StandardOutputInAFileGoesOnInIt) {
  const std::string out = dir / "out";
  trip.setup = [&] {
    open_at(1, out, O_WRONLY | O_CREAT);
    dup2(1, 2);
    VERIFY(write(1, "one\n", 4) == 4);
  };
  trip.after_stop = [&] { VERIFY(write(1, "lost\n", 5) == 5); };
  trip.verify = [&] {
    VERIFY(write(1, "two\n", 4) == 4);
    VERIFY(write(2, "three\n", 6) == 6);
  };
  trip.run();
  EXPECT_EQ(read_file(out), "one\ntwo\nthree\n");
}

TEST_P(Files, MissingFileIsNamed) {
  const std::string a = dir / "a", b = dir / "b";
  trip.setup = [&] {
    write_file(a, "a");
    write_file(b, "b");
    open_at(5, b, O_RDWR);
    open_at(6, a, O_RDONLY);
  };
  trip.meanwhile = [&] {
    write_file(b, "grown", true);
    std::filesystem::remove(a);
  };
  trip.expect_restore_error = true;
  trip.run();
  EXPECT_EQ(trip.restore_error, a + " cannot be opened again (ENOENT): put the file back where it was");
  EXPECT_EQ(read_file(b), "bgrown") << "a file was cut although the restart failed";
}

TEST_P(Files, ShorterFileIsRefused) {
  const std::string a = dir / "a";
  trip.setup = [&] {
    write_file(a, "0123456789");
    open_at(5, a, O_RDWR);
  };
  trip.meanwhile = [&] { write_file(a, "01"); };
  trip.expect_restore_error = true;
  trip.run();
  EXPECT_NE(trip.restore_error.find("has 2 bytes, at the checkpoint it had 10"), std::string::npos)
      << trip.restore_error;
}

TEST_P(Files, AnotherKindOfFileIsRefused) {
  const std::string a = dir / "a";
  trip.setup = [&] {
    write_file(a, "0123456789");
    open_at(5, a, O_RDONLY);
  };
  trip.meanwhile = [&] {
    std::filesystem::remove(a);
    std::filesystem::create_directory(a);
  };
  trip.expect_restore_error = true;
  trip.run();
  EXPECT_NE(trip.restore_error.find("is a directory now, it was a regular file"), std::string::npos)
      << trip.restore_error;
}

TEST_P(Files, DirectoriesDevicesAndPlaces) {
  trip.setup = [&] {
    for (int i = 0; i < 50; ++i) write_file(dir / ("entry" + std::to_string(i)), "");
    open_at(5, dir.path(), O_RDONLY | O_DIRECTORY);
    open_at(6, "/dev/null", O_RDWR);
    open_at(7, "/dev/zero", O_RDONLY | O_CLOEXEC);
    open_at(8, "/dev/urandom", O_RDONLY);
    open_at(9, "/dev/full", O_WRONLY);
    open_at(10, dir / "entry1", O_PATH);
    open_at(11, "/proc/self/status", O_RDONLY);
  };
  trip.verify = [&] {
    VERIFY_EQ(fcntl(5, F_GETFL) & O_DIRECTORY, O_DIRECTORY);
    VERIFY_EQ(read_some(6, 1), "");
    VERIFY_EQ(read_some(7, 1), std::string(1, '\0'));
    VERIFY_EQ(read_some(8, 4).size(), 4u);
    VERIFY(write(9, "x", 1) == -1 && errno == ENOSPC);
    VERIFY_EQ(fcntl(10, F_GETFL) & O_PATH, O_PATH);
    VERIFY_EQ(std::filesystem::read_symlink("/proc/self/fd/10").string(), dir / "entry1");
  };
  // The successor has another pid, so the file of /proc is not there.
  trip.setup = [setup = trip.setup] {
    setup();
    close(11);
  };
  trip.run();
  EXPECT_TRUE(trip.notes.empty());
}

TEST_P(Files, DirectoryIsReadOnFromWhereItWas) {
  trip.setup = [&] {
    for (int i = 0; i < 500; ++i) write_file(dir / ("entry" + std::to_string(i)), "");
    open_at(5, dir.path(), O_RDONLY | O_DIRECTORY);
    char some[1024];
    VERIFY(getdents64(5, some, sizeof(some)) > 0);
    char rest[65536];
    ssize_t n, total = 0;
    off_t here = offset_of(5);
    while ((n = getdents64(5, rest, sizeof(rest))) > 0) total += n;
    lseek(5, here, SEEK_SET);
    write_file(dir / "expected", std::to_string(total));  // made in between, may or may not be listed
  };
  trip.verify = [&] {
    char rest[65536];
    ssize_t n, total = 0;
    while ((n = getdents64(5, rest, sizeof(rest))) > 0) total += n;
    VERIFY(std::abs(total - std::stol(read_file(dir / "expected"))) <= 64);
  };
  trip.run();
}

TEST_P(Files, DeletedDirectory) {
  trip.setup = [&] {
    std::filesystem::create_directory(dir / "sub");
    open_at(5, dir / "sub", O_RDONLY | O_DIRECTORY);
    std::filesystem::remove(dir / "sub");
  };
  trip.verify = [&] {
    struct stat st;
    VERIFY(fstat(5, &st) == 0 && S_ISDIR(st.st_mode) && st.st_nlink == 0);
    VERIFY(openat(5, "x", O_CREAT | O_RDWR, 0600) == -1 && errno == ENOENT);
  };
  trip.run();
}

TEST_P(Files, Locks) {
  const std::string a = dir / "a", b = dir / "b", c = dir / "c";
  trip.setup = [&] {
    for (const auto& f : {a, b, c}) write_file(f, "0123456789");
    open_at(5, a, O_RDWR);
    VERIFY(flock(5, LOCK_EX) == 0);
    open_at(6, b, O_RDWR);
    struct flock range = {F_WRLCK, SEEK_SET, 5, 10, 0};
    VERIFY(fcntl(6, F_SETLK, &range) == 0);
    range = {F_RDLCK, SEEK_SET, 100, 0, 0};
    VERIFY(fcntl(6, F_SETLK, &range) == 0);
    open_at(7, c, O_RDWR);
    range = {F_WRLCK, SEEK_SET, 0, 0, 0};
    VERIFY(fcntl(7, F_OFD_SETLK, &range) == 0);
  };
  trip.verify = [&] {
    int a2 = open(a.c_str(), O_RDWR);
    VERIFY(flock(a2, LOCK_SH | LOCK_NB) == -1);
    int c2 = open(c.c_str(), O_RDWR);
    struct flock range = {F_WRLCK, SEEK_SET, 0, 0, 0};
    VERIFY(fcntl(c2, F_OFD_SETLK, &range) == -1);
    int b2 = open(b.c_str(), O_RDWR);
    range = {F_WRLCK, SEEK_SET, 0, 0, 0};
    VERIFY(fcntl(b2, F_OFD_GETLK, &range) == 0);
    VERIFY_EQ(range.l_type, F_WRLCK);
    VERIFY_EQ(range.l_start, 5);
    VERIFY_EQ(range.l_len, 10);
    range = {F_WRLCK, SEEK_SET, 50, 0, 0};
    VERIFY(fcntl(b2, F_OFD_GETLK, &range) == 0);
    VERIFY_EQ(range.l_type, F_RDLCK);
    VERIFY_EQ(range.l_start, 100);
    VERIFY_EQ(range.l_len, 0);
  };
  trip.run();
  EXPECT_TRUE(trip.lines.empty());
}

}  // namespace
}  // namespace ckpt::test
