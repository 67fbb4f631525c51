#include "cli/starting/program.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <string_view>
#include <utility>
#include <vector>

#include "base/elf/static_go.h"
#include "base/raii_fd.h"
#include "cli/text/failure.h"

namespace ckpt::cli {

namespace {

// Result<void> has no third state, so "this is a file to run" is a plain errno: 0 or why not.
int executable_error(const std::string& path) {
  struct stat st;
  if (stat(path.c_str(), &st) != 0) return errno;
  if (S_ISDIR(st.st_mode)) return EISDIR;
  if (!S_ISREG(st.st_mode)) return EACCES;
  return faccessat(AT_FDCWD, path.c_str(), X_OK, AT_EACCESS) == 0 ? 0 : errno;
}

Error cannot_run(const std::string& path, int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return failure(ExitCode::kNotFound, path, "no such program", "check the path");
    case EISDIR:
      return failure(ExitCode::kNotFound, path, "is a directory", "name a program");
    case EACCES:
      return failure(ExitCode::kPermission, path, "may not be executed",
                     "chmod +x it, or check that its file system is not mounted noexec");
    default:
      return failure(ExitCode::kSystem, path, strerror(error), "check the path");
  }
}

const char* machine_name(uint16_t machine) {
  switch (machine) {
    case EM_386:
      return "32-bit x86";
    case EM_ARM:
      return "32-bit ARM";
    case EM_AARCH64:
      return "64-bit ARM";
    case EM_RISCV:
      return "RISC-V";
    case EM_PPC64:
      return "POWER";
    case EM_S390:
      return "S/390";
    default:
      return "another machine";
  }
}

// Does execve give this program other rights than ours? Then the dynamic linker runs it in
// secure-execution mode and ignores our LD_PRELOAD.
Result<void> check_rights(const std::string& path, int fd) {
  struct stat st;
  if (fstat(fd, &st) != 0) return failure(ExitCode::kSystem, path, strerror(errno), "check the path");
  if ((st.st_mode & S_ISUID) != 0 && st.st_uid != geteuid()) {
    return failure(ExitCode::kUnsupported, path, "is setuid: the dynamic linker preloads nothing into it",
                   "run it as its owner, or run a copy without the setuid bit");
  }
  // Without group execute the bit means mandatory locking, not setgid.
  if ((st.st_mode & S_ISGID) != 0 && (st.st_mode & S_IXGRP) != 0 && st.st_gid != getegid()) {
    return failure(ExitCode::kUnsupported, path, "is setgid: the dynamic linker preloads nothing into it",
                   "run it as its group, or run a copy without the setgid bit");
  }
  if (geteuid() != 0 && fgetxattr(fd, "security.capability", nullptr, 0) > 0) {
    return failure(ExitCode::kUnsupported, path,
                   "has file capabilities: the dynamic linker preloads nothing into it",
                   "run a copy without them (setcap -r), or run it as root");
  }
  return {};
}

// The dynamic section's strings, which hold the names of the libraries that the program needs (DT_NEEDED).
// Empty: none, or damaged.
std::string dynamic_strings(int fd, const std::vector<Elf64_Phdr>& headers) {
  constexpr size_t kMost = 64 << 20;
  const auto read_at = [fd](void* to, size_t bytes, uint64_t offset) {
    return pread(fd, to, bytes, static_cast<off_t>(offset)) == static_cast<ssize_t>(bytes);
  };
  std::vector<Elf64_Dyn> entries;
  for (const Elf64_Phdr& h : headers) {
    if (h.p_type != PT_DYNAMIC || h.p_filesz > kMost) continue;
    entries.resize(h.p_filesz / sizeof(Elf64_Dyn));
    if (!read_at(entries.data(), entries.size() * sizeof(Elf64_Dyn), h.p_offset)) entries.clear();
  }
  uint64_t table = 0, bytes = 0;
  for (const Elf64_Dyn& d : entries) {
    if (d.d_tag == DT_STRTAB) table = d.d_un.d_ptr;
    if (d.d_tag == DT_STRSZ) bytes = d.d_un.d_val;
  }
  for (const Elf64_Phdr& h : headers) {
    if (h.p_type != PT_LOAD || table < h.p_vaddr || table - h.p_vaddr >= h.p_filesz || bytes > kMost)
      continue;
    std::string strings(bytes, '\0');
    if (read_at(strings.data(), bytes, h.p_offset + (table - h.p_vaddr))) return strings;
  }
  return "";
}

// Their run times want to be the first library, or call themselves in each thread, also in ours, of which
// they know nothing.
Result<void> check_sanitizers(const std::string& path, int fd, const std::vector<Elf64_Phdr>& headers) {
  const std::string strings = dynamic_strings(fd, headers);
  for (const auto& [mark, name] : {std::pair{"libasan.so", "AddressSanitizer"},
                                   {"libtsan.so", "ThreadSanitizer"},
                                   {"libhwasan.so", "HWAddressSanitizer"},
                                   {"__asan_init", "AddressSanitizer"},
                                   {"__tsan_init", "ThreadSanitizer"},
                                   {"__msan_init", "MemorySanitizer"}}) {
    if (strings.find(mark) == strings.npos) continue;
    return failure(ExitCode::kUnsupported, path, fmt::format("is built with {}", name),
                   "build it without -fsanitize");
  }
  return {};
}

Result<Entry> check_elf(const std::string& path, int fd, const unsigned char (&ident)[EI_NIDENT],
                        size_t got) {
  Elf64_Ehdr head{};
  constexpr const char* kRebuild = "use a build for 64-bit x86";
  if (got >= EI_NIDENT && ident[EI_CLASS] == ELFCLASS32) {
    Elf32_Ehdr small{};
    bool whole = pread(fd, &small, sizeof(small), 0) == static_cast<ssize_t>(sizeof(small));
    bool x86 = !whole || small.e_machine == EM_386 || small.e_machine == EM_X86_64;
    return failure(
        ExitCode::kUnsupported, path,
        x86 ? "is a 32-bit program" : fmt::format("is a program for {}", machine_name(small.e_machine)),
        kRebuild);
  }
  if (pread(fd, &head, sizeof(head), 0) != static_cast<ssize_t>(sizeof(head))) {
    return failure(ExitCode::kUnsupported, path, "is a truncated ELF file", "build or install it again");
  }
  if (ident[EI_CLASS] != ELFCLASS64 || ident[EI_DATA] != ELFDATA2LSB || head.e_machine != EM_X86_64) {
    return failure(ExitCode::kUnsupported, path,
                   fmt::format("is a program for {}", machine_name(head.e_machine)), kRebuild);
  }
  if (head.e_type != ET_EXEC && head.e_type != ET_DYN) {
    return failure(ExitCode::kUnsupported, path, "is an object or core file, not a program", "link it first");
  }
  if (head.e_phentsize != sizeof(Elf64_Phdr) || head.e_phnum == 0) {
    return failure(ExitCode::kUnsupported, path, "has no program headers", "build or install it again");
  }
  std::vector<Elf64_Phdr> headers(head.e_phnum);
  ssize_t want = static_cast<ssize_t>(headers.size() * sizeof(Elf64_Phdr));
  if (pread(fd, headers.data(), static_cast<size_t>(want), static_cast<off_t>(head.e_phoff)) != want) {
    return failure(ExitCode::kUnsupported, path, "is a truncated ELF file", "build or install it again");
  }
  for (const Elf64_Phdr& h : headers) {
    if (h.p_type != PT_INTERP || h.p_filesz == 0 || h.p_filesz > 4096) continue;
    std::string interpreter(h.p_filesz, '\0');
    if (pread(fd, interpreter.data(), interpreter.size(), static_cast<off_t>(h.p_offset)) !=
        static_cast<ssize_t>(interpreter.size())) {
      return failure(ExitCode::kUnsupported, path, "is a truncated ELF file", "build or install it again");
    }
    interpreter.resize(strlen(interpreter.c_str()));
    if (interpreter.find("ld-musl") != std::string::npos) {
      return failure(ExitCode::kUnsupported, path, "is linked against musl", "use a build against glibc");
    }
    if (access(interpreter.c_str(), X_OK) != 0) {
      return failure(ExitCode::kNotFound, interpreter,
                     fmt::format("the dynamic linker of {} is missing", brief(path)),
                     "install the C library it was built for");
    }
    CKPT_TRY(check_sanitizers(path, fd, headers));
    return Entry::kPreloaded;
  }
  if (is_static_go(fd)) return Entry::kBeside;
  return failure(ExitCode::kUnsupported, path, "is statically linked: nothing can be preloaded into it",
                 "link it dynamically: without -static or -static-pie");
}

// The interpreter named by "#! INTERPRETER [ARGUMENT]", empty if the line names none.
std::string script_interpreter(std::string_view head) {
  head = head.substr(0, head.find('\n')).substr(2);
  size_t begin = head.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return "";
  head.remove_prefix(begin);
  return std::string(head.substr(0, head.find_first_of(" \t\r")));
}

Result<Entry> check_file(const std::string& path, int depth) {
  if (int e = executable_error(path)) return cannot_run(path, e);
  ScopedFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) {
    return failure(ExitCode::kPermission, path, "may be executed but not read, so it cannot be checkpointed",
                   "chmod +r it");
  }
  CKPT_TRY(check_rights(path, fd.get()));
  unsigned char head[256] = {};
  ssize_t got = pread(fd.get(), head, sizeof(head), 0);
  if (got < 0) return failure(ExitCode::kIo, path, strerror(errno), "check the file system");
  if (got >= SELFMAG && memcmp(head, ELFMAG, SELFMAG) == 0) {
    unsigned char ident[EI_NIDENT];
    memcpy(ident, head, sizeof(ident));
    return check_elf(path, fd.get(), ident, static_cast<size_t>(got));
  }
  if (got >= 2 && head[0] == '#' && head[1] == '!') {
    std::string interpreter =
        script_interpreter({reinterpret_cast<const char*>(head), static_cast<size_t>(got)});
    if (interpreter.empty()) {
      return failure(ExitCode::kUnsupported, path, "is a script whose first line names no interpreter",
                     "complete the #! line");
    }
    // The kernel follows five levels of interpreters (binfmt_script).
    if (depth >= 5) {
      return failure(ExitCode::kUnsupported, path, "is a script of a script, too many levels deep",
                     "name the real interpreter in the #! line");
    }
    if (int e = executable_error(interpreter); e == ENOENT || e == ENOTDIR) {
      return failure(ExitCode::kNotFound, interpreter,
                     fmt::format("the interpreter that {} names is missing", brief(path)),
                     "install it, or correct the #! line");
    }
    return check_file(interpreter, depth + 1);
  }
  return failure(ExitCode::kUnsupported, path, "is neither an ELF program nor a script with a #! line",
                 "run it by its interpreter, for example: ckpt run -- sh FILE");
}

}  // namespace

Result<std::string> find_program(const std::string& name) {
  if (name.empty()) return failure(ExitCode::kUsage, "run", "the program's name is empty", "name a program");
  if (name.find('/') != std::string::npos) return name;
  const char* path = getenv("PATH");
  std::string_view rest = path != nullptr ? path : "/bin:/usr/bin";
  int seen = ENOENT;
  std::string found;
  while (true) {
    size_t colon = rest.find(':');
    std::string candidate(rest.substr(0, colon));
    if (!candidate.empty()) candidate += '/';
    candidate += name;
    int e = executable_error(candidate);
    if (e == 0) return candidate.find('/') == std::string::npos ? "./" + candidate : candidate;
    if (e == EACCES && seen == ENOENT) {
      seen = e;
      found = candidate;
    }
    if (colon == std::string_view::npos) break;
    rest.remove_prefix(colon + 1);
  }
  if (seen == EACCES) return cannot_run(found, seen);
  return failure(ExitCode::kNotFound, name, "no such program in PATH",
                 "give its path, or add its directory to PATH");
}

Result<Entry> check_program(const std::string& path) { return check_file(path, 0); }

}  // namespace ckpt::cli
