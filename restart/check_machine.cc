#include "restart/check_machine.h"

#include <sys/utsname.h>

#include <cstring>

#include "base/cpu_features.h"
#include "base/restart_protocol.h"
#include "restart/address_space.h"

namespace ckpt {
namespace {

Result<void> check_processor(const ParsedProcess& process) {
  uint64_t ours = read_xfeatures();
  if (uint64_t missing = process.record.xfeatures & ~ours; missing != 0) {
    return make_error(ExitCode::kIncompatible, 0,
                      "this processor lacks register state that the image has (XCR0 bits {:#x} of {:#x}): restart on a "
                      "machine with the processor features of the first one",
                      missing, process.record.xfeatures);
  }
  CpuFeatures here = collect_cpu_features(), there;
  if (process.cpu_features.empty()) return {};
  if (process.cpu_features.size() != sizeof(there)) {
    return make_error(ExitCode::kIncompatible, 0,
                      "the image describes its processor in {} bytes, this ckpt-restart in {}: use the ckpt-restart that "
                      "belongs to the image's libckpt_rt.so",
                      process.cpu_features.size(), sizeof(there));
  }
  std::memcpy(&there, process.cpu_features.data(), sizeof(there));
  for (size_t i = 0; i < std::size(there.word); ++i) {
    if (uint32_t missing = there.word[i] & ~here.word[i]; missing != 0) {
      return make_error(ExitCode::kIncompatible, 0,
                        "this processor lacks instructions that the image's had (feature word {}, bits {:#x}): restart on "
                        "a machine of the same or a newer kind",
                        i, missing);
    }
  }
  return {};
}

}  // namespace

Result<void> check_machine(const ImageReader& image, const Vdso& ours) {
  const ParsedProcess& process = image.meta().process;
  const ProcessRecord& p = process.record;
  if (p.restart_protocol != kRestartProtocolVersion) {
    return make_error(ExitCode::kIncompatible, 0,
                      "the library in this image speaks restart protocol {}, this ckpt-restart {}: use the ckpt-restart "
                      "that came with it",
                      p.restart_protocol, kRestartProtocolVersion);
  }
  CKPT_TRY(check_processor(process));
  bool had_vdso = p.vdso_end > p.vdso_start;
  if (had_vdso != ours.present() || (had_vdso && p.vdso_hash != ours.hash)) {
    utsname here{};
    uname(&here);
    return make_error(ExitCode::kIncompatible, 0,
                      "the image was taken under another kernel: its vdso (the kernel's code in every program) is {:016x}, "
                      "that of {} here is {:016x}; restart under the kernel of the checkpoint",
                      p.vdso_hash, here.release, ours.hash);
  }
  for (const ParsedMapping& m : image.meta().mappings) {
    if (m.record.end > kTaskEnd && static_cast<MappingKind>(m.record.kind) != MappingKind::kLibraryOwned) {
      return make_error(ExitCode::kIncompatible, 0,
                        "the program used addresses above 2^47 ({:#x}): restart on a processor with 5-level page tables",
                        m.record.end);
    }
  }
  return {};
}

}  // namespace ckpt
