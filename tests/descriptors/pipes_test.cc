#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <termios.h>
#include <unistd.h>

#include "tests/descriptors/harness.h"

namespace ckpt::test {
namespace {

class Pipes : public testing::TestWithParam<bool> {
 protected:
  Pipes() { trip.executor = GetParam(); }
  ScratchDirectory dir;
  RoundTrip trip;
};
INSTANTIATE_TEST_SUITE_P(Sampled, Pipes, testing::Values(true, false), how_sampled);

void pipe_at(int read_end, int write_end, int flags = 0) {
  int fds[2];
  VERIFY(pipe2(fds, flags) == 0);
  fds[1] = fcntl(fds[1], F_DUPFD, 100);  // out of the way of read_end
  close(write_end);
  move_to(fds[0], read_end);
  move_to(fds[1], write_end);
  for (int fd : open_descriptors()) {
    if (fd > 2 && fd < 5) close(fd);
  }
}

TEST_P(Pipes, BytesStayInThem) {
  trip.setup = [&] {
    pipe_at(5, 6, O_NONBLOCK);
    VERIFY(write(6, "hello ", 6) == 6);
    VERIFY(write(6, "world", 5) == 5);
    dup2(6, 9);
    fcntl(9, F_SETFD, FD_CLOEXEC);
  };
  trip.after_stop = [&] {
    VERIFY_EQ(read_some(5, 100), "hello world");  // the capture took nothing
    VERIFY_EQ(read_some(5, 100), fmt::format("errno {}", EAGAIN));
  };
  trip.verify = [&] {
    VERIFY_EQ(read_some(5, 100), "hello world");
    VERIFY_EQ(fcntl(5, F_GETFL) & (O_ACCMODE | O_NONBLOCK), O_RDONLY | O_NONBLOCK);
    VERIFY_EQ(fcntl(6, F_GETFL) & (O_ACCMODE | O_NONBLOCK), O_WRONLY | O_NONBLOCK);
    VERIFY_EQ(fcntl(9, F_GETFD), FD_CLOEXEC);
    VERIFY(write(9, "x", 1) == 1);
    VERIFY_EQ(read_some(5, 100), "x");
    close(6);
    VERIFY_EQ(read_some(5, 100), fmt::format("errno {}", EAGAIN));
    close(9);
    VERIFY_EQ(read_some(5, 100), "");  // no other write end is left anywhere
  };
  trip.run();
  EXPECT_TRUE(trip.notes.empty());
}

TEST_P(Pipes, FullAndLarge) {
  std::string bytes(1 << 20, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 31 + i / 257);
  trip.setup = [&] {
    pipe_at(5, 6, O_NONBLOCK);
    VERIFY(fcntl(6, F_SETPIPE_SZ, 1 << 20) == 1 << 20);
    VERIFY(write(6, bytes.data(), bytes.size()) == 1 << 20);
    pipe_at(7, 8, O_NONBLOCK);  // many small writes, read in part
    for (int i = 0; i < 5000; ++i) VERIFY(write(8, "abc", 3) == 3);
    read_some(7, 4000);
  };
  trip.verify = [&] {
    VERIFY_EQ(fcntl(5, F_GETPIPE_SZ), 1 << 20);
    std::string all;
    while (all.size() < bytes.size()) {
      std::string some = read_some(5, bytes.size());
      if (some.empty() || some.starts_with("errno")) break;
      all += some;
    }
    VERIFY(all == bytes);
    VERIFY_EQ(read_some(7, 20000).size(), 11000u);
  };
  trip.run();
}

TEST_P(Pipes, PacketsKeepTheirBoundaries) {
  trip.setup = [&] {
    pipe_at(5, 6, O_DIRECT | O_NONBLOCK);
    VERIFY(write(6, "first", 5) == 5);
    VERIFY(write(6, "second one", 10) == 10);
    VERIFY(write(6, "3", 1) == 1);
  };
  trip.verify = [&] {
    VERIFY_EQ(read_some(5, 100), "first");
    VERIFY_EQ(read_some(5, 3), "sec");  // the rest of a packet is thrown away
    VERIFY_EQ(read_some(5, 100), "3");
    VERIFY(write(6, "ab", 2) == 2 && write(6, "cd", 2) == 2);
    VERIFY_EQ(read_some(5, 100), "ab");
  };
  trip.run();
}

TEST_P(Pipes, FilledBetweenPrepareAndStop) {
  trip.setup = [&] { pipe_at(5, 6); };
  trip.before_stop = [&] {
    VERIFY(write(6, "late", 4) == 4);
    int old_read = fcntl(5, F_DUPFD, 50);
    pipe_at(7, 8);
    VERIFY(write(8, "new pipe", 8) == 8);
    close(old_read);
  };
  trip.verify = [&] {
    VERIFY_EQ(read_some(5, 100), "late");
    VERIFY_EQ(read_some(7, 100), "new pipe");
  };
  trip.run();
}

TEST_P(Pipes, OneEndOnlyGivesErrors) {
  pid_t keeper = 0;
  trip.setup = [&] {
    pipe_at(5, 6);
    keeper = fork();
    if (keeper == 0) {
      pause();
      _exit(0);
    }
    VERIFY(write(6, "lost", 4) == 4);
    close(6);
    move_to(static_cast<int>(syscall(SYS_userfaultfd, UFFD_USER_MODE_ONLY)), 8);
  };
  trip.after_stop = [&] { kill(keeper, SIGKILL); };
  trip.verify = [&] {
    signal(SIGPIPE, SIG_IGN);
    VERIFY_EQ(read_some(5, 10), "");
    VERIFY_EQ(read_some(8, 10), "");
    VERIFY(write(8, "x", 1) == -1 && errno == EPIPE);
  };
  trip.run();
  ASSERT_EQ(trip.notes.size(), 3u);
  EXPECT_NE(trip.notes[0].find("descriptor 5 (pipe:["), std::string::npos) << trip.notes[0];
  EXPECT_NE(trip.notes[0].find("4 bytes"), std::string::npos) << trip.notes[0];
}

TEST_P(Pipes, Fifos) {
  const std::string fifo = dir / "fifo";
  trip.setup = [&] {
    mkfifo(fifo.c_str(), 0600);
    open_at(5, fifo, O_RDONLY | O_NONBLOCK);
    open_at(6, fifo, O_WRONLY);
    VERIFY(write(6, "queued", 6) == 6);
  };
  trip.verify = [&] {
    VERIFY_EQ(read_some(5, 100), "queued");
    VERIFY_EQ(read_some(5, 100), fmt::format("errno {}", EAGAIN));
    VERIFY_EQ(fcntl(6, F_GETFL) & O_NONBLOCK, 0);
    close(6);
    VERIFY_EQ(read_some(5, 100), "");
  };
  trip.run();
}

// The writer has gone, or lives on elsewhere: the bytes belong to the reader.
TEST_P(Pipes, BytesOfAFifoThatIsOnlyRead) {
  const std::string fifo = dir / "fifo";
  trip.setup = [&] {
    mkfifo(fifo.c_str(), 0600);
    open_at(5, fifo, O_RDONLY | O_NONBLOCK);
    const int writer = open(fifo.c_str(), O_WRONLY);
    VERIFY(write(writer, "queued", 6) == 6);
    close(writer);
  };
  trip.verify = [&] {
    VERIFY_EQ(read_some(5, 100), "queued");
    VERIFY_EQ(read_some(5, 100), "");
  };
  trip.run();
  EXPECT_TRUE(trip.notes.empty());
}

TEST_P(Pipes, BytesOfAPipeThatNobodyWritesToAnyMore) {
  trip.setup = [&] {
    pipe_at(5, 6);
    VERIFY(write(6, "the last", 8) == 8);
    close(6);
  };
  trip.verify = [&] {
    VERIFY_EQ(read_some(5, 3), "the");
    VERIFY_EQ(read_some(5, 100), " last");
    VERIFY_EQ(read_some(5, 100), "");
  };
  trip.run();
  EXPECT_TRUE(trip.notes.empty());
}

TEST_P(Pipes, StandardStreamsAreTheRestarters) {
  const std::string in = dir / "in", out = dir / "out";
  trip.setup = [] {
    int fds[2], sync[2], pair[2];
    VERIFY(pipe(fds) == 0 && pipe(sync) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    if (fork() == 0) {  // has the other ends
      close(fds[1]);
      close(sync[1]);
      close(pair[0]);
      char c;
      VERIFY(read(sync[0], &c, 1) == 0);
      _exit(0);
    }
    close(fds[0]);
    close(sync[0]);
    move_to(sync[1], 40);  // cannot be saved
    move_to(fds[1], 1);
    dup2(1, 47);
    open_at(48, "/proc/self/fd/1", O_WRONLY);
    close(pair[1]);
    move_to(pair[0], 0);
  };
  trip.before_restore = [&] {
    write_file(in, "input");
    open_at(0, in, O_RDONLY);
    open_at(1, out, O_WRONLY | O_CREAT);
  };
  trip.verify = [&] {
    VERIFY_EQ(read_some(0, 100), "input");
    VERIFY(write(1, "a", 1) == 1);
    VERIFY(write(47, "b", 1) == 1);
    VERIFY(write(48, "c", 1) == 1);
  };
  trip.run();
  EXPECT_EQ(read_file(out), "abc");
  EXPECT_EQ(trip.notes.size(), 1u);
}

TEST_P(Pipes, TerminalsAreTheRestarters) {
  const std::string out = dir / "out";
  trip.setup = [&] {
    int master, slave;
    VERIFY(openpty(&master, &slave, nullptr, nullptr, nullptr) == 0);
    dup2(slave, 0);
    dup2(slave, 1);
    dup2(slave, 2);
    close(master);
    if (slave > 2) close(slave);
    dup2(1, 9);
  };
  trip.before_restore = [&] {
    open_at(1, out, O_WRONLY | O_CREAT);
    close(0);
  };
  trip.verify = [&] {
    VERIFY(write(1, "a", 1) == 1);
    VERIFY(write(9, "b", 1) == 1);
    VERIFY_EQ(read_some(0, 1), "");
  };
  trip.run();
  EXPECT_EQ(read_file(out), "ab");
  EXPECT_EQ(trip.kinds.size(), 1u);
}

// The terminal is opened at the lowest free number, which may be the number that it is to have.
TEST_P(Pipes, ATerminalAtTheLowestNumber) {
  trip.setup = [&] {
    int master, slave;
    VERIFY(openpty(&master, &slave, nullptr, nullptr, nullptr) == 0);
    for (int fd = 0; fd < 3; ++fd) open_at(fd, "/dev/null", O_RDWR);
    dup2(slave, 20);
    close(master);
    close(slave);
    dup2(20, 3);
    close(20);
  };
  trip.verify = [&] { VERIFY(fcntl(3, F_GETFD) == 0); };
  trip.run();
  EXPECT_TRUE(trip.restore_error.empty()) << trip.restore_error;
}

// What waits to be read from a terminal cannot be saved, and is said also where poll tells no reader of it
// (fewer bytes than the reader wants at once).
TEST_P(Pipes, InputOfATerminalThatIsNotReadYet) {
  const auto notes_of = [&](bool lines, int at_once, const std::string& typed) {
    RoundTrip one;
    one.executor = GetParam();
    one.setup = [=] {
      int master, slave;
      VERIFY(openpty(&master, &slave, nullptr, nullptr, nullptr) == 0);
      struct termios settings {};
      VERIFY(tcgetattr(slave, &settings) == 0);
      settings.c_lflag &= ~static_cast<tcflag_t>(ECHO | (lines ? 0 : ICANON));
      settings.c_cc[VMIN] = static_cast<cc_t>(lines ? settings.c_cc[VMIN] : at_once);
      VERIFY(tcsetattr(slave, TCSANOW, &settings) == 0);
      VERIFY(write(master, typed.data(), typed.size()) == static_cast<ssize_t>(typed.size()));
    };
    one.run();
    std::string said;
    for (const std::string& note : one.notes) said += note;
    return said;
  };
  EXPECT_EQ(notes_of(false, 3, ""), "");
  EXPECT_NE(notes_of(false, 1, "ab").find("is not read yet"), std::string::npos);
  EXPECT_NE(notes_of(false, 3, "ab").find("is not read yet"), std::string::npos);
  EXPECT_EQ(notes_of(true, 0, ""), "");
  EXPECT_NE(notes_of(true, 0, "ab\n").find("is not read yet"), std::string::npos);
  EXPECT_NE(notes_of(true, 0, "\4").find("cannot be seen, for an end of input (Ctrl-D) waits"),
            std::string::npos);
  EXPECT_NE(notes_of(true, 0, "ab\n\4").find("is not read yet"), std::string::npos);
}

// As script(1) has it below, whose own input has ended: a line without bytes, of which FIONREAD tells
// nothing.
TEST_P(Pipes, EndOfInputOfATerminalThatIsNotReadYet) {
  constexpr int kMaster = 20, kSlave = 21;
  trip.setup = [&] {
    int master, slave;
    VERIFY(openpty(&master, &slave, nullptr, nullptr, nullptr) == 0);
    dup2(master, kMaster);
    dup2(slave, kSlave);
    close(master);
    close(slave);
    VERIFY(write(kMaster, "\4", 1) == 1);
  };
  trip.verify = [&] {
    char byte = 0;
    VERIFY(fcntl(kSlave, F_SETFL, O_NONBLOCK) == 0 && fcntl(kMaster, F_SETFL, O_NONBLOCK) == 0);
    VERIFY(read(kSlave, &byte, 1) == 0);
    VERIFY(read(kSlave, &byte, 1) == -1 && errno == EAGAIN);
    VERIFY(read(kMaster, &byte, 1) == -1 && errno == EAGAIN);
  };
  trip.run();
  EXPECT_TRUE(trip.restore_error.empty()) << trip.restore_error;
  ASSERT_EQ(trip.notes.size(), 1u);  // of what may have been begun behind it
  EXPECT_NE(trip.notes[0].find("an end of input (Ctrl-D) waits there"), std::string::npos);
}

}  // namespace
}  // namespace ckpt::test
