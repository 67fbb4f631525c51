// Private mappings of memfds: which of them a restart maps privately from the memfd again.
//
// Owner:     libckpt_rt. Callers: the agent, threads standing, between the look at descriptors and the scan
//            of pages; the thread that goes back.
// Never:     touches the memory.
//
// Such a mapping shows what others write to the memfd, but for the pages that were written to through the
// mapping itself. So the image has only these pages. The other pages come from the memfd, which therefore has
// to come back whole: a descriptor of the program leads to it, or a shared mapping shows what this one does.
// Else the image has all of the mapping, as anonymous memory. So it has of huge pages (MFD_HUGETLB):
// `ckpt back` does not know their size in the program as it is now.
#pragma once

#include <span>

#include "libckpt_rt/capture/descriptors/table/descriptor.h"
#include "libckpt_rt/capture/memory/memory_map.h"

namespace ckpt {

void keep_views_of_memfds(std::span<Mapping> map, std::span<const CapturedDescriptor> descriptors);

}  // namespace ckpt
