#include "libckpt_rt/capture/memory/protection_keys.h"

#include <sys/mman.h>

#include "base/machine/cpu_features.h"
#include "base/memory/large_table.h"
#include "base/protocol/restart_protocol.h"
#include "base/sys.h"
#include "libckpt_rt/capture/memory/memory_map.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::protection_keys {

namespace {

constexpr int kKeys = 16;  // of x86; 0 is everybody's

struct KeyedMemory {
  AddrRange range;
  uint32_t protection, key;
};

constinit uint32_t taken = 0;  // a bit for each key of the program
constinit uint32_t count = 0;
CKPT_LARGE_TABLE constinit KeyedMemory keyed[kMost]{};

// A bit for each key that can be had.
uint32_t take_all_keys() {
  uint32_t all = 0;
  for (long key; (key = sys::call(__NR_pkey_alloc, 0L, 0L)) > 0 && key < kKeys;) all |= 1u << key;
  return all;
}

void give_back(uint32_t keys) {
  for (int key = 1; key < kKeys; ++key) {
    if ((keys >> key & 1) != 0) sys::call(__NR_pkey_free, key);
  }
}

bool may_be_read_with(uint32_t keys, Addr word) {
  uint32_t rights = 0;
  for (int key = 0; key < kKeys; ++key) {
    if ((keys >> key & 1) == 0) rights |= 1u << (2 * key);
  }
  set_protection_key_rights(rights);
  // Copies what the pointer leads to before it looks at `how`, and changes nothing by one that does not
  // exist.
  constexpr int kNoSuchHow = -1;
  return sys::call(__NR_rt_sigprocmask, kNoSuchHow, word.value, 0L, 8L) != -EFAULT;
}

bool is_memory(const Mapping& m) {
  return m.kind != MappingKind::kDevice && m.kind != MappingKind::kVdso &&
         m.kind != MappingKind::kLibraryOwned;
}

uint32_t key_of(const Mapping& m) {
  if (!is_memory(m) || m.prot == PROT_NONE || may_be_read_with(1, m.range.start)) return 0;
  for (uint32_t key = 1; key < kKeys; ++key) {
    if ((taken >> key & 1) != 0 && may_be_read_with(1u | 1u << key, m.range.start)) return key;
  }
  return 0;  // behind the end of its file, or a guard region
}

}  // namespace

void look_for_keys_stopped(bool filtered) {
  taken = 0;
  if (filtered || !has_protection_keys()) return;
  constexpr uint32_t kAll = (1u << kKeys) - 2;
  const uint32_t free = take_all_keys();
  give_back(free);
  taken = kAll & ~free;
}

const char* capture_stopped(std::span<const Mapping> mappings) {
  count = 0;
  if (taken == 0) return nullptr;
  uint32_t of_kernel = 0;
  const char* lost = nullptr;
  for (const Mapping& m : mappings) {
    const uint32_t key = key_of(m);
    if (key == 0) continue;
    if (m.prot == PROT_EXEC) {
      of_kernel = key;
      continue;
    }
    if (count == kMost) {
      lost =
          "more memory has protection keys (pkey_mprotect) than is remembered: after a restart what they "
          "forbid is allowed in some of it";
      break;
    }
    keyed[count++] = {m.range, m.prot, key};
  }
  open_protection_keys();
  taken &= ~(1u << of_kernel);
  if (of_kernel > 1 && (taken & 2) != 0)
    lost =
        "the kernel took a protection key for memory that may be run and not read after the program had its "
        "first (pkey_alloc): after a restart the program has not all of its keys, and what they forbid is "
        "allowed";
  return lost;
}

uint32_t give_again() {
  if (taken == 0) return 0;
  const uint32_t got = take_all_keys();
  give_back(got & ~taken);
  uint32_t notes = (taken & ~got) != 0 ? kNoteKeys : 0u;
  for (uint32_t i = 0; i < count; ++i) {
    const KeyedMemory& k = keyed[i];
    if (sys::call(__NR_pkey_mprotect, k.range.start.value, k.range.size(), k.protection, k.key) != 0)
      notes |= kNoteKeys;
  }
  return notes;
}

}  // namespace ckpt::protection_keys
