#include "cluster/redundancy/scheme.h"

#include <charconv>
#include <optional>

namespace ckpt::redundancy {

namespace {

std::optional<unsigned> number(std::string_view text) {
  unsigned n = 0;
  auto [end, bad] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (bad != std::errc() || end != text.data() + text.size() || n == 0) return std::nullopt;
  return n;
}

Error wrong(std::string_view text, std::string_view why) {
  return make_error(
      ExitCode::kUsage, 0,
      "redundancy \"{}\": {}; give mirror, parity, parity:M, evenodd or rs:K+M, for example rs:4+2", text,
      why);
}

}  // namespace

Result<Scheme> parse_scheme(std::string_view text, unsigned data) {
  const size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  const bool has_more = colon != text.npos;
  const std::string_view more = has_more ? text.substr(colon + 1) : std::string_view();
  Scheme scheme;
  scheme.data = data;
  if (name == "rs") {
    const size_t plus = more.find('+');
    const auto k = number(more.substr(0, plus));
    const auto m = plus == more.npos ? std::nullopt : number(more.substr(plus + 1));
    if (!k || !m) return wrong(text, "K and M are numbers from 1 on");
    if (data != 0 && *k != data)
      return wrong(text, fmt::format("K is {}, and there are {} blocks", *k, data));
    scheme = {Kind::kReedSolomon, *k, *m};
  } else if (data == 0) {
    return wrong(text, "there is nothing to protect");
  } else if (name == "mirror" && !has_more) {
    scheme = {Kind::kMirror, data, data};
  } else if (name == "evenodd" && !has_more) {
    scheme = {Kind::kEvenOdd, data, 2};
  } else if (name == "parity") {
    const auto groups = has_more ? number(more) : std::optional<unsigned>(1);
    if (!groups) return wrong(text, "M is a number from 1 on");
    if (*groups > data) return wrong(text, fmt::format("{} groups of {} blocks", *groups, data));
    scheme = {Kind::kParity, data, *groups};
  } else {
    return wrong(text, "not known");
  }
  if (scheme.data + scheme.checks > kMostBlocks && scheme.kind != Kind::kMirror)
    return wrong(text, fmt::format("more than {} blocks in all", kMostBlocks));
  return scheme;
}

std::string scheme_name(const Scheme& scheme) {
  switch (scheme.kind) {
    case Kind::kMirror:
      return "mirror";
    case Kind::kParity:
      return scheme.checks == 1 ? "parity" : fmt::format("parity:{}", scheme.checks);
    case Kind::kEvenOdd:
      return "evenodd";
    case Kind::kReedSolomon:
      return fmt::format("rs:{}+{}", scheme.data, scheme.checks);
  }
  return "";
}

unsigned survives(const Scheme& scheme) {
  return scheme.kind == Kind::kMirror || scheme.kind == Kind::kParity ? 1 : scheme.checks;
}

}  // namespace ckpt::redundancy
