#include "restart/plan/vdso/vdso.h"

#include <elf.h>

#include <cstring>

#include "image/format/checksum.h"
#include "restart/plan/memory/address_space.h"

namespace ckpt {

Result<Vdso> find_vdso() {
  auto maps = own_mappings();
  if (!maps.ok()) return maps.error();
  Vdso vdso;
  for (const OwnMapping& m : *maps) {
    bool code = m.name == "[vdso]";
    if (!code && m.name.rfind("[vvar", 0) != 0) continue;
    vdso.pieces.push_back({m.range, code});
    if (code) vdso.code = m.range;
  }
  if (vdso.present()) vdso.hash = checksum_of({vdso.code.start.as<const std::byte>(), vdso.code.size()});
  return vdso;
}

namespace {

// Reads structs out of an ELF image in memory, where file offsets are offsets from its start.
class ElfBytes {
 public:
  explicit ElfBytes(std::span<const std::byte> bytes) : bytes_(bytes) {}
  template <typename T>
  bool read(uint64_t at, T& value) const {
    if (at > bytes_.size() || bytes_.size() - at < sizeof(T)) return false;
    std::memcpy(&value, bytes_.data() + at, sizeof(T));
    return true;
  }
  std::string text(uint64_t at) const {
    std::string s;
    for (char c = 0; read(at, c) && c != '\0'; ++at) s += c;
    return s;
  }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace

std::vector<VdsoSymbol> vdso_symbols(std::span<const std::byte> code) {
  ElfBytes elf(code);
  Elf64_Ehdr head;
  if (!elf.read(0, head) || std::memcmp(head.e_ident, ELFMAG, SELFMAG) != 0) return {};
  uint64_t bias = 0, dynamic = 0;  // addresses in the file minus offsets
  for (int i = head.e_phnum - 1; i >= 0; --i) {
    Elf64_Phdr part;
    if (!elf.read(head.e_phoff + static_cast<unsigned>(i) * sizeof(part), part)) return {};
    if (part.p_type == PT_DYNAMIC) dynamic = part.p_offset;
    if (part.p_type == PT_LOAD) bias = part.p_vaddr - part.p_offset;
  }
  uint64_t symbols = 0, names = 0;
  Elf64_Dyn entry;
  for (uint64_t at = dynamic; dynamic != 0 && elf.read(at, entry) && entry.d_tag != DT_NULL;
       at += sizeof(entry)) {
    if (entry.d_tag == DT_SYMTAB) symbols = entry.d_un.d_ptr - bias;
    if (entry.d_tag == DT_STRTAB) names = entry.d_un.d_ptr - bias;
  }
  std::vector<VdsoSymbol> result;
  // As ld lays it out, the strings follow the symbols.
  Elf64_Sym symbol;
  for (uint64_t at = symbols; symbols != 0 && at + sizeof(symbol) <= names && elf.read(at, symbol);
       at += sizeof(symbol)) {
    if (symbol.st_shndx == SHN_UNDEF || ELF64_ST_TYPE(symbol.st_info) != STT_FUNC) continue;
    uint64_t offset = symbol.st_value - bias;
    if (offset < code.size()) result.push_back({elf.text(names + symbol.st_name), offset, symbol.st_size});
  }
  return result;
}

}  // namespace ckpt
