! Who has what: circles of latitude in blocks, wave numbers in turns; and the exchange between the two.
!
! Owner:   pstswm. Every rank calls each subroutine with the others.
module shared_out
  use mpi
  use sphere, only: dp
  implicit none
  private
  public :: share_out, to_waves, to_circles, ordered_sum
  integer, public :: rank, ranks
  integer, public :: first_circle, last_circle    ! of this rank
  integer, allocatable, public :: waves(:)        ! wave numbers of this rank
  integer :: circles, most                        ! of all; the highest wave number
  integer, allocatable :: first(:), last(:)       ! circles of each rank
  complex(dp), allocatable :: out(:), in(:)
  integer, allocatable :: out_count(:), out_at(:), in_count(:), in_at(:)

contains

  subroutine share_out(latitudes, truncation)
    integer, intent(in) :: latitudes, truncation
    integer :: r, m
    circles = latitudes
    most = truncation
    allocate (first(0:ranks - 1), last(0:ranks - 1))
    do r = 0, ranks - 1
      first(r) = circles * r / ranks + 1
      last(r) = circles * (r + 1) / ranks
    end do
    first_circle = first(rank)
    last_circle = last(rank)
    allocate (waves(waves_of(rank)))
    waves = [(m, m=rank, most, ranks)]
    allocate (out_count(0:ranks - 1), out_at(0:ranks - 1), in_count(0:ranks - 1), in_at(0:ranks - 1))
  end subroutine share_out

  integer function waves_of(r)
    integer, intent(in) :: r
    waves_of = 0
    if (r <= most) waves_of = (most - r) / ranks + 1
  end function waves_of

  ! circle(field, m, latitude of this rank) becomes wave(field, latitude, number of the wave of this rank).
  subroutine to_waves(circle, wave)
    complex(dp), intent(in) :: circle(:, 0:, first_circle:)
    complex(dp), intent(out) :: wave(:, :, :)
    integer :: fields, r, j, m, k, at
    fields = size(circle, 1)
    call prepare(fields * (last_circle - first_circle + 1), fields * size(waves), .true.)
    do r = 0, ranks - 1
      at = out_at(r)
      do j = first_circle, last_circle
        do m = r, most, ranks
          out(at + 1:at + fields) = circle(:, m, j)
          at = at + fields
        end do
      end do
    end do
    call exchange()
    do r = 0, ranks - 1
      at = in_at(r)
      do j = first(r), last(r)
        do k = 1, size(waves)
          wave(:, j, k) = in(at + 1:at + fields)
          at = at + fields
        end do
      end do
    end do
  end subroutine to_waves

  subroutine to_circles(wave, circle)
    complex(dp), intent(in) :: wave(:, :, :)
    complex(dp), intent(out) :: circle(:, 0:, first_circle:)
    integer :: fields, r, j, m, k, at
    fields = size(wave, 1)
    call prepare(fields * size(waves), fields * (last_circle - first_circle + 1), .false.)
    do r = 0, ranks - 1
      at = out_at(r)
      do j = first(r), last(r)
        do k = 1, size(waves)
          out(at + 1:at + fields) = wave(:, j, k)
          at = at + fields
        end do
      end do
    end do
    call exchange()
    do r = 0, ranks - 1
      at = in_at(r)
      do j = first_circle, last_circle
        do m = r, most, ranks
          circle(:, m, j) = in(at + 1:at + fields)
          at = at + fields
        end do
      end do
    end do
  end subroutine to_circles

  ! How much goes to and comes from each: per_wave or per_circle values for each of what the other rank has.
  subroutine prepare(sent, received, by_waves)
    integer, intent(in) :: sent, received
    logical, intent(in) :: by_waves
    integer :: r, total_out, total_in
    total_out = 0
    total_in = 0
    do r = 0, ranks - 1
      if (by_waves) then
        out_count(r) = sent * waves_of(r)
        in_count(r) = received * (last(r) - first(r) + 1)
      else
        out_count(r) = sent * (last(r) - first(r) + 1)
        in_count(r) = received * waves_of(r)
      end if
      out_at(r) = total_out
      in_at(r) = total_in
      total_out = total_out + out_count(r)
      total_in = total_in + in_count(r)
    end do
    call at_least(out, total_out)
    call at_least(in, total_in)
  end subroutine prepare

  subroutine at_least(buffer, n)
    complex(dp), allocatable, intent(inout) :: buffer(:)
    integer, intent(in) :: n
    if (allocated(buffer)) then
      if (size(buffer) >= n) return
      deallocate (buffer)
    end if
    allocate (buffer(n))
  end subroutine at_least

  subroutine exchange()
    integer :: failed
    call MPI_Alltoallv(out, out_count, out_at, MPI_DOUBLE_COMPLEX, in, in_count, in_at, MPI_DOUBLE_COMPLEX, &
                       MPI_COMM_WORLD, failed)
  end subroutine exchange

  ! In the order of the ranks: the same on every run.
  real(dp) function ordered_sum(value)
    real(dp), intent(in) :: value
    real(dp) :: all_values(ranks)
    integer :: failed
    call MPI_Allgather(value, 1, MPI_DOUBLE_PRECISION, all_values, 1, MPI_DOUBLE_PRECISION, MPI_COMM_WORLD, failed)
    ordered_sum = sum(all_values)
  end function ordered_sum
end module shared_out
