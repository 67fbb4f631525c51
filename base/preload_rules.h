// The rules for code that runs in a thread of the program: in an interposed call, in one of our signal
// handlers, or in what these call. Include it last: it makes most of the mistakes uncompilable. Names that
// this code or its headers need for other things (free, new, dlsym, mutex, string) cannot be poisoned: for
// them the table below is a promise, which only reviews keep.
//
// A thread of the program may be anywhere when we run: inside malloc with the arena's lock held, inside
// stdio, in a child of vfork, on a thread made by clone(2) whose TLS is its parent's. Therefore:
//   memory    only the stack, static data, or base/memory/arena.h        not malloc, new, std::string
//   text      fmt::format_to_n into a fixed buffer                 not printf, snprintf, strerror
//   locks     base/locks/futex.h                                         not pthread_mutex_*, std::mutex
//   symbols   resolved in a constructor, before they are needed    not dlsym in a call
//   state     on the stack                                         not thread_local
//   errno     set once, on the way back into the program           not in handlers
#pragma once

#pragma GCC poison malloc calloc realloc reallocarray aligned_alloc posix_memalign strdup strndup asprintf
#pragma GCC poison printf fprintf vprintf vfprintf sprintf snprintf vsnprintf puts fputs fopen fclose perror
#pragma GCC poison strerror getenv setenv syslog
#pragma GCC poison pthread_mutex_lock pthread_mutex_unlock pthread_once call_once
#pragma GCC poison thread_local __thread
