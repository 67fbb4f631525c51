#!/usr/bin/env python3
"""Checkpoints of jobs as one stream: to the command of CKPT_TO, out of `ckpt cat`, into `ckpt-restart`."""

import glob
import json
import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from job_tree import CKPT, NOBODY, PATIENCE, RESTART, STOP_TIMEOUT, Tree, environment, processes_below
from odd_objects import wait_for

OK, USAGE, DAMAGED, NO_PROCESS, IO = 0, 64, 65, 67, 74

# Three processes, a pipe between them with bytes in it, and memory that each checks.
PROGRAM = r"""
import array, fcntl, os, random, termios, time, zlib
def memory(seed):
    return bytearray(b''.join(random.Random(seed * 1000 + i).randbytes(4096) for i in range(512)))
read, write = os.pipe()
children = []
for seed in (1, 2):
    pid = os.fork()
    if pid == 0:
        mine = memory(seed)
        os.write(write, b'early %d;' % seed)
        while not os.path.exists('go'): time.sleep(0.005)
        os.write(write, b'late %d %d;' % (seed, zlib.crc32(mine)))
        os._exit(seed)
    children.append(pid)
mine = memory(3)
waiting = array.array('i', [0])
while waiting[0] < len('early 1;early 2;'):
    fcntl.ioctl(read, termios.FIONREAD, waiting)
    time.sleep(0.005)
open('before', 'w').close()
while not os.path.exists('go'): time.sleep(0.005)
codes = [os.waitstatus_to_exitcode(os.waitpid(c, 0)[1]) for c in children]
os.close(write)
said = b''
while (more := os.read(read, 4096)): said += more
print(sorted(said.decode().split(';')), codes, zlib.crc32(mine), flush=True)
"""


def expected():
    import zlib
    crc = lambda seed: zlib.crc32(b"".join(random.Random(seed * 1000 + i).randbytes(4096) for i in range(512)))
    said = ["", "early 1", "early 2", f"late 1 {crc(1)}", f"late 2 {crc(2)}"]
    return f"{said} [1, 2] {crc(3)}"


class StreamedTree(Tree):
    """Its checkpoints go to a command, which writes them to `streams`."""
    def __init__(self, name, command="cat > \"$STREAMS/$CKPT_IMAGE_NAME\"", options=(), uid=0, point=None):
        ahead = ["env", f"CKPT_TEST_POINT={point}"] if point else []
        super().__init__(name, [*ahead, "/usr/bin/python3", "-c", PROGRAM], uid=uid)
        self.streams = os.path.join(self.directory, "streams")
        os.mkdir(self.streams)
        if uid:
            os.chown(self.streams, uid, uid)
        self.options = [*options, "--to", f"STREAMS='{self.streams}'; {command}"]

    def run(self):
        self.start([CKPT, "run", "--dir", self.images, "--stop-timeout", STOP_TIMEOUT, *self.options, "--", *self.command], False)
        wait_for(os.path.join(self.work, "before"), self)

    def now(self, code=OK):
        done = subprocess.run([CKPT, "now", str(self.child.pid)], capture_output=True, text=True, timeout=PATIENCE, env=environment(), check=False)
        if done.returncode != code:
            raise AssertionError(f"ckpt now: {done.returncode}: {done.stderr}\n{self.said()}")
        return done.stdout if code == OK else done.stderr

    def stream(self):
        newest, = glob.glob(os.path.join(self.streams, "*.job"))
        return newest

def go(tree):
    with open(os.path.join(tree.work, "go"), "w", encoding="ascii"):
        pass


class Streamed(unittest.TestCase):
    def setUp(self):
        self.spools = tempfile.mkdtemp(prefix="ckpt-spools-")
        self.addCleanup(os.rmdir, self.spools)  # nothing is left in it
        before = os.environ.get("TMPDIR")
        os.environ["TMPDIR"] = self.spools
        self.addCleanup(lambda: os.environ.pop("TMPDIR") if before is None else os.environ.update(TMPDIR=before))
        self.tree = None

    def begin(self, *arguments, **how):
        self.tree = tree = StreamedTree(*arguments, **how)
        self.addCleanup(lambda: tree.close(False))
        tree.run()
        return tree

    def comes_back(self, tree, stream, how="file"):
        """The job, from a stream, to its end."""
        go(tree)
        if how == "file":
            command = [RESTART, stream]
            source = subprocess.DEVNULL
        else:
            command = [RESTART, "-"]
            source = subprocess.Popen(["cat", stream], stdout=subprocess.PIPE)
            self.addCleanup(source.wait)
            source = source.stdout
        done = subprocess.run(command, stdin=source, capture_output=True, text=True, timeout=PATIENCE, cwd=tree.work, env=environment(), check=False)
        if source is not subprocess.DEVNULL:
            source.close()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(expected(), tree.output().decode() + done.stdout)
        with open(os.path.join(tree.directory, "out"), "w", encoding="ascii"):
            pass
        os.unlink(os.path.join(tree.work, "go"))

    def test_every_mode(self):
        for options in (["--mode", "realtime"], ["--mode", "realtime-large"], ["--mode", "fork"], ["--mode", "concurrent"],
                        ["--mode", "sequential"], ["--faults", "mprotect"], ["--compress", "lz4"]):
            with self.subTest(options=options):
                tree = self.begin("streamed" + "".join(options), options=options)
                self.assertIn("3 processes", tree.now())
                tree.kill()
                for how in ("file", "pipe"):
                    self.comes_back(tree, tree.stream(), how)
                self.assertEqual(sorted(os.listdir(tree.images)), [".streamed", "ckpt_rt.log"])

    @unittest.skipUnless(os.geteuid() == 0, "needs root to become another user")
    def test_as_user(self):
        os.chmod(self.spools, 0o777)
        tree = self.begin("streamed-user", uid=NOBODY)
        tree.now()
        tree.kill()
        go(tree)
        tree.start([RESTART, tree.stream()], True)
        code, output = tree.finish()
        self.assertEqual((code, output.decode().strip()), (0, expected()), tree.said())

    def test_numbers_go_on(self):
        """Nothing is left in the directory that would tell, and each time another process leads."""
        tree = self.begin("streamed-numbers")
        tree.now()
        pids = [tree.child.pid, *json.loads(subprocess.run([CKPT, "show", "--json", tree.stream()], capture_output=True, text=True,
                                                            check=True).stdout)["members"]]
        pids = [p if isinstance(p, int) else p["pid"] for p in pids]
        for pid in pids[1:]:
            subprocess.run([CKPT, "now", str(pid)], check=True, capture_output=True, env=environment())
        names = sorted(os.path.basename(p) for p in glob.glob(os.path.join(tree.streams, "*.job")))
        self.assertEqual([n.split(".")[1] for n in names], [f"{i + 1:06}" for i in range(len(names))])
        self.assertEqual(len(names), 4)
        tree.kill()
        self.comes_back(tree, os.path.join(tree.streams, names[-1]))

    def test_commands_that_fail(self):
        """The checkpoint does not count, and the job goes on."""
        for command, words in (("cat > /dev/null; exit 3", "status 3"), ("exit 4", "status 4"), ("kill -9 $$", "signal 9"),
                               ("head -c 100000 > /dev/null; exit 5", "status 5")):
            with self.subTest(command=command):
                tree = self.begin("streamed-failed", command)
                for _ in range(2):
                    self.assertIn(words, tree.now(IO))
                go(tree)
                code, output = tree.finish()
                self.assertEqual((code, output.decode().strip()), (0, expected()), tree.said())

    def test_killed_while_it_streams(self):
        """Any process: what the command got is no checkpoint, or one that has all; the others go on."""
        for victim, mode in ((0, "auto"), (1, "auto"), (2, "auto"), (0, "fork"), (2, "fork")):
            with self.subTest(victim=victim, mode=mode):
                tree = self.begin("streamed-killed", 'F="$STREAMS/$CKPT_IMAGE_NAME"; head -c 3000000 > "$F"; touch "$STREAMS/begun"; '
                                  'while test ! -e "$STREAMS/killed"; do sleep 0.01; done; cat >> "$F"', options=["--mode", mode])
                asked = subprocess.Popen([CKPT, "now", str(tree.child.pid)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                         env=environment())
                wait_for(os.path.join(tree.streams, "begun"), tree)
                # Not the children that write for them in mode fork, nor the parent of the command.
                members = sorted(int(p) for p in os.listdir("/proc") if p.isdigit() and parent_of(int(p)) == tree.child.pid and
                                 name_of(int(p)) == "python3")[:2]
                self.assertEqual(len(members), 2)
                os.kill([tree.child.pid, *members][victim], signal.SIGKILL)
                if victim == 0:
                    # They wait for room in the pipe, which the command does not make.
                    deadline = time.monotonic() + PATIENCE
                    while any(threads_of_ours(m) for m in members) and time.monotonic() < deadline:
                        time.sleep(0.01)
                    self.assertFalse(any(threads_of_ours(m) for m in members), processes_below())
                with open(os.path.join(tree.streams, "killed"), "w", encoding="ascii"):
                    pass
                said = asked.communicate(timeout=PATIENCE)
                # Of a member the checkpoint is taken again, without it.
                self.assertEqual(asked.returncode == 0, victim != 0, said)
                if victim != 0:
                    subprocess.run([CKPT, "now", str(tree.child.pid)], check=True, capture_output=True, timeout=PATIENCE, env=environment())
                # What was given up is left to the command, and is no checkpoint; the last two count.
                streams = sorted(glob.glob(os.path.join(tree.streams, "*.job")))
                codes = [subprocess.run([CKPT, "verify", s], capture_output=True, env=environment(), check=False).returncode for s in streams]
                good = 2 if victim != 0 else 0
                self.assertEqual(codes, [DAMAGED] * (len(codes) - good) + [OK] * good)
                tree.kill()  # those that the first one has left, too

    def test_killed_when_all_is_sent(self):
        """The process that leads, before the command has said that it has all: nobody is told so, and what the command has is whole."""
        tree = self.begin("streamed-sent", point="coordinator.streamed=kill")
        self.assertIn("exited before it answered", tree.now(code=NO_PROCESS))
        verified = None
        deadline = time.monotonic() + PATIENCE
        while verified is None or (verified.returncode != 0 and time.monotonic() < deadline):  # the command reads on to the end
            verified = subprocess.run([CKPT, "verify", tree.stream()], capture_output=True, text=True, env=environment(), check=False)
        self.assertEqual(verified.returncode, 0, verified.stderr)
        tree.kill()
        self.comes_back(tree, tree.stream())

    def test_a_member_stopped_with_the_turn(self):
        """It is not waited for as long as the command has room: all is taken again, and it is in that as it was."""
        tree = self.begin("streamed-stopped", 'F="$STREAMS/$CKPT_IMAGE_NAME"; head -c 3000000 > "$F"; touch "$STREAMS/begun"; '
                          'while test ! -e "$STREAMS/stopped"; do sleep 0.01; done; cat >> "$F"')
        asked = subprocess.Popen([CKPT, "now", str(tree.child.pid)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
        wait_for(os.path.join(tree.streams, "begun"), tree)
        for pid in [int(p) for p in os.listdir("/proc") if p.isdigit() and parent_of(int(p)) == tree.child.pid and name_of(int(p)) == "python3"]:
            os.kill(pid, signal.SIGSTOP)
        with open(os.path.join(tree.streams, "stopped"), "w", encoding="ascii"):
            pass
        said = asked.communicate(timeout=PATIENCE)
        self.assertEqual(asked.returncode, 0, said)
        newest = sorted(glob.glob(os.path.join(tree.streams, "*.job")))[-1]
        subprocess.run([CKPT, "verify", newest], capture_output=True, env=environment(), check=True)

    @unittest.skipUnless(os.geteuid() == 0, "needs root to give files away")
    def test_whose_word_it_is(self):
        tree = self.begin("streamed-trust")
        tree.now()
        tree.kill()
        os.chown(tree.stream(), 4711, 4711)
        os.chmod(tree.directory, 0o755)
        done = subprocess.run([RESTART, tree.stream()], capture_output=True, text=True, timeout=PATIENCE, env=environment(), check=False)
        self.assertEqual(done.returncode, 77, done.stderr)
        self.assertIn("belongs to user 4711", done.stderr)
        # A directory of somebody's choice is not taken for ours.
        precious = os.path.join(tree.directory, "precious")
        os.makedirs(os.path.join(precious, "x.job"))
        done = subprocess.run([RESTART, os.path.join(tree.directory, "nothing")], capture_output=True, text=True, timeout=PATIENCE,
                              env=environment(CKPT_RESTART_SPOOL=f"1:-1:{precious}/x.job"), check=False)
        self.assertEqual(done.returncode, 66, done.stderr)
        self.assertTrue(os.path.isdir(precious))

    def test_killed_while_it_unpacks(self):
        """Nothing stays in TMPDIR."""
        tree = self.begin("streamed-unpacked")
        tree.now()
        tree.kill()
        with open(tree.stream(), "rb") as f:
            whole = f.read()
        for sign in (signal.SIGINT, signal.SIGKILL):
            restarter = subprocess.Popen([RESTART, "-"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment())
            restarter.stdin.write(whole[:-100])
            restarter.stdin.flush()
            while not os.listdir(self.spools):
                time.sleep(0.01)
            restarter.send_signal(sign)
            restarter.wait(PATIENCE)
            restarter.stdin.close()
            deadline = time.monotonic() + PATIENCE
            while os.listdir(self.spools) and time.monotonic() < deadline:
                time.sleep(0.01)
            self.assertEqual(os.listdir(self.spools), [])

    def test_cat_of_increments(self):
        tree = Tree("streamed-cat", ["/usr/bin/python3", "-c", PROGRAM])
        self.addCleanup(lambda: tree.close(False))
        tree.start([CKPT, "run", "--dir", tree.images, "--stop-timeout", STOP_TIMEOUT, "--increments", "5", "--", *tree.command], False)
        wait_for(os.path.join(tree.work, "before"), tree)
        for _ in range(2):
            image = tree.checkpoint(tree.child.pid)
        tree.kill()
        go(tree)
        stream = os.path.join(tree.directory, "stream.job")
        with open(stream, "wb") as f:
            subprocess.run([CKPT, "cat", image], stdout=f, check=True)
        self.comes_back(tree, stream)
        go(tree)
        sent = subprocess.Popen([CKPT, "cat", image], stdout=subprocess.PIPE)
        done = subprocess.run([RESTART, "-"], stdin=sent.stdout, capture_output=True, text=True, timeout=PATIENCE, cwd=tree.work,
                              env=environment(), check=False)
        sent.stdout.close()
        self.assertEqual((sent.wait(), done.returncode), (0, 0), done.stderr)
        self.assertIn(expected(), tree.output().decode() + done.stdout)

    def test_damaged(self):
        """Cut at many places, with more behind its end, frames that lie: refused, and nothing is left in TMPDIR."""
        tree = self.begin("streamed-damaged")
        tree.now()
        with open(tree.stream(), "rb") as f:
            whole = f.read()
        heads, at = [], 16
        while at < len(whole):
            kind, _, length = struct.unpack_from("<IIQ", whole, at)
            heads.append(at)
            at += 16 + (length if kind == 1 else 0)
        self.assertEqual(at, len(whole))
        chance = random.Random(7)
        some = chance.sample(heads, min(len(heads), 8)) + heads[-4:]
        broken = [whole[:cut] for h in some for cut in (h, h + 7)] + [whole[:8], whole[:12], whole[:-1], whole + b"\0"]
        for h in some:
            for offset in (0, 4, 8, 15):
                changed = bytearray(whole)
                changed[h + offset] ^= 1 << chance.randrange(8)
                broken.append(bytes(changed))
        path = os.path.join(tree.directory, "broken.job")
        for number, content in enumerate(broken):
            with open(path, "wb") as f:
                f.write(content)
            done = subprocess.run([RESTART, "--check", path], capture_output=True, text=True, timeout=PATIENCE, env=environment(), check=False)
            self.assertIn(done.returncode, (DAMAGED, 68), (number, done.stderr))
            self.assertEqual(os.listdir(self.spools), [])
        go(tree)
        tree.finish()


def parent_of(pid):
    stat = read(f"/proc/{pid}/stat")
    return int(stat.rsplit(")", 1)[1].split()[1]) if stat else -1


def name_of(pid):
    return read(f"/proc/{pid}/comm").strip()


def threads_of_ours(pid):
    return [t for t in glob.glob(f"/proc/{pid}/task/*/comm") if read(t).strip() == "ckpt_rt"]


def read(path):
    try:
        with open(path, encoding="ascii", errors="replace") as f:
            return f.read()
    except OSError:
        return ""


if __name__ == "__main__":
    unittest.main()
