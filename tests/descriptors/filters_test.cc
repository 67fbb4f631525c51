// Filters of what a socket takes.
#include <linux/bpf.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/descriptors/harness.h"

namespace ckpt::test {
namespace {

class Filters : public testing::TestWithParam<bool> {
 protected:
  Filters() { trip.executor = GetParam(); }
  RoundTrip trip;
};
INSTANTIATE_TEST_SUITE_P(Sampled, Filters, testing::Values(true, false), how_sampled);

void bound_udp(int fd) {
  move_to(socket(AF_INET, SOCK_DGRAM, 0), fd);
  const sockaddr_in any = loopback(0);
  VERIFY(bind(fd, reinterpret_cast<const sockaddr*>(&any), sizeof(any)) == 0);
}

TEST_P(Filters, ALockedFilterStaysLocked) {
  trip.setup = [&] {
    bound_udp(7);
    sock_filter all{BPF_RET | BPF_K, 0, 0, 0xffff};
    const sock_fprog program{1, &all};
    const int on = 1;
    VERIFY(setsockopt(7, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)) == 0);
    VERIFY(setsockopt(7, SOL_SOCKET, SO_LOCK_FILTER, &on, sizeof(on)) == 0);
  };
  trip.verify = [&] {
    int locked = 0;
    socklen_t length = sizeof(locked);
    VERIFY(getsockopt(7, SOL_SOCKET, SO_LOCK_FILTER, &locked, &length) == 0);
    VERIFY_EQ(locked, 1);
    VERIFY(setsockopt(7, SOL_SOCKET, SO_DETACH_FILTER, &locked, sizeof(locked)) == -1);
    VERIFY_EQ(errno, EPERM);
  };
  trip.run();
  EXPECT_TRUE(trip.notes.empty());
  EXPECT_TRUE(trip.lines.empty()) << trip.lines[0];
}

// A program that takes all.
int ebpf_program() {
  const bpf_insn all[] = {{BPF_ALU64 | BPF_MOV | BPF_K, 0, 0, 0, 0xffff}, {BPF_JMP | BPF_EXIT, 0, 0, 0, 0}};
  static const char license[] = "GPL";
  bpf_attr attributes{};
  attributes.prog_type = BPF_PROG_TYPE_SOCKET_FILTER;
  attributes.insns = reinterpret_cast<uint64_t>(all);
  attributes.insn_cnt = 2;
  attributes.license = reinterpret_cast<uint64_t>(license);
  return static_cast<int>(syscall(SYS_bpf, BPF_PROG_LOAD, &attributes, sizeof(attributes)));
}

TEST_P(Filters, AProgramOfEbpfIsNamed) {
  const int probe = ebpf_program();
  if (probe < 0) GTEST_SKIP() << "this kernel, or user, loads no eBPF";
  close(probe);
  trip.setup = [&] {
    bound_udp(7);
    const int program = ebpf_program();
    VERIFY(setsockopt(7, SOL_SOCKET, SO_ATTACH_BPF, &program, sizeof(program)) == 0);
    close(program);
  };
  trip.run();
  ASSERT_EQ(trip.notes.size(), 1u);
  EXPECT_NE(trip.notes[0].find("SO_ATTACH_BPF"), std::string::npos) << trip.notes[0];
}

}  // namespace
}  // namespace ckpt::test
