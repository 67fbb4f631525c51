// Limits and credentials: what the saved process had, as far as we may give it.
//
// Owner:     restart. Callers: the child process, before the restorer, which applies the result: a
//            limit on memory or processes must not hit us, a user id must not be given up too early.
#pragma once

#include "image/read/image_meta.h"
#include "restart/reports/report.h"
#include "restart/restorer/restorer_args.h"

namespace ckpt {

// Fills in limits and limit_count. Hard limits that must rise do so now; where that is refused a note says
// it.
void plan_limits(const ImageMeta& meta, RestorerArgs& args, ReportChannel& report);

// Fills in the credentials, but for `groups`, which is the caller's copy of the saved groups.
// in_new_user: a user namespace where only the saved effective ids exist.
void plan_credentials(const ImageMeta& meta, bool in_new_user, RestorerArgs& args, ReportChannel& report);

}  // namespace ckpt
