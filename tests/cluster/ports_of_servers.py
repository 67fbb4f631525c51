"""A server at a port that the kernel chooses has clients with lower ports and clients with higher ones. Of a connection the end with the lower
port listens when it is made again: so that server's host listens at the port and connects from it."""
import os
import unittest

from over_hosts import CKPT, ON, RESTART, JobOfNumbers, clean, wait_for

COMMON = ("import os, socket, time\ndef wait(name):\n while not os.path.exists(name): time.sleep(0.01)\n"
          "def reuse(c): return c.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR), c.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT)\n"
          "def say(*words): os.write(1, (' '.join(map(str, words)) + '\\n').encode())\n"  # at once: the other one writes to the same pipe
          "def ends(c): return (c.getsockname()[1], c.getpeername()[1], *reuse(c))\n")
SCRIPTS = {
    "server": "s = socket.socket()\ns.bind(('', 50000))\ns.listen()\nopen('listens', 'w').close()\nall = [s.accept()[0] for _ in range(2)]\nopen('up', 'w').close()\n"
              "wait('go')\nall.append(s.accept()[0])\nsay('server', *(ends(c) for c in all[:2]), reuse(s))\n"
              "for c in all: c.sendall(c.recv(5))\n",
    "client": "all = []\nwait('listens')\nfor port in (40001, 60001):\n all.append(socket.socket())\n all[-1].bind(('', port))\n all[-1].connect(('h2', 50000))\n"
              "wait('go')\nall.append(socket.create_connection(('h2', 50000)))\nsay('client', *(ends(c) for c in all[:2]))\n"
              "for c in all: c.sendall(b'hello')\nsay(*(c.recv(5) for c in all))\n"}


class PortsOfServers(JobOfNumbers):
    count = 4

    def begin(self):
        for name, text in SCRIPTS.items():
            with open(f"{self.dir}/{name}.py", "w", encoding="ascii") as f:
                f.write(COMMON + text)
        job = self.run_job("sh", "-c", f"{ON} h2 python3 server.py & python3 client.py; wait")
        wait_for(lambda: "the connections: " + self.said(), lambda: os.path.exists(self.dir + "/up") or job.poll() is not None)
        self.leads(job.pid)
        return job

    def check_end(self, job, name):
        open(self.dir + "/go", "w").close()
        self.assertEqual(job.wait(240), 0, self.said(name))
        said = self.said(name)
        self.assertNotIn("another one", said)
        self.assertEqual(sorted(self.texts[name][0].decode().splitlines()),
                         ["b'hello' b'hello' b'hello'", "client (40001, 50000, 0, 0) (60001, 50000, 0, 0)",
                          "server (50000, 40001, 0, 0) (50000, 60001, 0, 0) (0, 0)"], said)

    def test_without_a_checkpoint(self):
        self.check_end(self.begin(), "out")

    def test_restart(self):
        job = self.begin()
        self.now(job.pid)
        self.kill_all(job)
        self.check_end(self.start([RESTART, "--hosts", "h3,h4", "--launch", self.hosts.launch, self.images], "back"), "back")

    def test_migrate(self):
        """First the clients go and the server stays, then the server goes."""
        job = self.begin()
        for start, end in (("h1", "h3"), ("h2", "h4")):
            done = self.start([CKPT, "migrate", "--json", str(job.pid), "--from", start, "--to", end], end)
            self.assertEqual(done.wait(240), 0, self.said(end) + self.said())
            self.assertIn('"in_place":true', self.texts[end][0].decode().replace(" ", ""), self.said(end))
        self.check_end(job, "out")


if __name__ == "__main__":
    unittest.main()
