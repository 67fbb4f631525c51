// Where libpmix's headers were not there to build with: --mpi=pmix is refused before any node is asked.
#include "cluster/srun/pmix/host.h"

namespace ckpt::cluster::srun {

struct PmixHost::Library {};
PmixHost::PmixHost() = default;
PmixHost::~PmixHost() = default;
bool PmixHost::begin(const PmixStep&, std::string& why) {
  why = "--mpi=pmix: ckpt was built without it";
  return false;
}
bool PmixHost::environment_of(int, std::vector<std::string>&, std::string&) { return false; }
int PmixHost::fd() const { return -1; }
std::vector<PmixMessage> PmixHost::take() { return {}; }
void PmixHost::hear(const PmixMessage&) {}

}  // namespace ckpt::cluster::srun
