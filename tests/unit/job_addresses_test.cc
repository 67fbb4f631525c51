// Which ports of a slice the kernel may choose from: none that the table gives to a socket of another part.
#include "base/sockets/job_addresses.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace ckpt {
namespace {

constexpr uint8_t kHere = 9, kElsewhere = 8;  // machines; parts are 1 to 3

AddressLine line(AddressLineKind kind, uint8_t part, uint8_t machine, uint16_t first, uint16_t last,
                 uint16_t machine_first) {
  AddressLine l{};
  l.job[15] = part;
  l.job[0] = l.machine[0] = 0xfd;  // no loopback
  l.machine[15] = machine;
  l.first = first;
  l.last = last;
  l.machine_first = machine_first;
  l.kind = kind;
  return l;
}

AddressLine host(uint8_t part, uint8_t machine) {
  return line(AddressLineKind::kHost, part, machine, 0, 65535, 0);
}
AddressLine slice(uint16_t first, uint16_t last) {
  return line(AddressLineKind::kSlice, 1, kHere, first, last, first);
}
AddressLine sockets(uint8_t part, uint8_t machine, uint16_t first, uint16_t last, uint16_t machine_first) {
  return line(AddressLineKind::kPort, part, machine, first, last, machine_first);
}

// All ports of free ranges, from each port of the slice on: each is to lead to the same ones.
std::set<int> all_free(const std::vector<AddressLine>& table, uint16_t first, uint16_t last) {
  std::set<int> all;
  for (uint32_t from = first; from <= last; ++from) {
    PortRange range;
    std::set<int> found;
    uint32_t at = from;
    // As PortChoice does: behind the last port of a range the next begins, until all were tried.
    for (uint32_t tried = 0; tried <= static_cast<uint32_t>(last - first);) {
      if (!free_ports(table, static_cast<uint16_t>(at), range)) break;
      EXPECT_LE(range.first, range.last);
      EXPECT_GE(range.first, first);
      EXPECT_LE(range.last, last);
      for (uint32_t port = range.first; port <= range.last; ++port) found.insert(static_cast<int>(port));
      tried += range.ports();
      at = range.last == last ? first : range.last + 1u;
    }
    if (from == first) all = found;
    EXPECT_EQ(found, all) << "from " << from;
  }
  return all;
}

TEST(JobAddresses, APortOfAnotherPartIsNotFree) {
  const std::vector<AddressLine> table = {
      host(1, kHere),
      sockets(1, kHere, 1003, 1004, 1003),       // its own: may have another connection
      sockets(1, kHere, 1006, 1006, 20000),      // its own, exchanged: 1006 there would be two of its ports
      sockets(2, kHere, 1010, 1012, 1010),       // another's
      sockets(2, kHere, 500, 500, 1013),         // exchanged for one in the slice
      sockets(3, kHere, 1020, 1020, 1020),       // the last
      sockets(3, kHere, 1000, 1000, 1000),       // the first
      sockets(2, kElsewhere, 1008, 1008, 1008),  // of another machine
      slice(1000, 1020),
      host(2, kHere),
      host(3, kHere)};
  const std::set<int> taken = {1000, 1006, 1010, 1011, 1012, 1013, 1020};
  std::set<int> expected;
  for (int port = 1000; port <= 1020; ++port) {
    if (taken.count(port) == 0) expected.insert(port);
  }
  EXPECT_EQ(all_free(table, 1000, 1020), expected);
  // A port that is free, at the other end: of this part, by its own number.
  for (const int port : expected) {
    PortAt at{};
    at.address[0] = 0xfd;
    at.address[15] = kHere;
    at.port = static_cast<uint16_t>(port);
    ASSERT_TRUE(to_job(table, at, nullptr));
    EXPECT_EQ(at.address[15], 1) << port;
    EXPECT_EQ(at.port, port);
  }
}

TEST(JobAddresses, ASliceMayHaveNoPortLeft) {
  PortRange range;
  EXPECT_FALSE(free_ports(std::vector{host(1, kHere), host(2, kHere)}, 1000, range)) << "no slice";
  EXPECT_FALSE(free_ports(std::vector{host(1, kHere), sockets(2, kHere, 1000, 1004, 1000), slice(1000, 1004)},
                          1002, range));
  ASSERT_TRUE(
      free_ports(std::vector{host(1, kHere), sockets(2, kHere, 65530, 65535, 65530), slice(65000, 65535)},
                 65533, range));
  EXPECT_EQ(range.first, 65000);
  EXPECT_EQ(range.last, 65529);
}

}  // namespace
}  // namespace ckpt
