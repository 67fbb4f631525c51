#!/usr/bin/env python3
"""How fast images are written, and what they cost, beside plain writing on the same disk in the same run:

  full        request to durable of a full image, against O_DIRECT writes of 1 MiB of as many bytes, and fsync
  processor   of the program while its image is written, for each GiB
  lz4         request to durable of memory that compresses 2:1, with lz4 and auto, against without
  increment   size and time after 1 % of the memory was written, against the full image
  chain       restart from a full image and 20 increments, against one full image of the same instant

The program computes on one processor all the while, also during the plain writing; --idle: it waits. What it computes
is not in the processor time.

  image_speed.py BUILD                                      4 GiB, 3 rounds
  image_speed.py BUILD --mib 256 --rounds 1 --directory /mnt/disk
  image_speed.py BUILD --only full,increment                a part of it: full, compress, increment (with the chain)
  image_speed.py BUILD --only compress --write-rate 1200    does compression pay on such a disk?

Needs as much memory, and four times as much disk; removes what it wrote. The figures say something on a machine that
does nothing else: it prints the load average. Exit code 1 when a bar is missed."""

import argparse
import contextlib
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

# Of each page the first part is noise, the rest one byte. A line with a number: writes to so many segments of 64 KiB.
# A second thread computes, if it is told to.
PROGRAM = """
import mmap, os, random, sys, threading
size, noise, computes = int(sys.argv[1]) << 20, int(sys.argv[2]), sys.argv[3] == 'computing'
def compute():
    x = 1
    while True: x = x * 48271 % 2147483647
rng = random.Random(1)
table = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for at in range(0, size, 4096):
    table[at:at + 4096] = os.urandom(noise) + bytes([at >> 12 & 255]) * (4096 - noise)
new = os.urandom(65536)
if computes: threading.Thread(target=compute, daemon=True).start()
print('up', flush=True)
for line in sys.stdin:
    # Not from urandom each time: whoever lets go of the interpreter waits for the other thread to do so.
    for i in rng.sample(range(size >> 16), int(line)):
        new = new[1:] + new[:1]
        table[i << 16:(i << 16) + 65536] = new
    print('done', flush=True)
"""
MISSED = []


def environment():
    return {k: v for k, v in os.environ.items() if not k.startswith("CKPT") and k != "LD_PRELOAD"}


class Program:
    computes = True

    def __init__(self, build, directory, mib, noise, *options):
        self.build, self.directory = build, directory
        self.child = subprocess.Popen(
            [f"{build}/bin/ckpt", "run", "--dir", directory, *options, "--", "/usr/bin/python3", "-c", PROGRAM, str(mib), str(noise), "computing" if self.computes else "idle"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment())
        assert self.child.stdout.readline() == b"up\n"
        self.computing = [tid for tid in os.listdir(f"/proc/{self.child.pid}/task") if tid != str(self.child.pid)]
        assert len(self.computing) == self.computes

    def processor(self):
        """Seconds, of all threads, ours too, but not of the one that computes."""

        def used(of):
            with open(f"/proc/{self.child.pid}/{of}", encoding="ascii") as stat:
                fields = stat.read().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

        return used("stat") - sum(used(f"task/{tid}/stat") for tid in self.computing)

    def checkpoint(self):
        """Seconds until durable, bytes, processor seconds."""
        before = self.processor()
        said = subprocess.run([f"{self.build}/bin/ckpt", "now", "--json", "--timeout", "10min", str(self.child.pid)], check=True,
                              capture_output=True, env=environment())
        cost = json.loads(said.stdout)
        return cost["durable_ns"] / 1e9, cost["bytes_written"], self.processor() - before

    def write(self, segments):
        self.child.stdin.write(f"{segments}\n".encode())
        self.child.stdin.flush()
        assert self.child.stdout.readline() == b"done\n"

    def end(self):
        self.child.kill()
        self.child.communicate()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()
        shutil.rmtree(self.directory, ignore_errors=True)


def plain_write(directory, size):
    """Seconds."""
    path = os.path.join(directory, "plain")
    buffer = mmap.mmap(-1, 1 << 20)
    buffer.write(os.urandom(1 << 20))
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o600)
    begin = time.monotonic()
    for at in range(0, size >> 20 << 20, 1 << 20):
        os.pwritev(fd, [buffer], at)
    os.fsync(fd)
    took = time.monotonic() - begin
    os.close(fd)
    os.unlink(path)
    return took


def restart_seconds(build, image):
    directory = os.path.dirname(image)
    for name in os.listdir(directory):
        fd = os.open(os.path.join(directory, name), os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
    child = subprocess.Popen([f"{build}/bin/ckpt-restart", "--json", "--eager", image], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
    line = child.stderr.readline()
    child.communicate()  # its input ends, and so does the program
    return json.loads(line)["restart_ns"] / 1e9


def report(what, values, bar, kept):
    """values: one figure for each round; the median counts."""
    median = statistics.median(values)
    if not kept(median):
        MISSED.append(what)
    print(f"| {what} | {', '.join(f'{v:.3g}' for v in values)} | {bar} | {'kept' if kept(median) else 'MISSED'} |", flush=True)


@contextlib.contextmanager
def write_rate(directory, megabytes):
    """This process and its children write to the disk of `directory` no faster, past the page cache."""
    if not megabytes:
        yield
        return
    device = os.stat(directory).st_dev
    block = os.path.realpath(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    # The kernel limits whole disks.
    with open(os.path.join(os.path.dirname(block) if os.path.exists(f"{block}/partition") else block, "dev"), encoding="ascii") as dev:
        disk = dev.read().strip()
    old = os.path.isdir("/sys/fs/cgroup/blkio")
    parent = "/sys/fs/cgroup/blkio" if old else "/sys/fs/cgroup"
    group = tempfile.mkdtemp(prefix="ckpt-image-speed-", dir=parent)
    limit = ("blkio.throttle.write_bps_device", f"{disk} {megabytes * 10**6}") if old else ("io.max", f"{disk} wbps={megabytes * 10**6}")
    try:
        for file, text in [limit, ("cgroup.procs", str(os.getpid()))]:
            with open(f"{group}/{file}", "w", encoding="ascii") as control:
                control.write(text)
        yield
    finally:
        with open(f"{parent}/cgroup.procs", "w", encoding="ascii") as control:
            control.write(str(os.getpid()))
        os.rmdir(group)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--mib", type=int, default=4096, help="memory of the program")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="full,compress,increment", type=lambda text: text.split(","))
    parser.add_argument("--idle", action="store_true", help="the program does not compute meanwhile")
    parser.add_argument("--write-rate", type=int, default=0, metavar="MB", help="as on a disk that takes so many MB (10^6 bytes) a second: as root, "
                        "by a control group")
    parser.add_argument("--directory", help="on the disk to measure (default: TMPDIR)")
    arguments = parser.parse_args()
    build, mib = os.path.abspath(arguments.build), arguments.mib
    Program.computes = not arguments.idle
    with write_rate(arguments.directory or tempfile.gettempdir(), arguments.write_rate):
        return measure(build, mib, arguments)


def measure(build, mib, arguments):
    here = tempfile.mkdtemp(prefix="ckpt-image-speed-", dir=arguments.directory)
    print(f"{time.strftime('%Y-%m-%d')}, Linux {platform.release()}, {os.cpu_count()} CPUs, {mib} MiB, program {'idle' if arguments.idle else 'computing'}{f', writes limited to {arguments.write_rate} MB/s' if arguments.write_rate else ''}, load average {os.getloadavg()[0]:.1f}")
    print("| figure | each round | bar | |\n| --- | --- | --- | --- |")
    try:
        if "full" in arguments.only:
            rates, processor = [], []
            with Program(build, f"{here}/full", mib, 4096, "--keep", "1") as program:
                for _ in range(arguments.rounds):
                    seconds, size, cpu = program.checkpoint()
                    rates.append(plain_write(here, size) / seconds)
                    processor.append(cpu / (size / 2**30))
            report("full image: rate, of plain writing", rates, "0.90 or more", lambda v: v >= 0.9)
            report("processor seconds for each GiB", processor, "0.5 or less", lambda v: v <= 0.5)
        if "compress" in arguments.only:
            # In turns, as the disk's rate changes from one minute to the next; the others stand still.
            ways = ("none", "lz4", "auto")
            times, plain = {how: [] for how in ways}, []
            with contextlib.ExitStack() as programs:
                running = {how: programs.enter_context(Program(build, f"{here}/{how}", mib, 2048, "--keep", "1", "--compress", how))
                           for how in ways}
                for program in running.values():
                    program.child.send_signal(signal.SIGSTOP)
                for i in range(arguments.rounds):
                    plain.append((mib << 20) / plain_write(here, mib << 20) / 1e6)
                    for how in ways[i % 3:] + ways[:i % 3]:
                        running[how].child.send_signal(signal.SIGCONT)
                        times[how].append(running[how].checkpoint()[0])
                        running[how].child.send_signal(signal.SIGSTOP)
            for how in ways[1:]:
                report(f"2:1 memory: time with {how}, of that without", [a / b for a, b in zip(times[how], times["none"])], "below 1",
                       lambda v: v < 1)
            print("seconds: " + "; ".join(f"{how} {', '.join(f'{v:.2f}' for v in times[how])}" for how in ways) +
                  f"; the disk MB/s: {', '.join(f'{v:.0f}' for v in plain)}")
        if "increment" in arguments.only:
            with Program(build, f"{here}/chain", mib, 4096, "--keep", "0", "--increments", "20") as program:
                full_seconds, full_bytes, _ = program.checkpoint()
                sizes, seconds = [], []
                for _ in range(20):
                    program.write((mib << 4) // 100)
                    took, size, _ = program.checkpoint()
                    sizes.append(size / full_bytes)
                    seconds.append(took / full_seconds)
                program.end()
                report("increment after 1 %: size, of the full image", sizes, "0.013 or less", lambda v: v <= 0.013)
                report("increment after 1 %: time, of the full image", seconds, "0.03 or less", lambda v: v <= 0.03)
                newest = max(os.path.join(program.directory, n) for n in os.listdir(program.directory) if n.endswith(".ckpt"))
                full = os.path.join(here, "one", "full.ckpt")
                os.mkdir(os.path.dirname(full), 0o700)
                with open(full, "xb", opener=lambda path, flags: os.open(path, flags, 0o600)) as out:
                    subprocess.run([f"{build}/bin/ckpt", "cat", newest], check=True, stdout=out, env=environment())
                    os.fsync(out.fileno())
                # In turns, each round the other one first: the disk's rate changes from one second to the next.
                seconds = {newest: [], full: []}
                for i in range(arguments.rounds):
                    for image in (newest, full) if i % 2 == 0 else (full, newest):
                        seconds[image].append(restart_seconds(build, image))
                report("restart of full + 20 increments, of one full image", [a / b for a, b in zip(seconds[newest], seconds[full])], "1.3 or less",
                       lambda v: v <= 1.3)
                print(f"seconds: {', '.join(f'{v:.2f}' for v in seconds[newest])} and {', '.join(f'{v:.2f}' for v in seconds[full])}")
    finally:
        shutil.rmtree(here, ignore_errors=True)
    return 1 if MISSED else 0


sys.exit(main())
