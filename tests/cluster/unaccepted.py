"""Connections that nobody has accepted at the checkpoint, with bytes in them, of clients that stay and that are gone: the program
accepts them afterwards, and again after a restart, as if nothing had been."""
import os
import unittest

import over_hosts
from over_hosts import ON, RESTART, wait_for

SERVER = """
import os, select, socket, sys, time
def wait(name):
    while not os.path.exists(name):
        time.sleep(0.01)
listener = socket.create_server(('', 5001), backlog=20)
listener.setblocking(False)
waits = select.epoll()
waits.register(listener, select.EPOLLIN)
near = socket.create_connection(('127.0.0.1', 5001))
near.sendall(b'near')
near.close()
open('listens', 'w').close()
wait('accept')
kept = []
for i in range(int(sys.argv[1])):
    assert waits.poll(240) and select.select([listener], [], [], 0)[0], f'{i} came'
    c, address = listener.accept()
    c.setblocking(True)
    said = b''
    while not said.endswith(b'.'):
        part = c.recv(100)
        if not part:
            break
        said += part
    if said.endswith(b'.'):
        c.sendall(said)
        assert c.getpeername() == address, (c.getpeername(), address)
    os.write(1, f'accepted {address[0]} {said.decode()} {c.get_inheritable()}\\n'.encode())
    kept.append(c)
assert not waits.poll(0.2)
"""
CLIENT = """
import os, socket, sys, time
def wait(name):
    while not os.path.exists(name):
        time.sleep(0.01)
wait('listens')
stays = socket.create_connection(('h2', 5001))
stays.sendall(b'x' * 3000 + b'one.')
gone = socket.create_connection(('h2', 5001))
gone.sendall(b'gone')
gone.close()
silent = socket.create_connection(('h2', 5001))
open('sent', 'w').close()
answered = [stays, silent]
if sys.argv[1] == '5':
    wait('more')
    late = socket.create_connection(('h2', 5001))
    late.sendall(b'late.')
    answered.append(late)
    open('sent more', 'w').close()
wait('accept')
silent.sendall(b'silent.')
# Until all are answered: the server looks who is at the other end.
for c in answered:
    said = b''
    while not said.endswith(b'.'):
        said += c.recv(5000)
    os.write(1, f'answered {len(said)}\\n'.encode())
"""


class Unaccepted(over_hosts.OverHosts):
    count = 4

    def begin(self, connections):
        for name, text in (("server", SERVER), ("client", CLIENT)):
            with open(f"{self.dir}/{name}.py", "w", encoding="ascii") as f:
                f.write(text)
        job = self.run_job("sh", "-c", f"{ON} h2 python3 server.py {connections} & python3 client.py {connections} && wait $!")
        wait_for("the clients", lambda: os.path.exists(self.dir + "/sent") or job.poll() is not None)
        self.leads(job.pid)
        return job

    def take(self, job):
        """One checkpoint, asked for once: a refusal is a failure."""
        self.assertIsNone(job.poll(), self.said())
        done = self.now(job.pid, ok=False)
        self.assertEqual(done.returncode, 0, done.stderr + self.said())

    def check(self, job, name, late=False):
        self.assertEqual(job.wait(240), 0, self.said(name))
        h1 = self.hosts.address("h1")
        lines = ["accepted 127.0.0.1 near False", f"accepted {h1} {'x' * 3000}one. False", f"accepted {h1} gone False",
                 f"accepted {h1} silent. False", "answered 3004", "answered 7"]
        lines += [f"accepted {h1} late. False", "answered 5"] if late else []
        self.said(name)
        self.assertEqual(sorted(self.texts[name][0].decode().splitlines()), sorted(lines), self.texts[name][1].decode())

    def test_the_program_goes_on(self):
        job = self.begin(4)
        self.take(job)
        open(self.dir + "/accept", "w").close()
        self.check(job, "out")

    def test_on_other_hosts(self):
        """Three generations, of which the second has both parts on one host: what is kept is kept again, and one more has come."""
        job = self.begin(5)
        self.take(job)
        open(self.dir + "/more", "w").close()
        wait_for("one more", lambda: os.path.exists(self.dir + "/sent more") or job.poll() is not None)
        self.take(job)
        self.kill_all(job)
        for hosts in ("h3,h4", "h4"):
            job = self.start([RESTART, "--hosts", hosts, "--launch", self.hosts.launch, self.images], hosts)
            self.leads(job.pid)
            self.take(job)
            self.kill_all(job)
        job = self.start([RESTART, "--hosts", "h2,h1", "--launch", self.hosts.launch, self.images], "last")
        open(self.dir + "/accept", "w").close()
        self.check(job, "last", late=True)

    def test_who_may_ask(self):
        """Another user of the host is turned away at once: he must not use up descriptors."""
        self.run_job("sleep", "1001")
        wait_for("the program", lambda: any(w == "sleep 1001" for _, w in self.hosts.processes("h1")))
        asks = ("import os, socket\n[name] = {line.split('@')[1].strip() for line in open('/proc/net/unix') if '@ckpt_rt.unaccepted.' in line}\n"
                "os.setuid(65534)\ns = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\ns.settimeout(240)\ns.connect('\\0' + name)\n"
                "print(s.recv(1))\n")
        self.assertEqual(self.hosts.run("h2", "/usr/bin/python3", "-c", asks).stdout, "b''\n")

    def test_nobody_accepts(self):
        """The listening socket is closed: its clients are told so."""
        with open(self.dir + "/server.py", "w", encoding="ascii") as f:
            f.write("import os, socket, time\nlistener = socket.create_server(('', 5001))\nopen('listens', 'w').close()\n"
                    "while not os.path.exists('close'): time.sleep(0.01)\nlistener.close()\nopen('closed', 'w').close()\n")
        with open(self.dir + "/client.py", "w", encoding="ascii") as f:
            f.write("import os, socket, time\nwhile not os.path.exists('listens'): time.sleep(0.01)\n"
                    "c = socket.create_connection(('h2', 5001))\nc.sendall(b'unread')\nopen('sent', 'w').close()\n"
                    "while not os.path.exists('closed'): time.sleep(0.01)\n"
                    "try:\n print('received', c.recv(1))\nexcept ConnectionResetError:\n print('reset')\n")
        job = self.run_job("sh", "-c", f"{ON} h2 python3 server.py & python3 client.py && wait $!")
        wait_for("the client", lambda: os.path.exists(self.dir + "/sent") or job.poll() is not None)
        self.leads(job.pid)
        self.take(job)
        open(self.dir + "/close", "w").close()
        self.assertEqual(job.wait(240), 0, self.said())
        self.assertEqual(self.said(), "reset\n")


if __name__ == "__main__":
    unittest.main()
