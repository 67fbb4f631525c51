"""What tests of jobs over several hosts need: hosts, a job on them, checkpoints, the end of all at once, the return."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
import hosts as made_hosts  # noqa: E402

CKPT = os.environ["CKPT"]
RESTART = os.environ["CKPT_RESTART"]
ON = os.path.join(os.path.dirname(CKPT), "ckpt-on")
NUMBERS = os.environ.get("CKPT_NUMBERS")
WHY_NOT = made_hosts.missing()


def wait_for(what, condition, seconds=240):
    """what: words, or a function that returns them: what was said until then."""
    end = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError("not in time: " + (what() if callable(what) else what))
        time.sleep(0.02)


def clean():
    # Python unbuffered writes a line in pieces, between which another process's may come.
    return {k: v for k, v in os.environ.items() if not k.startswith("CKPT") and k not in ("LD_PRELOAD", "PYTHONUNBUFFERED")}


@unittest.skipIf(WHY_NOT, WHY_NOT)
class OverHosts(unittest.TestCase):
    count = 2
    ids_apart = 5000  # 0: processes on different hosts have the same ids

    launch = None  # how agents are started, if not as the hosts say
    head = ()  # words ahead of commands of the user
    cwd = None  # of these commands, if not self.dir

    def make_hosts(self):
        self.hosts = made_hosts.Hosts(self.count, self.ids_apart)
        self.hosts.__enter__()
        self.addCleanup(self.hosts.close)

    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="ckpt-over-hosts.")
        self.addCleanup(shutil.rmtree, self.dir, True)
        self.make_hosts()
        self.images = self.dir + "/images"
        self.started, self.texts, self.readers = [], {}, {}
        self.addCleanup(self.end)

    def end(self):
        for p in self.started:
            if p.poll() is None:
                p.terminate()
                try:
                    p.wait(60)
                except subprocess.TimeoutExpired:
                    p.kill()
                    p.wait()

    def start(self, words, name="out"):
        # Pipes, as from ssh: a file would be opened again by its name after a restart.
        p = subprocess.Popen([*self.head, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, env=clean(), cwd=self.cwd or self.dir)
        texts = self.texts[name] = [b"", b""]

        def read(which, stream):
            for chunk in iter(lambda: stream.read1(65536), b""):
                texts[which] += chunk
        self.readers[name] = [threading.Thread(target=read, args=(i, s), daemon=True) for i, s in enumerate((p.stdout, p.stderr))]
        for reader in self.readers[name]:
            reader.start()
        self.started.append(p)
        return p

    def said(self, name="out"):
        # After the end of it all has been said once nobody has the other end.
        if all(p.poll() is not None for p in self.started):
            for reader in self.readers[name]:
                reader.join(10)
        return b"".join(self.texts[name]).decode()

    def run_job(self, *program, hosts="h1,h2", options=()):
        return self.start([CKPT, "run", "--hosts", hosts, "--launch", self.launch or self.hosts.launch, "--dir", self.images, "--stop-timeout", "30s", *options,
                           "--", *program])

    def leads(self, pid):
        """The program runs before the head listens."""
        def listens():
            with open("/proc/net/unix", encoding="ascii", errors="replace") as f:
                return any(line.rstrip().endswith(f"@ckpt_rt.head.{pid}") for line in f)
        wait_for(lambda: "the head; " + "; ".join(self.said(name) for name in self.texts), listens)

    def now(self, pid, host=None, ok=True):
        words = (self.hosts.enter(host) if host else []) + [CKPT, "now", "--json", str(pid)]
        deadline = time.monotonic() + 240
        while True:
            done = subprocess.run(words, capture_output=True, text=True, timeout=240, env=clean())
            # A connection that is just being made, or given up before it was accepted: the message says that it passes.
            if not ok or done.returncode != 76 or "ask again later" not in done.stderr or time.monotonic() > deadline:
                break
        if ok:
            self.assertEqual(done.returncode, 0, done.stderr + self.said())
            return json.loads(done.stdout)
        return done

    def stopping_at(self, point, host):
        """How agents are started so that the restart of a part on that host comes to this point, and no further."""
        path = f"{self.dir}/stopping_on_{host}"
        with open(path, "w", encoding="ascii") as f:
            f.write(f'#!/bin/sh\n[ "$1" != {host} ] || export CKPT_TEST_POINT={point}@ckpt-restart=stop\nexec {self.hosts.launch.split()[0]} "$@"\n')
        os.chmod(path, 0o700)
        return path + " {host}"

    def await_stop(self, host):
        def stopped():
            return [line for line in self.hosts.run(host, "ps", "-e", "-o", "stat=,args=").stdout.splitlines() if line.startswith("T") and "ckpt-restart" in line]
        wait_for(lambda: f"the point on {host}: " + self.said(), stopped)

    def kill_all(self, job):
        """Every process of the job, on every host, at once."""
        for name in self.hosts.names:
            self.hosts.run(name, "kill", "-9", "-1")
        job.kill()
        job.wait()


class JobOfNumbers(OverHosts):
    """A server on the second host sends numbers to a client on the first, until they may end."""

    def run_numbers(self, total):
        return self.run_job("sh", "-c", f"{ON} h2 {NUMBERS} server 5000 {total} {self.dir}/go & {NUMBERS} client h2 5000 {total} {self.dir}/go && wait $!")

    def go(self):
        """Numbers may end."""
        open(self.dir + "/go", "w").close()

    def connected(self, name="h1"):
        def look():
            return [p for p, words in self.hosts.processes(name) if words.startswith(NUMBERS)] and \
                self.hosts.run(name, "ss", "-Htn", "state", "established", "dport", "=", "5000").stdout
        wait_for("the connection", look)
