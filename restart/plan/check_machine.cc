#include "restart/plan/check_machine.h"

#include <sys/mman.h>

#include <cstring>

#include "base/machine/cpu_features.h"
#include "base/protocol/restart_protocol.h"
#include "restart/plan/memory/address_space.h"
#include "restart/plan/memory/memory_plan.h"
#include "restart/plan/vdso/old_vdso.h"

namespace ckpt {
namespace {

// The library's entry and state must be where memory will be.
Result<void> check_entry(const ImageChain& image) {
  const ProcessRecord& p = image.meta().process.record;
  bool entry = false, state = false;
  for (const ParsedMapping& m : image.meta().mappings) {
    if (!is_rebuilt(m)) continue;
    auto inside = [&](uint64_t at) { return m.record.start <= at && at < m.record.end; };
    if (inside(p.restart_entry)) entry = (m.record.prot & PROT_EXEC) != 0;
    if (inside(p.restart_state)) state = (m.record.prot & PROT_READ) != 0;
  }
  if (entry && state) return {};
  return make_error(ExitCode::kImageDamaged, 0,
                    "{}: the library's entry for restart ({:#x}) is in no code of the image", image.path(),
                    p.restart_entry);
}

Result<void> check_processor(const ParsedProcess& process) {
  uint64_t ours = read_xfeatures();
  if (uint64_t missing = process.record.xfeatures & ~ours; missing != 0) {
    return make_error(
        ExitCode::kIncompatible, 0,
        "this processor lacks register state that the image has (XCR0 bits {:#x} of {:#x}): restart on a "
        "machine with the processor features of the first one",
        missing, process.record.xfeatures);
  }
  CpuFeatures here = collect_cpu_features(), there;
  if (process.cpu_features.empty()) return {};
  if (process.cpu_features.size() != sizeof(there)) {
    return make_error(
        ExitCode::kIncompatible, 0,
        "the image describes its processor in {} bytes, this ckpt-restart in {}: use the ckpt-restart that "
        "belongs to the image's libckpt_rt.so",
        process.cpu_features.size(), sizeof(there));
  }
  std::memcpy(&there, process.cpu_features.data(), sizeof(there));
  for (size_t i = 0; i < std::size(there.word); ++i) {
    if (uint32_t missing = there.word[i] & ~here.word[i]; missing != 0) {
      return make_error(
          ExitCode::kIncompatible, 0,
          "this processor lacks instructions that the image's had (feature word {}, bits {:#x}): restart on "
          "a machine of the same or a newer kind",
          i, missing);
    }
  }
  return {};
}

}  // namespace

Result<void> check_machine(const ImageChain& image, const Vdso& ours) {
  const ParsedProcess& process = image.meta().process;
  const ProcessRecord& p = process.record;
  if (p.restart_protocol != kRestartProtocolVersion) {
    return make_error(
        ExitCode::kIncompatible, 0,
        "the library in this image speaks restart protocol {}, this ckpt-restart {}: use the ckpt-restart "
        "that came with it",
        p.restart_protocol, kRestartProtocolVersion);
  }
  CKPT_TRY(check_entry(image));
  CKPT_TRY(check_processor(process));
  if (is_other_vdso(image.meta(), ours)) CKPT_TRY(check_other_vdso(image.meta(), ours));
  for (const ParsedMapping& m : image.meta().mappings) {
    if (m.record.end > kTaskEnd && static_cast<MappingKind>(m.record.kind) != MappingKind::kLibraryOwned) {
      return make_error(
          ExitCode::kIncompatible, 0,
          "the program used addresses above 2^47 ({:#x}): restart on a processor with 5-level page tables",
          m.record.end);
    }
  }
  return {};
}

}  // namespace ckpt
