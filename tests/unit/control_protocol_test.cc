// What goes over the socket between a `ckpt` and a library that may be of another build.
#include "base/protocol/control_protocol.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <cstddef>
#include <cstring>
#include <type_traits>

namespace ckpt {
namespace {

TEST(ControlProtocol, HasTheLayoutOfItsVersion) {
  static_assert(std::is_trivially_copyable_v<ControlHello> && std::is_trivially_copyable_v<ControlRequest>);
  EXPECT_EQ(kControlVersion, 4u) << "a change of what follows, or of job/format/wire.h, is a new version";
  EXPECT_EQ(sizeof(ControlHello), 16u);
  EXPECT_EQ(offsetof(ControlHello, magic), 0u);
  EXPECT_EQ(offsetof(ControlHello, version), 4u);
  EXPECT_EQ(offsetof(ControlHello, pid), 8u);
  EXPECT_EQ(sizeof(ControlRequest), 16u);
  EXPECT_EQ(offsetof(ControlRequest, operation), 8u);
  EXPECT_EQ(offsetof(ControlRequest, flags), 12u);
  EXPECT_EQ(static_cast<uint32_t>(ControlOperation::kCheckpoint), 1u);
  EXPECT_EQ(static_cast<uint32_t>(ControlOperation::kStat), 2u);
  char magic[4];
  std::memcpy(magic, &kControlMagic, 4);
  EXPECT_EQ(std::string(magic, 4), "CTRC");
}

TEST(ControlProtocol, DefaultSignalIsOneAProgramMayHave) {
  EXPECT_GE(kDefaultCheckpointSignal, SIGRTMIN);
  EXPECT_LE(kDefaultCheckpointSignal, SIGRTMAX);
}

}  // namespace
}  // namespace ckpt
