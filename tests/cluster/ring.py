"""A ring of three processes over three hosts, which pass on a number and check it, and what tests do with it."""
import json
import os
import subprocess

import over_hosts
from over_hosts import CKPT, ON, RESTART, clean, wait_for

# A ring of three: each gets a number, and sends one more to the next; the first prints every thousandth, as far as the file "limit"
# allows. Each checks that it gets what it must.
RING = """
import os, select, socket, sys, time
name, after = sys.argv[1:]
s = socket.create_server(('', 5001))
open('listens.' + name, 'w').close()
while not os.path.exists('listens.' + after): time.sleep(0.01)
to = socket.create_connection((after, 5001))
before = s.accept()[0]
to.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
extra = []
if name == 'h3':
    # Another process has all of its sockets, too, and an epoll of its own watches one.
    parent = os.getpid()
    if os.fork() == 0:
        while os.getppid() == parent: time.sleep(0.05)
        os._exit(0)
    watch = select.epoll()
    watch.register(before, select.EPOLLIN)
def get():
    data = b''
    while len(data) < 8:
        if name == 'h3': watch.poll()
        part = before.recv(8 - len(data))
        if not part: raise EOFError
        data += part
    return int.from_bytes(data, 'little')
def limit():
    try:
        with open('limit') as f: return int(f.read())
    except (OSError, ValueError): return 0
first, expected, n = name == 'h1', None, 0
while True:
    if first:
        if n % 1000 == 0:
            print('round', n, flush=True)
            while limit() < n: time.sleep(0.01)
            if limit() == 10**9: n = 2**40
            if n % 2000 == 1000:
                extra.append(socket.create_connection((after, 5001)))
        to.sendall(n.to_bytes(8, 'little'))
        if n == 2**40: break
        got = get()
        if got != n + 2: sys.exit(f'{got} instead of {n + 2}')
        n += 1
    else:
        got = get()
        if expected is not None and got != expected and got < 2**40: sys.exit(f'{got} instead of {expected}')
        expected = got + 1
        if got >= 2**40:
            to.sendall(got.to_bytes(8, 'little'))
            break
        to.sendall((got + 1).to_bytes(8, 'little'))
        s.settimeout(0)
        try: extra.append(s.accept()[0])
        except OSError: pass
os.write(1, f'{name} ended\\n'.encode())
"""


class OnRing(over_hosts.OverHosts):
    count = 3

    def back(self, pid, *more, host=None, ok=True):
        words = (self.hosts.enter(host) if host else []) + [CKPT, "back", "--json", str(pid), *more]
        done = subprocess.run(words, capture_output=True, text=True, timeout=240, env=clean())
        if not ok:
            return done
        self.assertEqual(done.returncode, 0, done.stderr + self.said())
        return json.loads(done.stdout)

    def pid_of(self, host, words):
        return next(p for p, w in self.hosts.processes(host) if w.startswith(words))

    def limit(self, n):
        with open(self.dir + "/new", "w", encoding="ascii") as f:
            f.write(str(n))
        os.rename(self.dir + "/new", self.dir + "/limit")

    def run_ring(self, *options, at_h3=""):
        """at_h3: what is ahead of the command there."""
        with open(self.dir + "/ring.py", "w", encoding="ascii") as f:
            f.write(RING)
        self.limit(2000)
        job = self.run_job("sh", "-c", f"{ON} h2 python3 ring.py h2 h3 & {ON} h3 {at_h3} python3 ring.py h3 h1 & python3 ring.py h1 h2; wait",
                           options=options, hosts="h1,h2,h3")
        self.comes_to(2000)
        self.leads(job.pid)
        return job

    def comes_back(self, hosts, *options):
        """Of a checkpoint, when all has been killed. What it says is "out" again."""
        back = self.start([RESTART, "--hosts", hosts, "--launch", self.launch or self.hosts.launch, *options, self.images])
        self.leads(back.pid)
        return back

    def comes_to(self, n, times=1):
        wait_for(lambda: f"round {n}: {self.said()}", lambda: self.texts["out"][0].count(f"round {n}\n".encode()) >= times)
