/* The transport over MPI, compiled once for each MPI. */
#include "timewarp/mpi/plugin.h"

#include <mpi.h>
#include <stdlib.h>
#include <string.h>

enum { kEvents = 1 };

/* Sends under way, oldest first. */
struct sending {
  MPI_Request request;
  struct sending* next;
  char bytes[];
};
static struct sending *oldest, *newest;
static MPI_Comm events, gathers;
static MPI_Request gathering = MPI_REQUEST_NULL;
static int opened_here;

static int open_mpi(int* rank, int* size) {
  int initialised = 0, level = 0;
  MPI_Initialized(&initialised);
  if (!initialised) {
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level) != MPI_SUCCESS) return -1;
    if (level < MPI_THREAD_SERIALIZED) return -2;
    opened_here = 1;
  }
  if (MPI_Comm_dup(MPI_COMM_WORLD, &events) != MPI_SUCCESS ||
      MPI_Comm_dup(MPI_COMM_WORLD, &gathers) != MPI_SUCCESS)
    return -1;
  MPI_Comm_rank(events, rank);
  MPI_Comm_size(events, size);
  return 0;
}

static void reap(void) {
  while (oldest != NULL) {
    int done = 0;
    MPI_Test(&oldest->request, &done, MPI_STATUS_IGNORE);
    if (!done) return;
    struct sending* next = oldest->next;
    free(oldest);
    oldest = next;
    if (oldest == NULL) newest = NULL;
  }
}

static int post(int to, const void* bytes, size_t n) {
  reap();
  struct sending* s = malloc(sizeof(*s) + n);
  if (s == NULL) return -1;
  s->next = NULL;
  memcpy(s->bytes, bytes, n);
  if (MPI_Isend(s->bytes, (int)n, MPI_BYTE, to, kEvents, events, &s->request) != MPI_SUCCESS) {
    free(s);
    return -1;
  }
  if (newest != NULL) {
    newest->next = s;
  } else {
    oldest = s;
  }
  newest = s;
  return 0;
}

static int receive(void* bytes, size_t most, int* from, size_t* n) {
  int there = 0, count = 0;
  MPI_Status status;
  reap();
  if (MPI_Iprobe(MPI_ANY_SOURCE, kEvents, events, &there, &status) != MPI_SUCCESS) return -1;
  if (!there) return 0;
  if (MPI_Recv(bytes, (int)most, MPI_BYTE, status.MPI_SOURCE, kEvents, events, &status) != MPI_SUCCESS)
    return -1;
  MPI_Get_count(&status, MPI_BYTE, &count);
  *from = status.MPI_SOURCE;
  *n = (size_t)count;
  return 1;
}

static int gather(const void* mine, size_t n, void* all) {
  return MPI_Iallgather(mine, (int)n, MPI_BYTE, all, (int)n, MPI_BYTE, gathers, &gathering) == MPI_SUCCESS
             ? 0
             : -1;
}

static int gather_done(void) {
  int done = 0;
  if (MPI_Test(&gathering, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) return -1;
  return done;
}

/* MPICH before 4.2 over UCX may hang in MPI_Finalize: it ends connections there, which takes the other side's
   looks, and a process that has ended its own looks no more (pmodels/mpich, pull request 6596). A connection
   that is only being made is the most likely to hang: so each pair of processes has talked, both ways. */
static void talk_to_all(void) {
  int size = 0;
  MPI_Comm_size(events, &size);
  char* bytes = calloc(2, (size_t)size);
  if (bytes == NULL) return;
  for (int i = 0; i < 2; ++i) MPI_Alltoall(bytes, 1, MPI_BYTE, bytes + size, 1, MPI_BYTE, events);
  free(bytes);
}

static void close_mpi(void) {
  while (oldest != NULL) reap();
  talk_to_all();
  MPI_Comm_free(&events);
  MPI_Comm_free(&gathers);
  if (opened_here) MPI_Finalize();
}

const ckpt_tw_transport* ckpt_tw_transport_of(void) {
  static const ckpt_tw_transport transport = {
      CKPT_TW_TRANSPORT_VERSION, open_mpi, post, receive, gather, gather_done, close_mpi};
  return &transport;
}
