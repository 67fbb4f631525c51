// ckpt-srun: takes the place of srun in a job that is checkpointed (docs/srun.md). `ckpt-srun --node` is its
// half on each node.
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>

#include "base/files/standard_descriptors.h"
#include "cluster/srun/launcher/launcher.h"
#include "cluster/srun/node/inherited.h"
#include "cluster/srun/node/node.h"

namespace ckpt::cluster::srun {

namespace {

// The next number of a step of this job: how many bytes the file has, to which each step adds one. The file
// lies beside the table of the job's hosts; a job of one host has its process's number.
int next_step() {
  const char* table = getenv("CKPT_ON");
  if (table == nullptr) return getpid();
  const std::string path = table, name = path.substr(0, path.rfind('/') + 1) + ".srun-steps";
  const ScopedFd file(open(name.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!file.valid() || write(file.get(), "s", 1) != 1) return getpid();
  return static_cast<int>(lseek(file.get(), 0, SEEK_CUR) - 1);
}

int main(int argc, char** argv) {
  // By which it is told from Slurm's (cli/hosts/agent/part_check.cc).
  prctl(PR_SET_NAME, "ckpt-srun", 0, 0, 0);
  close_descriptors_at_exec();
  if (argc == 2 && strcmp(argv[1], "--node") == 0) return Node().run();
  auto step = read_step({argv + 1, argv + argc}, [](const char* name) { return getenv(name); });
  if (!step.ok()) {
    std::fprintf(stderr, "srun: error: %s\n", step.error().text);
    return static_cast<int>(step.error().code);
  }
  step->number = next_step();
  return Launcher(std::move(*step)).run();
}

}  // namespace
}  // namespace ckpt::cluster::srun

int main(int argc, char** argv) {
  ckpt::take_standard_descriptors();
  return ckpt::cluster::srun::main(argc, argv);
}
