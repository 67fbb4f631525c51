"""ckpt run: what it refuses, what it sets, where the program's own arguments begin."""

import re
import sys
import time
import unittest

from support import *

PRINT_ENV = ["sh", "-c", 'echo "$LD_PRELOAD"; env | grep ^CKPT_ | sort']


class Refusals(CkptTest):
    def test_no_program(self):
        self.refuse(USAGE, "no program given", "run")
        self.refuse(USAGE, "no program given", "run", "--dir", self.directory, "--")

    def test_settings_are_checked_before_anything_starts(self):
        for option, value in [("--every", "5 parsecs"), ("--every", "1us"), ("--mode", "magic"), ("--segment", "65"), ("--compress", "zip"),
                              ("--segment", "512K"), ("--pool", "1K"), ("--signal", "9"), ("--signal", "sixty"),
                              ("--keep", "-2"), ("--keep", "many"), ("--stop-timeout", "0")]:
            with self.subTest(option=option, value=value):
                variable = "CKPT_" + option[2:].upper().replace("-", "_")
                self.refuse(USAGE, variable, "run", f"{option}={value}", "--", "touch", self.path("started"))
                self.assertFalse(os.path.exists(self.path("started")))
        self.refuse(USAGE, "CKPT_EVERY", "run", "--", "true", env=clean_environment(CKPT_EVERY="x"))

    def test_missing_program(self):
        self.refuse(NOT_FOUND, ["no-such-program", "PATH"], "run", "--", "no-such-program")
        self.refuse(NOT_FOUND, "no such program", "run", "--", self.path("none"))
        self.refuse(NOT_FOUND, "directory", "run", "--", self.directory)
        self.refuse(USAGE, "empty", "run", "--", "")

    def test_not_executable(self):
        with open(self.path("data"), "w") as f:
            f.write("#!/bin/sh\n")
        self.refuse(PERMISSION, ["may not be executed", "chmod"], "run", "--", self.path("data"))

    def test_static_program(self):
        with open(self.path("x.c"), "w") as f:
            f.write("int main(void) { return 0; }\n")
        for flag in ["-static", "-static-pie"]:
            with self.subTest(flag):
                subprocess.run(["cc", flag, "-o", self.path("static"), self.path("x.c")], check=True)
                self.refuse(UNSUPPORTED, ["statically linked", "dynamically"], "run", "--", self.path("static"))

    def test_program_of_a_sanitizer(self):
        with open(self.path("x.c"), "w") as f:
            f.write("#include <stdio.h>\nint main(void) { puts(\"up\"); fflush(stdout); return getchar() == 'x' ? 7 : 1; }\n")
        for kind, name in [("address", "AddressSanitizer"), ("thread", "ThreadSanitizer")]:
            with self.subTest(kind):
                program = self.path(kind)
                if subprocess.run(["cc", f"-fsanitize={kind}", "-o", program, self.path("x.c")], stderr=subprocess.DEVNULL).returncode:
                    continue
                self.refuse(UNSUPPORTED, name, "run", "--", program)
        if not os.path.exists(self.path("thread")):
            self.skipTest("no ThreadSanitizer here")
        # Without `ckpt run`: the checkpoint ended the program.
        child = subprocess.Popen([self.path("thread")], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                 env=clean_environment(LD_PRELOAD=LIBRARY, CKPT_DIR=self.path("images")))
        child.stdout.readline()
        self.check_refusal(self.ckpt("now", child.pid), UNAVAILABLE)
        child.communicate(b"x")
        self.assertEqual(child.returncode, 7)
        with open(self.path("images/ckpt_rt.log")) as f:
            self.assertIn("sanitizer", f.read())

    def test_setuid_program(self):
        if ROOT:
            program = self.path("setuid")
            shutil.copy("/bin/true", program)
            os.chown(program, 65534, 65534)
            os.chmod(program, 0o4755)
        else:
            program = shutil.which("su")
        self.refuse(UNSUPPORTED, ["setuid", "copy"], "run", "--", program)

    def test_srun(self):
        """By its name, before it starts: ckpt-srun would take its place, but there is no allocation of Slurm."""
        program = self.path("srun")
        with open(program, "w", encoding="ascii") as f:
            f.write(f"#!/bin/sh\ntouch {self.path('started')}\n")
        os.chmod(program, 0o755)
        self.refuse(UNSUPPORTED, ["no allocation of Slurm", "sbatch"], "run", "--", program, "./app")
        self.assertFalse(os.path.exists(self.path("started")))

    def test_32_bit_and_foreign_programs(self):
        head = bytearray(b"\x7fELF\x01\x01\x01" + bytes(9) + b"\x02\x00\x03\x00" + bytes(64))
        for name, machine, words in [("x86", 3, "32-bit"), ("arm", 40, "32-bit ARM")]:
            head[18] = machine
            with open(self.path(name), "wb") as f:
                f.write(head)
            os.chmod(self.path(name), 0o755)
            self.refuse(UNSUPPORTED, words, "run", "--", self.path(name))
        head[4], head[18] = 2, 183
        with open(self.path("aarch64"), "wb") as f:
            f.write(head)
        os.chmod(self.path("aarch64"), 0o755)
        self.refuse(UNSUPPORTED, "64-bit ARM", "run", "--", self.path("aarch64"))

    def test_directory_that_cannot_be(self):
        self.refuse(CANNOT_CREATE, "/proc/x", "run", "--dir", "/proc/x", "--", "true")
        with open(self.path("file"), "w"):
            pass
        self.refuse(CANNOT_CREATE, self.path("file"), "run", "--dir", self.path("file"), "--", "true")
        self.refuse(CANNOT_CREATE, "file/below", "run", "--dir", self.path("file/below"), "--", "true")

    def test_directory_that_others_may_write(self):
        os.mkdir(self.path("open"))
        os.chmod(self.path("open"), 0o777)
        self.refuse(PERMISSION, [self.path("open"), "chmod go-w"], "run", "--dir", self.path("open"), "--", "true")

    def test_directory_not_writable(self):
        os.mkdir(self.path("locked"), 0o500)
        kwargs = {}
        if ROOT:  # the unprivileged case is tried by giving the rights up
            os.chown(self.path("locked"), 65534, 65534)
            os.chmod(self.directory, 0o711)
            kwargs["preexec_fn"] = as_nobody
        self.refuse(PERMISSION, self.path("locked"), "run", "--dir", self.path("locked"), "--", "true", **kwargs)
        self.refuse(PERMISSION, "--dir", "run", "--", "true", cwd=self.path("locked"), **kwargs)


class Starts(CkptTest):
    def test_preload_and_settings(self):
        result = self.ckpt("run", "--dir", self.path("images"), "--every=5m", "--mode", "sequential", "--segment", "32K",
                           "--pool", "8M", "--signal", "61", "--keep", "3", "--stop-timeout", "1s", "--", *PRINT_ENV)
        self.assertEqual(result.returncode, OK, result.stderr)
        lines = result.stdout.splitlines()
        # The job that the program founds: its id, its pid, the directory of its images.
        job = [line for line in lines if line.startswith("CKPT_JOB=")]
        self.assertRegex(job[0] if job else "", rf"\ACKPT_JOB=[0-9a-f]{{32}}:[0-9]+@[0-9]+:{re.escape(self.path('images'))}\Z")
        self.assertEqual([line for line in lines if line not in job], [
            LIBRARY, f"CKPT_DIR={self.path('images')}", "CKPT_EVERY=5m", "CKPT_KEEP=3", "CKPT_MODE=sequential",
            "CKPT_POOL=8M", "CKPT_SEGMENT=32K", "CKPT_SIGNAL=61", "CKPT_STOP_TIMEOUT=1s"])
        self.assertEqual(os.stat(self.path("images")).st_mode & 0o7777, 0o700)

    def test_directory_becomes_absolute(self):
        result = self.ckpt("run", "--dir", "here/below", "--", *PRINT_ENV, cwd=self.directory)
        self.assertIn(f"CKPT_DIR={self.path('here/below')}\n", result.stdout)

    def test_prepends_to_what_is_preloaded_already(self):
        for before, after in [("", LIBRARY), ("libm.so.6", f"{LIBRARY}:libm.so.6"),
                              (f"libm.so.6:{LIBRARY}", f"libm.so.6:{LIBRARY}")]:
            with self.subTest(before):
                result = self.ckpt("run", "--dir", self.path("i"), "--", *PRINT_ENV,
                                   env=clean_environment(LD_PRELOAD=before))
                self.assertEqual(result.stdout.splitlines()[0], after)

    def test_wakes_a_disabled_library(self):
        result = self.ckpt("run", "--dir", self.path("i"), "--", *PRINT_ENV, env=clean_environment(CKPT_DISABLE="1"))
        self.assertNotIn("CKPT_DISABLE", result.stdout)

    def test_program_keeps_its_own_arguments(self):
        for words in [["echo", "--every", "3", "--help", "--", "ls"], ["--", "echo", "--every", "3", "--help", "--", "ls"]]:
            with self.subTest(words):
                result = self.ckpt("run", "--dir", self.path("i"), *words)
                self.assertEqual((result.returncode, result.stdout), (OK, "--every 3 --help -- ls\n"), result.stderr)

    def test_program_named_as_a_subcommand(self):
        program = self.path("show")
        with open(program, "w") as f:
            f.write("#!/bin/sh\necho shown\n")
        os.chmod(program, 0o755)
        env = clean_environment(PATH=f"{self.directory}:{os.environ['PATH']}")
        self.assertEqual(self.ckpt("run", "--dir", self.path("i"), "show", env=env).stdout, "shown\n")

    def test_exit_status_and_output_are_the_programs(self):
        result = self.ckpt("run", "--dir", self.path("i"), "--", "sh", "-c", "echo out; echo err >&2; exit 7")
        self.assertEqual((result.returncode, result.stdout, result.stderr), (7, "out\n", "err\n"))

    def test_library_below_a_path_with_spaces_and_colons(self):
        # A copy of what is installed, where LD_PRELOAD could not name it.
        prefix = self.path("a dir: with spaces")
        for part, source in [("bin", CKPT), ("lib", LIBRARY)]:
            os.makedirs(os.path.join(prefix, part))
            shutil.copy(source, os.path.join(prefix, part))
        env = clean_environment(XDG_RUNTIME_DIR=self.directory)
        for _ in range(2):  # the link is made once and found again
            result = subprocess.run([os.path.join(prefix, "bin/ckpt"), "run", "--dir", self.path("i"), "--",
                                     "sh", "-c", 'echo "$LD_PRELOAD"; grep -c libckpt_rt.so /proc/$$/maps'],
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
            self.assertEqual((result.returncode, result.stderr), (OK, ""))
            preload, mapped = result.stdout.splitlines()
            self.assertNotRegex(preload, "[ :]")
            self.assertGreater(int(mapped), 0)
        os.chmod(os.path.join(self.directory, f"ckpt_rt-{os.geteuid()}"), 0o777)
        result = subprocess.run([os.path.join(prefix, "bin/ckpt"), "run", "--", "true"], stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, env=env)
        self.check_refusal(result, PERMISSION, "0700")

    def test_library_is_missing(self):
        os.makedirs(self.path("bin"))
        shutil.copy(CKPT, self.path("bin"))
        result = subprocess.run([self.path("bin/ckpt"), "run", "--", "true"], stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, env=clean_environment())
        self.check_refusal(result, NOT_FOUND, "libckpt_rt.so")

    EXECUTES = r"""
import os, sys, time
def wait(name):
    open(name + '.up', 'w').close()
    while not os.path.exists(name): time.sleep(0.005)
wait('first')
later = "import os, time, ctypes\nctypes.CDLL(None).prctl(15, b'%s')\nopen('%s.up', 'w').close()\nwhile True: time.sleep(0.01)"
if os.fork() == 0: os.execv(sys.executable, ['python3', '-c', later % ('child', 'child')])
wait('second')
code, program = sys.argv[1], os.memfd_create('in_memory')
os.write(program, open(sys.executable, 'rb').read())
os.execve(program if code == 'memfd' else '/bin/bash', ['bash', '-c', 'echo > third.up; sleep 1000'] if code != 'memfd' else
          ['python3', '-c', later % ('third', 'third')], os.environ)
"""

    def newest_after_exec(self, how):
        """One process, two programs one after the other: the newest image is of the later one."""
        images = self.path(how)
        program = subprocess.Popen([CKPT, "run", "--dir", images, "--", sys.executable, "-c", self.EXECUTES, how], cwd=self.directory,
                                   env=clean_environment(), stdin=subprocess.DEVNULL)
        self.addCleanup(program.wait)
        self.addCleanup(program.kill)

        def until(name):
            deadline = time.monotonic() + 60
            while not os.path.exists(self.path(name + ".up")):
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.005)
            os.unlink(self.path(name + ".up"))

        def now(*options):
            answer = self.ckpt("now", "--json", *options)
            self.assertEqual(answer.returncode, 0, answer.stderr)
            return load(answer)["image"]

        until("first")
        now(program.pid)
        open(self.path("first"), "w").close()
        until("child")
        until("second")
        with open(f"/proc/{program.pid}/task/{program.pid}/children", encoding="ascii") as f:
            child = int(f.read())
        self.addCleanup(os.kill, child, 9)
        open(self.path("second"), "w").close()
        until("third")
        newest = now("--only", program.pid)
        show = self.ckpt("show", "--json", images)
        self.assertEqual(show.returncode, OK, show.stderr)
        self.assertEqual(load(show)["sequence"], int(newest.split(".")[-2]))
        # A child is another process, though of the same job.
        now("--only", child)
        self.refuse(USAGE, "programs", "show", images)
        for name in ("first", "second"):
            os.unlink(self.path(name))

    def test_newest_of_a_process_that_has_executed_another_program(self):
        self.newest_after_exec("file")

    def test_newest_of_a_process_that_has_executed_a_program_in_memory(self):
        self.newest_after_exec("memfd")


if __name__ == "__main__":
    unittest.main()
