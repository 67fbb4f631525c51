// The increments of a part as differences of words from the images below them, and full images as those from
// older full ones: what redundancy is computed over, and what travels, where that is shorter
// (cluster/keeper/word_differences.h).
//
// Owner: cli, the process of exchanges. One thread. Callers: that process.
// Never: takes differences of images that are compressed, encrypted, or not in this keeper.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "cli/keeper/exchange_process.h"
#include "cluster/keeper/part_stream.h"

namespace ckpt::cli {

// The file of differences that belongs to a part, in the same directory.
std::string words_of_part(const std::string& part);

// Of a part that is there: writes the differences of its increments to `words`, and returns their files, with
// the lengths and sums of both. None, also where the keeper has no room for them or an image cannot be read:
// all of them are sent as they are. ground: a part of the same job there, with whose images full ones are
// compared; empty: they are sent as they are.
std::vector<keeper::PartFile> make_part_words(const PartInKeeper& part, const keeper::PartStream& stream,
                                              keeper::PartWords words, const std::string& ground);

// The other way: files of which the stream has differences are written from the images below them, which are
// there. What comes of it is compared with the sums of the list.
Result<void> write_from_part_words(const PartInKeeper& part, const keeper::PartStream& stream);

}  // namespace ckpt::cli
