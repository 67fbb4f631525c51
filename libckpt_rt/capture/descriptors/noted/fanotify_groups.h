// What the kernel does not tell of groups of fanotify(7): whether who made them had CAP_SYS_ADMIN. Events of
// a group that was made without it do not say which process has caused them.
//
// Owner:     libckpt_rt/interpose; in the library's data, so that an image and a forked child have it.
//            Executing another program begins anew.
// Callers:   note_made, before_permissions, after_permissions: threads of the program, at any moment, also in
//            handlers. The others: the agent.
// Never:     allocates, locks, touches errno.
#pragma once

#include <cstdint>

#include "image/format/records/fanotify_records.h"

namespace ckpt::fanotify_groups {

// fanotify_init(2) has succeeded.
void note_made(bool with_rights);
// Of all groups that this program has made.
GroupMaker made_by();

// Around the making of a group that others ask for permission: they wait for the program's answer.
void before_permissions();
void after_permissions();
// How many have been made, or could not be.
uint32_t permissions();
// Of a number that permissions() gave: can one have been made since, or was one being made?
bool may_permit_since(uint32_t permissions);

}  // namespace ckpt::fanotify_groups
