// The exchange of blocks: every code, every loss that it survives, streams of odd lengths; what is damaged or
// not wanted.
#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <map>
#include <random>
#include <thread>

#include "cluster/keeper/exchange.h"

namespace ckpt::keeper {

namespace {

// As processes: each ends with its host's work.
using Meshes = std::vector<std::unique_ptr<Mesh>>;
Meshes listening(size_t hosts, std::vector<int>& ports) {
  Meshes all;
  ports.clear();
  for (size_t h = 0; h < hosts; ++h) {
    all.push_back(std::make_unique<Mesh>());
    ports.push_back(*all.back()->listen("127.0.0.1"));
  }
  return all;
}

struct Host {
  std::string directory;
  std::unique_ptr<PartStream> stream;
  ScopedFd checks;
  uint64_t sum = 0, sum_of_checks = 0;
};

std::string new_directory() {
  std::string name = "/tmp/ckpt-exchange-XXXXXX";
  EXPECT_NE(mkdtemp(name.data()), nullptr);
  return name;
}

class Job {
 public:
  Job(const std::string& scheme, std::vector<std::vector<uint64_t>> files, std::vector<unsigned> holders = {})
      : hosts_(files.size()) {
    for (Host& h : hosts_) h.directory = new_directory();
    write_parts(files);
    plan_.hosts = static_cast<unsigned>(hosts_.size());
    plan_.scheme = *scheme_for_hosts(scheme, plan_.hosts);
    plan_.holders = std::move(holders);
    plan_.secret = cluster::make_secret();
    plan_.addresses.assign(hosts_.size(), "127.0.0.1");
  }
  ~Job() {
    for (const Host& h : hosts_) {
      if (system(("rm -rf " + h.directory).c_str()) != 0) ADD_FAILURE();
    }
  }

  // New parts, without checks yet.
  void write_parts(const std::vector<std::vector<uint64_t>>& files) {
    plan_.lengths.clear();
    for (size_t h = 0; h < hosts_.size(); ++h) {
      if (hosts_[h].stream != nullptr) {
        for (const PartFile& f : hosts_[h].stream->files())
          unlink((hosts_[h].directory + "/" + f.name).c_str());
      }
      for (size_t f = 0; f < files[h].size(); ++f) {
        std::string bytes(files[h][f], '\0');
        for (char& c : bytes) c = static_cast<char>(random_());
        const std::string path = hosts_[h].directory + "/" + std::to_string(f) + ".ckpt";
        write_file(path, bytes);
        const timespec times[2] = {{1'000'000'000, 5}, {1'200'000'000, static_cast<long>(f)}};
        EXPECT_EQ(chmod(path.c_str(), f % 2 == 0 ? 0600 : 0440), 0);
        EXPECT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
      }
      read_part(hosts_[h]);
      hosts_[h].checks = memory();
      plan_.lengths.push_back(hosts_[h].stream->bytes());
    }
  }

  static ScopedFd memory() { return ScopedFd(memfd_create("checks", MFD_CLOEXEC)); }
  static void write_file(const std::string& path, const std::string& bytes) {
    const ScopedFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    ASSERT_EQ(write(fd.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  }
  static void read_part(Host& host) {
    const ScopedFd directory(open(host.directory.c_str(), O_RDONLY | O_DIRECTORY));
    host.stream = std::make_unique<PartStream>(std::move(*PartStream::open(directory.get())));
    host.sum = *host.stream->checksum();
  }

  // What each host says of it. Over connections that are there, or over new ones, which are kept.
  std::vector<std::string> run(const std::vector<bool>& lost) {
    plan_.lost = lost;
    ++plan_.number;
    plan_.ports.clear();
    if (meshes_.empty()) meshes_ = listening(hosts_.size(), plan_.ports);
    std::vector<std::string> said(hosts_.size());
    std::vector<std::thread> threads;
    for (size_t h = 0; h < hosts_.size(); ++h) {
      threads.emplace_back([&, h] {
        ExchangePlan plan = plan_;
        plan.self = static_cast<unsigned>(h);
        Exchange exchange(*meshes_[h]);
        const auto done = exchange.run(plan, *hosts_[h].stream, hosts_[h].checks.get(), 0);
        if (!done.ok()) {
          said[h] = done.error().message();
          meshes_[h].reset();
        } else if (lost.empty()) {
          EXPECT_EQ(exchange.sum_of_stream(), hosts_[h].sum);
          EXPECT_EQ(exchange.sum_of_checks(), *checksum_of(hosts_[h].checks.get()));
        }
      });
    }
    for (std::thread& t : threads) t.join();
    plan_.ports.clear();  // they have met
    return said;
  }

  void protect() {
    for (const std::string& word : run({})) EXPECT_EQ(word, "");
    for (Host& h : hosts_) h.sum_of_checks = *checksum_of(h.checks.get());
  }

  // These hosts have nothing any more; then they have it all again.
  void lose(const std::vector<bool>& lost) {
    for (size_t h = 0; h < hosts_.size(); ++h) {
      if (!lost[h]) continue;
      std::vector<PartFile> files = hosts_[h].stream->files();
      for (const PartFile& f : files) unlink((hosts_[h].directory + "/" + f.name).c_str());
      const ScopedFd directory(open(hosts_[h].directory.c_str(), O_RDONLY | O_DIRECTORY));
      hosts_[h].stream = std::make_unique<PartStream>(std::move(*PartStream::create(directory.get(), files)));
      hosts_[h].checks = memory();
    }
    for (const std::string& word : run(lost)) EXPECT_EQ(word, "");
    for (size_t i = 0; i < hosts_.size(); ++i) {
      if (!lost[i]) continue;
      const std::vector<PartFile> was = hosts_[i].stream->files();
      ASSERT_TRUE(hosts_[i].stream->dress().ok());
      const ScopedFd directory(open(hosts_[i].directory.c_str(), O_RDONLY | O_DIRECTORY));
      auto is = PartStream::open(directory.get());
      ASSERT_EQ(is->files().size(), was.size());
      for (size_t f = 0; f < was.size(); ++f) {
        EXPECT_EQ(is->files()[f].mode, was[f].mode);
        EXPECT_EQ(is->files()[f].modified_ns, was[f].modified_ns);
      }
    }
    for (const Host& h : hosts_) {
      EXPECT_EQ(*h.stream->checksum(), h.sum);
      EXPECT_EQ(*checksum_of(h.checks.get()), h.sum_of_checks);
    }
  }

  std::mt19937_64 random_{7};
  std::vector<Host> hosts_;
  ExchangePlan plan_;
  Meshes meshes_;
};

// Lengths around blocks and batches, none at all, and several files.
std::vector<std::vector<uint64_t>> parts(unsigned hosts) {
  const uint64_t b = kStripeBlock;
  const std::vector<std::vector<uint64_t>> some{{3 * b + 17, 1},          {b}, {},
                                                {20 * b - 1, 5, 0, 4096}, {7}, {2 * b}};
  return {some.begin(), some.begin() + hosts};
}

TEST(Exchange, GivesBackWhatWasLost) {
  for (auto [scheme, hosts, most] : {std::tuple("parity", 3u, 1u),
                                     {"rs:2+2", 4u, 2u},
                                     {"evenodd", 5u, 2u},
                                     {"mirror", 4u, 1u},
                                     {"parity:2", 5u, 1u},
                                     {"rs:1+1", 2u, 1u}}) {
    SCOPED_TRACE(scheme);
    Job job(scheme, parts(hosts));
    job.protect();
    for (unsigned first = 0; first < hosts; ++first) {
      std::vector<bool> lost(hosts);
      lost[first] = true;
      job.lose(lost);
      if (most < 2) continue;
      lost[(first + 1) % hosts] = true;
      job.lose(lost);
    }
  }
}

TEST(Exchange, GivesBackWhatWasLostWithChecksOnSomeHosts) {
  for (auto [scheme, holders] : {std::pair("parity", std::vector<unsigned>{2}),
                                 {"rs:4+2", {4, 5}},
                                 {"evenodd", {0, 3}},
                                 {"mirror", {1, 3, 4}},
                                 {"parity:2", {1, 4}}}) {
    SCOPED_TRACE(scheme);
    Job job(scheme, parts(6), holders);
    job.protect();
    const bool two = job.plan_.scheme.kind != redundancy::Kind::kParity && holders.size() == 2;
    for (unsigned first = 0; first < 6; ++first) {
      std::vector<bool> lost(6);
      lost[first] = true;
      job.lose(lost);
      if (!two) continue;
      lost[(first + 1) % 6] = true;
      job.lose(lost);
    }
  }
}

// The checks are what the code makes of all blocks, also where what is known to be zero is left out.
TEST(Exchange, ChecksAreThoseOfWholeBlocks) {
  using Holders = std::vector<unsigned>;
  for (auto [scheme, hosts, holders] : {std::tuple("parity", 3u, Holders{}),
                                        {"rs:3+2", 5u, {}},
                                        {"evenodd", 6u, {}},
                                        {"parity:2", 5u, {}},
                                        {"rs:4+2", 6u, {5, 1}},
                                        {"evenodd", 6u, {0, 4}},
                                        {"parity", 2u, {1}},
                                        {"parity", 6u, {3}}}) {
    SCOPED_TRACE(scheme);
    Job job(scheme, parts(hosts), holders);
    job.protect();
    const Striping s(job.plan_.scheme, job.plan_.lengths, job.plan_.holders);
    const auto code = std::move(*redundancy::Code::make(job.plan_.scheme));
    const uint64_t stripes = s.stripes();
    BlockPool pool;
    for (uint64_t stripe = 0; stripe < stripes; ++stripe) {
      std::vector<Block> blocks(hosts);
      std::vector<const std::byte*> data;
      std::vector<std::byte*> checks;
      for (unsigned role = 0; role < hosts; ++role) {
        blocks[role] = pool.take();
        const Host& host = job.hosts_[s.host_of(role, stripe)];
        if (role >= s.data()) {
          checks.push_back(blocks[role].bytes());
          continue;
        }
        const uint64_t at = s.block_of(s.host_of(role, stripe), stripe) * kStripeBlock;
        ASSERT_TRUE(host.stream->read(at, blocks[role].span()).ok());
        data.push_back(blocks[role].bytes());
      }
      code->encode(data, checks, kStripeBlock);
      for (unsigned role = s.data(); role < hosts; ++role) {
        const Host& host = job.hosts_[s.host_of(role, stripe)];
        std::vector<std::byte> stored(kStripeBlock);
        const uint64_t at = s.check_of(s.host_of(role, stripe), stripe) * kStripeBlock;
        ASSERT_EQ(pread(host.checks.get(), stored.data(), stored.size(), static_cast<off_t>(at)),
                  static_cast<ssize_t>(stored.size()));
        EXPECT_TRUE(std::equal(stored.begin(), stored.end(), blocks[role].bytes())) << stripe << " " << role;
      }
    }
  }
}

TEST(Exchange, OneHostsEndIsSeenBetweenExchanges) {
  Job job("parity", parts(3));
  job.protect();
  for (const auto& mesh : job.meshes_) EXPECT_TRUE(mesh->whole());
  job.meshes_[1].reset();
  for (const unsigned h : {0u, 2u}) {
    while (job.meshes_[h]->whole()) std::this_thread::yield();
  }
}

// Nobody listens for it any more, and it has said nothing by itself: that it takes nothing more from here is
// seen as well.
TEST(Exchange, AHostThatRefusesWhatComesIsSeenBetweenExchanges) {
  Job job("rs:1+1", parts(2));
  job.protect();
  struct : MeshListener {
    bool take(unsigned, const MessageHead&, Block, size_t) override { return false; }
    void gone(unsigned) override {}
  } refuses;
  job.meshes_[1]->hear(&refuses);
  job.meshes_[0]->compose(1, {kBegun, 0, 0, 7}, 0);
  EXPECT_TRUE(job.meshes_[0]->send(1));
  while (job.meshes_[0]->whole()) std::this_thread::yield();
  job.meshes_[1]->hear(nullptr);
}

// A stranger cannot come to a job for the rest of its life.
TEST(Exchange, NobodyListensWhenAllHaveMet) {
  Job job("parity", parts(3));
  job.meshes_ = listening(3, job.plan_.ports);
  std::vector<std::thread> threads;
  for (unsigned h = 0; h < 3; ++h) {
    threads.emplace_back([&, h] {
      const auto met = job.meshes_[h]->meet({h, job.plan_.secret, job.plan_.addresses, job.plan_.ports});
      EXPECT_TRUE(met.ok()) << met.error().message();
    });
  }
  for (std::thread& t : threads) t.join();
  for (const int port : job.plan_.ports) {
    for (;;) {
      const auto stranger = cluster::connect_to("127.0.0.1", port, 1000);
      if (!stranger.ok() && stranger.error().sys_errno == ECONNREFUSED) break;
      std::this_thread::yield();
    }
  }
}

// The connections are those of the first; what was kept of it, blocks and rooms, is not mixed into the
// second.
TEST(Exchange, OthersFollowOverTheSameConnections) {
  for (auto [scheme, hosts] : {std::pair("parity", 3u), {"rs:2+2", 4u}}) {
    SCOPED_TRACE(scheme);
    Job job(scheme, parts(hosts));
    job.protect();
    const std::vector<std::vector<uint64_t>> longer{
        {2 * kStripeBlock + 5}, {30 * kStripeBlock}, {9, 9, 9}, {kStripeBlock}};
    for (const auto& files : {longer, parts(4)}) {
      job.write_parts({files.begin(), files.begin() + hosts});
      job.protect();
      std::vector<bool> lost(hosts);
      lost[1] = true;
      job.lose(lost);
    }
  }
}

// Over connections that are there a host receives when it has begun: before, the others send nothing that
// would fill them.
TEST(Exchange, NoBlockIsSentBeforeAllHaveBegun) {
  Job job("parity", {{9 * kStripeBlock}, {9 * kStripeBlock}, {9 * kStripeBlock}});  // some to each host
  job.protect();
  struct : MeshListener {
    bool take(unsigned host, const MessageHead& head, Block, size_t) override {
      const std::lock_guard<std::mutex> guard(lock);
      kinds[host].push_back(head.kind);
      changed.notify_all();
      return true;
    }
    void gone(unsigned) override {}
    std::mutex lock;
    std::condition_variable changed;
    std::vector<std::vector<uint32_t>> kinds{3};
  } late;
  std::vector<std::thread> threads;
  for (unsigned h = 0; h < 2; ++h) {
    threads.emplace_back([&, h] {
      ExchangePlan plan = job.plan_;
      plan.self = h;
      plan.number = 9;
      EXPECT_FALSE(
          Exchange(*job.meshes_[h]).run(plan, *job.hosts_[h].stream, job.hosts_[h].checks.get(), 0).ok());
      job.meshes_[h].reset();
    });
  }
  Mesh& mesh = *job.meshes_[2];
  mesh.hear(&late);
  {
    std::unique_lock<std::mutex> guard(late.lock);
    late.changed.wait(guard, [&] { return !late.kinds[0].empty() && !late.kinds[1].empty(); });
    for (const unsigned h : {0u, 1u}) EXPECT_EQ(late.kinds[h], std::vector<uint32_t>{kBegun}) << h;
  }
  for (const unsigned h : {0u, 1u}) {
    mesh.compose(h, {kBegun, 2, 0, 9}, 0);
    EXPECT_TRUE(mesh.send(h));
  }
  {
    std::unique_lock<std::mutex> guard(late.lock);
    late.changed.wait(guard, [&] { return late.kinds[0].size() > 1 && late.kinds[1].size() > 1; });
    for (const unsigned h : {0u, 1u}) EXPECT_EQ(late.kinds[h][1], kBlock) << h;
  }
  mesh.hear(nullptr);
  job.meshes_[2].reset();
  for (std::thread& t : threads) t.join();
}

TEST(Exchange, WhatIsOfAnotherExchangeIsNotWanted) {
  Job job("rs:1+1", parts(2));
  job.protect();
  std::vector<std::thread> threads;
  for (unsigned h = 0; h < 2; ++h) {
    threads.emplace_back([&, h] {
      ExchangePlan plan = job.plan_;
      plan.self = h;
      plan.number += h;
      const auto done =
          Exchange(*job.meshes_[h]).run(plan, *job.hosts_[h].stream, job.hosts_[h].checks.get(), 0);
      EXPECT_FALSE(done.ok());
      job.meshes_[h].reset();
    });
  }
  for (std::thread& t : threads) t.join();
}

TEST(Exchange, AHostThatGoesEndsItForAll) {
  Job job("parity", parts(3));
  // Host 1 does not fit: its stream is of another length than the others were told, so it stops in the
  // middle.
  job.plan_.lengths[1] = 100 * kStripeBlock;
  Meshes meshes = listening(3, job.plan_.ports);
  std::vector<std::thread> threads;
  std::vector<std::string> said(3);
  for (unsigned h = 0; h < 3; ++h) {
    threads.emplace_back([&, h] {
      ExchangePlan plan = job.plan_;
      plan.self = h;
      // A file of checks that takes nothing: a keeper that is full.
      const ScopedFd full(open("/dev/full", O_RDWR | O_CLOEXEC));
      const auto mesh = std::move(meshes[h]);
      const auto done = Exchange(*mesh).run(plan, *job.hosts_[h].stream,
                                            h == 1 ? full.get() : job.hosts_[h].checks.get(), 0);
      if (!done.ok()) said[h] = done.error().message();
    });
  }
  for (std::thread& t : threads) t.join();
  for (const std::string& word : said) EXPECT_NE(word, "");
}

TEST(Exchange, AStrangerIsNotHeard) {
  Job job("parity", parts(3));
  Meshes meshes = listening(3, job.plan_.ports);
  std::vector<ScopedFd> strangers;
  for (const int port : job.plan_.ports) {
    auto fd = cluster::connect_to("127.0.0.1", port, 1000);
    ASSERT_TRUE(fd.ok());
    ASSERT_EQ(write(fd->get(), "who is there?", 13), 13);
    fd->reset();
    // And some who say nothing: nobody waits for them, neither at the beginning nor at the end.
    for (int i = 0; i < 3; ++i) {
      auto silent = cluster::connect_to("127.0.0.1", port, 1000);
      ASSERT_TRUE(silent.ok());
      strangers.push_back(std::move(*silent));
    }
  }
  std::vector<std::thread> threads;
  for (unsigned h = 0; h < 3; ++h) {
    threads.emplace_back([&, h] {
      ExchangePlan plan = job.plan_;
      plan.self = h;
      const auto done = Exchange(*meshes[h]).run(plan, *job.hosts_[h].stream, job.hosts_[h].checks.get(), 0);
      EXPECT_TRUE(done.ok()) << done.error().message();
    });
  }
  for (std::thread& t : threads) t.join();
}

}  // namespace

}  // namespace ckpt::keeper
