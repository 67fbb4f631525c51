// What of the descriptors is not as it was after a restart, in the user's words: said when all of the stop's
// looks are done.
//
// Owner:     DescriptorCapture. Callers: the agent, in the stop.
// Never:     asks about an open file.
#pragma once

#include <span>
#include <string_view>

#include "base/result.h"
#include "base/units.h"
#include "libckpt_rt/capture/descriptors/table/notes.h"
#include "libckpt_rt/capture/descriptors/table/open_files.h"
#include "libckpt_rt/capture/descriptors/table/partners.h"

namespace ckpt {

class DescriptorLosses {
 public:
  DescriptorLosses(const OpenFiles& files, DescriptorNotes& notes, const Partners& partners)
      : files_(files), notes_(notes), partners_(partners) {}
  DescriptorLosses(const DescriptorLosses&) = delete;
  DescriptorLosses& operator=(const DescriptorLosses&) = delete;

  // Mappings that are there for this checkpoint alone. The span must stay valid.
  void know_own(std::span<const AddrRange> ranges) { own_ = ranges; }
  Result<void> note_all();

 private:
  Result<void> note_pipe(const CapturedDescriptor& d);
  Result<void> note_process_file(const CapturedDescriptor& d);
  Result<void> note_half_read(const CapturedDescriptor& d, std::string_view rest);
  Result<void> note_pidfd(const CapturedDescriptor& d);
  Result<void> note_kind(const CapturedDescriptor& d);

  const OpenFiles& files_;
  DescriptorNotes& notes_;
  const Partners& partners_;
  std::span<const AddrRange> own_;
};

}  // namespace ckpt
