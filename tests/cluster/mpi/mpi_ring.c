/* Numbers go round a ring of ranks, by lasting requests and by blocking calls in turn, and after the first
   tenth every so often from each to each; whoever gets another number than it must be says so and ends all. At
   the end all agree on the sum.
     mpi_ring ROUNDS FILE    rank 0 begins a tenth of the rounds when the number in the file is as large; the last
                             round of all when it is 10 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#include "mpi_pace.h"

enum { kRing = 512, kBlock = 3000, kMost = 64 };

static int rank, size;

static void check(long got, long wanted, const char* what, long round) {
  if (got == wanted) return;
  fprintf(stderr, "rank %d: %ld instead of %ld in %s %ld\n", rank, got, wanted, what, round);
  MPI_Abort(MPI_COMM_WORLD, 2);
}

static long ring(long i) {
  /* Of these requests each is started again and again; a checkpoint finds them between two starts or in
   * one. */
  static long token[kRing], from[kRing];
  static MPI_Request lasting[2];
  static int made;
  MPI_Status statuses[2];
  long sum = 0;
  const int left = (rank + size - 1) % size, right = (rank + 1) % size;
  for (int k = 0; k < kRing; ++k) token[k] = i + rank + k;
  if (!made) {
    MPI_Recv_init(from, kRing, MPI_LONG, left, 7, MPI_COMM_WORLD, &lasting[0]);
    MPI_Send_init(token, kRing, MPI_LONG, right, 7, MPI_COMM_WORLD, &lasting[1]);
    made = 1;
  }
  if (i % 2 == 0) {
    MPI_Startall(2, lasting);
    MPI_Waitall(2, lasting, statuses);
  } else {
    MPI_Sendrecv(token, kRing, MPI_LONG, right, 7, from, kRing, MPI_LONG, left, 7, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
  }
  for (int k = 0; k < kRing; ++k) {
    check(from[k], i + left + k, "round", i);
    sum += from[k];
  }
  return sum;
}

/* Requests that are started and waited for, of lengths that differ. */
static long each_to_each(long i) {
  static int out[kMost][kBlock], in[kMost][kBlock];
  MPI_Request requests[2 * kMost];
  MPI_Status statuses[2 * kMost];
  long sum = 0;
  for (int r = 0; r < size; ++r) {
    for (int k = 0; k < kBlock; ++k) out[r][k] = (int)(i * 31 + rank * 1009 + r * 17 + k);
    const int to_us = 1 + (int)((i + r * 7 + rank) * 97 % kBlock),
              from_us = 1 + (int)((i + rank * 7 + r) * 97 % kBlock);
    MPI_Irecv(in[r], to_us, MPI_INT, r, 8, MPI_COMM_WORLD, &requests[2 * r]);
    MPI_Isend(out[r], from_us, MPI_INT, r, 8, MPI_COMM_WORLD, &requests[2 * r + 1]);
  }
  MPI_Waitall(2 * size, requests, statuses);
  for (int r = 0; r < size; ++r) {
    const int n = 1 + (int)((i + r * 7 + rank) * 97 % kBlock);
    for (int k = 0; k < n; ++k) {
      check(in[r][k], (int)(i * 31 + r * 1009 + rank * 17 + k), "exchange", i);
      sum += in[r][k];
    }
  }
  return sum;
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const long rounds = argc > 1 ? atol(argv[1]) : 1000;
  const char* file = argc > 2 ? argv[2] : "/dev/null";
  const long tenth = rounds / 10 + 1;
  long sum = 0;
  for (long i = 0; i < rounds; ++i) {
    if (rank == 0 && i % tenth == 0) wait_until(file, i / tenth);
    if (rank == 0 && i == rounds - 1) wait_until(file, 10);
    sum += ring(i);
    if (i >= tenth && i % 10 == 3) sum += each_to_each(i);
    if (rank == 0 && i % tenth == 0) {
      printf("round %ld\n", i);
      fflush(stdout);
    }
  }
  long total = 0;
  MPI_Allreduce(&sum, &total, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0) printf("total %ld of %d ranks\n", total, size);
  fflush(stdout);
  MPI_Finalize();
  return 0;
}
