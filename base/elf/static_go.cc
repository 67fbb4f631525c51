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
constexpr uint16_t kMostSections = 64;
constexpr char kTableName[] = ".gopclntab";  // the section that Go's linker makes for its tracebacks

// The first bytes of that table (runtime.pcHeader).
struct TableHead {
  uint32_t version;  // 0xfffffffb up to Go 1.15, then 0xfffffffa, 0xfffffff0, 0xfffffff1 …
  uint8_t zeros[2];
  uint8_t quantum;  // of the machine's instructions
  uint8_t pointer;  // bytes
};
constexpr uint32_t kVersionOf115 = 0xfffffffb, kLeastVersion = 0xffffff00;

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

// Also of a program that was linked without a build id (-ldflags=-buildid=), or stripped. Go 1.16 and later:
// of those before, the table does not say which take the checkpoint's signal.
bool has_go_table(int fd, const Elf64_Ehdr& head) {
  Elf64_Shdr names;
  if (head.e_shentsize != sizeof(names) || head.e_shnum > kMostSections || head.e_shstrndx >= head.e_shnum ||
      !read_at(fd, &names, sizeof(names), head.e_shoff + head.e_shstrndx * sizeof(names)))
    return false;
  for (uint16_t i = 0; i < head.e_shnum; ++i) {
    Elf64_Shdr section;
    char name[sizeof(kTableName)];
    TableHead table;
    if (!read_at(fd, &section, sizeof(section), head.e_shoff + i * sizeof(section))) return false;
    if (section.sh_type != SHT_PROGBITS || section.sh_flags != SHF_ALLOC) continue;
    if (!read_at(fd, name, sizeof(name), names.sh_offset + section.sh_name) ||
        std::memcmp(name, kTableName, sizeof(name)) != 0)
      continue;
    return read_at(fd, &table, sizeof(table), section.sh_offset) && table.version >= kLeastVersion &&
           table.version != kVersionOf115 && table.zeros[0] == 0 && table.zeros[1] == 0 &&
           table.quantum == 1 && table.pointer == sizeof(void*);
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
  return go || has_go_table(fd, head);
}

}  // namespace ckpt
