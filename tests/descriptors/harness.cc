#include "tests/descriptors/harness.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "base/raii_fd.h"
#include "image/write/meta_writer.h"
#include "libckpt_rt/capture/descriptors/descriptors.h"

namespace ckpt::test {
namespace {

// The successor wants the ports that the subject had. Meanwhile the kernel may give them to any other process
// of the machine: in a network of its own the test meets nobody else. Without the right to one it shares that
// of all.
class OwnNetwork final : public testing::Environment {
  void SetUp() override {
    if (unshare(CLONE_NEWNET) != 0) return;
    ScopedFd control(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    ifreq loopback{};
    std::strcpy(loopback.ifr_name, "lo");
    ASSERT_EQ(ioctl(control.get(), SIOCGIFFLAGS, &loopback), 0);
    loopback.ifr_flags = static_cast<short>(loopback.ifr_flags | IFF_UP);
    ASSERT_EQ(ioctl(control.get(), SIOCSIFFLAGS, &loopback), 0);
  }
};
const auto* const own_network = testing::AddGlobalTestEnvironment(new OwnNetwork);

constexpr size_t kSharedBytes = 256u << 20;

// Shared by the test and its children.
struct Shared {
  std::atomic<size_t> text_used;
  char text[1 << 16];
  size_t meta_bytes;
  char lines[1 << 14];
  char error[512];
  std::byte meta[];
};
Shared* shared = nullptr;

void put_line(char* to, size_t size, std::string_view line) {
  size_t used = std::strlen(to);
  if (used + line.size() + 2 > size) return;
  std::memcpy(to + used, line.data(), line.size());
  to[used + line.size()] = '\n';
}

std::vector<std::string> lines_of(const char* text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// Serves the capture from a thread that has the program's table: what a stopped thread does.
struct Server {
  std::atomic<int> state{0};  // 1 work to do, 2 done, 3 end
  void (*work)(void*) = nullptr;
  void* argument = nullptr;
  void give(void (*order)(void*), void* its_argument) {
    work = order;
    argument = its_argument;
    state = 1;
    state.notify_all();
  }
  void await() {
    state.wait(1);
    state = 0;
  }
  void serve() {
    for (;;) {
      state.wait(0);
      state.wait(2);
      int now = state;
      if (now == 3) return;
      if (now != 1) continue;
      work(argument);
      state = 2;
      state.notify_all();
    }
  }
  void end() {
    state = 3;
    state.notify_all();
  }
};

// What stopped threads do: one of them alone, or one after the other is started.
struct Servers {
  Server one, other;
  int started = 0;
  static Servers& of(void* self) { return *static_cast<Servers*>(self); }
  static void start(void* self, void (*work)(void*), void* argument) {
    Servers& servers = of(self);
    if (servers.started < 2) (servers.started == 0 ? servers.one : servers.other).give(work, argument);
    ++servers.started;
  }
  static void await(void* self) {
    Servers& servers = of(self);
    if (servers.started > 0) servers.one.await();
    if (servers.started > 1) servers.other.await();
    servers.started = 0;
  }
};

void put_frame_of_meta(MetaWriter& meta) {
  ProcessRecord process{};
  process.pid = getpid();
  process.thread_count = 1;
  meta.record(RecordType::kProcess, process);
  meta.record(RecordType::kMm, MmRecord{});
  meta.record(RecordType::kResourceLimits, ResourceLimitsRecord{});
  ThreadRecord thread{};
  thread.tid = getpid();
  meta.record(RecordType::kThread, thread);
}

void capture(RoundTrip& trip) {
  Servers servers;
  std::thread other([&] { servers.other.serve(); });
  int pid = getpid();
  std::string error;
  std::atomic<bool> half{false}, go_on{false};
  std::thread agent([&] {
    unshare(CLONE_FILES);
    close_range(0, ~0u, 0);
    Arena arena;
    if (!arena.reserve(1u << 30)) abort();
    DescriptorCapture c;
    auto prepared = c.prepare(arena, pid);
    if (!prepared) error = prepared.error().message();
    half = true;
    half.notify_all();
    go_on.wait(false);
    OtherThreads sharers;
    if (trip.executor) sharers = {&servers, &Servers::start, &Servers::await};
    auto rechecked = c.begin_sampling(pid, sharers);
    if (rechecked) rechecked = c.recheck_stopped(pid, sharers);
    if (!rechecked) error = rechecked.error().message();
    c.release();
    MetaWriter meta(arena);
    put_frame_of_meta(meta);
    if (!meta.append_records([&](ByteWriter& out) { return c.serialize(out); })) error = "arena full";
    meta.finish();
    if (meta.span().size() > kSharedBytes - sizeof(Shared)) abort();
    std::memcpy(shared->meta, meta.span().data(), meta.span().size());
    shared->meta_bytes = meta.span().size();
    // Nothing of the capture may stay open.
    struct stat st;
    for (int fd = 0; fd < 1024; ++fd) {
      if (fstat(fd, &st) == 0) error = fmt::format("descriptor {} of the capture is still open", fd);
    }
    servers.one.end();
    servers.other.end();
  });
  half.wait(false);
  if (trip.before_stop) trip.before_stop();
  go_on = true;
  go_on.notify_all();
  servers.one.serve();
  agent.join();
  other.join();
  if (!error.empty()) put_line(shared->error, sizeof(shared->error), error);
  if (trip.after_stop) trip.after_stop();
}

Result<ImageMeta> parsed() { return parse_meta({shared->meta, shared->meta_bytes}, "test image"); }

void restore(RoundTrip& trip) {
  auto meta = parsed();
  if (!meta) {
    put_line(shared->error, sizeof(shared->error), meta.error().message());
    return;
  }
  WorkingFds working;
  auto opened = working.open_above(highest_descriptor(*meta));
  if (!opened) {
    put_line(shared->error, sizeof(shared->error), opened.error().message());
    return;
  }
  DescriptorOptions options;
  options.working = &working;
  options.image_directory = trip.images.path();
  options.sequence = 7;
  options.mapped_objects = trip.mapped_objects;
  options.say = [](std::string_view line) { put_line(shared->lines, sizeof(shared->lines), line); };
  auto restored = restore_descriptors(*meta, options);
  if (!restored) {
    put_line(shared->error, sizeof(shared->error), restored.error().message());
    return;
  }
  trip.restored = *restored;
  close_range(static_cast<unsigned>(working.first()), ~0u, 0);
  for (const auto& lock : restored->locks) {
    struct flock range = {};
    range.l_type = lock.type;
    range.l_start = lock.start;
    range.l_len = lock.length;
    VERIFY(fcntl(lock.fd, F_SETLK, &range) == 0);
  }
  std::set<int> expected, there;
  for (const auto& d : meta->descriptors) expected.insert(d.fd);
  for (int fd : open_descriptors()) there.insert(fd);
  VERIFY_EQ(fmt::format("{}", fmt::join(there, " ")), fmt::format("{}", fmt::join(expected, " ")));
  if (trip.verify) trip.verify();
}

template <typename Work>
void in_child(Work work) {
  fflush(nullptr);
  pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    close_range(3, ~0u, 0);
    alarm(300);  // a read that should have found something would wait for ever
    work();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "child ended with status " << status;
}

}  // namespace

void report_failure(const char* file, int line, const std::string& text) {
  put_line(shared->text, sizeof(shared->text), fmt::format("{}:{}: {}", file, line, text));
}

void RoundTrip::run() {
  if (shared == nullptr) {
    void* p = mmap(nullptr, kSharedBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    ASSERT_NE(p, MAP_FAILED);
    shared = static_cast<Shared*>(p);
  }
  std::memset(static_cast<void*>(shared), 0, sizeof(Shared));
  in_child([&] {
    if (setup) setup();
    capture(*this);
  });
  capture_error = shared->error;
  ASSERT_EQ(capture_error, "");
  ASSERT_EQ(std::string(shared->text), "") << "in the subject";
  auto meta = parsed();
  ASSERT_TRUE(meta.ok()) << meta.error().message();
  for (const auto& n : meta->notes) notes.emplace_back(n.text);
  for (const auto& f : meta->open_files) kinds.push_back(static_cast<OpenFileKind>(f.record.kind));

  if (meanwhile) meanwhile();
  in_child([&] {
    if (before_restore) before_restore();
    restore(*this);
  });
  restore_error = shared->error;
  if (!restore_error.empty() && restore_error.back() == '\n') restore_error.pop_back();
  lines = lines_of(shared->lines);
  if (expect_restore_error) {
    EXPECT_NE(restore_error, "");
  } else {
    EXPECT_EQ(restore_error, "");
  }
  EXPECT_EQ(std::string(shared->text), "") << "in the successor";
}

ScratchDirectory::ScratchDirectory() {
  std::string name = testing::TempDir() + "/ckpt-descriptors-XXXXXX";
  if (mkdtemp(name.data()) == nullptr) abort();
  path_ = std::filesystem::canonical(name);
}
ScratchDirectory::~ScratchDirectory() { std::filesystem::remove_all(path_); }

void write_file(const std::string& path, const std::string& bytes, bool append) {
  std::ofstream(path, append ? std::ios::app : std::ios::trunc) << bytes;
}

std::string read_file(const std::string& path) {
  std::ostringstream out;
  out << std::ifstream(path).rdbuf();
  return out.str();
}

int move_to(int from, int to) {
  if (from < 0) abort();
  if (from != to) {
    if (dup2(from, to) != to) abort();
    close(from);
  }
  return to;
}

int open_at(int fd, const std::string& path, int flags, int mode) {
  return move_to(open(path.c_str(), flags, mode), fd);
}

std::string read_some(int fd, size_t n) {
  std::string bytes(n, '\0');
  ssize_t r = read(fd, bytes.data(), n);
  if (r < 0) return fmt::format("errno {}", errno);
  bytes.resize(static_cast<size_t>(r));
  return bytes;
}

bool await_input(int fd) {
  pollfd p{fd, POLLIN, 0};
  return poll(&p, 1, 60'000) == 1;
}

std::vector<int> open_descriptors() {
  std::vector<int> fds;
  DIR* dir = opendir("/proc/self/fd");
  while (dirent* e = readdir(dir)) {
    int fd = atoi(e->d_name);
    if (e->d_name[0] != '.' && fd != dirfd(dir)) fds.push_back(fd);
  }
  closedir(dir);
  return fds;
}

sockaddr_in loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

sockaddr_in ends_of(int fd, bool peer) {
  sockaddr_in address{};
  socklen_t length = sizeof(address);
  VERIFY((peer ? getpeername : getsockname)(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0);
  return address;
}

void listening_tcp(int fd) {
  move_to(socket(AF_INET, SOCK_STREAM, 0), fd);
  auto address = loopback(0);
  VERIFY(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  VERIFY(listen(fd, 8) == 0);
}

void connected_tcp(int client, int server, int listener) {
  move_to(socket(AF_INET, SOCK_STREAM, 0), client);
  auto address = ends_of(listener, false);
  VERIFY(connect(client, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  move_to(accept(listener, nullptr, nullptr), server);
}

}  // namespace ckpt::test
