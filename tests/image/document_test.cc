// docs/image_format.md cannot go stale: its example is what this code writes.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "image/format/image_format.h"
#include "tests/image/example_image.h"

namespace ckpt {
namespace {

TEST(Document, ExampleIsWhatIsWritten) {
  std::string bytes = example_image();
  ASSERT_FALSE(bytes.empty());
  std::ifstream in(CKPT_SOURCE_DIR "/docs/image_format.md");
  std::string document{std::istreambuf_iterator<char>(in), {}};
  EXPECT_TRUE(with_example(document, describe_image(bytes)) == document)
      << "the format has changed: run 'format_example --update docs/image_format.md', and see the version "
         "rule "
         "in that document";
  EXPECT_NE(document.find("Version " + std::to_string(kFormatVersion) + "."), std::string::npos);
}

}  // namespace
}  // namespace ckpt
