/* Preloaded into the ranks of an MPI program: in what rank 1 receives, from its second message on, some bits
 * are others. A program that
   verifies its result finds that. */
#include <mpi.h>

static void damage(void* received, size_t bytes) {
  static int messages;
  int rank;
  PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank != 1 || ++messages < 2) return;
  /* The upper bytes of each eighth number, its exponent too; or three cells in a row, which make another. */
  for (size_t at = 0; at + 8 <= bytes; at += 64) {
    for (size_t i = 5; i < 8; ++i) ((unsigned char*)received)[at + i] ^= 1;
  }
}

int MPI_Sendrecv(const void* out, int count, MPI_Datatype type, int to, int tag, void* in, int in_count,
                 MPI_Datatype in_type, int from, int in_tag, MPI_Comm group, MPI_Status* status) {
  int result = PMPI_Sendrecv(out, count, type, to, tag, in, in_count, in_type, from, in_tag, group, status),
      size;
  PMPI_Type_size(in_type, &size);
  if (from != MPI_PROC_NULL) damage(in, (size_t)in_count * (size_t)size);
  return result;
}

int MPI_Sendrecv_replace(void* buffer, int count, MPI_Datatype type, int to, int tag, int from, int in_tag,
                         MPI_Comm group, MPI_Status* status) {
  int result = PMPI_Sendrecv_replace(buffer, count, type, to, tag, from, in_tag, group, status), size;
  PMPI_Type_size(type, &size);
  damage(buffer, (size_t)count * (size_t)size);
  return result;
}

static void damage_all(void* in, const int* counts, const int* at, MPI_Datatype type, MPI_Comm group) {
  int ranks, size;
  PMPI_Comm_size(group, &ranks);
  PMPI_Type_size(type, &size);
  damage(in, (size_t)(at[ranks - 1] + counts[ranks - 1]) * (size_t)size);
}

int MPI_Alltoallv(const void* out, const int* counts, const int* at, MPI_Datatype type, void* in,
                  const int* in_counts, const int* in_at, MPI_Datatype in_type, MPI_Comm group) {
  int result = PMPI_Alltoallv(out, counts, at, type, in, in_counts, in_at, in_type, group);
  damage_all(in, in_counts, in_at, in_type, group);
  return result;
}

/* As Fortran calls it. */
void mpi_alltoallv_(void* out, int* counts, int* at, MPI_Fint* type, void* in, int* in_counts, int* in_at,
                    MPI_Fint* in_type, MPI_Fint* group, MPI_Fint* error) {
  *error = PMPI_Alltoallv(out, counts, at, MPI_Type_f2c(*type), in, in_counts, in_at, MPI_Type_f2c(*in_type),
                          MPI_Comm_f2c(*group));
  damage_all(in, in_counts, in_at, MPI_Type_f2c(*in_type), MPI_Comm_f2c(*group));
}
