#!/usr/bin/env python3
"""Odd trees: sessions, groups, orphans, zombies, shared memory, shared offsets, pipes with bytes in them, and what
happens when a restart fails. Each process writes down what it is before the checkpoint and after the restart."""
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import zlib

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import job_tree
from job_tree import CKPT, NOBODY, PATIENCE, RESTART, Tree, environment

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


def wait_for(condition, what):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited in vain for {what}")
        time.sleep(0.01)


job_tree.adopt_orphans()


# As multiprocessing has them: opened by each, which keeps what it inherited open too.
SHARED_FILE = """
import mmap, os, sys, time, zlib
name, size = sys.argv[1], int(sys.argv[2])
def memory():
    f = open(name, 'r+b')
    return f, mmap.mmap(f.fileno(), size)
open(name, 'x').close()
os.truncate(name, size)
first = memory()
for i in range(0, size, 5000):
    first[1][i] = i % 251
before = zlib.crc32(first[1])
go, tell = os.pipe()
children = []
for k in range(6):
    if (pid := os.fork()) == 0:
        mine = memory()
        closed = memory()
        closed[0].close()
        os.write(tell, b'.')
        while not os.path.exists('go'):
            time.sleep(0.005)
        mine[0].seek(size - 1)
        mine[1][size - 1] = 77
        os._exit(0 if zlib.crc32(closed[1][:size - 1]) == int(sys.argv[3]) and mine[0].read(1) == b'M' else 1)
    children.append(pid)
for _ in children:
    os.read(go, 1)
print('up', flush=True)
print([os.waitpid(p, 0)[1] for p in children], first[1][size - 1], flush=True)
os.unlink(name)
"""

# A sender that holds its last bytes back, with many more that nobody receives yet; six processes have it.
CORKED = """
import os, socket, time
def wait():
    while not os.path.exists('go'): time.sleep(0.01)
def options():
    return sender.getsockopt(socket.IPPROTO_TCP, socket.TCP_CORK), sender.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
listener = socket.create_server(('127.0.0.1', 0))
if os.fork() == 0:
    receiver = listener.accept()[0]
    wait()
    count = 0
    while part := receiver.recv(1 << 20): count += len(part)
    open('received.new', 'w').write(str(count))
    os._exit(0)
sender = socket.create_connection(listener.getsockname())
sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
sender.setblocking(False)
count = 0
try:
    while True: count += sender.send(bytes(65536))
except BlockingIOError:
    pass
children = []
for k in range(5):
    if (pid := os.fork()) == 0:
        wait()
        os._exit(0)
    children.append(pid)
print('up', options(), flush=True)
wait()
print(options(), flush=True)
for pid in children: os.waitpid(pid, 0)
sender.close()
os.wait()
print(int(open('received.new').read()) == count, flush=True)
"""


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
            root = report["outer_pids"][0]
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

    def test_a_member_of_another_user(self):
        """What a user's process has written comes back with root's rights only if root says so."""
        if os.geteuid() != 0:
            self.skipTest("needs root to become another user")
        waiting = "import os, time; print('up', os.getuid(), flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)"
        as_nobody = f"setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups python3 -c \"{waiting}\""
        tree = Tree("users", ["bash", "-c", as_nobody + "; echo ended $?"], lambda work: os.chmod(work, 0o755))
        self.addCleanup(tree.close, False)
        os.chmod(tree.directory, 0o755)
        tree.run()
        deadline = time.monotonic() + PATIENCE
        while b"up" not in tree.output() and time.monotonic() < deadline:
            time.sleep(0.01)
        image = tree.checkpoint(tree.child.pid)
        tree.kill()
        owners = {os.stat(os.path.join(image, n)).st_uid for n in os.listdir(image) if n.endswith(".ckpt")}
        self.assertEqual(owners, {0, NOBODY})
        self.refused(tree, image, 77, f" user {NOBODY}", "--trust")
        tree.restart(image, "--trust")
        open(os.path.join(tree.work, "go"), "w").close()
        self.assertEqual(tree.finish(), (0, b"up 65534\nended 0\n"))

    def test_files_kept_by_a_member_of_another_user(self):
        """Whoever comes first, both keep theirs, and afterwards nobody else comes to them."""
        if os.geteuid() != 0:
            self.skipTest("needs root to become another user")
        code = "import os, sys, time\nf = open(sys.argv[1], 'w+')\nf.write('of ' + sys.argv[1])\nf.flush()\n" \
               "os.utime(sys.argv[1], (1, 2))\nprint('up', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)\n" \
               "f.seek(0)\nprint(f.read(), flush=True)"
        as_nobody = f"setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups python3 -c \"{code}\" theirs/file"
        for how in ("links", "copies"):
            with self.subTest(how=how):
                def prepare(work):
                    os.chmod(work, 0o755)
                    os.mkdir(os.path.join(work, "theirs"))
                    os.chown(os.path.join(work, "theirs"), NOBODY, NOBODY)
                tree = Tree("kept", ["bash", "-c", f"{as_nobody} & python3 -c \"{code}\" file; wait"], prepare)
                self.addCleanup(tree.close, False)
                os.chmod(tree.directory, 0o755)
                tree.start([CKPT, "run", "--dir", tree.images, "--files", how, "--", *tree.command], False)
                wait_for(lambda: tree.output() == b"up\nup\n", f"both: {tree.read('err')}")
                image = tree.checkpoint(tree.child.pid)
                tree.kill()
                kept = os.path.join(image, "job.files")
                for directory in (image, kept):
                    st = os.stat(directory)
                    self.assertEqual((st.st_uid, st.st_mode & 0o7777), (0, 0o700), directory)
                owners = [os.lstat(os.path.join(kept, n)).st_uid for n in os.listdir(kept)]
                self.assertIn(NOBODY, owners)
                names = [os.path.join(tree.work, n) for n in ("file", "theirs/file")]
                for name in names:
                    os.unlink(name)
                self.refused(tree, image, 77, f" user {NOBODY}", "--trust")
                tree.restart(image, "--trust")
                for name in names:
                    with open(name) as f:
                        self.assertIn("file", f.read())
                open(os.path.join(tree.work, "go"), "w").close()
                code_of, out = tree.finish()
                self.assertEqual((code_of, sorted(out.splitlines())), (0, [b"of file", b"of theirs/file", b"up", b"up"]))

    def test_a_removed_file_that_is_kept(self):
        """Its names beside images, also of earlier checkpoints, are no other names of the file."""
        code = "import os, time\nf = open('file', 'w+')\nf.write('kept')\nf.flush()\nchild = os.fork()\n" \
               "if child: print('up', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)\n" \
               "if child: print(os.pread(f.fileno(), 9, 0), os.waitpid(child, 0)[1], flush=True)"
        tree = Tree("removed", ["python3", "-c", code])
        self.addCleanup(tree.close, False)
        tree.run()
        wait_for(lambda: b"up" in tree.output(), "both processes")
        tree.checkpoint(tree.child.pid)
        os.unlink(os.path.join(tree.work, "file"))
        for _ in range(2):
            image = tree.checkpoint(tree.child.pid)
            self.assertNotIn("another name", str(tree.cost))
        tree.kill()
        report = tree.restart(image)
        self.assertNotIn("another name", str(report["notes"]))
        open(os.path.join(tree.work, "go"), "w").close()
        self.assertEqual(tree.finish(), (0, b"up\nb'kept' 0\n"))

    def test_a_sender_that_holds_back_of_several(self):
        """In the stop one member makes it send: what others see of it then is not what it was."""
        tree = Tree("corked", ["python3", "-c", CORKED])
        self.addCleanup(tree.close, False)
        tree.run()
        wait_for(lambda: b"up (1, 0)\n" in tree.output(), f"the processes: {tree.read('err')}")
        image = tree.checkpoint(tree.child.pid)
        tree.kill()
        tree.restart(image)
        open(os.path.join(tree.work, "go"), "w").close()
        self.assertEqual(tree.finish(), (0, b"up (1, 0)\n(1, 0)\nTrue\n"))

    def test_a_sender_that_holds_back_goes_on(self):
        """Not only after a restart: when the program goes on after the checkpoint."""
        tree = Tree("corked", ["python3", "-c", CORKED])
        self.addCleanup(tree.close, False)
        tree.run()
        wait_for(lambda: b"up (1, 0)\n" in tree.output(), f"the processes: {tree.read('err')}")
        tree.checkpoint(tree.child.pid)
        open(os.path.join(tree.work, "go"), "w").close()
        self.assertEqual(tree.finish(), (0, b"up (1, 0)\n(1, 0)\nTrue\n"))

    def test_a_shared_file_that_is_gone(self):
        """Memory in /dev/shm whose name the program removes after the checkpoint: made again once, for all."""
        for size in (64 << 10, (3 << 20) + 4096):
            with self.subTest(size=size):
                name = f"/dev/shm/ckpt-test.{os.getpid()}"
                content = bytearray(size)
                content[::5000] = bytes(i % 251 for i in range(0, size, 5000))
                crc = zlib.crc32(content[:size - 1])
                tree = Tree("shared", ["python3", "-c", SHARED_FILE, name, str(size), str(crc)])
                try:
                    tree.start([CKPT, "run", "--dir", tree.images, "--files", "none", "--", *tree.command], False)
                    wait_for(lambda: b"up" in tree.output(), "all processes")
                    image = tree.checkpoint(tree.child.pid)
                    tree.kill()
                    os.unlink(name)
                    tree.restart(image)
                    open(os.path.join(tree.work, "go"), "w").close()
                    self.assertEqual(tree.finish(), (0, b"up\n[0, 0, 0, 0, 0, 0] 77\n"))
                finally:
                    tree.close(False)
                    if os.path.exists(name):
                        os.unlink(name)

    def test_a_shared_file_of_another_user(self):
        """It belongs to the user of the process that had it, not to that of the first process of the job."""
        if os.geteuid() != 0:
            self.skipTest("needs root to become another user")
        name = f"/dev/shm/ckpt-test-user.{os.getpid()}"
        mapping = "import mmap, os, sys, time\nf = open(sys.argv[1], 'x+b')\nf.truncate(100000)\n" \
                  "m = mmap.mmap(f.fileno(), 100000)\nf.close()\nm[99999] = 7\nprint('up', flush=True)\n" \
                  "while not os.path.exists('go'): time.sleep(0.01)\nprint(m[99999], flush=True)"
        as_nobody = f"setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups python3 -c \"{mapping}\" {name}"
        tree = Tree("shared-user", ["bash", "-c", as_nobody + "; echo ended $?"], lambda work: os.chmod(work, 0o755))
        self.addCleanup(lambda: os.path.exists(name) and os.unlink(name))
        self.addCleanup(tree.close, False)
        os.chmod(tree.directory, 0o755)
        tree.start([CKPT, "run", "--dir", tree.images, "--files", "none", "--", *tree.command], False)
        wait_for(lambda: b"up" in tree.output(), f"the process of another user: {tree.read('err')}")
        image = tree.checkpoint(tree.child.pid)
        tree.kill()
        os.unlink(name)
        tree.restart(image, "--trust")
        st = os.stat(name)
        self.assertEqual((st.st_uid, st.st_gid, st.st_mode & 0o777), (NOBODY, NOBODY, 0o600))
        open(os.path.join(tree.work, "go"), "w").close()
        self.assertEqual(tree.finish(), (0, b"up\n7\nended 0\n"))

    def checkpointed(self):
        tree = self.tree()
        image = tree.checkpoint(tree.child.pid)
        tree.kill()
        return tree, image

    def refused(self, tree, image, code, *words, options=()):
        besides = job_tree.descendants(os.getpid())
        done = subprocess.run([RESTART, *options, image], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=PATIENCE, cwd=tree.work, env=environment(), check=False)
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertRegex(done.stderr.splitlines()[-1], "^ckpt-restart: ")
        for word in words:
            self.assertIn(word, done.stderr)
        # Nobody is left: all were below it, and so would be below us.
        self.assertEqual(job_tree.descendants(os.getpid()) - besides, set())

    def test_refusals(self):
        tree, image = self.checkpointed()
        manifest = os.path.join(image, "manifest.json")
        members = json.load(open(manifest))["members"]
        one = next(m for m in members if m["pid"] != json.load(open(manifest))["root"] and m.get("image"))
        path = os.path.join(image, one["image"])
        # An image that is missing, one of another process, one that is damaged, a directory where a file was.
        os.rename(path, path + ".aside")
        self.refused(tree, image, 66)
        other = next(m for m in members if m.get("image") and m["pid"] not in (one["pid"],))
        shutil.copy(os.path.join(image, other["image"]), path)
        os.chmod(path, 0o600)
        self.refused(tree, image, 65, "mixed")
        shutil.copy(path + ".aside", path)
        with open(path, "r+b") as f:
            f.seek(os.path.getsize(path) // 2)
            byte = f.read(1)
            f.seek(-1, 1)
            f.write(bytes([byte[0] ^ 1]))
        self.refused(tree, image, 65)
        os.rename(path + ".aside", path)
        both, kept = os.path.join(tree.work, "both"), [os.path.join(image, n) for n in os.listdir(image) if n.endswith(".files")]
        for path in [both, *kept]:
            os.rename(path, path + ".aside")
        os.mkdir(both)
        self.refused(tree, image, 72, "both")
        os.rmdir(both)
        for path in [both, *kept]:
            os.rename(path + ".aside", path)
        # The manifest: damaged, written by others.
        text = open(manifest).read()
        with open(manifest, "w") as f:
            f.write(text.replace('"sid"', '"sie"', 1))
        self.refused(tree, image, 65, "checksum")
        with open(manifest, "w") as f:
            f.write(text)
        os.chmod(manifest, 0o666)
        self.refused(tree, image, 77, "manifest")
        os.chmod(manifest, 0o600)
        checked = subprocess.run([RESTART, "--check", image], capture_output=True, text=True, cwd=tree.work, env=environment(),
                                 timeout=PATIENCE, check=False)
        self.assertEqual(checked.returncode, 0, checked.stderr)
        # And then it comes back all the same.
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
            time.sleep(took * (i + 1) / 11)
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
            wait_for(settled, f"the end of a tree whose restart was killed after {took * (i + 1) / 11:.3f} s")
            none += job_tree.descendants(os.getpid()) == set()
            tree.child = subprocess.Popen(["true"])
            tree.kill()
        self.assertGreater(none, 0)
        tree.restart(image)
        open(os.path.join(tree.work, "go"), "w").close()
        self.assertEqual(tree.finish()[0], 0)

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
            self.refused(tree, image, 69, str(pid), options=["--namespaces=never"])
            self.assertTrue(tree.restart(image)["new_pid_namespace"])
            open(os.path.join(tree.work, "go"), "w").close()
            self.assertEqual(tree.finish()[0], 0)
        finally:
            holder.kill()
            holder.wait()
            holder.stdout.close()


if __name__ == "__main__":
    unittest.main(verbosity=2)
