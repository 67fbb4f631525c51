// How fast keepers make checks: the exchange of blocks alone, all hosts in this process, over the loopback
// interface. Beside it, bare: the same bytes over plain connections, and the arithmetic.
//
// usage: exchange_speed [--hosts 5] [--redundancy parity] [--mib 64] [--rounds 5]
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "bench/frame/command_line.h"
#include "cluster/keeper/exchange.h"

namespace ckpt::keeper {
namespace {

struct Cost {
  double wall_ms = 0, cpu_ms = 0;
};

double cpu_ms() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto ms = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_usec) / 1e3;
  };
  return ms(used.ru_utime) + ms(used.ru_stime);
}

template <typename Work>
Cost cost_of(Work work) {
  const int64_t begin = now_ns();
  const double cpu = cpu_ms();
  work();
  return {static_cast<double>(now_ns() - begin) / 1e6, cpu_ms() - cpu};
}

template <typename Work>
Cost median(long rounds, Work work) {
  std::vector<Cost> all;
  for (long i = 0; i < rounds; ++i) all.push_back(cost_of(work));
  std::sort(all.begin(), all.end(), [](const Cost& a, const Cost& b) { return a.wall_ms < b.wall_ms; });
  return all[all.size() / 2];
}

template <typename Work>
void on_each(unsigned hosts, Work work) {
  std::vector<std::thread> threads;
  for (unsigned h = 0; h < hosts; ++h) threads.emplace_back([&work, h] { work(h); });
  for (std::thread& t : threads) t.join();
}

template <typename T>
T must(Result<T> result) {
  if (result.ok()) return std::move(*result);
  std::fprintf(stderr, "%s\n", std::string(result.error().message()).c_str());
  std::exit(1);
}

// Parts in memory, of random bytes; they go with the object.
class Parts {
 public:
  Parts(unsigned hosts, uint64_t bytes) : directory_("/dev/shm/ckpt-exchange-XXXXXX") {
    if (mkdtemp(directory_.data()) == nullptr) std::exit(1);
    std::mt19937_64 random(7);
    std::vector<uint64_t> words(bytes / sizeof(uint64_t));
    for (unsigned h = 0; h < hosts; ++h) {
      for (uint64_t& w : words) w = random();
      const std::string part = directory_ + "/" + std::to_string(h);
      std::filesystem::create_directory(part);
      std::ofstream(part + "/1.ckpt", std::ios::binary)
          .write(reinterpret_cast<const char*>(words.data()), static_cast<std::streamsize>(bytes));
      const ScopedFd at(open(part.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
      streams.push_back(must(PartStream::open(at.get())));
      checks.emplace_back(open((part + ".checks").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    }
  }
  ~Parts() { std::filesystem::remove_all(directory_); }
  std::vector<PartStream> streams;
  std::vector<ScopedFd> checks;

 private:
  std::string directory_;
};

// bytes: from each host to each other.
Cost bare_transfer(unsigned hosts, uint64_t bytes, long rounds) {
  std::vector<ScopedFd> from, to;
  for (unsigned link = 0; link < hosts * (hosts - 1); ++link) {
    int port = 0;
    const ScopedFd listener = must(cluster::listen_at("127.0.0.1", 0, &port));
    from.push_back(must(cluster::connect_to("127.0.0.1", port, 1000)));
    to.emplace_back(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  }
  return median(rounds, [&] {
    std::vector<std::thread> threads;
    for (const ScopedFd& fd : to) {
      threads.emplace_back([&fd, bytes] {
        std::vector<char> room(kStripeBlock);
        for (uint64_t left = bytes; left > 0;) {
          const ssize_t n = recv(fd.get(), room.data(), std::min<uint64_t>(left, room.size()), MSG_WAITALL);
          if (n <= 0) return;
          left -= static_cast<uint64_t>(n);
        }
      });
    }
    on_each(hosts, [&](unsigned h) {
      const std::vector<char> block(kStripeBlock);
      for (uint64_t done = 0; done < bytes; done += block.size()) {
        for (unsigned other = 0; other + 1 < hosts; ++other) {
          const uint64_t part = std::min<uint64_t>(block.size(), bytes - done);
          for (uint64_t sent = 0; sent < part;) {
            const ssize_t n =
                send(from[h * (hosts - 1) + other].get(), block.data() + sent, part - sent, MSG_NOSIGNAL);
            if (n <= 0) return;
            sent += static_cast<uint64_t>(n);
          }
        }
      }
    });
    for (std::thread& t : threads) t.join();
  });
}

// stripes: of each host that encodes.
Cost bare_encoding(const redundancy::Scheme& scheme, unsigned hosts, uint64_t stripes, long rounds) {
  const auto code = must(redundancy::Code::make(scheme));
  BlockPool pool;
  std::vector<std::vector<Block>> blocks(hosts);
  for (auto& of_host : blocks) {
    for (unsigned i = 0; i < hosts; ++i) {
      of_host.push_back(pool.take());
      std::fill_n(of_host.back().bytes(), kStripeBlock, static_cast<std::byte>(i));
    }
  }
  return median(rounds, [&] {
    on_each(hosts, [&](unsigned h) {
      std::vector<const std::byte*> from;
      std::vector<std::byte*> to;
      for (unsigned i = 0; i < hosts; ++i) {
        if (i < scheme.data)
          from.push_back(blocks[h][i].bytes());
        else
          to.push_back(blocks[h][i].bytes());
      }
      for (uint64_t s = 0; s < stripes; ++s) code->encode(from, to, kStripeBlock);
    });
  });
}

void measure(const std::string& words, unsigned hosts, uint64_t mib, long rounds) {
  Parts parts(hosts, mib << 20);
  ExchangePlan plan;
  plan.hosts = hosts;
  plan.scheme = must(scheme_for_hosts(words, hosts));
  plan.secret = cluster::make_secret();
  plan.addresses.assign(hosts, "127.0.0.1");
  plan.lengths.assign(hosts, mib << 20);
  std::vector<std::unique_ptr<Mesh>> meshes;
  std::vector<int> ports;
  for (unsigned h = 0; h < hosts; ++h) {
    meshes.push_back(std::make_unique<Mesh>());
    ports.push_back(must(meshes.back()->listen("127.0.0.1")));
  }
  const auto exchange = [&](bool first) {
    on_each(hosts, [&](unsigned h) {
      ExchangePlan own = plan;
      own.self = h;
      if (first) own.ports = ports;
      const auto done = Exchange(*meshes[h]).run(own, parts.streams[h], parts.checks[h].get(), 0);
      if (!done.ok()) std::printf("%s\n", std::string(done.error().message()).c_str());
    });
  };
  const Cost first = cost_of([&] { exchange(true); });
  const Cost later = median(rounds, [&] { exchange(false); });
  // Each block of data goes to its encoder, and each check but the encoder's own to its host.
  const uint64_t sent = hosts * (mib << 20) / plan.scheme.data * (plan.scheme.data + plan.scheme.checks - 1);
  const Cost transfer = bare_transfer(hosts, sent / (hosts * (hosts - 1)), rounds);
  const Cost encoding =
      bare_encoding(plan.scheme, hosts, (mib << 20) / kStripeBlock / plan.scheme.data, rounds);
  const double slower = std::max(transfer.wall_ms, encoding.wall_ms);
  std::printf("| %u x %lu, %s | %.1f, %.1f | %.1f, %.1f | %.1f | %.1f, %.1f | %.1f, %.1f | %.0f |\n", hosts,
              mib, words.c_str(), first.wall_ms, first.cpu_ms, later.wall_ms, later.cpu_ms,
              static_cast<double>(sent) / (1 << 20), transfer.wall_ms, transfer.cpu_ms, encoding.wall_ms,
              encoding.cpu_ms, 100 * slower / later.wall_ms);
}

}  // namespace
}  // namespace ckpt::keeper

int main(int argc, char** argv) {
  bench::CommandLine line(
      "exchange_speed",
      "How fast keepers make checks: all hosts in this process, over the loopback interface.", "");
  unsigned hosts = 5, rounds = 5;
  uint64_t mib = 64;
  std::string redundancy = "parity";
  line.number("--hosts", hosts, "how many", 2, 64);
  line.text("--redundancy", redundancy, "as of ckpt run");
  line.number("--mib", mib, "of each host's part", 1, 65536);
  line.number("--rounds", rounds, "of each the median", 1, 1000);
  if (const auto code = line.parse(argc, argv)) return *code;
  std::printf(
      "| hosts x MiB, redundancy | first: wall, CPU, ms | later ones | sent, MiB | bare transfer | bare "
      "encoding | "
      "%% of the slower |\n| --- | --- | --- | --- | --- | --- | --- |\n");
  ckpt::keeper::measure(redundancy, hosts, mib, rounds);
  return 0;
}
