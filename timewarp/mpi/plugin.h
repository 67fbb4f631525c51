/* What a transport library gives: libckpt_timewarp_openmpi.so, libckpt_timewarp_mpich.so, or another by its
 * path. Loaded when a run asks for it, so that nothing else needs MPI. All functions are called by one thread
 * at a time; none waits but open() and close(). They return 0, or a negative number if the transport has
 * failed. */
#ifndef CKPT_TIMEWARP_MPI_PLUGIN_H_
#define CKPT_TIMEWARP_MPI_PLUGIN_H_

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CKPT_TW_TRANSPORT_VERSION 1

typedef struct ckpt_tw_transport {
  int version;
  int (*open)(int* rank, int* size);
  /* Copies the bytes; what is posted to one process arrives in order. */
  int (*post)(int to, const void* bytes, size_t n);
  /* 1: something has arrived, at most `most` bytes; 0: nothing. */
  int (*receive)(void* bytes, size_t most, int* from, size_t* n);
  /* One at a time: n bytes of each process, to `all`, by rank. Both must stay until gather_done() returns 1.
   */
  int (*gather)(const void* mine, size_t n, void* all);
  int (*gather_done)(void);
  void (*close)(void);
} ckpt_tw_transport;

/* The one symbol of the library. */
const ckpt_tw_transport* ckpt_tw_transport_of(void);

#ifdef __cplusplus
}
#endif
#endif
