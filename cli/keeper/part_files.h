// What an exchange makes in a keeper's directory beside complete parts. Several jobs may have the same
// keeper, and each of them removes leftovers there. So files have no name until they are complete: one of an
// exchange that was killed is gone with it, and nobody finds what another exchange has begun. The directory
// of a part that is computed has a temporary name, which counts where checkpoints are numbered, and is
// locked.
//
// Owner: cli, the process of exchanges, one thread. Callers: the same.
// Never: removes what another job is making.
#pragma once

#include <string>

#include "base/raii_fd.h"
#include "base/result.h"

namespace ckpt::cli {

// Without a name, for reading and writing. Invalid: errno says why.
ScopedFd open_nameless(int directory);
// Removes an existing file of this name; its checkpoint was never committed. False: errno says why.
bool give_name(const ScopedFd& file, int directory, const std::string& name);

// Checks, and differences, whose part is not there any more, and is not being computed either.
void remove_stale_checks(int directory);

// The directory in which the part `name` is computed: temporary_of(name), new and empty, and locked while the
// descriptor is open. kUnavailable: somebody else makes one of that name; kTimeout: a checkpoint of one host
// alone is being taken there all the time.
std::string temporary_of(const std::string& name);
Result<ScopedFd> begin_part(int directory, const std::string& name);

}  // namespace ckpt::cli
