#include "base/sockets/job_addresses.h"

#include <algorithm>

#include "base/preload_rules.h"

namespace ckpt {
namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool take_bytes(const char*& text, uint8_t* bytes, size_t n) {
  for (size_t i = 0; i < n; ++i, text += 2) {
    const int high = hex_digit(text[0]), low = high < 0 ? -1 : hex_digit(text[1]);
    if (low < 0) return false;
    bytes[i] = static_cast<uint8_t>(high << 4 | low);
  }
  return true;
}

bool take_port(const char*& text, uint16_t& port) {
  uint8_t bytes[2];
  if (!take_bytes(text, bytes, 2)) return false;
  port = static_cast<uint16_t>(bytes[0] << 8 | bytes[1]);
  return true;
}

bool same(const uint8_t (&one)[16], const uint8_t (&other)[16]) {
  return std::memcmp(one, other, sizeof(one)) == 0;
}

// An address by which a program means its own host, whatever that is: the wildcard, or the loopback.
bool is_any_or_loopback(const uint8_t (&a)[16]) {
  constexpr uint8_t kFour[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff}, kZeros[15] = {};
  if (std::memcmp(a, kFour, sizeof(kFour)) == 0)
    return a[12] == 127 || (a[12] == 0 && a[13] == 0 && a[14] == 0 && a[15] == 0);
  return std::memcmp(a, kZeros, sizeof(kZeros)) == 0 && a[15] <= 1;
}

// Line 0 is looked at last: two parts of the job may be on one host.
const AddressLine& line_at(std::span<const AddressLine> table, size_t i) {
  return table[(i + 1) % table.size()];
}

// Ports [first, last] of the machine that mean a socket of another part, or another port of this one.
bool is_taken(const AddressLine& line, const AddressLine& slice, uint32_t& first, uint32_t& last) {
  if (line.kind != AddressLineKind::kPort || !same(line.machine, slice.machine)) return false;
  const bool of_own = same(line.job, slice.job);
  first = of_own ? line.first : line.machine_first;
  last = first + (line.last - line.first);
  return !of_own || line.first != line.machine_first;
}

// From `first` on, up to `last`: the first ports that are not taken.
bool next_free(std::span<const AddressLine> table, const AddressLine& slice, uint32_t& first,
               uint32_t& last) {
  for (bool moved = true; moved;) {
    moved = false;
    for (const AddressLine& line : table) {
      uint32_t taken_first, taken_last;
      if (!is_taken(line, slice, taken_first, taken_last) || first < taken_first || first > taken_last)
        continue;
      first = taken_last + 1;
      moved = true;
    }
  }
  if (first > last) return false;
  for (const AddressLine& line : table) {
    uint32_t taken_first, taken_last;
    if (is_taken(line, slice, taken_first, taken_last) && taken_first > first)
      last = std::min(last, taken_first - 1);
  }
  return true;
}

}  // namespace

bool parse_address_line(const char* text, AddressLine& line) {
  const char kind = *text++;
  if (kind != 'h' && kind != 'p' && kind != 's') return false;
  line.kind = static_cast<AddressLineKind>(kind);
  return take_bytes(text, line.job, sizeof(line.job)) &&
         take_bytes(text, line.machine, sizeof(line.machine)) && take_port(text, line.first) &&
         take_port(text, line.last) && take_port(text, line.machine_first) && line.first <= line.last &&
         line.machine_first <= 65535 - (line.last - line.first);
}

bool to_machine(std::span<const AddressLine> table, PortAt& at) {
  const bool here = is_any_or_loopback(at.address);
  for (size_t i = 0; i < table.size(); ++i) {
    const AddressLine& line = line_at(table, i);
    if (at.port < line.first || at.port > line.last) continue;
    if (here && line.kind == AddressLineKind::kPort && same(line.job, table[0].job)) {
      at.port = static_cast<uint16_t>(line.machine_first + (at.port - line.first));
      return true;
    }
    if (here || !same(line.job, at.address)) continue;
    std::memcpy(at.address, line.machine, sizeof(at.address));
    at.port = static_cast<uint16_t>(line.machine_first + (at.port - line.first));
    return true;
  }
  return false;
}

bool to_job(std::span<const AddressLine> table, PortAt& at, const uint8_t* job) {
  const bool here = is_any_or_loopback(at.address);
  for (size_t i = 0; i < table.size(); ++i) {
    const AddressLine& line = line_at(table, i);
    if (at.port < line.machine_first || at.port - line.machine_first > line.last - line.first) continue;
    const bool of_own = same(line.job, table[0].job);
    const auto port = static_cast<uint16_t>(line.first + (at.port - line.machine_first));
    if (here && line.kind == AddressLineKind::kPort && of_own) {
      at.port = port;
      return true;
    }
    if (here || !same(line.machine, at.address)) continue;
    if (job != nullptr && std::memcmp(line.job, job, sizeof(line.job)) != 0) continue;
    std::memcpy(at.address, line.job, sizeof(at.address));
    at.port = port;
    return true;
  }
  return false;
}

const AddressLine* own_slice(std::span<const AddressLine> table) {
  for (const AddressLine& line : table) {
    if (line.kind == AddressLineKind::kSlice && same(line.job, table[0].job)) return &line;
  }
  return nullptr;
}

bool free_ports(std::span<const AddressLine> table, uint16_t from, PortRange& range) {
  const AddressLine* const slice = own_slice(table);
  if (slice == nullptr) return false;
  // From `from` to the end, then all of it: what is before `from` is free or not whatever is behind it.
  for (uint32_t first = from, looks = 0; looks < 2; first = slice->machine_first, ++looks) {
    uint32_t last = slice->last;
    if (next_free(table, *slice, first, last)) {
      range = {static_cast<uint16_t>(first), static_cast<uint16_t>(last)};
      return true;
    }
  }
  return false;
}

}  // namespace ckpt
