"""What tests of jobs' checkpoints share: a job below `ckpt run`, and what the kernel says of its processes."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

CKPT = os.environ["CKPT"]
STATIC = os.environ["CKPT_STATIC"]
SHORT = os.environ["CKPT_SHORT"]
VFORK = os.environ["CKPT_VFORK"]
HOSTILE = os.environ["CKPT_HOSTILE"]
# Somebody says nothing, for which others wait twice as long. All others must have stopped by then, also where the host takes a
# processor away for seconds.
STOP_TIMEOUT = "5s"
BUSY = "i=0; while :; do i=$((i+1)); done"
# Numbered lines through two pipes; the last counts them, and says so when one is missing or comes twice.
PIPELINE = """
(i=0; while :; do i=$((i+1)); echo $i || exit; done) | cat |
(n=0; while read l; do n=$((n+1)); [ "$l" = "$n" ] || { echo "wrong: $l instead of $n"; exit 1; }; done)
"""


def clean(**more):
    env = {k: v for k, v in os.environ.items() if not k.startswith("CKPT") and k != "LD_PRELOAD"}
    env["CKPT_STOP_TIMEOUT"] = "30s"  # of one thread: the host may take a processor away for seconds
    env.update(more)
    return env


def stat_of(pid):
    """(ppid, state) of a process, or None."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            fields = f.read().rpartition(")")[2].split()
        return int(fields[1]), fields[0]
    except OSError:
        return None


def name_of(pid):
    """None: it has ended."""
    try:
        with open(f"/proc/{pid}/comm") as f:
            return f.read().strip()
    except OSError:
        return None


def handles_requests(pid):
    """The library in it has installed its handler: exec takes it away, the constructor brings it back."""
    with open(f"/proc/{pid}/status") as f:
        caught = next(int(line.split()[1], 16) for line in f if line.startswith("SigCgt:"))
    return caught >> (60 - 1) & 1 == 1


def processor_time(pid):
    with open(f"/proc/{pid}/stat") as f:
        return sum(int(x) for x in f.read().rpartition(")")[2].split()[11:13])


def tree(root):
    """pids of root, which is the first, and of its living descendants. A child's may be the lower number."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (s := stat_of(name)) and s[1] not in "ZX":
            parents.setdefault(s[0], []).append(int(name))
    found, left = [], [root]
    while left:
        pid = left.pop()
        found.append(pid)
        left += parents.get(pid, [])
    return [root] + sorted(found[1:])


def wait_for(what, condition, seconds=120, said=lambda: ""):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not in time: {what} {said()}")
        time.sleep(0.01)


class Job(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.mkdtemp(prefix="ckpt-job-")
        self.images = os.path.join(self.directory, "images")
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)

    def start(self, *command, options=(), env=None, ready=None):
        """`ckpt run` of the command; killed with all it made at the end."""
        child = subprocess.Popen([CKPT, "run", "--dir", self.images, *options, "--", *command],
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                 env=env or clean(), start_new_session=True, text=True)

        def end():
            for pid in tree(child.pid):
                try:
                    os.kill(pid, signal.SIGKILL)
                except OSError:
                    pass
            try:
                os.killpg(child.pid, signal.SIGKILL)
            except OSError:
                pass
            child.wait()
            for stream in (child.stdin, child.stdout, child.stderr):
                stream.close()

        self.addCleanup(end)
        if ready is not None:
            self.assertEqual(child.stdout.readline().strip(), ready)
        return child

    def run_ckpt(self, *args):
        return subprocess.run([CKPT, *map(str, args)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=120, env=clean())

    def now(self, pid, *options):
        done = self.run_ckpt("now", "--json", *options, pid)
        self.assertEqual(done.returncode, 0, done.stderr + self.log())
        return json.loads(done.stdout)

    def log(self):
        try:
            with open(os.path.join(self.images, "ckpt_rt.log")) as f:
                return f.read()[-4000:]
        except OSError:
            return ""

    def manifest(self, answer):
        with open(os.path.join(answer["job"], "manifest.json")) as f:
            return json.load(f)

    def leftovers(self):
        return [n for n in os.listdir(self.images) if n.endswith(".tmp")]

    def settle(self, pid, count):
        wait_for(f"{count} processes below {pid}", lambda: len(tree(pid)) == count)
        return tree(pid)

    def settle_named(self, pid, *names):
        """The process and those below it, by name, when each runs its own program and the library in it is ready."""
        found = []

        def ready():
            found[:] = tree(pid)
            try:
                return sorted(map(name_of, found)) == sorted(names) and all(map(handles_requests, found))
            except OSError:  # it has ended meanwhile
                return False

        wait_for(f"{names} below {pid}", ready)
        return {name_of(p): p for p in found}

    def with_cat(self, **options):
        """bash, and the cat below it that runs."""
        child = self.start("bash", "-c", "echo up; cat; :", ready="up", **options)
        return child, self.settle_named(child.pid, "bash", "cat")["cat"]
