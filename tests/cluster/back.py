"""ckpt back of a job over several hosts, each in namespaces of its own: the processes of all hosts go back to one instant in place,
with what was in the connections between them, or nothing is changed and one line says why; or all is restarted, where it failed
half way."""
import glob
import json
import os
import subprocess
import unittest

import over_hosts
from over_hosts import CKPT, ON, clean, wait_for

NUMBERS = os.environ["CKPT_NUMBERS"]

# A ring of three: each gets a number, and sends one more to the next; the first prints every thousandth, as far as the file "limit"
# allows. Each checks that it gets what it must.
RING = """
import os, socket, sys, time
name, after = sys.argv[1:]
s = socket.create_server(('', 5001))
open('listens.' + name, 'w').close()
while not os.path.exists('listens.' + after): time.sleep(0.01)
to = socket.create_connection((after, 5001))
before = s.accept()[0]
to.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
extra = []
def get():
    data = b''
    while len(data) < 8:
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


class Back(over_hosts.OverHosts):
    count = 3

    def back(self, pid, *more, host=None, ok=True):
        words = (self.hosts.enter(host) if host else []) + [CKPT, "back", "--json", str(pid), *more]
        done = subprocess.run(words, capture_output=True, text=True, timeout=200, env=clean())
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

    def run_ring(self):
        with open(self.dir + "/ring.py", "w", encoding="ascii") as f:
            f.write(RING)
        self.limit(2000)
        job = self.run_job("sh", "-c", f"{ON} h2 python3 ring.py h2 h3 & {ON} h3 python3 ring.py h3 h1 & python3 ring.py h1 h2; wait",
                           hosts="h1,h2,h3")
        self.comes_to(2000)
        self.leads(job.pid)
        return job

    def comes_to(self, n, times=1):
        wait_for(lambda: f"round {n}: {self.said()}", lambda: self.texts["out"][0].count(f"round {n}\n".encode()) >= times)

    def test_ring(self):
        """There and back, more than once; to an older checkpoint as well. Connections that were made since are closed."""
        job = self.run_ring()
        first = self.now(job.pid)
        self.limit(5000)
        self.comes_to(5000)
        said = self.back(job.pid)
        self.assertEqual((said["hosts"], said["checkpoint"]), (3, first["checkpoint"]))
        self.assertGreaterEqual(said["connections"], 5)
        self.comes_to(5000, 2)
        # The lines are those of the way from 2000 on, twice; nothing of it was restarted. (It may have said 3000 when the checkpoint came.)
        self.assertEqual(self.said().count("round 2000\n"), 1)
        self.assertEqual(self.said().count("round 4000\n"), 2, self.said())
        self.now(job.pid)
        self.limit(7000)
        self.comes_to(7000)
        # Not twice the same attempt: the one before is over on all hosts.
        for _ in range(3):
            self.back(self.pid_of("h3", "python3 ring.py"), host="h3")
        self.comes_to(7000, 2)
        self.back(self.pid_of("h1", "python3 ring.py"), first["checkpoint"], host="h1")
        self.comes_to(4000, 3)
        self.comes_to(7000, 3)
        self.limit(10**9)
        self.assertEqual(job.wait(60), 0, self.said())
        self.assertEqual(sorted(line.split()[0] for line in self.said().splitlines() if "ended" in line), ["h1", "h2", "h3"])

    def test_who_asks_goes(self):
        """`ckpt back-part` of one host is killed: ahead of the decision all go on as they were, behind it all are restarted."""
        for point, restarted in (("back.held", False), ("back.ready", False), ("back.cutting", True), ("back.committed", True)):
            with self.subTest(point=point):
                self.launch = f"{self.hosts.launch} env CKPT_TEST_POINT={point}@h2=kill"
                self.images = f"{self.dir}/{point}"
                for left in glob.glob(self.dir + "/listens.*"):
                    os.unlink(left)
                job = self.run_ring()
                taken = self.now(job.pid)
                self.limit(4000)
                self.comes_to(4000)
                if restarted:
                    said = self.back(job.pid)
                    self.assertTrue(said["restarted"])
                    self.assertIn("h2: back-part ended without a word", said["notes"][0])
                    self.assertEqual(said["checkpoint"], taken["checkpoint"])
                    self.comes_to(4000, 2)
                else:
                    done = self.back(job.pid, ok=False)
                    self.assertEqual(done.returncode, 70, done.stderr)
                    self.assertIn("the job goes on as it was", done.stderr)
                    self.limit(5000)
                    self.comes_to(5000)
                    self.assertEqual(self.said().count("round 4000\n"), 1)
                self.limit(10**9)
                self.assertEqual(job.wait(60), 0, self.said())

    def test_what_cannot_go_back(self):
        """A part alone; what is no checkpoint; where a process has ended since."""
        job = self.run_ring()
        self.now(job.pid)
        [part] = glob.glob(f"{self.images}/h1/*.job")
        done = self.hosts.run("h1", CKPT, "back", part, timeout=120)
        self.assertEqual(done.returncode, 78, done.stdout + done.stderr)
        self.assertIn("several hosts", done.stderr)
        done = self.back(job.pid, self.dir + "/nothing.hosts", ok=False)
        self.assertEqual(done.returncode, 66, done.stdout + done.stderr)
        # Who is of the job would be ended by it.
        hosts = self.hosts.run("h1", "sh", "-c", "tr '\\0' '\\n' < /proc/%d/environ | grep -E '^CKPT_(HOSTS|JOB)='" %
                               self.pid_of("h1", "python3 ring.py")).stdout.split()
        done = self.hosts.run("h1", "env", *hosts, CKPT, "back", str(self.pid_of("h1", "python3 ring.py")), timeout=120)
        self.assertEqual(done.returncode, 78, done.stdout + done.stderr)
        self.assertIn("started by the job", done.stderr)
        # The third's end of the ring.
        self.hosts.run("h3", "kill", "-9", str(self.pid_of("h3", "python3 ring.py")))
        done = self.back(job.pid, ok=False)
        self.assertEqual(done.returncode, 78, done.stdout + done.stderr)
        self.assertIn("has ended since the checkpoint", done.stderr)
        self.assertIn("the job goes on as it was", done.stderr)

    def test_full_queues(self):
        """Both ends send as fast as they can, at any instant."""
        total = 60_000_000
        job = self.run_job("sh", "-c", f"{ON} h2 {NUMBERS} server 5000 {total} {self.dir}/go & {NUMBERS} client h2 5000 {total} {self.dir}/go && wait $!")
        wait_for("the connection", lambda: ":5000" in self.hosts.run("h1", "ss", "-tnH", "state", "established").stdout)
        self.leads(job.pid)
        self.now(job.pid)
        for _ in range(3):
            self.back(job.pid)
        self.now(job.pid)
        self.back(job.pid)
        open(self.dir + "/go", "w").close()
        self.assertEqual(job.wait(120), 0, self.said())
        self.assertEqual(self.said().count(f"sum {total * (total - 1) // 2}"), 2, self.said())


if __name__ == "__main__":
    unittest.main()
