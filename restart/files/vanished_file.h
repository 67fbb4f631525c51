// Files that the program had mapped and that are gone, of which the image has all: made again under their
// names.
//
// Owner:     restart. Callers: ckpt-restart, which only asks; the child, which makes them; for the processes
//            of a job the planter, one after the other, before there is a second process that could make the
//            same file.
// Never:     follows a link, writes into a directory that somebody else could have prepared.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "base/result.h"
#include "image/read/image_chain.h"
#include "image/read/image_meta.h"

namespace ckpt {

// POSIX shared memory. Pages that the image does not have are zeros.
bool is_shared_memory_file(const ParsedMapping& mapping);

// The image has all of its file, and the program could write it, or could read it only and the file is POSIX
// shared memory that came into being, or was changed, while the job ran: the restart makes a file that is
// gone again.
bool can_be_made_again(const ParsedMapping& mapping);

// What is put there when memory is restored: the program could write it.
bool is_filled_by_mapping(const ParsedMapping& mapping);

// By name: does one mapping show all of the file?
using ReturningFiles = std::map<std::string, bool, std::less<>>;

// Adds those of this process that are gone and will be made again.
void add_returning_files(const ImageMeta& meta, ReturningFiles& files);

// Makes those of this process that are gone now: new files of the old size, mode 0600, that belong to its
// user; with the directories (0700) that are missing. kNow: those of which a mapping that could only be read
// shows all, with their contents; for all processes of a job ahead of kByMapping, for what another mapping of
// the same file puts there may be a part of it. kFileChanged: one cannot be made, or where it would be made
// others may write. kIo; damage of the image.
enum class Filled { kNow, kByMapping };
Result<void> make_returning_files(const ImageChain& image, Filled filled,
                                  const std::function<void(std::string_view)>& say);
// Will there be any with kNow, so that the image is read?
bool any_is_filled_now(const ImageMeta& meta);

// The directories above `file`, an absolute path, that are missing, for the user of the process: 0700.
Result<void> make_directory_of(const std::string& file, const ProcessRecord& process);

// The directory of `file`, an absolute path without links, the same way; the caller closes it. kFileChanged
// also: others may write there.
Result<int> open_directory_of(const std::string& file, const ProcessRecord& process);

// A FIFO that is gone, as make_returning_files() makes files. The bytes that wait in it are the descriptors'
// matter.
Result<void> make_fifo_again(const std::string& path, uint32_t mode, const ProcessRecord& process);

}  // namespace ckpt
