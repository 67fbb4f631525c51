"""One job of the study: an MPI program over hosts in namespaces, under `ckpt run`, with one variant; checkpoints, the end of a host."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(SOURCE, "tests", "support"))
sys.dont_write_bytecode = True
import hosts as made_hosts  # noqa: E402

RANKS = 4
# Per program: the option of its size, that of its work, size and work for about ten seconds of two processors.
PROGRAMS = {
    "nbody": (["--particles", "60000"], "--steps", 20),
    "mat": (["--size", "1600"], "--rounds", 8),
    "pstswm": (["--latitudes", "128", "--layers", "4"], "--steps", 80),
    "cell": (["--size", "8192"], "--generations", 250),
    "pcg": (["--size", "1024"], "--rounds", 1),
}
FULL = ("--increments", "0")
# Table 1 of the paper, as options of `ckpt run`; docs/diskless_study.md says in what each is not the paper's.
VARIANTS = {
    "BASE": None,
    "DISK-FORK": ["--mode", "fork", *FULL],
    "SIMP": ["--mode", "sequential", *FULL],
    "FORK": ["--mode", "fork", *FULL],
    "REALTIME": ["--mode", "realtime", *FULL],
    "INC": ["--mode", "standing", "--increments", "16", "--differences", "none"],
    "INC-FORK": ["--mode", "realtime", "--increments", "16", "--differences", "none"],
    "C-SIMP": ["--mode", "sequential", "--differences", "all", *FULL],
    "C-FORK": ["--mode", "fork", "--differences", "all", *FULL],
    "C-REALTIME": ["--mode", "realtime", "--differences", "all", *FULL],
    "LZ4-FORK": ["--mode", "fork", "--compress", "lz4", *FULL],
    "C-INC": ["--mode", "standing", "--increments", "16"],
    "C-INC-FORK": ["--mode", "realtime", "--increments", "16"],
    "LZ4-INC-FORK": ["--mode", "realtime", "--compress", "lz4", "--increments", "16"],
}
# Hosts that data is spread over, and what `ckpt run --redundancy` calls it.
SCHEMES = {"4+1": (5, "parity"), "4+2": (6, "rs:4+2")}
KEEPER_MEMORY = "384M"
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith("CKPT") and k != "LD_PRELOAD"}


class Failed(Exception):
    pass


class Study:
    """Hosts, one more than the largest scheme needs: the spare. rate: for tc, 1gbit for example; None: as it is."""

    def __init__(self, build, rate):
        self.build, self.rate = os.path.abspath(build), rate
        self.ckpt = f"{self.build}/bin/ckpt"
        self.hosts = made_hosts.Hosts(max(n for n, _ in SCHEMES.values()) + 1)

    def __enter__(self):
        self.hosts.__enter__()
        # Else a bridge has the least address of its ports: another one when a host is gone.
        subprocess.run(["ip", "link", "set", self.hosts.bridge, "address", "02:00:00:00:00:01"], check=True)
        os.makedirs("/tmp/ckpt-keeper-0", 0o700, exist_ok=True)
        for name in list(self.hosts.names):
            self.prepare(name)
        return self

    def __exit__(self, *_):
        self.hosts.close()

    def prepare(self, name):
        own = f"{self.hosts.base}/keeper-{name}"  # sockets in /tmp are of one host
        os.makedirs(own, 0o700, exist_ok=True)
        self.hosts.run(name, "mount", "--bind", own, "/tmp/ckpt-keeper-0", check=True)
        if self.rate:
            self.hosts.shape(name, self.rate)

    def start_keepers(self, names):
        """Ahead of the job: else they touch their memory while it runs, which no later checkpoint costs."""
        for number, name in enumerate(names, 1):
            done = self.hosts.run(name, self.ckpt, "keeper", "start", f"main-{number}", "--memory", KEEPER_MEMORY)
            if done.returncode != 0:
                raise Failed(f"ckpt keeper start: {done.stderr.strip()}")
        deadline = time.monotonic() + 60
        for number, name in enumerate(names, 1):
            while (status := self.keeper(name, number))["touched_bytes"] < status["memory_bytes"]:
                if time.monotonic() > deadline:
                    raise Failed(f"the keeper of {name} has not touched its memory in 60 s")
                time.sleep(0.01)

    def keeper(self, name, number):
        return json.loads(self.hosts.run(name, self.ckpt, "keeper", "status", f"main-{number}", "--json").stdout)

    def sent(self, names):
        total = 0
        for name in names:
            with open(f"/proc/{self.hosts.pids[name]}/net/dev", encoding="ascii") as f:
                total += int(f.read().split("eth0:")[1].split()[8])
        return total


class Job:
    def __init__(self, study, program, variant, scheme, work=1.0, recover=False):
        self.study, self.variant = study, variant
        count, code = SCHEMES[scheme]
        self.names = study.hosts.names[:count]
        self.directory = tempfile.mkdtemp(prefix="ckpt-study.", dir=os.environ.get("BENCH_DIR", "/var/tmp"))
        os.mkdir(self.directory + "/t")
        size, option, amount = PROGRAMS[program]
        words = [study.ckpt, "run", "--hosts", ",".join(self.names), "--launch", study.hosts.launch, "--dir", self.directory + "/images",
                 "--stop-timeout", "30s"]
        words += VARIANTS[variant] or ["--mode", "fork"]
        if variant not in ("BASE", "DISK-FORK"):
            study.start_keepers(self.names)
            words += ["--redundancy", code, "--memory", KEEPER_MEMORY]
        if recover:
            words += ["--recover", "--spare", study.hosts.names[-1]]
        words += ["--", "mpirun.openmpi", "--allow-run-as-root", "--mca", "btl", "vader,tcp,self", "--mca", "pml", "ob1", "--mca",
                  "mpi_yield_when_idle", "1", "--mca", "orte_tmpdir_base", self.directory + "/t", "--map-by", "node", "-H",
                  ",".join(f"{n}:1" for n in self.names), "-np", str(RANKS), f"{study.build}/bench/diskless/openmpi/{program}", *size, option,
                  str(max(1, int(amount * work)))]
        self.lines, self.said = [], []
        self.head = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
        self.readers = [threading.Thread(target=self._read, args=pair, daemon=True)
                        for pair in ((self.head.stdout, self.lines), (self.head.stderr, self.said))]
        for reader in self.readers:
            reader.start()
        self.until(lambda: self.lines, "the program's first line")
        self.began = time.monotonic()

    @staticmethod
    def _read(stream, lines):
        for line in stream:
            lines.append((time.monotonic(), line.rstrip("\n")))

    def until(self, there, what, seconds=120):
        end = time.monotonic() + seconds
        while not there():
            if self.head.poll() is not None:
                raise Failed(f"the job ended ({self.head.returncode}) before {what}: {self.last()}")
            if time.monotonic() > end:
                raise Failed(f"{what} did not come in {seconds} s: {self.last()}")
            time.sleep(0.005)

    def last(self):
        return " ".join(line for _, line in (self.lines + self.said)[-5:])

    def checkpoint(self):
        """What it cost; None: the program has ended."""
        before = self.study.sent(self.names)
        done = subprocess.run([self.study.ckpt, "now", "--json", str(self.head.pid)], capture_output=True, text=True, env=ENVIRONMENT, check=False)
        if done.returncode != 0:
            if self.lines[-1][1] in ("verified", "WRONG") or self.head.poll() is not None:
                return None
            raise Failed(f"ckpt now: {done.returncode}: {done.stderr.strip()}")
        cost = json.loads(done.stdout)
        return {"latency": cost["durable_ns"] / 1e9, "pause": cost["stop_ns"] / 1e9, "sent": self.study.sent(self.names) - before,
                "size": self.size()}

    def size(self):
        """Bytes of the newest checkpoint on the second host, which has one rank."""
        if self.variant == "DISK-FORK":
            parts = subprocess.run(["du", "-sb", "--apparent-size", self.directory + "/images"], capture_output=True, text=True, check=True)
            files = sum(name.endswith(".hosts") for name in os.listdir(self.directory + "/images"))
            return int(parts.stdout.split()[0]) / RANKS / max(1, files)
        held = self.study.keeper(self.names[1], 2)["held"]
        return max((h.get("bytes", 0) for h in held), default=0) if isinstance(held, list) else 0

    def listens(self):
        """The head takes requests: the job runs."""
        with open("/proc/net/unix", encoding="ascii", errors="replace") as f:
            return any(line.rstrip().endswith(f"@ckpt_rt.head.{self.head.pid}") for line in f)

    def lose_a_host(self):
        """The third host dies. Seconds until the job runs again, with the spare instead."""
        began = time.monotonic()
        self.study.hosts.crash(self.names[2])
        self.until(lambda: any("the job goes on from" in line for _, line in self.said), "a word of the host's end")
        self.until(self.listens, "the job on the spare")
        return time.monotonic() - began

    def end(self):
        """Waits for it: seconds since its first line. The program has verified its result."""
        self.head.wait(600)
        for reader in self.readers:
            reader.join(10)
        if self.head.returncode != 0 or self.lines[-1][1] != "verified":
            raise Failed(f"ended with {self.head.returncode}: {self.last()}")
        return self.lines[-1][0] - self.began

    def close(self):
        if self.head.poll() is None:
            self.head.kill()
            self.head.wait()
        for name in self.names:
            if os.path.exists(f"/proc/{self.study.hosts.pids[name]}"):
                self.study.hosts.run(name, self.study.ckpt, "keeper", "stop", "main")
        for number in range(1, len(self.names) + 1):
            for name in self.study.hosts.names:
                if os.path.exists(f"/proc/{self.study.hosts.pids[name]}"):
                    self.study.hosts.run(name, self.study.ckpt, "keeper", "stop", f"main-{number}")
        shutil.rmtree(self.directory, ignore_errors=True)
