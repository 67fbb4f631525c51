#include "cli/image/core/demangle.h"

#include <gtest/gtest.h>

namespace ckpt::cli {

TEST(demangle, function_of_cxx_with_its_types) {
  EXPECT_EQ(function_name("_ZN4ckpt3runEi"), "ckpt::run(int)");
}

TEST(demangle, names_of_c_are_no_types) {
  for (const char* name : {"f", "i", "main", "v", "St", "_start", "_Zzz"})
    EXPECT_EQ(function_name(name), name);
}

TEST(demangle, version_is_left_out) { EXPECT_EQ(function_name("read@@GLIBC_2.2.5"), "read"); }

}  // namespace ckpt::cli
