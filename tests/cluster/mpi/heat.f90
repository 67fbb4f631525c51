! Heat in a plate of 256 x 256 points: each rank has some columns, and exchanges the outermost with its neighbours (MPI_Irecv, MPI_Isend).
!   heat STEPS    after each tenth of them the sum over the plate is printed
program heat
  use mpi
  implicit none
  integer, parameter :: n = 256
  integer :: ierr, rank, ranks, columns, steps, step, i, j, left, right, requests(4)
  double precision, allocatable :: old(:,:), new(:,:)
  double precision :: own
  double precision, allocatable :: all(:)
  character(32) :: argument

  call MPI_Init(ierr)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, ierr)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks, ierr)
  call get_command_argument(1, argument)
  read (argument, *) steps
  columns = n / ranks
  allocate (old(n, 0:columns + 1), new(n, 0:columns + 1))
  do j = 0, columns + 1
    do i = 1, n
      old(i, j) = mod(i * 7 + (rank * columns + j) * 13, 97)
    end do
  end do
  new = old
  allocate (all(ranks))
  left = merge(MPI_PROC_NULL, rank - 1, rank == 0)
  right = merge(MPI_PROC_NULL, rank + 1, rank == ranks - 1)
  do step = 1, steps
    call MPI_Irecv(old(1, 0), n, MPI_DOUBLE_PRECISION, left, 1, MPI_COMM_WORLD, requests(1), ierr)
    call MPI_Irecv(old(1, columns + 1), n, MPI_DOUBLE_PRECISION, right, 2, MPI_COMM_WORLD, requests(2), ierr)
    call MPI_Isend(old(1, 1), n, MPI_DOUBLE_PRECISION, left, 2, MPI_COMM_WORLD, requests(3), ierr)
    call MPI_Isend(old(1, columns), n, MPI_DOUBLE_PRECISION, right, 1, MPI_COMM_WORLD, requests(4), ierr)
    call MPI_Waitall(4, requests, MPI_STATUSES_IGNORE, ierr)
    do j = 1, columns
      do i = 2, n - 1
        new(i, j) = 0.25d0 * (old(i - 1, j) + old(i + 1, j) + old(i, j - 1) + old(i, j + 1))
      end do
    end do
    old(:, 1:columns) = new(:, 1:columns)
    if (mod(step, max(1, steps / 10)) == 0) then
      own = sum(old(:, 1:columns))
      ! Added in one order, whatever the hosts are.
      call MPI_Gather(own, 1, MPI_DOUBLE_PRECISION, all, 1, MPI_DOUBLE_PRECISION, 0, MPI_COMM_WORLD, ierr)
      if (rank == 0) then
        write (*, '(a,i8,es24.16)') 'step', step, sum(all)
        flush (6)
      end if
    end if
  end do
  if (rank == 0) write (*, '(a)') 'done'
  call MPI_Finalize(ierr)
end program
