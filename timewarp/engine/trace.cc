#include "timewarp/engine/trace.h"

namespace ckpt::timewarp {

void Trace::write(FILE* file, int64_t start, unsigned process, unsigned thread) const {
  static constexpr const char* kNames[] = {"event", "rollback", "GVT"};
  std::fprintf(file,
               R"({"name":"thread_name","ph":"M","pid":%u,"tid":%u,"args":{"name":"thread %u"}},)"
               "\n",
               process, thread, thread);
  for (const TraceEntry& e : entries_) {
    std::fprintf(file, R"({"name":"%s","ph":"X","ts":%.3f,"dur":%.3f,"pid":%u,"tid":%u,"args":{"time":%.17g)",
                 kNames[static_cast<unsigned>(e.kind)], static_cast<double>(e.begin - start) / 1e3,
                 static_cast<double>(e.end - e.begin) / 1e3, process, thread, e.time < 1e300 ? e.time : -1.0);
    if (e.kind != Kind::kGvt) std::fprintf(file, R"(,"LP":%u)", e.lp);
    if (e.kind == Kind::kRollback) std::fprintf(file, R"(,"undone":%u)", e.count);
    std::fputs("}},\n", file);
  }
  if (left_out_ != 0) {
    std::fprintf(file,
                 R"({"name":"%llu more not recorded","ph":"i","ts":%.3f,"pid":%u,"tid":%u,"s":"t"},)"
                 "\n",
                 static_cast<unsigned long long>(left_out_),
                 static_cast<double>(entries_.back().end - start) / 1e3, process, thread);
  }
}

}  // namespace ckpt::timewarp
