/* ckpt_rt: the C interface of plug-ins.
 *
 * A plug-in is a shared library that knows something about checkpoints which neither the program nor ckpt_rt
 * knows: how a client gets its connection back, what a transport has in flight. The program is not built
 * anew:
 *
 *   ckpt run --plugins /opt/reconnect.so -- PROGRAM            or CKPT_PLUGINS=PATH:PATH in the environment of ckpt run
 *
 * It is loaded into each process of the job before main(), and defines one object, `ckpt_plugin`. What
 * ckpt_rt.h offers is for it too: ckpt_rt_enter_critical() around what no checkpoint may divide,
 * ckpt_rt_exclude() for memory that it makes anew. Include this header, define CKPT_RT_OPTIONAL ahead of it,
 * and link with nothing. docs/plugins.md has the whole of it.
 */
#ifndef CKPT_PLUGIN_H
#define CKPT_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#include "ckpt_rt.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CKPT_PLUGIN_API_VERSION 1

/* Functions may be NULL. Set `size` to sizeof(struct ckpt_plugin): one that was built with an older header
 * goes on working. */
struct ckpt_plugin {
  size_t size;
  uint32_t api_version; /* CKPT_PLUGIN_API_VERSION */
  uint32_t reserved;
  const char* name; /* for messages */

  /* Once in each process, before main(), on its first thread; may call all of libc. Not 0: the process does
   * not start, and ends with 78. `error`, of `error_size` bytes, is to say why, in one line. */
  int (*load)(char* error, size_t error_size);

  /* The following are called as callbacks of ckpt_rt.h are: on some thread of the program, in the context of
   * a signal handler, while all others stand. Only what signal-safety(7) allows. No other checkpoint begins
   * meanwhile. */
  void (*stopped)(void);   /* all threads stand, nothing is saved yet: what it writes is in the image */
  void (*go_on)(void);     /* the image is fixed, the threads are about to be released */
  void (*restarted)(void); /* in a restarted process: all is back, before any thread goes on */

  /* The following are called on a thread of the process that the loader makes if one of them is there. They
   * may call all of libc, and the program runs.
   *
   * Ahead of a checkpoint, which waits for it. round: from 0. What it posts to the plug-ins in other members
   * of the job (ckpt_rt_post(), with `name` as the subject) they find in the next round
   * (ckpt_rt_next_message()); rounds go on until in one of them nobody in the job posts anything. Not 0: the
   * checkpoint is given up, with the words in `error`. */
  int (*prepare)(uint32_t round, char* error, size_t error_size);
  /* After each checkpoint that was prepared, once: CKPT_RT_DURABLE, CKPT_RT_ABANDONED (given up, by
   * whomever), or, in a restarted process, CKPT_RT_CAME_BACK. */
  void (*concluded)(enum ckpt_rt_callback_kind how);
};

extern const struct ckpt_plugin ckpt_plugin;

#ifdef __cplusplus
}
#endif

#endif /* CKPT_PLUGIN_H */
