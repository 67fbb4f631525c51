#include "libckpt_rt/core/directory/own_directory.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>

#include "base/memory/fork_path.h"
#include "image/write/directory/image_directory.h"
#include "job/identity/own_job.h"
#include "libckpt_rt/core/process/this_process.h"
#include "libckpt_rt/core/settings/user_settings.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {

constexpr size_t kName = 32;  // of "/user-UID", with its end

constinit int handed = -1;  // of the agent's own table

// Absolute path of the directory that images go to.
constinit own_directory::Name current = {};
// The one that was set, if `current` is another; else empty.
constinit own_directory::Name set_directory = {};

bool job_is_led_by_another() {
  const int root = job::own_job.identity.root;
  return root != 0 && root != this_process.pid;
}

const char* directory_of_job() {
  static_assert(sizeof(job::Identity::directory) == sizeof(own_directory::Name));
  return job::own_job.identity.directory;
}

uint32_t effective_user() { return static_cast<uint32_t>(sys::call(__NR_geteuid)); }

void name_of_user(uint32_t user, char (&name)[kName]) {
  *fmt::format_to_n(name, kName - 1, "/user-{}", user).out = '\0';
}

// As the kernel names it: it may be behind directories that this user may not pass.
Result<ScopedFd> open_handed() {
  const long fd = sys::call(__NR_fcntl, handed, long{F_DUPFD_CLOEXEC}, 0L);
  if (sys::failed(fd)) return make_error(ExitCode::kSystem, static_cast<int>(fd), "no descriptor is left");
  ScopedFd directory(static_cast<int>(fd));
  char link[40], name[sizeof(current)];
  *fmt::format_to_n(link, sizeof(link) - 1, "/proc/thread-self/fd/{}", handed).out = '\0';
  const long n = sys::call(__NR_readlink, link, name, sizeof(name) - 1);
  name[n > 0 ? n : 0] = '\0';
  CKPT_TRY(check_image_directory(directory.get(), name));
  std::memcpy(current, name, sizeof(name));
  return directory;
}

// The directory of a later user, which is there already.
Result<ScopedFd> open_of_user(char* end) {
  char name[kName];
  name_of_user(effective_user(), name);
  if (end + kName > current + sizeof(current))
    return make_error(ExitCode::kCannotCreate, ENAMETOOLONG, "the name of the image directory is too long");
  std::memcpy(end, name, kName);
  const long fd = sys::call(__NR_openat, long{AT_FDCWD}, current,
                            long{O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW}, 0L);
  if (sys::failed(fd)) return make_error(ExitCode::kPermission, static_cast<int>(fd), "it cannot be opened");
  ScopedFd directory(static_cast<int>(fd));
  CKPT_TRY(check_image_directory(directory.get(), current));
  return directory;
}

Result<ScopedFd> open_by_name() {
  if (set_directory[0] == '\0') std::memcpy(set_directory, current, sizeof(current));
  std::memcpy(current, set_directory, sizeof(current));
  auto set = open_image_directory(current);
  if (set.ok() || set.error().code != ExitCode::kPermission) return set;
  char* end = current + std::strlen(current);
  auto of_user = open_of_user(end);
  if (of_user.ok()) return of_user;
  *end = '\0';
  return set;
}

}  // namespace

Result<ScopedFd> open_own_directory() {
  auto by_name = open_by_name();
  if (by_name.ok() || handed < 0) return by_name;
  auto open = open_handed();
  if (open.ok()) return open;
  return by_name;
}

namespace own_directory {

const char* name() { return current; }

void copy_name(Name& to) { std::memcpy(to, current, sizeof(to)); }

CKPT_START_PATH void choose() {
  set_directory[0] = '\0';
  const char* wanted = user_settings().directory;
  char cwd[1024] = {};
  if (wanted[0] != '/') {
    const long n = sys::call(__NR_getcwd, cwd, sizeof(cwd));
    if (n <= 0) std::strcpy(cwd, "/");
  }
  char* const out = current;
  const size_t room = sizeof(current) - 1;
  if (wanted[0] == '/') {
    // By hand: at every start of a program, and what formats lies elsewhere.
    const size_t length = std::min(std::strlen(wanted), room);
    std::memcpy(out, wanted, length);
    out[length] = '\0';
  } else if (wanted[0] != '\0') {
    *fmt::format_to_n(out, room, "{}/{}", static_cast<const char*>(cwd), wanted).out = '\0';
  } else if (job_is_led_by_another()) {
    *fmt::format_to_n(out, room, "{}", directory_of_job()).out = '\0';
  } else {
    *fmt::format_to_n(out, room, "{}/ckpt-{}.{}", static_cast<const char*>(cwd),
                      static_cast<const char*>(this_process.name), this_process.pid)
         .out = '\0';
  }
}

void choose_in_child() {
  if (set_directory[0] != '\0') std::memcpy(current, set_directory, sizeof(current));
  set_directory[0] = '\0';
  if (user_settings().directory[0] != '\0') return;
  if (job_is_led_by_another()) {
    std::memcpy(current, directory_of_job(), sizeof(current));
    return;
  }
  char* const last = std::strrchr(current, '/') + 1;
  const size_t room = sizeof(current) - 1 - static_cast<size_t>(last - current);
  *fmt::format_to_n(last, room, "ckpt-{}.{}", static_cast<const char*>(this_process.name), this_process.pid)
       .out = '\0';
}

const char* set_name() { return set_directory[0] == '\0' ? current : set_directory; }

bool may_open() { return open_by_name().ok(); }

void forget() { handed = -1; }

void hand_over(ScopedFd directory) {
  const ScopedFd before(handed);
  handed = directory.release();
}

void prepare_for_user(uint32_t user) {
  if (!this_process.active || this_process.pid != sys::getpid() || user_settings().directory[0] == '\0')
    return;
  const uint32_t now = effective_user();
  if (now != 0 || user == now || user == UINT32_MAX) return;
  char name[kName];
  name_of_user(user, name);
  auto directory = open_image_directory(set_name());
  if (!directory.ok()) return;  // the next checkpoint says why
  // Root's until it has all of its rights.
  if (sys::failed(sys::call(__NR_mkdirat, directory->get(), name + 1, 0700L))) return;
  const long made = sys::call(__NR_openat, directory->get(), name + 1,
                              long{O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW}, 0L);
  if (sys::failed(made)) return;
  const ScopedFd of_user(static_cast<int>(made));
  sys::call(__NR_fchmod, of_user.get(), 0700L);
  sys::call(__NR_fchown, of_user.get(), long{user}, -1L);
  struct stat st {};
  // To be passed, not to be read.
  if (!sys::failed(sys::call(__NR_fstat, directory->get(), &st)))
    sys::call(__NR_fchmod, directory->get(), (long{st.st_mode} & 07777) | 0011);
}

}  // namespace own_directory

}  // namespace ckpt
