#!/usr/bin/env python3
"""System V semaphores and message queues: what they held at the checkpoint is there again after the program has gone on,
was killed and came back; and where it cannot be, that is said."""
import ctypes
import json
import os
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import job_tree
from job_tree import CKPT, NOBODY, PATIENCE, RESTART, Tree, environment

IPC_CREAT, IPC_EXCL, IPC_NOWAIT, SEM_UNDO = 0o1000, 0o2000, 0o4000, 0o10000
IPC_RMID, GETVAL, SETVAL = 0, 12, 16
libc = ctypes.CDLL(None, use_errno=True)

job_tree.adopt_orphans()

# What the programs below begin with. A failing call ends them with a line in `err`.
COMMON = r"""
import ctypes, os, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
libc.msgrcv.restype = ctypes.c_ssize_t
libc.msgrcv.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_long, ctypes.c_int]
libc.msgsnd.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
CREAT, EXCL, NOWAIT, UNDO = 0o1000, 0o2000, 0o4000, 0o10000
RMID, GETALL, GETVAL, SETVAL = 0, 13, 12, 16
class Op(ctypes.Structure):
    _fields_ = [('number', ctypes.c_ushort), ('op', ctypes.c_short), ('flags', ctypes.c_short)]
def check(r):
    if r < 0: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return r
def op(*ops):
    return check(libc.semop(sems, (Op * len(ops))(*[Op(*o) for o in ops]), len(ops)))
def value(n): return check(libc.semctl(sems, n, GETVAL))
def set_value(n, v): check(libc.semctl(sems, n, SETVAL, v))
def send(type_, text):
    check(libc.msgsnd(queue, ctypes.create_string_buffer(type_.to_bytes(8, 'little') + text, 8 + len(text)), len(text), NOWAIT))
def receive(type_=0, flags=NOWAIT):
    b = ctypes.create_string_buffer(8 + 8192)
    n = check(libc.msgrcv(queue, b, 8192, type_, flags))
    return int.from_bytes(b.raw[:8], 'little'), b.raw[8:8 + n]
def wait(path):
    while not os.path.exists(path): time.sleep(0.005)
def say(*what): os.write(1, (' '.join(map(str, what)) + '\n').encode())  # in one go
"""

# Values and messages; a child that has them too. It goes on to change all of them until it is killed.
BOTH = COMMON + r"""
key = int(sys.argv[1])
sems = check(libc.semget(key, 4, CREAT | EXCL | 0o600))
queue = check(libc.msgget(key, CREAT | EXCL | 0o600))
for n, v in enumerate((3, 0, 32767, 9)): set_value(n, v)
for i in range(5): send(1 + i % 3, b'message %d ' % i * (i + 1) * 7)
send(7, b'')
r, w = os.pipe()
if os.fork() == 0:
    os.close(w)
    op((3, -2, 0))
    say('up', sems, queue)
    wait('go')
    op((0, -3, 0), (1, 4, 0))
    os._exit(0)
os.close(r)
wait('wrong')
if not os.path.exists('go'):
    for n in range(4): set_value(n, 100 + n)
    for i in range(3): receive()
    send(4, b'too late')
    if os.path.exists('remove'):
        check(libc.semctl(sems, 0, RMID)); check(libc.msgctl(queue, RMID, None))
    say('spoiled')
wait('go')
os.wait()
say([value(n) for n in range(4)], libc.semget(key, 0, 0) == sems, libc.msgget(key, 0) == queue)
say([receive(2) for _ in range(2)] + [receive() for _ in range(4)])
check(libc.semctl(sems, 0, RMID)); check(libc.msgctl(queue, RMID, None))
"""

# The same objects, of another user and group than the program's.
OF_ANOTHER = BOTH.replace("sems = ", f"os.setegid({NOBODY}); os.seteuid({NOBODY})\nsems = ", 1).replace(
    "for n, v in", "os.seteuid(0); os.setegid(0)\nfor n, v in", 1)

# Threads and a process that wait in semop, semtimedop, msgrcv and msgsnd when the checkpoint is taken.
WAITING = COMMON + r"""
sems = check(libc.semget(0, 4, 0o600))
queue = check(libc.msgget(0, 0o600))
full = check(libc.msgget(0, 0o600))
got = {}
def run(name, call):
    def body():
        try: got[name] = call()
        except OSError as e: got[name] = e.errno
    t = threading.Thread(target=body)
    t.start()
    return t
class Time(ctypes.Structure):
    _fields_ = [('s', ctypes.c_long), ('ns', ctypes.c_long)]
def timed(): return check(libc.semtimedop(sems, (Op * 1)(Op(1, -1, 0)), 1, ctypes.byref(Time(3600, 0))))
def fill():
    global queue
    keep, queue = queue, full
    try:
        while True: send(1, b'x' * 4096)
    except OSError: pass
    queue = keep
fill()
def push(): return check(libc.msgsnd(full, ctypes.create_string_buffer(b'\1' + bytes(7) + b'y' * 4096, 8 + 4096), 4096, 0))
child = os.fork()
if child == 0:
    op((2, -1, UNDO))
    say('child has it', value(2))
    os._exit(0)
threads = [run('semop', lambda: op((0, -2, 0))), run('timed', timed), run('receive', lambda: receive(5, 0)), run('push', push),
           run('undo', lambda: op((0, -5, UNDO)))]
def waiting():
    def count(n): return libc.semctl(sems, n, 14)  # GETNCNT
    return count(0) == 2 and count(1) == 1 and count(2) == 1
while not waiting(): time.sleep(0.005)
# The two that wait for a queue: nothing counts them but their state.
def in_queue():
    calls = [open(f'/proc/self/task/{t}/syscall').read().split()[0] for t in os.listdir('/proc/self/task')]
    return calls.count('69') == 1 and calls.count('70') == 1
while not in_queue(): time.sleep(0.005)
say('up', sems, queue, full)
wait('go')
op((0, 2, 0)); threads[0].join()
op((1, 1, 0)); threads[1].join()
send(4, b'not this'); send(5, b'this'); threads[2].join()
b = ctypes.create_string_buffer(8 + 8192)
check(libc.msgrcv(full, b, 8192, 0, 0)); threads[3].join()
op((2, 1, 0))
os.waitpid(child, 0)
say('then', value(2))
op((0, 5, 0)); threads[4].join()
say(sorted(got.items()), [value(n) for n in range(4)])
check(libc.semctl(sems, 0, RMID)); check(libc.msgctl(queue, RMID, None)); check(libc.msgctl(full, RMID, None))
"""

# Locks that the kernel gives back when their holder dies, also after a restart.
UNDONE = COMMON + r"""
sems = check(libc.semget(0, 3, CREAT | 0o600))
set_value(0, 1); set_value(1, 10); set_value(2, 0)
def holder():
    op((0, -1, UNDO), (1, -4, UNDO))
    op((1, 1, UNDO), (2, 6, UNDO))
    op((1, 2, 0))
    say('up', sems)
    wait('go')
    say('held', [value(n) for n in range(3)])
    wait('die')
    os._exit(0)
if (child := os.fork()) == 0: holder()
wait('go')
wait('die')
os.waitpid(child, 0)
say('free', [value(n) for n in range(3)])
check(libc.semctl(sems, 0, RMID))
"""

# A process sets values of semaphores that another owes something: the kernel forgets that, and the other does not know.
FORGIVEN = COMMON + r"""
sems = check(libc.semget(0, 4, 0o600))
for n, v in enumerate((1, 10, 5, 32767)): set_value(n, v)
if (child := os.fork()) == 0:
    for n, v in enumerate((-1, -4, -2, -7)): op((n, v, UNDO))
    open('owes', 'w').close()
    wait('set')
    op((0, 1, UNDO)); op((1, -3, UNDO)); op((3, -2, UNDO))
    say('up', sems)
    wait('go')
    say('was', [value(n) for n in range(4)])
    os._exit(0)
wait('owes')
set_value(0, 5); set_value(1, 20); set_value(3, 32767)
open('set', 'w').close()
wait('go')
os.waitpid(child, 0)
say('is', [value(n) for n in range(4)])
check(libc.semctl(sems, 0, RMID))
"""

MANY = COMMON + r"""
made = []
for i in range(600):
    made.append(check(libc.semget(0, 1, 0o600)))
    sems = made[-1]
    set_value(0, i)
say('up')
wait('wrong')
for sems in made:
    if not os.path.exists('go'): set_value(0, 7)
say('spoiled')
wait('go')
for i, sems in enumerate(made):
    if value(0) != i: say('wrong', i, value(0))
    check(libc.semctl(sems, 0, RMID))
say('all removed')
"""

# Made and removed again and again: no more than a few are there at once.
CHURN = COMMON + r"""
for i in range(2000):
    sems = check(libc.semget(0, 1, 0o600))
    check(libc.semctl(sems, 0, RMID))
sems = check(libc.semget(0, 1, 0o600))
set_value(0, 77)
say('up', sems)
wait('go')
say('value', value(0))
check(libc.semctl(sems, 0, RMID))
"""

NO_READING = COMMON + r"""
queue = check(libc.msgget(0, 0o200))
send(1, b'nobody may look')
say('up', queue)
wait('go')
"""


# Two segments; only one stays attached. As perl's shmread and shmwrite do.
ATTACHES_FOR_A_MOMENT = """
import ctypes, os, time
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
loose, held = (libc.shmget(0, ctypes.c_size_t(4096), 0o1600) for _ in range(2))
address = libc.shmat(loose, None, 0)
libc.shmat(held, None, 0)
libc.shmdt(ctypes.c_void_p(address))
print('up', flush=True)
while not os.path.exists('go'): time.sleep(0.01)
for segment in loose, held: assert libc.shmctl(segment, 0, None) == 0
"""


class SystemV(unittest.TestCase):

    def start(self, program, *arguments, uid=0):
        tree = Tree("system_v", ["python3", "-c", program, *map(str, arguments)], uid=uid)
        self.addCleanup(tree.close, False)
        tree.run()
        self.wait_for(tree, "up")
        return tree

    def wait_for(self, tree, text):
        deadline = time.monotonic() + PATIENCE
        while text.encode() not in tree.output():
            if time.monotonic() > deadline:
                raise AssertionError(f"waited in vain for {text}: {tree.output()} {tree.read('err').decode()}")
            time.sleep(0.01)

    @staticmethod
    def go(tree, name="go"):
        open(os.path.join(tree.work, name), "w").close()

    def end(self, tree, last):
        """How it ended and what it said after `last`."""
        code, out = tree.finish()
        self.assertEqual(code, 0, tree.read("err").decode())
        return out.decode().split(last)[-1].splitlines()

    @staticmethod
    def set_value(sems, number, value):
        """By somebody who is gone then: a set without a key that is in use by others is not written to."""
        if (pid := os.fork()) == 0:
            libc.semctl(sems, number, SETVAL, value)
            os._exit(0)
        os.waitpid(pid, 0)

    def numbers(self, tree, *kinds):
        """Those that it has said, removed at the end of the test whatever becomes of it."""
        line = next(x for x in tree.output().decode().splitlines() if x.startswith("up"))
        numbers = [int(n) for n in line.split()[1:]]
        for kind, number in zip(kinds, numbers):
            remove = {"s": lambda n: libc.semctl(n, 0, IPC_RMID), "q": lambda n: libc.msgctl(n, IPC_RMID, None)}[kind]
            self.addCleanup(remove, number)
        return numbers

    def refused(self, tree, image, code, *words):
        done = subprocess.run([RESTART, image], capture_output=True, text=True, timeout=PATIENCE, env=environment(), check=False)
        self.assertEqual(done.returncode, code, done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)

    def come_back(self, remove, uid=0, generations=1):
        key = 0x51000000 + os.getpid() * 4 + remove * 2 + (uid != 0)
        tree = self.start(BOTH, key, uid=uid)
        sems, queue = self.numbers(tree, "s", "q")
        if remove:
            self.go(tree, "remove")
        pid = tree.child.pid
        for _ in range(generations):
            image = tree.checkpoint(pid)
            self.go(tree, "wrong")
            self.wait_for(tree, "spoiled")
            tree.kill()
            os.unlink(os.path.join(tree.work, "wrong"))
            self.shown(image, sems, queue)
            pid = job_tree.root_of(tree.restart(image))
        self.go(tree)
        self.go(tree, "wrong")
        last = self.end(tree, f"up {sems} {queue}\n")
        texts = [(1 + i % 3, b"message %d " % i * (i + 1) * 7) for i in range(5)] + [(7, b"")]
        twos = [t for t in texts if t[0] == 2]
        self.assertEqual(last, ["[0, 4, 32767, 7] True True", str(twos + [t for t in texts if t not in twos])])

    def shown(self, image, sems, queue):
        images = [n for n in os.listdir(image) if n.endswith(".ckpt")]
        self.assertEqual(len(images), 2)
        for name in images:
            done = subprocess.run([CKPT, "show", "--json", os.path.join(image, name)], capture_output=True, text=True,
                                  env=environment(), check=True)
            objects = {(o["kind"], o["id"]): o for o in json.loads(done.stdout)["system_v"]}
            self.assertEqual(objects["semaphore set", sems]["values"], [3, 0, 32767, 7])
            self.assertEqual([m["type"] for m in objects["message queue", queue]["messages"]], [1, 2, 3, 1, 2, 7])

    def test_values_and_messages(self):
        self.come_back(False)

    def test_removed_since(self):
        if os.geteuid() != 0:
            self.skipTest("needs root to choose numbers")
        self.come_back(True)

    def test_generations(self):
        self.come_back(False, generations=2)

    @staticmethod
    def owners(*numbers):
        """Of semaphore sets and message queues: owner, group, and those of who made it."""
        found = {}
        for kind, number in zip(("sem", "msg"), numbers):
            with open(f"/proc/sysvipc/{kind}", encoding="ascii") as f:
                head, *lines = [line.split() for line in f]
            for line in lines:
                one = dict(zip(head, line))
                if one["semid" if kind == "sem" else "msqid"] == str(number):
                    found[kind] = tuple(int(one[column]) for column in ("uid", "gid", "cuid", "cgid"))
        return found

    def test_the_same_image_twice_after_removal(self):
        """Made again, they still are of who made them first: so the same image knows them when it comes back once more."""
        if os.geteuid() != 0:
            self.skipTest("needs root to choose numbers")
        tree = self.start(OF_ANOTHER, 0x53000000 + os.getpid())
        sems, queue = self.numbers(tree, "s", "q")
        self.assertEqual(self.owners(sems, queue), {"sem": (NOBODY,) * 4, "msg": (NOBODY,) * 4})
        image = tree.checkpoint(tree.child.pid)
        self.go(tree, "remove")
        self.go(tree, "wrong")
        self.wait_for(tree, "spoiled")
        for _ in range(2):
            tree.kill()
            if os.path.exists(os.path.join(tree.work, "wrong")):
                os.unlink(os.path.join(tree.work, "wrong"))
            tree.restart(image)
            self.assertEqual(self.owners(sems, queue), {"sem": (NOBODY,) * 4, "msg": (NOBODY,) * 4})
        self.go(tree)
        self.go(tree, "wrong")
        self.assertEqual(self.end(tree, f"up {sems} {queue}\n")[0], "[0, 4, 32767, 7] True True")

    def test_as_user(self):
        if os.geteuid() != 0:
            self.skipTest("needs root to become another user")
        self.come_back(False, uid=NOBODY)

    def test_a_single_process(self):
        tree = self.start(CHURN)
        sems, = self.numbers(tree, "s")
        image = tree.checkpoint(tree.child.pid)
        self.assertTrue(image.endswith(".ckpt"))
        back = subprocess.run([CKPT, "back", str(tree.child.pid)], capture_output=True, text=True, timeout=PATIENCE,
                              env=environment(), check=False)
        self.assertEqual(back.returncode, 78, back.stderr)
        self.assertIn("System V", back.stderr)
        tree.kill()
        self.set_value(sems, 0, 5)
        tree.restart(image)
        self.go(tree)
        self.assertEqual(self.end(tree, f"up {sems}\n"), ["value 77"])

    def test_memory_that_nobody_has_attached(self):
        tree = self.start(ATTACHES_FOR_A_MOMENT)
        tree.checkpoint(tree.child.pid)
        self.assertEqual(sum("which nobody has attached at this moment" in n for n in tree.cost.get("notes", [])), 1, tree.cost)
        self.go(tree)
        self.assertEqual(tree.child.wait(PATIENCE), 0)

    def test_waiting(self):
        """A call that waits goes on waiting, and then does what it was to do, without EINTR."""
        tree = self.start(WAITING)
        sems, queue, full = self.numbers(tree, "s", "q", "q")
        image = tree.checkpoint(tree.child.pid)
        # Given now what they wait for, they take it; the checkpoint knows nothing of that.
        for number in range(4):
            self.set_value(sems, number, 20)
        tree.kill()
        tree.restart(image)
        self.go(tree)
        results = {"semop": 0, "timed": 0, "receive": (5, b"this"), "push": 0, "undo": 0}
        self.assertEqual(self.end(tree, f"up {sems} {queue} {full}\n"),
                         ["child has it 0", "then 1", f"{sorted(results.items())} [0, 0, 1, 0]"])

    def test_undo(self):
        """The kernel gives back what the dead held: at the kill, which the image does not know, and after the restart."""
        tree = self.start(UNDONE)
        sems, = self.numbers(tree, "s")
        pid = tree.child.pid
        for _ in range(2):
            image = tree.checkpoint(pid)
            tree.kill()
            self.assertEqual([libc.semctl(sems, n, GETVAL) for n in range(3)], [1, 12, 0])
            pid = job_tree.root_of(tree.restart(image))
        self.go(tree)
        self.wait_for(tree, "held")
        self.go(tree, "die")
        self.assertEqual(self.end(tree, f"up {sems}\n"), ["held [0, 9, 6]", "free [1, 12, 0]"])

    def test_undo_that_another_has_forgiven(self):
        """What is left of a debt the kernel alone knows. Of one that the process holds for paid too."""
        tree = self.start(FORGIVEN)
        sems, = self.numbers(tree, "s")
        pid = tree.child.pid
        for _ in range(2):
            image = tree.checkpoint(pid)
            # Asking has changed nothing.
            self.assertEqual([libc.semctl(sems, n, GETVAL) for n in range(4)], [6, 17, 3, 32765])
            tree.kill()
            self.assertEqual([libc.semctl(sems, n, GETVAL) for n in range(4)], [5, 20, 5, 32767])
            pid = job_tree.root_of(tree.restart(image))
        self.go(tree)
        self.assertEqual(self.end(tree, f"up {sems}\n"), ["was [6, 17, 3, 32765]", "is [5, 20, 5, 32767]"])

    def test_many(self):
        tree = self.start(MANY)
        image = tree.checkpoint(tree.child.pid)
        self.go(tree, "wrong")
        self.wait_for(tree, "spoiled")
        tree.kill()
        self.go(tree)
        tree.restart(image)
        self.assertEqual(self.end(tree, "up\n"), ["spoiled", "all removed"])

    def test_what_cannot_be_read(self):
        if os.geteuid() != 0:
            self.skipTest("needs root to become another user")
        tree = self.start(NO_READING, uid=NOBODY)
        queue, = self.numbers(tree, "q")
        with self.assertRaisesRegex(AssertionError, f"(?s)exit code 76.*message queue {queue} .*EACCES"):
            tree.checkpoint(tree.child.pid)

    def test_a_number_that_another_program_has(self):
        """Without a key nothing tells its object from that of the job: it is not written to."""
        tree = self.start(CHURN)
        sems, = self.numbers(tree, "s")
        image = tree.checkpoint(tree.child.pid)
        tree.kill()
        use = COMMON + "sems = int(sys.argv[1]); op((0, 3, 0)); say('used'); sys.stdin.read()"
        with subprocess.Popen([sys.executable, "-c", use, str(sems)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
            self.assertEqual(other.stdout.readline(), b"used\n")
            self.refused(tree, image, 69, f"used by process {other.pid}", f"ipcrm -s {sems}")
            self.assertEqual(libc.semctl(sems, 0, GETVAL), 80)
        tree.restart(image)
        self.go(tree)
        self.assertEqual(self.end(tree, f"up {sems}\n"), ["value 77"])

    def test_refusals(self):
        """Before anything is touched: no right to its number, its key or its number taken by another."""
        tree = self.start(BOTH, 0x52000000 + os.getpid(), uid=NOBODY if os.geteuid() == 0 else 0)
        sems, _ = self.numbers(tree, "s", "q")
        image = tree.checkpoint(tree.child.pid)
        self.assertEqual(["CAP_CHECKPOINT_RESTORE" in n for n in tree.cost.get("notes", [])], [True] * 2, tree.cost)
        tree.kill()
        libc.semctl(sems, 0, IPC_RMID)
        if os.geteuid() == 0:
            as_user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
            done = subprocess.run([*as_user, RESTART, image], capture_output=True, text=True, timeout=PATIENCE,
                                  env=environment(), check=False)
            self.assertEqual(done.returncode, 69, done.stderr)
            self.assertIn(f"semaphore set {sems} ", done.stderr)
        other = libc.semget(0x52000000 + os.getpid(), 4, IPC_CREAT | IPC_EXCL | 0o600)
        self.assertGreaterEqual(other, 0)
        self.addCleanup(libc.semctl, other, 0, IPC_RMID)
        libc.semctl(other, 0, SETVAL, 13)
        self.refused(tree, image, *((77, "--trust") if os.geteuid() == 0 else (69, "has its key")))
        if os.geteuid() == 0:
            done = subprocess.run([RESTART, "--trust", image], capture_output=True, text=True, timeout=PATIENCE,
                                  env=environment(), check=False)
            self.assertEqual(done.returncode, 69, done.stderr)
            self.assertIn("has its key", done.stderr)
        self.assertEqual(libc.semctl(other, 0, GETVAL), 13)


if __name__ == "__main__":
    job_tree.enter_own_ipc()
    unittest.main(verbosity=2)
