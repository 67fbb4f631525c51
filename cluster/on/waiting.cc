#include "cluster/on/waiting.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <elf.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "base/sys.h"

namespace ckpt::cluster {
namespace {

// A listening socket in which connections wait.
struct Listening {
  sockaddr_in at{};  // where a connection from this host reaches it
  bool six = false;
  bool left = false;  // what waits in it is not taken
  ScopedFd fd;
};

// By inode. /proc/net/tcp and tcp6: sl local remote st tx:rx tr:tm retrnsmt uid timeout inode; of a listening
// socket rx is how many wait.
void read_listening(const char* path, bool six, bool also_empty, std::map<uint64_t, Listening>& all) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  while (std::getline(in, line)) {
    char address[40] = {};
    unsigned port = 0, state = 0, waiting = 0;
    unsigned long long inode = 0;
    if (std::sscanf(line.c_str(), " %*u: %39[0-9A-F]:%x %*s %x %*x:%x %*s %*s %*u %*u %llu", address, &port,
                    &state, &waiting, &inode) != 5 ||
        state != TCP_LISTEN || (waiting == 0 && !also_empty))
      continue;
    uint32_t words[4] = {};
    for (int i = 0; i < (six ? 4 : 1); ++i)
      words[i] = static_cast<uint32_t>(strtoul(std::string(address + i * 8, 8).c_str(), nullptr, 16));
    Listening one;
    one.six = six;
    one.at.sin_family = AF_INET;
    one.at.sin_port = htons(static_cast<uint16_t>(port));
    const bool any6 = six && words[0] == 0 && words[1] == 0 && words[2] == 0 && words[3] == 0;
    if (six && !any6 && (words[0] != 0 || words[1] != 0 || words[2] != htonl(0xffff)))
      continue;  // IPv6 alone
    one.at.sin_addr.s_addr = six ? words[3] : words[0];
    if (one.at.sin_addr.s_addr == 0) one.at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    all.emplace(inode, std::move(one));
  }
}

void for_each_number_in(const std::string& path, const std::function<void(int)>& visit) {
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(opendir(path.c_str()), closedir);
  while (dir != nullptr) {
    const dirent* entry = readdir(dir.get());
    if (entry == nullptr) break;
    const int number = atoi(entry->d_name);
    if (number > 0 || std::strcmp(entry->d_name, "0") == 0) visit(number);
  }
}

bool is_set(int fd, int level, int name) {
  int value = 0, length = sizeof(value);
  return sys::call(__NR_getsockopt, fd, level, name, &value, &length) == 0 && value != 0;
}

// Go makes its system calls itself. Its linker leaves a note of that name in each program.
bool is_go(int pid) {
  const ScopedFd fd(open(("/proc/" + std::to_string(pid) + "/exe").c_str(), O_RDONLY | O_CLOEXEC));
  Elf64_Ehdr header;
  if (!fd.valid() || pread(fd.get(), &header, sizeof(header), 0) != sizeof(header)) return true;  // not known
  for (unsigned i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment;
    if (pread(fd.get(), &segment, sizeof(segment),
              static_cast<off_t>(header.e_phoff + i * sizeof(segment))) != sizeof(segment))
      return true;
    if (segment.p_type != PT_NOTE || segment.p_filesz > 65536) continue;
    std::string notes(segment.p_filesz, '\0');
    if (pread(fd.get(), notes.data(), notes.size(), static_cast<off_t>(segment.p_offset)) !=
        static_cast<ssize_t>(notes.size()))
      return true;
    if (notes.find(std::string("Go\0\0", 4)) != notes.npos) return true;
  }
  return false;
}

// What a process has open.
struct OpenFiles {
  std::vector<std::pair<int, uint64_t>> sockets;  // descriptor, inode
  bool io_uring = false;
};
OpenFiles open_files(int pid) {
  OpenFiles all;
  const std::string fds = "/proc/" + std::to_string(pid) + "/fd";
  for_each_number_in(fds, [&](int fd) {
    char target[64] = {};
    unsigned long long inode = 0;
    if (readlink((fds + "/" + std::to_string(fd)).c_str(), target, sizeof(target) - 1) <= 0) return;
    if (std::sscanf(target, "socket:[%llu]", &inode) == 1) all.sockets.emplace_back(fd, inode);
    all.io_uring = all.io_uring || std::strcmp(target, "anon_inode:[io_uring]") == 0;
  });
  return all;
}

// Of a process: parent, or 0.
int parent_of(int pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(in, text);
  const size_t end = text.rfind(')');
  return end == std::string::npos || end + 4 > text.size() ? 0 : atoi(text.c_str() + end + 4);
}

}  // namespace

bool is_below_us(int pid) {
  for (int levels = 0; pid > 1 && levels < 4096; ++levels) {
    pid = parent_of(pid);
    if (pid == getpid()) return true;
  }
  return false;
}

namespace {

std::vector<WaitingListener> find(bool also_empty) {
  std::map<uint64_t, Listening> listening;
  read_listening("/proc/net/tcp", false, also_empty, listening);
  read_listening("/proc/net/tcp6", true, also_empty, listening);
  if (listening.empty()) return {};
  for_each_number_in("/proc", [&](int pid) {
    if (!is_below_us(pid)) return;
    const OpenFiles files = open_files(pid);
    for (const auto& [fd, inode] : files.sockets) {
      const auto found = listening.find(inode);
      if (found == listening.end()) continue;
      Listening& one = found->second;
      if (files.io_uring || is_go(pid)) one.left = true;
      if (one.fd.valid()) continue;
      const ScopedFd process(static_cast<int>(sys::call(__NR_pidfd_open, pid, 0)));
      if (process.valid()) one.fd.reset(static_cast<int>(sys::call(__NR_pidfd_getfd, process.get(), fd, 0)));
      // Where others listen at the same port, nobody knows who would get the placeholder.
      if (!one.fd.valid() || is_set(one.fd.get(), SOL_SOCKET, SO_REUSEPORT) ||
          (one.six && is_set(one.fd.get(), IPPROTO_IPV6, IPV6_V6ONLY)))
        one.left = true;
    }
  });
  std::vector<WaitingListener> all;
  for (auto& [inode, one] : listening) {
    if (!one.left && one.fd.valid()) all.push_back({std::move(one.fd), one.at});
  }
  return all;
}

}  // namespace

std::vector<WaitingListener> find_waiting() { return find(false); }

std::vector<WaitingListener> find_listening() { return find(true); }

}  // namespace ckpt::cluster
