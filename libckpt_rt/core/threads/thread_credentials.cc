#include "libckpt_rt/core/threads/thread_credentials.h"

#include <errno.h>
#include <sys/prctl.h>

#include <algorithm>
#include <atomic>

#include "base/machine/capabilities.h"
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

void read_users(ThreadCredentials& c) {
  sys::call(__NR_getresuid, &c.uid[0], &c.uid[1], &c.uid[2]);
  sys::call(__NR_getresgid, &c.gid[0], &c.gid[1], &c.gid[2]);
  // A service manager's filter may end who calls these, and then nobody has another.
  const bool may_ask = !is_under_filters();
  c.uid[3] = may_ask ? static_cast<uint32_t>(sys::call(__NR_setfsuid, kNobody)) : c.uid[1];
  c.gid[3] = may_ask ? static_cast<uint32_t>(sys::call(__NR_setfsgid, kNobody)) : c.gid[1];
  long groups = sys::call(__NR_getgroups, long{ThreadCredentials::kMostGroups}, c.groups);
  if (groups == -EINVAL) groups = sys::call(__NR_getgroups, 0L, 0L);  // more than there is room for
  c.group_count = groups > 0 ? static_cast<uint32_t>(groups) : 0;
}

bool same_groups(const ThreadCredentials& a, const ThreadCredentials& b) {
  return a.group_count == b.group_count &&
         (!a.knows_groups() || std::equal(a.groups, a.groups + a.group_count, b.groups));
}

bool same_users(const ThreadCredentials& a, const ThreadCredentials& b) {
  return std::equal(a.uid, a.uid + 4, b.uid) && std::equal(a.gid, a.gid + 4, b.gid);
}

// Groups first: who has become another user may not choose them any more. `raised`: capabilities to choose
// with.
long set_users(const ThreadCredentials& wanted, const Capabilities& raised) {
  long r = sys::call(__NR_setresgid, wanted.gid[0], wanted.gid[1], wanted.gid[2]);
  if (r != 0) return r;
  sys::call(__NR_setfsgid, wanted.gid[3]);
  r = sys::call(__NR_setresuid, wanted.uid[0], wanted.uid[1], wanted.uid[2]);
  if (r != 0) return r;
  // Leaving root's user has taken the effective ones, and the file system's user may be none of the three.
  set_own_capabilities(raised);
  sys::call(__NR_setfsuid, wanted.uid[3]);
  ThreadCredentials now;
  read_users(now);
  if (is_under_filters()) now.uid[3] = wanted.uid[3], now.gid[3] = wanted.gid[3];
  return same_users(now, wanted) ? 0 : -EPERM;
}

constexpr int kCapabilities = 64;  // as many bits; the kernel refuses those that it does not know

bool is_bounding(int bit) { return prctl(PR_CAPBSET_READ, bit) == 1; }

bool is_ambient(int bit) {
  return sys::call(__NR_prctl, PR_CAP_AMBIENT, PR_CAP_AMBIENT_IS_SET, bit, 0L, 0L) == 1;
}

constinit std::atomic<bool> some_own_sets{false};

void read_sets(ThreadCredentials& c) {
  // relaxed: it is set before the call that changes one, by the same thread.
  if (!some_own_sets.load(std::memory_order_relaxed)) return;
  for (int bit = 0; bit < kCapabilities; ++bit) {
    const long bounding = prctl(PR_CAPBSET_READ, bit);
    if (bounding < 0) break;
    c.bounding |= static_cast<uint64_t>(bounding) << bit;
    c.ambient |= uint64_t{is_ambient(bit)} << bit;
  }
  c.knows_sets = true;
}

// The thread has all rights of ckpt-restart still. A capability that the process had given up does not come
// back.
void restore_bounding_set(const ThreadCredentials& c, uint64_t of_process, uint32_t& notes) {
  if (!c.knows_sets) return;
  uint64_t now = 0;
  for (int bit = 0; bit < kCapabilities; ++bit) {
    if (!is_bounding(bit)) continue;
    if ((c.bounding >> bit & 1) != 0)
      now |= 1ull << bit;
    else if (prctl(PR_CAPBSET_DROP, bit) != 0)
      notes |= kNoteThreadSets;
  }
  if ((c.bounding & ~now & ~of_process) != 0) notes |= kNoteThreadSets;
}

void restore_ambient_set(uint64_t ambient, uint32_t& notes) {
  prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL);
  for (int bit = 0; bit < kCapabilities; ++bit) {
    if ((ambient >> bit & 1) == 0) continue;
    if (sys::call(__NR_prctl, PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, bit, 0L, 0L) != 0) notes |= kNoteAmbient;
  }
}

}  // namespace

bool is_under_filters() { return prctl(PR_GET_SECCOMP) != 0; }

void note_own_sets() { some_own_sets.store(true, std::memory_order_relaxed); }

void save_credentials_in_handler(ThreadCredentials& c) {
  c.known = !is_under_filters();
  if (!c.known) return;
  read_users(c);
  const Capabilities own = own_capabilities();
  c.effective = own.effective;
  c.permitted = own.permitted;
  c.inheritable = own.inheritable;
  c.secure_bits = static_cast<int32_t>(std::max(prctl(PR_GET_SECUREBITS), -1l));
  c.no_new_privs = prctl(PR_GET_NO_NEW_PRIVS) == 1 ? 1 : 0;
  read_sets(c);
}

long become_user_of_thread(const ThreadCredentials& wanted, const ThreadCredentials& first, bool may_choose,
                           uint32_t& notes) {
  if (!wanted.known) return 0;
  if (wanted.no_new_privs != 0) prctl(PR_SET_NO_NEW_PRIVS, 1);
  if (!may_choose && first.known && same_users(wanted, first) && same_groups(wanted, first)) return 0;
  ThreadCredentials now;
  read_users(now);
  // Of too many groups, if they are not the first thread's, the checkpoint has made a note.
  const bool other_groups = wanted.knows_groups() && !same_groups(wanted, now);
  const bool other_user = !same_users(wanted, now);
  if (!other_groups && !other_user) return 0;
  // Leaving root's user takes capabilities away. The thread gets its saved ones when it is the other user.
  const Capabilities before = own_capabilities();
  Capabilities raised = before;
  raised.effective |= before.permitted & kSetsUsers;
  set_own_capabilities(raised);
  prctl(PR_SET_KEEPCAPS, 1);
  long r = other_groups ? sys::call(__NR_setgroups, long{wanted.group_count}, wanted.groups) : 0;
  const bool without_groups = r != 0;
  if (other_user && (r == 0 || !may_choose)) r = set_users(wanted, raised);
  prctl(PR_SET_KEEPCAPS, 0);
  set_own_capabilities(before);
  if (r == 0 && !without_groups) return 0;
  if (may_choose) return r;
  notes |= kNoteThreadUser;
  return 0;
}

long restore_capabilities_of_thread(const ThreadCredentials& c, const ProcessCapabilities& of_process,
                                    uint32_t& notes) {
  restore_bounding_set(c, of_process.bounding, notes);
  const int32_t secure_bits = c.known && c.secure_bits >= 0 ? c.secure_bits : of_process.secure_bits;
  if (secure_bits > 0) {
    // Without the right (CAP_SETPCAP) what being root means is more than it was.
    prctl(PR_SET_SECUREBITS, secure_bits);
    const long now = prctl(PR_GET_SECUREBITS);
    if (now < 0 || (secure_bits & ~kKeepCapabilities & ~now) != 0) notes |= kNoteSecureBits;
    if ((secure_bits & kKeepCapabilities) != 0) prctl(PR_SET_KEEPCAPS, 1);
  }
  const Capabilities now = own_capabilities();
  Capabilities own = of_process.differ
                         ? Capabilities{of_process.effective, of_process.permitted, of_process.inheritable}
                         : now;
  if (c.known) {
    own = {c.effective & now.permitted, c.permitted & now.permitted,
           c.inheritable & (now.permitted | now.inheritable)};
  }
  if (own != now) {
    long r = set_own_capabilities(own);
    // The bounding set is narrower: what is inheritable now may stay so.
    own.inheritable &= now.inheritable;
    if (r == -EPERM) r = set_own_capabilities(own);
    if (r != 0) return r;
  }
  uint64_t ambient = of_process.ambient;
  if (c.known) ambient = c.knows_sets ? c.ambient : ambient & c.permitted & c.inheritable;
  restore_ambient_set(ambient, notes);
  return 0;
}

}  // namespace ckpt
