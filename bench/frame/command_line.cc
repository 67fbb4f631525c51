#include "bench/frame/command_line.h"

#include <CLI/CLI.hpp>

namespace bench {

struct CommandLine::Parser {
  CLI::App app;

  template <typename Number>
  void number(const std::string& option, Number& value, const std::string& description, Number least,
              Number most) {
    CLI::Option* added = app.add_option(option, value, description)->capture_default_str();
    if (least != std::numeric_limits<Number>::lowest() || most != std::numeric_limits<Number>::max())
      added->check(CLI::Range(least, most));
  }
};

CommandLine::CommandLine(const std::string& name, const std::string& description, const std::string& footer)
    : parser_(new Parser{CLI::App(description, name)}) {
  parser_->app.footer(footer);
  parser_->app.set_version_flag("--version", name + " " CKPT_VERSION);
}

CommandLine::~CommandLine() = default;

void CommandLine::number(const std::string& option, unsigned& value, const std::string& description,
                         unsigned least, unsigned most) {
  parser_->number(option, value, description, least, most);
}
void CommandLine::number(const std::string& option, uint64_t& value, const std::string& description,
                         uint64_t least, uint64_t most) {
  parser_->number(option, value, description, least, most);
}
void CommandLine::number(const std::string& option, int64_t& value, const std::string& description,
                         int64_t least, int64_t most) {
  parser_->number(option, value, description, least, most);
}
void CommandLine::number(const std::string& option, double& value, const std::string& description,
                         double least, double most) {
  parser_->number(option, value, description, least, most);
}

void CommandLine::size(const std::string& option, uint64_t& value, const std::string& description,
                       uint64_t least) {
  CLI::Option* added = parser_->app.add_option(option, value, description)
                           ->transform(CLI::AsSizeValue(false))
                           ->type_name("SIZE")
                           ->capture_default_str();
  if (least != 0) added->check(CLI::Range(least, std::numeric_limits<uint64_t>::max()));
}

void CommandLine::text(const std::string& option, std::string& value, const std::string& description) {
  parser_->app.add_option(option, value, description)->capture_default_str();
}

void CommandLine::file(const std::string& option, std::string& value, const std::string& description) {
  parser_->app.add_option(option, value, description)->type_name("FILE");
}

void CommandLine::one_of(const std::string& option, std::string& value,
                         const std::vector<std::string>& choices, const std::string& description) {
  parser_->app.add_option(option, value, description)->check(CLI::IsMember(choices))->capture_default_str();
}

void CommandLine::flag(const std::string& option, bool& value, const std::string& description) {
  parser_->app.add_flag(option, value, description);
}

std::optional<int> CommandLine::parse(int argc, char** argv, bool silent) {
  constexpr int kUsage = 64;
  try {
    parser_->app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (!silent) parser_->app.exit(e);
    return e.get_exit_code() == 0 ? 0 : kUsage;
  }
  return std::nullopt;
}

}  // namespace bench
