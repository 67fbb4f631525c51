#include "cli/image/core/demangle.h"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>

namespace ckpt::cli {

std::string function_name(std::string_view symbol) {
  std::string name(symbol.substr(0, symbol.find('@')));
  if (!name.starts_with("_Z")) return name;
  int status = 0;
  std::unique_ptr<char, decltype(&free)> text(abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status),
                                              free);
  return status == 0 && text ? text.get() : name;
}

}  // namespace ckpt::cli
