"""Runs a program under libckpt_rt.so, takes checkpoints, kills it, brings it back, compares.

A Trial owns one directory:
    work/     the program's current directory, with its standard output and error in files
    images/   CKPT_DIR
    log       what was done and when, and what ckpt and ckpt-restart said
Everything in it is kept when the trial fails.
"""
import dataclasses
import fcntl
import glob
import hashlib
import json
import os
import pickle
import random
import shutil
import signal
import subprocess
import tempfile
import time

NO_PROCESS = 67     # exit code of ckpt (docs/exit_codes.md)
NOT_RESTARTABLE = 76
STEP_TIMEOUT = 120  # seconds for ckpt now, and for a restart until the program runs


class Failure(Exception):
    """The trial failed; the text says how."""


class EndedEarly(Exception):
    """The program ended before the checkpoint was taken."""


@dataclasses.dataclass
class Build:
    directory: str

    @property
    def library(self):
        return f"{self.directory}/lib/libckpt_rt.so"

    @property
    def heap(self):
        return f"{self.directory}/lib/libckpt_heap.so"

    @property
    def ckpt(self):
        return f"{self.directory}/bin/ckpt"

    @property
    def restart(self):
        return f"{self.directory}/bin/ckpt-restart"

    def missing(self):
        return [f for f in (self.library, self.ckpt, self.restart) if not os.path.exists(f)]


@dataclasses.dataclass
class Settings:
    mode: str = "auto"
    segment: str = ""
    pool: str = ""
    namespaces: str = "auto"
    restart_options: list = dataclasses.field(default_factory=list)
    without_time_namespace: bool = False
    long: bool = False
    increments: int = 0
    environment: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Reference:
    """An uninterrupted run without the library."""
    seconds: float
    exit_code: int
    output: bytes
    errors: bytes


def plain_environment(program):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("CKPT_", "LD_PRELOAD"))}
    env.update(program.environment)
    return env


def start(argv, work, env, stdin=""):
    """The program with its standard streams in files of the directory `work`."""
    with open(os.path.join(work, stdin) if stdin else os.devnull, "rb") as source, \
         open(f"{work}/stdout", "wb") as out, open(f"{work}/stderr", "wb") as err:
        # A session of its own: signals meant for the test do not reach it.
        return subprocess.Popen(argv, cwd=work, env=env, stdin=source, stdout=out, stderr=err, start_new_session=True)


def run_reference(build, program, settings, directory):
    os.makedirs(f"{directory}/work")
    work = f"{directory}/work"
    program.prepare(work, settings.long)
    begin = time.monotonic()
    process = start(program.command(build.directory, settings.long), work, plain_environment(program), program.stdin)
    try:
        code = process.wait(timeout=600)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    seconds = time.monotonic() - begin
    with open(f"{work}/stdout", "rb") as out, open(f"{work}/stderr", "rb") as err:
        return Reference(seconds, code, out.read(), err.read())


def reference_of(build, program, settings, base):
    """The uninterrupted run, or what an earlier test kept of it in the build directory. Kept are runs of what is built here
    only: a program of the system changes without our seeing it."""
    argv = program.command(build.directory, settings.long)
    directory = os.path.join(base, f"{program.name}.reference")
    if not argv[0].startswith(build.directory + os.sep):
        return run_reference(build, program, settings, directory)
    kept = os.path.join(build.directory, "tests", "references", program.name + (".long" if settings.long else ""))
    os.makedirs(os.path.dirname(kept), exist_ok=True)
    key = identity(argv, program)
    with open(f"{kept}.lock", "w", encoding="ascii") as lock:
        # Tests that begin together: one runs it, the others wait.
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            with open(kept, "rb") as f:
                kept_key, reference = pickle.load(f)
            if kept_key == key:
                return reference
        except OSError:
            pass  # none yet
        reference = run_reference(build, program, settings, directory)
        if reference.exit_code == 0:
            with open(f"{kept}.new", "wb") as f:
                pickle.dump((key, reference), f)
            os.replace(f"{kept}.new", kept)
        return reference


def identity(argv, program):
    """What a run of ours follows from: arguments, environment, the program and the libraries beside it."""
    beside = sorted(glob.glob(os.path.join(os.path.dirname(argv[0]), "*.so")))
    fields = [field.name for field in dataclasses.fields(Reference)]
    digest = hashlib.sha256(repr((argv, sorted(program.environment.items()), fields)).encode())
    for path in [argv[0], *beside]:
        with open(path, "rb") as f:
            digest.update(hashlib.sha256(f.read()).digest())
    return digest.hexdigest()


def read_text(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as f:
            return f.read()
    except OSError:
        return ""


def describe_process(pid):
    """State, wait channel and system call of each thread: for the log, when something hangs."""
    lines = []
    try:
        tids = sorted(os.listdir(f"/proc/{pid}/task"), key=int)
    except OSError:
        return f"process {pid} is gone\n"
    for tid in tids:
        base = f"/proc/{pid}/task/{tid}"
        status = {}
        for line in read_text(f"{base}/status").splitlines():
            key, _, value = line.partition(":")
            status[key] = value.strip()
        lines.append(f"  {tid} {status.get('Name')} {status.get('State')} wchan={read_text(base + '/wchan')} "
                     f"syscall={read_text(base + '/syscall').strip()} SigBlk={status.get('SigBlk')} "
                     f"SigPnd={status.get('SigPnd')} ShdPnd={status.get('ShdPnd')}")
    return "\n".join(lines) + "\n"


def our_threads(pid):
    """How many threads of a process are ours."""
    names = [read_text(f"/proc/{pid}/task/{tid}/comm") for tid in os.listdir(f"/proc/{pid}/task")]
    return names.count("ckpt_rt\n")


class Trial:
    def __init__(self, build, program, settings, reference, base, seed):
        self.build, self.program, self.settings, self.reference = build, program, settings, reference
        self.random = random.Random(seed)
        self.directory = tempfile.mkdtemp(prefix=f"{program.name}.{seed}.", dir=base)
        self.work, self.images = f"{self.directory}/work", f"{self.directory}/images"
        os.mkdir(self.work)
        os.mkdir(self.images, 0o700)
        self.begin = time.monotonic()
        self.child = None    # the process we started: the program, or ckpt-restart
        self.pid = 0         # the program, as seen from here
        self.costs = []      # what ckpt now said, one for each checkpoint
        self.restarts = []   # what ckpt-restart said
        self.killed = []     # those of self.costs after which the program was killed

    # -- steps ------------------------------------------------------------------------------------

    def log(self, text):
        with open(f"{self.directory}/log", "a", encoding="utf-8") as f:
            f.write(f"{time.monotonic() - self.begin:8.3f} {text.rstrip()}\n")

    def start_program(self):
        self.program.prepare(self.work, self.settings.long)
        env = plain_environment(self.program)
        env["CKPT_STOP_TIMEOUT"] = "30s"  # of one thread: the host may take a processor away for seconds
        env.update(self.settings.environment)
        env["LD_PRELOAD"] = self.build.library
        if env.get("CKPT_HEAP", "").startswith("jemalloc"):
            env["LD_PRELOAD"] += f":{self.build.heap}"
        env["CKPT_DIR"] = self.images
        env["CKPT_MODE"] = self.settings.mode
        if self.settings.segment:
            env["CKPT_SEGMENT"] = self.settings.segment
        if self.settings.increments:
            env["CKPT_INCREMENTS"] = str(self.settings.increments)
        if self.settings.pool:
            env["CKPT_POOL"] = self.settings.pool
        argv = self.program.command(self.build.directory, self.settings.long)
        self.log(f"start {' '.join(argv)}")
        self.child = start(argv, self.work, env, self.program.stdin)
        self.pid = self.child.pid
        self.wait_until_preloaded()

    def wait_until_preloaded(self):
        """ckpt now refuses a program that the dynamic linker has not finished with yet."""
        deadline = time.monotonic() + STEP_TIMEOUT
        while self.child.poll() is None:
            answer = subprocess.run([self.build.ckpt, "stat", "--json", str(self.pid)], capture_output=True, text=True,
                                    timeout=STEP_TIMEOUT, check=False)
            if answer.returncode == 0:
                return
            if time.monotonic() > deadline:
                raise Failure(f"ckpt stat never worked: {answer.stderr.strip()}")

    def ended(self):
        return self.child.poll() is not None

    def sleep(self, seconds):
        """Waits, but not longer than the program runs."""
        try:
            self.child.wait(timeout=max(0.0, seconds))
        except subprocess.TimeoutExpired:
            pass

    def checkpoint(self):
        try:
            answer = subprocess.run([self.build.ckpt, "now", "--json", str(self.pid)], capture_output=True, text=True,
                                    timeout=STEP_TIMEOUT, check=False)
        except subprocess.TimeoutExpired:
            self.log("ckpt now hangs; the program's threads:\n" + describe_process(self.pid))
            raise Failure("ckpt now did not return") from None
        # A program that cannot come back, such as one of which a thread has descriptors of its own, is taken all the same.
        taken = answer.returncode == 0 or (answer.returncode == NOT_RESTARTABLE and not self.program.restartable)
        if not taken:
            self.log(f"ckpt now: exit {answer.returncode}: {answer.stderr.strip()}")
            # It may be on its way out: what is left of it is to end, then.
            deadline = time.monotonic() + STEP_TIMEOUT
            while answer.returncode == NO_PROCESS and not self.ended() and time.monotonic() < deadline:
                self.sleep(0.01)
            if self.ended():
                raise EndedEarly()
            self.log("the program's threads:\n" + describe_process(self.pid))
            raise Failure(f"ckpt now: exit {answer.returncode}: {answer.stderr.strip()}")
        cost = json.loads(answer.stdout)
        self.log(f"checkpoint {json.dumps(cost)}")
        self.costs.append(cost)

    def kill(self):
        self.log(f"kill -9 {self.pid}")
        self.killed.append(self.costs[-1])
        try:
            os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            raise EndedEarly() from None
        try:
            self.child.wait(timeout=STEP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.log("still there after kill -9:\n" + describe_process(self.child.pid) + describe_process(self.pid))
            raise Failure("the killed program, or ckpt-restart above it, does not end") from None

    def restart(self):
        argv = [self.build.restart, "--json", "--namespaces", self.settings.namespaces, *self.settings.restart_options, self.images]
        if self.settings.without_time_namespace:
            # In a user namespace that may have no time namespaces.
            argv = ["unshare", "--user", "--map-root-user", "sh", "-c",
                    'echo 0 > /proc/sys/user/max_time_namespaces && exec "$@"', "sh"] + argv
        path = f"{self.directory}/restart.{len(self.restarts)}"
        with open(path, "wb") as said:
            self.child = subprocess.Popen(argv, cwd="/", stdin=subprocess.DEVNULL, stdout=said, stderr=said,
                                          start_new_session=True, env=plain_environment(self.program))
        deadline = time.monotonic() + STEP_TIMEOUT
        text = ""
        while True:
            text = read_text(path)
            if text.endswith("\n") and '"ok"' in text:
                break
            if self.ended() and not read_text(path).endswith("\n"):
                raise Failure(f"ckpt-restart ended with {self.child.returncode}: {read_text(path).strip()}")
            if time.monotonic() > deadline:
                self.log("ckpt-restart hangs:\n" + describe_process(self.child.pid) + self.describe_children())
                raise Failure(f"ckpt-restart did not get the program to run: {text.strip()}")
            time.sleep(0.005)
        line = next(l for l in text.splitlines() if '"ok"' in l)
        said = json.loads(line)
        self.log(f"restart {line}")
        if not said["ok"]:
            raise Failure(f"ckpt-restart: exit {said['exit_code']}: {said['error']}")
        self.restarts.append(said)
        if said["outer_pid"] <= 1:
            raise Failure(f"ckpt-restart says that the program has pid {said['outer_pid']} out here")
        self.pid = said["outer_pid"]
        try:
            if said["lazy_bytes"] == 0 and our_threads(self.pid) != 0:
                raise Failure("threads of ours are left after a restart")
        except OSError:
            pass  # the program has ended, or a thread has

    def describe_children(self):
        text = ""
        for entry in os.listdir("/proc"):
            if entry.isdigit() and f"\nPPid:\t{self.child.pid}\n" in read_text(f"/proc/{entry}/status"):
                text += f"child {entry}:\n" + describe_process(int(entry))
        return text

    def finish(self):
        """Lets the program run to its end and compares. The uninterrupted run may have had the machine for itself: a program whose threads
        wait for each other takes fifty times as long beside others."""
        limit = 400 + 20 * self.reference.seconds
        try:
            code = self.child.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            self.log("the program does not end; its threads:\n" + describe_process(self.pid))
            raise Failure(f"the program did not end within {limit:.0f} s") from None
        errors = read_text(f"{self.work}/stderr")
        self.log(f"ended with {code}")
        if code != self.reference.exit_code:
            raise Failure(f"exit code {code} instead of {self.reference.exit_code}: {errors.strip()[-500:]}")
        with open(f"{self.work}/stdout", "rb") as out:
            output = out.read()
        if output != self.reference.output:
            with open(f"{self.directory}/expected-stdout", "wb") as expected:
                expected.write(self.reference.output)
            raise Failure(f"standard output differs: {first_difference(output, self.reference.output)}")
        if errors.encode() != self.reference.errors:
            raise Failure(f"standard error is not as it was: {errors.strip()[-500:]}")

    # -- whole trials -----------------------------------------------------------------------------

    def run_killed(self, instants):
        """instants: for each generation the seconds after (re)start at which the checkpoint is taken."""
        self.start_program()
        for instant in instants:
            self.sleep(instant)
            if self.ended():
                raise EndedEarly()
            self.checkpoint()
            for _ in range(self.settings.increments):
                self.sleep(self.random.choice([0.0, 0.02, 0.1]))
                if self.ended():
                    raise EndedEarly()
                self.checkpoint()
            # What the program does now must leave no trace.
            self.sleep(self.random.choice([0.0, 0.01, 0.1]))
            if self.ended():
                raise EndedEarly()
            self.kill()
            if self.program.absence:
                time.sleep(self.program.absence)
            self.restart()
        if self.program.steady:
            self.require_no_growth()
        self.finish()

    def run_undisturbed(self, instants):
        """Checkpoints at these pauses after one another, and no kill: the program notices nothing."""
        self.start_program()
        for pause in instants:
            self.sleep(pause)
            if self.ended():
                break
            try:
                self.checkpoint()
            except EndedEarly:
                break
        if not self.costs:
            raise EndedEarly()
        self.finish()

    def require_no_growth(self):
        """The images say what there was at each stop. They are compared where the program was equally far: with as many
        threads."""
        last = self.killed[-1]
        alike = [cost for cost in self.killed if cost["threads"] == last["threads"]]
        for what in ("descriptors", "mappings"):
            counts = [cost[what] for cost in alike]
            self.log(f"{what} in images of {last['threads']} threads: {counts}")
            if counts[-1] > counts[0]:
                raise Failure(f"after {len(self.killed)} restarts there are {counts[-1]} {what}, before the first {counts[0]}")

    def clean_up(self):
        if self.pid and self.child is not None and self.child.poll() is None:
            try:
                os.kill(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        if self.child is not None and self.child.poll() is None:
            try:
                self.child.wait(timeout=60)
            except subprocess.TimeoutExpired:
                self.child.kill()
                self.child.wait()

    def remove(self):
        shutil.rmtree(self.directory, ignore_errors=True)


def first_difference(got, expected):
    for i, (a, b) in enumerate(zip(got, expected)):
        if a != b:
            return f"at byte {i}: {got[max(0, i - 20):i + 40]!r} instead of {expected[max(0, i - 20):i + 40]!r}"
    return f"{len(got)} bytes instead of {len(expected)}"
