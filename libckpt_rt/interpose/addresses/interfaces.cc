// getifaddrs: who looks for the own address in the list of interfaces finds the one that the job knows.
#include <ifaddrs.h>
#include <netinet/in.h>

#include "libckpt_rt/interpose/abi.h"
#include "libckpt_rt/interpose/addresses/addresses.h"
#include "libckpt_rt/interpose/real.h"
#include "libckpt_rt/core/preload_rules.h"

using namespace ckpt;

// The list is libc's, in memory of the program's: made for this call, and nobody else has it yet.
CKPT_INTERPOSE(int, getifaddrs, ifaddrs** list) {
  const int r = real_function(RealFunction::kGetifaddrs).as<int(ifaddrs**)>()(list);
  if (r != 0 || addresses::count.load(std::memory_order_relaxed) == 0) return r;
  for (ifaddrs* i = *list; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr) continue;
    if (i->ifa_addr->sa_family == AF_INET) addresses::to_job(i->ifa_addr, sizeof(sockaddr_in), true);
    if (i->ifa_addr->sa_family == AF_INET6) addresses::to_job(i->ifa_addr, sizeof(sockaddr_in6), true);
  }
  return r;
}
