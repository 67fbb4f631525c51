// The directory of images as the victim sees it: made, checked, numbered, pruned.
//
// Owner:     image/write. Callers: the checkpoint agent, in the victim: raw system calls (getdents64), no
//            allocation; 48 KiB of stack. Pruning maps memory for its list, 296 bytes an image, and unmaps
//            it. Names are made by image_name.h.
// Never:     touches other files than images and what is kept beside them; but for remove_dead_leftovers(),
//            only those of the given run.
#pragma once

#include "base/raii_fd.h"
#include "base/result.h"
#include "image/format/encryption/image_key.h"
#include "image/format/image_format.h"
#include "image/format/image_name.h"

namespace ckpt {

// Opens the directory, making its last component with mode 0700 if it is missing. Refuses what is no
// directory, belongs to someone else, may be written by group or others, or cannot be written by us. A path
// that names a keeper (base/protocol/keeper_protocol.h) is the directory that it holds.
Result<ScopedFd> open_image_directory(const char* path);
// The same of one that is open.
Result<void> check_image_directory(int fd, const char* path);
// After a commit in it: will what was committed be there? Not, if it was a keeper's that has ended meanwhile.
Result<void> check_images_stay(int fd, const char* path);

// One more than the highest sequence of this run in the directory, unfinished images included.
Result<uint64_t> next_sequence(int dir_fd, const uint8_t run_id[16]);

// Removes what writers that are gone left behind: ".tmp" files of any run that belong to our user, are
// images (or were to become one), and whose writer's lock (image_file.h) is free. Returns how many. A
// process id says nothing here: it may be another process's by now, or another machine's. Where flock(2)
// does not reach the other machines (NFS mounted with local_lock), one of them may lose the checkpoint
// that it is writing: its rename fails, and its older images stay.
uint32_t remove_dead_leftovers(int dir_fd);

// May the next image be an increment to this one? Not when the chain would have more than `most` images,
// or when the increments below take more than the full image: from there on a full one is no worse.
bool chain_may_grow(const ParentImage& parent, uint32_t most);

// Is the parent still there, complete and the one that is meant, and are its own? Two blocks of each are
// read. Here and below `key` is that of encrypted images: those of another, or without one, do not count.
bool parent_is_whole(int dir_fd, const uint8_t run_id[16], const ParentImage& parent,
                     const ImageKey* key = nullptr);

// As long as this is open, no program that prunes removes the image, nor its parents. Not valid: the image is
// gone, or going.
ScopedFd hold_image(int dir_fd, const char* name);

struct Pruned {
  uint32_t images = 0;     // complete images removed
  uint32_t leftovers = 0;  // ".tmp" of dead writers removed
  uint32_t kept = 0;       // complete images that stay
};
// To be called after a commit. Of the complete images of this run the newest `keep` stay (0: all), and
// every image that one of them is an increment to, or that is held. Incomplete ".ckpt" files are left alone
// and not counted; increments whose parents are gone are not counted either. Each image is read once, two
// blocks of it. The images that stay are durable, names and all, before the first goes. An error says that
// not all could be removed: what stays is restorable, and the next call removes it.
Result<Pruned> prune_images(int dir_fd, const uint8_t run_id[16], uint32_t keep,
                            const ImageKey* key = nullptr);

}  // namespace ckpt
