/* One file for all ranks, written together and read by another one; and what else keeps state in the library:
 * requests of collective
   calls (Iallreduce, Ialltoallv), derived types, communicators that come and go.
     mpi_file STEPS FILE    after each tenth of them it is printed how many numbers were wrong */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { kBlock = 2048, kSlots = 5, kMost = 64, kPiece = 17 };

static int rank, size;
static long wrong;

static int number(int step, int of, int k) { return step * 1000003 + of * 7919 + k; }

static void expect(long got, long wanted) {
  if (got != wanted) ++wrong;
}

static void file(MPI_File f, int step, int* mine, int* theirs) {
  const int other = (rank + 1) % size;
  const MPI_Offset slot = (MPI_Offset)(step % kSlots) * size;
  MPI_Request request;
  for (int k = 0; k < kBlock; ++k) mine[k] = number(step, rank, k);
  MPI_File_write_at_all(f, (slot + rank) * kBlock * (MPI_Offset)sizeof(int), mine, kBlock, MPI_INT,
                        MPI_STATUS_IGNORE);
  MPI_File_sync(f);
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_File_iread_at(f, (slot + other) * kBlock * (MPI_Offset)sizeof(int), theirs, kBlock, MPI_INT, &request);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  for (int k = 0; k < kBlock; ++k) expect(theirs[k], number(step, other, k));
}

static void halves(int step) {
  MPI_Comm half;
  MPI_Request request;
  long one = rank + step, sum, wanted = 0;
  MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
  MPI_Iallreduce(&one, &sum, 1, MPI_LONG, MPI_SUM, half, &request);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  for (int r = rank % 2; r < size; r += 2) wanted += r + step;
  expect(sum, wanted);
  MPI_Comm_free(&half);
}

static void strided(int step, const int* mine, int* theirs) {
  const int left = (rank + size - 1) % size;
  MPI_Datatype type;
  MPI_Type_vector(8, 4, 16, MPI_INT, &type);
  MPI_Type_commit(&type);
  MPI_Sendrecv(mine, 1, type, (rank + 1) % size, 3, theirs, 1, type, left, 3, MPI_COMM_WORLD,
               MPI_STATUS_IGNORE);
  for (int k = 0; k < 8 * 16; ++k)
    if (k % 16 < 4) expect(theirs[k], number(step, left, k));
  MPI_Type_free(&type);
}

static void all_to_all(int step) {
  int sent[kMost], received[kMost], place[kMost], out[kMost * kPiece], in[kMost * kPiece];
  MPI_Request request;
  for (int r = 0; r < size; ++r) {
    sent[r] = received[r] = (rank + r + step) % kPiece;
    place[r] = r * kPiece;
    for (int k = 0; k < kPiece; ++k) out[r * kPiece + k] = rank * 100 + r + k + step;
  }
  MPI_Ialltoallv(out, sent, place, MPI_INT, in, received, place, MPI_INT, MPI_COMM_WORLD, &request);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  for (int r = 0; r < size; ++r)
    for (int k = 0; k < received[r]; ++k) expect(in[r * kPiece + k], r * 100 + rank + k + step);
}

int main(int argc, char** argv) {
  MPI_File f;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const int steps = argc > 2 ? atoi(argv[1]) : 0;
  if (steps < 10 || size > kMost ||
      MPI_File_open(MPI_COMM_WORLD, argv[2], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &f) !=
          MPI_SUCCESS)
    MPI_Abort(MPI_COMM_WORLD, 64);
  int* mine = malloc(kBlock * sizeof(int));
  int* theirs = malloc(kBlock * sizeof(int));
  for (int step = 1; step <= steps; ++step) {
    file(f, step, mine, theirs);
    halves(step);
    strided(step, mine, theirs);
    all_to_all(step);
    if (step % (steps / 10) != 0) continue;
    long all = 0;
    MPI_Reduce(&wrong, &all, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) printf("step %d, %ld wrong\n", step, all);
    fflush(stdout);
  }
  MPI_File_close(&f);
  free(mine);
  free(theirs);
  if (rank == 0) puts("done");
  MPI_Finalize();
  return 0;
}
