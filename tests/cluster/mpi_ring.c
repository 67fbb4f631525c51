/* Numbers go round a ring of ranks, and at the end all agree on the sum. mpi_ring ROUNDS */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank, size;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const long rounds = argc > 1 ? atol(argv[1]) : 1000;
  long token[512] = {0}, from[512], sum = 0;
  for (long i = 0; i < rounds; ++i) {
    for (int k = 0; k < 512; ++k) token[k] = i + rank + k;
    MPI_Sendrecv(token, 512, MPI_LONG, (rank + 1) % size, 7, from, 512, MPI_LONG, (rank + size - 1) % size, 7,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    const int left = (rank + size - 1) % size;
    for (int k = 0; k < 512; ++k) {
      if (from[k] != i + left + k) {
        fprintf(stderr, "rank %d: %ld instead of %ld in round %ld\n", rank, from[k], i + left + k, i);
        MPI_Abort(MPI_COMM_WORLD, 2);
      }
      sum += from[k];
    }
    if (rank == 0 && i % (rounds / 10 + 1) == 0) {
      printf("round %ld\n", i);
      fflush(stdout);
    }
  }
  long total = 0;
  MPI_Allreduce(&sum, &total, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0) printf("total %ld of %d ranks\n", total, size);
  MPI_Finalize();
  return 0;
}
