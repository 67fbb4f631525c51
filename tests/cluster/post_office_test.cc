// Messages of plug-ins between hosts: nobody gets any before all have handed in, and each gets what is for
// it, once.
#include "cluster/protocol/post_office.h"

#include <gtest/gtest.h>

namespace ckpt::cluster {
namespace {

using Texts = std::vector<std::string>;

TEST(PostOffice, AllAndOne) {
  PostOffice office({"h1", "h2", "h3"});
  office.begin();
  office.submit(0, true, {{"*", "to all"}, {"h3", "to one"}});
  office.submit(1, false, {});
  EXPECT_TRUE(office.hand_out().empty());
  office.submit(1, true, {{"*", "twice in a round"}});
  EXPECT_TRUE(office.hand_out().empty());
  office.submit(2, false, {{"nowhere", "lost"}});
  auto out = office.hand_out();
  ASSERT_EQ(out.size(), 3u);
  EXPECT_EQ(out[0].texts, Texts{});
  EXPECT_EQ(out[1].texts, Texts{"to all"});
  EXPECT_EQ(out[2].texts, (Texts{"to all", "to one"}));
  for (size_t h = 0; h < 3; ++h) EXPECT_TRUE(out[h].more && office.waits(h));
  EXPECT_TRUE(office.hand_out().empty());
  for (size_t h = 0; h < 3; ++h) office.submit(h, false, {});
  out = office.hand_out();
  ASSERT_EQ(out.size(), 3u);
  for (const auto& d : out) EXPECT_TRUE(!d.more && d.texts.empty());
}

// Posts within a host concern no other, but make another round for all.
TEST(PostOffice, WithinAHost) {
  PostOffice office({"h1", "h2"});
  office.begin();
  office.submit(0, true, {});
  office.submit(1, false, {});
  const auto out = office.hand_out();
  ASSERT_EQ(out.size(), 2u);
  EXPECT_TRUE(out[0].more && out[1].more);
}

// A host whose coordinator has no plug-in is not waited for, and gets nothing.
TEST(PostOffice, WithoutPlugins) {
  PostOffice office({"h1", "h2"});
  office.begin();
  office.submit(0, true, {{"*", "text"}});
  office.comes_no_more(1);
  ASSERT_EQ(office.hand_out().size(), 2u);
  EXPECT_TRUE(office.waits(0));
  EXPECT_FALSE(office.waits(1));
  // All are on: nothing to hand out any more.
  office.comes_no_more(0);
  EXPECT_TRUE(office.hand_out().empty());
  office.begin();
  office.submit(0, false, {});
  EXPECT_TRUE(office.hand_out().empty());
}

}  // namespace
}  // namespace ckpt::cluster
