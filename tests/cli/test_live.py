"""The commands on a program with the real library: from run to restart, and what can go wrong between."""

import contextlib
import glob
import re
import resource
import signal
import stat
import unittest

from support import *

RESTART = os.path.join(os.path.dirname(CKPT), "ckpt-restart")

# Counts in memory until its input ends, then says how far it came: an ordinary program.
COUNTER = "import sys\nprint('up', flush=True)\nn = 0\nfor line in sys.stdin:\n    n += 1\n    print(n, flush=True)\n"


class Live(CkptTest):
    @contextlib.contextmanager
    def counter(self, *options, directory=None, preexec_fn=None):
        """python3 below `ckpt run`, which answers each line with their number."""
        command = [CKPT, "run", "--dir", directory or self.path("images"), *options, "--",
                   "/usr/bin/python3", "-c", COUNTER]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                 env=clean_environment(), preexec_fn=preexec_fn)
        try:
            self.assertEqual(child.stdout.readline(), b"up\n")
            yield child
        finally:
            child.kill()
            child.communicate()

    def ask_counter(self, child, expected):
        child.stdin.write(b"\n")
        child.stdin.flush()
        self.assertEqual(child.stdout.readline(), b"%d\n" % expected)

    def test_from_run_to_verify(self):
        with self.counter() as child:
            self.ask_counter(child, 1)
            cost = load(self.ckpt("now", child.pid, "--json"))
            self.assertEqual((cost["pid"], cost["sequence"], cost["threads"]), (child.pid, 1, 1))
            self.assertGreater(cost["pause_ns"], 0)
            self.assertGreater(cost["bytes_memory"], 0)
            self.assertIn(cost["mode"], ("realtime", "fork"))
            self.assertEqual(os.path.getsize(cost["image"]), cost["bytes_written"])
            self.assertEqual(stat.S_IMODE(os.stat(cost["image"]).st_mode), 0o600)
            self.ask_counter(child, 2)
            second = load(self.ckpt("now", child.pid, "--json"))
            self.assertEqual(second["sequence"], 2)
            figures = load(self.ckpt("stat", child.pid, "--json"))
            self.assertEqual((figures["checkpoints"], figures["failures"]), (2, 0))
            self.assertEqual(figures["last_image"], second["image"])
            self.ask_counter(child, 3)

            rows = load(self.ckpt("ls", self.path("images"), "--json"))
            self.assertEqual([(r["sequence"], r["state"], r["pause_ns"]) for r in rows],
                             [(1, "complete", cost["pause_ns"]), (2, "complete", second["pause_ns"])])
            image = load(self.ckpt("show", cost["image"], "--json"))
            self.assertEqual(image["process"]["pid"], child.pid)
            self.assertIn("[heap]", [m["path"] for m in image["mappings"]])
            self.assertEqual(self.ckpt("verify", self.path("images")).returncode, OK)

    def test_much_shared_memory_of_which_little_exists(self):
        # An object without a name, and one that others could write to through its descriptor.
        program = ("import mmap, os, sys\n"
                   "size = 64 << 30\n"
                   "if sys.argv[1] == 'memfd':\n"
                   "    fd = os.memfd_create('m')\n"
                   "    os.ftruncate(fd, size)\n"
                   "    m = mmap.mmap(fd, size, flags=mmap.MAP_SHARED | 0x4000)\n"
                   "else:\n"
                   "    m = mmap.mmap(-1, size, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | 0x4000)\n"
                   "for at in range(0, size, size // 64): m[at + 5] = 7\n"
                   "open(sys.argv[2], 'w').write('up')\n"
                   "while not os.path.exists(sys.argv[2] + '.go'): pass\n"
                   "sys.exit(sum(m[at + 5] for at in range(0, size, size // 64)) // 64)\n")
        for kind in ["anonymous", "memfd"]:
            with self.subTest(kind):
                said = self.path(kind)
                child = subprocess.Popen([CKPT, "run", "--dir", self.path(kind + "-images"), "--", "/usr/bin/python3", "-c", program, kind, said],
                                         stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=clean_environment())
                try:
                    while not os.path.exists(said) and child.poll() is None:
                        pass
                    cost = self.ckpt("now", child.pid, "--json")
                    self.assertEqual(cost.returncode, OK, cost.stderr)
                    self.assertLess(load(cost)["bytes_memory"], 256 << 20)
                finally:
                    child.kill()
                    child.wait()
                open(said + ".go", "w").close()
                again = subprocess.run([RESTART, self.path(kind + "-images")], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                       env=clean_environment(), timeout=60, check=False)
                self.assertEqual(again.returncode, 7, again.stderr)

    def test_keeps_as_many_as_told(self):
        with self.counter("--keep", "2") as child:
            for _ in range(4):
                self.assertEqual(self.ckpt("now", child.pid).returncode, OK)
            rows = load(self.ckpt("ls", self.path("images"), "--json"))
            self.assertEqual([r["sequence"] for r in rows], [3, 4])

    def test_figures_say_how_many_images_there_will_be(self):
        for options, increments, keep in [(["--increments", "8", "--keep", "3"], 8, 3), (["--keep", "0"], 0, 0)]:
            with self.subTest(options), self.counter(*options, directory=self.path(f"keep{keep}")) as child:
                figures = load(self.ckpt("stat", child.pid, "--json"))
                self.assertEqual((figures["increments"], figures["keep"]), (increments, keep))
                said = self.ckpt("stat", child.pid).stdout
                self.assertIn("  CKPT_INCREMENTS         8\n" if increments else "  CKPT_INCREMENTS         0 (default)\n", said)
                self.assertIn("  CKPT_KEEP               3\n" if keep else "  CKPT_KEEP               0\n", said)

    def test_figures_tell_what_is_set_from_what_is_in_force(self):
        options = ["--mode", "sequential", "--order", "hot", "--segment", "auto", "--increments", "3", "--files", "links"]
        with self.counter(*options) as child:
            def settings():
                return {name: (value["set"], value["in_force"])
                        for name, value in load(self.ckpt("stat", child.pid, "--json"))["settings"].items()}
            # All of them, and nothing is known yet of what the mode cannot do.
            before = settings()
            with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../README.md"), encoding="utf-8") as readme:
                variables = re.findall(r"^\| `(CKPT_[A-Z_]+)`", readme.read(), re.M)
            self.assertEqual(list(before), variables)
            self.assertEqual(before["CKPT_MODE"], ("sequential", "sequential"))
            self.assertEqual(before["CKPT_INCREMENTS"], ("3", "3"))
            self.assertEqual(self.ckpt("now", child.pid).returncode, OK)
            after = settings()
            self.assertEqual(after["CKPT_INCREMENTS"], ("3", "0"))
            self.assertEqual(after["CKPT_ORDER"], ("hot", "address"))
            self.assertEqual(after["CKPT_FILES"], ("links", "links"))
            set_size, size = after["CKPT_SEGMENT"]
            self.assertEqual(set_size, "auto")
            self.assertRegex(size, r"\A[0-9]+K\Z")
            self.assertIn("  CKPT_ORDER              hot; in force: address\n", self.ckpt("stat", child.pid).stdout)

    def test_log_says_which_settings_are_not_used(self):
        for options, line in [(["--mode", "sequential", "--order", "hot"], "CKPT_ORDER=hot is not used: mode sequential copies nothing in order\n"),
                              (["--mode", "fork", "--engine", "dma"], "CKPT_ENGINE=dma is not used: mode fork copies nothing in order\n"),
                              (["--mode", "concurrent", "--engine", "dma", "--order", "cold"],
                               "CKPT_ENGINE=dma and CKPT_ORDER=cold are not used: mode concurrent copies nothing in order\n"),
                              (["--mode", "sequential"], None),
                              (["--mode", "auto", "--engine", "dma", "--order", "cold"] if ROOT else [], None)]:
            with self.subTest(options):
                directory = self.path("-".join(["images", *options]))
                with self.counter(*options, directory=directory) as child:
                    self.assertEqual(self.ckpt("now", child.pid).returncode, OK)
                    with open(os.path.join(directory, "ckpt_rt.log"), encoding="utf-8") as log:
                        said = log.read()
                self.assertEqual(said.count("not used"), 1 if line else 0, said)
                self.assertIn(line or "", said)

    def test_each_mode(self):
        for mode in ["sequential", "fork"]:
            with self.subTest(mode), self.counter("--mode", mode, directory=self.path(mode)) as child:
                result = self.ckpt("now", child.pid, "--json")
                self.assertEqual(result.returncode, OK, result.stderr)
                self.assertEqual(load(result)["mode"], mode)
                self.ask_counter(child, 1)
                self.assertEqual(self.ckpt("verify", self.path(mode)).returncode, OK)

    def test_asked_where_no_signal_can_be_queued(self):
        # One without a cookie is served at a time; checkpoints are those that were asked for, and the one of kill(1).
        def full():
            resource.setrlimit(resource.RLIMIT_SIGPENDING, (0, resource.getrlimit(resource.RLIMIT_SIGPENDING)[1]))
        with self.counter(preexec_fn=full) as child:
            asked = ["now", "stat", "now", "stat", "now", "stat"]
            askers = [subprocess.Popen([CKPT, what, str(child.pid), "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                       env=clean_environment()) for what in asked]
            for what, asker in zip(asked, askers):
                out, err = asker.communicate(timeout=60)
                self.assertEqual(asker.returncode, OK, err)
                self.assertIn("pause_ns" if what == "now" else "mode_reason", json.loads(out))
            self.assertEqual(load(self.ckpt("stat", child.pid, "--json"))["checkpoints"], 3)
            self.ask_counter(child, 1)

    def test_kill_takes_a_checkpoint(self):
        for limit in (None, 0):
            def limited(limit=limit):
                hard = resource.getrlimit(resource.RLIMIT_SIGPENDING)[1]
                resource.setrlimit(resource.RLIMIT_SIGPENDING, (hard if limit is None else limit, hard))
            with self.subTest(limit), self.counter(preexec_fn=limited, directory=self.path(f"images{limit}")) as child:
                os.kill(child.pid, 60)
                # Nobody asks meanwhile: where no signal can be queued, an asker could be taken for who has sent this one.
                while not glob.glob(self.path(f"images{limit}/*.ckpt")):
                    self.assertIsNone(child.poll())
                self.assertEqual(self.ckpt("now", child.pid).returncode, OK)
                self.assertEqual(load(self.ckpt("stat", child.pid, "--json"))["checkpoints"], 2)

    def test_interval_that_cannot_be_says_so(self):
        def full():
            resource.setrlimit(resource.RLIMIT_SIGPENDING, (0, resource.getrlimit(resource.RLIMIT_SIGPENDING)[1]))
        with self.counter("--every", "1h", preexec_fn=full) as child:
            said = load(self.ckpt("stat", child.pid, "--json"))
            self.assertIn("no timer for CKPT_EVERY (EAGAIN); raise ulimit -i", said["last_error"])
            with open(self.path("images/ckpt_rt.log"), encoding="utf-8") as log:
                self.assertIn("no timer for CKPT_EVERY", log.read())

    def test_other_signal(self):
        with self.counter("--signal", "45") as child:
            self.assertEqual(self.ckpt("now", child.pid).returncode, OK)
            self.assertEqual(load(self.ckpt("stat", child.pid, "--json"))["signal"], 45)

    def refuse_and_go_on(self, child, code, *words):
        """The checkpoint fails with this code, the program is unharmed, and older images are whole."""
        result = self.ckpt("now", child.pid)
        self.check_refusal(result, code, *words)
        self.ask_counter(child, 1)
        figures = load(self.ckpt("stat", child.pid, "--json"))
        self.assertGreater(figures["failures"], 0)
        self.assertTrue(figures["last_error"])

    def test_directory_goes_away(self):
        with self.counter() as child:
            shutil.rmtree(self.path("images"))
            with open(self.path("images"), "w"):
                pass
            self.refuse_and_go_on(child, CANNOT_CREATE, self.path("images"))

    def test_directory_becomes_writable_by_others(self):
        with self.counter() as child:
            self.assertEqual(self.ckpt("now", child.pid).returncode, OK)
            os.chmod(self.path("images"), 0o777)
            self.refuse_and_go_on(child, PERMISSION, "chmod go-w")
            self.assertEqual(self.ckpt("verify", self.path("images")).returncode, OK)

    def test_directory_not_writable(self):
        os.chmod(self.directory, 0o755)
        os.mkdir(self.path("images"), 0o700)
        kwargs = {}
        if ROOT:  # the unprivileged case is tried by giving the rights up
            os.chown(self.path("images"), 65534, 65534)
            kwargs["preexec_fn"] = as_nobody
        with self.counter(**kwargs) as child:
            self.assertEqual(self.ckpt("now", child.pid).returncode, OK)
            os.chmod(self.path("images"), 0o500)
            self.refuse_and_go_on(child, PERMISSION, self.path("images"))
            self.assertEqual(self.ckpt("verify", self.path("images")).returncode, OK)

    def test_file_size_limit(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, 64 << 10))
        with self.counter(preexec_fn=limit) as child:
            self.refuse_and_go_on(child, IO, "limit")
            self.assertEqual([f for f in os.listdir(self.path("images")) if "ckpt_rt.log" not in f], [])

    def test_disk_full(self):
        # A tiny file system of our own, in mount namespaces of our own where we are not root.
        os.mkdir(self.path("small"))
        script = (f"mount -t tmpfs -o size=256k,mode=700 tmpfs {self.path('small')} && exec {CKPT} run --dir "
                  f"{self.path('small')} -- /usr/bin/python3 -c \"{COUNTER}\"")
        command = ["unshare", "--mount", "sh", "-c", script]
        if not ROOT:
            command[1:1] = ["--user", "--map-root-user"]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=clean_environment())
        try:
            self.assertEqual(child.stdout.readline(), b"up\n")
            self.refuse_and_go_on(child, IO, "space")
        finally:
            child.kill()
            child.communicate()

    def test_stopped_threads_are_let_go_when_the_asker_dies(self):
        with self.counter() as child:
            asker = subprocess.Popen([CKPT, "now", str(child.pid)], stdout=subprocess.DEVNULL,
                                     stderr=subprocess.DEVNULL, env=clean_environment())
            asker.kill()
            asker.wait()
            self.ask_counter(child, 1)
            self.assertEqual(self.ckpt("now", child.pid).returncode, OK)

    def test_askers_at_once(self):
        with self.counter() as child:
            askers = [subprocess.Popen([CKPT, "now", str(child.pid)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                       text=True, env=clean_environment()) for _ in range(4)]
            for asker in askers:
                out, err = asker.communicate(timeout=60)
                # One after another, or told that one is being taken; never two at once, never silence.
                self.assertIn(asker.returncode, (OK, UNAVAILABLE), err)
            self.ask_counter(child, 1)

    def test_interval(self):
        with self.counter("--every", "100ms", "--keep", "0") as child:
            while len(load(self.ckpt("ls", self.path("images"), "--json"))) < 3:
                self.assertIsNone(child.poll())
            self.ask_counter(child, 1)


class Back(CkptTest):
    def test_killed_and_brought_back(self):
        # Files instead of pipes: those lead to us, and a restart gives them to whoever restarts.
        script = ("import sys, os, time\nn = 0\nopen('up', 'w').close()\n"
                  "while not os.path.exists('stop'):\n    n += 1\n    time.sleep(0.001)\n"
                  "print('counted', n > 0, flush=True)\nsys.exit(5)\n")
        with open(self.path("out"), "wb") as out:
            child = subprocess.Popen([CKPT, "run", "--dir", self.path("images"), "--", "/usr/bin/python3", "-c", script],
                                     stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=self.directory,
                                     env=clean_environment())
        while not os.path.exists(self.path("up")):
            self.assertIsNone(child.poll())
        result = self.ckpt("now", child.pid)
        self.assertEqual(result.returncode, OK, result.stderr)
        child.kill()
        child.wait()
        restart = subprocess.Popen([RESTART, self.path("images")], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, env=clean_environment())
        with open(self.path("stop"), "w"):
            pass
        out, err = restart.communicate(timeout=60)
        with open(self.path("out")) as f:
            self.assertEqual((restart.returncode, f.read()), (5, "counted True\n"), err)


if __name__ == "__main__":
    unittest.main()
