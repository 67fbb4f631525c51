// What is the same at both ends of two texts, and nothing more.
#include "libckpt_rt/capture/memory/text_change.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace ckpt {
namespace {

// The change is right: outside of it both texts are the same, line by line.
void check(const std::string& before, const std::string& after) {
  const TextChange c = find_change(before, after);
  ASSERT_LE(c.start, c.before_end);
  ASSERT_LE(c.start, c.after_end);
  EXPECT_EQ(before.substr(0, c.start), after.substr(0, c.start));
  EXPECT_EQ(before.substr(c.before_end), after.substr(c.after_end));
  for (auto [text, at] :
       {std::pair(&before, c.start), {&before, c.before_end}, {&after, c.start}, {&after, c.after_end}}) {
    EXPECT_TRUE(at == 0 || at == text->size() || (*text)[at - 1] == '\n') << at;
  }
  EXPECT_EQ(c.none(before, after), before == after);
}

TEST(TextChange, SmallTexts) {
  check("", "");
  check("", "a\n");
  check("a\n", "");
  check("a\nb\n", "a\nb\n");
  check("a\nb\nc\n", "a\nc\n");
  check("a\nc\n", "a\nb\nc\n");
  check("x\nx\n", "x\nx\nx\n");
  check("10\n20\n", "1\n20\n");
  check("ab\nb\n", "b\n");
}

TEST(TextChange, NamesTheLinesThatDiffer) {
  const std::string before = "1 a\n2 b\n3 c\n4 d\n", after = "1 a\n2 x\n25 y\n4 d\n";
  const TextChange c = find_change(before, after);
  EXPECT_EQ(before.substr(c.start, c.before_end - c.start), "2 b\n3 c\n");
  EXPECT_EQ(after.substr(c.start, c.after_end - c.start), "2 x\n25 y\n");
}

TEST(TextChange, AnyChangeOfAnyLengthIsFound) {
  std::minstd_rand random(1);
  for (int round = 0; round < 300; ++round) {
    std::string before;
    const size_t lines = random() % 700;
    for (size_t i = 0; i < lines; ++i)
      before += std::to_string(random() % 3) + std::string(random() % 40, 'x') + "\n";
    std::string after = before;
    for (unsigned change = random() % 4; change > 0 && !after.empty(); --change) {
      size_t line = after.rfind('\n', random() % after.size());
      line = line == std::string::npos ? 0 : line + 1;
      if (random() % 2 == 0)
        after.insert(line, std::to_string(random() % 3) + "\n");
      else
        after.erase(line, after.find('\n', line) + 1 - line);
    }
    check(before, after);
  }
}

}  // namespace
}  // namespace ckpt
