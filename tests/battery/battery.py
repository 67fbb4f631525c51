#!/usr/bin/env python3
"""Small programs of ordinary kinds: checkpoint at some instant, kill -9 of all processes, restart, same output as uninterrupted.

  battery.py                       all programs, all ways; a table of what came of them
  battery.py threads.churn --ways once,user --seed 7 --jobs 4
  battery.py --quick               a handful, once each
  battery.py --list
Ways: once (a checkpoint, killed, restarted), twice (the same again after the restart), user (once, as uid 65534).
Results: right; note (right, and the checkpoint had said something); said (other output, and the checkpoint had said something:
look whether it is that); refused (`ckpt now` said why); WRONG (nothing was said); HANGS; LATE (durable, and then refused by the
restart); NEW (said or refused, with other words than EXPECTED has, or none there). The last four are failures.
Exit codes: 0 no failure; 1 failures; 77 nothing could be run.
"""
import argparse
import concurrent.futures
import ctypes
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True  # the source directory stays as it is
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "support"))
from own_network import enter_own_ipc, enter_own_network  # noqa: E402
BUILD = os.path.abspath(os.environ.get("CKPT_BUILD", "build"))
BINARIES = os.environ.get("CKPT_BATTERY_PROGRAMS", os.path.join(BUILD, "tests", "battery"))
CKPT, RESTART = (os.path.join(BUILD, "bin", name) for name in ("ckpt", "ckpt-restart"))
NOBODY = 65534
PATIENCE = 100.0  # seconds; a port that an ordinary user wants again is free after 60
QUICK = {"threads.mutex_types": "once", "signals.posix_timers": "twice", "trees.pipeline": "once", "memory.keys_of_access": "user", "memory.keys_of_threads": "twice"}
WAYS = ("once", "twice", "user")
FAILURES = ("WRONG", "HANGS", "LATE", "NEW")
# What does not come back, and what the checkpoint has to say of it (docs/limits.md).
EXPECTED = {
    "ipc.messages_waiting": "",
    "ipc.shared_sysv": "comes back with id",
    "memory.own_faults": "userfaultfd",
    "memory.secret": "secretmem",
    "process.namespaces": "namespaces of its own",
    "process.settings": "PR_SET_PDEATHSIG",
    "sockets.deferred_clients": "not accepted yet",
    "sockets.queue_of_clients": "not accepted yet",
    "sharing.clone_fs": "CLONE_FS",
    "sharing.clone_vm": "",
}


class Result(Exception):
    def __init__(self, kind, words=""):
        super().__init__(kind)
        self.kind, self.words = kind, words


def programs():
    """name -> command."""
    found = {}
    for entry in sorted(os.listdir(os.path.join(HERE, "programs"))):
        subject, end = os.path.splitext(entry)
        path = os.path.join(HERE, "programs", entry)
        if end == ".c":
            binary = os.path.join(BINARIES, f"battery_{subject}")
            if not os.path.exists(binary):
                continue
            for name in subprocess.run([binary], capture_output=True, text=True, check=True).stdout.split():
                found[f"{subject}.{name}"] = [binary, name]
        elif end in (".py", ".sh"):
            found[f"{end[1:]}.{subject}"] = ["/usr/bin/python3" if end == ".py" else "bash", path]
    return found


def descendants():
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as f:
                    parents[int(entry)] = int(f.read().rsplit(")", 1)[1].split()[1])
            except OSError:
                pass
    found, grown = {os.getpid()}, True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        found |= more
        grown = bool(more)
    return found - {os.getpid()}


def kill_all():
    """The caller is a subreaper: all that the program has started is below it."""
    while True:
        below = descendants()
        if not below:
            return
        # Stopped first: none of them learns of another one's end, as when the machine goes.
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in below:
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    pass
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        time.sleep(0.005)


def below_now():
    lines = []
    for pid in sorted(descendants()):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                words = f.read().replace(b"\0", b" ").decode(errors="replace")[:80]
            with open(f"/proc/{pid}/wchan", encoding="ascii") as f:
                where = f.read()
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as f:
                lines.append(f"{pid} {f.read().rsplit(')', 1)[1].split()[0]} {where} {words}")
        except OSError:
            pass
    return " | ".join(lines)


def reasons(cost):
    """Of an image that cannot be restarted: what `ckpt now` said beside its figures."""
    return cost.get("why_not_restartable", "")


def root_of(said):
    """The process of the first program, as this pid namespace numbers it."""
    pids = [pid for pid in said.get("outer_pids", [said.get("outer_pid")]) if pid]
    index = said.get("processes", [said["pid"]]).index(said["pid"])
    return pids[index] if index < len(pids) else pids[0]


class Run:
    def __init__(self, name, command, way, seed, faults=None):
        self.name, self.command, self.user = name, command, NOBODY if way == "user" else 0
        self.lives = 2 if way == "twice" else 1
        self.random = random.Random(f"{name} {way} {seed}")
        self.directory = tempfile.mkdtemp(prefix=f"battery.{name}.{way}.")
        self.options = ["--faults", faults] if faults else []
        self.said = []
        os.chmod(self.directory, 0o755)

    def path(self, *names):
        return os.path.join(self.directory, *names)

    def start(self, command, life, kind):
        work = self.path(kind)
        if life == 0:
            os.mkdir(work)
            os.chown(work, self.user, self.user)
        if not os.path.exists(self.path("images")):
            os.mkdir(self.path("images"), 0o700)
            os.chown(self.path("images"), self.user, self.user)
        env = {k: v for k, v in os.environ.items() if not k.startswith(("CKPT", "LD_PRELOAD", "PYTHONUNBUFFERED"))}
        env.update(LC_ALL="C", HOME=work, CKPT_STOP_TIMEOUT="30s")
        as_user = ["setpriv", f"--reuid={self.user}", f"--regid={self.user}", "--clear-groups"] if self.user else []
        with open(self.path(f"{kind}.out"), "ab") as out, open(self.path(f"{kind}.err"), "ab") as err:
            for f in (out, err):
                os.fchown(f.fileno(), self.user, self.user)
            return subprocess.Popen(as_user + command, cwd=work, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                    start_new_session=True)

    def read(self, name):
        try:
            with open(self.path(name), "rb") as f:
                return f.read()
        except OSError:
            return b""

    def finish(self, child, kind):
        try:
            code = child.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise Result("HANGS", f"{kind}: after {self.read(kind + '.out')[-60:]!r}: {below_now()}") from None
        return code, self.read(kind + ".out"), self.read(kind + ".err")

    def wait_for_lines(self, child, count):
        deadline = time.monotonic() + PATIENCE
        while self.read("run.out").count(b"\n") < count and child.poll() is None:
            if time.monotonic() > deadline:
                raise Result("HANGS", f"no line {count}: {self.read('run.out')[-60:]!r} {self.read('run.err')[-200:]!r} {below_now()}")
            time.sleep(0.003)

    def checkpoint(self, pid):
        try:
            done = subprocess.run([CKPT, "now", "--json", str(pid)], capture_output=True, text=True, timeout=PATIENCE, check=False)
        except subprocess.TimeoutExpired:
            raise Result("HANGS", f"ckpt now: {below_now()}") from None
        try:
            cost = json.loads(done.stdout)
        except ValueError:
            cost = {}
        self.said += [str(note) for note in cost.get("notes", [])]
        if done.returncode == 67:
            return False  # it has ended
        if done.returncode != 0:
            raise Result("refused", f"now {done.returncode}: {done.stderr.strip()} {reasons(cost)} {self.said}")
        return True

    def images(self):
        """A program that gives up the rights of root has its images in a directory of the later user."""
        below = [entry for entry in os.listdir(self.path("images")) if entry.startswith("user-")]
        return self.path("images", *below)

    def bring_back(self, life):
        end = len(self.read("run.err"))
        child = self.start([RESTART, "--json", *(["--trust"] if "user-" in self.images() else []), self.images()], life, "run")
        deadline = time.monotonic() + PATIENCE
        while True:
            ended = child.poll() is not None
            for line in self.read("run.err")[end:].decode(errors="replace").splitlines():
                if line.startswith("{") and '"ok"' in line:
                    try:
                        said = json.loads(line)
                    except ValueError:
                        continue  # half of it
                    self.said += [f"restart: {note}" for note in said.get("notes", []) if "has grown since" not in note]
                    if said["ok"]:
                        return child, root_of(said)
                    raise Result("LATE", f"restart {said['exit_code']}: {said['error']} {self.said}")
            if ended:
                raise Result("LATE", f"restart ended {child.returncode}: {self.read('run.err')[end:][-300:]!r} {self.said}")
            if time.monotonic() > deadline:
                raise Result("HANGS", f"restart: {below_now()} {self.said}")
            time.sleep(0.003)

    def run(self):
        plain = self.finish(self.start(self.command, 0, "plain"), "plain")
        kill_all()
        lines = plain[1].count(b"\n")
        if plain[0] != 0 or not plain[1].endswith(b"ok\n"):
            raise Result("plain", f"ends with {plain[0]}: {plain[1][-200:]!r} {plain[2][-200:]!r}")
        child = self.start([CKPT, "run", *self.options, "--dir", self.path("images"), "--", *self.command], 0, "run")
        pid = child.pid
        for life in range(self.lives):
            at = 0
            if lines > 9:
                at = self.random.randint(1 + lines * life // (self.lives + 1), lines * (life + 1) // (self.lives + 1))
                self.wait_for_lines(child, at)
            else:
                time.sleep(self.random.uniform(0.2, 0.9))  # it says nothing before its end
            time.sleep(self.random.uniform(0, 0.035))  # the instant shall be any
            if child.poll() is not None:
                kind = "early" if child.returncode == 0 else "said" if self.said else "WRONG"
                raise Result(kind, f"ended {child.returncode} before checkpoint {life}: "
                             f"{self.read('run.out')[-200:]!r} {self.read('run.err')[-300:]!r} {self.said}")
            if not self.checkpoint(pid):
                code, out, _ = self.finish(child, "run")
                kind = "early" if (code, out) == plain[:2] else "WRONG"
                raise Result(kind, f"ended, no checkpoint: {code}, {out[-160:]!r} {self.said}")
            kill_all()
            child, pid = self.bring_back(life + 1)
        code, out, _ = self.finish(child, "run")
        kill_all()
        if (code, out) == plain[:2]:
            raise Result("note" if self.said else "right", " ".join(self.said))
        kind = "said" if self.said else "WRONG"
        raise Result(kind, f"exit {code}, at line {at} of {lines}; ends {out[-160:]!r}; {self.read('run.err')[-300:]!r}; notes {self.said}")


def one(name, command, way, seed, faults):
    """In a process of its own. One line of JSON."""
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    enter_own_network()
    enter_own_ipc()
    run = Run(name, command, way, seed, faults)
    try:
        run.run()
    except Result as result:
        if result.kind in ("said", "refused") and (name not in EXPECTED or EXPECTED[name] not in result.words):
            result.kind = "NEW"
        bad = result.kind in FAILURES
        kill_all()
        if not bad:
            shutil.rmtree(run.directory, ignore_errors=True)
        print(json.dumps([result.kind, result.words + (f" [{run.directory}]" if bad else "")]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="a program, or a subject")
    parser.add_argument("--ways", default="once")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--faults", help="the back end, as of ckpt run")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--one", action="store_true")
    arguments = parser.parse_args()
    table = programs()
    if arguments.one:
        one(arguments.names[0], table[arguments.names[0]], arguments.ways, arguments.seed, arguments.faults)
        return 0
    if arguments.list:
        print("\n".join(table))
        return 0
    wanted = arguments.names
    names = [name for name in table if not wanted or name in wanted or name.split(".")[0] in wanted]
    ways = arguments.ways.split(",") if arguments.ways != "all" else WAYS
    if os.geteuid() != 0:
        ways = [way for way in ways if way != "user"]
    if not names or not os.path.exists(CKPT):
        return 77
    if not arguments.quick and os.environ.get("CKPT_LONG") != "1":
        print("CKPT_LONG=1 runs it")
        return 77
    tasks = list(QUICK.items()) if arguments.quick else [(name, way) for name in names for way in ways]
    if os.geteuid() != 0:
        tasks = [(name, "once" if way == "user" else way) for name, way in tasks]
    counts, failed = {}, []

    def run(name, way):
        words = [sys.executable, os.path.abspath(__file__), "--one", name, "--ways", way, "--seed", arguments.seed]
        words += ["--faults", arguments.faults] if arguments.faults else []
        done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
        try:
            return name, way, *json.loads(done.stdout)
        except ValueError:
            return name, way, "WRONG", f"the driver: {done.stdout[-300:]} {done.stderr[-500:]}"

    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for done in concurrent.futures.as_completed([pool.submit(run, *task) for task in tasks]):
            name, way, kind, words = done.result()
            print(f"{kind:8} {name} {way} {words}", flush=True)
            counts[kind] = counts.get(kind, 0) + 1
            if kind in FAILURES or kind == "plain":
                failed.append(f"{name}/{way}")
    print(counts, "failed:" if failed else "", *failed)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
