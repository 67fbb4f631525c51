#!/usr/bin/env python3
"""A job over hosts whose images are in keepers' memory: what a checkpoint costs, full and with 1 % written, and how long it takes until the
job goes on when hosts fall silent: in place, their parts computed from the memory of the others.

usage: loss_speed.py BUILD [--mib 256] [--hosts 5] [--empty 0] [--redundancy parity] [--differences words] [--increments 64] [--checks-on h5] [--rate 100mbit] [--who] [--lose 1] [--rounds 5]   root; hosts are namespaces

--empty: so many of the hosts run nothing of the program, and hold checks. CPU: of all processes of all hosts, the program among them, and of the head.

--redundancy none: the images are files in a directory that all hosts share, for comparison. The host's silence (5 s here) is not counted.
"""
import argparse
import collections
import glob
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "tests", "support"))
sys.dont_write_bytecode = True
import hosts as made_hosts  # noqa: E402

ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith("CKPT") and k != "LD_PRELOAD"}
# One percent of its pages is written when the number in the file has grown. Each life says that it runs.
PROGRAM = """
import os, sys, time
megabytes, directory, together = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
pages = megabytes * 256
memory = bytearray(os.urandom(1 << 20) * megabytes)
for page in range(pages): memory[page * 4096:page * 4096 + 8] = page.to_bytes(8, 'little')
open(f'{directory}/ready.{os.uname().nodename}', 'w').close()
seen = 0
while True:
    time.sleep(0.005)
    with open(directory + '/round') as f: now = int(f.read() or 0)
    if now == seen: continue
    seen = now
    for first in range(now % 100 * together, pages, 100 * together):
        for page in range(first, min(first + together, pages)): memory[page * 4096 + 8] = now & 255
    open(f'{directory}/wrote.{now}.{os.uname().nodename}', 'w').close()
"""


class Job:
    def __init__(self, o, hosts):
        self.o, self.hosts, self.ckpt = o, hosts, os.path.abspath(o.build) + "/bin/ckpt"
        self.names, self.spares = hosts.names[:o.hosts], hosts.names[o.hosts:]
        self.directory = tempfile.mkdtemp(prefix="ckpt-loss.", dir=os.environ.get("BENCH_DIR", "/var/tmp"))
        with open(self.directory + "/hold.py", "w", encoding="ascii") as f:
            f.write(PROGRAM)
        self.round = 0
        self.write_round()
        hold = f"/usr/bin/python3 {self.directory}/hold.py {o.mib} {self.directory} {o.together}"
        self.busy = self.names[:o.hosts - o.empty]
        others = "".join(f"{os.path.abspath(o.build)}/bin/ckpt-on {n} {hold} & " for n in self.busy[1:])
        words = [self.ckpt, "run", "--hosts", ",".join(self.names), "--launch", hosts.launch, "--dir", self.directory + "/images", "--stop-timeout", "30s",
                 "--recover", "--spare", ",".join(self.spares), "--host-silence", "5s"]
        if o.redundancy != "none":
            words += ["--redundancy", o.redundancy, "--differences", o.differences, "--memory", f"{max(o.mib * 6, 256)}M"]
        if o.increments is not None:
            words += ["--increments", o.increments]
        if o.checks_on:
            words += ["--checks-on", o.checks_on]
        self.head = subprocess.Popen([*words, "--", "sh", "-c", f"{others}{hold}"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                     stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
        self.said = []
        threading.Thread(target=self.read, daemon=True).start()
        self.until(lambda: all(os.path.exists(f"{self.directory}/ready.{n}") for n in self.busy) and self.listens(), "the program")

    def read(self):
        for line in self.head.stderr:
            self.said.append((time.monotonic(), line.rstrip("\n")))

    def listens(self):
        with open("/proc/net/unix", encoding="ascii", errors="replace") as f:
            return any(line.rstrip().endswith(f"@ckpt_rt.head.{self.head.pid}") for line in f)

    def until(self, there, what, seconds=300):
        end = time.monotonic() + seconds
        while not there():
            if self.head.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"no {what}: " + "\n".join(line for _, line in self.said))
            time.sleep(0.002)

    def write_round(self):
        with open(self.directory + "/new", "w", encoding="ascii") as f:
            f.write(str(self.round))
        os.rename(self.directory + "/new", self.directory + "/round")

    def write_some(self):
        self.round += 1
        self.write_round()
        self.until(lambda: sum(name.startswith(f"wrote.{self.round}.") for name in os.listdir(self.directory)) == len(self.busy), "written pages")

    def until_touched(self):
        """Keepers have the machine give them their memory first, once."""
        # By a thread of theirs, which ends.
        self.until(lambda: sum(kind.endswith(", ckpt-keeper") for _, kind in self.cpu_of_threads()) == len(self.names), "memory that was touched")

    def cpu_ms(self):
        spaces, ticks = {os.readlink(f"/proc/{pid}/ns/pid") for pid in self.hosts.pids.values()}, 0
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                if int(pid) == self.head.pid or os.readlink(f"/proc/{pid}/ns/pid") in spaces:
                    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as f:
                        numbers = f.read().rsplit(")", 1)[1]
                    ticks += sum(map(int, numbers.split()[11:15]))
            except OSError:
                pass  # it has ended: its parent has it
        return ticks * 1e3 / os.sysconf("SC_CLK_TCK")

    def cpu_of_threads(self):
        """Nanoseconds, by process, thread and what they are."""
        spaces, threads = {os.readlink(f"/proc/{pid}/ns/pid") for pid in self.hosts.pids.values()}, {}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                if int(pid) != self.head.pid and os.readlink(f"/proc/{pid}/ns/pid") not in spaces:
                    continue
                with open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as f:
                    words = f.read().split("\0")
                kind = "head" if int(pid) == self.head.pid else " ".join(word.rsplit("/", 1)[-1] for word in words[:2])
                for thread in os.listdir(f"/proc/{pid}/task"):
                    with open(f"/proc/{pid}/task/{thread}/comm", encoding="utf-8", errors="replace") as f:
                        name = f.read().strip()
                    with open(f"/proc/{pid}/task/{thread}/schedstat", encoding="ascii") as f:
                        threads[thread, f"{kind}, {name}"] = int(f.read().split()[0])
            except OSError:
                pass  # it has ended
        return threads

    def now(self):
        before = self.cpu_ms()
        done = subprocess.run([self.ckpt, "now", "--json", str(self.head.pid)], capture_output=True, text=True, env=ENVIRONMENT, check=False)
        if done.returncode != 0:
            raise SystemExit(done.stderr)
        cost = json.loads(done.stdout)
        return cost["durable_ns"] / 1e6, cost["stop_ns"] / 1e6, self.cpu_ms() - before, self.mib_of_newest()

    def mib_of_newest(self):
        newest = max(glob.glob(self.directory + "/images/*.hosts"), default=None)
        with open(newest, encoding="utf-8") as f:
            parts = json.load(f).get("redundancy", {}).get("parts", [])
        return sum(part["bytes"] for part in parts) / 2**20

    def traffic(self):
        """Bytes that each host has received, and has sent."""
        lines = []
        for name in self.names:
            with open(f"/proc/{self.hosts.pids[name]}/net/dev", encoding="ascii") as f:
                lines.append(f.read().split("eth0:")[1].split())
        return [int(line[0]) for line in lines], [int(line[8]) for line in lines]

    def lose(self):
        """Milliseconds from the word that hosts are gone to the word that the job goes on, and for which its processes stood."""
        for name in self.names[1:1 + self.o.lose]:
            self.hosts.cut(name)
        self.until(lambda: any("the job goes on from" in line for _, line in self.said), "job without them")
        gone = next(at for at, line in self.said if ": gone; " in line)
        at, line = next((at, line) for at, line in self.said if "the job goes on from" in line)
        stood = re.search("stood for (.*)", line)
        return (at - gone) * 1e3, stood.group(1) if stood else "not in place: " + " ".join(line for _, line in self.said if "not in place" in line)

    def close(self):
        self.head.kill()
        self.head.wait()
        shutil.rmtree(self.directory, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--mib", type=int, default=256, help="memory of the program on each host")
    parser.add_argument("--hosts", type=int, default=5)
    parser.add_argument("--empty", type=int, default=0)
    parser.add_argument("--together", type=int, default=1, help="pages that are written lie side by side; each run of 64 KiB that has one is in the increment")
    parser.add_argument("--redundancy", default="parity")
    parser.add_argument("--differences", default="words", help="what travels of an increment: words that differ, or none: all of it; all: what differs of full images too")
    parser.add_argument("--increments", help="between full checkpoints; 0: all are full")
    parser.add_argument("--checks-on", help="hosts that the checks are on, alone")
    parser.add_argument("--rate", help="of each host's network interface, for tc: 100mbit")
    parser.add_argument("--who", action="store_true", help="whose processor time it is, of a checkpoint of what was written")
    parser.add_argument("--lose", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    o = parser.parse_args()
    with made_hosts.Hosts(o.hosts + max(o.lose, 1)) as hosts:
        os.makedirs("/tmp/ckpt-keeper-0", 0o700, exist_ok=True)
        for name in hosts.names:  # sockets in /tmp are of one host
            own = f"{hosts.base}/keeper-{name}"
            os.makedirs(own, 0o700)
            hosts.run(name, "mount", "--bind", own, "/tmp/ckpt-keeper-0", check=True)
            if o.rate:
                hosts.shape(name, o.rate)
        job = Job(o, hosts)
        try:
            job.until_touched()
            before = job.traffic()
            full = job.now()
            traffic = [max(now - then for now, then in zip(*pair)) / 2**20 for pair in zip(job.traffic(), before)]
            some = []
            who = collections.Counter()
            for _ in range(o.rounds):
                job.write_some()
                before = job.cpu_of_threads()
                some.append(job.now())
                for thread, spent in job.cpu_of_threads().items():
                    who[thread[1]] += spent - before.get(thread, 0)
            durable, stood, cpu, mib = (statistics.median(x) for x in zip(*some))
            took, recovered = job.lose() if o.lose else (0, "")
        finally:
            job.close()
    if o.who:
        for kind, spent in who.most_common(20):
            print(f"{spent / 1e6 / o.rounds:8.2f} ms in a checkpoint of what was written: {kind}")
    print(f"full: a host received {traffic[0]:.0f} MiB at most, and sent {traffic[1]:.0f}")
    print("| hosts x MiB, redundancy | full: until it counts, stood, CPU, ms; MiB | 1 % written: the same | lost | until the job goes on, ms | its processes stood |")
    print("| --- | --- | --- | --- | --- | --- |")
    number = f"{o.hosts - o.empty}+{o.empty}" if o.empty else o.hosts
    print(f"| {number} x {o.mib}, {o.redundancy} | {full[0]:.0f}, {full[1]:.1f}, {full[2]:.0f}, {full[3]:.0f} | {durable:.0f}, {stood:.1f}, {cpu:.0f}, {mib:.0f} | {o.lose} | {took:.0f} | {recovered} |")


if __name__ == "__main__":
    main()
