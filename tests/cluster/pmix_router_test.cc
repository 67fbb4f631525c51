// How the PMIx servers of a step's nodes come together in ckpt-srun, and where they have their files.
#include "cluster/srun/pmix/router.h"

#include <gtest/gtest.h>

#include "cluster/srun/pmix/directory.h"

namespace ckpt::cluster::srun {
namespace {

using What = PmixMessage::What;

// Ranks 0 and 1 on the first node, 2 on the second, 3 on the third.
Layout three_nodes() {
  Layout l;
  l.nodes = {"h1", "h2", "h3"};
  l.tasks = {{0, 1}, {2}, {3}};
  l.node_of = {0, 0, 1, 2};
  return l;
}

PmixMessage message(What what, uint64_t id, int rank, const std::string& ranks = "",
                    const std::string& data = "") {
  PmixMessage m;
  m.what = what;
  m.id = id;
  m.rank = rank;
  m.ranks = ranks;
  m.data = data;
  return m;
}

// What comes of it: "node:what:id:data", or the status in place of data, in order.
std::string hears(PmixRouter& router, int node, const PmixMessage& m) {
  PmixRouter::Actions actions;
  router.hear(node, m, actions);
  std::string all;
  for (const auto& [to, sent] : actions.send) {
    all += std::to_string(to) + ":" + static_cast<char>(sent.what) + ":" + std::to_string(sent.id) + ":" +
           (sent.status != 0 ? std::to_string(sent.status) : sent.data) + " ";
  }
  return all;
}

TEST(PmixDirectory, IsThereOnThisNode) {
  EXPECT_EQ(directory_of_pmix("/dev/shm"), "/dev/shm");
  for (const char* other : {"", "tmp", ".", "/no/such/directory", "/dev/null"})
    EXPECT_EQ(directory_of_pmix(other), "/tmp") << other;
  EXPECT_EQ(directory_of_pmix(nullptr), "/tmp");
}

TEST(PmixRouter, BringsFencesTogether) {
  PmixRouter router(three_nodes());
  EXPECT_EQ(hears(router, 1, message(What::kFence, 7, -1, "", "b")), "");
  EXPECT_EQ(hears(router, 0, message(What::kFence, 1, -1, "", "a")), "");
  // The first node is at the next one already; others have a fence of their own.
  EXPECT_EQ(hears(router, 0, message(What::kFence, 2, -1, "", "A")), "");
  EXPECT_EQ(hears(router, 0, message(What::kFence, 3, -1, "1,2", "x")), "");
  EXPECT_EQ(hears(router, 2, message(What::kFence, 9, -1, "1,2", "no rank of its own")), "");
  EXPECT_EQ(hears(router, 1, message(What::kFence, 8, -1, "1,2", "y")), "0:F:3:xy 1:F:8:xy ");
  EXPECT_EQ(hears(router, 2, message(What::kFence, 5, -1, "", "c")), "0:F:1:abc 1:F:7:abc 2:F:5:abc ");
  EXPECT_EQ(hears(router, 1, message(What::kFence, 9, -1, "", "B")), "");
  EXPECT_EQ(hears(router, 2, message(What::kFence, 6, -1, "", "C")), "0:F:2:ABC 1:F:9:ABC 2:F:6:ABC ");
  EXPECT_EQ(hears(router, 0, message(What::kFence, 4, -1, "0,17", "x")), "0:F:4:-46 ");
}

TEST(PmixRouter, KnowsASetHoweverItIsWritten) {
  PmixRouter router(three_nodes());
  EXPECT_EQ(hears(router, 0, message(What::kFence, 1, -1, "0,1,2,3", "a")), "");
  EXPECT_EQ(hears(router, 1, message(What::kFence, 2, -1, "", "b")), "");
  EXPECT_EQ(hears(router, 2, message(What::kFence, 3, -1, "0,1,1,2,3", "c")),
            "0:F:1:abc 1:F:2:abc 2:F:3:abc ");
  EXPECT_EQ(hears(router, 0, message(What::kFence, 4, -1, "0,0,2", "x")), "");
  EXPECT_EQ(hears(router, 1, message(What::kFence, 5, -1, "2,0", "y")), "0:F:4:xy 1:F:5:xy ");
}

TEST(PmixRouter, TakesQuestionsToTheirNode) {
  PmixRouter router(three_nodes());
  PmixRouter::Actions actions;
  router.hear(2, message(What::kAsk, 4, 1), actions);
  ASSERT_EQ(actions.send.size(), 1u);
  EXPECT_EQ(actions.send[0].first, 0);
  PmixMessage answer = actions.send[0].second;
  answer.what = What::kAnswer;
  answer.data = "put";
  EXPECT_EQ(hears(router, 0, answer), "2:A:4:put ");
  EXPECT_EQ(hears(router, 2, message(What::kAsk, 5, 4)), "2:A:5:-46 ");
  EXPECT_EQ(hears(router, 1, message(What::kAsk, 6, -2)), "1:A:6:-46 ");
}

TEST(PmixRouter, KnowsWhoIsIn) {
  PmixRouter router(three_nodes());
  hears(router, 1, message(What::kBegan, 0, 2));
  hears(router, 1, message(What::kBegan, 0, 3));  // not its own
  EXPECT_TRUE(router.is_in(2));
  EXPECT_FALSE(router.is_in(3));
  hears(router, 1, message(What::kFinished, 0, 2));
  EXPECT_FALSE(router.is_in(2));
  PmixRouter::Actions actions;
  PmixMessage abort = message(What::kAbort, 0, 3, "", "it says so");
  abort.status = 7;
  router.hear(2, abort, actions);
  EXPECT_EQ(actions.aborted_by, 3);
  EXPECT_EQ(actions.why, "it says so");
  EXPECT_EQ(actions.status, 7);
}

TEST(PmixRouter, ReadsWhatIsWritten) {
  PmixMessage m = message(What::kAsk, 1ull << 60, 3, "1,2", std::string("a\0b", 3)), read;
  m.node = 5;
  m.status = -46;
  ASSERT_TRUE(read_message(write_message(m), read));
  EXPECT_EQ(std::tie(read.what, read.id, read.rank, read.ranks, read.data, read.node, read.status),
            std::tie(m.what, m.id, m.rank, m.ranks, m.data, m.node, m.status));
  EXPECT_FALSE(read_message("none", read));
}

}  // namespace
}  // namespace ckpt::cluster::srun
