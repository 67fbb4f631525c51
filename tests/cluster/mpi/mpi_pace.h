/* Programs of MPI whose tests say how far they may come: until the number in the file is as large. */
#pragma once

#include <mpi.h>
#include <stdio.h>
#include <unistd.h>

static void wait_until(const char* file, long wanted) {
  for (long allowed = 0; allowed < wanted;) {
    FILE* f = fopen(file, "r");
    if (f != NULL) {
      if (fscanf(f, "%ld", &allowed) != 1) allowed = 0;
      fclose(f);
    }
    // The library goes on: a connection that nobody accepts cannot be saved once its client has closed it.
    int flag;
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
    if (allowed < wanted) usleep(1000);
  }
}
