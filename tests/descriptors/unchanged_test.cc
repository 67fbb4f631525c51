#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
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

// As some containers have it: neither comparing nor duplicating descriptors of others is allowed.
void refuse_kcmp_and_getfd() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_kcmp, 1, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_pidfd_getfd, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog filter{5, program};
  VERIFY(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
  VERIFY(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0);
}

TEST_P(Unchanged, WithoutKcmpAndPidfdGetfd) {
  trip.setup = [&] {
    write_file(dir / "a", "0123456789");
    open_at(5, dir / "a", O_RDONLY);
    dup2(5, 6);
    lseek(5, 4, SEEK_SET);
    open_at(7, dir / "a", O_RDONLY);
    int fds[2];
    VERIFY(pipe(fds) == 0);
    move_to(fcntl(fds[1], F_DUPFD, 50), 21);
    close(fds[1]);
    move_to(fds[0], 20);
    VERIFY(write(21, "bytes", 5) == 5);
    open_at(30, dir / "gone", O_RDWR | O_CREAT);
    VERIFY(write(30, "contents", 8) == 8);
    std::filesystem::remove(dir / "gone");
    move_to(socket(AF_INET, SOCK_DGRAM, 0), 40);
    refuse_kcmp_and_getfd();
  };
  trip.verify = [&] {
    lseek(6, 8, SEEK_SET);
    VERIFY_EQ(lseek(5, 0, SEEK_CUR), 8);
    VERIFY_EQ(lseek(7, 0, SEEK_CUR), 0);
    VERIFY_EQ(read_some(20, 100), "bytes");
    VERIFY_EQ(lseek(30, 0, SEEK_SET), 0);
    VERIFY_EQ(read_some(30, 100), "contents");
    VERIFY_EQ(read_some(40, 100), "");
  };
  trip.run();
  ASSERT_EQ(trip.notes.size(), 2u);
  EXPECT_NE(trip.notes[0].find("the kernel refuses kcmp(2)"), std::string::npos) << trip.notes[0];
  EXPECT_EQ(trip.notes[1].find("descriptor 40 (socket:["), 0u) << trip.notes[1];
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
