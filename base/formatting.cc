// The formatting of fmt 9, compiled once: what includes <fmt/core.h> only calls it, rather than compile it
// once more. The distribution's library would do for no preloaded library: it throws, and its symbols would
// be everybody's.
//
// Owner:     base. Callers: any thread; in the preloaded library with the flags of code for the victim.
// Never:     in a build with FMT_HEADER_ONLY, where nothing is left to compile.
#ifndef FMT_HEADER_ONLY
// No text of ours asks for a locale, whose code and tables would be most of the library.
#define FMT_STATIC_THOUSANDS_SEPARATOR ','
#include <fmt/format-inl.h>

#include "base/preload_rules.h"

FMT_BEGIN_NAMESPACE
namespace detail {

template auto thousands_sep_impl<char>(locale_ref) -> thousands_sep_result<char>;
template auto decimal_point_impl<char>(locale_ref) -> char;
template void buffer<char>::append(const char*, const char*);
template void vformat_to(buffer<char>&, basic_string_view<char>, basic_format_args<buffer_context<char>>,
                         locale_ref);

}  // namespace detail
FMT_END_NAMESPACE
#endif
