#include "tests/programs/guarded/guarded.h"

int main(int argc, char** argv) {
  using namespace guarded;
  return victim::run_victim(
      {"guarded",
       "Lets the kernel write to memory that nobody has written to: one EFAULT, lost byte or wrong signal "
       "ends it.",
       {{"reads", "read, readv, pread, getrandom into buffers of every size", 40'000, reads},
        {"facts", "calls that fill in structures", 12'000, facts},
        {"messages", "recvmsg and recvfrom with control data and addresses", 20'000, messages, false},
        {"waits", "poll, select, epoll_wait, nanosleep and their time left", 6'000, waits, false},
        {"library", "stdio, directories and host names: libc calls the kernel", 400, library},
        {"children", "fork, wait4 and waitid", 40, children, false},
        {"heap_stacks", "handlers on stacks and alternate stacks in the heap", 20'000, heap_stacks},
        {"coroutines", "contexts that switch on stacks in the heap, with signals", 200'000, coroutines},
        {"repairs", "handlers of SIGSEGV and SIGBUS that repair pages of their own", 8'000, repairs},
        {"masks", "signals of faults blocked, sent, waited for", 8'000, masks},
        {"thread_ends", "threads that come and go, joined and robust", 300, thread_ends},
        {"grows", "mappings that grow and shrink where they are", 400'000, grows}}},
      argc, argv);
}
