// The reader of a job's manifest, and the plan of births made from it, on any bytes. Most inputs get the
// right checksum before they are tried, so that the checks behind it are reached: those that begin with '!'
// arrive as they are behind that.
#include <string>
#include <string_view>

#include "image/format/checksum.h"
#include "image/read/manifest.h"
#include "restart/job/birth_plan.h"
#include "tests/fuzz/verdict.h"

namespace {

std::string sealed(std::string text) {
  constexpr std::string_view kKey = "\"checksum\"";
  const size_t at = text.rfind(kKey);
  if (at == text.npos) return text;
  const auto sum = ckpt::checksum_of(std::as_bytes(std::span(text.data(), at)));
  return text.substr(0, at) + fmt::format("{}: \"{:016x}\"}}", kKey, sum);
}

// What was taken, as one number.
uint64_t number_of(const ckpt::Manifest& manifest, const ckpt::BirthPlan& plan) {
  std::string all;
  for (const auto& m : manifest.members) {
    all += fmt::format("{} {} {} {} {} {} {} {};", m.pid, m.ppid, m.pgid, m.sid, m.name, m.image,
                       static_cast<int>(m.state), m.exit_status);
  }
  for (size_t i = 0; i < plan.births.size(); ++i) {
    const auto& b = plan.births[i];
    all += fmt::format("{} {} {} {} {} {};", static_cast<int>(b.kind), b.pid, b.sid, b.pgid, b.parent,
                       plan.final_parent(static_cast<int>(i)));
  }
  return ckpt::checksum_of(std::as_bytes(std::span(all)));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string text(reinterpret_cast<const char*>(data), size);
  text = !text.empty() && text[0] == '!' ? text.substr(1) : sealed(std::move(text));
  auto manifest = ckpt::parse_manifest(text, "manifest");
  if (!manifest.ok()) {
    ckpt::judge(manifest.error(), "manifest");
    return 0;
  }
  int next = 5'000'000;
  const auto* root = manifest->member(manifest->root);
  auto plan = ckpt::plan_births(*manifest, {root->sid, root->pgid}, [&] { return next++; });
  if (plan.ok()) {
    ckpt::judge(number_of(*manifest, *plan), "manifest");
  } else {
    ckpt::judge(plan.error(), "manifest");
  }
  return 0;
}
