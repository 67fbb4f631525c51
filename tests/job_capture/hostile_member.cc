// A member of another user in a job of root's, with a program of its own in place of the library: it answers
// the coordinator, and says what no member would. Arguments: what it does (HOW below), the library's file,
// which it maps.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

#include "base/protocol/control_protocol.h"
#include "job/format/wire.h"

using namespace ckpt;
using namespace ckpt::job;

namespace {

std::atomic<uint64_t> cookie{0};
void on_request(int, siginfo_t* info, void*) {
  cookie = reinterpret_cast<uint64_t>(info->si_value.sival_ptr);
}

int connect_to_coordinator(uint64_t to) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const int length = snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1, "ckpt_rt.%016llx",
                              static_cast<unsigned long long>(to));
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<size_t>(length));
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), size) == 0) return fd;
  close(fd);
  return -1;
}

class Talk {
 public:
  explicit Talk(int fd) : fd_(fd) {}
  bool get(void* to, size_t bytes) {
    return recv(fd_, to, bytes, MSG_WAITALL) == static_cast<ssize_t>(bytes);
  }
  void put(const void* from, size_t bytes) { (void)send(fd_, from, bytes, MSG_NOSIGNAL); }
  void hello() {
    const ControlHello hello{kControlMagic, kControlVersion, getpid(), 0};
    put(&hello, sizeof(hello));
  }
  void say(Step step, const void* payload = nullptr, size_t bytes = 0) {
    const MessageHead head{static_cast<uint32_t>(step), static_cast<uint32_t>(bytes)};
    put(&head, sizeof(head));
    if (bytes != 0) put(payload, bytes);
  }
  void hear() {
    MessageHead head{};
    if (!get(&head, sizeof(head))) return;
    std::vector<char> payload(head.bytes);
    if (head.bytes != 0) get(payload.data(), payload.size());
  }

 private:
  const int fd_;
};

OpenFileKey key_of(int fd, int tid, uint32_t number) {
  struct stat st {};
  fstat(fd, &st);
  OpenFileKey key{};
  key.open_file = number;
  key.fd = fd;
  key.tid = tid;
  key.device = st.st_dev;
  key.inode = st.st_ino;
  return key;
}

}  // namespace

int main(int, char** argv) {
  const std::string_view how = argv[1];
  const int library = open(argv[2], O_RDONLY);
  if (mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE, library, 0) == MAP_FAILED) return 1;
  struct sigaction action {};
  action.sa_sigaction = on_request;
  action.sa_flags = SA_SIGINFO;
  for (int signal = SIGRTMIN; signal <= SIGRTMAX; ++signal) sigaction(signal, &action, nullptr);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  puts("up");
  fflush(stdout);
  for (;;) {
    uint64_t to;
    while ((to = cookie.exchange(0)) == 0) usleep(500);
    if (how == "silent") {  // connects, again and again, and says nothing
      for (int i = 0; i < 1000; ++i) connect_to_coordinator(to);
      continue;
    }
    const int fd = connect_to_coordinator(to);
    if (fd < 0) continue;
    Talk talk(fd);
    talk.hello();
    ControlRequest request{};
    JoinRequest join{};
    if (!talk.get(&request, sizeof(request)) || how == "leaves" || !talk.get(&join, sizeof(join))) {
      close(fd);
      continue;
    }
    talk.say(Step::kPrepared);
    talk.hear();
    const Held held{};
    talk.say(Step::kHeld, &held, sizeof(held));
    talk.hear();
    talk.say(Step::kStanding);
    talk.hear();
    struct {
      Standing facts;
      OpenFileKey keys[2];
    } sampled{};
    sampled.facts.began_ns = 1;
    sampled.facts.tid = getpid();
    sampled.keys[0] = key_of(library, 0, 1);
    sampled.keys[1] = key_of(STDOUT_FILENO, 0, 2);
    if (how == "twice") sampled.keys[1].fd = library;
    if (how == "claims") sampled.keys[1].tid = getppid();
    talk.say(Step::kSampled, &sampled, sizeof(sampled));
    talk.hear();
    if (how == "skips") talk.say(Step::kReconnected);
    Failed failed{};
    failed.code = 70;
    strcpy(failed.text, "heard all that it said");
    if (how != "skips") talk.say(Step::kFailed, &failed, sizeof(failed));
    close(fd);
  }
}
