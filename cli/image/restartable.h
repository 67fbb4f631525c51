// Can an image be restarted? What it says itself, and what ckpt-restart finds here and now.
//
// Owner: cli. Ordinary code, one thread. Callers: `ckpt now`, `ls`, `show`, `verify`, `check`; the agent.
// Never: starts the program of an image, or changes anything: ckpt-restart --check does neither.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "image/read/image_meta.h"

namespace ckpt::cli {

// What the checkpoint found that no restart can bring back; nothing: as far as it could tell all comes back.
std::vector<std::string> what_forbids_restart(const ImageMeta& meta);

// What images say of what comes back changed, and of what cannot come back.
struct ImageNotes {
  std::vector<std::string> notes, no_restart;
};
ImageNotes notes_of_image(const std::string& path);
// Of all images of a job's checkpoint, each line with its process. path: its directory,
// of a keeper as it is reached.
ImageNotes notes_of_job(const std::string& path);

// nullopt: it can be restarted here and now. Else why not, with ckpt-restart's exit code.
std::optional<Error> why_not_restartable_here(const std::string& image, const std::string& key_file);

}  // namespace ckpt::cli
