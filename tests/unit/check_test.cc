#include "base/checks/check.h"

#include <gtest/gtest.h>

#include <thread>

namespace ckpt {
namespace {

class Check : public testing::Test {
 protected:
  void SetUp() override { check::set_policy(check::Policy::kHold); }
  void TearDown() override { check::set_policy(check::Policy::kAbort); }
};

TEST_F(Check, HasTheValueOfItsConditionAndEvaluatesItOnce) {
  check::ScopedChecks checks;
  int evaluated = 0;
  EXPECT_TRUE(CHECK(++evaluated == 1));
  EXPECT_EQ(evaluated, 1);
  EXPECT_TRUE(checks.result().ok());
  EXPECT_FALSE(CHECK(++evaluated == 1));
  EXPECT_EQ(evaluated, 2);
  EXPECT_FALSE(checks.result().ok());
}

TEST_F(Check, TheFirstFailureIsKeptWithBothSides) {
  check::ScopedChecks checks;
  const int planned = 3, copied = 4;
  EXPECT_FALSE(CHECK_EQ(planned, copied));
  EXPECT_FALSE(CHECK(copied == 5));
  const Result<void> result = checks.result();
  ASSERT_FALSE(result.ok());
  const std::string text(result.error().message());
  EXPECT_NE(text.find("check_test.cc:"), std::string::npos) << text;
  EXPECT_NE(text.find("CHECK_EQ(planned, copied): 3 and 4"), std::string::npos) << text;
  EXPECT_EQ(text.find("copied == 5"), std::string::npos) << text;
}

TEST_F(Check, EndsWithItsScope) {
  {
    check::ScopedChecks checks;
    CHECK(false);
    EXPECT_FALSE(checks.result().ok());
  }
  check::ScopedChecks next;
  EXPECT_TRUE(next.result().ok());
}

TEST_F(Check, WhatFailedBeforeTheScopeSpoilsIt) {
  CHECK(false);
  check::ScopedChecks checks;
  EXPECT_FALSE(checks.result().ok());
}

TEST_F(Check, LongTextsAreCut) {
  check::ScopedChecks checks;
  const std::string a(1000, 'a'), b(1000, 'b');
  EXPECT_FALSE(CHECK_EQ(a, b));
  EXPECT_FALSE(checks.result().ok());
  EXPECT_LT(checks.result().error().message().size(), 320u);
}

TEST_F(Check, AnyThreadsFailureCounts) {
  check::ScopedChecks checks;
  std::thread([] { CHECK(false); }).join();
  EXPECT_FALSE(checks.result().ok());
}

TEST(CheckAborts, WhereNobodyAsks) { EXPECT_DEATH(CHECK(1 + 1 == 3), "CHECK.1 . 1 == 3. does not hold"); }

}  // namespace
}  // namespace ckpt
