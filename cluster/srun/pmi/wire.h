// The two forms of PMI on the socket of a task (PMI_FD): lines of words (PMI-1), and after
// `cmd=init pmi_version=2` messages of pairs with their length ahead (PMI-2).
//
//   PMI-1   cmd=put kvsname=7.0 key=P0 value=abc\n            cmd=put_result rc=0\n
//   PMI-2   "41    cmd=kvs-put;key=P0;value=abc;thrid=0;"     "29    cmd=kvs-put-response;rc=0;"
//
// Owner:     cluster/srun/pmi. Pure: bytes in, messages out. Any thread.
// Callers:   the server.
// Never:     keeps more than kMostMessage bytes of a message, whatever the task writes.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ckpt::cluster::srun {

inline constexpr size_t kMostMessage = 128 << 10;

struct PmiMessage {
  std::string command;
  std::vector<std::pair<std::string, std::string>> pairs;  // in their order
  // Empty if there is none.
  std::string get(std::string_view key) const;
  bool is_true(std::string_view key) const;  // TRUE, as PMI-2 says it
  bool second = false;                       // it came in the form of PMI-2
};

class PmiReader {
 public:
  // False: what was written is no PMI; nothing more is read.
  bool feed(std::string_view bytes, std::vector<PmiMessage>& messages);

 private:
  bool take_line(std::string_view line, std::vector<PmiMessage>& messages);
  std::string left_;
  PmiMessage spawn_;  // PMI-1 spreads it over lines, up to `endcmd`
  size_t spawn_bytes_ = 0;
  bool in_spawn_ = false, second_ = false, broken_ = false;
};

// An answer in the form that the task speaks.
std::string write_message(bool second, const PmiMessage& message);

}  // namespace ckpt::cluster::srun
