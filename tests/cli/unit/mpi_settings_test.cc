// What of the user's settings leads MPI to an adapter, and what of a launcher's line is a setting.
#include "cli/hosts/job/mpi_settings.h"

#include <gtest/gtest.h>

#include "cli/hosts/job/mpi_launcher.h"

namespace ckpt::cli {
namespace {

const std::vector<std::string> kFabric{"/dev/infiniband/uverbs0"}, kCopies{"/dev/xpmem"};

MpiSettings settings(const std::vector<std::pair<std::string, std::string>>& all) {
  MpiSettings made;
  for (const auto& [name, value] : all) made[name] = {value, "here"};
  return made;
}

bool leads(const std::vector<std::pair<std::string, std::string>>& all, bool open_mpi = false,
           const std::vector<std::string>& adapters = kFabric) {
  return !setting_for_adapters(settings(all), adapters, open_mpi).empty();
}

TEST(MpiSettings, ThatLeadToAnAdapter) {
  EXPECT_EQ(setting_for_adapters(settings({{"OMPI_MCA_btl", "self, openib"}}), kFabric, true),
            "OMPI_MCA_btl=self, openib (here)");
  EXPECT_TRUE(leads({{"UCX_TLS", "rc_x,sm"}}));
  EXPECT_TRUE(leads({{"UCX_NET_DEVICES", "mlx5_0:1"}}));
  EXPECT_TRUE(leads({{"FI_PROVIDER", "verbs;ofi_rxm"}}));
  EXPECT_TRUE(leads({{"UCX_TLS", "^rc"}}));
  EXPECT_TRUE(leads({{"UCX_TLS", "^tcp"}}));
  EXPECT_TRUE(leads({{"FI_PROVIDER", "^tcp"}}));
  EXPECT_TRUE(leads({{"OMPI_MCA_pml", "cm"}}, true));
  EXPECT_TRUE(leads({{"OMPI_MCA_pml", "ucx"}, {"UCX_TLS", "rc"}}, true));
  EXPECT_TRUE(leads({{"OMPI_MCA_smsc", "xpmem"}}, true, kCopies));
}

TEST(MpiSettings, ThatDoNot) {
  EXPECT_FALSE(leads({{"OMPI_MCA_btl", "^openib"}, {"OMPI_MCA_pml", "ob1"}}, true));
  EXPECT_FALSE(leads({{"UCX_TLS", "tcp,sm,self"}, {"UCX_NET_DEVICES", "eth0,mlx5_0:1"}}));
  EXPECT_FALSE(leads({{"FI_PROVIDER", "tcp;ofi_rxm"}}));
  EXPECT_FALSE(leads({{"UCX_TLS", "^ib"}}));
  EXPECT_FALSE(leads({{"UCX_TLS", "^rc,ud,dc,rdmacm"}}));
  EXPECT_FALSE(leads({{"FI_PROVIDER", "^verbs"}}));
  EXPECT_FALSE(leads({{"OMPI_MCA_pml", "cm"}, {"OMPI_MCA_mtl", "ofi"}}, true));
  // Open MPI does not read it: nobody has told it to go by UCX.
  EXPECT_FALSE(leads({{"UCX_TLS", "rc"}}, true));
  // There is no such adapter.
  EXPECT_FALSE(leads({{"UCX_TLS", "rc,xpmem"}}, false, {"/dev/knem"}));
  EXPECT_FALSE(leads({{"UCX_TLS", "all"}}, false, {}));
}

TEST(MpiSettings, OfALaunchersLine) {
  using Pairs = std::vector<std::pair<std::string, std::string>>;
  EXPECT_EQ(settings_on_line({"mpirun", "-np", "2", "--mca", "pml", "ucx", "-x", "UCX_TLS=rc", "-x", "HOME",
                              "./app", "-x", "A=b", ":", "--mca", "btl", "self", "./other"}),
            (Pairs{{"OMPI_MCA_pml", "ucx"}, {"UCX_TLS", "rc"}, {"OMPI_MCA_btl", "self"}}));
  EXPECT_EQ(settings_on_line({"mpiexec", "-genv", "FI_PROVIDER", "verbs", "-n", "2", "./app"}),
            (Pairs{{"FI_PROVIDER", "verbs"}}));
  // The word behind an option that is not known may be its value.
  EXPECT_EQ(settings_on_line({"mpirun", "--new", "3", "--mca", "pml", "ob1", "./app"}),
            (Pairs{{"OMPI_MCA_pml", "ob1"}}));
  EXPECT_EQ(settings_on_line({"mpirun", "--mca", "pml"}), Pairs{});
}

TEST(MpiSettings, WhatBothLeaveOut) {
  EXPECT_EQ(left_out_by_both("^a,b", "^b,c"), "^a,b,c");
  EXPECT_EQ(left_out_by_both("^", "^c"), "^c");
  EXPECT_EQ(left_out_by_both("a", "^c"), "");
}

}  // namespace
}  // namespace ckpt::cli
