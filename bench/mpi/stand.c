/* A rank with memory of which it writes single words everywhere, beside messages round a ring.
     stand MIB    rank 0 prints a line for each 50 rounds, until it is killed */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char** argv) {
  const size_t bytes = (size_t)atol(argv[argc - 1]) << 20;
  int rank, size;
  unsigned long at = 1, token = 0, from;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  unsigned char* memory = malloc(bytes);
  memset(memory, rank + 1, bytes);
  for (long round = 0;; ++round) {
    for (int k = 0; k < 2000; ++k) {
      at = at * 6364136223846793005ul + 1442695040888963407ul;
      memory[(at >> 20) % bytes] ^= (unsigned char)at;
    }
    MPI_Sendrecv(&token, 1, MPI_UNSIGNED_LONG, (rank + 1) % size, 1, &from, 1, MPI_UNSIGNED_LONG,
                 (rank + size - 1) % size, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    token = from + 1;
    if (rank == 0 && round % 50 == 0) {
      printf("round %ld\n", round);
      fflush(stdout);
    }
  }
}
