! A Gaussian grid on the sphere, associated Legendre functions on it, and Fourier transforms along its circles of latitude.
!
! Owner:   pstswm. Tables are made once and never change. Functions are normalised: the integral of P^2 over mu from -1 to 1 is 1.
module sphere
  use, intrinsic :: iso_fortran_env, only: real64, int64
  implicit none
  private
  integer, parameter, public :: dp = real64
  real(dp), parameter, public :: pi = acos(-1.0_dp)
  public :: gauss, legendre, prepare_fourier, fourier

  complex(dp), allocatable :: roots(:)

contains

  ! The zeros of the Legendre polynomial of degree size(mu), from north to south, with their weights.
  subroutine gauss(mu, weight)
    real(dp), intent(out) :: mu(:), weight(:)
    integer :: n, i, k, again
    real(dp) :: x, p, before, older, slope
    n = size(mu)
    do i = 1, n
      x = cos(pi * (i - 0.25_dp) / (n + 0.5_dp))
      do again = 1, 20
        p = 1
        before = 0
        do k = 1, n
          older = before
          before = p
          p = ((2 * k - 1) * x * before - (k - 1) * older) / k
        end do
        slope = n * (x * p - before) / (x * x - 1)
        x = x - p / slope
      end do
      mu(i) = x
      weight(i) = 2 / ((1 - x * x) * slope * slope)
    end do
  end subroutine gauss

  ! P(n) for the wave number m and n = m .. most, and H(n) = (1 - mu^2) dP/dmu, at one mu.
  subroutine legendre(m, most, mu, p, h)
    integer, intent(in) :: m, most
    real(dp), intent(in) :: mu
    real(dp), intent(out) :: p(m:), h(m:)
    real(dp) :: values(m - 1:most + 1)
    integer :: n
    values(m - 1) = 0
    values(m) = sqrt(0.5_dp)
    do n = 1, m
      values(m) = values(m) * sqrt((2 * n + 1) / (2.0_dp * n)) * sqrt(1 - mu * mu)
    end do
    do n = m + 1, most + 1
      values(n) = (mu * values(n - 1) - epsilon_of(n - 1, m) * values(n - 2)) / epsilon_of(n, m)
    end do
    do n = m, most
      p(n) = values(n)
      h(n) = (n + 1) * epsilon_of(n, m) * values(n - 1) - n * epsilon_of(n + 1, m) * values(n + 1)
    end do
  end subroutine legendre

  pure real(dp) function epsilon_of(n, m)
    integer, intent(in) :: n, m
    epsilon_of = sqrt(real(n * n - m * m, dp) / (4.0_dp * n * n - 1))
  end function epsilon_of

  subroutine prepare_fourier(n)
    integer, intent(in) :: n
    integer :: k
    allocate (roots(0:n - 1))
    do k = 0, n - 1
      roots(k) = exp(cmplx(0, -2 * pi * k / n, dp))
    end do
  end subroutine prepare_fourier

  ! In place, of as many values as prepared, a power of two. backwards: with the other sign. Neither divides by their number.
  subroutine fourier(values, backwards)
    complex(dp), intent(inout) :: values(0:)
    logical, intent(in) :: backwards
    complex(dp) :: other, root
    integer :: n, i, j, bit, half, step, start, k
    n = size(values)
    j = 0
    do i = 0, n - 2
      if (i < j) then
        other = values(i)
        values(i) = values(j)
        values(j) = other
      end if
      bit = n / 2
      do while (iand(j, bit) /= 0)
        j = ieor(j, bit)
        bit = bit / 2
      end do
      j = ior(j, bit)
    end do
    half = 1
    do while (half < n)
      step = n / (2 * half)
      do start = 0, n - 1, 2 * half
        do k = 0, half - 1
          root = roots(k * step)
          if (backwards) root = conjg(root)
          other = values(start + half + k) * root
          values(start + half + k) = values(start + k) - other
          values(start + k) = values(start + k) + other
        end do
      end do
      half = 2 * half
    end do
  end subroutine fourier
end module sphere
