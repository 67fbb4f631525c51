#!/usr/bin/env python3
"""What checkpoints cost a program of MPI over three hosts, which are namespaces of this machine (root only):
  mpi_speed.py BUILD stand [--mib 256] [--times 20]    how long 6 ranks stand, and when they go on after a restart on three others
  mpi_speed.py BUILD netpipe [--times 5]               NetPIPE between two hosts with the library and without it, in turns:
                                                       a minute to two and a half each time
Both with Open MPI; --mpi mpich for the other. Medians, and between which values half of all lie."""
import argparse
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

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../../tests/support"))
import hosts as made_hosts  # noqa: E402


def clean():
    return {k: v for k, v in os.environ.items() if not k.startswith("CKPT") and k != "LD_PRELOAD"}


def spread(values, digits=2):
    if len(values) < 4:
        return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f}; most {max(values):.{digits}f})"


class Bench:
    def __init__(self, options):
        self.o = options
        self.ckpt, self.restart = (os.path.join(options.build, "bin", name) for name in ("ckpt", "ckpt-restart"))
        self.dir = tempfile.mkdtemp(prefix="ckpt-mpi-speed.")
        self.images = self.dir + "/images"

    def words(self, names, each):
        if self.o.mpi == "mpich":
            return ["mpirun.mpich", "-hosts", ",".join(f"{n}:{each}" for n in names), "-n", str(len(names) * each)]
        os.makedirs(self.dir + "/t", exist_ok=True)
        return ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--mca", "btl", "vader,tcp,self", "--mca", "pml", "ob1", "--mca",
                "mpi_yield_when_idle", "1", "--mca", "orte_tmpdir_base", self.dir + "/t", "-H", ",".join(f"{n}:{each}" for n in names),
                "-np", str(len(names) * each)]

    def start(self, words):
        job = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, cwd=self.dir, env=clean())
        job.lines = []
        job.reader = threading.Thread(target=lambda: [job.lines.append((time.monotonic(), line)) for line in job.stdout], daemon=True)
        job.reader.start()
        return job

    @staticmethod
    def await_line(job, test, seconds=600):
        seen, until = 0, time.monotonic() + seconds
        while True:
            if time.monotonic() > until:
                job.terminate()  # a killed head would leave its hosts to notice by themselves
                sys.exit(f"nothing within {seconds} s behind: " + "".join(line for _, line in job.lines[-5:]))
            for at, line in job.lines[seen:]:
                seen += 1
                if test(line):
                    return at, line
            if job.poll() is not None and not job.reader.is_alive() and seen == len(job.lines):
                sys.exit("the program ended: " + "".join(line for _, line in job.lines[-5:]))
            time.sleep(0.001)

    def words_of_run(self, hosts, words):
        return [self.ckpt, "run", "--hosts", ",".join(hosts), "--launch", self.hosts.launch, "--dir", self.images, "--stop-timeout", "30s", "--", *words]

    def run(self, hosts, words):
        return self.start(self.words_of_run(hosts, words))

    def stand(self):
        compiler = "mpicc." + self.o.mpi
        subprocess.run([compiler, "-O2", "-o", self.dir + "/stand", os.path.join(HERE, "stand.c")], check=True)
        job = self.run(("h1", "h2", "h3"), [*self.words(("h1", "h2", "h3"), 2), "./stand", str(self.o.mib)])
        self.await_line(job, lambda line: line.startswith("round "))
        stood, durable, steps = [], [], {}
        while len(stood) < self.o.times:
            done = subprocess.run([self.ckpt, "now", "--json", str(job.pid)], capture_output=True, text=True, env=clean(), check=False)
            if done.returncode == 0:
                answer = json.loads(done.stdout)
                stood.append(answer["stop_ns"] / 1e6)
                durable.append(answer["durable_ns"] / 1e9)
                for step in ("standing", "drained", "sampled"):
                    steps.setdefault(step, []).append(answer["steps_ns"][step] / 1e6)
            elif not stood and job.poll() is None:
                time.sleep(0.2)  # the head does not listen yet
            else:
                sys.exit(done.stderr)
        print(f"6 ranks of {self.o.mib} MiB on 3 hosts, {self.o.mpi}: all stood {spread(stood)} ms; durable after {spread(durable)} s")
        print("of it, ms: " + "; ".join(f"{step} {spread(values)}" for step, values in steps.items()))
        for name in self.hosts.names:
            self.hosts.run(name, "kill", "-9", "-1")
        job.kill()
        job.wait()
        job.reader.join()
        begun = time.monotonic()
        again = self.start([self.restart, self.images, "--hosts", "h4,h5,h6", "--launch", self.hosts.launch])
        at, _ = self.await_line(again, lambda line: line.startswith("round "))
        print(f"restarted on 3 others: {at - begun:.2f} s from the command to the first 50 messages round the ring")
        again.terminate()
        again.wait()

    def netpipe(self):
        program, package = {"openmpi": ("NPopenmpi", "netpipe-openmpi"), "mpich": ("NPmpich2", "netpipe-mpich2")}[self.o.mpi]
        if shutil.which(program) is None:
            sys.exit(f"{program} is not there: apt-get install {package}")
        words = [*self.words(("h1", "h2"), 1), program, "-u", "1048576", "-p", "0"]  # 41 sizes of 7 trials, each of a quarter of a second
        # Without the library the launchers go by ssh.
        remote = {"openmpi": {"OMPI_MCA_plm_rsh_agent": self.hosts.agent},
                  "mpich": {"HYDRA_LAUNCHER": "ssh", "HYDRA_LAUNCHER_EXEC": self.hosts.agent}}[self.o.mpi]
        row = re.compile(r"^ *\d+: +(\d+) bytes +\d+ times --> +([\d.]+) Mbps in +([\d.]+) usec")
        times = {}

        def take(whose, text):
            for line in text:
                if m := row.match(line):
                    times.setdefault(int(m[1]), {}).setdefault(whose, []).append(float(m[3]))
        # On a host, which knows the names of the others.
        inside = [*self.hosts.enter("h1"), "env", "-C", self.dir]
        run = {"with": [*inside, *self.words_of_run(("h1", "h2"), words)],
               "without": [*inside, *(f"{k}={v}" for k, v in remote.items()), *words]}
        for number in range(self.o.times):
            for whose in ("with", "without") if number % 2 else ("without", "with"):
                job = self.start(run[whose])
                self.await_line(job, lambda line: "1048576 bytes" in line)
                job.wait(60)  # that was the last size
                job.reader.join()
                take(whose, [line for _, line in job.lines])
                shutil.rmtree(self.images, True)
        for first, last in ((1, 1023), (1024, 1 << 21)):
            ratios = [statistics.median(both["with"]) / statistics.median(both["without"]) for n, both in times.items()
                      if first <= n <= last and len(both) == 2]
            print(f"NetPIPE, {self.o.mpi}, {first} to {min(last, max(times))} bytes, {len(ratios)} sizes, {self.o.times} runs each: time with the library / without "
                  f"{spread(ratios, 3)}")

    def main(self):
        why_not = made_hosts.missing(ssh=self.o.what == "netpipe")
        if why_not:
            sys.exit(why_not)
        try:
            some = made_hosts.Hosts(6) if self.o.what == "stand" else made_hosts.Hosts(2, ssh=True, keep=[self.dir])
            with some as self.hosts:
                getattr(self, self.o.what)()
        finally:
            shutil.rmtree(self.dir, True)


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("build")
parser.add_argument("what", choices=("stand", "netpipe"))
parser.add_argument("--mpi", choices=("openmpi", "mpich"), default="openmpi")
parser.add_argument("--mib", type=int, default=256)
parser.add_argument("--times", type=int, default=20)
options = parser.parse_args()
options.build = os.path.abspath(options.build)
Bench(options).main()
