// ckpt-restart's own descriptors in the child, above every number that the saved process used, so
// that they are never in the way and one close_range ends them all.
//
// Owner:     restart. One WorkingFds in the child (of a job, one in the planter too), from before the first
//            saved descriptor is made until the restorer closes everything from first() on.
// Callers:   restart/tree, restart/job, restart/descriptors, restart/channels, restart/plan: one thread.
// Never:     closes or replaces a descriptor below first(), but in hold_numbers() and park_at_home().
#pragma once

#include <cstdint>
#include <map>
#include <span>

#include "base/raii_fd.h"
#include "base/result.h"

namespace ckpt {

class WorkingFds {
 public:
  // highest_saved: the highest descriptor number in the image, -1 if none. Raises the soft limit on
  // descriptors as far as the hard one allows, and the hard one where that is allowed; kUnavailable when even
  // that leaves no room.
  Result<void> open_above(int highest_saved);

  // The lowest number that is ours.
  int first() const { return first_; }
  bool is_working(int fd) const { return fd >= first_; }

  // Moves fd up, close-on-exec; the old number is closed. `what` is for the message.
  Result<int> park(ScopedFd fd, const char* what);

  // From here on every saved number is taken by something that stands for what will be there: nothing is made
  // at such a number by chance. homes: the lowest number of each open file of the image, by id.
  Result<void> hold_numbers(std::span<const int> numbers, std::map<uint32_t, int> homes);
  // Moves fd to the number where the open file will be in the end, which costs none of ours; up where it has
  // none, or numbers are not held. The caller must not close a descriptor that is at its home number:
  // is_working() tells.
  Result<int> park_at_home(ScopedFd fd, uint32_t open_file, const char* what);

  // Objects that mappings and descriptors share (memfds, files without a name): whoever creates one
  // first adds a descriptor open for reading and writing under its object number.
  int find_object(uint64_t object) const;  // -1: not there yet
  Result<int> add_object(uint64_t object, ScopedFd fd, const char* what);
  // The objects that the planter of the job has made: already above first().
  void know_objects(const std::map<uint64_t, int>& objects) {
    objects_.insert(objects.begin(), objects.end());
  }
  const std::map<uint64_t, int>& objects() const { return objects_; }

 private:
  int first_ = 3;
  std::map<uint64_t, int> objects_;
  std::map<uint32_t, int> homes_;
};

}  // namespace ckpt
