#include "beside/put_beside.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "base/protocol/beside_protocol.h"
#include "base/raii_fd.h"

namespace ckpt::beside {

namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kStackBytes = 512 << 10;  // what stays of it, a few pages, is not used again
constexpr uint64_t kMostStrings = 8 << 20;

uint64_t page_down(uint64_t at) { return at & ~(kPage - 1); }
uint64_t page_up(uint64_t at) { return page_down(at + kPage - 1); }

// What would change how the dynamic linker works, LD_PRELOAD apart: meant for programs that have one.
bool is_for_linker(const std::string& variable) {
  return (variable.starts_with("LD_") && !variable.starts_with("LD_PRELOAD=")) ||
         variable.starts_with("GLIBC_TUNABLES=");
}

struct ElfFile {
  Elf64_Ehdr head{};
  std::vector<Elf64_Phdr> parts;
};

Error unreadable(const std::string& path) {
  return make_error(ExitCode::kNotFound, errno, "{}: cannot be read ({})", path, errno_name(errno));
}

Result<ElfFile> read_elf(const std::string& path, int fd) {
  ElfFile file;
  if (pread(fd, &file.head, sizeof(file.head), 0) != sizeof(file.head)) return unreadable(path);
  if (memcmp(file.head.e_ident, ELFMAG, SELFMAG) != 0 || file.head.e_phentsize != sizeof(Elf64_Phdr))
    return make_error(ExitCode::kUnsupported, 0, "{}: is no ELF file for this machine", path);
  file.parts.resize(file.head.e_phnum);
  const size_t bytes = file.parts.size() * sizeof(Elf64_Phdr);
  if (pread(fd, file.parts.data(), bytes, static_cast<off_t>(file.head.e_phoff)) !=
      static_cast<ssize_t>(bytes))
    return unreadable(path);
  return file;
}

// The dynamic linker that this command itself was linked for.
Result<std::string> find_linker(const std::string& own) {
  const ScopedFd fd(open(own.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return unreadable(own);
  auto file = read_elf(own, fd.get());
  if (!file.ok()) return file.error();
  for (const Elf64_Phdr& part : file->parts) {
    if (part.p_type != PT_INTERP || part.p_filesz > kPage) continue;
    std::string path(part.p_filesz, '\0');
    if (pread(fd.get(), path.data(), path.size(), static_cast<off_t>(part.p_offset)) !=
        static_cast<ssize_t>(path.size()))
      return unreadable(own);
    return path.substr(0, path.find('\0'));
  }
  return make_error(ExitCode::kInternal, 0, "{}: is statically linked", own);
}

class Putting {
 public:
  Putting(TracedProcess& process, const std::string& own) : process_(process), own_(own) {}

  Result<int> put() {
    auto linker = find_linker(own_);
    if (!linker.ok()) return linker.error();
    linker_ = *linker;
    CKPT_TRY(read_first_stack());
    CKPT_TRY(make_stack());
    CKPT_TRY(map_linker());
    CKPT_TRY(fill_stack());
    auto signal = process_.run(base_ + entry_, top_);
    if (!signal.ok()) return signal.error();
    constexpr uint64_t kMostSignals = 64;
    if (*signal == 0 || *signal > kMostSignals)
      return make_error(ExitCode::kUnavailable, 0,
                        "the library did not start beside the program; see the log in the image directory");
    return static_cast<int>(*signal);
  }

 private:
  Result<uint64_t> place(Result<long> result, const char* what) const {
    if (!result.ok()) return result.error();
    if (*result < 0 && *result > -static_cast<long>(kPage))
      return make_error(ExitCode::kUnavailable, static_cast<int>(*result), "{} beside the program: {}", what,
                        errno_name(static_cast<int>(-*result)));
    return static_cast<uint64_t>(*result);
  }

  template <typename T>
  Result<T> value_at(uint64_t at) const {
    T value{};
    if (auto done = process_.read(at, std::as_writable_bytes(std::span(&value, 1))); !done.ok())
      return done.error();
    return value;
  }

  Result<std::string> string_at(uint64_t at) const {
    std::string text;
    for (;;) {
      // To the end of its page: the next one may not be there.
      char part[kPage];
      const size_t n = page_down(at) + kPage - at;
      CKPT_TRY(process_.read(at, std::as_writable_bytes(std::span(part, n))));
      const size_t length = strnlen(part, n);
      text.append(part, length);
      if (length < n) return text;
      at += n;
      if (text.size() > kMostStrings)
        return make_error(ExitCode::kUnsupported, 0, "its environment is too long");
    }
  }

  // What execve(2) has put there: the environment, and what the kernel says to the program.
  Result<void> read_first_stack() {
    uint64_t at = process_.at_entry().rsp;
    auto count = value_at<uint64_t>(at);
    if (!count.ok()) return count.error();
    at += (*count + 2) * sizeof(uint64_t);
    list_ = at;
    for (;; at += sizeof(uint64_t)) {
      auto string = value_at<uint64_t>(at);
      if (!string.ok()) return string.error();
      if (*string == 0) break;
      auto text = string_at(*string);
      if (!text.ok()) return text.error();
      string_bytes_ += text->size() + 1;
      if (string_bytes_ > kMostStrings)
        return make_error(ExitCode::kUnsupported, 0, "its environment is too long");
      environment_.push_back(*std::move(text));
    }
    for (at += sizeof(uint64_t);; at += sizeof(Elf64_auxv_t)) {
      auto said = value_at<Elf64_auxv_t>(at);
      if (!said.ok()) return said.error();
      said_.push_back(*said);
      if (said->a_type == AT_NULL) return {};
    }
  }

  Result<void> make_stack() {
    stack_bytes_ = page_up(kStackBytes + string_bytes_);
    auto at = place(process_.call(SYS_mmap, {0, stack_bytes_, PROT_READ | PROT_WRITE,
                                             MAP_PRIVATE | MAP_ANONYMOUS, ~uint64_t{0}, 0}),
                    "no memory");
    if (!at.ok()) return at.error();
    stack_ = *at;
    top_ = stack_ + stack_bytes_;
    return {};
  }

  Result<uint64_t> push(const std::string& text) {
    top_ -= text.size() + 1;
    if (auto done = process_.write(top_, std::as_bytes(std::span(text.c_str(), text.size() + 1))); !done.ok())
      return done.error();
    return top_;
  }

  Result<void> map_linker() {
    const ScopedFd fd(open(linker_.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd.valid()) return unreadable(linker_);
    auto file = read_elf(linker_, fd.get());
    if (!file.ok()) return file.error();
    auto path = push(linker_);
    if (!path.ok()) return path.error();
    auto there =
        place(process_.call(SYS_openat, {static_cast<uint64_t>(AT_FDCWD), *path, O_RDONLY | O_CLOEXEC, 0}),
              "the dynamic linker cannot be opened");
    if (!there.ok()) return there.error();
    CKPT_TRY(map_parts(*file, *there));
    auto closed = process_.call(SYS_close, {*there});
    if (!closed.ok()) return closed.error();
    entry_ = file->head.e_entry;
    headers_ = file->head.e_phoff;
    header_count_ = file->head.e_phnum;
    return {};
  }

  Result<void> map_parts(const ElfFile& file, uint64_t fd) {
    uint64_t first = ~uint64_t{0}, last = 0;
    for (const Elf64_Phdr& part : file.parts) {
      if (part.p_type != PT_LOAD) continue;
      first = std::min(first, page_down(part.p_vaddr));
      last = std::max(last, page_up(part.p_vaddr + part.p_memsz));
    }
    auto at = place(
        process_.call(SYS_mmap, {0, last - first, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, ~uint64_t{0}, 0}),
        "no memory");
    if (!at.ok()) return at.error();
    base_ = *at - first;
    for (const Elf64_Phdr& part : file.parts)
      if (part.p_type == PT_LOAD) CKPT_TRY(map_part(part, fd));
    return {};
  }

  // As the kernel does it: the rest of the file's last page is cleared, and pages behind that are anonymous.
  Result<void> map_part(const Elf64_Phdr& part, uint64_t fd) {
    const uint64_t rights = ((part.p_flags & PF_R) != 0 ? PROT_READ : 0) |
                            ((part.p_flags & PF_W) != 0 ? PROT_WRITE : 0) |
                            ((part.p_flags & PF_X) != 0 ? PROT_EXEC : 0);
    const uint64_t start = page_down(part.p_vaddr), file_end = part.p_vaddr + part.p_filesz,
                   end = part.p_vaddr + part.p_memsz;
    auto at = place(process_.call(SYS_mmap, {base_ + start, file_end - start, rights, MAP_PRIVATE | MAP_FIXED,
                                             fd, page_down(part.p_offset)}),
                    "the dynamic linker cannot be mapped");
    if (!at.ok()) return at.error();
    if (end <= file_end) return {};
    const std::vector<std::byte> zeros(page_up(file_end) - file_end);
    CKPT_TRY(process_.write(base_ + file_end, zeros));
    if (page_up(end) == page_up(file_end)) return {};
    at = place(process_.call(SYS_mmap, {base_ + page_up(file_end), page_up(end) - page_up(file_end), rights,
                                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, ~uint64_t{0}, 0}),
               "no memory");
    return at.ok() ? Result<void>() : Result<void>(at.error());
  }

  // As for `ld.so OWN --start-library` typed by a user, with the program's environment.
  Result<void> fill_stack() {
    std::vector<uint64_t> words;
    auto add = [&](const std::string& text) -> Result<void> {
      auto at = push(text);
      if (!at.ok()) return at.error();
      words.push_back(*at);
      return {};
    };
    words.push_back(3);
    CKPT_TRY(add(linker_));
    const uint64_t name = words.back();
    CKPT_TRY(add(own_));
    CKPT_TRY(add(kStartLibrary));
    words.push_back(0);
    for (const std::string& variable : environment_) {
      if (!is_for_linker(variable)) CKPT_TRY(add(variable));
    }
    CKPT_TRY(add(fmt::format("{}={:x}", kBesideVariable, list_)));
    words.push_back(0);
    for (const Elf64_auxv_t& said : said_) {
      uint64_t value = said.a_un.a_val;
      switch (said.a_type) {
        case AT_PHDR:
          value = base_ + headers_;
          break;
        case AT_PHNUM:
          value = header_count_;
          break;
        case AT_BASE:
          value = 0;
          break;
        case AT_ENTRY:
          value = base_ + entry_;
          break;
        case AT_EXECFN:
          value = name;
          break;
        default:
          break;
      }
      words.push_back(said.a_type);
      words.push_back(value);
    }
    top_ = (top_ - words.size() * sizeof(uint64_t)) & ~uint64_t{15};
    return process_.write(top_, std::as_bytes(std::span(words)));
  }

  TracedProcess& process_;
  const std::string own_;
  std::string linker_;
  std::vector<std::string> environment_;
  std::vector<Elf64_auxv_t> said_;
  uint64_t list_ = 0;  // of pointers to the environment's variables
  uint64_t string_bytes_ = 0, stack_ = 0, stack_bytes_ = 0, top_ = 0;
  uint64_t base_ = 0, entry_ = 0, headers_ = 0, header_count_ = 0;
};

}  // namespace

Result<int> put_library_beside(TracedProcess& process, const std::string& own) {
  return Putting(process, own).put();
}

}  // namespace ckpt::beside
