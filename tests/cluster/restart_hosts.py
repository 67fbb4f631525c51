"""Jobs over several hosts that were killed: they come back on the same hosts and on others, with their addresses and what waited in their
connections."""
import glob
import json
import os
import subprocess
import unittest

from over_hosts import ON, RESTART, JobOfNumbers, wait_for


class Restart(JobOfNumbers):
    count = 4
    total = 150_000_000

    def bring_back(self, hosts, name):
        return self.start([RESTART, "--hosts", hosts, "--launch", self.hosts.launch, self.images], name)

    def check_end(self, job, name):
        self.go()
        self.assertEqual(job.wait(300), 0, self.said(name))
        self.assertEqual(self.said(name).count(f"sum {self.total * (self.total - 1) // 2}"), 2, self.said(name))

    def test_on_the_same_hosts(self):
        job = self.run_numbers(self.total)
        self.connected()
        self.leads(job.pid)
        self.now(job.pid)
        self.kill_all(job)
        self.check_end(self.bring_back("h1,h2", "again"), "again")

    def test_an_older_agent_is_about_to_end(self):
        """It was killed, and is not gone yet: the next one of the same job on that host waits for its end."""
        job = self.run_numbers(self.total)
        self.connected()
        self.leads(job.pid)
        self.now(job.pid)
        self.kill_all(job)
        [record] = glob.glob(f"{self.images}/*.hosts")
        with open(record, encoding="ascii") as f:
            name = f"ckpt_rt.agent.{json.load(f)['job']}.h1"
        # Ends when somebody has connected.
        older = ("import socket, sys\ns = socket.socket(socket.AF_UNIX)\ns.bind('\\0' + sys.argv[1])\ns.listen()\n"
                 "print('listens', flush=True)\ns.accept()\n")
        with subprocess.Popen([*self.hosts.enter("h1"), "/usr/bin/python3", "-c", older, name], stdout=subprocess.PIPE, text=True) as held:
            self.addCleanup(held.kill)
            self.assertEqual(held.stdout.readline(), "listens\n")
            back = self.bring_back("h1,h2", "back")
            self.assertEqual(held.wait(240), 0)
        self.check_end(back, "back")

    def test_queues_larger_than_their_room(self):
        """Bytes that came when there was room stay when the program makes it smaller, and come back so. One queue is larger than
        anybody may make it without a right. The other end has a byte of its own on its way back."""
        sizes = (6_000_000, 40_000_000)
        scripts = {
            "server": "waiting = []\nfor n in sizes:\n s = socket.create_server(('', 5001 + len(waiting)))\n"
                      " s.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, n * 2)\n open(f'listens{len(waiting)}', 'w').close()\n"
                      " waiting.append((s.accept()[0], n))\n"
                      "for c, n in waiting:\n while queued(c) < n: time.sleep(0.01)\n"
                      " c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)\n c.sendall(b'!')\n"
                      "open('up', 'w').close()\nwait('go')\n"
                      "print('queued', *(queued(c) for c, n in waiting), *(c.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) for c, n in waiting), flush=True)\n"
                      "for c, n in waiting:\n data = b''.join(iter(lambda: c.recv(1 << 20), b''))\n"
                      " print('read', len(data), data == pattern(n), flush=True)\n",
            "client": "all = []\nfor i, n in enumerate(sizes):\n wait(f'listens{i}')\n all.append(socket.create_connection(('h2', 5001 + i)))\n all[-1].sendall(pattern(n))\n"
                      "wait('go')\nprint('answers', *(c.recv(10) for c in all), flush=True)\n"}
        for name, text in scripts.items():
            with open(f"{self.dir}/{name}.py", "w", encoding="ascii") as f:
                f.write("import array, fcntl, os, socket, termios, time\nSO_RCVBUFFORCE = 33\n"
                        f"sizes = {sizes}\ndef wait(name):\n while not os.path.exists(name): time.sleep(0.01)\n"
                        "def queued(c):\n n = array.array('i', [0])\n fcntl.ioctl(c, termios.FIONREAD, n)\n return n[0]\n"
                        "def pattern(n): return b''.join(i.to_bytes(8, 'little') for i in range(n // 8))\n" + text)
        job = self.run_job("sh", "-c", f"{ON} h2 python3 server.py & python3 client.py; wait")
        wait_for(lambda: "the queues: " + self.said(), lambda: os.path.exists(self.dir + "/up") or job.poll() is not None)
        self.leads(job.pid)
        self.now(job.pid)
        self.kill_all(job)
        back = self.bring_back("h3,h4", "back")
        open(self.dir + "/go", "w").close()
        self.assertEqual(back.wait(240), 0, self.said("back"))
        words = sorted(self.texts["back"][0].decode().splitlines())
        self.assertEqual(words, ["answers b'!' b'!'", f"queued {sizes[0]} {sizes[1]} 8192 8192",
                                 f"read {sizes[1]} True", f"read {sizes[0]} True"], self.said("back"))

    def test_on_others_and_again(self):
        job = self.run_numbers(self.total)
        self.connected()
        self.leads(job.pid)
        self.now(job.pid)
        self.kill_all(job)
        second = self.bring_back("h3,h4", "second")
        self.connected("h3")
        self.leads(second.pid)
        self.now(second.pid)
        self.kill_all(second)
        self.check_end(self.bring_back("h2,h1", "third"), "third")

    def test_ipv6_alone(self):
        """Hosts without an IPv4 address: their agents are reached, and a connection comes back on others, whose addresses are others."""
        self.hosts.ipv6_alone()
        scripts = {
            "server": "c = socket.create_server(('::', 5001), family=socket.AF_INET6).accept()[0]\n"
                      "for line in c.makefile('rb'): c.sendall(line)\n",
            "client": "c = socket.create_connection((sys.argv[1], 5001))\nf, n = c.makefile('rb'), 0\n"
                      "while n < 100 or not os.path.exists('last'):\n n += 1\n c.sendall(b'%d\\n' % n)\n"
                      " if int(f.readline()) != n: raise SystemExit('not %d' % n)\n if n == 100: open('hundred', 'w').close()\n time.sleep(0.001)\n"
                      "print(c.getpeername()[0], socket.create_connection((sys.argv[1], 5001), 20).getpeername()[0], flush=True)\n"}
        scripts["server"] = scripts["server"].replace("c = socket", "s = socket").replace(".accept()[0]\n", "\nopen('listens', 'w').close()\nc = s.accept()[0]\n")
        for name, text in scripts.items():
            with open(f"{self.dir}/{name}.py", "w", encoding="ascii") as f:
                f.write("import os, socket, sys, time\n" + text)
        there = self.hosts.ipv6_address("h2")
        job = self.run_job("sh", "-c", f"{ON} h2 python3 server.py & while ! [ -e listens ]; do sleep 0.05; done; python3 client.py {there}")
        wait_for(self.said, lambda: os.path.exists(self.dir + "/hundred") or job.poll() is not None)
        self.leads(job.pid)
        self.assertEqual(self.now(job.pid)["connections"], 2)
        self.kill_all(job)
        again = self.bring_back("h3,h4", "again")
        open(self.dir + "/last", "w", encoding="ascii").close()
        self.assertEqual(again.wait(240), 0, self.said("again"))
        self.said("again")
        self.assertEqual(self.texts["again"][0].decode(), f"{there} {there}\n")

    def test_addresses_stay_those_of_the_job(self):
        """A program that has an address in its memory finds the host behind it wherever that is now, over TCP and UDP, and is told
        the addresses that it knows; on other hosts, and where two have changed places."""
        scripts = {
            "server": "s, u = socket.create_server(('', 5001)), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\nu.bind(('', 5001))\n"
                      "open('listens', 'w').close()\n"
                      "while True:\n c, a = s.accept()\n c.sendall(f'{a[0]} {c.getpeername()[0]} {c.getsockname()[0]}'.encode())\n"
                      " c.recv(1)\n c.close()\n b, a = u.recvfrom(10)\n b, x, f, a = u.recvmsg(10)\n u.sendto(a[0].encode(), a)\n",
            "client": "there = (socket.gethostbyname('h2'), 5001)\n"
                      "for life in ('first', 'second', 'third'):\n wait(life)\n c = socket.create_connection(there)\n"
                      " said = c.recv(100).decode()\n own = c.getsockname()[0]\n c.sendall(b'.')\n"
                      " u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n u.bind((own, 0))\n"
                      " u.sendto(b'one', there)\n u.sendmsg([b'two'], [], 0, there)\n datagram = u.recvfrom(100)\n"
                      " print(life, own, c.getpeername()[0], said, datagram[0].decode(), datagram[1][0], flush=True)\n"}
        for name, text in scripts.items():
            with open(f"{self.dir}/{name}.py", "w", encoding="ascii") as f:
                f.write("import os, socket, time\ndef wait(name):\n while not os.path.exists(name): time.sleep(0.01)\n" + text)
        job = self.run_job("sh", "-c", f"{ON} h2 python3 server.py & while [ ! -e listens ]; do sleep 0.1; done; exec python3 client.py")
        one, two = self.hosts.address("h1"), self.hosts.address("h2")
        view = f"{one} {two} {one} {one} {two} {one} {two}\n"
        name = "out"
        for life, hosts in (("first", "h3,h4"), ("second", "h2,h1"), ("third", None)):
            open(f"{self.dir}/{life}", "w").close()
            wait_for(f"the {life} life's words", lambda n=name: b"\n" in self.texts[n][0] or job.poll() is not None)
            self.assertEqual(self.texts[name][0].decode(), f"{life} {view}", self.said(name))
            if hosts is None:
                break
            self.leads(job.pid)
            self.now(job.pid)
            self.kill_all(job)
            name = life
            job = self.bring_back(hosts, name)
        self.assertEqual(job.wait(240), 0, self.said(name))


if __name__ == "__main__":
    unittest.main()
