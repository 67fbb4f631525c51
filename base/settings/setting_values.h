// How the kinds of values of settings are read and printed: texts, choices, numbers, sizes, durations. Each
// is a pair of functions for one member of Settings, for the table (base/settings/settings_table.cc).
//
// Owner: base. Callers: any thread, the preload constructor too. Never: allocates.
#pragma once

#include <string_view>

#include "base/settings/settings_table.h"

namespace ckpt::setting_values {

// Decimal digits at the start of text; rest gets what follows. False on none or overflow.
bool leading_number(std::string_view text, uint64_t* number, std::string_view* rest);

// The largest unit that gives a whole number: "64K", "2s". 0 is "0".
void print_size(uint64_t bytes, SettingText& out);
void print_duration(int64_t ns, SettingText& out);

// The error for a text that is not an accepted value: "X='…' is no NOUN; use …".
Error refused(const Setting& setting, const char* text);

const char* choice_name(std::span<const Choice> choices, uint32_t value);  // "?": none
Result<uint32_t> parse_choice(const Setting& setting, const char* text);
Result<uint64_t> parse_number(const Setting& setting, const char* text);  // within its bounds
Result<void> parse_text(const Setting& setting, const char* text, char* out, size_t size);
void print_text(const char* text, SettingText& out);
void print_number(uint64_t number, SettingText& out);

template <auto kMember>
struct Text {
  static Result<void> parse(const Setting& s, const char* text, Settings& out) {
    return parse_text(s, text, out.*kMember, sizeof(out.*kMember));
  }
  static void print(const Setting&, const Settings& from, SettingText& out) {
    print_text(from.*kMember, out);
  }
};

template <auto kMember>
struct OneOf {
  static Result<void> parse(const Setting& s, const char* text, Settings& out) {
    auto value = parse_choice(s, text);
    if (!value.ok()) return value.error();
    using Enum = std::remove_reference_t<decltype(out.*kMember)>;
    out.*kMember = static_cast<Enum>(*value);
    return {};
  }
  static void print(const Setting& s, const Settings& from, SettingText& out) {
    print_text(choice_name(s.choices, static_cast<uint32_t>(from.*kMember)), out);
  }
};

template <auto kMember>
struct Number {
  static Result<void> parse(const Setting& s, const char* text, Settings& out) {
    auto number = parse_number(s, text);
    if (!number.ok()) return number.error();
    out.*kMember = static_cast<std::remove_reference_t<decltype(out.*kMember)>>(*number);
    return {};
  }
  static void print(const Setting&, const Settings& from, SettingText& out) {
    print_number(static_cast<uint64_t>(from.*kMember), out);
  }
};

// 0 may lie below the least: it is "never", and then `accepts` says so.
template <auto kMember, bool kZero>
struct Duration {
  static Result<void> parse(const Setting& s, const char* text, Settings& out) {
    auto ns = parse_duration(s.variable, text);
    if (!ns.ok()) return ns.error();
    const bool zero = *ns == 0 && kZero;
    if (!zero && static_cast<uint64_t>(*ns) < s.least) return refused(s, text);
    out.*kMember = *ns;
    return {};
  }
  static void print(const Setting&, const Settings& from, SettingText& out) {
    print_duration(from.*kMember, out);
  }
};

// "0" is off, all else on.
template <auto kMember>
struct Switch {
  static Result<void> parse(const Setting&, const char* text, Settings& out) {
    out.*kMember = std::string_view(text) != "0";
    return {};
  }
  static void print(const Setting&, const Settings& from, SettingText& out) {
    print_text(from.*kMember ? "1" : "0", out);
  }
};

}  // namespace ckpt::setting_values
