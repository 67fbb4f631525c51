#include <errno.h>
#include <fcntl.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "libckpt_rt/capture/descriptors/noted/watch_names.h"
#include "tests/descriptors/harness.h"

namespace ckpt::test {
namespace {

class Inotify : public testing::TestWithParam<bool> {
 protected:
  Inotify() { trip.executor = GetParam(); }
  ScratchDirectory dir;
  RoundTrip trip;
};
INSTANTIATE_TEST_SUITE_P(Sampled, Inotify, testing::Values(true, false), how_sampled);

// As the interposed call does it.
int watch(int fd, const std::string& path, uint32_t mask) {
  const int number = inotify_add_watch(fd, path.c_str(), mask);
  if (number >= 0) watch_names::note(path.c_str(), mask);
  return number;
}

// "watch:mask:name", one after another; what there is, in one read.
std::string events(int fd) {
  alignas(inotify_event) char bytes[4096];
  const ssize_t n = read(fd, bytes, sizeof(bytes));
  if (n < 0) return fmt::format("errno {}", errno);
  std::string text;
  for (ssize_t at = 0; at < n;) {
    const auto& event = *reinterpret_cast<const inotify_event*>(bytes + at);
    text += fmt::format("{}{}:{:x}:{}", text.empty() ? "" : " ", event.wd, event.mask,
                        event.len != 0 ? event.name : "");
    at += static_cast<ssize_t>(sizeof(event) + event.len);
  }
  return text;
}

TEST_P(Inotify, WatchesKeepTheirNumbers) {
  const std::string a = dir / "a", b = dir / "b", link = dir / "link";
  trip.setup = [&] {
    write_file(a, "a");
    write_file(b, "b");
    VERIFY(symlink("a", link.c_str()) == 0);
    move_to(inotify_init1(IN_NONBLOCK | IN_CLOEXEC), 5);
    dup2(5, 6);
    move_to(inotify_init1(0), 7);  // without a watch
    VERIFY_EQ(watch(5, a, IN_MODIFY | IN_CLOSE_WRITE), 1);
    VERIFY_EQ(watch(5, b, IN_ATTRIB), 2);
    VERIFY_EQ(watch(5, dir.path(), IN_CREATE | IN_DELETE | IN_ONLYDIR), 3);
    VERIFY_EQ(watch(6, link, IN_DONT_FOLLOW | IN_DELETE_SELF), 4);
    VERIFY(inotify_rm_watch(5, 2) == 0);
  };
  trip.before_stop = [&] {
    for (int n = 5; n < 2000; ++n) {
      VERIFY_EQ(watch(5, b, IN_OPEN), n);
      VERIFY(inotify_rm_watch(5, n) == 0);
    }
    while (events(5) != fmt::format("errno {}", EAGAIN)) {
    }
    VERIFY_EQ(watch(5, b, IN_OPEN | IN_ONESHOT), 2000);
  };
  trip.verify = [&] {
    VERIFY_EQ(fcntl(5, F_GETFL) & O_NONBLOCK, O_NONBLOCK);
    VERIFY_EQ(fcntl(7, F_GETFL) & O_NONBLOCK, 0);
    VERIFY_EQ(events(5), fmt::format("errno {}", EAGAIN));
    const int fd = open(a.c_str(), O_WRONLY | O_APPEND);
    VERIFY(write(fd, "more", 4) == 4);
    close(fd);
    write_file(dir / "c", "c");
    VERIFY_EQ(events(6), "1:2: 1:8: 3:100:c");
    chmod(b.c_str(), 0640);  // that watch was taken off
    VERIFY_EQ(events(5), fmt::format("errno {}", EAGAIN));
    close(open(b.c_str(), O_RDONLY));
    VERIFY_EQ(events(5), "2000:20: 2000:8000:");
    unlink(link.c_str());
    const std::string removed = events(5);  // kernels differ in their order
    VERIFY(removed.find("3:200:link") != removed.npos && removed.find("4:400: 4:8000:") != removed.npos);
    VERIFY(inotify_add_watch(5, b.c_str(), IN_OPEN) > 2000);
  };
  trip.run();
  EXPECT_TRUE(trip.notes.empty()) << trip.notes[0];
  EXPECT_TRUE(trip.lines.empty()) << trip.lines[0];
}

TEST_P(Inotify, AFileThatIsGoneIsSaid) {
  const std::string a = dir / "a", b = dir / "b";
  trip.setup = [&] {
    write_file(a, "a");
    write_file(b, "b");
    move_to(inotify_init1(IN_NONBLOCK), 5);
    VERIFY_EQ(watch(5, a, IN_MODIFY), 1);
    VERIFY_EQ(watch(5, b, IN_MODIFY), 2);
  };
  trip.meanwhile = [&] { unlink(a.c_str()); };
  trip.verify = [&] {
    VERIFY_EQ(events(5), "1:8000:");
    VERIFY(truncate(b.c_str(), 0) == 0);
    VERIFY_EQ(events(5), "2:2:");
  };
  trip.run();
  ASSERT_EQ(trip.lines.size(), 1u);
  EXPECT_NE(trip.lines[0].find(a + " cannot be watched (ENOENT)"), std::string::npos) << trip.lines[0];
}

// Put on by a system call of the program's own, which nobody noted, or renamed since: the handle leads to it.
// That needs rights.
TEST_P(Inotify, NamesThatNobodyNoted) {
  if (geteuid() != 0) GTEST_SKIP() << "open_by_handle_at(2) needs CAP_DAC_READ_SEARCH";
  const std::string a = dir / "a", b = dir / "b", new_b = dir / "new b";
  trip.setup = [&] {
    write_file(a, "a");
    write_file(b, "b");
    move_to(inotify_init1(IN_NONBLOCK), 5);
    VERIFY_EQ(inotify_add_watch(5, a.c_str(), IN_MODIFY), 1);
    VERIFY_EQ(watch(5, b, IN_MODIFY), 2);
    VERIFY(rename(b.c_str(), new_b.c_str()) == 0);
  };
  trip.verify = [&] {
    VERIFY(truncate(a.c_str(), 0) == 0);
    VERIFY(truncate(new_b.c_str(), 0) == 0);
    VERIFY_EQ(events(5), "1:2: 2:2:");
  };
  trip.run();
  EXPECT_TRUE(trip.notes.empty()) << trip.notes[0];
}

TEST_P(Inotify, EventsThatWaitAreLostAndSaid) {
  const std::string a = dir / "a";
  trip.setup = [&] {
    write_file(a, "a");
    move_to(inotify_init1(IN_NONBLOCK), 5);
    VERIFY_EQ(watch(5, a, IN_MODIFY), 1);
  };
  trip.before_stop = [&] { VERIFY(truncate(a.c_str(), 0) == 0); };
  trip.after_stop = [&] { VERIFY_EQ(events(5), "1:2:"); };  // the program has them
  trip.verify = [&] {
    VERIFY_EQ(events(5), "-1:4000:");  // IN_Q_OVERFLOW
    VERIFY(truncate(a.c_str(), 0) == 0);
    VERIFY_EQ(events(5), "1:2:");
  };
  trip.run();
  ASSERT_EQ(trip.notes.size(), 1u);
  EXPECT_NE(trip.notes[0].find("descriptor 5 (inotify): events wait in it"), std::string::npos)
      << trip.notes[0];
}

std::string last_name(const std::string& path) {
  struct stat st;
  EXPECT_EQ(stat(path.c_str(), &st), 0);
  uint32_t at = 0;
  std::string last = "none";
  while (const char* name = watch_names::next(at, st.st_ino)) last = name;
  return last;
}

TEST(WatchNames, AreAbsoluteAndTheLatest) {
  ScratchDirectory dir;
  const std::string a = dir / "a", b = dir / "b";
  write_file(a, "a");
  EXPECT_EQ(last_name(a), "none");
  watch_names::note(a.c_str(), IN_MODIFY);
  watch_names::note(a.c_str(), IN_MODIFY);
  EXPECT_EQ(last_name(a), a);
  ASSERT_EQ(rename(a.c_str(), b.c_str()), 0);
  char before[4096];
  ASSERT_NE(getcwd(before, sizeof(before)), nullptr);
  ASSERT_EQ(chdir(dir.path().c_str()), 0);
  watch_names::note("b", IN_MODIFY);
  watch_names::note("no such file", IN_MODIFY);
  ASSERT_EQ(chdir(before), 0);
  EXPECT_EQ(last_name(b), b);
}

}  // namespace
}  // namespace ckpt::test
