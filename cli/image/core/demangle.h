// Names of functions as people write them.
//
// Owner: cli/image. Callers: what shows backtraces.
#pragma once
#include <string>
#include <string_view>

namespace ckpt::cli {

// A symbol of C++ with its types and without a version ("read@@GLIBC_2.2.5" is read); any other as it is. A
// name of C is never taken for a mangled type: "f" is no float.
std::string function_name(std::string_view symbol);

}  // namespace ckpt::cli
