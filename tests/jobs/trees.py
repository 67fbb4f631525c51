#!/usr/bin/env python3
"""Odd trees: sessions, groups, orphans, zombies, shared memory, shared offsets, pipes with bytes in them, and what
happens when a restart fails. Each process writes down what it is before the checkpoint and after the restart."""
import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import job_tree
from job_tree import NOBODY, PATIENCE, RESTART, Tree, check_refused, environment, wait_for
from own_pids import enter_own_pids

TREE = r"""
import ctypes, json, mmap, os, signal, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
shared = mmap.mmap(-1, 1 << 16)
both = os.open('both', os.O_RDWR | os.O_CREAT)
os.write(both, b'0123456789')
r, w = os.pipe()
os.write(w, b'waiting bytes')
memfd = os.memfd_create('common')
os.ftruncate(memfd, 8192)
seen = mmap.mmap(memfd, 8192)
shm = libc.shmget(0, ctypes.c_size_t(8192), 0o1600)
libc.shmat.restype = ctypes.c_void_p
segment = libc.shmat(shm, None, 0)
libc.shmctl(shm, 0, None)

def facts(orphan):
    when_parent_ends = ctypes.c_int()
    libc.prctl(2, ctypes.byref(when_parent_ends))
    return {'when_parent_ends': when_parent_ends.value, 'pid': os.getpid(), 'ppid': 0 if orphan else os.getppid(), 'pgrp': os.getpgrp(), 'sid': os.getsid(0),
            'offset': os.lseek(both, 0, os.SEEK_CUR)}

def write(name, when, value):
    with open(f'{when}.{name}.tmp', 'w') as f: json.dump(value, f)
    os.rename(f'{when}.{name}.tmp', f'{when}.{name}')

def live(name, orphan=False, after=lambda: None):
    while orphan and os.getppid() == PARENT: time.sleep(0.005)
    orphan = orphan or name == 'root'
    write(name, 'before', facts(orphan))
    while not os.path.exists('go'): time.sleep(0.01)
    # One after the other adds to what all of them have.
    struct.pack_into('<Q', shared, 8 * NUMBER[name], 1 + struct.unpack_from('<Q', shared, 8 * 100)[0])
    seen[NUMBER[name]] = seen[4000]
    ctypes.memset(segment + NUMBER[name], ctypes.string_at(segment + 4000, 1)[0], 1)
    extra = after()
    write(name, 'after', facts(orphan) | ({'extra': extra} if extra else {}))

NUMBER = {n: i for i, n in enumerate(['root', 'plain', 'group', 'peer', 'session', 'inner', 'orphan', 'dead_group', 'dead_session', 'older', 'leader2'])}
struct.pack_into('<Q', shared, 800, 41)
seen[4000] = 7
ctypes.memset(segment + 4000, 9, 1)

def child(name, begin=lambda: None, then=None, orphan=False, after=lambda: None):
    global PARENT
    PARENT = os.getpid()
    pid = os.fork()
    if pid == 0:
        begin()
        if then: then()
        live(name, orphan, after)
        for p in kids: os.waitpid(p, 0)
        os._exit(0)
    return pid

kids = []
def with_kids(*makers):
    def make():
        kids.clear()
        for m in makers: kids.append(m())
    return make

mine = []
zombie = os.fork()
if zombie == 0: os._exit(3)
killed = os.fork()
if killed == 0: os.kill(os.getpid(), signal.SIGKILL)
os.waitid(os.P_PID, zombie, os.WEXITED | os.WNOWAIT)
os.waitid(os.P_PID, killed, os.WEXITED | os.WNOWAIT)
mine.append(child('plain', begin=lambda: libc.prctl(1, signal.SIGUSR1), after=lambda: os.read(r, 5).decode()))
leader = child('group', begin=lambda: os.setpgid(0, 0))
mine.append(leader)
def join(pid):
    def begin():
        while True:
            try:
                os.setpgid(0, pid); return
            except PermissionError: time.sleep(0.005)
    return begin
mine.append(child('peer', begin=join(leader)))
mine.append(child('session', begin=os.setsid, then=with_kids(lambda: child('inner', begin=lambda: os.setpgid(0, 0)))))
# An orphan, in our group; one in the group and one in the session of a leader that has exited.
def gone(make):
    pid = os.fork()
    if pid == 0:
        make()
        os._exit(0)
    os.waitpid(pid, 0)
gone(lambda: child('orphan', orphan=True))
def lead_group():
    os.setpgid(0, 0)
    child('dead_group', orphan=True)
gone(lead_group)
def lead_session():
    os.setsid()
    child('dead_session', orphan=True)
gone(lead_session)
# A child that stays in the session that its parent has left.
def older():
    kids.clear()
    kids.append(child('older'))
    os.setsid()
mine.append(child('leader2', then=older))
def ends():
    return [os.waitpid(zombie, 0)[1], os.waitpid(killed, 0)[1]]
live('root', after=ends)
for p in mine: os.waitpid(p, 0)
print('done', flush=True)
"""
NAMES = ["root", "plain", "group", "peer", "session", "inner", "orphan", "dead_group", "dead_session", "older", "leader2"]


job_tree.adopt_orphans()


class Trees(unittest.TestCase):

    def tree(self, uid=0):
        tree = Tree("odd", ["python3", "-c", TREE], uid=uid)
        self.addCleanup(lambda: tree.close(False))
        tree.run()
        wait_for(lambda: all(self.there(tree, "before", n) for n in NAMES), "the tree")
        return tree

    def there(self, tree, when, name):
        return os.path.exists(os.path.join(tree.work, f"{when}.{name}"))

    def facts(self, tree, when):
        def of(name):
            with open(os.path.join(tree.work, f"{when}.{name}")) as f:
                return json.load(f)
        return {n: of(n) for n in NAMES}

    def come_back(self, uid, generations, *options):
        tree = self.tree(uid)
        root = tree.child.pid
        for _ in range(generations):
            image = tree.checkpoint(root)
            tree.kill()
            report = tree.restart(image, *options)
            root = job_tree.root_of(report)
        self.go_on(tree)
        self.assertEqual(tree.finish(), (0, b"done\n"))

    def go_on(self, tree):
        """Each finds what it had."""
        before = self.facts(tree, "before")
        open(os.path.join(tree.work, "go"), "w").close()
        wait_for(lambda: all(self.there(tree, "after", n) for n in NAMES), f"all to go on: {tree.read('err')}")
        after = self.facts(tree, "after")
        self.assertEqual(after["root"].pop("extra"), [3 << 8, 9])
        self.assertEqual(after["plain"].pop("extra"), "waiti")
        self.assertEqual(before, after)

    def test_as_root(self):
        self.come_back(0, 1)

    def test_generations(self):
        self.come_back(0, 3)

    def test_in_namespaces(self):
        self.come_back(0, 1, "--namespaces=always")

    def test_as_user(self):
        if os.geteuid() != 0:
            self.skipTest("needs root to become another user")
        self.come_back(NOBODY, 2)

    def checkpointed(self):
        tree = self.tree()
        image = tree.checkpoint(tree.child.pid)
        tree.kill()
        return tree, image

    def test_refusals(self):
        tree, image = self.checkpointed()
        manifest = os.path.join(image, "manifest.json")
        members = json.load(open(manifest))["members"]
        one = next(m for m in members if m["pid"] != json.load(open(manifest))["root"] and m.get("image"))
        path = os.path.join(image, one["image"])
        # An image that is missing, one of another process, one that is damaged, a directory where a file was.
        os.rename(path, path + ".aside")
        check_refused(self, tree, image, 66)
        other = next(m for m in members if m.get("image") and m["pid"] not in (one["pid"],))
        shutil.copy(os.path.join(image, other["image"]), path)
        os.chmod(path, 0o600)
        check_refused(self, tree, image, 65, "mixed")
        shutil.copy(path + ".aside", path)
        with open(path, "r+b") as f:
            f.seek(os.path.getsize(path) // 2)
            byte = f.read(1)
            f.seek(-1, 1)
            f.write(bytes([byte[0] ^ 1]))
        check_refused(self, tree, image, 65)
        os.rename(path + ".aside", path)
        both, kept = os.path.join(tree.work, "both"), [os.path.join(image, n) for n in os.listdir(image) if n.endswith(".files")]
        for path in [both, *kept]:
            os.rename(path, path + ".aside")
        os.mkdir(both)
        check_refused(self, tree, image, 72, "both")
        os.rmdir(both)
        for path in [both, *kept]:
            os.rename(path + ".aside", path)
        # The manifest: damaged, written by others.
        text = open(manifest).read()
        with open(manifest, "w") as f:
            f.write(text.replace('"sid"', '"sie"', 1))
        check_refused(self, tree, image, 65, "checksum")
        with open(manifest, "w") as f:
            f.write(text)
        # The same of the newest of a directory: it is named, and the one before is taken.
        newer = os.path.join(os.path.dirname(image), os.path.basename(image).split(".")[0] + ".000099.job")
        os.mkdir(newer, 0o700)
        with open(os.path.join(newer, "manifest.json"), "w", opener=lambda p, f: os.open(p, f, 0o600)) as f:
            f.write(text.replace('"sid"', '"sie"', 1))
        checked = subprocess.run([RESTART, "--check", "--json", os.path.dirname(image)], capture_output=True, text=True, cwd=tree.work,
                                 env=environment(), timeout=PATIENCE, check=False)
        self.assertEqual(checked.returncode, 0, checked.stderr)
        said = json.loads(checked.stdout)
        self.assertEqual(said["job"], image)
        [note] = [note for note in said["notes"] if "passed over" in note]
        self.assertIn(newer, note)
        self.assertIn(os.path.basename(image) + ", which is older, is restarted", note)
        shutil.rmtree(newer)
        os.chmod(manifest, 0o666)
        check_refused(self, tree, image, 77, "manifest")
        os.chmod(manifest, 0o600)
        checked = subprocess.run([RESTART, "--check", image], capture_output=True, text=True, cwd=tree.work, env=environment(),
                                 timeout=PATIENCE, check=False)
        self.assertEqual(checked.returncode, 0, checked.stderr)
        # And then it comes back all the same.
        tree.restart(image)
        open(os.path.join(tree.work, "go"), "w").close()
        self.assertEqual(tree.finish()[0], 0)

    def ends_in_an_error(self, again):
        try:
            _, said = again.communicate(timeout=PATIENCE)
        finally:
            again.kill()
        self.assertNotEqual(again.returncode, 0, said)
        self.assertRegex(said, "ended while the processes of the job were made|it ended after the stage|init of the new namespace ended")
        left = {pid: (job_tree.name_of(pid), job_tree.state_of(pid)) for pid in job_tree.descendants(os.getpid())}
        self.assertEqual(left, {}, said)

    def test_who_is_killed_while_the_tree_is_made(self):
        """Whoever it is, and wherever the others wait for each other: the restart fails, and leaves nobody."""
        tree, image = self.checkpointed()
        for namespaces in ("auto", "always"):  # another process may have one of the numbers by now
            def begin(point, namespaces=namespaces):
                return subprocess.Popen([RESTART, "--namespaces=" + namespaces, image], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.PIPE, text=True, cwd=tree.work, env=environment(CKPT_TEST_POINT=point))
            for point in ("restart.zombie", "restart.helper", "restart.joined", "restart.reaping"):
                with self.subTest(point=point, namespaces=namespaces):
                    self.ends_in_an_error(begin(point + "=leave:0"))
            for point in ("restart.born=stop:0", "restart.sent=stop:0")[:1 if namespaces == "always" else 2]:
                killed, all_of_them = 0, 1
                while killed < all_of_them:
                    again = begin(point)

                    def stopped(again=again):
                        self.assertIsNone(again.poll())
                        below = sorted(job_tree.descendants(again.pid))
                        names = {pid: job_tree.name_of(pid) for pid in below}
                        planters = [pid for pid in below if names[pid] == "ckpt-planter" and job_tree.state_of(pid) == "T"]
                        # Who holds the clocks only waits for its end: nobody waits for it. Nor for who has ended.
                        ended = [pid for pid in below if job_tree.state_of(pid) in "Z?"]
                        return planters and (planters, [pid for pid in below if names[pid] != "ckpt-clocks" and pid not in ended])
                    wait_for(stopped, "the stop")
                    planters, below = stopped()
                    if killed >= len(below):  # there is one less than at the stop before: a helper has ended already
                        job_tree.kill_all_below(again)  # and waits for them: what is left counts below
                        again.communicate()
                        break
                    with self.subTest(point=point, namespaces=namespaces, killed=killed, name=job_tree.name_of(below[killed])):
                        os.kill(below[killed], signal.SIGKILL)
                        # Outside of a namespace the planter has stopped ckpt-restart as well.
                        for pid in (*planters, again.pid):
                            with contextlib.suppress(ProcessLookupError):
                                os.kill(pid, signal.SIGCONT)
                        self.ends_in_an_error(again)
                    killed, all_of_them = killed + 1, len(below)
                self.assertGreater(all_of_them, len(NAMES))
        tree.restart(image)
        open(os.path.join(tree.work, "go"), "w").close()
        self.assertEqual(tree.finish()[0], 0)

    def test_killed_restarts(self):
        """ckpt-restart killed at many moments: then none of the tree is left, or, later, all of it runs."""
        tree, image = self.checkpointed()
        with open(os.path.join(image, "manifest.json")) as f:
            members = sum(1 for m in json.load(f)["members"] if m.get("image"))
        began = time.monotonic()
        tree.restart(image)
        took = time.monotonic() - began
        tree.kill()
        none = 0
        for i in range(12):
            tree.start([RESTART, image], True)
            time.sleep(took * i / 10)
            tree.child.kill()
            tree.child.wait(PATIENCE)

            def settled():
                # Helpers and zombies are gone or ours to reap; the others end, or are all there and run.
                for pid in job_tree.descendants(os.getpid()):
                    try:
                        os.waitpid(pid, os.WNOHANG)
                    except ChildProcessError:
                        pass
                left = [p for p in job_tree.descendants(os.getpid()) if job_tree.state_of(p) not in "Z?"]
                return left == [] or (len(left) == members and all(not job_tree.is_restarter(p) for p in left))
            wait_for(settled, f"the end of a tree whose restart was killed after {took * i / 10:.3f} s")
            none += job_tree.descendants(os.getpid()) == set()
            tree.child = subprocess.Popen(["true"])
            tree.kill()
        self.assertGreater(none, 0)
        tree.restart(image)
        open(os.path.join(tree.work, "go"), "w").close()
        self.assertEqual(tree.finish()[0], 0)

    def test_a_checkpoint_that_is_read_is_not_removed(self):
        """Whoever removes old ones and whoever reads exclude each other, by the manifest; each is told if it is too late."""
        tree = Tree("held", ["env", "CKPT_KEEP=1", "sh", "-c", "sleep 1000 & wait"])
        self.addCleanup(tree.close, False)
        tree.run()
        wait_for(lambda: job_tree.descendants(tree.child.pid), "the child")
        manifest = lambda image: open(os.path.join(image, "manifest.json"), encoding="utf-8")
        first = tree.checkpoint(tree.child.pid)
        with manifest(first) as held:
            fcntl.flock(held, fcntl.LOCK_SH)
            second = tree.checkpoint(tree.child.pid)
            self.assertTrue(os.path.exists(first))
        third = tree.checkpoint(tree.child.pid)
        self.assertEqual([os.path.exists(image) for image in (first, second, third)], [False, False, True])
        tree.kill()
        with manifest(third) as removed:
            fcntl.flock(removed, fcntl.LOCK_EX)
            check_refused(self, tree, third, 66, "removed while it was opened")
        # Nothing is held once the job runs, by none of its processes and not by ckpt-restart.
        tree.restart(third)
        with manifest(third) as free:
            fcntl.flock(free, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def test_it_ends_at_once(self):
        """Its end in a namespace of its own is told before ckpt-restart has seen that all of it runs."""
        tree = Tree("at_once", ["sh", "-c", "sleep 1000 & while [ ! -e go ]; do :; done; kill $!; exit 7"])
        self.addCleanup(tree.close, False)
        tree.run()
        wait_for(lambda: job_tree.descendants(tree.child.pid), "the child")
        image = tree.checkpoint(tree.child.pid)
        tree.kill()
        open(os.path.join(tree.work, "go"), "w").close()
        again = subprocess.Popen([RESTART, "--namespaces=always", image], stdin=subprocess.DEVNULL, cwd=tree.work,
                                 env=environment(CKPT_TEST_POINT="restart.runs=stop"))
        self.addCleanup(again.wait)
        self.addCleanup(again.kill)
        wait_for(lambda: job_tree.state_of(again.pid) == "T", "its stop")
        with open(f"/proc/{again.pid}/task/{again.pid}/children", encoding="ascii") as f:
            [init] = f.read().split()
        wait_for(lambda: job_tree.state_of(int(init)) == "Z", "the end of all in the namespace")
        again.send_signal(signal.SIGCONT)
        self.assertEqual(again.wait(PATIENCE), 7)

    def test_the_newest_of_a_directory(self):
        """The job, or an image of one process that was taken later. When their files were written says nothing."""
        tree = Tree("newest", ["sh", "-c", "sleep 1000 & wait"])
        self.addCleanup(tree.close, False)
        tree.run()
        pid = tree.child.pid
        wait_for(lambda: job_tree.descendants(pid), "the child")

        def alone():
            done = subprocess.run([job_tree.CKPT, "now", "--only", "--json", str(pid)], stdout=subprocess.PIPE, timeout=PATIENCE, env=environment(), check=True)
            return json.loads(done.stdout)["image"]

        def chosen():
            done = subprocess.run([RESTART, "--check", "--json", tree.images], stdout=subprocess.PIPE, timeout=PATIENCE, env=environment(), check=True)
            report = json.loads(done.stdout)
            return report.get("job") or report["image"]

        first = alone()
        job = tree.checkpoint(pid)
        os.utime(first, (time.time() + 1000, time.time() + 1000))
        self.assertEqual(chosen(), job)
        last = alone()
        os.utime(last, (1, 1))
        self.assertEqual(chosen(), last)

    def test_detached(self):
        tree, image = self.checkpointed()
        done = subprocess.run([RESTART, "--detach", image], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                              timeout=PATIENCE, cwd=tree.work, env=environment(), check=True)
        root = int(done.stdout)
        self.go_on(tree)
        ended = []

        def over():
            """We adopt it when those who made it have ended, unless one of them waits for it."""
            try:
                pid, status = os.waitpid(root, os.WNOHANG)
            except ChildProcessError:
                return job_tree.state_of(root) == "?"
            ended.extend([status] if pid else [])
            return pid != 0
        wait_for(over, "the end of a detached tree")
        self.assertIn(ended, ([0], []))

    def test_a_taken_id(self):
        tree, image = self.checkpointed()
        pid = max(m["pid"] for m in json.load(open(os.path.join(image, "manifest.json")))["members"] if m.get("image"))
        # Somebody who has it: a process group does.
        holder = subprocess.Popen(["python3", "-c", f"""
import ctypes, os, signal, time
class Args(ctypes.Structure):
    _fields_ = [(n, ctypes.c_uint64) for n in 'flags pidfd child_tid parent_tid exit_signal stack stack_size tls set_tid set_tid_size cgroup'.split()]
tid = ctypes.c_int({pid})
a = Args(exit_signal=17, set_tid=ctypes.addressof(tid), set_tid_size=1)
r = ctypes.CDLL(None).syscall(435, ctypes.byref(a), ctypes.sizeof(a))
if r == 0:
    ctypes.CDLL(None).prctl(1, 9)
    time.sleep(60)
    os._exit(0)
print(r, flush=True)
signal.pause()
"""], stdout=subprocess.PIPE)
        try:
            self.assertEqual(int(holder.stdout.readline()), pid)
            check_refused(self, tree, image, 69, str(pid), options=["--namespaces=never"])
            self.assertTrue(tree.restart(image)["new_pid_namespace"])
            open(os.path.join(tree.work, "go"), "w").close()
            self.assertEqual(tree.finish()[0], 0)
        finally:
            holder.kill()
            holder.wait()
            holder.stdout.close()


if __name__ == "__main__":
    enter_own_pids()  # for those who count who is left, and who wants one number
    job_tree.enter_own_ipc()
    unittest.main(verbosity=2)
