"""Several parts of a job on one host: all ids of processes are the same in them, and so are the ports that they listen at,
the names of files in /dev/shm, the key and number of System V memory."""
import os
import socket
import struct
import subprocess
import unittest

import over_hosts
from over_hosts import CKPT, ON, RESTART, clean, wait_for

# Says in each life what it finds at each address that it knows, at its own and at those of the connections that it has had
# since the first life. The address behind a connection is that of the job, whoever looks.
NODE = """
import ctypes, mmap, os, socket, sys, threading, time
name, addresses = sys.argv[1], sys.argv[2:]
def serve():
    while True:
        c, a = listener.accept()
        threading.Thread(target=answer, args=(c, a), daemon=True).start()
        del c  # its thread closes it
def answer(c, a):
    while c.recv(1):
        c.sendall(f'{name} of {a[0]} {c.getpeername()[0]} {c.getsockname()}'.encode().ljust(100))
def ask(c):
    said = b''
    try:
        c.sendall(b'?')
        while len(said) < 100:
            part = c.recv(100 - len(said))
            if not part:
                raise EOFError
            said += part
    except OSError as e:
        raise OSError(f'{name}: descriptor {c.fileno()} of {[k.fileno() for k in kept]}: {e}')
    except EOFError:
        raise EOFError(f'{name}: descriptor {c.fileno()} of {[k.fileno() for k in kept]}: it has ended')
    return f'{c.getsockname()[0]} to {c.getpeername()}: {said.decode().strip()}'
listener = socket.create_server(('', 5001))
own = socket.create_server(('127.0.0.1', 5002))
threading.Thread(target=serve, daemon=True).start()
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
segment = libc.shmat(libc.shmget(0x4711, 4096, 0o1600), None, 0)
ctypes.memmove(segment, name.encode(), 2)
file = os.open('/dev/shm/node', os.O_RDWR | os.O_CREAT)
os.ftruncate(file, 4096)
shared = mmap.mmap(file, 4096)
shared[:2] = name.encode()
open('listens.' + name, 'w').close()
while not all(os.path.exists(f'listens.{n}') for n in ('h1', 'h2', 'h3')):
    time.sleep(0.01)
kept = [socket.create_connection((a, 5001)) for a in addresses]
for life in ('first', 'second', 'third', 'fourth'):
    while not os.path.exists(life):
        time.sleep(0.01)
    near = socket.create_connection(('127.0.0.1', 5002))
    met = own.accept()[0]
    lines = [f'{name} {os.getpid()} {listener.getsockname()} {near.getpeername()} {met.getsockname()} '
             f'{ctypes.string_at(segment, 2)} {shared[:2]} {os.pread(file, 2, 0)}']
    for a, c in zip(addresses, kept):
        fresh = socket.create_connection((a, 5001))
        lines += [f'{name} kept {ask(c)}', f'{name} new {ask(fresh)}']
        fresh.close()
    os.write(1, ('\\n'.join(lines) + '\\n').encode())
    open(f'said.{name}.{life}', 'w').close()
while not os.path.exists('end'):
    time.sleep(0.01)
"""


# h1 has connections to h3 whose ports are every 20th of the slice that h2 gets on one host with them. h2 then connects to h1,
# whose address is that of h3 now: the kernel could give it such a port, for the other end has another.
PORTS = """
import os, socket, struct, sys, threading, time
name, one, three = sys.argv[1:]
listener = socket.create_server(('', 5001), backlog=1000)
def serve():
    while True:
        c, a = listener.accept()
        c.sendall(f'{a[0]} {c.getpeername()[0]}\\n'.encode())
        held.append(c)
held = []
threading.Thread(target=serve, daemon=True).start()
open('listens.' + name, 'w').close()
while not all(os.path.exists(f'listens.{n}') for n in ('h1', 'h2', 'h3')):
    time.sleep(0.01)
if name == 'h1':
    for port in range(42178, 51588, 20):
        c = socket.socket()
        c.setsockopt(socket.IPPROTO_IP, 51, struct.pack('HH', port, port))  # IP_LOCAL_PORT_RANGE: chosen, not bound
        c.connect((three, 5001))
        assert c.getsockname()[1] == port
        held.append(c)
open('said.' + name + '.first', 'w').close()
while not os.path.exists('second'):
    time.sleep(0.01)
if name == 'h2':
    wrong = set()
    for i in range(300):
        c = socket.create_connection((one, 5001))
        said = c.makefile().readline()
        if said.split() != [c.getsockname()[0]] * 2:
            wrong.add((c.getsockname(), said))
        held.append(c)
    print('wrong:', wrong, flush=True)
open('said.' + name + '.second', 'w').close()
while not os.path.exists('end'):
    time.sleep(0.01)
"""


class Fewer(over_hosts.OverHosts):
    count = 4
    ids_apart = 0

    def test_two_and_three_parts_on_a_host(self):
        self.two_and_three(self.hosts.launch)

    def test_not_as_root(self):
        """Each part has a user namespace as well."""
        user = 65534
        if subprocess.run(["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "unshare", "-Urim", CKPT, "--version"],
                          capture_output=True, check=False).returncode != 0:
            self.skipTest("that user cannot make namespaces, or cannot reach ckpt")
        os.chown(self.dir, user, user)
        os.chmod(self.dir, 0o711)
        os.mkdir(self.images, 0o711)
        for name in ("h1", "h2", "h3"):
            os.mkdir(f"{self.images}/{name}", 0o700)
            os.chown(f"{self.images}/{name}", user, user)
        self.two_and_three(f"{self.hosts.launch} setpriv --reuid={user} --regid={user} --clear-groups")

    def test_a_port_tells_the_part(self):
        if self.kernel_takes_no_range():
            self.skipTest("this kernel has no IP_LOCAL_PORT_RANGE")
        with open(self.dir + "/ports.py", "w", encoding="ascii") as f:
            f.write(PORTS)
        ends = f"{self.hosts.address('h1')} {self.hosts.address('h3')}"
        job = self.run_job("sh", "-c", f"{ON} h2 python3 ports.py h2 {ends} & {ON} h3 python3 ports.py h3 {ends} & "
                           f"python3 ports.py h1 {ends}; wait", hosts="h1,h2,h3")
        self.wait_for_words("first", job)
        self.leads(job.pid)
        self.now(job.pid)
        self.kill_all(job)
        job = self.start([RESTART, self.images, "--hosts", "h4", "--launch", self.hosts.launch], "second")
        open(self.dir + "/second", "w").close()
        self.wait_for_words("second", job)
        open(self.dir + "/end", "w").close()
        self.assertEqual(job.wait(240), 0, self.said("second"))
        self.assertIn("wrong: set()", self.said("second"))

    def kernel_takes_no_range(self):
        with socket.socket() as s:
            try:
                s.setsockopt(socket.IPPROTO_IP, 51, struct.pack('HH', 40000, 40001))
            except OSError:
                return True
        return False

    def wait_for_words(self, life, job):
        wait_for(f"the {life} life's words", lambda: all(os.path.exists(f"{self.dir}/said.h{i}.{life}") for i in (1, 2, 3)) or
                 job.poll() is not None)

    def two_and_three(self, launch):
        self.launch = launch
        with open(self.dir + "/node.py", "w", encoding="ascii") as f:
            f.write(NODE)
        addresses = " ".join(self.hosts.address(n) for n in ("h1", "h2", "h3"))
        job = self.run_job("sh", "-c", f"{ON} h2 python3 node.py h2 {addresses} & {ON} h3 python3 node.py h3 {addresses} & "
                           f"python3 node.py h1 {addresses}; wait", hosts="h1,h2,h3")
        wait_for("the nodes", lambda: all(os.path.exists(f"{self.dir}/listens.h{i}") for i in (1, 2, 3)) or job.poll() is not None)
        seen, name = None, "out"
        for life, where in (("first", "h4"), ("second", "h2,h4"), ("third", "h3,h1,h2"), ("fourth", None)):
            open(f"{self.dir}/{life}", "w").close()
            self.wait_for_words(life, job)
            wait_for("all lines", lambda n=name: self.texts[n][0].count(b"\n") >= 21 or job.poll() is not None)
            lines = sorted(self.texts[name][0].decode().splitlines())
            if seen is None:
                self.assertEqual(len(lines), 21, self.said(name))
                for i in (1, 2, 3):
                    at = self.hosts.address(f"h{i}")
                    self.assertEqual(len([line for line in lines if f": h{i} of" in line and f"('{at}', 5001)" in line]), 6, lines)
            self.assertEqual(lines, seen or lines, f"{life}: {self.said(name)}")
            seen = lines
            if where is None:
                break
            self.leads(job.pid)
            self.goes_back(job)
            self.kill_all(job)
            name = life
            job = self.start([RESTART, self.images, "--hosts", where, "--launch", launch], name)
        open(self.dir + "/end", "w").close()
        self.assertEqual(job.wait(240), 0, self.said(name))

    def goes_back(self, job):
        """In place, in all of these namespaces. A connection that was just being closed at the checkpoint is none any more: then the next checkpoint is without it."""
        for _ in range(10):
            self.assertEqual(self.now(job.pid)["hosts"], 3)
            done = subprocess.run([CKPT, "back", "--json", str(job.pid)], capture_output=True, text=True, check=False, timeout=240, env=clean())
            if done.returncode != 78 or "was shut down, closed or reset since" not in done.stderr and "was closed since" not in done.stderr:
                break
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_more_hosts_than_parts(self):
        job = self.run_job("sh", "-c", "echo up; while [ ! -e end ]; do sleep 0.1; done; echo ended")
        wait_for("the program", lambda: b"up" in self.texts["out"][0])
        self.leads(job.pid)
        self.now(job.pid)
        self.kill_all(job)
        back = self.start([RESTART, self.images, "--hosts", "h1,h2,h3,h4", "--launch", self.hosts.launch], "back")
        open(self.dir + "/end", "w").close()
        self.assertEqual(back.wait(240), 0, self.said("back"))
        self.assertIn("h3 is not needed: the checkpoint has 2 parts", self.said("back"))
        self.assertIn("ended", self.said("back"))


if __name__ == "__main__":
    unittest.main()
