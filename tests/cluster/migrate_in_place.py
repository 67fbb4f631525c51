"""ckpt migrate while the others stay: processes of the other hosts go on as they were, with new connections to those that went. Whoever dies
at whichever step, no number is lost, and none comes twice."""
import glob
import json
import os
import subprocess
import unittest

import over_hosts
import ring
from over_hosts import CKPT, ON, RESTART, clean, wait_for

NUMBERS = os.environ["CKPT_NUMBERS"]

# Besides its connection it has a UDP socket that is connected to the other host, and one that nobody has received waits in a socket.
ASKER = ("import os, socket, sys\nc = socket.create_connection(('h2', 5003))\nu = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\nu.connect(('h2', 5003))\n"
         "a, b = socket.socketpair()\nif sys.argv[1:] == ['sends']: socket.send_fds(a, [b'x'], [0])\n"
         "i = 0\nwhile not os.path.exists('go'):\n c.sendall(b'x')\n assert c.recv(1) == b'x'\n i += 1\n if i == 10: print('asks', flush=True)\n"
         "u.send(b'now')\nc.sendall(b'!')\nassert c.recv(1) == b'!'\nprint('ended', u.recv(9), flush=True)\n")
ANSWERER = ("import socket\ns = socket.create_server(('', 5003))\nu = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\nu.bind(('', 5003))\n"
            "open('listens', 'w').close()\nc = s.accept()[0]\nwhile (part := c.recv(1)) != b'!': c.sendall(part)\n"
            "data, who = u.recvfrom(9)\nu.sendto(data, who)\nc.sendall(b'!')\nc.recv(1)\n")

# Not of the job.
STRANGER = ("import os, socket, sys, time\nc = socket.create_connection((sys.argv[1], 5001))\nc.sendall(b'hello')\nprint('called', flush=True)\n"
            "while not os.path.exists(sys.argv[2] + '/look'): time.sleep(0.01)\nc.setblocking(False)\ntry: print('ended', c.recv(9), flush=True)\n"
            "except BlockingIOError: print('still there', flush=True)\n")


class MigrateInPlace(ring.OnRing):
    count = 5

    def asked(self, pid, *words, host=None):
        p = subprocess.Popen((self.hosts.enter(host) if host else []) + [CKPT, "migrate", "--json", str(pid), *words], stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True, env=clean())
        self.addCleanup(p.kill)
        return p

    def migrate(self, pid, *words, host=None):
        p = self.asked(pid, *words, host=host)
        out, err = p.communicate(timeout=180)
        self.assertEqual(p.returncode, 0, err + self.said())
        return json.loads(out)

    def at(self, host, words="python3 ring.py"):
        return [p for p, w in self.hosts.processes(host) if w.startswith(words)]

    def once(self, *rounds):
        for n in rounds:
            self.assertEqual(self.said().count(f"round {n}\n"), 1, self.said())

    def ends_well(self, job):
        self.limit(10**9)
        self.assertEqual(job.wait(240), 0, self.said())
        self.assertEqual(sorted(line.split()[0] for line in self.said().splitlines() if line.split()[1:] == ["ended"]), ["h1", "h2", "h3"])

    def test_ring(self):
        """Both neighbours stay, one of which has its sockets in two processes and watches one. Then that one goes, and the first one, and one comes
        back to where another was; from a host itself as well."""
        job = self.run_ring()
        before = self.at("h1"), self.at("h3")
        done = self.migrate(job.pid, "--from", "h2", "--to", "h4")
        self.assertEqual((done["from"], done["to"], done["hosts"], done["in_place"]), ("h2", "h4", 3, True))
        print(f"the job stood for {done['stood_ns'] / 1e6:.0f} ms")
        self.assertEqual((self.at("h1"), self.at("h3")), before)
        self.assertEqual((len(self.at("h2")), len(self.at("h4"))), (0, 1))
        self.limit(3000)
        self.comes_to(3000)
        self.assertEqual(self.now(job.pid)["hosts"], 3)
        self.assertTrue(self.migrate(job.pid, "--from", "h3", "--to", "h2")["in_place"])
        self.assertEqual(self.at("h1"), before[0])
        self.assertEqual((len(self.at("h3")), len(self.at("h2"))), (0, 2))
        self.limit(4000)
        self.comes_to(4000)
        self.migrate(self.at("h1")[0], "--to", "h5", host="h1")
        wait_for("the first", lambda: b"of h1 are on h5 now" in self.texts["out"][1])
        self.limit(5000)
        self.comes_to(5000)
        self.once(*range(0, 6000, 1000))
        # What follows takes it as any job.
        self.now(job.pid)
        self.limit(6000)
        self.comes_to(7000)
        self.back(job.pid)
        self.comes_to(7000, 2)
        self.ends_well(job)

    def test_stopped(self):
        """A process that stays is stopped, and stays so."""
        job = self.run_ring()
        stopped = self.at("h3")[0]
        self.hosts.run("h3", "kill", "-STOP", str(stopped))
        self.assertTrue(self.migrate(job.pid, "--from", "h2", "--to", "h4")["in_place"])
        # Its threads may be on their way out of our handler.
        wait_for("its stop", lambda: self.hosts.run("h3", "ps", "-o", "stat=", "-p", str(stopped)).stdout[0] == "T")
        self.limit(3000)
        self.hosts.run("h3", "kill", "-CONT", str(stopped))
        self.comes_to(3000)
        self.once(1000, 2000, 3000)
        self.ends_well(job)

    def test_full_queues(self):
        """Both ends send as fast as they can; the listening end goes, then the other, then the first one back to where it was."""
        total = 60_000_000
        job = self.run_job("sh", "-c", f"{ON} h2 {NUMBERS} server 5000 {total} {self.dir}/go & {NUMBERS} client h2 5000 {total} {self.dir}/go && wait $!")
        wait_for("the connection", lambda: ":5000" in self.hosts.run("h1", "ss", "-tnH", "state", "established").stdout)
        self.leads(job.pid)
        for start, end in (("h2", "h3"), ("h1", "h4"), ("h3", "h2")):
            self.assertTrue(self.migrate(job.pid, "--from", start, "--to", end)["in_place"])
        open(self.dir + "/go", "w").close()
        self.assertEqual(job.wait(240), 0, self.said())
        self.assertEqual(self.said().count(f"sum {total * (total - 1) // 2}"), 2, self.said())

    def with_point(self, what):
        self.launch = f"{self.hosts.launch} env CKPT_TEST_POINT={what}"
        job = self.run_ring()
        return job, (self.at("h1"), self.at("h3"))

    def test_who_connects_is_killed(self):
        """Ahead of the decision all go on as they were; behind it all are restarted, h2's on h4."""
        for point, decided in (("connect.prepared", False), ("connect.ready", False), ("connect.decided", True), ("connect.handed", True)):
            with self.subTest(point=point):
                self.images = f"{self.dir}/{point}"
                self.forget_listeners()
                job, before = self.with_point(f"{point}@h3=kill CKPT_LOG=1")
                asked = self.asked(job.pid, "--from", "h2", "--to", "h4")
                _, said = asked.communicate(timeout=240)
                if decided:
                    self.assertEqual(asked.returncode, 0, said + self.said())
                    self.assertIn("not in place: h3: back-part ended without a word", self.said())
                else:
                    self.assertIn("the job goes on where it was", said)
                    self.assertEqual((self.at("h1"), self.at("h3")), before)
                old, new = (0, 1) if decided else (1, 0)
                self.assertEqual(len(self.at("h2")), old)
                # What was made ready there goes behind the answer.
                wait_for(lambda: f"{new} there: {self.at('h4')}", lambda n=new: len(self.at("h4")) == n)
                # Nobody went on with some of its connections: it stood until it was ended.
                for log in glob.glob(f"{self.images}/h3/ckpt_rt.log"):
                    with open(log, encoding="utf-8", errors="replace") as f:
                        self.assertNotIn("could not be replaced", f.read())
                self.limit(3000)
                self.comes_to(3000)
                self.once(1000, 2000, 3000)
                self.ends_well(job)

    def test_the_coordinator_is_killed(self):
        """The process that leads on a host, when it has its new connections. h2's has ended by then: all are restarted, and h2's comes to h4."""
        job, _ = self.with_point("coordinator.reconnected=kill")
        asked = self.asked(job.pid, "--from", "h2", "--to", "h4")
        _, said = asked.communicate(timeout=240)
        self.assertEqual(asked.returncode, 0, said + self.said())
        self.assertRegex(self.said(), "not in place: h[13]: ")
        self.assertEqual([len(self.at(h)) for h in ("h1", "h2", "h3", "h4")], [1, 0, 2, 1])
        self.limit(3000)
        self.comes_to(3000)
        self.once(1000, 2000, 3000)
        self.ends_well(job)

    def test_who_has_its_connections_is_killed(self):
        """Another process: the job goes on without it, as if it had been killed a moment later, and its neighbours see their connections end."""
        job = self.run_ring(at_h3="env CKPT_TEST_POINT=member.reconnected=kill")
        self.assertTrue(self.migrate(job.pid, "--from", "h2", "--to", "h4")["in_place"])
        self.limit(3000)
        job.wait(240)
        self.assertEqual([self.at(h) for h in ("h1", "h2", "h3", "h4")], [[], [], [], []])
        self.assertIn("EOFError", self.said())
        self.assertIn("Killed", self.said())
        self.assertNotIn(" ended", self.said())

    def on_two_hosts(self, launch=None):
        """The processes of h1 and h2 are on h4, in namespaces of their own; those of h3 on h5."""
        job = self.run_ring()
        self.now(job.pid)
        self.kill_all(job)
        self.launch = launch
        job = self.comes_back("h4,h5")
        self.limit(4000)  # 3000 may have been said ahead of the checkpoint
        self.comes_to(4000)
        return job

    def one_of(self, host, name):
        [pid] = self.at(host, f"python3 ring.py {name} ")
        return pid

    def test_from_a_host_of_two_parts(self):
        """One goes, and the other stays there with its ports; then that one goes as well. The first one comes to where it was, alone."""
        job = self.on_two_hosts()
        stays, others = self.one_of("h4", "h1"), self.at("h5")
        asked = self.asked(self.one_of("h4", "h2"), "--to", "h2", host="h4")
        self.assertEqual(asked.wait(240), 0, asked.stderr.read() + self.said())
        wait_for(lambda: "the move: " + self.said(), lambda: "the processes of h4 are on h2 now" in self.said())
        self.assertNotIn("not in place", self.said())
        self.assertEqual((self.at("h4"), self.at("h5"), len(self.at("h2"))), ([stays], others, 1))
        self.limit(5000)
        self.comes_to(5000)
        self.now(job.pid)
        self.limit(7000)
        self.comes_to(7000)
        self.assertEqual(self.back(job.pid)["hosts"], 3)
        self.comes_to(7000, 2)
        self.assertTrue(self.migrate(job.pid, "--from", "h4", "--to", "h1")["in_place"])
        self.assertTrue(self.migrate(job.pid, "--from", "h2", "--to", "h4")["in_place"])
        self.assertEqual(self.at("h5"), others)
        self.limit(8000)
        self.comes_to(8000)
        self.now(job.pid)
        self.kill_all(job)
        job = self.comes_back("h2")
        self.limit(10000)
        self.comes_to(10000)
        self.ends_well(job)

    def test_to_a_host_that_has_one(self):
        """Which stays out of namespaces of its own. The one that comes goes on with its ports exchanged, and goes again; the second time both go at once."""
        job = self.run_ring()
        before = self.at("h1"), self.at("h3")
        self.assertTrue(self.migrate(job.pid, "--from", "h2", "--to", "h1")["in_place"])
        self.assertEqual((self.one_of("h1", "h1"), self.at("h3")), (*before[0], before[1]))
        self.limit(3000)
        self.comes_to(3000)
        self.now(job.pid)
        self.limit(5000)
        self.comes_to(5000)
        self.back(job.pid)
        self.comes_to(5000, 2)
        self.assertTrue(self.migrate(job.pid, "--from", "h3", "--to", "h1")["in_place"])
        self.assertEqual((self.one_of("h1", "h1"), len(self.at("h1"))), (*before[0], 4))
        self.limit(6000)
        self.comes_to(6000)
        self.assertTrue(self.migrate(job.pid, "--from", "h1", "--to", "h4")["in_place"])
        self.assertEqual([len(self.at(h)) for h in ("h1", "h4")], [0, 4])
        self.limit(7000)
        self.comes_to(7000)
        self.ends_well(job)

    def test_who_connects_beside_it_is_killed(self):
        """On the host that is left, for the part that stays there."""
        for point, decided in (("connect.ready", False), ("connect.handed", True)):
            with self.subTest(point=point):
                self.images = f"{self.dir}/{point}"
                self.launch = None
                self.forget_listeners()
                job = self.on_two_hosts(f"{self.hosts.launch} env CKPT_TEST_POINT={point}@h1=kill")
                stays = self.one_of("h4", "h1")
                self.asked(self.one_of("h4", "h2"), "--to", "h2", host="h4").wait(240)
                if decided:
                    wait_for(lambda: "the move: " + self.said(), lambda: "the processes of h4 are on h2 now" in self.said())
                    self.assertIn("not in place: h4: back-part ended without a word", self.said())
                else:
                    self.assertEqual((stays, len(self.at("h4"))), (self.one_of("h4", "h1"), 2))
                self.limit(5000)
                self.comes_to(5000)
                self.assertEqual([len(self.at(h)) for h in ("h2", "h4", "h5")], [1, 1, 2] if decided else [0, 2, 2])
                self.once(5000)
                self.ends_well(job)

    def forget_listeners(self):
        for name in os.listdir(self.dir):
            if name.startswith("listens."):
                os.unlink(f"{self.dir}/{name}")

    def stopped_at(self, point, *options):
        """The connections of h3 have come to that point, and no further."""
        self.launch = f"{self.hosts.launch} env CKPT_TEST_POINT={point}@h3=stop"
        job = self.run_ring(*options)
        asked = self.asked(job.pid, "--from", "h2", "--to", "h4")

        def stopped():
            for pid, words in self.hosts.processes("h3"):
                if words.endswith("back-part") and self.hosts.run("h3", "ps", "-o", "stat=", "-p", str(pid)).stdout.startswith("T"):
                    return pid
            return None
        return job, asked, wait_for(lambda: "the point: " + self.said(), stopped)

    def test_strangers_wait(self):
        """Somebody outside of the job who calls a process that stays, while connections of the host that went arrive at the same port: accepted behind it,
        with what he has said."""
        job, asked, back_part = self.stopped_at("connect.prepared")
        caller = subprocess.Popen(self.hosts.enter("h5") + ["python3", "-c", STRANGER, self.hosts.address("h3"), self.dir], stdout=subprocess.PIPE, text=True)
        self.addCleanup(caller.stdout.close)
        self.addCleanup(caller.kill)
        self.assertEqual(caller.stdout.readline(), "called\n")
        self.hosts.run("h3", "kill", "-CONT", str(back_part))
        out, err = asked.communicate(timeout=240)
        self.assertTrue(json.loads(out)["in_place"], err + self.said())
        self.limit(3000)
        self.comes_to(3000)

        def accepted():
            return [line for line in self.hosts.run("h3", "ss", "-tnpH", "state", "established", "dst", self.hosts.address("h5")).stdout.splitlines()
                    if "python3" in line]
        [line] = wait_for("the program's side", accepted)
        self.assertEqual(line.split()[0], "5", line)  # bytes that it has not read
        open(self.dir + "/look", "w").close()
        self.assertEqual(caller.stdout.readline(), "still there\n")
        caller.wait(240)
        self.once(1000, 2000, 3000)
        self.ends_well(job)

    def test_new_host_dies(self):
        """All is ready there but for the word."""
        job, asked, _ = self.stopped_at("connect.ready")
        before = self.at("h1"), self.at("h2"), self.at("h3")
        self.hosts.crash("h4")
        _, said = asked.communicate(timeout=240)
        self.assertNotEqual(asked.returncode, 0)
        self.assertIn("the job goes on where it was", said)
        self.assertEqual((self.at("h1"), self.at("h2"), self.at("h3")), before)
        self.limit(3000)
        self.comes_to(3000)
        self.once(1000, 2000, 3000)
        self.assertTrue(self.migrate(job.pid, "--from", "h3", "--to", "h5")["in_place"])
        self.ends_well(job)

    def test_new_host_dies_behind_the_decision(self):
        """The old processes have ended, and one of the others has no new connections yet: all come back where they were, from that instant."""
        job, asked, _ = self.stopped_at("connect.decided")
        self.assertEqual(self.at("h2"), [])
        self.hosts.crash("h4")
        self.hosts.names.remove("h4")
        _, said = asked.communicate(timeout=240)
        self.assertIn("it goes on where it was", said + self.said())
        self.assertEqual([len(self.at(h)) for h in ("h1", "h2", "h3")], [1, 1, 2], said + self.said())
        self.limit(3000)
        self.comes_to(3000)
        self.once(1000, 2000, 3000)
        self.ends_well(job)

    def test_old_host_dies(self):
        """While all is made ready for it elsewhere: those that are left go on, and the checkpoint counts."""
        job, asked, _ = self.stopped_at("connect.ready")
        self.hosts.crash("h2")
        self.hosts.keepers[1].wait(240)  # all of its processes have ended
        self.hosts.names.remove("h2")
        self.hosts.run("h3", "pkill", "-CONT", "-f", "back-part")
        _, said = asked.communicate(timeout=240)
        self.assertIn("h2: its agent is gone (look at that host); the job goes on where it was", said)
        wait_for("the end of what was made ready there", lambda: not self.at("h4"))
        job.terminate()
        job.wait(240)
        self.ends_where("h1,h4,h3")

    def ends_where(self, hosts):
        back = self.start([RESTART, "--hosts", hosts, "--launch", self.hosts.launch, self.images], "back")
        self.limit(10**9)
        self.assertEqual(back.wait(240), 0, self.said("back"))
        self.assertEqual(self.said("back").count(" ended\n"), 3, self.said("back"))

    def test_head_dies(self):
        """The job ends, whichever step it was at, and comes back from the checkpoint."""
        for point in ("connect.ready", "connect.decided"):
            with self.subTest(point=point):
                self.images = f"{self.dir}/{point}"
                self.forget_listeners()
                job, _, _ = self.stopped_at(point)
                job.kill()
                job.wait()
                wait_for("the end of all", lambda: not any(self.at(h) for h in self.hosts.names))
                self.ends_where("h1,h5,h3")

    def test_the_host_that_it_came_to_dies(self):
        """With --recover the job goes on without it, from the checkpoint of the move."""
        job = self.run_ring("--recover", "--spare", "h5", "--host-silence", "5s")
        before = self.at("h1"), self.at("h3")
        self.migrate(job.pid, "--from", "h2", "--to", "h4")
        self.limit(5000)
        self.comes_to(5000)
        self.hosts.cut("h4")
        wait_for(lambda: "the job on h5: " + self.said(), lambda: " on h1, h5, h3; its processes stood for" in self.said())
        self.assertEqual((self.at("h1"), self.at("h3")), before)
        self.comes_to(5000, 2)
        self.leads(job.pid)
        self.ends_well(job)

    def moved_asker(self, *options):
        for name, text in (("asker", ASKER), ("answerer", ANSWERER)):
            with open(f"{self.dir}/{name}.py", "w", encoding="ascii") as f:
                f.write(text)
        job = self.run_job("sh", "-c", f"{ON} h2 python3 answerer.py & while [ ! -e listens ]; do sleep 0.1; done; python3 asker.py {' '.join(options)}; wait")
        wait_for("the first numbers", lambda: b"asks\n" in self.texts["out"][0])
        self.leads(job.pid)
        done = self.migrate(job.pid, "--from", "h2", "--to", "h3")
        open(self.dir + "/go", "w").close()
        self.assertEqual(job.wait(240), 0, self.said())
        self.assertIn("ended b'now'", self.said())
        return done

    def test_connected_datagrams(self):
        """The same socket is connected to the host that has the other one now, and back."""
        self.assertTrue(self.moved_asker()["in_place"], self.said())

    def test_what_only_a_restart_can_move(self):
        self.assertNotIn("in_place", self.moved_asker("sends"))
        self.assertRegex(self.said(), r"not in place: h1: .* has a descriptor waiting in a socket")


if __name__ == "__main__":
    unittest.main()
