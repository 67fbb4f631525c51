"""Jobs over several hosts, each in namespaces of its own: started, and checkpointed from any of them; a host that is cut off, dead, or does
not fit."""
import glob
import json
import os
import signal
import subprocess
import unittest

from over_hosts import CKPT, ON, NUMBERS, RESTART, JobOfNumbers, wait_for

# What starts an agent connects to the head four times before it does.
STRANGER = """
import json, os, socket, sys
line = b''
while not line.endswith(b'\\n'): line += os.read(0, 1)
told = json.loads(line)
def connect():
    for address in told['addresses']:
        try: return socket.create_connection((address, told['port']), 2)
        except OSError: pass
silent = [connect() for _ in range(4)]
for s in silent: s.set_inheritable(True)
read, write = os.pipe()
os.write(write, line)
os.close(write)
os.dup2(read, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


class Run(JobOfNumbers):
    def test_look(self):
        done = subprocess.run([CKPT, "hosts", "--json", "--launch", self.hosts.launch, "h1,h2"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        found = json.loads(done.stdout)
        self.assertTrue(found["fit"])
        self.assertEqual([(h["host"], h["node"], h["address"]) for h in found["hosts"]],
                         [(n, n, self.hosts.address(n)) for n in ("h1", "h2")])

    def test_strangers_who_say_nothing(self):
        """They connect to the head ahead of each agent; one after the other they would take longer than an agent may."""
        stranger = self.dir + "/stranger.py"
        with open(stranger, "w", encoding="ascii") as f:
            f.write(STRANGER)
        done = subprocess.run([CKPT, "hosts", "--json", "--launch", f"{self.hosts.launch} python3 {stranger}", "h1,h2"],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([h["host"] for h in json.loads(done.stdout)["hosts"]], ["h1", "h2"])

    def test_a_directory_of_another_job(self):
        """Its tables would be written over: the second job is refused, and the first one goes on to have its hosts' commands."""
        job = self.run_job("sh", "-c", f"while ! [ -e {self.dir}/go ]; do sleep 0.05; done; {ON} h2 hostname")
        self.leads(job.pid)
        done = subprocess.run([CKPT, "run", "--hosts", "h1,h2", "--launch", self.hosts.launch, "--dir", self.images, "--", "true"],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 69, done.stderr)
        self.assertIn("is the directory of another job", done.stderr)
        self.go()
        self.assertEqual(job.wait(240), 0, self.said())
        self.assertEqual(self.said(), "h2\n")

    def test_a_directory_whose_name_is_no_text(self):
        done = subprocess.run([CKPT, "run", "--hosts", "h1,h2", "--launch", self.hosts.launch, "--dir", os.fsencode(self.dir) + b"/d\xe9",
                               "--", "true"], capture_output=True)
        self.assertEqual(done.returncode, 64, done.stderr)
        self.assertIn(b"no text (UTF-8)", done.stderr)
        self.assertEqual(glob.glob(self.dir + "/d*"), [])

    def test_host_that_is_not_there(self):
        done = subprocess.run([CKPT, "hosts", "--launch", self.hosts.launch, "h1,h9"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 69)
        self.assertIn("h9: its agent could not be started", done.stderr)

    def test_exit_code_and_streams(self):
        # A command may close what it writes to, and read on: here, when ckpt-on has closed its ends of those pipes as well.
        ends = "while ls -l /proc/$PPID/fd | grep -qF \"$pipes\"; do sleep 0.01; done"
        command = f"pipes=$(readlink /proc/$$/fd/1 /proc/$$/fd/2); echo \"$pipes\" | grep -c pipe: > {self.dir}/pipes; exec > {self.dir}/got 2>&1; {ends}; cat"
        reads_on = f"head -c 3000000 /dev/zero | {ON} h2 '{command}'; cat {self.dir}/pipes; wc -c < {self.dir}/got"
        job = self.run_job("sh", "-c", f"hostname; {reads_on}; echo 3 | {ON} h2 'read n; hostname; echo to stderr >&2; exit $n'")
        self.assertEqual(job.wait(240), 3, self.said())
        self.assertEqual(self.said(), "h1\n2\n3000000\nh2\nto stderr\n")

    def test_the_program_is_started_as_it_was_called(self):
        """Its arguments and its working directory have bytes that are no text, and it ignores no signal that its caller does not."""
        odd = os.fsencode(self.dir) + b"/d\xe9"
        os.mkdir(odd)
        look = f"printf '%s %s ' \"$1\" \"$PWD\"; grep SigIgn /proc/self/status; {ON} h2 'grep SigIgn /proc/self/status'"
        self.cwd = odd
        job = self.run_job("sh", "-c", look, "sh", b"caf\xe9")
        self.assertEqual(job.wait(240), 0, self.texts)
        for reader in self.readers["out"]:
            reader.join(10)
        nothing = b"SigIgn:\t0000000000000000\n"
        self.assertEqual(self.texts["out"][0], b"caf\xe9 " + odd + b" " + nothing + nothing)

    def test_settings_in_the_environment(self):
        """They hold on all hosts, whatever environment agents find there; paths are those of here."""
        with open(os.open(self.dir + "/key", os.O_CREAT | os.O_WRONLY, 0o600), "wb") as f:
            f.write(b"k" * 32)
        self.head = ("env", "CKPT_KEY_FILE=key", "CKPT_MODE=fork")
        self.launch = f"{self.hosts.launch} env -u CKPT_KEY_FILE -u CKPT_MODE"
        look = "echo $CKPT_KEY_FILE $CKPT_MODE"
        job = self.run_job("sh", "-c", f"{look}; {ON} h2 '{look}'")
        self.assertEqual(job.wait(240), 0, self.said())
        self.assertEqual(self.said(), f"{self.dir}/key fork\n" * 2)

    def test_asked_to_end_while_it_starts(self):
        """A host does not answer, and the user does not wait for it."""
        with open(os.open(self.dir + "/launch", os.O_CREAT | os.O_WRONLY, 0o700), "w", encoding="ascii") as f:
            f.write("#!/bin/sh\ntouch called\nexec sleep 100\n")
        self.launch = self.dir + "/launch"
        job = self.run_job("true")
        wait_for("the call", lambda: os.path.exists(self.dir + "/called"))
        job.terminate()
        self.assertEqual(job.wait(240), 143, self.said())
        self.assertEqual(self.said(), "ckpt: given up, for signal 15 came\n")

    def test_nohup(self):
        """The job goes on when its caller's terminal is closed."""
        self.head = ("nohup",)
        job = self.run_job("sleep", "1001")
        self.leads(job.pid)
        job.send_signal(signal.SIGHUP)
        self.assertEqual(self.now(job.pid)["hosts"], 2)
        self.assertIsNone(job.poll(), self.said())

    def test_a_question_that_is_none(self):
        """Perhaps of a ckpt of another version: it is answered, and the job goes on. Of the head, and through an agent."""
        job = self.run_job("sleep", "1001")
        self.leads(job.pid)
        with open("/proc/net/unix", encoding="ascii", errors="replace") as f:
            [head] = [line.split("@")[1].strip() for line in f if line.rstrip().endswith(f"@ckpt_rt.head.{job.pid}")]
        ask = ("import socket, sys\nname, text = sys.argv[1:]\n"
               "name = name or [l.split('@')[1].strip() for l in open('/proc/net/unix') if '@ckpt_rt.agent.' in l][0]\n"
               "s = socket.socket(socket.AF_UNIX)\ns.settimeout(240)\ns.connect('\\0' + name)\ns.sendall(text.encode() + b'\\n')\nprint(s.recv(9999).decode())\n")
        for where, name in ((("h2",), ""), ((), head)):
            for text in ('{"leave_out": 1}', '{"move": {"from": []}}', '{"back": {"checkpoint": {}}}'):
                words = (self.hosts.enter(*where) if where else []) + ["/usr/bin/python3", "-c", ask, name, text]
                done = subprocess.run(words, capture_output=True, text=True, timeout=240)
                self.assertIn("does not understand", done.stdout, done.stderr + self.said())
        # Cut short, it would name other processes.
        long = subprocess.run([CKPT, "now", "--leave-out", "x," * 300, str(job.pid)], capture_output=True, text=True, timeout=240)
        self.assertEqual((long.returncode, long.stderr), (64, "ckpt: --leave-out: is too long (name programs, or say all)\n"))
        self.assertIsNone(job.poll(), self.said())

    def test_asked_to_end_once(self):
        """A program may take the second request for impatience."""
        with open(self.dir + "/ends.py", "w", encoding="ascii") as f:
            f.write("""import os, signal, time
came = []
signal.signal(signal.SIGTERM, lambda *_: came.append(1))
print('up', flush=True)
while not came: time.sleep(0.01)
# A process that is made now is asked when the agent looks for processes again. When the second of two, one behind the other, was asked, the agent
# has come to this one once more at least.
for _ in range(2):
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        while True: signal.pause()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    os.waitpid(child, 0)
print('asked', len(came), flush=True)
""")
        job = self.run_job("sh", "-c", f"{ON} h2 python3 ends.py & exec python3 ends.py")
        wait_for("both", lambda: self.said().count("up") == 2)
        job.terminate()
        job.wait(240)
        self.assertEqual(self.said().count("asked 1\n"), 1, self.said())

    def test_streams_wait_for_who_reads(self):
        """However long, without a connection that breaks; and a command ends when nobody reads it, or waits for it."""
        many = 3_000_000
        job = self.run_job("sleep", "1001")
        wait_for("the program", lambda: any(w == "sleep 1001" for _, w in self.hosts.processes("h1")))
        # A host may be silent for a second: its kernel answers, but takes nothing while nobody reads.
        for name in ("h1", "h2"):
            path = f"{self.images}/{name}/.hosts-table"
            with open(path, encoding="ascii") as f:
                table = json.load(f)
            with open(path, "w", encoding="ascii") as f:
                json.dump({**table, "silence_ms": 1000}, f)
        on = f"env CKPT_ON={self.images}/h2/.hosts-table {ON} h1"
        tried = {"out": f"{on} 'head -c {many} /dev/zero' | (sleep 4; wc -c)", "in": f"head -c {many} /dev/zero | {on} 'sleep 4; wc -c'",
                 "few": f"{on} yes | head -1"}
        said = {name: subprocess.Popen([*self.hosts.enter("h2"), "sh", "-c", text], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                for name, text in tried.items()}
        for p in said.values():
            self.addCleanup(p.kill)
        self.assertEqual({name: p.communicate(timeout=240)[0] for name, p in said.items()}, {"out": f"{many}\n", "in": f"{many}\n", "few": "y\n"})
        waits = subprocess.Popen([*self.hosts.enter("h2"), "sh", "-c", f"exec {on} 'sleep 321'"])
        self.addCleanup(waits.kill)

        def sleeps():
            return [p for p, w in self.hosts.processes("h1") if w == "sleep 321"]
        wait_for("the command", sleeps)
        self.hosts.run("h2", "pkill", "-9", "-f", "ckpt-on h1")
        wait_for("its end", lambda: not sleeps())
        self.assertIsNone(job.poll(), self.said())

    def test_nothing_on_a_command_line(self):
        self.run_job("sleep", "1001")
        wait_for("the program", lambda: any(w == "sleep 1001" for _, w in self.hosts.processes("h1")))
        with open(f"{self.images}/h1/.hosts-table", encoding="ascii") as f:
            secret = json.load(f)["secret"]
        self.assertEqual(os.stat(f"{self.images}/h1/.hosts-table").st_mode & 0o777, 0o600)
        for name in ("h1", "h2"):
            for _, words in self.hosts.processes(name):
                self.assertNotIn(secret, words)

    def test_stranger_is_turned_away(self):
        self.run_job("sleep", "1001")
        wait_for("the program", lambda: any(w == "sleep 1001" for _, w in self.hosts.processes("h1")))
        with open(f"{self.images}/h1/.hosts-table", encoding="ascii") as f:
            table = json.load(f)
        table["secret"] = "00" * 32
        path = f"{self.dir}/forged"
        with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "w", encoding="ascii") as f:
            json.dump(table, f)
        done = self.hosts.run("h2", "env", f"CKPT_ON={path}", ON, "h1", "touch", f"{self.dir}/done", timeout=240)
        self.assertEqual(done.returncode, 77, done.stderr)
        self.assertFalse(os.path.exists(f"{self.dir}/done"))


    def test_strangers_are_few_at_a_time(self):
        """Whoever connects and says nothing has a process, but not as many as he likes."""
        self.run_job("sleep", "1001")
        wait_for("the program", lambda: any(w == "sleep 1001" for _, w in self.hosts.processes("h1")))
        with open(f"{self.images}/h1/.hosts-table", encoding="ascii") as f:
            [port] = [h["port"] for h in json.load(f)["hosts"] if h["name"] == "h1"]
        silent = ("import socket, sys\nall = [socket.create_connection((sys.argv[1], int(sys.argv[2]))) for _ in range(60)]\n"
                  "print('there', flush=True)\nsys.stdin.read()\n")
        many = subprocess.Popen(self.hosts.enter("h2") + ["/usr/bin/python3", "-c", silent, self.hosts.address("h1"), str(port)],
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.assertEqual(many.stdout.readline(), b"there\n")

        def served():
            return [p for p, w in self.hosts.processes("h1") if "ckpt-on --serve" in w]
        wait_for("processes for some", lambda: len(served()) > 10)
        self.assertLessEqual(len(served()), 18)
        many.stdin.close()
        many.wait(240)
        many.stdout.close()
        # And he who knows the key has his turn.
        done = self.hosts.run("h2", "env", f"CKPT_ON={self.images}/h2/.hosts-table", ON, "h1", "echo", "hello", timeout=240)
        self.assertEqual((done.returncode, done.stdout), (0, "hello\n"), done.stderr)


class Checkpoint(JobOfNumbers):
    def test_from_any_host(self):
        job = self.run_numbers(150_000_000)
        self.connected()
        self.leads(job.pid)
        first = self.now(job.pid)
        client = next(p for p, w in self.hosts.processes("h1") if w.startswith(NUMBERS))
        server = next(p for p, w in self.hosts.processes("h2") if w.startswith(NUMBERS))
        second = self.now(client, "h1")
        third = self.now(server, "h2")
        # An attempt in which bytes are still on their way is made again, under the next number.
        numbers = []
        for taken in (first, second, third):
            numbers.append((numbers[-1] if numbers else 0) + taken["attempts"])
        self.assertEqual([first["id"], second["id"], third["id"]], numbers)
        self.assertEqual(third["hosts"], 2)
        # That of ckpt-on, and that of the program.
        self.assertGreaterEqual(third["connections"], 2)
        # The older one is removed when the newest has been answered.
        wait_for(lambda: f"two checkpoints: {glob.glob(self.images + '/*.hosts')}", lambda:
                 sorted(os.path.basename(f) for f in glob.glob(self.images + "/*.hosts")) == [f"sh.{n:06}.hosts" for n in numbers[1:]])
        self.go()
        self.assertEqual(job.wait(300), 0, self.said())
        self.assertEqual(self.said().count(f"sum {150_000_000 * 149_999_999 // 2}"), 2, self.said())

    def test_a_connection_of_several_processes(self):
        """Each of them makes room in it in the stop: afterwards, and after a restart, its options are what they were."""
        options = "[c.getsockopt(*o) for o in ((socket.SOL_SOCKET, socket.SO_RCVLOWAT), (socket.IPPROTO_TCP, socket.TCP_NODELAY))]"
        scripts = {"server": "s = socket.create_server(('', 5001))\nopen('listens', 'w').close()\nc = s.accept()[0]\n"
                             "while part := c.recv(100): c.sendall(part)\n",
                   "client": "c = socket.create_connection(('h2', 5001))\nchildren = []\n"
                             "for i in range(5):\n if (p := os.fork()) == 0:\n  wait('end')\n  os._exit(0)\n children.append(p)\n"
                             f"def look(name):\n wait(name)\n c.sendall(b'1')\n print(name, {options}, c.recv(1), flush=True)\n"
                             "open('up', 'w').close()\nlook('first')\nlook('end')\nfor p in children: os.waitpid(p, 0)\n"}
        for name, text in scripts.items():
            with open(f"{self.dir}/{name}.py", "w", encoding="ascii") as f:
                f.write("import os, socket, time\ndef wait(name):\n while not os.path.exists(name): time.sleep(0.01)\n" + text)
        job = self.run_job("sh", "-c", f"{ON} h2 python3 server.py & while [ ! -e listens ]; do sleep 0.1; done; python3 client.py; wait")
        wait_for("the client", lambda: os.path.exists(self.dir + "/up"))
        self.leads(job.pid)
        self.now(job.pid)
        open(self.dir + "/first", "w").close()
        wait_for("the first look", lambda: "first" in self.said())
        self.now(job.pid)
        self.kill_all(job)
        back = self.start([RESTART, self.images, "--hosts", "h1,h2", "--launch", self.hosts.launch], "back")
        open(self.dir + "/end", "w").close()
        code = back.wait(300)
        self.assertEqual(code, 0, self.said("back"))
        self.assertEqual(self.texts["out"][0] + self.texts["back"][0], b"first [1, 0] b'1'\nend [1, 0] b'1'\n", self.said())

    def test_what_cannot_come_back_does_not_count(self):
        # A datagram that is not whole yet (UDP_CORK): nobody can read it.
        script = ("import socket, time; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect(('127.0.0.1', 5002)); "
                  "s.setsockopt(socket.IPPROTO_UDP, 1, 1); s.send(b'half'); print('up', flush=True); time.sleep(1000)")
        with open(self.dir + "/corked.py", "w", encoding="ascii") as f:
            f.write(script)
        job = self.run_job("sh", "-c", f"{ON} h2 python3 corked.py")
        wait_for("the program", lambda: "up" in self.said())
        self.leads(job.pid)
        failed = self.now(job.pid, ok=False)
        self.assertEqual(failed.returncode, 76, failed.stderr)
        self.assertIn("h2: process", failed.stderr)
        self.assertEqual(glob.glob(self.images + "/*.hosts"), [])

    def test_host_cut_off(self):
        job = self.run_numbers(10**9)
        self.connected()
        self.leads(job.pid)
        self.now(job.pid)
        before = glob.glob(self.images + "/*.hosts")
        self.hosts.cut("h2")
        failed = self.now(job.pid, ok=False)
        self.assertIn(failed.returncode, (69, 70, 75), failed.stderr)
        self.assertIn("h2", failed.stderr)
        self.assertEqual(glob.glob(self.images + "/*.hosts"), before)
        # The other host's processes run.
        client = next(p for p, w in self.hosts.processes("h1") if w.startswith(NUMBERS))
        state = self.hosts.run("h1", "ps", "-o", "state=", "-p", str(client)).stdout.strip()
        self.assertIn(state, ("S", "R"))

    def test_agent_killed(self):
        job = self.run_numbers(10**9)
        self.connected()
        agent = next(p for p, w in self.hosts.processes("h2") if w.endswith("ckpt agent"))
        self.hosts.run("h2", "kill", "-9", str(agent))
        wait_for("the head to notice", lambda: "its agent is gone" in self.said())
        failed = self.now(job.pid, ok=False)
        self.assertEqual(failed.returncode, 69, failed.stderr)
        self.assertEqual(glob.glob(self.images + "/*.hosts"), [])


if __name__ == "__main__":
    unittest.main()
