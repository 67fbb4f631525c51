// The command line of a bench program. CLI11 is behind it: its templates take longer to compile than all of a
// program, so they are compiled once for all programs.
//
// Owner:     bench/frame. One object a program, in main().
// Values:    what a variable holds is the default, which --help shows.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace bench {

class CommandLine {
 public:
  CommandLine(const std::string& name, const std::string& description, const std::string& footer);
  ~CommandLine();

  // option: "-n,--cities". Only numbers from least to most are taken.
  void number(const std::string& option, unsigned& value, const std::string& description, unsigned least = 0,
              unsigned most = std::numeric_limits<unsigned>::max());
  void number(const std::string& option, uint64_t& value, const std::string& description, uint64_t least = 0,
              uint64_t most = std::numeric_limits<uint64_t>::max());
  void number(const std::string& option, int64_t& value, const std::string& description, int64_t least,
              int64_t most);
  void number(const std::string& option, double& value, const std::string& description, double least,
              double most);
  // 4096, 64K, 256M, 1G (powers of 1024).
  void size(const std::string& option, uint64_t& value, const std::string& description, uint64_t least = 0);
  void text(const std::string& option, std::string& value, const std::string& description);
  void file(const std::string& option, std::string& value, const std::string& description);
  void one_of(const std::string& option, std::string& value, const std::vector<std::string>& choices,
              const std::string& description);
  void flag(const std::string& option, bool& value, const std::string& description);

  // Nothing: go on. Else the program ends with this exit code; what there is to say has been said, unless
  // `silent`.
  std::optional<int> parse(int argc, char** argv, bool silent = false);

 private:
  struct Parser;
  std::unique_ptr<Parser> parser_;
};

}  // namespace bench
