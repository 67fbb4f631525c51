#!/usr/bin/env python3
"""Files, memory and connections that several members of a job have: of other users, removed, kept beside images, held back."""
import os
import sys
import unittest
import zlib

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import job_tree
from job_tree import CKPT, NOBODY, Tree, check_refused, wait_for

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

# Of a pipe and of a memfd one member alone has an end or a mapping; the other end, or the descriptor, waits in a socket of its own.
WAITS_IN_A_SOCKET = """
import mmap, os, socket, time
there, here = socket.socketpair()
reader, writer = os.pipe()
file = os.memfd_create('waits')
os.truncate(file, 4096)
memory = mmap.mmap(file, 4096)
memory[0] = 65
os.write(writer, b'first ')
socket.send_fds(there, [b'm'], [writer, file])
os.close(writer)
os.close(file)
if (child := os.fork()) == 0:
    os.close(reader)
    memory.close()
    there.close()
    here.close()
    while not os.path.exists('go'): time.sleep(0.005)
    os._exit(3)
print('up', flush=True)
while not os.path.exists('go'): time.sleep(0.005)
os.waitpid(child, 0)
writer, file = socket.recv_fds(here, 1, 2)[1]
try:
    os.write(writer, b'second')
except BrokenPipeError as error:
    print(error)
os.pwrite(file, b'B', 1)
os.close(writer)
print(os.read(reader, 100), memory[:3], os.read(reader, 100), flush=True)
"""


class SharedThings(unittest.TestCase):
    def test_an_end_that_waits_in_a_socket_and_the_other_one(self):
        for uid in (0, NOBODY) if os.geteuid() == 0 else (0,):
            with self.subTest(uid=uid):
                tree = Tree("waits-in-a-socket", ["python3", "-c", WAITS_IN_A_SOCKET], uid=uid)
                failed = True
                try:
                    tree.run()
                    wait_for(lambda: tree.output() == b"up\n", "the program")
                    image = tree.checkpoint(tree.child.pid)
                    tree.kill()
                    tree.restart(image)
                    with open(os.path.join(tree.work, "go"), "w", encoding="utf-8"):
                        pass
                    self.assertEqual(tree.finish(), (0, b"up\nb'first second' b'AB\\x00' b''\n"), tree.said())
                    failed = False
                finally:
                    tree.close(failed)


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
        wait_for(lambda: b"up" in tree.output(), f"the process of another user: {tree.read('err')}")
        image = tree.checkpoint(tree.child.pid)
        tree.kill()
        owners = {os.stat(os.path.join(image, n)).st_uid for n in os.listdir(image) if n.endswith(".ckpt")}
        self.assertEqual(owners, {0, NOBODY})
        check_refused(self, tree, image, 77, f" user {NOBODY}", "--trust")
        tree.restart(image, "--trust")
        open(os.path.join(tree.work, "go"), "w").close()
        self.assertEqual(tree.finish(), (0, b"up 65534\nended 0\n"))

    def test_files_saved_by_a_member_of_another_user(self):
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
                saved = os.path.join(image, "job.files")
                for directory in (image, saved):
                    st = os.stat(directory)
                    self.assertEqual((st.st_uid, st.st_mode & 0o7777), (0, 0o700), directory)
                owners = [os.lstat(os.path.join(saved, n)).st_uid for n in os.listdir(saved)]
                self.assertIn(NOBODY, owners)
                names = [os.path.join(tree.work, n) for n in ("file", "theirs/file")]
                for name in names:
                    os.unlink(name)
                check_refused(self, tree, image, 77, f" user {NOBODY}", "--trust")
                tree.restart(image, "--trust")
                for name in names:
                    with open(name) as f:
                        self.assertIn("file", f.read())
                open(os.path.join(tree.work, "go"), "w").close()
                code_of, out = tree.finish()
                self.assertEqual((code_of, sorted(out.splitlines())), (0, [b"of file", b"of theirs/file", b"up", b"up"]))

    def test_a_removed_file_that_is_saved(self):
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
                name = f"/dev/shm/ckpt-test-shared.{os.getpid()}"
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


if __name__ == "__main__":
    job_tree.enter_own_network()
    unittest.main(verbosity=2)
