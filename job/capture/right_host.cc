#include "job/capture/right_host.h"

#include <fmt/core.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <string_view>

#include "base/memory/fork_path.h"
#include "job/capture/members/process_look.h"
#include "job/identity/identity.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::job {

namespace {

constexpr const char *kHosts = "CKPT_HOSTS", *kDirectory = "CKPT_DIR", *kTable = "CKPT_ON";
constexpr size_t kValue = 1400;  // bytes: a path of ours has at most 1,200

struct Place {
  char hosts[kValue], directory[kValue], table[kValue];
};

CKPT_START_PATH char** find(const char* name) {
  const size_t n = strlen(name);
  for (char** e = environ; e != nullptr && *e != nullptr; ++e) {
    if (strncmp(*e, name, n) == 0 && (*e)[n] == '=') return e;
  }
  return nullptr;
}

// Two pieces of "JOB:HOST": of one job?
bool same_job(const char* a, const char* b) {
  constexpr size_t kDigits = 33;
  return strncmp(a, b, kDigits) == 0 && strlen(a) > kDigits;
}

// The topmost process above this one that is of the job; 0: there is none.
int find_top(const char* own, char (&hosts)[kValue]) {
  constexpr int kMostLevels = 4096;
  char found[kValue];
  int top = 0;
  int pid = static_cast<int>(sys::call(__NR_getppid));
  for (int level = 0; level < kMostLevels && pid > 0; ++level) {
    if (!read_variable(pid, kHosts, found, sizeof(found)) || !same_job(own, found)) break;
    top = pid;
    std::memcpy(hosts, found, sizeof(found));
    ProcessLook look;
    if (!look_at(pid, look)) break;
    pid = look.ppid;
  }
  return top;
}

char* put(const char* name, const char* value, char* at, char* end) {
  char** variable = find(name);
  if (variable == nullptr) return at;
  *variable = at;
  at = fmt::format_to_n(at, static_cast<size_t>(end - at - 1), "{}={}", name, value).out;
  *at = '\0';
  return at + 1;
}

// Apart: a program that runs on one host needs no room for this on its stack.
[[gnu::noinline]] void be_of_host(char** hosts, char** job) {
  const char* own = *hosts + strlen(kHosts) + 1;
  Identity identity;
  // Without a first process it is the first, started by the agent of this host.
  if (!read_identity(*job + strlen(kJobVariable) + 1, identity)) return;
  Place here;
  if (read_variable(identity.root, kHosts, here.hosts, sizeof(here.hosts)) && strcmp(here.hosts, own) == 0)
    return;
  const int top = find_top(own, here.hosts);
  if (top == 0 || strcmp(here.hosts, own) == 0 || !read_variable(top, kDirectory, here.directory, kValue) ||
      !read_variable(top, kTable, here.table, kValue))
    return;
  constexpr size_t kBytes = 4 * (kValue + 64);
  const long memory =
      sys::call(__NR_mmap, 0L, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1L, 0L);
  if (sys::failed(memory)) return;
  char* at = reinterpret_cast<char*>(memory);
  char* const end = at + kBytes;
  char text[kValue];
  *fmt::format_to_n(text, sizeof(text) - 1, "{}:{}@{}:{}", job_text(identity.id).text, top, identity.began_ns,
                    static_cast<const char*>(here.directory))
       .out = '\0';
  at = put(kHosts, here.hosts, at, end);
  at = put(kDirectory, here.directory, at, end);
  at = put(kTable, here.table, at, end);
  put(kJobVariable, text, at, end);
}

}  // namespace

CKPT_START_PATH void be_of_this_host() {
  char** const hosts = find(kHosts);
  char** const job = find(kJobVariable);
  if (hosts != nullptr && job != nullptr) be_of_host(hosts, job);
}

}  // namespace ckpt::job
