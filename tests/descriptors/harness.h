// A round trip of descriptors between two processes, with any step of it in between for the test.
//
//   subject    a forked child: setup() opens things; a thread of it with its own descriptor table
//              captures them, before_stop() happening between the two halves of the capture
//   (subject is gone: meanwhile() in the test, as the world goes on after a checkpoint)
//   successor  another forked child: descriptors restored, verify() looks at them
//
// What goes wrong in a child is text for the test, see VERIFY.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>

#include <functional>
#include <string>
#include <vector>

#include "restart/descriptors/descriptors.h"

namespace ckpt::test {

// In a child: remembers the failure and goes on.
void report_failure(const char* file, int line, const std::string& text);
#define VERIFY(condition)                                                           \
  do {                                                                              \
    if (!(condition)) ::ckpt::test::report_failure(__FILE__, __LINE__, #condition); \
  } while (0)
#define VERIFY_EQ(a, b)                                                                            \
  do {                                                                                             \
    auto verify_a = (a);                                                                           \
    auto verify_b = (b);                                                                           \
    if (!(verify_a == verify_b)) {                                                                 \
      ::ckpt::test::report_failure(__FILE__, __LINE__,                                             \
                                   fmt::format("{} is {}, {} is {}", #a, verify_a, #b, verify_b)); \
    }                                                                                              \
  } while (0)

// A directory of the test's own, removed at the end.
class ScratchDirectory {
 public:
  ScratchDirectory();
  ScratchDirectory(const ScratchDirectory&) = delete;
  ~ScratchDirectory();
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

struct RoundTrip {
  std::function<void()> setup;
  std::function<void()> before_stop;     // in the subject, between prepare and recheck_stopped
  std::function<void()> after_stop;      // in the subject, after the capture
  std::function<void()> meanwhile;       // in the test, before the restart
  std::function<void()> before_restore;  // in the successor: its 0, 1, 2
  std::function<void()> verify;
  bool executor = true;  // sampled by a thread of the subject; false: from outside
  std::set<uint64_t> mapped_objects = {};

  ScratchDirectory images = {};  // the image directory, for tails

  // Of the run:
  std::string capture_error, restore_error;
  std::vector<std::string> notes;   // of the capture
  std::vector<std::string> lines;   // of the restore
  std::vector<OpenFileKind> kinds;  // by open file
  RestoredDescriptors restored;

  void run();  // fails the test when a child fails, unless the matching expect_ is set
  bool expect_restore_error = false;
};

// Names of the two ways of sampling, for tests with that parameter.
inline std::string how_sampled(const testing::TestParamInfo<bool>& parameter) {
  return parameter.param ? "InProgram" : "FromOutside";
}

void write_file(const std::string& path, const std::string& bytes, bool append = false);
std::string read_file(const std::string& path);
// Opens at a certain number; aborts the child when it cannot.
int open_at(int fd, const std::string& path, int flags, int mode = 0600);
int move_to(int from, int to);
std::string read_some(int fd, size_t n);
// Returns when there is something to read, or to accept; false: there is nothing after a minute. What was
// sent over the loopback need not be there when send(2) returns: the kernel may leave it to a thread of its
// own.
bool await_input(int fd);
std::vector<int> open_descriptors();
// 127.0.0.1, with this port.
sockaddr_in loopback(uint16_t port);
// IPv4: what getpeername or getsockname says; a socket that listens on the loopback; both ends of a
// connection to it.
sockaddr_in ends_of(int fd, bool peer);
void listening_tcp(int fd);
void connected_tcp(int client, int server, int listener);

}  // namespace ckpt::test
