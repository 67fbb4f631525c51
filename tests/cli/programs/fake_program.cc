// Answers ckpt as libckpt_rt would, or wrongly in a chosen way: the program's side of
// base/protocol/control_protocol.h with an ordinary thread, to test the asker alone.
// Usage: fake_program BEHAVIOUR         prints "ready", ends when its standard input does
#include <fcntl.h>
#include <fmt/core.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "base/protocol/control_protocol.h"
#include "base/raii_fd.h"

namespace ckpt {

namespace {

std::string behaviour;
sem_t asked;
uint64_t cookie;

void handler(int, siginfo_t* info, void*) {
  cookie = reinterpret_cast<uint64_t>(info->si_value.sival_ptr);
  sem_post(&asked);
}

// What ckpt looks for in /proc/PID/maps: a mapping of a file with this name.
bool map_library() {
  char directory[] = "/tmp/ckpt-fake.XXXXXX";
  if (mkdtemp(directory) == nullptr) return false;
  std::string path = std::string(directory) + "/libckpt_rt.so";
  ScopedFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  bool mapped = fd.valid() && ftruncate(fd.get(), 4096) == 0 &&
                mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE, fd.get(), 0) != MAP_FAILED;
  unlink(path.c_str());
  rmdir(directory);
  return mapped;
}

int connect_to_asker() {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  auto end = fmt::format_to_n(address.sun_path + 1, sizeof(address.sun_path) - 1, "ckpt_rt.{:016x}", cookie);
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + end.size);
  return connect(fd, reinterpret_cast<sockaddr*>(&address), length) == 0 ? fd : -1;
}

void say(int fd, std::string_view text) { (void)!send(fd, text.data(), text.size(), MSG_NOSIGNAL); }

constexpr std::string_view kCheckpoint =
    "progress 10 100\nimage /tmp/fake.1.00000000.000003.ckpt\nmode realtime\nsequence 3\npause_ns 812000\n"
    "longest_wait_ns 21000\nforced_copies 1234\nsequential_copies 15000\nfaults 1300\nbuffer_waits "
    "17\nbytes_memory 1073741824\n"
    "bytes_written 1073745920\ndurable_ns 1310000000\nthreads 4\nmappings 120\ndescriptors 8\nattempts 1\n"
    "note descriptor 5 is a GPU\nnote another\nfuture_key 7\ndone\n";
constexpr std::string_view kStat =
    "pid 1\nversion 0.1.0\ndirectory /tmp/images\nmode realtime\nmode_reason full userfaultfd\nsignal 60\n"
    "segment 65536\npool 67108864\nincrements 8\nkeep 3\nevery_ns 0\n"
    "setting CKPT_DIR \nsetting CKPT_MODE auto\nin_force CKPT_MODE realtime\nsetting CKPT_KEEP 3\nsetting "
    "CKPT_LATER x\n"
    "checkpoints 2\nfailures 1\nlast_image "
    "/tmp/x.ckpt\nlast_error\n"
    "total_pause_ns 2000000\nlongest_pause_ns 1200000\ndone\n";

void answer() {
  if (behaviour == "silent") return;
  int fd = connect_to_asker();
  if (fd < 0) return;
  ControlHello hello{kControlMagic, kControlVersion, getpid(), 0};
  if (behaviour == "future") hello.version = kControlVersion + 1;
  if (behaviour == "other-pid") hello.pid = 1;
  if (behaviour == "mute") return;  // connected, no hello
  say(fd, {reinterpret_cast<const char*>(&hello), sizeof(hello)});
  ControlRequest request{};
  if (recv(fd, &request, sizeof(request), MSG_WAITALL) != sizeof(request)) {
    close(fd);
    return;
  }
  bool stat = request.operation == static_cast<uint32_t>(ControlOperation::kStat);
  if (behaviour == "terminal") {
    say(fd, "image /tmp/\033[2Jx\ndirectory \033[2J\nmode \033[2J\nnote \033[2J\ndone\n");
  } else if (behaviour == "terminal-error") {
    say(fd, "error 74 \033[2J\n");
  } else if (behaviour == "error") {
    say(fd, "progress 1 2\nerror 74 /images: the disk is full (free some space)\n");
  } else if (behaviour == "bad-error") {
    say(fd, "error what\n");
  } else if (behaviour == "hangs-up") {
    say(fd, "image /tmp/x\nmode real");
  } else if (behaviour == "endless-line") {
    std::string line(1 << 20, 'x');
    say(fd, line);
  } else if (behaviour == "dies") {
    say(fd, "image /tmp/x\n");
    kill(getpid(), SIGKILL);
  } else if (behaviour == "dies-slowly") {
    say(fd, "image /tmp/x\n");
    close(fd);
    usleep(300'000);  // what a busy machine may put between the end of one thread and that of the last
    kill(getpid(), SIGKILL);
  } else if (behaviour == "stalls") {
    say(fd, "image /tmp/x\n");
    return;  // neither an answer nor an end
  } else {
    say(fd, stat ? kStat : kCheckpoint);
  }
  close(fd);
}

void* serve(void*) {
  while (true) {
    if (sem_wait(&asked) == 0) answer();
  }
}

}  // namespace

}  // namespace ckpt

int main(int argc, char** argv) {
  using namespace ckpt;
  behaviour = argc > 1 ? argv[1] : "good";
  if (behaviour != "no-library" && !map_library()) return 71;
  sem_init(&asked, 0, 0);
  pthread_t thread;
  pthread_create(&thread, nullptr, serve, nullptr);
  char byte;
  if (behaviour == "late-handler") {
    fmt::print("ready\n");
    std::fflush(stdout);
    if (read(STDIN_FILENO, &byte, 1) != 1) return 1;
  }
  if (behaviour != "no-handler") {
    struct sigaction action {};
    action.sa_sigaction = handler;
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    const char* number = getenv("CKPT_SIGNAL");
    sigaction(number != nullptr ? std::atoi(number) : kDefaultCheckpointSignal, &action, nullptr);
  }
  if (behaviour == "undumpable") prctl(PR_SET_DUMPABLE, 0);
  fmt::print("ready\n");
  std::fflush(stdout);
  while (read(STDIN_FILENO, &byte, 1) > 0) {
  }
  return 0;
}
