#include "libckpt_rt/capture/descriptors/content/attributes.h"

#include <algorithm>
#include <string_view>

#include "base/memory/bytes.h"
#include "libckpt_rt/core/kernel/descriptor_info.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

Result<void> FileAttributes::take(CapturedDescriptor& d) {
  constexpr size_t kLongestValue = 64 << 10;  // XATTR_SIZE_MAX
  TaskPath path(access_.tid_of(d), "fd", d.fd);
  const long size = sys::call(__NR_listxattr, path.c_str(), 0L, 0L);
  if (size <= 0) return {};
  auto* names = static_cast<char*>(files_.arena().allocate(static_cast<size_t>(size), 1));
  if (names == nullptr) return arena_full(files_.arena());
  const long n = sys::call(__NR_listxattr, path.c_str(), names, size);
  if (n <= 0) return {};
  ByteWriter out(files_.arena());
  out.raw(d.details, d.details_len);
  std::string_view left(names, static_cast<size_t>(n));
  while (!left.empty()) {
    const std::string_view name = left.substr(0, left.find('\0'));
    left.remove_prefix(std::min(name.size() + 1, left.size()));
    if (!name.starts_with("user.") && name != "system.posix_acl_access") continue;
    if (value_ == nullptr) value_ = static_cast<std::byte*>(files_.arena().allocate(kLongestValue));
    std::byte* const value = value_;
    if (value == nullptr) return arena_full(files_.arena());
    const long length = sys::call(__NR_getxattr, path.c_str(), name.data(), value, kLongestValue);
    if (length < 0) {
      CKPT_TRY(notes_.add(kChanged, "descriptor {} ({}): the attribute {} cannot be read ({}), and is lost",
                          d.fd, d.path, name, errno_name(static_cast<int>(length))));
      continue;
    }
    const AttributeDetail attribute{static_cast<uint32_t>(name.size()), static_cast<uint32_t>(length)};
    const uint64_t bytes = sizeof(attribute) + name.size() + static_cast<uint64_t>(length);
    out.put(DetailHeader{static_cast<uint32_t>(OpenFileDetail::kAttribute),
                         static_cast<uint32_t>((bytes + 7) & ~uint64_t{7})});
    out.put(attribute);
    out.raw(reinterpret_cast<const std::byte*>(name.data()), name.size());
    out.raw(value, static_cast<size_t>(length));
    out.pad_to(8);
  }
  if (!out.ok()) return arena_full(files_.arena());
  d.details = out.span().data();
  d.details_len = static_cast<uint32_t>(out.size());
  return {};
}

}  // namespace ckpt
