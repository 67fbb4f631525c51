#include "heap/hooks.h"

#include "heap/region.h"
#include "base/preload_rules.h"

namespace ckpt::heap {
namespace {

char* offset_by(void* start, size_t offset) { return static_cast<char*>(start) + offset; }

void* alloc(extent_hooks_t*, void* where, size_t size, size_t alignment, bool* zero, bool* commit, unsigned) {
  void* got = extend(where, size, alignment);
  if (got != nullptr) *zero = *commit = true;
  return got;
}

// These say true for "no".
bool commit_part(extent_hooks_t*, void* start, size_t, size_t offset, size_t length, unsigned) {
  commit(offset_by(start, offset), length);
  return false;
}

bool decommit_part(extent_hooks_t*, void* start, size_t, size_t offset, size_t length, unsigned) {
  return !decommit(offset_by(start, offset), length);
}

bool split(extent_hooks_t*, void*, size_t, size_t, size_t, bool, unsigned) { return false; }

bool merge(extent_hooks_t*, void* a, size_t, void* b, size_t, bool, unsigned) { return !may_merge(a, b); }

}  // namespace

// jemalloc does without the hooks that are missing: dalloc, destroy (nothing is unmapped: it keeps the
// extent), purge_lazy and purge_forced (decommit says what a purge would, and more: jemalloc asks commit
// before it uses the extent again, and takes it for zeros then).
constinit extent_hooks_t extent_hooks{alloc,   nullptr, nullptr, commit_part, decommit_part,
                                      nullptr, nullptr, split,   merge};

}  // namespace ckpt::heap
