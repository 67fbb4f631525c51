// The names of hosts in a job, and where these hosts are now: one line for each part of a job over several
// hosts, and more where several parts have come to one host. docs/hosts.md, "Addresses of the job".
//
// Owner:     base: arithmetic on a table that somebody else holds. Callers: threads of the program in
//            interposed calls (libckpt_rt/interpose/addresses), ckpt-restart when it makes sockets again,
//            `ckpt`, which writes the table.
// Never:     allocates, locks, calls the kernel.
// Table:     line 0 is the own host. Then kPort, kSlice, the other hosts: the first line that fits counts,
//            line 0 last.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>

namespace ckpt {

enum class AddressLineKind : char {
  kHost = 'h',   // all ports of a host
  kPort = 'p',   // ports that sockets of the part had when it came here
  kSlice = 's',  // ports that the kernel chooses for this part from now on
};

// Addresses are 16 bytes, IPv4 as ::ffff:a.b.c.d; ports in the order of this machine's bytes.
struct AddressLine {
  uint8_t job[16];         // as the program knows it
  uint8_t machine[16];     // where it is
  uint16_t first, last;    // ports in the job
  uint16_t machine_first;  // the port on the machine that belongs to `first`
  AddressLineKind kind;
};

// As text: kind, both addresses, three ports, in hexadecimal digits; without an end of line.
inline constexpr size_t kAddressLineText = 1 + 32 + 32 + 4 + 4 + 4;

bool parse_address_line(const char* text, AddressLine& line);

struct PortAt {
  uint8_t address[16];
  uint16_t port;
};

// What the program says, to what the kernel is told. False: it stays as it is.
bool to_machine(std::span<const AddressLine> table, PortAt& at);
// What the kernel says, to what the program knows. job: the address of the part that is known to have it (16
// bytes); nullptr: the first that fits.
bool to_job(std::span<const AddressLine> table, PortAt& at, const uint8_t* job);

// The option that tells the kernel a slice: Linux 6.3. Before it the port is one of any part.
inline constexpr int kIpLocalPortRange = 51;  // IP_LOCAL_PORT_RANGE

// The slice of ports of the part of line 0; nullptr: it has all.
const AddressLine* own_slice(std::span<const AddressLine> table);

// Ports of the machine, as the option takes them.
struct PortRange {
  uint16_t first = 0, last = 0;
  uint32_t option() const { return first | uint32_t{last} << 16; }
  uint32_t ports() const { return uint32_t{last} - first + 1; }
};

// The next ports from `from` on, a port of own_slice()'s, behind its last one from its first on, that no
// socket of another part on that machine has by the table: the kernel gives one port to several connections,
// and then the port would not tell the part. False: all of the slice are such.
bool free_ports(std::span<const AddressLine> table, uint16_t from, PortRange& range);

}  // namespace ckpt
