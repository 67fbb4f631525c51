"""What the tests of the ckpt command share."""

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import unittest

CKPT = os.environ["CKPT"]
BUILD = os.environ["CKPT_BUILD"]
MAKE_IMAGE = os.environ["CKPT_MAKE_IMAGE"]
FAKE = os.environ["CKPT_FAKE"]
LIBRARY = os.path.join(BUILD, "lib", "libckpt_rt.so")
ROOT = os.geteuid() == 0

# docs/exit_codes.md
OK, USAGE, DAMAGED, NOT_FOUND, NO_PROCESS, INCOMPATIBLE, UNAVAILABLE, INTERNAL = 0, 64, 65, 66, 67, 68, 69, 70
SYSTEM, CANNOT_CREATE, IO, TIMEOUT, NOT_RESTARTABLE, PERMISSION, UNSUPPORTED = 71, 73, 74, 75, 76, 77, 78


def clean_environment(**more):
    env = {k: v for k, v in os.environ.items() if not k.startswith("CKPT") and k != "LD_PRELOAD"}
    env["CKPT_STOP_TIMEOUT"] = "30s"  # of one thread: the host may take a processor away for seconds
    env.update(more)
    return env


def as_nobody():
    """For preexec_fn: gives up every right (only root can)."""
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)


class CkptTest(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.mkdtemp(prefix="ckpt-cli-")
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)

    def path(self, name):
        return os.path.join(self.directory, name)

    def ckpt(self, *args, env=None, **kwargs):
        return subprocess.run([CKPT, *map(str, args)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=120, env=env or clean_environment(),
                              **kwargs)

    def check_refusal(self, result, code, *words):
        """One line that names the thing and the remedy, the documented code, nothing on stdout."""
        self.assertEqual(result.returncode, code, result.stderr + result.stdout)
        self.assertEqual(result.stdout, "")
        self.assertRegex(result.stderr, r"\Ackpt: [^\n]+\n\Z")
        for word in words:
            self.assertIn(word, result.stderr)

    def refuse(self, code, words, *args, **kwargs):
        if isinstance(words, str):
            words = [words]
        self.check_refusal(self.ckpt(*args, **kwargs), code, *words)

    def make_image(self, sequence=1, comm="prog", pid=1234, kind="", directory=None):
        out = subprocess.run([MAKE_IMAGE, directory or self.directory, comm, str(pid), str(sequence), kind], stdout=subprocess.PIPE, text=True, check=True)
        return out.stdout.strip()

    @contextlib.contextmanager
    def program(self, behaviour="good", preexec_fn=None, **variables):
        """A fake_program that is ready to be asked; gives its Popen."""
        child = subprocess.Popen([FAKE, behaviour], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                 env=clean_environment(**variables), preexec_fn=preexec_fn)
        try:
            self.assertEqual(child.stdout.readline(), b"ready\n")
            yield child
        finally:
            child.kill()
            child.wait()
            child.stdin.close()
            child.stdout.close()


def load(result):
    """The object that a command has printed."""
    try:
        return json.loads(result.stdout)
    except json.JSONDecodeError:
        raise AssertionError(f"exit code {result.returncode}, not JSON: {result.stdout!r}; {result.stderr}") from None


class ToldJob(CkptTest):
    """self.program: leads a session, does what a line on its standard input says, and tell(line) there hands one to its child."""

    def end(self):
        try:
            os.killpg(self.program.pid, 9)
        except ProcessLookupError:
            pass
        self.program.wait()
        self.program.stdin.close()
        self.program.stdout.close()

    def do(self, line):
        self.program.stdin.write(line + "\n")
        self.program.stdin.flush()
        answer = self.program.stdout.readline()
        self.assertNotEqual(answer, "", f"it has ended when it was told: {line}")
        return eval(answer)

    def tell(self, line):
        return self.do(f"tell({line!r})")
