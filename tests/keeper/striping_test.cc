// Which host has which role in which stripe, and the names of parts.
#include <gtest/gtest.h>

#include <map>

#include "cluster/keeper/exchange.h"

namespace ckpt::keeper {

namespace {

TEST(Striping, EachHostHasEachRoleOnceInACycle) {
  for (unsigned hosts : {2u, 3u, 5u, 6u}) {
    for (unsigned checks = 1; checks < hosts; ++checks) {
      const std::vector<uint64_t> lengths(hosts, 3 * (hosts - checks) * kStripeBlock);
      const Striping s({redundancy::Kind::kReedSolomon, hosts - checks, checks}, lengths);
      EXPECT_EQ(s.stripes(), 3 * hosts);
      EXPECT_EQ(s.rotating(), s.stripes());
      for (unsigned host = 0; host < hosts; ++host) {
        uint64_t block = 0, check = 0;
        for (uint64_t stripe = 0; stripe < 3 * hosts; ++stripe) {
          EXPECT_EQ(s.host_of(s.role_of(host, stripe), stripe), host);
          if (s.role_of(host, stripe) < s.data()) {
            EXPECT_EQ(s.block_of(host, stripe), block++);
          } else {
            EXPECT_EQ(s.check_of(host, stripe), check++);
          }
        }
        EXPECT_EQ(block, 3 * (hosts - checks));
        EXPECT_EQ(check, 3 * checks);
      }
    }
  }
}

// The others give data in all stripes but those that the holders' own streams need; these turn.
TEST(Striping, ChecksAreOnTheHoldersAlone) {
  const std::vector<unsigned> holders{4, 1};
  const std::vector<uint64_t> lengths{9 * kStripeBlock, 1, 40 * kStripeBlock + 1, 0, 2 * kStripeBlock, 0};
  const Striping s({redundancy::Kind::kReedSolomon, 4, 2}, lengths, holders);
  EXPECT_EQ(s.rotating(), 6u);
  EXPECT_EQ(s.stripes(), 6u + 41 - 4);
  std::map<unsigned, int> encoded;
  for (unsigned host = 0; host < 6; ++host) {
    const bool holder = host == 4 || host == 1;
    uint64_t block = 0, check = 0;
    for (uint64_t stripe = 0; stripe < s.stripes(); ++stripe) {
      EXPECT_EQ(s.host_of(s.role_of(host, stripe), stripe), host);
      if (stripe >= s.rotating()) {
        EXPECT_EQ(s.role_of(host, stripe) >= s.data(), holder);
        if (s.encoder_of(stripe) == host) ++encoded[host];
      }
      if (s.role_of(host, stripe) < s.data())
        EXPECT_EQ(s.block_of(host, stripe), block++);
      else
        EXPECT_EQ(s.check_of(host, stripe), check++);
    }
    EXPECT_EQ(check, s.checks_on(host));
    EXPECT_GE(block * kStripeBlock, lengths[host]);
  }
  EXPECT_EQ(encoded, (std::map<unsigned, int>{{1, 18}, {4, 19}}));
  EXPECT_TRUE(are_holders(holders, {redundancy::Kind::kReedSolomon, 4, 2}, 6));
  for (const std::vector<unsigned>& wrong : {std::vector<unsigned>{1}, {1, 1}, {1, 6}, {1, 2, 3}})
    EXPECT_FALSE(are_holders(wrong, {redundancy::Kind::kReedSolomon, 4, 2}, 6));
}

// What comes to a host for one batch is in proportion to the hosts, not to their square, wherever the checks
// are.
TEST(Striping, ABatchIsBoundedByTheHosts) {
  for (const auto& [scheme, hosts, holders] : {std::tuple("parity", 32u, std::vector<unsigned>{}),
                                               {"parity", 32u, {31}},
                                               {"rs:30+2", 32u, {30, 31}}}) {
    const std::vector<uint64_t> lengths(hosts, 100 * kStripeBlock);
    const Striping s(*scheme_for_hosts(scheme, hosts), lengths, holders);
    for (uint64_t first = 0; first < s.stripes(); first += s.in_batch()) {
      std::vector<unsigned> blocks(hosts);
      for (uint64_t stripe = first; stripe < first + s.in_batch(); ++stripe)
        blocks[s.encoder_of(stripe)] += s.fans_in(stripe) ? 1 : s.data();
      EXPECT_LE(*std::max_element(blocks.begin(), blocks.end()), 4 * s.data()) << scheme << holders.size();
    }
  }
}

TEST(Striping, SchemesFitTheHosts) {
  EXPECT_EQ(scheme_for_hosts("parity", 5)->data, 4u);
  EXPECT_EQ(scheme_for_hosts("parity:2", 5)->data, 3u);
  EXPECT_EQ(scheme_for_hosts("evenodd", 6)->data, 4u);
  EXPECT_EQ(scheme_for_hosts("rs:3+2", 5)->checks, 2u);
  EXPECT_EQ(scheme_for_hosts("mirror", 4)->data, 2u);
  for (auto [text, hosts] :
       {std::pair("mirror", 3u), {"rs:4+2", 5u}, {"parity", 1u}, {"evenodd", 2u}, {"raid", 4u}})
    EXPECT_FALSE(scheme_for_hosts(text, hosts).ok()) << text;
}

TEST(PartFile, NamesStayInTheDirectory) {
  for (const char* good : {"12.ckpt", "job.files/1.2"}) EXPECT_TRUE(is_part_file_name(good));
  for (const char* bad : {"", ".", "..", "/etc", "a/../b", "a/b/c", "../x", "a/", "/"})
    EXPECT_FALSE(is_part_file_name(bad)) << bad;
}

}  // namespace

}  // namespace ckpt::keeper
