// The text of /proc/self/maps. It is read once while the program runs, and once more in the stop, there by
// two threads if it is long.
//
// Owner:     libckpt_rt, one for each MemoryMap. Callers: the agent. Never: allocates but from the Arena
//            given.
//
// Nearly all of the time goes by in the kernel, which writes a line for each mapping, and there is no way to
// ask it for the second half: a position in the file is a number of bytes, and to get there it writes what
// comes before. But a file that has been read in part remembers the address at which to go on. So one is read
// up to about the middle ahead of the stop, and in the stop another thread reads it to its end (the rest)
// while the agent reads one from its beginning (the front). The lines of the rest are as of the stop: the
// kernel writes them when they are read, and keeps nothing back if each read has room for all that it writes
// at once, a page.
//
// Where the two meet: nothing changes in the stop, so both are parts of one text. The rest has all mappings
// from its first line on, whichever that is - what was in the middle may have gone, grown, or been joined
// with what lies before it. The front is read until it has come as far, and cut in front of a line that
// begins there.
#pragma once

#include <span>
#include <string_view>

#include "base/memory/arena.h"
#include "base/raii_fd.h"
#include "base/result.h"
#include "libckpt_rt/core/threads/of_ours/other_threads.h"

namespace ckpt {

class MapsText {
 public:
  // Keeps a file open for read_again(), if there is much text.
  Result<void> read_ahead(Arena& arena);
  // As it was.
  std::string_view ahead() const { return ahead_; }
  // As it is, good until the next call. *fits is false if there is no room: much has been mapped since.
  Result<std::string_view> read_again(const OtherThreads& others, bool* fits);

 private:
  struct Part {
    ScopedFd file;
    std::span<char> room;
    size_t have = 0;
    bool at_end = false;
    long error = 0;
    std::string_view text() const { return {room.data(), have}; }
    bool full() const { return have == room.size(); }
    void read_more();
  };
  Result<void> read_to_middle(Arena& arena);
  static void read_rest(void* part);

  std::string_view ahead_;
  Part front_, rest_;
  bool has_rest_ = false;
  uint64_t middle_ = 0;  // an address: how far the front has to go, if nothing has changed
};

}  // namespace ckpt
