#!/usr/bin/env python3
"""A debugger's view: gdb steps through a function, the program goes back, and gdb steps through it once more: each instruction finds the
same registers and memory as before. What gdb wrote is put back with all else.
  stepped.py [CLASS...]       with CKPT_BUILD, the build directory
"""
import os
import re
import shutil
import signal
import subprocess
import tempfile
import unittest

BUILD = os.environ["CKPT_BUILD"]
CKPT = os.path.join(BUILD, "bin", "ckpt")
STEPPED = os.path.join(BUILD, "tests", "back", "stepped")
GDB = shutil.which("gdb")
STEPS = 300
SAY = 'printf "at %lx sp %lx flags %x seed %lx part %lx table %lx\\n", (long)$pc, (long)$sp, $eflags & 0x8d5, $rdi, $xmm0.v2_int64[0], (long)table[7]'
STEP = ("set var go = 1", "tbreak *compute", "continue", SAY, "set $i = 0", f"while $i < {STEPS}", "stepi", SAY, "set $i = $i + 1", "end", "p/x table")


@unittest.skipUnless(GDB, "no gdb")
@unittest.skipUnless(os.uname().machine == "x86_64", "the registers of another processor")
class Stepped(unittest.TestCase):
    settings = {}

    def setUp(self):
        self.directory = tempfile.mkdtemp(prefix="ckpt-stepped-")
        self.addCleanup(shutil.rmtree, self.directory, True)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("CKPT_") and k != "LD_PRELOAD"}
        # Of one thread: the host may take a processor away for seconds.
        environment.update(self.settings, LD_PRELOAD=os.path.join(BUILD, "lib", "libckpt_rt.so"), CKPT_DIR=self.directory, CKPT_STOP_TIMEOUT="30s")
        self.program = subprocess.Popen([STEPPED], env=environment, stdout=subprocess.PIPE, text=True)
        self.addCleanup(self.end)
        self.assertEqual(self.program.stdout.readline(), "ready\n")

    def end(self):
        self.program.kill()
        self.program.wait()
        self.program.stdout.close()

    def ckpt(self, *words):
        done = subprocess.run([CKPT, *words, str(self.program.pid)], capture_output=True, text=True, timeout=90, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)

    def begin_gdb(self, *commands):
        """Attached for these commands; then it lets go."""
        script = os.path.join(self.directory, "commands")
        with open(script, "w", encoding="ascii") as f:
            # What stops the program's threads comes and goes beside the steps.
            f.write("\n".join(["set pagination off", "set confirm off", "handle all nostop noprint pass", "handle SIGTRAP stop", "handle SIGINT stop nopass",
                               "thread 1", *commands, "detach", ""]))
        return subprocess.Popen([GDB, "-nx", "-batch", "-iex", "set debuginfod enabled off", "-p", str(self.program.pid), "-x", script, STEPPED],
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def said_by(self, gdb):
        with gdb:
            said, _ = gdb.communicate(timeout=300)
        self.assertEqual(gdb.returncode, 0, said)
        return said

    def steps_in(self, said):
        found = re.findall(r"^at .*", said, re.M)
        self.assertEqual(len(found), STEPS + 1, said)
        self.assertGreater(len(set(found)), STEPS, said)
        return found, re.search(r"^\$\d+ = \{.*?\}$", said, re.M | re.S).group(0).split(" = ", 1)[1]

    def steps(self):
        """From where the function begins."""
        return self.steps_in(self.said_by(self.begin_gdb(*STEP)))

    def test_each_step_again(self):
        self.ckpt("now")
        first, result = self.steps(), self.program.stdout.readline()
        self.assertRegex(result, r"\A[0-9a-f]{16}\n\Z")
        for _ in range(3):
            self.ckpt("back")
            # It waits for `go` again.
            self.assertIn(" = 0\n", self.said_by(self.begin_gdb("p go")))
            self.assertEqual(self.steps(), first)
            self.assertEqual(self.program.stdout.readline(), result)
        self.said_by(self.begin_gdb("set var go = 2"))
        self.assertEqual(self.program.wait(60), 0)

    def test_while_the_debugger_stays(self):
        """Attached, and the program runs, when it goes back."""
        self.ckpt("now")
        first, result = self.steps(), self.program.stdout.readline()
        self.ckpt("back")
        gdb = self.begin_gdb("set var go = 1", "continue", "p go", *STEP)
        # It runs, for it has computed.
        self.assertEqual(self.program.stdout.readline(), result)
        self.ckpt("back")
        self.program.send_signal(signal.SIGINT)
        said = self.said_by(gdb)
        self.assertIn(" = 0\n", said)
        self.assertEqual(self.steps_in(said), first)
        self.assertEqual(self.program.stdout.readline(), result)


class SteppedWatched(Stepped):
    """Only pages that were written since are put back: what gdb writes counts as written."""
    settings = {"CKPT_INCREMENTS": "8"}


if __name__ == "__main__":
    unittest.main()
