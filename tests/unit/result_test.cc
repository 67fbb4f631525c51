#include "base/result.h"

#include <errno.h>
#include <gtest/gtest.h>

#include <string>

namespace ckpt {
namespace {

TEST(Result, CutsALongMessageAndTakesEitherSignOfErrno) {
  std::string path(1000, 'p');
  Error e = make_error(ExitCode::kIo, -ENOSPC, "cannot write {}", path);
  EXPECT_EQ(e.sys_errno, ENOSPC);
  EXPECT_EQ(e.message().size(), sizeof(e.text) - 1);
  EXPECT_TRUE(e.message().starts_with("cannot write ppp"));
  EXPECT_EQ(make_error(ExitCode::kIo, ENOSPC, "x").sys_errno, ENOSPC);
}

TEST(Result, NamesErrors) {
  EXPECT_STREQ(errno_name(ENOSPC), "ENOSPC");
  EXPECT_STREQ(errno_name(-EACCES), "EACCES");
  EXPECT_STREQ(errno_name(9999), "E?");
}

Result<int> half(int n) {
  if (n % 2 != 0) return make_error(ExitCode::kUsage, 0, "{} is odd", n);
  return n / 2;
}
Result<int> quarter(int n) {
  CKPT_TRY(half(n));
  return half(n / 2);
}

TEST(Result, PassesTheFirstErrorOn) {
  EXPECT_EQ(*quarter(8), 2);
  EXPECT_EQ(quarter(3).error().message(), "3 is odd");
  EXPECT_EQ(quarter(6).error().message(), "3 is odd");
  EXPECT_EQ(quarter(6).error().code, ExitCode::kUsage);
}

}  // namespace
}  // namespace ckpt
