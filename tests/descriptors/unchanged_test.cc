#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "tests/descriptors/harness.h"

// The capture leaves no trace in the program, while it runs and after.

namespace ckpt::test {
namespace {

class Unchanged : public testing::TestWithParam<bool> {
 protected:
  Unchanged() { trip.executor = GetParam(); }
  ScratchDirectory dir;
  RoundTrip trip;
};
INSTANTIATE_TEST_SUITE_P(Sampled, Unchanged, testing::Values(true, false), how_sampled);

// Another process asks, because a process never conflicts with its own locks.
bool locked_for_others(const std::string& path) {
  pid_t child = fork();
  if (child == 0) {
    int fd = open(path.c_str(), O_RDWR);
    struct flock range = {F_WRLCK, SEEK_SET, 0, 0, 0};
    _exit(fcntl(fd, F_SETLK, &range) == -1 ? 1 : 0);
  }
  int status;
  waitpid(child, &status, 0);
  return WEXITSTATUS(status) == 1;
}

TEST_P(Unchanged, ProcessLocksAndOffsetsSurviveTheCapture) {
  const std::string a = dir / "a";
  trip.setup = [&] {
    write_file(a, "0123456789");
    open_at(5, a, O_RDWR);
    lseek(5, 3, SEEK_SET);
    struct flock range = {F_WRLCK, SEEK_SET, 0, 0, 0};
    VERIFY(fcntl(5, F_SETLK, &range) == 0);
    VERIFY(locked_for_others(a));
  };
  trip.before_stop = [&] { VERIFY(locked_for_others(a)); };
  trip.after_stop = [&] {
    VERIFY(locked_for_others(a));
    VERIFY_EQ(lseek(5, 0, SEEK_CUR), 3);
  };
  trip.verify = [&] { VERIFY(locked_for_others(a)); };
  trip.run();
}

// While the program runs, closing is closing: an end of file arrives, a lock goes, a file can be run.
TEST_P(Unchanged, NothingIsHeldBetweenPrepareAndStop) {
  const std::string a = dir / "a", program = dir / "true";
  trip.setup = [&] {
    int fds[2];
    VERIFY(pipe(fds) == 0);
    fds[1] = fcntl(fds[1], F_DUPFD, 50);
    move_to(fds[0], 5);
    close_range(6, 49, 0);
    move_to(fds[1], 6);
    close(4);
    close(3);
    open_at(7, a, O_RDWR | O_CREAT);
    VERIFY(flock(7, LOCK_EX) == 0);
    std::filesystem::copy_file("/bin/true", program);
    open_at(8, program, O_RDWR);
  };
  trip.before_stop = [&] {
    close(6);
    pollfd p{5, POLLIN, 0};
    VERIFY(poll(&p, 1, 0) == 1 && (p.revents & POLLHUP) != 0);
    close(7);
    int again = open(a.c_str(), O_RDWR);
    VERIFY(flock(again, LOCK_EX | LOCK_NB) == 0);
    close(again);
    close(8);
    pid_t child = fork();
    if (child == 0) {
      execl(program.c_str(), "true", nullptr);
      _exit(99);
    }
    int status;
    waitpid(child, &status, 0);
    VERIFY_EQ(WEXITSTATUS(status), 0);
  };
  trip.run();
}

TEST_P(Unchanged, AccessTimeOfNamedFilesStays) {
  const std::string a = dir / "a";
  struct stat before, after;
  trip.setup = [&] {
    write_file(a, "0123456789");
    open_at(5, a, O_RDWR);
    struct timespec old[2] = {{1000, 0}, {1000, 0}};
    futimens(5, old);
    fstat(5, &before);
  };
  trip.after_stop = [&] {
    fstat(5, &after);
    VERIFY_EQ(before.st_atim.tv_sec, after.st_atim.tv_sec);
    VERIFY_EQ(before.st_ctim.tv_nsec, after.st_ctim.tv_nsec);
  };
  trip.run();
}

}  // namespace
}  // namespace ckpt::test
