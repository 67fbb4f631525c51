// What ckpt-srun makes of command lines, of the variables of an allocation, and of what tasks write at their
// PMI sockets.
#include <gtest/gtest.h>

#include <set>

#include "cluster/srun/asked/hostlist.h"
#include "cluster/srun/asked/layout.h"
#include "cluster/srun/asked/multi_prog.h"
#include "cluster/srun/asked/output_name.h"
#include "cluster/srun/asked/step.h"
#include "cluster/srun/frames.h"
#include "cluster/srun/node/task_environment.h"
#include "cluster/srun/pmi/server.h"

namespace ckpt::cluster::srun {
namespace {

using Words = std::vector<std::string>;
using Set = std::map<std::string, std::string>;

Variables from(const Set& set) {
  return [&set](const char* name) {
    const auto it = set.find(name);
    return it == set.end() ? nullptr : it->second.c_str();
  };
}

Options parsed(const Words& words, const Set& set = {}) {
  auto options = parse_options(words, from(set));
  EXPECT_TRUE(options.ok()) << options.error().text;
  return options.ok() ? *options : Options{};
}

std::string refused(const Words& words, const Set& set = {}) {
  auto options = parse_options(words, from(set));
  return options.ok() ? "" : options.error().text;
}

TEST(Hostlist, GoesBothWays) {
  for (const auto& [text, names] :
       {std::pair<std::string, Words>{"h[1-3]", {"h1", "h2", "h3"}},
        {"a,n[08-10,12],b[1-2]", {"a", "n08", "n09", "n10", "n12", "b1", "b2"}}}) {
    auto found = expand_hostlist(text);
    ASSERT_TRUE(found.ok());
    EXPECT_EQ(*found, names);
    EXPECT_EQ(compress_hostlist(names), text);
  }
  EXPECT_EQ(*expand_hostlist("r[1-2]n[3-4]x"), (Words{"r1n3x", "r1n4x", "r2n3x", "r2n4x"}));
  for (const char* bad : {"", "a,,b", "h[", "h[]", "h[2-1]", "h]", "h[1-99999999]", "h[[1]]", "h[1-]",
                          "h[1-9999]x[1-9999]", "h[1", ","})
    EXPECT_FALSE(expand_hostlist(bad).ok()) << bad;
}

TEST(Counts, GoBothWays) {
  EXPECT_EQ(*expand_counts("2(x3),1"), (std::vector<int>{2, 2, 2, 1}));
  EXPECT_EQ(compress_counts({2, 2, 2, 1}), "2(x3),1");
  for (const char* bad : {"x", "2(x", "2(x3", "2(x99999999)", "-1", "2(3)"})
    EXPECT_FALSE(expand_counts(bad).ok()) << bad;
}

TEST(Options, AsOrdinaryScriptsHaveThem) {
  const Options o = parsed({"-n4",
                            "--nodes=2-3",
                            "-c",
                            "2",
                            "--mpi=none",
                            "-m",
                            "cyclic:block",
                            "-o",
                            "out.%t",
                            "-lK",
                            "-D/tmp",
                            "--export=A,B=c",
                            "-t",
                            "1-02:03:04",
                            "--cpu-bind=cores",
                            "-W",
                            "7",
                            "./app",
                            "-n",
                            "9"});
  EXPECT_EQ(o.tasks, 4);
  EXPECT_EQ(o.nodes, 3);
  EXPECT_EQ(o.cpus_per_task, 2);
  EXPECT_EQ(o.mpi, Mpi::kNone);
  EXPECT_EQ(o.distribution, Distribution::kCyclic);
  EXPECT_EQ(o.output, "out.%t");
  EXPECT_TRUE(o.label);
  EXPECT_EQ(o.kill_on_bad_exit, 1);
  EXPECT_EQ(o.wait_s, 7);
  EXPECT_EQ(o.time_s, ((24 + 2) * 60 + 3) * 60 + 4);
  EXPECT_EQ(o.command, (Words{"./app", "-n", "9"}));
  EXPECT_EQ(parsed({"-t", "5", "x"}).time_s, 300);
  EXPECT_EQ(parsed({"-t", "5:6", "x"}).time_s, 306);
}

TEST(Options, VariablesCountLess) {
  const Set set{{"SLURM_NTASKS", "6"},
                {"SLURM_MPI_TYPE", "none"},
                {"SLURM_LABELIO", "1"},
                {"SLURM_NTASKS_PER_NODE", "2"}};
  EXPECT_EQ(parsed({"x"}, set).tasks, 6);
  EXPECT_EQ(parsed({"-n2", "--mpi=pmi2", "x"}, set).tasks, 2);
  EXPECT_EQ(parsed({"-n2", "--mpi=pmi2", "x"}, set).mpi, Mpi::kPmi2);
  EXPECT_TRUE(parsed({"x"}, set).label);
  EXPECT_EQ(parsed({"--ntasks-per-node=3", "x"}, set).tasks, 0);
}

TEST(Options, TheLineCountsMoreThanAWrongVariable) {
  const Set set{{"SLURM_MPI_TYPE", "lam"}, {"SLURM_DISTRIBUTION", "arbitrary"}};
  EXPECT_EQ(refused({"--mpi=pmi2", "-m", "cyclic", "x"}, set), "");
  EXPECT_NE(refused({"--mpi=pmi2", "x"}, set).find("arbitrary"), std::string::npos);
  EXPECT_NE(refused({"-m", "block", "x"}, set).find("--mpi=lam"), std::string::npos);
  EXPECT_NE(refused({"-N4-2", "x"}).find("no number"), std::string::npos);
}

TEST(Options, ProcessorsOfTasks) {
  const auto order = [](const char* text, int place, int cpus = 0) {
    auto binding = read_binding(text);
    EXPECT_TRUE(binding.ok()) << text;
    return binding.ok() ? order_of_binding(*binding, place, cpus) : "";
  };
  EXPECT_EQ(order("quiet,map_cpu:0,0x3*2", 2), "p0x3");
  EXPECT_EQ(order("v,mask_cpu:0x3,c", 3), "mc");
  EXPECT_EQ(order("verbose,cores", 1, 4), "c1,4");
  EXPECT_EQ(order("threads", 2), "t2,1");
  for (const char* none : {"none", "no", "quiet", "q,verbose", "sockets", "ldoms", "mask_ldom:1,2"})
    EXPECT_EQ(order(none, 0), "") << none;
  for (const char* bad : {"map_cpu:", "map_cpu", "map_cpu:-1", "map_cpu:99999", "map_cpu:1*0",
                          "map_cpu:1*99999999", "mask_cpu:0x", "mask_cpu:g", "cores:2", "quietly"})
    EXPECT_NE(refused({std::string("--cpu-bind=") + bad, "x"}).find(bad), std::string::npos) << bad;
  // What a node would be told by another version.
  for (const char* bad : {"t", "t1", "t1,", "c-1,2", "m", "px", "z1"})
    EXPECT_TRUE(processors_of(bad).empty()) << bad;
}

TEST(Options, WhatIsNotKnownIsNamed) {
  EXPECT_NE(refused({"--pty", "sh"}).find("--pty:"), std::string::npos);
  EXPECT_NE(refused({"--bcast=/tmp/x", "sh"}).find("--bcast:"), std::string::npos);
  EXPECT_NE(refused({"-l", "-Y", "sh"}).find("-Y:"), std::string::npos);
  EXPECT_NE(refused({"--mpi=lam", "x"}).find("mpirun"), std::string::npos);
  EXPECT_NE(refused({"x"}, {{"SLURM_MPI_TYPE", "cray_shasta"}}).find("--mpi=cray_shasta"), std::string::npos);
  EXPECT_EQ(parsed({"--mpi=pmix_v4", "x"}).mpi, Mpi::kPmix);
  EXPECT_NE(refused({"-m", "arbitrary", "x"}).find("arbitrary"), std::string::npos);
  EXPECT_NE(refused({"-n"}).find("-n: its value is missing"), std::string::npos);
  EXPECT_NE(refused({"-n", "0", "x"}).find("no number"), std::string::npos);
  EXPECT_NE(refused({"-n2"}).find("no program"), std::string::npos);
}

Layout laid_out(const Words& words, const char* nodes, const char* cpus, Set set = {}) {
  set["SLURM_JOB_ID"] = "7";
  set["SLURM_JOB_NODELIST"] = nodes;
  set["SLURM_JOB_CPUS_PER_NODE"] = cpus;
  auto allocation = read_allocation(from(set));
  auto layout = lay_out(parsed(words, set), *allocation);
  EXPECT_TRUE(layout.ok()) << layout.error().text;
  return layout.ok() ? *layout : Layout{};
}

TEST(Layout, IsThatOfSlurm) {
  using V = std::vector<int>;
  const Layout block = laid_out({"-n6", "x"}, "h[1-3]", "2(x3)");
  EXPECT_EQ(block.node_of, (V{0, 0, 1, 1, 2, 2}));
  EXPECT_EQ(block.mapping(), "(vector,(0,3,2))");
  const Layout cyclic = laid_out({"-n5", "-m", "cyclic", "x"}, "h[1-3]", "2(x3)");
  EXPECT_EQ(cyclic.node_of, (V{0, 1, 2, 0, 1}));
  EXPECT_EQ(cyclic.mapping(), "(vector,(0,3,1),(0,2,1))");
  EXPECT_EQ(laid_out({"-n8", "-m", "plane=2", "x"}, "h[1-2]", "4(x2)").node_of, (V{0, 0, 1, 1, 0, 0, 1, 1}));
  // Nodes with more processors get more, and one with none left gets one in its turn.
  EXPECT_EQ(laid_out({"-n6", "x"}, "h[1-2]", "4,2").counts(), (V{4, 2}));
  EXPECT_EQ(laid_out({"-n6", "x"}, "h[1-2]", "4,2").mapping(), "(vector,(0,1,4),(1,1,2))");
  EXPECT_EQ(laid_out({"-n4", "-c2", "x"}, "h[1-2]", "4,2").counts(), (V{3, 1}));
  EXPECT_EQ(laid_out({"-n7", "x"}, "h[1-2]", "2(x2)").counts(), (V{4, 3}));
  EXPECT_EQ(laid_out({"-N2-4", "x"}, "h[1-3]", "2(x3)").nodes.size(), 3u);
  EXPECT_EQ(laid_out({"-N1-2", "x"}, "h[1-3]", "2(x3)").nodes.size(), 2u);
  // Fewer tasks than nodes.
  EXPECT_EQ(laid_out({"-n1", "x"}, "h[1-3]", "2(x3)").nodes, (Words{"h1"}));
  EXPECT_EQ(laid_out({"x"}, "h[1-3]", "2(x3)").counts(), (V{1, 1, 1}));
  EXPECT_EQ(
      laid_out({"-N2", "--ntasks-per-node=2", "x"}, "h[1-3]", "2(x3)", {{"SLURM_NTASKS", "6"}}).counts(),
      (V{2, 2}));
  EXPECT_EQ(laid_out({"-r1", "-n2", "x"}, "h[1-3]", "2(x3)").nodes, (Words{"h2", "h3"}));
  EXPECT_EQ(laid_out({"-w", "h3", "-n2", "x"}, "h[1-3]", "2(x3)").nodes, (Words{"h3"}));
  EXPECT_EQ(laid_out({"-x", "h1", "-n3", "x"}, "h[1-3]", "2(x3)").nodes, (Words{"h2", "h3"}));
}

TEST(Layout, OfNoAllocation) {
  EXPECT_FALSE(read_allocation(from({})).ok());
  Set set{{"SLURM_JOB_ID", "7"}, {"SLURM_JOB_NODELIST", "h[1-2]"}};
  auto allocation = read_allocation(from(set));
  EXPECT_FALSE(lay_out(parsed({"-N3", "x"}), *allocation).ok());
  EXPECT_FALSE(lay_out(parsed({"-N3-4", "x"}), *allocation).ok());
  EXPECT_FALSE(lay_out(parsed({"--ntasks-per-node=10000000", "x"}), *allocation).ok());
  EXPECT_FALSE(lay_out(parsed({"-w", "h3", "x"}), *allocation).ok());
  EXPECT_FALSE(lay_out(parsed({"-r2", "x"}), *allocation).ok());
}

TEST(Environment, HasEachNameOnce) {
  const char* host[] = {"CKPT_DIR=/here", "LD_PRELOAD=/here/libckpt_rt.so /here/libckpt_heap.so",
                        "HOME=/root", nullptr};
  const Words all = environment_here({"SLURM_PROCID=0", "CKPT_DIR=/there", "SLURM_TASK_PID=1",
                                      "LD_PRELOAD=/there/libckpt_rt.so:mine.so:/there/libckpt_heap.so"},
                                     {{"SLURM_PROCID", "3"}}, const_cast<char**>(host));
  EXPECT_EQ(all, (Words{"CKPT_DIR=/here", "LD_PRELOAD=mine.so:/here/libckpt_rt.so:/here/libckpt_heap.so",
                        "SLURM_PROCID=3"}));
}

TEST(Environment, OfPmixIsTheUsersButForAServers) {
  Step step;
  step.layout = laid_out({"-n2", "x"}, "h[1-2]", "1(x2)");
  step.options.exported = "ALL,PMIX_INSTALL_PREFIX=/y";
  const char* set[] = {"PMIX_DEBUG=1",
                       "PMIX_RANK=7",
                       "PMIX_SERVER_URI41=x",
                       "PMIX_DSTORE_ESH_BASE_PATH=x",
                       "PMIX_MCA_gds=hash",
                       "PMIX_NAMESPACE=x",
                       nullptr};
  std::string passed_on;
  for (const std::string& pair : environment_of_step(step, const_cast<char**>(set))) {
    if (pair.starts_with("PMIX_")) passed_on += pair + " ";
  }
  EXPECT_EQ(passed_on, "PMIX_DEBUG=1 PMIX_INSTALL_PREFIX=/y PMIX_MCA_gds=hash ");
}

TEST(OutputName, HasItsFields) {
  Step step;
  step.allocation.job_id = "42";
  step.number = 3;
  step.layout = laid_out({"-n2", "x"}, "h[1-2]", "1(x2)");
  EXPECT_EQ(file_name("o.%j.%3t.%N-%n%%%J", step, 1, 1), "o.42.001.h2-1%42.3");
  EXPECT_EQ(file_name("\\%t", step, 1, 1), "%t");
  EXPECT_TRUE(is_opened_by_node("o.%2t"));
  EXPECT_FALSE(is_opened_by_node("o.%j%%t"));
  EXPECT_FALSE(is_file("12"));
}

TEST(MultiProg, SaysWhoRunsWhat) {
  auto all =
      parse_multi_prog("# comment\n0 ./a 'one word'\n1-2,4 ./b %t \\\n %o\n* ./c\n", {"file", "more"}, 5);
  ASSERT_TRUE(all.ok()) << all.error().text;
  EXPECT_EQ((*all)[0], (Words{"./a", "one word", "more"}));
  EXPECT_EQ((*all)[4], (Words{"./b", "4", "2", "more"}));
  EXPECT_EQ((*all)[3], (Words{"./c", "more"}));
  EXPECT_FALSE(parse_multi_prog("0 ./a\n", {"file"}, 2).ok());
  EXPECT_FALSE(parse_multi_prog("0 ./a\n0-1 ./b\n", {"file"}, 2).ok());
  EXPECT_FALSE(parse_multi_prog("x ./a\n", {"file"}, 1).ok());
}

TEST(Order, GoesToANode) {
  NodeOrder order, got;
  order.directory = "/d";
  order.has_pmi = true;
  order.environment = {"A=b"};
  order.inherited = {027, {{4, 0}, {7, ~uint64_t{0}}}};
  order.tasks.push_back({3, {"./a", ""}, "", "out", "", "c1,2", {{"X", "y"}}});
  const std::string bytes = write_order(order);
  ASSERT_TRUE(read_order(bytes, got));
  EXPECT_EQ(got.tasks[0].program, order.tasks[0].program);
  EXPECT_EQ(got.tasks[0].environment, order.tasks[0].environment);
  EXPECT_EQ(got.tasks[0].processors, "c1,2");
  EXPECT_TRUE(got.has_pmi && !got.append);
  EXPECT_EQ(got.inherited.umask, 027u);
  EXPECT_EQ(got.inherited.limits, order.inherited.limits);
  for (size_t n = 0; n < bytes.size(); ++n) {
    NodeOrder other;
    EXPECT_FALSE(read_order(std::string_view(bytes).substr(0, n), other));
  }
}

// A step may have the number of another that runs beside it, on the same hosts.
TEST(Order, HasANameSpaceOfItsOwn) {
  const Set set{
      {"SLURM_JOB_ID", "7"}, {"SLURM_JOB_NODELIST", "h[1-2]"}, {"SLURM_JOB_CPUS_PER_NODE", "1(x2)"}};
  std::set<std::string> names;
  for (int i = 0; i < 2; ++i) {
    auto step = read_step({"-n2", "--mpi=none", "x"}, from(set));
    ASSERT_TRUE(step.ok()) << step.error().text;
    step->options.mpi = Mpi::kPmix;
    char* none[] = {nullptr};
    const std::string name = order_for(*step, 0, none).pmix.name;
    EXPECT_EQ(name, order_for(*step, 1, none).pmix.name);
    EXPECT_TRUE(name.starts_with("ckpt.7.0.")) << name;
    names.insert(name);
  }
  EXPECT_EQ(names.size(), 2u);
}

TEST(Frames, ComeInPieces) {
  const std::string bytes = write_frame(Say::kOutput, 5, "abc") + write_frame(Say::kDone, -1);
  FrameReader reader;
  std::vector<Frame> frames;
  for (const char c : bytes) ASSERT_TRUE(reader.feed({&c, 1}, frames));
  ASSERT_EQ(frames.size(), 2u);
  EXPECT_EQ(frames[0].bytes, "abc");
  EXPECT_EQ(frames[1].task, -1);
  EXPECT_FALSE(FrameReader().feed(std::string("o\0\0\0\0\xff\xff\xff\xff", 9), frames));
}

// The server with what each task was answered.
struct Served {
  explicit Served(int tasks)
      : server(laid_out({"-n" + std::to_string(tasks), "x"}, "h[1-2]", "2(x2)"), "7.0") {}
  std::string say(int task, const std::string& bytes) {
    PmiServer::Actions actions;
    server.hear(task, bytes, actions);
    for (const auto& [to, text] : actions.answers) got[to] += text;
    last = actions;
    return std::exchange(got[task], "");
  }
  std::string second(int task, const std::string& text) {
    std::string length = std::to_string(text.size());
    length.insert(0, 6 - length.size(), ' ');
    return say(task, length + text);
  }
  PmiServer server;
  std::map<int, std::string> got;
  PmiServer::Actions last;
};

TEST(Pmi, First) {
  Served s(3);
  for (int t = 0; t < 3; ++t)
    EXPECT_EQ(s.say(t, "cmd=init pmi_version=1 pmi_subversion=1\n"),
              "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n");
  EXPECT_EQ(s.say(0, "cmd=get_my_kvsname\n"), "cmd=my_kvsname rc=0 kvsname=7.0\n");
  EXPECT_EQ(s.say(0, "cmd=get kvsname=7.0 key=PMI_process_mapping\n"),
            "cmd=get_result rc=0 msg=success value=(vector,(0,1,2),(1,1,1))\n");
  EXPECT_EQ(s.say(0, "cmd=put kvsname=7.0 key=a value=x y\ncmd=barrier_in\n"),
            "cmd=put_result rc=0 msg=success\n");
  // Not seen before all have come.
  EXPECT_EQ(s.say(1, "cmd=get kvsname=7.0 key=a\n"), "cmd=get_result rc=1 msg=key_not_found\n");
  EXPECT_EQ(s.say(1, "cmd=barr"), "");
  EXPECT_EQ(s.say(1, "ier_in\n"), "");
  EXPECT_EQ(s.say(2, "cmd=barrier_in\n"), "cmd=barrier_out rc=0\n");
  EXPECT_EQ(s.got[0] + s.got[1], "cmd=barrier_out rc=0\ncmd=barrier_out rc=0\n");
  s.got.clear();
  EXPECT_EQ(s.say(2, "cmd=get kvsname=7.0 key=a\n"), "cmd=get_result rc=0 msg=success value=x y\n");
  EXPECT_EQ(s.say(2, "mcmd=spawn\nnprocs=1\nexecname=x\nendcmd\n"), "cmd=spawn_result rc=-1 errcodes=1\n");
  EXPECT_NE(s.last.why.find("MPI_Comm_spawn"), std::string::npos);
  EXPECT_TRUE(s.server.is_in(2));
  EXPECT_EQ(s.say(2, "cmd=finalize\n"), "cmd=finalize_ack rc=0\n");
  EXPECT_EQ(s.last.close, std::vector<int>{2});
  EXPECT_FALSE(s.server.is_in(2));
  s.say(1, "cmd=abort exitcode=3\n");
  EXPECT_EQ(s.last.aborted_by, 1);
}

TEST(Pmi, Second) {
  Served s(3);
  for (int t = 0; t < 3; ++t) {
    s.say(t, "cmd=init pmi_version=2 pmi_subversion=0\n");
    EXPECT_NE(s.second(t, "cmd=fullinit;pmijobid=7.0;pmirank=0;threaded=FALSE;")
                  .find(";rank=" + std::to_string(t) + ";size=3;"),
              std::string::npos);
  }
  EXPECT_EQ(s.second(0, "cmd=job-getid;"), "38    cmd=job-getid-response;rc=0;jobid=7.0;");
  EXPECT_EQ(s.second(0, "cmd=kvs-put;key=k;value=a;;b;thrid=4;"), "34    cmd=kvs-put-response;thrid=4;rc=0;");
  EXPECT_EQ(s.second(0, "cmd=kvs-fence;") + s.second(1, "cmd=kvs-fence;"), "");
  EXPECT_EQ(s.second(2, "cmd=kvs-fence;"), "28    cmd=kvs-fence-response;rc=0;");
  s.got.clear();
  EXPECT_EQ(s.second(1, "cmd=kvs-get;jobid=7.0;srcid=-1;key=k;"),
            "48    cmd=kvs-get-response;rc=0;found=TRUE;value=a;;b;");
}

TEST(Pmi, NodeAttributesAreOfANode) {
  Served s(3);
  for (int t = 0; t < 3; ++t) s.say(t, "cmd=init pmi_version=2 pmi_subversion=0\n");
  EXPECT_NE(s.second(2, "cmd=info-getnodeattr;key=k;wait=FALSE;").find("found=FALSE"), std::string::npos);
  EXPECT_EQ(s.second(1, "cmd=info-getnodeattr;key=k;wait=TRUE;"), "");
  EXPECT_EQ(s.second(2, "cmd=info-getnodeattr;key=k;wait=TRUE;"), "");
  s.second(0, "cmd=info-putnodeattr;key=k;value=v;");
  EXPECT_NE(s.got[1].find("value=v"), std::string::npos);
  EXPECT_EQ(s.got[2], "");  // another node
  EXPECT_NE(s.second(0, "cmd=info-getjobattr;key=universeSize;").find("value=3"), std::string::npos);
  EXPECT_NE(s.second(0, "cmd=name-lookup;name=n;").find("rc=1"), std::string::npos);
  s.second(1, "cmd=name-publish;name=n;port=p q;");
  EXPECT_NE(s.second(0, "cmd=name-lookup;name=n;").find("value=p q"), std::string::npos);
}

// The others would wait in the fence for a task whose connection is closed: its end is to end the step.
TEST(Pmi, WhoWroteWhatIsNoneHasNotFinished) {
  Served s(2);
  s.say(0, "cmd=init pmi_version=1 pmi_subversion=1\n");
  EXPECT_EQ(s.say(1, "cmd=init pmi_version=1 pmi_subversion=1\ncmd=barrier_in\n"),
            "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n");
  s.say(0, "cmd=no\33[31m_such\n");
  EXPECT_EQ(s.last.close, std::vector<int>{0});
  EXPECT_NE(s.last.why.find("no?[31m_such"), std::string::npos);
  EXPECT_TRUE(s.server.is_in(0));
}

TEST(Pmi, WordsOfATaskAreForATerminal) {
  Served s(1);
  s.say(0, "cmd=init pmi_version=2 pmi_subversion=0\n");
  s.second(0, "cmd=abort;isworld=TRUE;msg=\33[2J" + std::string(1000, 'x') + ";");
  EXPECT_EQ(s.last.aborted_by, 0);
  EXPECT_EQ(s.last.why, "?[2J" + std::string(196, 'x') + "...");
}

TEST(Pmi, ASpawnWithoutAnEndIsNotKept) {
  Served s(1);
  s.say(0, "mcmd=spawn\n");
  for (int i = 0; i < 2 && s.last.close.empty(); ++i)
    s.say(0, "argv=" + std::string(kMostMessage * 2 / 3, 'x') + "\n");
  EXPECT_EQ(s.last.close, std::vector<int>{0});
}

TEST(Pmi, ItsFormIsThatOfEachMessage) {
  Served s(1);
  EXPECT_EQ(s.say(0, "cmd=get_appnum\ncmd=init pmi_version=2 pmi_subversion=0\n14    cmd=job-getid;"),
            "cmd=appnum rc=0 appnum=-1\ncmd=response_to_init pmi_version=2 pmi_subversion=0 rc=0\n"
            "38    cmd=job-getid-response;rc=0;jobid=7.0;");
  EXPECT_TRUE(s.last.close.empty());
}

TEST(Pmi, WhatIsNoneEndsTheConnection) {
  for (const std::string& bad : {std::string("hello\n"), std::string("cmd=no_such\n"), std::string("cmd=\n"),
                                 std::string("=x\n"), std::string("\n"), std::string(kMostMessage + 1, 'x'),
                                 std::string("cmd=init pmi_version=2 pmi_subversion=0\nabcdef"),
                                 std::string("cmd=init pmi_version=2 pmi_subversion=0\n      "),
                                 std::string("cmd=init pmi_version=2 pmi_subversion=0\n999999x"),
                                 std::string("cmd=init pmi_version=2 pmi_subversion=0\n    -5x"),
                                 std::string("cmd=init pmi_version=2 pmi_subversion=0\n4     cmd=")}) {
    Served s(1);
    s.say(0, bad);
    EXPECT_EQ(s.last.close, std::vector<int>{0}) << bad.substr(0, 60);
    EXPECT_FALSE(s.last.why.empty());
    EXPECT_EQ(s.say(0, "cmd=get_maxes\n"), "");
  }
}

}  // namespace
}  // namespace ckpt::cluster::srun
