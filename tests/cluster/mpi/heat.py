"""Heat in a plate by mpi4py: persistent requests (Startall), and collective calls that carry Python's objects.
  heat.py STEPS    after each tenth of them the sum over the plate is printed
"""
import sys
from array import array

from mpi4py import MPI

WIDTH, ROWS = 400, 12
world = MPI.COMM_WORLD
rank, steps = world.rank, int(sys.argv[1])
plate = [array("d", [float((i * 7 + (rank * ROWS + j) * 13) % 97) for i in range(WIDTH)]) for j in range(ROWS + 2)]
above = rank - 1 if rank > 0 else MPI.PROC_NULL
below = rank + 1 if rank < world.size - 1 else MPI.PROC_NULL
first, last = array("d", bytes(8 * WIDTH)), array("d", bytes(8 * WIDTH))
requests = [world.Recv_init([plate[0], MPI.DOUBLE], above, 1), world.Recv_init([plate[ROWS + 1], MPI.DOUBLE], below, 2),
            world.Send_init([first, MPI.DOUBLE], above, 2), world.Send_init([last, MPI.DOUBLE], below, 1)]
for step in range(1, steps + 1):
    first[:], last[:] = plate[1], plate[ROWS]
    MPI.Prequest.Startall(requests)
    MPI.Request.Waitall(requests)
    new = [array("d", [row[0], *(0.25 * (row[i - 1] + row[i + 1] + over[i] + under[i]) for i in range(1, WIDTH - 1)), row[-1]])
           for over, row, under in zip(plate, plate[1:], plate[2:])]
    for row, values in zip(plate[1:], new):
        row[:] = values
    if step % max(1, steps // 10) == 0:
        sums = world.gather(sum(sum(row) for row in plate[1:-1]), 0)
        agreed = world.allreduce({"step": step}, op=lambda a, b: {"step": max(a["step"], b["step"])})
        if rank == 0:
            print("step", step, repr(sum(sums)), agreed, flush=True)
if rank == 0:
    print("done", flush=True)
