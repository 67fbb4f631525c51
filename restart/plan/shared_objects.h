// Objects that several mappings (or other processes) may share and that no path leads to: shared
// anonymous memory, memfds, SysV segments, mapped files without a name.
//
// Owner:     restart. Callers: the child process, before the restorer runs; before that, of a job, the
//            planter.
// Each is made once. Memory that a descriptor can stand for is mapped from it by the restorer; the
// rest (shared anonymous, SysV) is mapped here, inside the restorer range, and the restorer makes
// further views of it. Contents come with the pages of the mappings, or from FileContentRecords.
#pragma once

#include <map>
#include <set>
#include <string>

#include "base/units.h"
#include "image/read/image_meta.h"
#include "restart/files/working_fds.h"
#include "restart/reports/report.h"

namespace ckpt {

struct SharedObject {
  MappingKind kind = MappingKind::kSharedAnonymous;
  const ParsedMapping* first = nullptr;
  uint64_t size = 0;  // bytes, as recorded; without a descriptor: at least to the end of its last mapping
  uint64_t view = 0;  // address of byte 0; 0 when it is mapped from a descriptor
};

class SharedObjects {
 public:
  explicit SharedObjects(const ImageMeta& meta);

  // Bytes of address space that views need.
  uint64_t view_bytes() const;
  // Makes all of them; views from `at` on, where view_bytes() are reserved.
  // known: of a job, where the planter has mapped those without a descriptor.
  Result<void> make(uint64_t at, WorkingFds& fds, ReportChannel& report,
                    const std::map<uint64_t, uint64_t>* known = nullptr);
  // The objects without a descriptor, by object number: where they are mapped since make().
  std::map<uint64_t, uint64_t> views() const;

  std::set<uint64_t> numbers() const;
  bool is_shared_object(const ParsedMapping& m) const { return objects_.count(m.record.object) != 0; }
  const SharedObject& of(const ParsedMapping& m) const { return objects_.at(m.record.object); }

 private:
  Result<void> make_file(uint64_t number, SharedObject& object, WorkingFds& fds);
  Result<void> map_known(const SharedObject& object, uint64_t from, uint64_t at);
  Result<void> make_anonymous(SharedObject& object, uint64_t at);
  Result<void> make_sysv(SharedObject& object, uint64_t at, ReportChannel& report);

  const ImageMeta& meta_;
  std::map<uint64_t, SharedObject> objects_;
};

}  // namespace ckpt
