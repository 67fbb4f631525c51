// Pseudo-terminals of which the program itself has the master: OpenFileRecords of a kind and with a detail of
// their own.
//
// Owner:     image/format. Callers: the writer and readers of images.
// OpenFileRecord::value is the number N of /dev/pts/N. The other ends are of kind kTerminal, with that
// device.
#pragma once

#include "image/format/records/descriptor_records.h"

namespace ckpt {

inline constexpr auto kTerminalMaster = static_cast<OpenFileKind>(43);
inline constexpr auto kMasterDetail = static_cast<OpenFileDetail>(23);
inline constexpr auto kBegunLineDetail = static_cast<OpenFileDetail>(26);
inline constexpr uint32_t kTerminalSlaveMajor = 136;

enum MasterFlag : uint32_t {
  kMasterPacketMode = 1u << 0,  // TIOCPKT
  kMasterLocked = 1u << 1,      // TIOCSPTLCK: its other end may not be opened yet
  kMasterStopped = 1u << 3,     // output is stopped (TCOOFF, ^S)
  kMasterLeft = 1u << 2,        // whoever had the other end has closed it: reading gives EIO, not nothing yet
  kMasterEnded = 1u << 4,       // an end of input waits for the other end, and nothing else (Ctrl-D, VEOF)
  kMasterQuotes = 1u << 5,      // the next byte that is typed is taken as it is (Ctrl-V, VLNEXT)
};

struct MasterDetail {
  uint32_t flags;  // MasterFlag
  uint32_t input, output, control, local;
  uint8_t discipline;
  uint8_t characters[19];
  uint16_t rows, columns, width, height;
};

// A line that was begun in the other end, and has no end yet. Its bytes follow, filled up to a multiple of 8.
struct BegunLineDetail {
  uint32_t length;
  uint32_t reserved;
};

}  // namespace ckpt
