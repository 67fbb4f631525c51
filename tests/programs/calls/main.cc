// calls: threads that sit in calls which a signal handler would interrupt, and count everything that
// must not happen: EINTR, EFAULT, a wait cut short, a changed errno.
#include "tests/programs/calls/calls.h"

int main(int argc, char** argv) {
  using namespace calls;
  return victim::run_victim(
      {"calls",
       "Waits in every kind of call and counts EINTR, EFAULT and short waits.",
       {{"sleeps", "nanosleep, clock_nanosleep, usleep", 40, sleeps},
        {"polls", "poll, ppoll, select, pselect on a silent pipe", 40, polls},
        {"epolls", "epoll_wait, epoll_pwait, timerfd, eventfd", 40, epolls, false},
        {"timedlocks", "sem_timedwait, cond and mutex with time limit", 40, timed_locks},
        {"futexes", "FUTEX_WAIT by syscall()", 40, futexes},
        {"pipes", "read from an empty pipe, write to a full one", 120, pipes},
        {"sysv", "semop, semtimedop, msgrcv, msgsnd", 60, sysv, false},
        {"sigwaits", "sigtimedwait", 40, sigwaits},
        {"sockets", "recv, accept with a time limit", 40, sockets, false},
        {"children", "waitpid", 40, children, false},
        {"buffers", "read, getdents, uname and the like into pages not touched before", 25'000, buffers},
        {"errno", "errno stays what it is", 3'000'000'000, errno_stays}}},
      argc, argv);
}
