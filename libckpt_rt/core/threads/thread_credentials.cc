#include "libckpt_rt/core/threads/thread_credentials.h"

#include <errno.h>
#include <linux/capability.h>
#include <sys/prctl.h>

#include <algorithm>

#include "base/protocol/restart_protocol.h"
#include "base/sys.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {

constexpr long kNobody = -1;               // setfsuid(2) changes nothing for it, and says who it is
constexpr int kKeepCapabilities = 1 << 4;  // of the secure bits; needs no right
constexpr uint64_t kSetsUsers = 1ull << CAP_SETUID | 1ull << CAP_SETGID;

long prctl(int operation, long argument = 0) {
  return sys::call(__NR_prctl, long{operation}, argument, 0L, 0L, 0L);
}

struct Capabilities {
  uint64_t effective = 0, permitted = 0, inheritable = 0;
  bool operator==(const Capabilities&) const = default;
};

Capabilities capabilities() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  Capabilities all;
  if (sys::call(__NR_capget, &header, data) != 0) return all;
  for (int i = 0; i < 2; ++i) {
    all.effective |= uint64_t{data[i].effective} << (32 * i);
    all.permitted |= uint64_t{data[i].permitted} << (32 * i);
    all.inheritable |= uint64_t{data[i].inheritable} << (32 * i);
  }
  return all;
}

long set_capabilities(const Capabilities& all) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2];
  for (int i = 0; i < 2; ++i) {
    data[i].effective = static_cast<uint32_t>(all.effective >> (32 * i));
    data[i].permitted = static_cast<uint32_t>(all.permitted >> (32 * i));
    data[i].inheritable = static_cast<uint32_t>(all.inheritable >> (32 * i));
  }
  return sys::call(__NR_capset, &header, data);
}

void read_users(ThreadCredentials& c) {
  sys::call(__NR_getresuid, &c.uid[0], &c.uid[1], &c.uid[2]);
  sys::call(__NR_getresgid, &c.gid[0], &c.gid[1], &c.gid[2]);
  c.uid[3] = static_cast<uint32_t>(sys::call(__NR_setfsuid, kNobody));
  c.gid[3] = static_cast<uint32_t>(sys::call(__NR_setfsgid, kNobody));
  long groups = sys::call(__NR_getgroups, long{ThreadCredentials::kMostGroups}, c.groups);
  if (groups == -EINVAL) groups = sys::call(__NR_getgroups, 0L, 0L);  // more than there is room for
  c.group_count = groups > 0 ? static_cast<uint32_t>(groups) : 0;
}

bool same_groups(const ThreadCredentials& a, const ThreadCredentials& b) {
  return a.group_count == b.group_count && std::equal(a.groups, a.groups + a.group_count, b.groups);
}

bool same_users(const ThreadCredentials& a, const ThreadCredentials& b) {
  return std::equal(a.uid, a.uid + 4, b.uid) && std::equal(a.gid, a.gid + 4, b.gid);
}

// Groups first: who has become another user may not choose them any more.
long set_users(const ThreadCredentials& wanted) {
  long r = sys::call(__NR_setresgid, wanted.gid[0], wanted.gid[1], wanted.gid[2]);
  if (r != 0) return r;
  sys::call(__NR_setfsgid, wanted.gid[3]);
  r = sys::call(__NR_setresuid, wanted.uid[0], wanted.uid[1], wanted.uid[2]);
  if (r != 0) return r;
  sys::call(__NR_setfsuid, wanted.uid[3]);
  ThreadCredentials now;
  read_users(now);
  return same_users(now, wanted) ? 0 : -EPERM;
}

}  // namespace

void save_credentials_in_handler(ThreadCredentials& c) {
  c.known = prctl(PR_GET_SECCOMP) == 0;
  if (!c.known) return;
  read_users(c);
  const Capabilities own = capabilities();
  c.effective = own.effective;
  c.permitted = own.permitted;
  c.inheritable = own.inheritable;
  c.secure_bits = static_cast<int32_t>(std::max(prctl(PR_GET_SECUREBITS), 0l));
  c.no_new_privs = prctl(PR_GET_NO_NEW_PRIVS) == 1 ? 1 : 0;
}

long become_user_of_thread(const ThreadCredentials& wanted, const ThreadCredentials& of_process,
                           uint32_t& notes) {
  if (!wanted.known) return 0;
  if (wanted.no_new_privs != 0) prctl(PR_SET_NO_NEW_PRIVS, 1);
  if (!of_process.known) return 0;
  const bool other_groups =
      wanted.knows_groups() && of_process.knows_groups() && !same_groups(wanted, of_process);
  const bool other_user = !same_users(wanted, of_process);
  if (!other_groups && !other_user) return 0;
  // Leaving root's user takes capabilities away. What the thread had it gets when it is the other user.
  const Capabilities before = capabilities();
  Capabilities raised = before;
  raised.effective |= before.permitted & kSetsUsers;
  set_capabilities(raised);
  prctl(PR_SET_KEEPCAPS, 1);
  if (other_groups && sys::call(__NR_setgroups, long{wanted.group_count}, wanted.groups) != 0)
    notes |= kNoteThreadUser;
  const long r = other_user ? set_users(wanted) : 0;
  prctl(PR_SET_KEEPCAPS, 0);
  set_capabilities(before);
  if (r == 0) return 0;
  // Users that this namespace does not have, or that nobody may choose here: as of the process, that is said.
  if ((before.permitted & kSetsUsers) == kSetsUsers && r != -EINVAL) return r;
  notes |= kNoteThreadUser;
  return 0;
}

long restore_capabilities_of_thread(const ThreadCredentials& c, const ProcessCapabilities& of_process,
                                    uint32_t& notes) {
  if (c.known && c.secure_bits > 0) {
    // Without the right (CAP_SETPCAP) the checkpoint has said so.
    prctl(PR_SET_SECUREBITS, c.secure_bits);
    if ((c.secure_bits & kKeepCapabilities) != 0) prctl(PR_SET_KEEPCAPS, 1);
  }
  const Capabilities now = capabilities();
  Capabilities own = of_process.differ
                         ? Capabilities{of_process.effective, of_process.permitted, of_process.inheritable}
                         : now;
  if (c.known) {
    own = {c.effective & now.permitted, c.permitted & now.permitted,
           c.inheritable & (now.permitted | now.inheritable)};
  }
  if (own != now) {
    long r = set_capabilities(own);
    // The bounding set is narrower: what is inheritable now may stay so.
    own.inheritable &= now.inheritable;
    if (r == -EPERM) r = set_capabilities(own);
    if (r != 0) return r;
  }
  prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL);
  const uint64_t ambient = c.known ? of_process.ambient & c.permitted & c.inheritable : of_process.ambient;
  for (int bit = 0; bit < 64; ++bit) {
    if ((ambient >> bit & 1) == 0) continue;
    if (sys::call(__NR_prctl, PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, bit, 0L, 0L) != 0) notes |= kNoteAmbient;
  }
  return 0;
}

}  // namespace ckpt
