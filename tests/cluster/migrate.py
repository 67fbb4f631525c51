"""ckpt migrate: the processes of one host of a running job go on elsewhere. Numbers are checked on the way, and what the program prints,
it prints once; whatever fails, the job goes on where it was."""
import glob
import json
import os
import subprocess
import unittest

import over_hosts
from over_hosts import CKPT, ON, clean, wait_for

NUMBERS = os.environ["CKPT_NUMBERS"]
USAGE, NO_PROCESS, INCOMPATIBLE, UNAVAILABLE, TIMEOUT = 64, 67, 68, 69, 75

# Counts aloud: a line that is missing or comes twice is seen.
COUNTER = ("import os, socket, time\nc = socket.create_connection(('h2', 5003))\n"
           "i = 0\nwhile not os.path.exists('go') or i % 50:\n c.sendall(b'x')\n assert c.recv(1) == b'x'\n print(i, flush=True)\n"
           " if os.path.exists('pause'):\n  with open('new', 'w') as f: f.write(str(i))\n  os.rename('new', 'paused')\n"
           "  while os.path.exists('pause'): time.sleep(0.01)\n i += 1\n"
           "c.close()\nprint('end', i, flush=True)\n")
ECHO = ("import socket\ns = socket.create_server(('', 5003))\nopen('listens', 'w').close()\nc = s.accept()[0]\n"
        "while part := c.recv(100): c.sendall(part)\n")


class Migrate(over_hosts.OverHosts):
    count = 4

    def migrate(self, pid, *words, host=None, code=0, text=""):
        done = subprocess.run((self.hosts.enter(host) if host else []) + [CKPT, "migrate", "--json", str(pid), *words], capture_output=True,
                              text=True, timeout=180, env=clean())
        self.assertEqual(done.returncode, code, done.stderr + done.stdout + self.said())
        self.assertIn(text, done.stderr)
        return json.loads(done.stdout) if code == 0 else done.stderr

    def running(self, more=""):
        """Counter on the first host, its echo on the second."""
        for name, text in (("counter", more + COUNTER), ("echo", ECHO)):
            with open(f"{self.dir}/{name}.py", "w", encoding="ascii") as f:
                f.write(text)
        job = self.run_job("sh", "-c", f"{ON} h2 python3 echo.py & while [ ! -e listens ]; do sleep 0.1; done; python3 counter.py; wait")
        wait_for("the first numbers", lambda: b"\n5\n" in self.texts["out"][0] or job.poll() is not None)
        self.leads(job.pid)
        return job

    def pids(self, host, words):
        return [p for p, w in self.hosts.processes(host) if w == words]

    def goes_on(self):
        """It prints more than it has."""
        before = len(self.texts["out"][0])
        wait_for("more numbers", lambda: len(self.texts["out"][0]) > before + 100)

    def ends_well(self, job):
        open(self.dir + "/go", "w").close()
        self.assertEqual(job.wait(240), 0, self.said())
        self.said()
        lines = self.texts["out"][0].decode().split("\n")
        count = len(lines) - 2
        self.assertEqual(lines, [str(i) for i in range(count)] + [f"end {count}", ""], self.said())

    def places(self, **hosts):
        """Which host has which of the two, and no other has."""
        for name in self.hosts.names:
            for script in ("echo", "counter"):
                self.assertEqual(len(self.pids(name, f"python3 {script}.py")), int(hosts[script] == name), (name, script))

    def test_there_and_back(self):
        """Asked for where the head is, and on the host itself; the other end of the connection too; a checkpoint in between. A host comes
        to have both, and both leave it at once."""
        job = self.running()
        done = self.migrate(job.pid, "--from", "h2", "--to", "h3")
        self.assertEqual((done["from"], done["to"], done["hosts"], done["in_place"]), ("h2", "h3", 2, True))
        self.assertGreater(done["stood_ns"], 0)
        self.places(counter="h1", echo="h3")
        self.goes_on()
        self.now(job.pid)
        self.migrate(self.pids("h1", "python3 counter.py")[0], "--to", "h4", host="h1")
        wait_for("the counter", lambda: b"of h1 are on h4 now" in self.texts["out"][1])
        self.places(counter="h4", echo="h3")
        self.goes_on()
        # To a host that has one already, and away from it.
        stays = self.pids("h4", "python3 counter.py")
        self.assertTrue(self.migrate(job.pid, "--from", "h3", "--to", "h4")["in_place"])
        self.places(counter="h4", echo="h4")
        self.assertEqual(self.pids("h4", "python3 counter.py"), stays)
        self.goes_on()
        self.assertTrue(self.migrate(job.pid, "--from", "h4", "--to", "h2")["in_place"])
        self.places(counter="h2", echo="h2")
        self.ends_well(job)

    def test_disks_of_their_own(self):
        for name in ("h1", "h2", "h3"):
            os.makedirs(f"{self.images}/{name}", 0o700, exist_ok=True)
        self.hosts.run("h2", "mount", "-t", "tmpfs", "-o", "mode=700", "none", f"{self.images}/h2", check=True)
        self.hosts.run("h3", "mount", "-t", "tmpfs", "-o", "mode=700", "none", f"{self.images}/h2", check=True)
        job = self.running()
        self.migrate(job.pid, "--from", "h2", "--to", "h3")
        self.places(counter="h1", echo="h3")
        self.assertTrue(self.hosts.run("h3", "sh", "-c", f"ls -d {self.images}/h2/*.job").stdout)
        # No room for it there.
        self.hosts.run("h4", "mount", "-t", "tmpfs", "-o", "mode=700,size=64k", "none", f"{self.images}/h2", check=True)
        self.migrate(job.pid, "--from", "h3", "--to", "h4", code=74, text="the job goes on where it was")
        self.places(counter="h1", echo="h3")
        self.goes_on()
        self.ends_well(job)

    def test_what_cannot_be(self):
        job = self.running()
        self.migrate(job.pid, "--to", "h3", code=USAGE, text="is needed where the head of the job is asked")
        self.migrate(job.pid, "--from", "h7", "--to", "h3", code=USAGE, text="\"h7\" has no processes of this job (name one of h1, h2)")
        self.migrate(job.pid, "--from", "h2", "--to", "h2", code=USAGE, text="the processes are on h2 already")
        self.migrate(job.pid, "--from", "h2", "--to", "h3,h4", code=USAGE, text="is no name of one host")
        self.migrate(job.pid, "--from", "h2", "--to", "h9", code=UNAVAILABLE, text="h9: its agent could not be started")
        self.migrate(os.getpid(), "--to", "h3", code=NO_PROCESS, text="belongs to no job over several hosts")
        # Another library there: found before anything stands.
        library = os.path.join(os.path.dirname(os.path.dirname(CKPT)), "lib", "libckpt_rt.so")
        self.hosts.run("h3", "mount", "--bind", "/bin/true", library, check=True)
        self.migrate(job.pid, "--from", "h2", "--to", "h3", code=INCOMPATIBLE, text="h3: has another libckpt_rt.so than h1")
        self.assertEqual(glob.glob(self.images + "/*.hosts"), [])
        # A file that a process has mapped differs there: found while all stand, and they go on.
        program = self.hosts.run("h2", "readlink", f"/proc/{self.pids('h2', 'python3 echo.py')[0]}/exe").stdout.strip()
        self.hosts.run("h4", "mount", "--bind", "/bin/true", program, check=True)
        said = self.migrate(job.pid, "--from", "h2", "--to", "h4", code=72, text="cannot be restarted there")
        self.assertIn("the job goes on where it was", said)
        self.places(counter="h1", echo="h2")
        self.goes_on()
        self.ends_well(job)

    def asked_and_checking(self, job):
        """ckpt migrate of h2 to h3 has come to the look on h3 whether it can be restarted there, which ends when it is let: all stand."""
        asked = subprocess.Popen([CKPT, "migrate", str(job.pid), "--from", "h2", "--to", "h3"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                 text=True, env=clean())
        self.addCleanup(asked.kill)
        wait_for("the look", lambda: os.path.exists(self.dir + "/looks") or asked.poll() is not None)
        return asked

    def with_slow_look(self):
        self.launch = self.dir + "/launch"
        with open(self.launch, "w", encoding="ascii") as f:
            f.write(f"#!/bin/sh\ncase \"$*\" in\n*check-part*) touch {self.dir}/looks; while [ ! -e {self.dir}/seen ]; do sleep 0.05; done;;\nesac\n"
                    f"exec {self.hosts.launch.split()[0]} \"$@\"\n")
        os.chmod(self.launch, 0o700)

    def end_look(self, asked):
        open(self.dir + "/seen", "w").close()
        _, said = asked.communicate(timeout=240)
        return asked.returncode, said

    def test_all_stand(self):
        """Nothing runs on between the checkpoint and the end; somebody else who asks waits for his turn."""
        self.with_slow_look()
        job = self.running()
        asked = self.asked_and_checking(job)
        other = subprocess.Popen([CKPT, "now", "--json", str(job.pid)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean())
        self.addCleanup(other.kill)
        first = next(p for p, w in self.hosts.processes("h1") if w == "python3 counter.py")
        counter = self.outer_pid("h1", first)

        def look(name):
            with open(f"/proc/{counter}/{name}", encoding="ascii") as f:
                return f.read()
        # It stands when it is counted, and may not sleep yet.
        wait_for("its sleep", lambda: look("stat").rpartition(")")[2].split()[0] == "S")
        ran = look("schedstat")
        wait_for("a word of the head", lambda: self.hosts.run("h3", "true").returncode == 0)
        self.assertEqual(look("schedstat"), ran)
        self.assertEqual(self.end_look(asked)[0], 0)
        _, said = other.communicate(timeout=240)
        self.assertEqual(other.returncode, 0, said)
        self.places(counter="h1", echo="h3")
        self.ends_well(job)

    def outer_pid(self, host, inner):
        """Of a process of that host, as it is seen from here."""
        namespace = os.readlink(f"/proc/{self.hosts.pids[host]}/ns/pid")
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{name}/status", encoding="ascii") as f:
                    ids = next(line for line in f if line.startswith("NSpid")).split()
                if os.readlink(f"/proc/{name}/ns/pid") == namespace and ids[-1] == str(inner):
                    return int(name)
            except OSError:
                pass
        raise AssertionError(f"{host}: no process {inner}")

    def test_new_host_dies_early(self):
        self.with_slow_look()
        job = self.running()
        asked = self.asked_and_checking(job)
        self.hosts.crash("h3")
        code, said = self.end_look(asked)
        self.assertNotEqual(code, 0)
        self.assertIn("the job goes on where it was", said)
        self.places_but("h3", counter="h1", echo="h2")
        self.goes_on()
        self.ends_well(job)

    def test_agent_dies(self):
        """Its host's processes go on when they see it: so all do."""
        self.with_slow_look()
        job = self.running()
        asked = self.asked_and_checking(job)
        agent = next(p for p, w in self.hosts.processes("h2") if w.endswith("ckpt agent"))
        self.hosts.run("h2", "kill", "-9", str(agent))
        code, said = self.end_look(asked)
        self.assertEqual(code, UNAVAILABLE, said)
        self.assertIn("h2: its agent is gone", said)
        self.places(counter="h1", echo="h2")
        self.goes_on()
        open(self.dir + "/go", "w").close()
        job.wait(240)
        self.hosts.run("h2", "kill", "-9", "-1")  # what nobody ends there any more has our pipe
        self.ends_well(job)

    def test_head_dies(self):
        """The job ends with it, and comes back from the checkpoint, which counts."""
        self.with_slow_look()
        job = self.running()
        # What is on its way from the program through the head is lost with it: there is nothing.
        open(self.dir + "/pause", "w").close()
        wait_for("the program's pause", lambda: os.path.exists(self.dir + "/paused"))
        with open(self.dir + "/paused", encoding="ascii") as f:
            last = f"\n{f.read()}\n".encode()
        wait_for("all that it has printed", lambda: self.texts["out"][0].endswith(last))
        self.asked_and_checking(job)
        printed = self.texts["out"][0].decode()
        job.kill()
        job.wait()
        open(self.dir + "/seen", "w").close()
        wait_for("the end of all", lambda: not any(self.pids(h, f"python3 {s}.py") for h in self.hosts.names for s in ("echo", "counter")))
        [checkpoint] = glob.glob(self.images + "/*.hosts")
        os.unlink(self.dir + "/pause")
        open(self.dir + "/go", "w").close()
        back = self.start([over_hosts.RESTART, "--hosts", "h1,h3", "--launch", self.hosts.launch, checkpoint], "back")
        self.assertEqual(back.wait(240), 0, self.said("back"))
        self.said("back")
        lines = (printed + self.texts["back"][0].decode()).split("\n")
        count = len(lines) - 2
        self.assertEqual(lines, [str(i) for i in range(count)] + [f"end {count}", ""], self.said())

    def test_new_host_dies(self):
        """While they are restarted there: the job comes back where it was. (Those of the first host cannot stay.)"""
        self.launch = self.stopping_at("restart.memory", "h3")
        job = self.running("import socket\na, b = socket.socketpair()\nsocket.send_fds(a, [b'x'], [0])\n")
        counter = self.outer_pid("h1", self.pids("h1", "python3 counter.py")[0])
        asked = subprocess.Popen([CKPT, "migrate", str(job.pid), "--from", "h2", "--to", "h3"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                 text=True, env=clean())
        # What was at h1 is gone: the decision was made.
        wait_for("the end of the counter", lambda: not os.path.exists(f"/proc/{counter}"))
        self.await_stop("h3")
        self.hosts.crash("h3")
        _, said = asked.communicate(timeout=240)
        self.assertIn("it goes on where it was", said + self.said())
        self.assertNotEqual(asked.returncode, 0)
        self.places_but("h3", counter="h1", echo="h2")
        self.goes_on()
        self.ends_well(job)

    def places_but(self, dead, **hosts):
        self.hosts.names = [n for n in self.hosts.names if n != dead]
        self.places(**hosts)


if __name__ == "__main__":
    unittest.main()
