// What a terminal shows of work that takes long.
#include "cli/text/progress.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/raii_fd.h"

namespace ckpt::cli {

namespace {

int64_t fake_ns = 0;
constexpr int64_t kSecond = 1'000'000'000;

// Standard error is something else for a while.
class InsteadOfStandardError {
 public:
  explicit InsteadOfStandardError(int fd) : saved_(dup(STDERR_FILENO)) { dup2(fd, STDERR_FILENO); }
  ~InsteadOfStandardError() { dup2(saved_.get(), STDERR_FILENO); }

 private:
  ScopedFd saved_;
};

std::string shown(int fd) {
  std::string text;
  char buffer[4096];
  for (pollfd p{fd, POLLIN, 0}; poll(&p, 1, 0) == 1 && (p.revents & POLLIN) != 0;) {
    const ssize_t n = read(fd, buffer, sizeof(buffer));
    if (n <= 0) break;
    text.append(buffer, static_cast<size_t>(n));
  }
  return text;
}

TEST(ProgressBar, OnATerminalAfterASecond) {
  ScopedFd screen(posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  ASSERT_TRUE(screen.valid());
  ASSERT_EQ(grantpt(screen.get()) | unlockpt(screen.get()), 0);
  ScopedFd terminal(open(ptsname(screen.get()), O_RDWR | O_NOCTTY | O_CLOEXEC));
  ASSERT_TRUE(terminal.valid());
  std::string early, bar, soon, of_unknown_length, end;
  {
    InsteadOfStandardError instead(terminal.get());
    fake_ns = 0;
    Progress progress("verifying x", [] { return fake_ns; });
    fake_ns = kSecond - 1;
    progress.update(1 << 20, 4 << 20);
    early = shown(screen.get());
    fake_ns = kSecond;
    progress.update(1 << 20, 4 << 20);
    bar = shown(screen.get());
    fake_ns++;
    progress.update(2 << 20, 4 << 20);
    soon = shown(screen.get());
    fake_ns += kSecond;
    progress.update(3 << 20, 0);
    of_unknown_length = shown(screen.get());
    progress.clear();
    end = shown(screen.get());
    progress.clear();
  }
  EXPECT_EQ(early, "");
  EXPECT_EQ(bar, "\r\033[Kverifying x  [#######                       ] 1.00 MiB of 4.00 MiB");
  EXPECT_EQ(soon, "");
  EXPECT_EQ(of_unknown_length, "\r\033[Kverifying x  3.00 MiB");
  EXPECT_EQ(end, "\r\033[K");
  EXPECT_EQ(shown(screen.get()), "");
}

TEST(ProgressBar, NowhereElse) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  ScopedFd from(ends[0]), to(ends[1]);
  {
    InsteadOfStandardError instead(to.get());
    fake_ns = 0;
    Progress progress("verifying x", [] { return fake_ns; });
    fake_ns = 10 * kSecond;
    progress.update(1, 2);
  }
  EXPECT_EQ(shown(from.get()), "");
}

}  // namespace
}  // namespace ckpt::cli
