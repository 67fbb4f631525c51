// The command line of ckpt-restart.
//
// Owner: restart. Callers: main(), restart_job(), output.h.
#pragma once

#include <string>

#include "restart/plan/plan.h"
#include "restart/tree/namespaces.h"

namespace ckpt {

struct RestartOptions {
  std::string image;
  std::string key_file;
  std::string hosts, launch, spares;  // of a job over several hosts
  bool recover = false;               // of such a job: it goes on when a host dies
  int hosts_fd = -1;                  // one host's part: its agent
  bool check = false;
  bool detach = false;
  bool json = false;
  bool quiet = false;
  bool verbose = false;
  bool trust = false;
  NamespacePolicy namespaces = NamespacePolicy::kAuto;
  Loading loading = Loading::kAuto;
};

// Ends the process for --help, --version and mistakes.
RestartOptions parse_options(int argc, char** argv);

}  // namespace ckpt
