#!/usr/bin/env python3
"""How long a restart takes: until the program's first own instruction, until all of its memory is there, and
what the same disk gives to plain reading of the image (O_DIRECT, 1 MiB at a time, one after another; the mean of once before
and once after, for its rate changes). MiB/s: of the file.

  restart_speed.py BUILD                        256 MiB and 1 GiB
  restart_speed.py BUILD --mib 256,8192 --rounds 3 --directory /mnt/disk
  restart_speed.py BUILD --mib 1024 --compress none,lz4,zstd --random 40 --restart eager

The program has a table of that size in private memory, of which each page is another. It waits for a line of
input, which is there already: its answer is what "answers" counts. Nothing of the image is in the page cache. As much memory as it
takes is held by another process until just before each restart, unless --fresh is given: see MemoryHeld.
Needs as much disk as memory; removes what it wrote. Run it as root on a machine that does nothing else; --fifo runs
the restart at real-time priority, which is the next best where others use the processors too."""

import argparse
import json
import mmap
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

PROGRAM = """
import mmap, os, sys
size, random = int(sys.argv[1]) << 20, int(sys.argv[2]) * 4096 // 100
table = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
noise = os.urandom(1 << 20)
rest = [noise[i:i + random - 8].ljust(4088, b'.') for i in range(0, 1 << 20, 4096)]
def part(at):
    return b''.join((at + 4096 * i).to_bytes(8, 'little') + rest[i] for i in range(256))
for at in range(0, size, 1 << 20): table[at:at + (1 << 20)] = part(at)
print('up', flush=True)
for line in sys.stdin:
    if line == 'all\\n':
        bad = [at for at in range(0, size, 1 << 20) if table[at:at + (1 << 20)] != part(at)]
        print('BAD' if bad else 'good', flush=True)
    else:
        print('here', flush=True)
"""


def environment():
    return {k: v for k, v in os.environ.items() if not k.startswith("CKPT") and k != "LD_PRELOAD"}


def forget(path):
    """Its pages leave the page cache."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def plain_rate(path, fifo):
    """MiB/s."""
    if fifo:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError:
        fd = os.open(path, os.O_RDONLY)
    buffer = mmap.mmap(-1, 1 << 20)
    begin, total = time.monotonic(), 0
    while (n := os.preadv(fd, [buffer], total)) > 0:
        total += n
    os.close(fd)
    rate = total / (time.monotonic() - begin) / 2**20
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    return rate


def image_of(directory):
    return next(os.path.join(directory, n) for n in os.listdir(directory) if n.endswith(".ckpt"))


def make_image(build, mib, directory, compress, random):
    child = subprocess.Popen([f"{build}/bin/ckpt", "run", "--dir", directory, "--compress", compress, "--",
                              "/usr/bin/python3", "-c", PROGRAM, str(mib), str(random)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment())
    try:
        assert child.stdout.readline() == b"up\n"
        subprocess.run([f"{build}/bin/ckpt", "now", "--timeout", "10min", str(child.pid)], check=True, stdout=subprocess.DEVNULL)
    finally:
        child.kill()
        child.communicate()
    return image_of(directory)


# A virtual machine may give free memory back to its host (free page reporting), seconds after it became free; the first touch of
# it then waits for the host, whoever touches it. Held until just before the restart it is there.
HOLDER = """
import mmap, sys
size = int(sys.argv[1]) << 20
table = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
table.madvise(15)  # MADV_NOHUGEPAGE
for at in range(0, size, 4096): table[at] = 1
print('held', flush=True)
sys.stdin.read()
"""


class MemoryHeld:
    def __init__(self, mib):
        self.holder = subprocess.Popen(["/usr/bin/python3", "-c", HOLDER, str(mib)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.holder.stdout.readline() == b"held\n"

    def release(self):
        self.holder.kill()
        self.holder.communicate()


def restart(build, option, image, prefix):
    """What it cost, in milliseconds: first instruction, first answer, all loaded."""
    forget(image)
    begin = time.monotonic()
    child = subprocess.Popen([*prefix, f"{build}/bin/ckpt-restart", "--json", option, image], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
    child.stdin.write(b"hello\n")
    child.stdin.flush()
    answer = child.stdout.readline()
    answered = time.monotonic() - begin
    assert answer == b"here\n", answer + child.stderr.read()
    said = json.loads(child.stderr.readline())
    go = said["restart_ns"] / 1e6
    if said["lazy_bytes"]:
        child.stderr.readline()
        loaded = (time.monotonic() - begin) * 1e3
    else:
        loaded = go
    child.stdin.write(b"all\n")
    child.stdin.flush()
    assert child.stdout.readline() == b"good\n"
    child.stdin.close()
    child.wait()
    child.stdout.close()
    child.stderr.close()
    return {"first instruction": go, "answers": answered * 1e3, "all loaded": loaded}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--mib", default="256,1024", help="sizes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", help="on the disk to measure (default: TMPDIR)")
    parser.add_argument("--compress", default="none", help="of the images: none, lz4, zstd; several with commas")
    parser.add_argument("--random", type=int, default=100, help="percent of each page that cannot be compressed")
    parser.add_argument("--fifo", action="store_true", help="the restart at real-time priority (chrt -f 1)")
    parser.add_argument("--fresh", action="store_true", help="memory as the machine has it, which its host may have to find first")
    parser.add_argument("--restart", default="lazy,eager", type=lambda text: [f"--{t}" for t in text.split(",")])
    arguments = parser.parse_args()
    prefix = ["chrt", "-f", "1"] if arguments.fifo else []
    print(f"{time.strftime('%Y-%m-%d')}, Linux {platform.release()}, {os.cpu_count()} CPUs, load average {os.getloadavg()[0]:.1f}")
    print("| MiB | image | restart | first instruction ms | answers ms | all loaded ms | MiB/s | of plain reading |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for mib, compress in ((int(m), c) for m in arguments.mib.split(",") for c in arguments.compress.split(",")):
        directory = tempfile.mkdtemp(prefix="ckpt-restart-speed-", dir=arguments.directory)
        try:
            image = make_image(arguments.build, mib, directory, compress, arguments.random)
            for option in arguments.restart:
                rows, rates = [], []
                for _ in range(arguments.rounds):
                    forget(image)
                    held = MemoryHeld(mib + mib // 8) if not arguments.fresh else None
                    before = plain_rate(image, arguments.fifo)
                    if held:
                        held.release()
                    row = restart(arguments.build, option, image, prefix)
                    forget(image)
                    plain = (before + plain_rate(image, arguments.fifo)) / 2
                    rate = os.stat(image).st_size / 2**20 / (row["all loaded"] / 1e3)
                    rows.append(row)
                    rates.append((rate, plain))
                columns = [", ".join(f"{row[name]:.0f}" for row in rows) for name in rows[0]]
                share = statistics.median(rate / plain for rate, plain in rates)
                print(f"| {mib} | {compress} | {option[2:]} | " + " | ".join(columns) +
                      " | " + ", ".join(f"{rate:.0f}" for rate, _ in rates) +
                      " | " + f"{share:.0%} of " + ", ".join(f"{plain:.0f}" for _, plain in rates) + " |", flush=True)
        finally:
            shutil.rmtree(directory)


main()
