#include "base/elf/static_go.h"

#include <elf.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/sys.h"
#include "base/preload_rules.h"

namespace ckpt {

namespace {

constexpr uint16_t kMostParts = 32;
constexpr uint32_t kGoBuildId = 4;  // the type of the note
constexpr char kGo[4] = "Go";       // its owner

bool read_at(int fd, void* to, uint64_t bytes, uint64_t offset) {
  return sys::call(__NR_pread64, fd, to, bytes, offset) == static_cast<long>(bytes);
}

bool has_go_build_id(int fd, const Elf64_Phdr& notes) {
  std::byte text[256];  // it is among the first: a thread that executes a program may have a small stack
  const uint64_t bytes = std::min<uint64_t>(notes.p_filesz, sizeof(text));
  if (!read_at(fd, text, bytes, notes.p_offset)) return false;
  constexpr uint64_t kAlignment = 3;
  for (uint64_t at = 0; at + sizeof(Elf64_Nhdr) <= bytes;) {
    Elf64_Nhdr note;
    std::memcpy(&note, text + at, sizeof(note));
    at += sizeof(note);
    const uint64_t owner = (uint64_t{note.n_namesz} + kAlignment) & ~kAlignment;
    if (note.n_type == kGoBuildId && note.n_namesz == sizeof(kGo) && at + owner <= bytes &&
        std::memcmp(text + at, kGo, sizeof(kGo)) == 0)
      return true;
    at += owner + ((uint64_t{note.n_descsz} + kAlignment) & ~kAlignment);
  }
  return false;
}

}  // namespace

bool is_static_go(int fd) {
  Elf64_Ehdr head;
  if (!read_at(fd, &head, sizeof(head), 0) || std::memcmp(head.e_ident, ELFMAG, SELFMAG) != 0 ||
      head.e_ident[EI_CLASS] != ELFCLASS64 || head.e_machine != EM_X86_64 ||
      head.e_phentsize != sizeof(Elf64_Phdr) || head.e_phnum > kMostParts)
    return false;
  bool go = false;
  for (uint16_t i = 0; i < head.e_phnum; ++i) {
    Elf64_Phdr part;
    if (!read_at(fd, &part, sizeof(part), head.e_phoff + i * sizeof(part))) return false;
    // Nearly always the second: of a dynamic program no more is read.
    if (part.p_type == PT_INTERP || part.p_type == PT_DYNAMIC || part.p_type == PT_TLS ||
        part.p_type == PT_GNU_RELRO)
      return false;
    go = go || (part.p_type == PT_NOTE && has_go_build_id(fd, part));
  }
  return go;
}

}  // namespace ckpt
