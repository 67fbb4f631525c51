"""One run of a tree of processes: started, checkpointed, killed, brought back. For the tests beside this file."""
import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
from own_network import enter_own_ipc, enter_own_network  # noqa: E402,F401  pylint: disable=unused-import

BUILD = os.path.abspath(os.environ["CKPT_BUILD"])
CKPT, RESTART = (os.path.join(BUILD, "bin", n) for n in ("ckpt", "ckpt-restart"))
LONG = os.environ.get("CKPT_LONG") == "1"
NOBODY = 65534
STOP_TIMEOUT = "30s"  # of one thread: the host may take a processor away for seconds
SIGNAL = 60  # that of a checkpoint, where nobody has chosen another
PASSES = re.compile("what was written .* is not read yet")
PATIENCE = float(os.environ.get("CKPT_PATIENCE", "90"))  # seconds, for anything


def environment(**more):
    # Python unbuffered writes a line in two pieces, between which another process's line may come.
    clean = {k: v for k, v in os.environ.items() if not k.startswith("CKPT") and k not in ("LD_PRELOAD", "PYTHONUNBUFFERED")}
    clean.update(LC_ALL="C", CKPT_STOP_TIMEOUT=STOP_TIMEOUT)
    # NAME=VALUE, by spaces: a test tried under other settings (tests/restart/sweep_settings.py).
    clean.update(pair.split("=", 1) for pair in clean.pop("JOB_TREE_SETTINGS", "").split())
    clean.update(more)
    return clean


def wait_for(condition, what):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited in vain for {what}")
        time.sleep(0.01)


class Tree:
    """One run of a program in a directory of its own."""

    def __init__(self, name, command, prepare=None, uid=0, group_leader=False):
        self.name, self.command, self.uid = name, command, uid
        self.directory = tempfile.mkdtemp(prefix=f"ckpt-jobs-{name}-")
        self.work, self.images = (os.path.join(self.directory, n) for n in ("work", "images"))
        os.mkdir(self.work)
        os.mkdir(self.images, 0o700)
        if prepare is not None:
            prepare(self.work)
        if uid:
            subprocess.run(["chown", "-R", f"{uid}:{uid}", self.directory], check=True)
            os.chmod(self.directory, 0o755)
        self.group_leader = group_leader
        self.child = None
        self.cost = {}  # what the last checkpoint has cost, as ckpt now says
        self.log = []

    groups = "--clear-groups"  # an argument of setpriv, where it runs as a user

    def start(self, command, append):
        """Output goes to files; the program has a session (or only a group) of its own."""
        as_user = ["setpriv", f"--reuid={self.uid}", f"--regid={self.uid}", self.groups] if self.uid else []
        if not append:
            open(os.path.join(self.directory, "err"), "wb").close()
        # What the program says after a restart must not overwrite what ckpt-restart has said.
        out, err = open(os.path.join(self.directory, "out"), "ab" if append else "wb"), open(os.path.join(self.directory, "err"), "ab")
        if self.uid:
            for f in (out, err):
                os.fchown(f.fileno(), self.uid, self.uid)
        kind = {"process_group": 0} if self.group_leader and sys.version_info >= (3, 11) else {"start_new_session": True}
        self.child = subprocess.Popen(as_user + command, cwd=self.work, env=environment(HOME=self.work),
                                      stdin=subprocess.DEVNULL, stdout=out, stderr=err, **kind)
        out.close()
        err.close()
        self.log.append(command)

    def run(self):
        """Returns when the program can be asked for a checkpoint: on a busy machine that may take a second."""
        self.start([CKPT, "run", "--dir", self.images, "--stop-timeout", STOP_TIMEOUT, "--", *self.command], False)
        deadline = time.monotonic() + PATIENCE
        while self.child.poll() is None and not handles_requests(self.child.pid):
            if time.monotonic() > deadline:
                raise AssertionError(f"{self.command[0]} never handled the checkpoint signal: {self.said()}")
            time.sleep(0.002)

    def read(self, name):
        with open(os.path.join(self.directory, name), "rb") as f:
            return f.read()

    def output(self):
        return self.read("out")

    def checkpoint(self, pid, may_end=False):
        """The directory of the job, or the image if it has one process by now; None: it has ended, as it may."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                done = subprocess.run([CKPT, "now", "--json", str(pid)], capture_output=True, text=True, timeout=PATIENCE,
                                      env=environment(), check=False)
            except subprocess.TimeoutExpired as error:
                raise AssertionError(f"ckpt now {pid} does not end:\n{processes_below()}\n{self.said()}") from error
            if done.returncode == 0:
                break
            ended = self.child.poll() is not None or "no process" in done.stderr.lower() or done.returncode == 67
            if ended and may_end:
                return None
            why = reasons(done.stdout)
            # Bytes in a terminal pass once who reads them has had its turn; a program between exec and the library's start
            # handles the signal soon. Both messages say that one is to ask again.
            if not ended and PASSES.search(why + done.stderr) and time.monotonic() < deadline:
                continue
            raise AssertionError(f"ckpt now {pid}: exit code {done.returncode}: {done.stderr}{why}\n"
                                 f"the program: {self.child.returncode}\n{processes_below()}\n{self.said()}")
        self.cost = json.loads(done.stdout)
        image = self.cost["image"]
        return os.path.dirname(image) if os.path.dirname(image).endswith(".job") else image

    def kill(self):
        kill_all_below(self.child)

    @staticmethod
    def stop():
        """As kill -STOP of the whole job. Its files do not change any more."""
        stop_all_below(time.monotonic() + PATIENCE)

    @staticmethod
    def go_on():
        """What came back stopped: all of it is when the restart says that it is done."""
        for pid in sorted(descendants(os.getpid())):
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                pass

    def restart(self, image, *options):
        # The restart of the same image before has reported the same job. Each tells its times, so no two lines are equal.
        before = self.read("err").splitlines(keepends=True)
        self.start([RESTART, *options, "--json", image], True)
        deadline = time.monotonic() + PATIENCE
        while True:
            # First: what it says at its end is there then.
            ended = self.child.poll() is not None
            text = self.read("err")
            for line in text.splitlines(keepends=True):
                if line.startswith(b"{") and line.endswith(b"\n") and line not in before:
                    report = json.loads(line)
                    if report.get("job") == image or report.get("image") == image or not report["ok"]:
                        if not report["ok"]:
                            raise AssertionError(f"restart of {image}: {line.decode(errors='replace')}")
                        return report
            if ended:
                raise AssertionError(f"restart of {image}: ended with {self.child.returncode}: {text.decode(errors='replace')}")
            if time.monotonic() > deadline:
                raise AssertionError(f"restart of {image}: nothing happened: {text.decode(errors='replace')}")
            time.sleep(0.01)

    def finish(self):
        try:
            code = self.child.wait(PATIENCE)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"{self.name} does not end:\n{processes_below()}\n{self.said()}") from error
        return code, self.output()

    def said(self):
        """What the program and the library in it have said: for a failure."""
        log = os.path.join(self.images, "ckpt_rt.log")
        lines = []
        for name in [os.path.join(self.directory, "out"), os.path.join(self.directory, "err"), log]:
            if os.path.exists(name):
                with open(name, encoding="utf-8", errors="replace") as f:
                    last = [line.rstrip("\n")[:300] for line in f][-6:]
                lines += [f"{os.path.basename(name)}: {line}" for line in last]
        return "\n".join(lines)

    def close(self, failed):
        if self.child is not None and self.child.poll() is None:
            self.kill()
        if failed:
            print("kept:", self.directory, file=sys.stderr)
        else:
            shutil.rmtree(self.directory, ignore_errors=True)


def reasons(answer):
    """Why no restart can be."""
    return "; ".join(json.loads(answer).get("why_not_restartable", [])) if answer.startswith("{") else ""


def root_of(report):
    """The process of the first program, as this pid namespace numbers it."""
    pids = [p for p in report.get("outer_pids", [report.get("outer_pid")]) if p]
    index = report.get("processes", [report["pid"]]).index(report["pid"])
    return pids[index] if index < len(pids) else pids[0]


def handles_requests(pid):
    """The library in it has installed its handler: exec takes it away, the constructor brings it back."""
    try:
        with open(f"/proc/{pid}/status") as f:
            caught = next((int(line.split()[1], 16) for line in f if line.startswith("SigCgt:")), 0)
    except OSError:
        return False
    return caught >> (SIGNAL - 1) & 1 == 1


def state_of(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            text = f.read()
    except (FileNotFoundError, ProcessLookupError):
        return "?"
    return text[text.rindex(")") + 2]


def name_of(pid):
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8") as f:
            return f.read().strip()
    except (FileNotFoundError, ProcessLookupError):
        return "?"


def processes_below():
    """A line for each thread of ours: where it waits, and whether its group is in the foreground."""
    lines = []
    for pid in sorted(descendants(os.getpid())):
        for tid in sorted(os.listdir(f"/proc/{pid}/task") if os.path.exists(f"/proc/{pid}/task") else []):
            at = f"/proc/{pid}/task/{tid}"
            try:
                with open(f"{at}/stat") as stat, open(f"{at}/wchan") as wchan, open(f"{at}/syscall") as call:
                    name, fields = stat.read().split("(", 1)[1].rsplit(")", 1)
                    state, ppid, group, _, _, foreground = fields.split()[:6]
                    lines.append(f"{pid}/{tid} ({name}) {state} parent {ppid} group {group} foreground {foreground} in {wchan.read()}, "
                                 f"call {' '.join(call.read().split()[:4])}")
            except OSError:
                continue
    return "\n".join(lines)


def is_restarter(pid):
    """Does it still run ckpt-restart's own code?"""
    try:
        return "ckpt-restart" in os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return False


def descendants(root):
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as f:
                    text = f.read()
            except (FileNotFoundError, ProcessLookupError):
                continue
            parents[int(entry)] = int(text[text.rindex(")") + 2:].split()[1])
    found = {root}
    while True:
        more = {p for p, parent in parents.items() if parent in found} - found
        if not more:
            return found - {root}
        found |= more


def stop_all_below(deadline):
    """All processes below this one stand, or the time is over."""
    while time.monotonic() < deadline:
        below = [p for p in descendants(os.getpid()) if state_of(p) not in "Z?"]
        for pid in below:
            try:
                os.kill(pid, signal.SIGSTOP)
            except ProcessLookupError:
                pass
        # D: in vfork(), whose child may stand already. It stops before it runs code of its own again. t: its debugger stands.
        if all(state_of(p) in "DTtZ?" for p in below) and set(below) >= {
                p for p in descendants(os.getpid()) if state_of(p) not in "Z?"}:
            break


def kill_all_below(child, patience=PATIENCE):
    """Kills all processes below this one, none seeing another die. Orphans are ours: adopt_orphans()."""
    deadline = time.monotonic() + patience
    stop_all_below(deadline)
    while time.monotonic() < deadline:
        below = descendants(os.getpid())
        if not below:
            break
        for pid in below:
            try:
                os.kill(pid, signal.SIGKILL)
                if pid != child.pid:
                    os.waitpid(pid, os.WNOHANG)
            except (ProcessLookupError, ChildProcessError):
                pass
        child.poll()
    child.wait(patience)


def adopt_orphans():
    PR_SET_CHILD_SUBREAPER = 36
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def check_refused(test, tree, image, code, *words, options=()):
    """ckpt-restart says why it does not bring the job back, ends with that code, and leaves nothing."""
    besides = descendants(os.getpid())
    done = subprocess.run([RESTART, *options, image], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=PATIENCE, cwd=tree.work, env=environment(), check=False)
    test.assertEqual(done.returncode, code, done.stderr)
    test.assertRegex(done.stderr.splitlines()[-1], "^ckpt-restart: ")
    for word in words:
        test.assertIn(word, done.stderr)
    # Nobody is left: all were below it, and so would be below us.
    test.assertEqual(descendants(os.getpid()) - besides, set())
