// While a checkpoint of a job is taken: the threads of this process that trace others (ptrace(2)) let the
// checkpoint's signals through to these, and put them back as they were.
//
// Owner:     Service: the agent's, for the time of one attempt. The words it shares with the tracing threads
//            are in the library's data.
// Callers:   the agent; the tracing threads in the handler of the checkpoint signal, and at a restart.
// Never:     the program's wait(2) sees a stop that is the checkpoint's: from begin() to end() its tracing
//            threads are in our handler.
//
//   agent                          tracing thread, in the handler             a tracee
//   begin(): signals it  ────────► serve_in_handler(): looks at each
//                                  tracee: runs, or is held in a stop
//                                  a signal of ours is pending for it:
//                                  lets it come to that and no further ─────► kDelivering
//                                  the signal is there: writes its word
//                                  into it, and delivers it ────────────────► kInHandler
//                                  its marker is there: gives it mask,
//                                  registers, siginfo; held again, or goes on
//   stop(): all of it stands       all that are to stand have their signal:
//                                  joins the stop as every thread
//   let_go()                       (still in the stop)
//   release()                      after_stop(): the markers
//   end()                ────────► the same for what is in the handler still; waits for the thread
//
// Where the stop is given up, to be tried once more, the thread stays in the handler, and stands again.
//
// A stop that cannot be made again is refused by name: of a group, an event. One that is over in a moment is
// waited for, ahead of the service; in it the attempt is given up, and taken again.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/result.h"

namespace ckpt::tracing {

struct Tracee;

class Service {
 public:
  Service();
  ~Service() { end(); }
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  // Does this process trace anybody? Then its tracing threads serve when this returns.
  // leader: the process that leads the job's checkpoint, which nobody asks to take part.
  Result<void> begin(int64_t timeout_ns, int leader);
  // All stand: behind the stop the threads put their tracees back, and go on.
  void let_go();
  void end();
  // Until let_go(): a tracee has come into a stop that cannot be made again; or another one is traced since.
  Result<void> check() const;

 private:
  Result<void> begin_once(int64_t timeout_ns, int leader);
  bool began_ = false;
  bool is_over_ = false;  // all stood
  uint32_t begun_;        // of tracee_table.h, when this service began
};

// Does a thread of this process trace anybody?
bool traces_anybody();
// One that it traces and that took no part in the checkpoint; 0: none. in_job: others may have.
int left_out(bool in_job);
// Is the thread in serve_in_handler()? A stop waits for it as for one that takes no signal for a moment.
bool serves(int tid);

// By a thread that does not trace `t`, behind a wait(2) that has told it of a stop by `signal`: is it one of
// a service that goes on? Then the thread that traces it sees to it, and the program is told nothing.
bool is_of_service(const Tracee& t, int signal);

inline constexpr int kServesNobody = -1;
extern constinit std::atomic<uint64_t> asked_service;
int join_service(uint64_t service);
// In the handler of a signal that stops threads, before the thread stands: what after_stop() is to be told.
// Where nobody asked for a service, which is so in every process that traces nobody, it is one load.
inline int serve_in_handler() {
  const uint64_t service = asked_service.load(std::memory_order_acquire);
  return __builtin_expect(service == 0, 1) ? kServesNobody : join_service(service);
}
// In the stop, of a thread that serves, again and again: a tracee that SIGSTOP, which nobody can block, stops
// in our handler goes on. The agent of its process may have something for it to do.
void let_stand();
// Behind the stop, of a thread that serves. True: it is to stand again.
bool after_stop(int served);
// At a restart: nobody serves.
void reset_after_restart();
// At a restart, when all processes of the job stand ready: attaches, and puts all back.
void after_restart();

}  // namespace ckpt::tracing
