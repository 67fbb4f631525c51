// A line that was begun in a pseudo-terminal which gives whole lines (ICANON), and has no end yet. read(2)
// does not give it, and FIONREAD does not count it.
//
// The terminal itself prints it: on the character of VREPRINT (Ctrl-R) it echoes the begun line to the
// master, and leaves it as it is. So no byte is taken out, and none is put back: whoever is killed meanwhile
// loses nothing but the settings. For the time of the look the settings make the echo one of the bytes
// themselves. ICANON and EXTPROC stay as they are: a change of them makes the begun line readable.
//
// Owner:     base. Callers: look: the agent, in the stop, while nobody else writes, reads or sets the
//            terminal. type: a parked thread of `ckpt back`; ckpt-restart.
// Never:     libc, allocates. 512 bytes of stack.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ckpt {

struct BegunLine {
  bool known = false;   // false: it is too long (more than 4,093 bytes), or the terminal did not print it
  bool quotes = false;  // the next byte is taken as it is (VLNEXT, Ctrl-V)
  size_t length = 0;    // 0: no line is begun
};

// What the terminal can print at most.
inline constexpr size_t kMostOfBegunLine = 4096;

// Needed: nothing waits to be read at either end (no end of input either), and output is not stopped. Where
// all is known the line is at the beginning of `room`, which has kMostOfBegunLine bytes.
BegunLine look_at_begun_line(int master, int slave, std::span<std::byte> room);

// Needed: nothing waits (no end of input either), and the settings are those under which it was begun.
// Nothing of it is echoed. 0, or -errno.
long type_begun_line(int master, int slave, std::span<const std::byte> line, bool quotes);

}  // namespace ckpt
