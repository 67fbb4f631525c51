// The table of settings: each variable once, with what it accepts, its default and what it means. From it
// come the parser (parse_settings), the options and help of `ckpt run`, the README's table, the heads of the
// settings' entries in the man pages (scripts/settings_docs.py writes them), and the list of `ckpt stat`.
//
// Owner:     base: constant data. Callers: any thread, in the program too.
// Never:     allocates. The preload constructor parses with it.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/settings/settings.h"

namespace ckpt {

// A name that a setting accepts, and the value of its enum.
struct Choice {
  const char* name;
  uint32_t value;
};

// A value as text, as the parser would take it. Cut where it is longer.
struct SettingText {
  char text[2100] = {};
};

// Where a setting may be given besides the environment, bits.
enum GivenBy : uint32_t {
  kByRun = 1u << 0,      // an option of `ckpt run`
  kByNow = 1u << 1,      // an option of `ckpt now`, for that checkpoint
  kByReaders = 1u << 2,  // an option of all commands that open images
};

struct Setting;

// How a value is read into its member of Settings, and printed from it as it could be read again.
struct ValueFunctions {
  Result<void> (*parse)(const Setting& setting, const char* text, Settings& out);
  void (*print)(const Setting& setting, const Settings& from, SettingText& out);
};

struct Setting {
  const char* variable;
  const char* option;   // of the commands in `given`; nullptr: none has it
  const char* value;    // the word that stands for the value in a line of usage: "TIME"
  const char* meaning;  // one line, no full stop
  // What is accepted, in words; where choices or a number's bounds say it all: nullptr (accepted_by()).
  const char* accepts;
  // What a value outside it is not: "X='…' is no MODE; use …".
  const char* noun;
  const char* when_empty;  // what holds where the default is an empty text, else nullptr
  const char* document;    // with more, from the root of the repository, or nullptr
  uint32_t given;          // GivenBy
  std::span<const Choice> choices;
  uint64_t least, most;  // of a number; bytes of a text, ns of a duration
  ValueFunctions functions;

  Result<void> parse(const char* text, Settings& out) const { return functions.parse(*this, text, out); }
  void print(const Settings& from, SettingText& out) const { functions.print(*this, from, out); }
};

// In the order in which they are shown.
std::span<const Setting> setting_table();
// nullptr: no such variable.
const Setting* find_setting(std::string_view variable);

// "auto, realtime or fork"; "a number from 0 to 254; 0: …".
void accepted_by(const Setting& setting, SettingText& out);

}  // namespace ckpt
