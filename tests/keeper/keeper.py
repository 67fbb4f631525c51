#!/usr/bin/env python3
"""Images in the memory of a keeper: every command on them, every death, the bound, and who may.

The program counts in memory and writes down, when it is asked to, how far it is: it must never be behind what it said
before the checkpoint, nor in a state that it never had.
"""
import fcntl
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
from stopped_threads import is_any_stopped  # noqa: E402
from keeper_support import CKPT, IO, LIMIT, NOT_FOUND, PERMISSION, PROGRAM, UNAVAILABLE, USAGE, KeeperBase, environment  # noqa: E402


class KeeperTest(KeeperBase):
    def test_every_command(self):
        program = self.start(options=["--memory", "512M"])
        descriptors = sorted(os.listdir(f"/proc/{program.pid}/fd"))
        first = self.now(program)
        self.assertEqual(sorted(os.listdir(f"/proc/{program.pid}/fd")), descriptors)
        self.assertEqual(first["image"].rsplit("/", 1)[0], f"/tmp/ckpt-keeper-{os.geteuid()}/{self.keeper}.keeper")
        said = self.said()
        self.moves()
        second = self.now(program)
        self.assertEqual(second["parent_sequence"], first["sequence"])
        for image in (self.where, first["image"], second["image"]):
            self.fine("verify", image)
        self.assertIn(os.path.basename(second["image"]), self.fine("ls", self.where))
        self.fine("show", f"{self.where}@-1")
        self.assertEqual(self.ckpt("diff", f"{self.where}@-1", self.where).returncode, 1)  # they differ
        status = self.status()
        self.assertEqual(len(status["held"]), 2)
        self.assertGreater(status["used_bytes"], 8 << 20)
        self.assertEqual(status["memory_bytes"], 512 << 20)
        self.moves()
        self.fine("back", program.pid)
        self.moves()
        self.fine("back", program.pid, first["image"])
        self.moves()
        self.assertEqual(os.listdir("/tmp").count(self.keeper), 0)
        self.kill(program)
        back = self.restart(at_least=said)
        # It has a keeper still, and nothing of it stays open.
        third = json.loads(self.fine("now", "--json", self.child_of(back)))
        self.fine("verify", third["image"])
        self.assertEqual([link for link in self.links(self.child_of(back)) if "/tmp/ckpt-keeper-" + str(os.geteuid()) in link or
                          link.startswith(self.where) or link.startswith("/keeper:")], [])
        self.refused(NOT_FOUND, ["no such image"], "show", f"{self.where}/nothing.ckpt")
        self.refused(USAGE, ["no keeper has such a name"], "ls", "keeper:.")

    def test_the_older_is_given_up(self):
        program = self.start(megabytes=32, options=["--increments", "0"])
        for _ in range(6):
            self.now(program)
        held = self.status()
        self.assertEqual(len(held["held"]), 1)
        self.assertLess(held["used_bytes"], 2 * held["held"][0]["bytes"])

    def test_a_job(self):
        script = f"{self.directory}/program.py"
        with open(script, "w", encoding="ascii") as f:
            f.write(PROGRAM)
        shell = " & ".join(f"{sys.executable} {script} {self.directory}/{name} 4" for name in ("count", "other"))
        program = self.start(program=["sh", "-c", shell + " & wait"])
        self.moves("other")
        for _ in range(3):
            answer = self.now(program)
            self.moves()
            self.moves("other")
        self.assertEqual(answer["members"], 3)
        self.fine("verify", answer["job"])
        self.assertEqual(self.status()["held"][-1]["processes"], 3)
        self.fine("back", program.pid)
        self.moves()
        self.moves("other")
        self.kill(program)
        back = self.restart()
        self.moves("other")
        again = json.loads(self.fine("now", "--json", self.child_of(back)))
        self.fine("verify", again["job"])

    def test_killed_at_every_instant(self):
        """The last complete checkpoint comes back, whatever the program was doing."""
        self.start_keeper()
        program = self.start(more={"CKPT_EVERY": "10ms"})
        for _ in range(4):
            self.moves()
            while not json.loads(self.fine("keeper", "status", "--json", self.keeper))["held"]:
                time.sleep(0.01)
            time.sleep(random.uniform(0, 0.1))
            self.kill(program)
            self.fine("verify", self.where)
            program = self.restart(at_least=1)

    def test_killed_at_named_points(self):
        self.start_keeper()
        for point in ("prepare.image", "stop.captured", "commit.trailer", "commit.durable", "commit.renamed",
                      "checkpoint.run"):
            program = self.start(more={"CKPT_TEST_POINT": f"{point}=kill:3"})
            self.now(program)
            self.now(program)
            before = {one["name"] for one in self.status()["held"]}
            self.ckpt("now", program.pid)
            self.assertEqual(program.wait(LIMIT), -signal.SIGKILL, point)
            held = {one["name"] for one in self.status()["held"]}
            self.assertTrue(before <= held, point)
            self.assertEqual(len(held - before), 1 if point in ("commit.renamed", "checkpoint.run") else 0, point)
            self.fine("verify", self.where)
            back = self.restart()
            self.now_of_child(back)
            self.kill(back)
            self.fine("keeper", "stop", self.keeper)
            self.start_keeper()

    def test_the_keeper_is_killed(self):
        keeper = self.start_keeper()
        program = self.start()
        self.now(program)
        self.end_keeper(keeper)
        self.refused(UNAVAILABLE, [self.where, "ckpt keeper start"], "now", program.pid)
        self.refused(UNAVAILABLE, [self.where], "ls", self.where)
        self.refused(UNAVAILABLE, [self.where], "keeper", "status", self.keeper)
        self.moves()
        # One of the same name: everything as before, and the first image is a full one.
        self.start_keeper()
        answer = self.now(program)
        self.assertEqual(answer["parent_sequence"], 0)
        self.fine("verify", self.where)
        self.kill(program)
        self.restart(at_least=1)

    def test_the_keeper_is_killed_before_the_commit_counts(self):
        keeper = self.start_keeper()
        program = self.start(more={"CKPT_TEST_POINT": "commit.renamed=stop:2"})
        self.now(program)
        asking = self.spawn([CKPT, "now", str(program.pid)], env=environment(), stderr=subprocess.PIPE, text=True,
                            stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + LIMIT
        while not is_any_stopped(program.pid):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)
        self.end_keeper(keeper)
        os.killpg(program.pid, signal.SIGCONT)
        _, error = asking.communicate(timeout=LIMIT)
        self.assertEqual(asking.returncode, UNAVAILABLE, error)
        self.assertIn(self.where, error)
        self.moves()

    def test_memory_is_used_up(self):
        self.start_keeper("64M")
        program = self.start(megabytes=40, options=["--increments", "0"])
        first = self.now(program)
        self.refused(IO, [self.where, "memory is used up", "--memory"], "now", program.pid)
        self.fine("verify", first["image"])
        self.moves()
        self.kill(program)
        self.restart(at_least=1)

    def test_one_that_was_killed_is_not_gone_yet(self):
        """It listens no more, and has its lock still: the next one of that name waits for it."""
        directory = f"/tmp/ckpt-keeper-{os.geteuid()}"
        os.makedirs(directory, 0o700, exist_ok=True)
        path = f"{directory}/{self.keeper}.lock"
        with open(path, "w", encoding="ascii") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with subprocess.Popen([CKPT, "keeper", "start", self.keeper, "--memory", "64M", "--untouched", "--foreground"], stdout=subprocess.DEVNULL,
                                  stderr=subprocess.PIPE, text=True, env=environment()) as starting:
                self.addCleanup(starting.kill)
                end = time.monotonic() + LIMIT
                while path not in self.open_files(starting.pid) and starting.poll() is None and time.monotonic() < end:
                    time.sleep(0.01)
                self.assertIsNone(starting.poll())
                fcntl.flock(lock, fcntl.LOCK_UN)
                while self.ckpt("keeper", "status", self.keeper).returncode != 0 and starting.poll() is None and time.monotonic() < end:
                    time.sleep(0.01)
                self.assertIsNone(starting.poll())
                starting.terminate()

    @staticmethod
    def open_files(pid):
        directory = f"/proc/{pid}/fd"
        try:
            return [os.path.realpath(f"{directory}/{fd}") for fd in os.listdir(directory)]
        except OSError:
            return []  # it has ended

    def test_two_of_a_name(self):
        self.start_keeper()
        self.refused(UNAVAILABLE, [self.where, "is there already"], "keeper", "start", self.keeper)
        self.refused(USAGE, ["is no name"], "keeper", "start", "a/b")
        self.refused(USAGE, ["too little"], "keeper", "start", self.keeper + "x", "--memory", "1M")

    def test_hostile_clients(self):
        self.start_keeper()
        path = f"/tmp/ckpt-keeper-{os.geteuid()}/{self.keeper}.keeper"
        self.assertEqual(os.stat(path).st_mode & 0o777, 0o600)
        self.assertEqual(os.stat(os.path.dirname(path)).st_mode & 0o777, 0o700)
        silent = []
        for size in (0, 1, 15, 16, 17, 4096, 65536):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
                client.connect(path)
                client.send(random.randbytes(size))
                client.settimeout(LIMIT)
                self.assertEqual(client.recv(100), b"")
        for _ in range(2):
            client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            client.connect(path)
            silent.append(client)
        # One second for each of the two; who asks may give up after two, and is answered the next time.
        first = self.ckpt("keeper", "status", self.keeper)
        for client in silent:
            with client:
                client.settimeout(LIMIT)
                self.assertEqual(client.recv(1), b"")
        if first.returncode != 0:
            self.status()
        self.status()

    @unittest.skipUnless(os.geteuid() == 0, "another user takes root")
    def test_a_client_that_is_slow(self):
        """The keeper closes a connection on which nothing comes for a second. Here one stands before it that closes the first two at once."""
        self.start_keeper()
        path = f"/tmp/ckpt-keeper-{os.getuid()}/{self.keeper}.keeper"
        os.rename(path, path + ".real")
        self.addCleanup(os.unlink, path + ".real")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(path)
            listener.listen(8)

            def stand_before(closed):
                for number in range(3):
                    client, _ = listener.accept()
                    with client, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as keeper:
                        if number < closed:
                            continue
                        keeper.connect(path + ".real")
                        keeper.send(client.recv(64))
                        answer, fds, _, _ = socket.recv_fds(keeper, 4096, 1)
                        socket.send_fds(client, [answer], fds)
                        for fd in fds:
                            os.close(fd)

            for closed, code in ((2, 0), (3, UNAVAILABLE)):
                thread = threading.Thread(target=stand_before, args=(closed,))
                thread.start()
                done = self.ckpt("ls", self.where)
                thread.join(LIMIT)
                self.assertEqual((done.returncode, thread.is_alive()), (code, False), done.stderr)
        os.unlink(path)
        os.link(path + ".real", path)

    def test_another_user(self):
        self.start_keeper()

        def as_nobody():
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)

        path = f"/tmp/ckpt-keeper-0/{self.keeper}.keeper"
        self.refused(PERMISSION, [self.where, "user 0"], "ls", path, preexec_fn=as_nobody)
        # It has one of its own, without any right.
        self.fine("keeper", "start", self.keeper, "--memory", "256M", "--untouched", preexec_fn=as_nobody)
        self.addCleanup(self.ckpt, "keeper", "stop", self.keeper, preexec_fn=as_nobody)
        os.chmod(self.directory, 0o777)
        program = self.start(preexec_fn=as_nobody)
        image = json.loads(self.fine("now", "--json", program.pid, preexec_fn=as_nobody))["image"]
        self.assertIn("/ckpt-keeper-65534/", image)
        self.fine("verify", image, preexec_fn=as_nobody)
        self.fine("verify", image)  # root may


if __name__ == "__main__":
    unittest.main()
