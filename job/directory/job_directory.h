// The directories of a job's checkpoints: numbered, made, committed, removed, pruned.
//
// Owner:     job. Callers: the coordinator's agent, a member's when its coordinator is gone, ckpt gc, and who
//            computes a lost part in a keeper's memory. Whoever makes one, or removes one of others, holds
//            the lock of the image directory (directory_lock.h). Raw system calls, no allocation.
// Locks:     who makes one has a lock of it too, from its making until the checkpoint is over: what is
//            locked is no leftover. Over several hosts the lock of the image directory is held no longer
//            than for the making: two jobs with the same hosts would wait for each other, each of them with
//            the lock that the other wants.
// Never:     removes what is not the name of a job's checkpoint; follows a link.
#pragma once

#include "base/raii_fd.h"
#include "base/result.h"
#include "image/format/encryption/image_key.h"
#include "job/format/job_name.h"

namespace ckpt::job {

// A checkpoint of some job is being made there, or computed.
bool is_one_made(int directory);

// One more than the highest of all jobs' checkpoints there, unfinished ones included.
Result<uint64_t> next_job_sequence(int directory);

// The same of checkpoints that are streamed (CKPT_TO), of which nothing stays there but the number of the
// last, in a file.
Result<uint64_t> next_streamed_sequence(int directory);
Result<void> note_streamed(int directory, uint64_t sequence);

// A new temporary directory, 0700. lock: it is locked while that is open, under whatever name. nullptr: the
// caller keeps the lock of the image directory.
Result<ScopedFd> make_temporary(int directory, const JobName& name, ScopedFd* lock);
// Removes images that were not finished, makes its entries durable, renames it, makes the name durable. On
// failure there is no directory of the final name.
Result<void> commit_directory(int directory, int temporary, const JobName& name);
// With all images and saved files in it. If it holds anything else, that stays, and the directory with it.
void remove_job_directory(int directory, const char* name);
// Removes all temporary directories that nobody has locked: their coordinators are dead.
uint32_t remove_dead_jobs(int directory);
// That one, if nobody has locked it. False: somebody has.
bool remove_dead_job(int directory, const char* temporary);

struct PrunedJobs {
  uint32_t removed = 0, kept = 0;
};
// Of the complete checkpoints of this job these stay: the newest `keep` (0: all), the parents of increments
// that stay, and those that a reader holds. If an image that stays is damaged, or cannot be read without
// another key, all older checkpoints stay.
Result<PrunedJobs> prune_jobs(int directory, const uint8_t job[16], uint32_t keep, const ImageKey* key);

}  // namespace ckpt::job
