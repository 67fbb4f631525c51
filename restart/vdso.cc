#include "restart/vdso.h"

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

}  // namespace ckpt
