// busy: a fixed amount of one kind of work, to see what a preloaded library costs between checkpoints.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "bench/common.h"

namespace bench {
namespace {

struct Arguments {
  std::string work = "compute";
  uint64_t operations = 1'000'000;
};

// Blocks of 16 bytes to 64 KiB, small ones more often, a thousand of them alive at a time.
uint64_t allocate(uint64_t operations, Random random) {
  std::vector<std::pair<std::byte*, size_t>> alive(1024);
  uint64_t sum = 0;
  for (uint64_t i = 0; i < operations; ++i) {
    auto& [block, size] = alive[random.below(alive.size())];
    if (block != nullptr) sum += static_cast<uint64_t>(block[0]) + static_cast<uint64_t>(block[size - 1]);
    delete[] block;
    size = size_t{16} << random.below(random.below(13) + 1);
    block = new std::byte[size];
    block[0] = block[size - 1] = static_cast<std::byte>(i);
  }
  for (auto& [block, size] : alive) delete[] block;
  return sum;
}

// What servers and shells ask of the kernel all day, none of it slow in itself.
uint64_t system_calls(uint64_t operations) {
  auto must = [](long result, const char* what) {
    if (result < 0) throw std::runtime_error(fmt::format("{}: {}", what, std::strerror(errno)));
    return static_cast<uint64_t>(result);
  };
  int ends[2];
  must(pipe2(ends, O_CLOEXEC), "pipe");
  uint64_t sum = 0;
  char buffer[64] = {};
  for (uint64_t i = 0; i < operations; ++i) {
    switch (i % 8) {
      case 0:
        sum += must(write(ends[1], buffer, sizeof(buffer)), "write");
        break;
      case 1:
        sum += must(read(ends[0], buffer, sizeof(buffer)), "read");
        break;
      case 2: {
        pollfd p{ends[0], POLLIN, 0};
        sum += must(poll(&p, 1, 0), "poll");
        break;
      }
      case 3: {
        sigset_t mask;
        sigemptyset(&mask);
        sum += must(sigprocmask(SIG_BLOCK, &mask, nullptr), "sigprocmask");
        break;
      }
      case 4: {
        struct stat s {};
        must(stat("/", &s), "stat");
        sum += s.st_mode & S_IFMT;
        break;
      }
      case 5: {
        int fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
        must(fd, "open");
        sum += must(write(fd, buffer, 1), "write");
        close(fd);
        break;
      }
      case 6: {
        int fd = dup(ends[0]);
        must(fd, "dup");
        close(fd);
        ++sum;
        break;
      }
      default:
        sum += must(lseek(ends[0], 0, SEEK_CUR) < 0 ? 0 : 1, "lseek");
    }
  }
  close(ends[0]);
  close(ends[1]);
  return sum;
}

uint64_t compute(uint64_t operations, Random random) {
  uint64_t sum = 0;
  for (uint64_t i = 0; i < operations; ++i) sum ^= random.next() * (i | 1);
  return sum;
}

int run(const Arguments& arguments, const CommonArguments& common, Results& results) {
  std::vector<uint64_t> sums(common.threads);
  std::vector<std::string> faults(common.threads);
  run_threads(common.threads, [&](unsigned t) {
    Random random(common.seed + t);
    try {
      if (arguments.work == "allocate")
        sums[t] = allocate(arguments.operations, random);
      else if (arguments.work == "syscalls")
        sums[t] = system_calls(arguments.operations);
      else
        sums[t] = compute(arguments.operations, random);
    } catch (const std::exception& e) {
      faults[t] = e.what();
    }
  });
  for (const std::string& fault : faults) {
    if (!fault.empty()) throw std::runtime_error(fault);
  }
  uint64_t sum = 0;
  for (uint64_t s : sums) sum += s;
  results.add("work", arguments.work);
  results.add("operations", arguments.operations * common.threads);
  results.add("sum", sum);
  return kExitOk;
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  bench::Arguments arguments;
  bench::Program program;
  program.name = "busy";
  program.description = "Allocates, calls the kernel, or computes, a given number of times.";
  program.configure = [&](bench::CommandLine& line) {
    line.one_of("--work", arguments.work, {"allocate", "syscalls", "compute"},
                "Kind of work: allocate, syscalls or compute");
    line.number("-n,--operations", arguments.operations, "Operations of each thread", 1);
  };
  program.run = [&](const bench::CommonArguments& common, bench::Results& results) {
    return bench::run(arguments, common, results);
  };
  return bench::run_program(program, argc, argv);
}
