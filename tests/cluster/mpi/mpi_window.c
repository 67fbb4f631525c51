/* One-sided communication: each rank puts into, gets from and adds to the windows of all, between fences and
 * under locks; whoever
   finds another number than it must be says so and ends all. At the end all agree on the sum of what was added.
     mpi_window ROUNDS FILE    as mpi_ring.c */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#include "mpi_pace.h"

enum { kBlock = 2000, kMost = 64 };

static int rank, size;

static void check(long got, long wanted, const char* what, long round) {
  if (got == wanted) return;
  fprintf(stderr, "rank %d: %ld instead of %ld in %s %ld\n", rank, got, wanted, what, round);
  MPI_Abort(MPI_COMM_WORLD, 2);
}

static void put_and_get(MPI_Win window, const long* blocks, long i) {
  static long out[kMost][kBlock], in[kBlock];
  const int n = 1 + (int)(i * 97 % kBlock), next = (rank + 1) % size;
  MPI_Win_fence(0, window);
  for (int r = 0; r < size; ++r) {
    for (int k = 0; k < n; ++k) out[r][k] = i * 31 + rank * 1009 + r * 17 + k;
    MPI_Put(out[r], n, MPI_LONG, r, (MPI_Aint)rank * kBlock, n, MPI_LONG, window);
  }
  MPI_Win_fence(0, window);
  for (int r = 0; r < size; ++r) {
    for (int k = 0; k < n; ++k) check(blocks[r * kBlock + k], i * 31 + r * 1009 + rank * 17 + k, "put", i);
  }
  MPI_Win_fence(0, window);
  MPI_Get(in, n, MPI_LONG, next, (MPI_Aint)rank * kBlock, n, MPI_LONG, window);
  MPI_Win_fence(0, window);
  for (int k = 0; k < n; ++k) check(in[k], i * 31 + rank * 1009 + next * 17 + k, "get", i);
}

/* Of each rank's counters: one for each other, and one that all add to. */
static void add(MPI_Win window, long i) {
  const long one = 1;
  for (int r = 0; r < size; ++r) {
    long before = -1;
    MPI_Win_lock(MPI_LOCK_SHARED, r, 0, window);
    MPI_Accumulate(&one, 1, MPI_LONG, r, size, 1, MPI_LONG, MPI_SUM, window);
    MPI_Fetch_and_op(&one, &before, MPI_LONG, r, rank, MPI_SUM, window);
    MPI_Win_unlock(r, window);
    check(before, i, "fetched", i);
  }
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const long rounds = argc > 1 ? atol(argv[1]) : 1000, tenth = rounds / 10 + 1;
  const char* file = argc > 2 ? argv[2] : "/dev/null";
  long *blocks, *counters, total = 0;
  MPI_Win puts, adds;
  MPI_Win_allocate((MPI_Aint)sizeof(long) * kBlock * size, sizeof(long), MPI_INFO_NULL, MPI_COMM_WORLD,
                   &blocks, &puts);
  MPI_Win_allocate((MPI_Aint)sizeof(long) * (size + 1), sizeof(long), MPI_INFO_NULL, MPI_COMM_WORLD,
                   &counters, &adds);
  for (int k = 0; k <= size; ++k) counters[k] = 0;
  MPI_Barrier(MPI_COMM_WORLD);
  for (long i = 0; i < rounds; ++i) {
    if (rank == 0 && i % tenth == 0) wait_until(file, i / tenth);
    if (rank == 0 && i == rounds - 1) wait_until(file, 10);
    put_and_get(puts, blocks, i);
    add(adds, i);
    if (rank == 0 && i % tenth == 0) {
      printf("round %ld\n", i);
      fflush(stdout);
    }
  }
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Win_lock(MPI_LOCK_EXCLUSIVE, rank, 0, adds);
  const long own = counters[size];
  MPI_Win_unlock(rank, adds);
  MPI_Allreduce(&own, &total, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0) printf("total %ld of %d ranks\n", total, size);
  fflush(stdout);
  MPI_Win_free(&puts);
  MPI_Win_free(&adds);
  MPI_Finalize();
  return 0;
}
