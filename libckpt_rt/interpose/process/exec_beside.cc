#include "libckpt_rt/interpose/process/exec_beside.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <string_view>

#include "base/elf/static_go.h"
#include "base/protocol/beside_protocol.h"
#include "base/raii_fd.h"
#include "libckpt_rt/core/process/dynamic_linker.h"
#include "libckpt_rt/interpose/program_memory.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {

constexpr std::string_view kPreload = "LD_PRELOAD=", kLibrary = "libckpt_rt.so";
constexpr std::string_view kWays[] = {"/../bin/ckpt-beside", "/../../bin/ckpt-beside"};
constexpr size_t kWordsAhead = 3;  // the command, --or-alone, the program

constinit const char* library_path = nullptr;  // the dynamic linker's

__attribute__((constructor)) void find_own_path() {
  Dl_info info;
  if (dynamic_linker::describe(reinterpret_cast<const void*>(&find_own_path), info))
    library_path = info.dli_fname;
}

// Looks no further than the first difference.
bool begins_with(const char* text, std::string_view start) {
  for (const char c : start) {
    if (*text++ != c) return false;
  }
  return true;
}

// May be executed, is no device, and gives no rights: with those the dynamic linker would not preload.
bool is_static_go_file(const char* path) {
  // A wrong address is the kernel's to refuse.
  if (!program_memory::may_read(path, 1)) return false;
  // A descriptor that closes as it is executed would be gone for ckpt-beside.
  if (begins_with(path, "/proc/") || begins_with(path, "/dev/")) return false;
  // A FIFO would wait for somebody who writes.
  constexpr long kHow = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  const ScopedFd file(static_cast<int>(sys::call(__NR_openat, AT_FDCWD, path, kHow, 0L)));
  struct stat st {};
  return file.valid() && sys::call(__NR_fstat, file.get(), &st) == 0 && S_ISREG(st.st_mode) &&
         (st.st_mode & (S_ISUID | S_ISGID)) == 0 && is_static_go(file.get()) &&
         sys::call(__NR_fgetxattr, file.get(), "security.capability", nullptr, 0L) < 0 &&
         sys::call(__NR_faccessat, AT_FDCWD, path, X_OK) == 0;
}

std::string_view own_folder() {
  const std::string_view library(library_path == nullptr ? "" : library_path);
  return library.substr(0, std::min(library.rfind('/'), library.size()));
}

// Beside the library's folder, or one further up where that is of one architecture.
void write_command(char* text) {
  const std::string_view folder = own_folder();
  std::memcpy(text, folder.data(), folder.size());
  for (const std::string_view way : kWays) {
    std::memcpy(text + folder.size(), way.data(), way.size());
    text[folder.size() + way.size()] = '\0';
    if (sys::call(__NR_faccessat, AT_FDCWD, text, X_OK) == 0) return;
  }
}

}  // namespace

bool search_path(const char* file, char (&path)[PATH_MAX]) {
  const size_t length = std::strlen(file);
  if (length == 0 || length >= sizeof(path)) return false;
  if (std::strchr(file, '/') != nullptr) {
    std::memcpy(path, file, length + 1);
    return true;
  }
  std::string_view folders = "/bin:/usr/bin";
  constexpr std::string_view kPath = "PATH=";
  for (char** e = environ; e != nullptr && *e != nullptr; ++e) {
    if (std::string_view(*e).starts_with(kPath)) folders = std::string_view(*e).substr(kPath.size());
  }
  for (;;) {
    const size_t end = folders.find(':');
    const std::string_view folder = folders.substr(0, end);
    if (folder.size() + 1 + length < sizeof(path)) {
      std::memcpy(path, folder.data(), folder.size());
      const size_t at = folder.empty() ? 0 : folder.size() + 1;  // none: the working directory
      if (at != 0) path[at - 1] = '/';
      std::memcpy(path + at, file, length + 1);
      if (sys::call(__NR_faccessat, AT_FDCWD, path, X_OK) == 0) return true;
    }
    if (end == folders.npos) return false;
    folders.remove_prefix(end + 1);
  }
}

BesideWords::BesideWords(const char* path, char* const argv[], char* const envp[])
    : path_(path), argv_(argv), envp_(envp) {
  // The words come last: of any other program the kernel looks at them, and says what is wrong with them.
  if (path == nullptr || argv == nullptr || envp == nullptr || !is_static_go_file(path) || argv[0] == nullptr)
    return;
  for (; envp[variables_] != nullptr; ++variables_) {
    // The dynamic linker would say what ckpt-beside needs, and end.
    if (std::string_view(envp[variables_]).starts_with("LD_TRACE_")) return;
    if (std::string_view(envp[variables_]).starts_with(kPreload))
      preload_ = envp[variables_] + kPreload.size();
  }
  if (preload_ == nullptr || std::string_view(preload_).find(kLibrary) == std::string_view::npos) return;
  ++variables_;
  while (argv[words_] != nullptr) ++words_;
  words_ += kWordsAhead + 1;
  text_bytes_ = std::strlen(kBesideVariable) + sizeof("=") + std::strlen(preload_) + own_folder().size() +
                std::end(kWays)[-1].size() + 1;
  applies_ = true;
}

void BesideWords::fill(char** argv, char** envp, char* text) const {
  char* const command = text + text_bytes_ - own_folder().size() - std::end(kWays)[-1].size() - 1;
  write_command(command);
  argv[0] = command;
  argv[1] = const_cast<char*>(kOrAlone);
  argv[2] = const_cast<char*>(path_);
  std::memcpy(argv + kWordsAhead, argv_, (words_ - kWordsAhead) * sizeof(char*));
  const std::string_view name(kBesideVariable);
  text[name.copy(text, name.size())] = '=';
  std::memcpy(text + name.size() + 1, preload_, std::strlen(preload_) + 1);
  size_t n = 0;
  for (char* const* e = envp_; *e != nullptr; ++e)
    envp[n++] = std::string_view(*e).starts_with(kPreload) ? text : *e;
  envp[n] = nullptr;
}

}  // namespace ckpt
