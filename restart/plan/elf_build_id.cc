#include "restart/plan/elf_build_id.h"

#include <elf.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <span>

namespace ckpt {
namespace {

bool read_at(int fd, void* to, size_t bytes, uint64_t offset) {
  return pread(fd, to, bytes, static_cast<off_t>(offset)) == static_cast<ssize_t>(bytes);
}

std::span<const std::byte> find_in_notes(std::span<const std::byte> notes, uint64_t align) {
  if (align != 8) align = 4;
  auto round_up = [&](uint64_t n) { return (n + align - 1) & ~(align - 1); };
  for (uint64_t at = 0; at + sizeof(Elf64_Nhdr) <= notes.size();) {
    Elf64_Nhdr head;
    std::memcpy(&head, &notes[at], sizeof(head));
    uint64_t name = at + sizeof(head);
    uint64_t body = name + round_up(head.n_namesz);
    uint64_t next = body + round_up(head.n_descsz);
    if (body + head.n_descsz > notes.size()) break;
    if (head.n_type == NT_GNU_BUILD_ID && head.n_namesz == 4 && std::memcmp(&notes[name], "GNU", 4) == 0) {
      return notes.subspan(body, head.n_descsz);
    }
    at = next;
  }
  return {};
}

}  // namespace

std::vector<std::byte> read_build_id(int fd) {
  Elf64_Ehdr elf;
  if (!read_at(fd, &elf, sizeof(elf), 0) || std::memcmp(elf.e_ident, ELFMAG, SELFMAG) != 0 ||
      elf.e_ident[EI_CLASS] != ELFCLASS64 || elf.e_phentsize != sizeof(Elf64_Phdr)) {
    return {};
  }
  constexpr uint64_t kMostNotes = 1 << 16;  // bytes
  for (unsigned i = 0; i < elf.e_phnum; ++i) {
    Elf64_Phdr part;
    if (!read_at(fd, &part, sizeof(part), elf.e_phoff + i * sizeof(part))) return {};
    if (part.p_type != PT_NOTE || part.p_filesz > kMostNotes) continue;
    std::vector<std::byte> notes(part.p_filesz);
    if (!read_at(fd, notes.data(), notes.size(), part.p_offset)) continue;
    if (auto id = find_in_notes(notes, part.p_align); !id.empty()) return {id.begin(), id.end()};
  }
  return {};
}

}  // namespace ckpt
