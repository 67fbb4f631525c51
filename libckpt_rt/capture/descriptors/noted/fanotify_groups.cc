#include "libckpt_rt/capture/descriptors/noted/fanotify_groups.h"

#include <atomic>

#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::fanotify_groups {
namespace {

// relaxed, all: system calls lie between, and the agent looks when the program stands.
constinit std::atomic<uint32_t> makers{0};           // bits of GroupMaker
constinit std::atomic<uint32_t> begun{0}, ended{0};  // calls that make groups that others ask for permission

}  // namespace

void note_made(bool with_rights) {
  makers.fetch_or(static_cast<uint32_t>(with_rights ? GroupMaker::kHadRights : GroupMaker::kHadNone),
                  std::memory_order_relaxed);
}

GroupMaker made_by() { return static_cast<GroupMaker>(makers.load(std::memory_order_relaxed)); }

void before_permissions() { begun.fetch_add(1, std::memory_order_relaxed); }
void after_permissions() { ended.fetch_add(1, std::memory_order_relaxed); }
uint32_t permissions() { return ended.load(std::memory_order_relaxed); }
bool may_permit_since(uint32_t permissions) { return begun.load(std::memory_order_relaxed) != permissions; }

}  // namespace ckpt::fanotify_groups
