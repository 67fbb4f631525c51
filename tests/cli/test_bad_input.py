"""Real programs, real images, and what goes wrong with them: one line, the documented code, no harm."""

import ctypes
import re
import resource
import socket
import struct
import unittest

from support import *

RESTART = os.path.join(os.path.dirname(CKPT), "ckpt-restart")
API = os.environ["CKPT_API_PROGRAM"]
FILE_CHANGED = 72
COUNTER = "import sys\nprint('up', flush=True)\nn = 0\nfor line in sys.stdin:\n    n += 1\n    print(n, flush=True)\n"


def contents(path):
    with open(path) as f:
        return f.read()


class RealTest(CkptTest):
    @contextlib.contextmanager
    def running(self, *options, argv=None, directory=None, before=(), **kwargs):
        """A program below `ckpt run` that answers each line of input with its number."""
        argv = argv or ["/usr/bin/python3", "-c", COUNTER]
        command = [*before, CKPT, "run", "--dir", directory or self.path("images"), *options, "--", *argv]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                 env=clean_environment(), **kwargs)
        self.said = 0
        try:
            self.assertEqual(child.stdout.readline(), b"up\n")
            yield child
        finally:
            child.kill()
            child.communicate()

    def ask(self, child, line=b"\n"):
        self.said += 1
        child.stdin.write(line)
        child.stdin.flush()
        self.assertEqual(child.stdout.readline(), b"%d\n" % self.said)

    def take(self, child):
        result = self.ckpt("now", child.pid, "--json")
        self.assertEqual(result.returncode, OK, result.stderr)
        return load(result)

    def given_up(self, child, code, *words):
        """The checkpoint is refused, the program unharmed, what there was is whole, nothing is left over."""
        before = os.listdir(self.path("images"))
        self.check_refusal(self.ckpt("now", child.pid), code, *words)
        self.ask(child)
        figures = load(self.ckpt("stat", child.pid, "--json"))
        self.assertGreater(figures["failures"], 0)
        self.assertIn(words[0], figures["last_error"])
        self.assertEqual(set(os.listdir(self.path("images"))), set(before) | {"ckpt_rt.log"})

    def restart(self, *args, **kwargs):
        return subprocess.run([RESTART, *map(str, args)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=60, env=clean_environment(), **kwargs)

    def refused_restart(self, code, words, *args, **kwargs):
        result = self.restart(*args, **kwargs)
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertEqual(result.stdout, "")
        self.assertRegex(result.stderr, r"\Ackpt-restart: [^\n]+\n\Z")
        for word in words:
            self.assertIn(word, result.stderr)


class Checkpoints(RealTest):
    def test_disk_fills_up_between_images(self):
        os.mkdir(self.path("images"))
        script = f"mount -t tmpfs -o size=40m,mode=700 tmpfs {self.path('images')} && exec \"$@\""
        # In a mount namespace of its own: the images are looked at through the program's root.
        before = ["unshare", "--mount", *([] if ROOT else ["--user", "--map-root-user"]), "sh", "-c", script, "sh"]
        with self.running("--keep", "0", before=before) as child:
            inside = f"/proc/{child.pid}/root{self.path('images')}"
            taken = 0
            while (result := self.ckpt("now", child.pid)).returncode == OK:
                taken += 1
                self.assertLess(taken, 100)
            self.assertGreater(taken, 0)
            self.check_refusal(result, IO, "space")
            self.ask(child)
            self.assertEqual([f for f in os.listdir(inside) if f.endswith(".tmp")], [])
            self.assertEqual(self.ckpt("verify", inside).returncode, OK)
            # With room again it goes on where it was.
            os.unlink(f"{inside}/{min(f for f in os.listdir(inside) if f.endswith('.ckpt'))}")
            self.assertEqual(self.ckpt("now", child.pid).returncode, OK)

    def test_file_size_limit_after_a_good_image(self):
        with self.running() as child:
            cost = self.take(child)
            resource.prlimit(child.pid, resource.RLIMIT_FSIZE, (64 << 10, resource.RLIM_INFINITY))
            self.given_up(child, IO, "limit")
            self.assertEqual(self.ckpt("verify", cost["image"]).returncode, OK)

    def test_thread_that_does_not_stop(self):
        # Long enough for the other thread, which stops when it gets a processor.
        with self.running("--stop-timeout", "10s", argv=[API, "stuck"]) as child:
            tid = next(t for t in os.listdir(f"/proc/{child.pid}/task")
                       if contents(f"/proc/{child.pid}/task/{t}/comm") == "stubborn\n")
            self.check_refusal(self.ckpt("now", child.pid), TIMEOUT, tid, "stubborn", "CKPT_STOP_TIMEOUT")
            self.ask(child)
            self.assertRegex(contents(self.path("images/ckpt_rt.log")), rf"{tid}.*stubborn[^$]*#0 ")
            # Whoever wrote that was no child of the program.
            for t in os.listdir(f"/proc/{child.pid}/task"):
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the checkpoint's thread ends meanwhile
                    self.assertEqual(contents(f"/proc/{child.pid}/task/{t}/children"), "")
            self.assertEqual([f for f in os.listdir(self.path("images")) if "ckpt_rt.log" not in f], [])
            # Where it is, for whoever wants to know.
            where = self.ckpt("backtrace", child.pid, tid)
            self.assertEqual(where.returncode, OK, where.stderr)
            self.assertIn("stubborn", where.stdout)

    def test_critical_section_that_lasts(self):
        with self.running("--stop-timeout", "10s", argv=[API, "critical"]) as child:
            self.check_refusal(self.ckpt("now", child.pid), TIMEOUT, "critical section", "CKPT_STOP_TIMEOUT")
            self.ask(child, b"leave\n")
            self.take(child)
            self.ask(child)

    def test_without_userfaultfd_it_forks_and_says_so(self):
        kwargs = {}
        if ROOT:
            os.chmod(self.directory, 0o755)
            os.mkdir(self.path("images"), 0o700)
            os.chown(self.path("images"), 65534, 65534)
            kwargs["preexec_fn"] = as_nobody
        machine = load(self.ckpt("check", "/tmp", "--json", **kwargs))
        if machine["mode"] != "fork":
            self.skipTest("everybody may use userfaultfd here")
        with self.running(**kwargs) as child:
            figures = load(self.ckpt("stat", child.pid, "--json"))
            self.assertEqual(figures["mode"], "fork")
            self.assertIn("userfaultfd", figures["mode_reason"])
            self.assertIn("ckpt check", figures["mode_reason"])
            self.assertEqual(self.take(child)["mode"], "fork")
            self.ask(child)
        with self.running("--mode", "realtime", **kwargs) as child:
            self.assertEqual(self.take(child)["mode"], "fork")

    def test_no_thread_for_the_agent(self):
        kwargs = {}
        if ROOT:
            os.chmod(self.directory, 0o755)
            os.mkdir(self.path("images"), 0o700)
            os.chown(self.path("images"), 65534, 65534)
            kwargs["preexec_fn"] = as_nobody
        with self.running(**kwargs) as child:
            def limit_processes(to):  # as its own user: another's limits are not root's to change everywhere
                subprocess.run(["prlimit", f"--pid={child.pid}", f"--nproc={to}:"], check=True, **kwargs)
            hard = re.search(r"^Max processes +\S+ +(\S+)", contents(f"/proc/{child.pid}/limits"), re.M)[1]
            limit_processes(0)
            self.check_refusal(self.ckpt("now", child.pid, "--timeout", "1s"), TIMEOUT, str(child.pid))
            self.ask(child)
            limit_processes(hard)
            figures = load(self.ckpt("stat", child.pid, "--json"))
            self.assertEqual((figures["checkpoints"], figures["failures"]), (0, 1))
            self.assertIn("cannot start a thread (EAGAIN)", figures["last_error"])
            self.take(child)

    def test_unfinished_image_of_a_dead_process(self):
        with self.running() as child:
            whole = self.take(child)["image"]
        dead = self.path("images/python3.99999.deadbeef.000004.ckpt.tmp")
        with open(whole, "rb") as image, open(dead, "wb") as half:
            half.write(image.read(os.path.getsize(whole) // 8192 * 4096))
        with self.running() as child:
            self.take(child)
        self.assertFalse(os.path.exists(dead))
        self.assertTrue(os.path.exists(whole))
        self.assertIn("removed 1 unfinished image", contents(self.path("images/ckpt_rt.log")))

    def test_progress_is_told(self):
        program = "import sys\nb = bytearray(b'x') * (64 << 20)\n" + COUNTER
        libc = ctypes.CDLL(None, use_errno=True)
        for mode in ["sequential", "fork"] + ["realtime"] * ROOT:
            with self.subTest(mode), self.running("--mode", mode, argv=["/usr/bin/python3", "-c", program],
                                                  directory=self.path(mode)) as child:
                # The asker's half of base/protocol/control_protocol.h.
                cookie = int.from_bytes(os.urandom(8), "little") >> 1
                with socket.socket(socket.AF_UNIX) as listener:
                    listener.bind(b"\0ckpt_rt.%016x" % cookie)
                    listener.listen(4)
                    listener.settimeout(60)
                    self.assertEqual(libc.sigqueue(child.pid, 60, ctypes.c_void_p(cookie)), 0)
                    peer, _ = listener.accept()
                    with peer, peer.makefile("rb") as answer:
                        magic, version, pid, _ = struct.unpack("<IIiI", answer.read(16))
                        self.assertEqual((magic, version, pid), (0x43525443, 4, child.pid))
                        peer.sendall(struct.pack("<IIII", magic, version, 1, 0))
                        lines = answer.read().decode().splitlines()
                self.assertEqual(lines[-1], "done")
                told = [tuple(map(int, l.split()[1:])) for l in lines if l.startswith("progress ")]
                self.assertGreater(len(told), 0)
                self.assertEqual(told, sorted(told))
                memory = next(int(l.split()[1]) for l in lines if l.startswith("bytes_memory "))
                for done, total in told:
                    self.assertLessEqual(done, total)
                    self.assertGreaterEqual(total, memory)

    def test_exec_storm(self):
        # The next image of the process may begin at any moment: every request is answered, by a checkpoint
        # or by a line, and none of their signals meets a program that does not know it.
        command = [CKPT, "run", "--dir", self.path("images"), "--every", "20ms", "--", API, "exec", "150"]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                 env=clean_environment())
        try:
            os.set_blocking(child.stdout.fileno(), False)
            said = b""
            while b"up\n" not in said:
                self.assertIsNone(child.poll())
                result = self.ckpt("now", child.pid, "--timeout", "2s")
                if result.returncode != OK:
                    self.assertIn(result.returncode, (NO_PROCESS, UNAVAILABLE, INTERNAL, TIMEOUT, PERMISSION), result.stderr)
                    self.assertRegex(result.stderr, r"\Ackpt: [^\n]+\n\Z")
                said += child.stdout.read() or b""
            os.set_blocking(child.stdout.fileno(), True)
            self.said = 0
            self.ask(child)
            self.take(child)
            # What an exec interrupted is tidied, what was finished is whole.
            self.assertEqual(self.ckpt("verify", self.path("images")).returncode, OK)
        finally:
            child.kill()
            child.communicate()


class Images(RealTest):
    def image(self, **kwargs):
        with self.running(**kwargs) as child:
            cost = self.take(child)
            self.vdso = re.findall(r"^(\S+)-(\S+) .*\[vdso\]$", contents(f"/proc/{child.pid}/maps"), re.M)
        return cost["image"]

    def test_holds_the_code_of_the_vdso(self):
        saved = load(self.ckpt("show", self.image(), "--json"))["process"]["vdso_bytes_saved"]
        start, end = (int(a, 16) for a in self.vdso[0])
        self.assertEqual(saved, end - start)

    def test_truncated_and_corrupted(self):
        path = self.image()
        with open(path, "rb") as f:
            whole = f.read()
        size = len(whole)
        for cut in [0, 1, 4095, 4096, size // 2, size - 4096, size - 1]:
            with self.subTest(cut=cut):
                with open(path, "r+b") as f:
                    f.truncate(cut)
                self.refused_restart(DAMAGED, [path], path)
                with open(path, "r+b") as f:
                    f.write(whole)
        for at in [0, 8, 4096 + 40, size // 3, size // 2 + 777, size - 5000, size - 100]:
            with self.subTest(at=at):
                with open(path, "r+b") as f:
                    f.seek(at)
                    f.write(bytes([whole[at] ^ 0x40]))
                # Byte 8 is the version: another one, or a damaged one, is not ours to read.
                result = self.restart(path)
                self.assertIn(result.returncode, (DAMAGED, INCOMPATIBLE) if at == 8 else (DAMAGED,), result.stderr)
                self.assertRegex(result.stderr, r"\Ackpt-restart: [^\n]+\n\Z")
                self.assertIn(path, result.stderr)
                with open(path, "r+b") as f:
                    f.seek(at)
                    f.write(whole[at:at + 1])
        self.assertEqual(self.restart("--check", path).returncode, OK)

    def test_foreign(self):
        with open(CKPT, "rb") as f:
            program = f.read(1 << 16)
        for name, content in [("empty", b""), ("text", b"not an image\n" * 1000), ("elf", program)]:
            with open(self.path(name), "wb") as f:
                f.write(content)
            self.refused_restart(DAMAGED, [self.path(name)], self.path(name))
        self.refused_restart(NOT_FOUND, [self.path("no-such")], self.path("no-such"))

    def test_changed_and_missing_files(self):
        own = self.path("interpreter")
        shutil.copy("/usr/bin/python3", own)
        path = self.image(argv=[own, "-c", COUNTER])
        with open(own, "r+b") as f:
            f.truncate(os.path.getsize(own) - 4096)
        self.refused_restart(FILE_CHANGED, [own], path)
        os.unlink(own)
        self.refused_restart(FILE_CHANGED, [own], path)
        shutil.copy("/bin/true", own)
        self.refused_restart(FILE_CHANGED, [own], path)

    def test_changed_mapped_data(self):
        """Files without a build id: small ones are known by all of their content, large ones by pieces and time."""
        program = "import mmap\nf = open({!r}, 'rb')\nm = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)\n" + COUNTER
        for megabytes, changed in [(1, 500_000), (70, 10), (70, (35 << 20) + 12345), (70, (70 << 20) - 1)]:
            with self.subTest(megabytes=megabytes, changed=changed):
                data = self.path("data")
                with open(data, "wb") as f:
                    f.write(bytes(range(256)) * (megabytes << 12))
                path = self.image(argv=["/usr/bin/python3", "-c", program.format(data)])
                result = self.restart("--check", path)
                self.assertEqual(result.returncode, OK, result.stderr)
                with open(data, "r+b") as f:
                    f.seek(changed)
                    f.write(b"!")
                self.refused_restart(FILE_CHANGED, [data, "has changed"], "--check", path)

    def test_ids_in_use_and_no_namespaces_allowed(self):
        with self.running() as child:
            path = self.take(child)["image"]
            self.refused_restart(UNAVAILABLE, [str(child.pid)], "--namespaces=never", path)
            self.ask(child)


class Api(RealTest):
    def test_without_the_library(self):
        out = subprocess.run([API, "api"], stdout=subprocess.PIPE, text=True, check=True, env=clean_environment()).stdout
        self.assertEqual(out, "active 0 restarted 0\nsmall 67\nenter 0 inside 67 leave 0 again 0\nremove again 0\n"
                              "returned 67 restarted 0 0 sequence 0 before 0 after 0 restart 0 "
                              "memory 120 120 120 120 error ''\n")

    def test_checkpoint_callbacks_sections_and_exclusion(self):
        begin = "active 1 restarted 0\nsmall 64\nenter 0 inside 64 leave 0 again 64\nremove again 64\n"
        with open(self.path("out"), "wb") as out:
            subprocess.run([CKPT, "run", "--dir", self.path("images"), "--", API, "api"], stdout=out, check=True,
                           stdin=subprocess.DEVNULL, env=clean_environment())
        self.assertEqual(contents(self.path("out")),
                         begin + "returned 0 restarted 0 0 sequence 1 before 1 after 1 restart 0 "
                                 "memory 120 120 120 120 error ''\n")
        for generation in [1, 1]:  # the same image again
            result = self.restart(self.path("images"))
            self.assertEqual(result.returncode, OK, result.stderr)
            # The second page was left out; what ran after the image was fixed is not in it.
            self.assertEqual(contents(self.path("out")),
                             begin + f"returned 0 restarted {generation} {generation} sequence 0 before 1 after 0 "
                                     "restart 1 memory 120 0 120 120 error ''\n")


    def test_image_that_will_not_restart(self):
        """The program that asked is told, the log and `ckpt stat` say it, and the older image, which would, stays."""
        for what, mode in (("lost", "auto"), ("lost", "fork"), ("lost", "sequential"), ("lost-child", "auto")):
            images = self.path(f"{what}-{mode}")
            with self.subTest(what, mode=mode), subprocess.Popen(
                    [CKPT, "run", "--dir", images, "--keep", "1", "--mode", mode, "--", API, what],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=clean_environment()) as child:
                whose = r"process \d+ \(\S+\): " if what == "lost-child" else ""
                why = rf"\S+ is durable, but cannot be restarted: {whose}a thread has descriptors of its own[^\n]*"
                said = child.stdout.readline()
                self.assertRegex(said, rf"\Areturned {NOT_RESTARTABLE} sequence \d error {why}\n\Z")
                self.assertEqual(child.stdout.readline(), "up\n")
                self.assertRegex(load(self.ckpt("stat", child.pid, "--json"))["last_error"], why)
                self.assertRegex(contents(f"{images}/ckpt_rt.log"), why)
                asked = self.ckpt("now", child.pid, "--json")
                self.assertEqual((asked.returncode, load(asked)["restartable"]), (NOT_RESTARTABLE, False))
                kept = [f for f in os.listdir(images) if f.endswith((".ckpt", ".job"))]
                self.assertEqual(len(kept), 3, kept)
                child.kill()

    def test_callback_that_writes_more_than_the_pool_holds(self):
        size = 24 << 20
        with open(self.path("out"), "wb") as out:
            subprocess.run([CKPT, "run", "--dir", self.path("images"), "--pool", "1M", "--", API, "flood"], stdout=out, check=True,
                           stdin=subprocess.DEVNULL, env=clean_environment(), timeout=60)
        self.assertEqual(contents(self.path("out")), f"returned 0 restarted 0 old 0 new {size}\n")
        result = self.restart(self.path("images"))
        self.assertEqual(result.returncode, OK, result.stderr)
        self.assertEqual(contents(self.path("out")), f"returned 0 restarted 1 old {size} new 0\n")

    def test_memory_that_loses_its_protection_without_a_word(self):
        size = 4 << 20
        with open(self.path("out"), "wb") as out:
            subprocess.run([CKPT, "run", "--dir", self.path("images"), "--", API, "reclaimed"], stdout=out, check=True,
                           stdin=subprocess.DEVNULL, env=clean_environment(), timeout=60)
        self.assertEqual(contents(self.path("out")), "returned 0 restarted 0 as at the stop 0\n")
        result = self.restart(self.path("images"))
        self.assertEqual(result.returncode, OK, result.stderr)
        self.assertEqual(contents(self.path("out")), f"returned 0 restarted 1 as at the stop {size}\n")


class OtherNamespace(RealTest):
    @unittest.skipUnless(ROOT, "asks as root for somebody else's program")
    def test_root_asks_a_program_in_a_user_namespace_of_its_own(self):
        os.chmod(self.directory, 0o755)
        os.mkdir(self.path("images"), 0o700)
        os.chown(self.path("images"), 65534, 65534)
        before = ["unshare", "--user", "--map-user=65534", "--map-group=65534"]
        with self.running(before=before, preexec_fn=as_nobody) as child:
            self.take(child)
            self.assertEqual(load(self.ckpt("stat", child.pid, "--json"))["checkpoints"], 1)
            self.ask(child)


if __name__ == "__main__":
    unittest.main()
