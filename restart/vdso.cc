#include "restart/vdso.h"

#include <elf.h>

#include <cstring>

#include "restart/address_space.h"
#include "writer/checksum.h"

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

// The dynamic symbols of an ELF image in memory. The vdso is the kernel's own: its structure is trusted.
struct SymbolTable {
  const Elf64_Sym* symbols = nullptr;
  const char* names = nullptr;
  size_t count = 0;
  uint64_t bias = 0;
};

SymbolTable symbols_of(uint64_t start) {
  SymbolTable table;
  auto* elf = reinterpret_cast<const Elf64_Ehdr*>(start);
  auto* parts = reinterpret_cast<const Elf64_Phdr*>(start + elf->e_phoff);
  const Elf64_Dyn* dynamic = nullptr;
  bool have_bias = false;
  for (int i = 0; i < elf->e_phnum; ++i) {
    if (parts[i].p_type == PT_DYNAMIC) dynamic = reinterpret_cast<const Elf64_Dyn*>(start + parts[i].p_offset);
    if (parts[i].p_type == PT_LOAD && !have_bias) {
      table.bias = start + parts[i].p_offset - parts[i].p_vaddr;
      have_bias = true;
    }
  }
  for (; dynamic != nullptr && dynamic->d_tag != DT_NULL; ++dynamic) {
    uint64_t at = dynamic->d_un.d_ptr + table.bias;
    if (dynamic->d_tag == DT_SYMTAB) table.symbols = reinterpret_cast<const Elf64_Sym*>(at);
    if (dynamic->d_tag == DT_STRTAB) table.names = reinterpret_cast<const char*>(at);
    // The string table follows the symbols.
  }
  if (table.symbols != nullptr && table.names != nullptr) {
    auto symbols = reinterpret_cast<uint64_t>(table.symbols), names = reinterpret_cast<uint64_t>(table.names);
    if (names > symbols) table.count = (names - symbols) / sizeof(Elf64_Sym);
  }
  return table;
}

}  // namespace

void* vdso_symbol(const Vdso& vdso, const char* name) {
  if (!vdso.present()) return nullptr;
  SymbolTable table = symbols_of(vdso.code.start.value);
  for (size_t i = 0; i < table.count; ++i) {
    const Elf64_Sym& s = table.symbols[i];
    if (s.st_shndx != SHN_UNDEF && std::strcmp(table.names + s.st_name, name) == 0) {
      return reinterpret_cast<void*>(table.bias + s.st_value);
    }
  }
  return nullptr;
}

}  // namespace ckpt
