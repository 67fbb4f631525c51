! pstswm: the shallow water equations on the rotating sphere by the spectral transform method, in several layers that know nothing of
! each other. Vorticity, divergence and geopotential are kept as coefficients; products are computed on the grid. Runge-Kutta, order 4.
!
! Cases as in Williamson et al. 1992. Verified: case 2 is a steady flow, so that the result must be the beginning; case 6, the
! Rossby-Haurwitz wave, must keep its mass, and its energy but for what the step loses.
program pstswm
  use mpi
  use sphere
  use shared_out
  use, intrinsic :: iso_fortran_env, only: int64, error_unit, output_unit
  implicit none

  real(dp), parameter :: radius = 6.37122e6_dp, omega = 7.292e-5_dp, gravity = 9.80616_dp
  complex(dp), parameter :: i_unit = (0.0_dp, 1.0_dp)
  integer, parameter :: vorticity = 1, divergence = 2, geopotential = 3

  integer :: latitudes = 32, layers = 1, steps = 100, case_number = 6
  integer :: longitudes, truncation, failed, s
  integer(int64) :: verdict, all_verdicts
  logical :: done
  real(dp) :: time_step, begin_mass, begin_energy, mass, energy, difference, before
  real(dp), allocatable :: mu(:), weight(:), coriolis(:, :)
  real(dp), allocatable :: p(:, :, :), h(:, :, :)     ! (n, latitude, wave of this rank)
  complex(dp), allocatable :: state(:, :, :, :)       ! (n, kind, layer, wave of this rank)
  complex(dp), allocatable :: first_state(:, :, :, :), stage(:, :, :, :), tendency(:, :, :, :), total(:, :, :, :)
  complex(dp), allocatable :: wave(:, :, :), circle(:, :, :), products(:, :, :), product_waves(:, :, :)
  complex(dp), allocatable :: rows(:, :)

  call MPI_Init(failed)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, failed)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks, failed)
  call read_arguments(done)
  if (done) then
    call MPI_Finalize(failed)
    stop
  end if
  call prepare_tables()
  call begin()
  first_state = state
  call integrals(begin_mass, begin_energy)
  if (rank == 0) then
    write (*, '(a,i0,a,i0,a,i0,a,i0,a)') 'T', truncation, ', ', latitudes, ' x ', longitudes, ', ', layers, ' layers'
    flush (output_unit)
  end if
  do s = 1, steps
    call advance()
    if (rank == 0 .and. s * 10_int64 / steps /= (s - 1) * 10_int64 / steps) then
      write (*, '(a,i0)') 'step ', s
      flush (output_unit)
    end if
  end do
  call integrals(mass, energy)
  difference = ordered_sum(sum(abs(state(:, geopotential, :, :) - first_state(:, geopotential, :, :))**2))
  before = ordered_sum(sum(abs(first_state(:, geopotential, :, :))**2))
  difference = sqrt(difference / before)
  verdict = 0
  ! A NaN is not less than anything.
  if (.not. abs(mass / begin_mass - 1) < 1e-11_dp) verdict = 1
  if (.not. abs(energy / begin_energy - 1) < 1e-4_dp) verdict = 1
  if (case_number == 2 .and. .not. difference < 1e-8_dp) verdict = 1
  call MPI_Allreduce(verdict, all_verdicts, 1, MPI_INTEGER8, MPI_MAX, MPI_COMM_WORLD, failed)
  if (rank == 0) then
    write (*, '(a,es23.16,a,es23.16)') 'mass', mass, ' energy', energy
  end if
  call print_digest()
  if (rank == 0) write (*, '(a)') merge('verified', 'WRONG   ', all_verdicts == 0)
  call MPI_Finalize(failed)
  if (all_verdicts /= 0) stop 1, quiet=.true.

contains

  subroutine read_arguments(ended)
    logical, intent(out) :: ended
    character(len=64) :: name, value
    integer :: i, bad
    ended = .false.
    i = 1
    do while (i <= command_argument_count())
      call get_command_argument(i, name)
      if (name == '--help' .or. name == '-h') then
        if (rank == 0) call print_help()
        ended = .true.
        return
      end if
      call get_command_argument(i + 1, value)
      bad = 1
      select case (name)
      case ('--latitudes')
        read (value, *, iostat=bad) latitudes
        if (bad == 0 .and. (latitudes < 8 .or. latitudes > 4096 .or. popcnt(latitudes) /= 1)) bad = 1
      case ('--layers')
        read (value, *, iostat=bad) layers
        if (bad == 0 .and. (layers < 1 .or. layers > 1000)) bad = 1
      case ('--steps')
        read (value, *, iostat=bad) steps
        if (bad == 0 .and. steps < 1) bad = 1
      case ('--case')
        read (value, *, iostat=bad) case_number
        if (bad == 0 .and. case_number /= 2 .and. case_number /= 6) bad = 1
      end select
      if (bad /= 0) call refuse('pstswm: ' // trim(name) // ' ' // trim(value) // ': not possible; see --help')
      i = i + 2
    end do
    if (latitudes < ranks) call refuse('pstswm: --latitudes must be the number of ranks at least')
  end subroutine read_arguments

  subroutine refuse(why)
    character(len=*), intent(in) :: why
    integer :: ignored
    if (rank == 0) write (error_unit, '(a)') why
    call MPI_Finalize(ignored)
    stop 64, quiet=.true.
  end subroutine refuse

  subroutine print_help()
    write (*, '(a)') 'pstswm: shallow water on the rotating sphere, by the spectral transform method (under mpirun)', &
      'Usage: pstswm [--latitudes N] [--layers N] [--steps N] [--case 2|6]', '', &
      '  --latitudes N  circles of the grid: a power of two, 8 to 4096 (32); twice as many points on each', &
      '  --layers N     layers that know nothing of each other (1): memory is some 700 * LAYERS * LATITUDES^2 bytes', &
      '                 and 5 * LATITUDES^3 for tables, over all ranks', &
      '  --steps N      steps of time (100)', &
      '  --case N       2: a steady flow, which must stay; 6: the Rossby-Haurwitz wave, which must keep mass and energy (6)', '', &
      'The output depends on the arguments and the number of ranks alone.', '', &
      'Exit codes: 0 done and verified; 1 the result is wrong; 64 wrong arguments.'
  end subroutine print_help

  subroutine prepare_tables()
    integer :: j, k
    longitudes = 2 * latitudes
    truncation = (longitudes - 1) / 3
    call share_out(latitudes, truncation)
    call prepare_fourier(longitudes)
    allocate (mu(latitudes), weight(latitudes))
    call gauss(mu, weight)
    allocate (p(0:truncation, latitudes, size(waves)), h(0:truncation, latitudes, size(waves)))
    p = 0
    h = 0
    do k = 1, size(waves)
      do j = 1, latitudes
        call legendre(waves(k), truncation, mu(j), p(waves(k):, j, k), h(waves(k):, j, k))
      end do
    end do
    allocate (state(0:truncation, 3, layers, size(waves)))
    allocate (first_state, stage, tendency, total, mold=state)
    allocate (wave(4 * layers, latitudes, size(waves)), circle(4 * layers, 0:truncation, first_circle:last_circle))
    allocate (product_waves(5 * layers, latitudes, size(waves)), products(5 * layers, 0:truncation, first_circle:last_circle))
    allocate (rows(0:longitudes - 1, 5), coriolis(0:longitudes - 1, first_circle:last_circle))
    ! A third of what is stable for the fastest gravity wave, some 320 m/s.
    time_step = radius / (320 * truncation)
  end subroutine prepare_tables

  ! The state from fields on the grid.
  subroutine begin()
    integer :: j, l, k, i
    real(dp) :: longitude, values(3)
    do j = first_circle, last_circle
      do l = 1, layers
        do i = 0, longitudes - 1
          longitude = 2 * pi * i / longitudes
          if (case_number == 2) then
            call steady(longitude, mu(j), l, values, coriolis(i, j))
          else
            call rossby_haurwitz(longitude, mu(j), l, values, coriolis(i, j))
          end if
          rows(i, 1:3) = values
        end do
        do k = 1, 3
          call fourier(rows(:, k), .false.)
          products((l - 1) * 5 + k, :, j) = rows(0:truncation, k) / longitudes
        end do
        products((l - 1) * 5 + 4:l * 5, :, j) = 0
      end do
    end do
    call to_waves(products, product_waves)
    do k = 1, size(waves)
      do l = 1, layers
        do i = 1, 3
          state(:, i, l, k) = matmul(p(:, :, k), weight * product_waves((l - 1) * 5 + i, :, k))
        end do
      end do
    end do
  end subroutine begin

  ! Solid rotation about an axis that is not that of the sphere; each layer with its own speed.
  subroutine steady(longitude, sine, layer, values, turning)
    real(dp), intent(in) :: longitude, sine
    integer, intent(in) :: layer
    real(dp), intent(out) :: values(3), turning
    real(dp), parameter :: alpha = pi / 4
    real(dp) :: speed, along
    speed = 2 * pi * radius / (12 * 86400) * (1 + 0.1_dp * mod(layer, 5))
    along = -cos(longitude) * sqrt(1 - sine * sine) * sin(alpha) + sine * cos(alpha)
    turning = 2 * omega * along
    values = [2 * speed / radius * along, 0.0_dp, 2.94e4_dp - (radius * omega * speed + speed * speed / 2) * along**2]
  end subroutine steady

  subroutine rossby_haurwitz(longitude, sine, layer, values, turning)
    real(dp), intent(in) :: longitude, sine
    integer, intent(in) :: layer
    real(dp), intent(out) :: values(3), turning
    real(dp) :: w, c2, a, b, c
    integer, parameter :: r = 4
    w = 7.848e-6_dp * (1 - 0.05_dp * mod(layer - 1, 5))
    turning = 2 * omega * sine
    c2 = 1 - sine * sine
    a = w / 2 * (2 * omega + w) * c2 + w * w / 4 * c2**(r - 1) * ((r + 1) * c2**2 + (2 * r * r - r - 2) * c2 - 2 * r * r)
    b = 2 * (omega + w) * w / ((r + 1) * (r + 2)) * c2**(r / 2) * (r * r + 2 * r + 2 - (r + 1)**2 * c2)
    c = w * w / 4 * c2**r * ((r + 1) * c2 - (r + 2))
    values(1) = 2 * w * sine - w * sine * c2**(r / 2) * (r * r + 3 * r + 2) * cos(r * longitude)
    values(2) = 0
    values(3) = gravity * 8000 + radius**2 * (a + b * cos(r * longitude) + c * cos(2 * r * longitude))
  end subroutine rossby_haurwitz

  subroutine advance()
    call tendency_of(state)
    total = state + time_step / 6 * tendency
    stage = state + time_step / 2 * tendency
    call tendency_of(stage)
    total = total + time_step / 3 * tendency
    stage = state + time_step / 2 * tendency
    call tendency_of(stage)
    total = total + time_step / 3 * tendency
    stage = state + time_step * tendency
    call tendency_of(stage)
    state = total + time_step / 6 * tendency
  end subroutine advance

  ! U, V (times the cosine of the latitude), vorticity and geopotential of one state, on the circles of this rank.
  subroutine to_grid(from)
    complex(dp), intent(in) :: from(0:, :, :, :)
    complex(dp) :: psi(0:truncation), chi(0:truncation)
    integer :: k, l, n, m
    do k = 1, size(waves)
      m = waves(k)
      do l = 1, layers
        psi = 0
        chi = 0
        do n = max(m, 1), truncation
          psi(n) = -radius / (n * (n + 1.0_dp)) * from(n, vorticity, l, k)
          chi(n) = -radius / (n * (n + 1.0_dp)) * from(n, divergence, l, k)
        end do
        wave(4 * l - 3, :, k) = matmul(i_unit * m * chi, p(:, :, k)) - matmul(psi, h(:, :, k))
        wave(4 * l - 2, :, k) = matmul(i_unit * m * psi, p(:, :, k)) + matmul(chi, h(:, :, k))
        wave(4 * l - 1, :, k) = matmul(from(:, vorticity, l, k), p(:, :, k))
        wave(4 * l, :, k) = matmul(from(:, geopotential, l, k), p(:, :, k))
      end do
    end do
    call to_circles(wave, circle)
  end subroutine to_grid

  ! The four fields of one layer on one circle, in rows(:, 1:4).
  subroutine grid_of(l, j)
    integer, intent(in) :: l, j
    integer :: k, m
    do k = 1, 4
      rows(:, k) = 0
      rows(0, k) = circle(4 * l - 4 + k, 0, j)
      do m = 1, truncation
        rows(m, k) = circle(4 * l - 4 + k, m, j)
        rows(longitudes - m, k) = conjg(rows(m, k))
      end do
      call fourier(rows(:, k), .true.)
    end do
  end subroutine grid_of

  subroutine tendency_of(from)
    complex(dp), intent(in) :: from(0:, :, :, :)
    complex(dp) :: u, v, east(latitudes), north(latitudes)
    real(dp) :: eta, phi, over_cosine(latitudes)
    integer :: i, j, k, l, m, n
    call to_grid(from)
    do j = first_circle, last_circle
      do l = 1, layers
        call grid_of(l, j)
        do i = 0, longitudes - 1
          u = real(rows(i, 1), dp)
          v = real(rows(i, 2), dp)
          eta = real(rows(i, 3), dp) + coriolis(i, j)
          phi = real(rows(i, 4), dp)
          rows(i, 1) = u * eta
          rows(i, 2) = v * eta
          rows(i, 3) = u * phi
          rows(i, 4) = v * phi
          rows(i, 5) = phi + (u * u + v * v) / (2 * (1 - mu(j)**2))
        end do
        do k = 1, 5
          call fourier(rows(:, k), .false.)
          products(5 * l - 5 + k, :, j) = rows(0:truncation, k) / longitudes
        end do
      end do
    end do
    call to_waves(products, product_waves)
    over_cosine = weight / (radius * (1 - mu**2))
    do k = 1, size(waves)
      m = waves(k)
      do l = 1, layers
        east = over_cosine * product_waves(5 * l - 4, :, k)
        north = over_cosine * product_waves(5 * l - 3, :, k)
        tendency(:, vorticity, l, k) = matmul(h(:, :, k), north) - i_unit * m * matmul(p(:, :, k), east)
        tendency(:, divergence, l, k) = matmul(h(:, :, k), east) + i_unit * m * matmul(p(:, :, k), north) &
                                        + matmul(p(:, :, k), weight * product_waves(5 * l, :, k)) &
                                        * [(n * (n + 1) / radius**2, n=0, truncation)]
        east = over_cosine * product_waves(5 * l - 2, :, k)
        north = over_cosine * product_waves(5 * l - 1, :, k)
        tendency(:, geopotential, l, k) = matmul(h(:, :, k), north) - i_unit * m * matmul(p(:, :, k), east)
      end do
    end do
  end subroutine tendency_of

  ! Over the sphere and all layers: of the geopotential, and of kinetic and potential energy.
  subroutine integrals(mass_of_all, energy_of_all)
    real(dp), intent(out) :: mass_of_all, energy_of_all
    real(dp) :: u, v, phi
    integer :: i, j, l
    call to_grid(state)
    mass_of_all = 0
    energy_of_all = 0
    do j = first_circle, last_circle
      do l = 1, layers
        call grid_of(l, j)
        do i = 0, longitudes - 1
          u = real(rows(i, 1), dp)
          v = real(rows(i, 2), dp)
          phi = real(rows(i, 4), dp)
          mass_of_all = mass_of_all + weight(j) * phi / longitudes
          energy_of_all = energy_of_all + weight(j) * phi * ((u * u + v * v) / (1 - mu(j)**2) + phi) / (2 * longitudes)
        end do
      end do
    end do
    mass_of_all = ordered_sum(mass_of_all)
    energy_of_all = ordered_sum(energy_of_all)
  end subroutine integrals

  ! Every bit of the state, in a sum that does not depend on who has what.
  subroutine print_digest()
    integer(int64) :: bits(2), sum_of_all, own
    integer :: k, l, i, n
    own = 0
    do k = 1, size(waves)
      do l = 1, layers
        do i = 1, 3
          do n = 0, truncation
            bits = transfer([real(state(n, i, l, k), dp), aimag(state(n, i, l, k))], bits)
            own = ieor(own, ishftc(bits(1), mod(n + 7 * i + 13 * l, 64)))
            own = ieor(own, ishftc(bits(2), mod(n + 11 * i + 17 * waves(k), 64)))
          end do
        end do
      end do
    end do
    call MPI_Allreduce(own, sum_of_all, 1, MPI_INTEGER8, MPI_BXOR, MPI_COMM_WORLD, failed)
    if (rank == 0) write (*, '(a,z16.16)') 'digest ', sum_of_all
  end subroutine print_digest
end program pstswm
