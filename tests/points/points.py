#!/usr/bin/env python3
"""Kills a program at each named point of its checkpoint (base/checks/named_points.h), in each way of taking one, and brings it back.

After every kill: each image that has a name is whole; the newest is the one before, or, from the rename on, the new one; a
restart from it ends as an uninterrupted run does; and the next checkpoint of the restarted program works and leaves no .tmp.
"""
import argparse
import contextlib
import glob
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LIMIT = 120  # seconds, for each step

# Ways to take a checkpoint: settings, and what they need ("": nothing).
INCREMENTS = {"CKPT_INCREMENTS": "3", "CKPT_MODE": "realtime"}
WAYS = {
    "realtime": {"CKPT_MODE": "realtime"},
    "realtime-large": {"CKPT_MODE": "realtime-large"},
    "concurrent": {"CKPT_MODE": "concurrent"},
    "sequential": {"CKPT_MODE": "sequential"},
    "fork": {"CKPT_MODE": "fork"},
    "increments": INCREMENTS,
    "standing": {**INCREMENTS, "CKPT_MODE": "standing"},
    "in-thread": {"CKPT_MODE": "realtime", "CKPT_FAULTS": "in-thread"},
    "mprotect": {"CKPT_MODE": "realtime", "CKPT_FAULTS": "mprotect"},
}
ALL = list(WAYS)
KEPT = ["increments", "standing"]  # with the watch that a checkpoint leaves to the next
HANDLER = ["realtime", "realtime-large", *KEPT]
PROTECTING = HANDLER + ["in-thread", "mprotect"]
AHEAD = HANDLER + ["in-thread"]
# Point -> the ways that come to it.
POINTS = {
    "checkpoint.asked": ALL,
    "prepare.image": ALL,
    "prepare.open": ALL,
    "watch.renewed": KEPT,
    "guard.opened": ["in-thread"],
    "protect.added": AHEAD,
    "protect.passed": AHEAD,
    "prepare.ready": ALL,
    "stop.signalled": ALL,  # of a program whose queue of signals is full
    "stop.standing": ALL,
    "stop.looked": ALL,
    "guard.protected": ["mprotect"],
    "protect.settled": AHEAD,
    "still.copied": ["concurrent"],
    "stop.captured": ALL,
    "still.written": ["sequential"],
    "still.appended": ["concurrent"],
    "fork.child": ["fork"],
    "fork.go": ["fork"],
    "fork.table": ["fork"],
    "copy.go": PROTECTING,
    "writer.eager": PROTECTING,
    "writer.batch": PROTECTING,
    "copy.done": PROTECTING,
    "protect.off": ["realtime", "realtime-large"],
    "watch.resumed": KEPT,
    "guard.closed": ["in-thread", "mprotect"],
    "copy.ended": PROTECTING,
    "writer.ended": PROTECTING,
    "commit.described": ALL,
    "commit.index": ALL,
    "commit.trailer": ALL,
    "commit.durable": ALL,
    "commit.renamed": ALL,
    "commit.named": ALL,
    "fork.written": ["fork"],
    "checkpoint.run": ALL,
    "checkpoint.pruned": ALL,
    # None: it is where a wait for a thread that never comes back is given up. tests/restart/leaves_releases.py shows that nobody comes to it.
    "release.abandoned": [],
    "watch.kept": KEPT,
    "watch.ended": [w for w in ALL if w not in KEPT],
}
# From here on the new image has its name.
PUBLISHED = {"commit.renamed", "commit.named", "fork.written", "checkpoint.run", "checkpoint.pruned", "watch.kept", "watch.ended"}
# The program goes on, or goes on to be killed, beside the child that writes: whether the child was done nobody can say.
EITHER = {"fork.go"}
# What the child of mode fork comes to.
IN_CHILD = {"fork.child", "fork.table", "fork.written", "commit.described", "commit.index", "commit.trailer", "commit.durable",
            "commit.renamed", "commit.named"}


def prepare_for(point, pid):
    """Before the checkpoint that is to come to the point."""
    if point == "stop.signalled":
        resource.prlimit(pid, resource.RLIMIT_SIGPENDING, (0, 0))


class Failure(Exception):
    pass


class Spoiled(Exception):
    """The point was reached twice in one checkpoint, of which the first attempt was given up."""


def points_in_source():
    found = set()
    for folder in ("libckpt_rt", "image"):
        for path in glob.glob(f"{SOURCE}/{folder}/**/*.cc", recursive=True):
            with open(path, encoding="utf-8") as f:
                for call in re.findall(r"points::at\(([^;]*)\);", f.read()):
                    found |= {p for p in re.findall(r'"([a-z.]+)"', call) if not p.startswith(("member.", "coordinator.", "tracing."))}
    return found


def clean_environment():
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("CKPT", "LD_PRELOAD"))}
    clean["CKPT_STOP_TIMEOUT"] = "30s"  # of one thread: the host may take a processor away for seconds
    return clean


def wait_until(what, condition):
    deadline = time.monotonic() + LIMIT
    while not condition():
        if time.monotonic() > deadline:
            raise Failure(f"not within {LIMIT} s: {what}")
        time.sleep(0.002)  # between two looks


class Trial:
    def __init__(self, build, point, way, action, base):
        self.build, self.point, self.way, self.action = build, point, way, action
        self.directory = tempfile.mkdtemp(prefix=f"{point}.{way}.", dir=base)
        self.images = f"{self.directory}/images"
        os.mkdir(self.images, 0o700)
        self.running = []
        self.restarted = None  # the process that has come back, until it ends

    def ckpt(self, *words):
        return subprocess.run([f"{self.build}/bin/ckpt", *map(str, words)], stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=LIMIT, env=clean_environment(), check=False)

    def start(self, argv, env, name):
        with open(f"{self.directory}/{name}", "ab") as out:
            process = subprocess.Popen(argv, cwd=self.directory, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                       start_new_session=True)
        self.running.append(process)
        return process

    def said(self, name):
        with open(f"{self.directory}/{name}", encoding="utf-8", errors="replace") as f:
            return f.read()

    def log(self):
        try:
            return "\n" + "".join(open(f"{self.images}/ckpt_rt.log", encoding="utf-8").readlines()[-12:])
        except OSError:
            return ""

    def run(self):
        before = 2 if self.way in KEPT else 1  # images there are when it is killed
        env = clean_environment()
        env.update(WAYS[self.way], LD_PRELOAD=f"{self.build}/lib/libckpt_rt.so", CKPT_DIR=self.images)
        # Of the first, which is no increment, nothing is renewed.
        comes = {"watch.renewed": before, "stop.signalled": 1}.get(self.point, before + 1)
        env["CKPT_TEST_POINT"] = f"{self.point}={self.action}:{comes}"
        program = self.start([f"{self.build}/tests/points/points_rounds"], env, "out")
        wait_until("the program is up", lambda: "up" in self.said("out") or program.poll() is not None)
        wait_until("it can be asked", lambda: self.ckpt("stat", program.pid).returncode == 0 or program.poll() is not None)
        for _ in range(before):
            answer = self.ckpt("now", "--json", program.pid)
            if program.poll() is not None:
                raise Spoiled()
            if answer.returncode != 0:
                raise Failure(f"the checkpoint before: {answer.stderr.strip()}{self.log()}")
            cost = json.loads(answer.stdout)
            if cost["mode"] != WAYS[self.way]["CKPT_MODE"]:
                raise Spoiled()  # an attempt was given up twice, or this machine does not allow the way
            if cost["attempts"] > 1:
                raise Spoiled()
        prepare_for(self.point, program.pid)
        answer = self.ckpt("now", "--json", program.pid)
        self.after(program, answer, before)

    def after(self, program, answer, before):
        if self.action == "leave":
            if program.poll() is not None:
                raise Failure("only the writing child was to be killed")
            published = self.point in PUBLISHED
            # The child said nothing of how it went.
            if answer.returncode == 0:
                raise Failure("the checkpoint whose child was killed is said to be durable")
            self.look_at_images(before, published)
            if self.ckpt("now", program.pid).returncode != 0:
                raise Failure(f"no checkpoint after that{self.log()}")
            before += 1
            program.kill()
        wait_until(f"death at {self.point}", lambda: program.poll() is not None)
        if program.returncode != -signal.SIGKILL:
            raise Failure(f"the program ended with {program.returncode}: {self.said('out')}{self.log()}")
        if self.action == "kill":
            self.look_at_images(before, self.point in PUBLISHED)
        self.restart()

    def names(self):
        return sorted(os.path.basename(p) for p in glob.glob(f"{self.images}/*.ckpt"))

    def look_at_images(self, before, published):
        self.wait_for_child()
        names = self.names()
        sequences = [int(n.split(".")[-2]) for n in names]
        newest = max(sequences, default=0)
        wanted = {before + 1} if published else {before}
        if self.point in EITHER and self.action == "kill":
            wanted = {before, before + 1}
        if newest not in wanted:
            raise Failure(f"the newest image is number {newest}, not {wanted}: {names}{self.log()}")
        for name in names:
            verified = self.ckpt("verify", f"{self.images}/{name}")
            if verified.returncode != 0:
                raise Failure(f"{name}: {verified.stderr.strip()}")
        verified = self.ckpt("verify", self.images)
        if verified.returncode != 0:
            raise Failure(f"verify of the directory: {verified.stderr.strip()}")

    def wait_for_child(self):
        """The child of mode fork is told by the kernel, a little later than the program is seen to be dead."""
        needle = f"CKPT_DIR={self.images}".encode()

        def alive():
            for pid in filter(str.isdigit, os.listdir("/proc")):
                try:
                    with open(f"/proc/{pid}/environ", "rb") as f:
                        mine = needle in f.read()
                    with open(f"/proc/{pid}/stat", encoding="latin-1") as f:
                        mine = mine and f.read().rpartition(")")[2].split()[0] not in "ZX"
                except OSError:
                    continue
                if mine and not any(p.pid == int(pid) and p.poll() is None for p in self.running):
                    return True
            return False

        if self.way == "fork":
            wait_until("the writing child's end", lambda: not alive())

    def restart(self):
        process = self.start([f"{self.build}/bin/ckpt-restart", "--json", self.images], clean_environment(), "restart")
        wait_until("restart", lambda: re.search('"ok".*\n', self.said("restart")) or process.poll() is not None)  # a whole line
        line = next((l for l in self.said("restart").splitlines() if '"ok"' in l), "")
        if not line or not json.loads(line)["ok"]:
            raise Failure(f"ckpt-restart: {self.said('restart')}")
        pid = self.restarted = json.loads(line)["outer_pid"]
        # On, with a checkpoint: what the killed one left is no hindrance, and goes.
        answer = self.ckpt("now", pid)
        if answer.returncode != 0:
            raise Failure(f"the restarted program's checkpoint: {answer.stderr.strip()}{self.log()}")
        left = glob.glob(f"{self.images}/*.tmp")
        if left:
            raise Failure(f"left over: {left}")
        with open(f"{self.directory}/end", "w", encoding="ascii"):
            pass
        wait_until("the program's end", lambda: process.poll() is not None)
        self.restarted = None
        out = self.said("out")
        if process.returncode != 0 or out != REFERENCE:
            raise Failure(f"exit {process.returncode}, output {out!r}, uninterrupted {REFERENCE!r}")

    def end(self):
        if self.restarted:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.restarted, signal.SIGKILL)
        for process in self.running:
            if process.poll() is None:
                process.kill()
            process.wait()


REFERENCE = ""


def run_reference(build, base):
    global REFERENCE
    directory = tempfile.mkdtemp(prefix="reference.", dir=base)
    with open(f"{directory}/end", "w", encoding="ascii"):
        pass
    done = subprocess.run([f"{build}/tests/points/points_rounds"], cwd=directory, capture_output=True, text=True,
                          timeout=LIMIT, env=clean_environment(), check=True)
    REFERENCE = done.stdout
    shutil.rmtree(directory)


def run_one(build, point, way, action, base):
    # An attempt that is given up comes to its points a second time; then the count is wrong, and nothing was shown.
    for _ in range(4):
        trial = Trial(build, point, way, action, base)
        try:
            trial.run()
            shutil.rmtree(trial.directory)
            return True
        except Spoiled:
            shutil.rmtree(trial.directory, ignore_errors=True)
        except (Failure, subprocess.TimeoutExpired) as e:
            print(f"failed {point} {way} {action}: {e}\n  kept in {trial.directory}", flush=True)
            return False
        finally:
            trial.end()
    print(f"failed {point} {way} {action}: each time an attempt was given up before the point", flush=True)
    return False


def trials(points, ways):
    chosen = []
    for point, those in POINTS.items():
        those = [w for w in those if w in ways]
        if point not in points or not those:
            continue
        chosen += [(point, way, "kill") for way in those]
        if "fork" in those and point in IN_CHILD:
            chosen.append((point, "fork", "leave"))
    return chosen


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default=f"{SOURCE}/build")
    parser.add_argument("--ways", default=",".join(ALL))
    parser.add_argument("--points", default=",".join(POINTS))
    arguments = parser.parse_args()
    build = os.path.abspath(arguments.build)
    if os.geteuid() != 0:
        print("not root: full userfaultfd may not be allowed here")
        return 77
    if points_in_source() != set(POINTS):
        print(f"points of the source that are not in POINTS, or the reverse: {sorted(points_in_source() ^ set(POINTS))}")
        return 1
    parent = f"{build}/tests/points"
    base = tempfile.mkdtemp(prefix="run.", dir=parent)
    run_reference(build, base)
    chosen = trials(arguments.points.split(","), arguments.ways.split(","))
    begin = time.monotonic()
    failed = sum(not run_one(build, *trial, base) for trial in chosen)
    if not os.listdir(base):
        os.rmdir(base)
    print(f"{len(chosen) - failed} passed, {failed} failed, {time.monotonic() - begin:.0f} s")
    return 1 if failed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
