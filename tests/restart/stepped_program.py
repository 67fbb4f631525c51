"""A program that is told by lines of input what to do, and answers each by a line: what tests of restarts drive."""

import json
import os
import subprocess
import tempfile

BUILD = os.environ["CKPT_BUILD"]
CKPT, RESTART = (os.path.join(BUILD, "bin", n) for n in ("ckpt", "ckpt-restart"))
DAMAGED, IO = 65, 74
# A checkpoint keeps files that are made in the directory for temporary files meanwhile, by whomever: one that nobody else has.
TEMPORARY = tempfile.TemporaryDirectory(prefix="ckpt-temporary-")


def environment(**more):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("CKPT") and k != "LD_PRELOAD"}
    clean["CKPT_STOP_TIMEOUT"] = "30s"  # of one thread: the host may take a processor away for seconds
    return {**clean, "TMPDIR": TEMPORARY.name, **more}


class Program:
    """A restarted program, or the first one."""

    def __init__(self, argv, **more):
        self.child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                      env=environment(**more), bufsize=0)  # nothing stays behind when it is gone

    def ask(self, step):
        self.child.stdin.write(step.encode() + b"\n")
        self.child.stdin.flush()
        return self.child.stdout.readline().decode().strip()

    def said(self):
        """The next JSON object that ckpt-restart prints."""
        line = self.child.stderr.readline()
        assert line.startswith(b"{"), line + self.child.stderr.read()
        return json.loads(line)

    def end(self):
        """Its input ends, so does it."""
        self.child.stdin.close()
        code = self.child.wait(60)
        errors = self.child.stderr.read().decode()
        self.child.stdout.close()
        self.child.stderr.close()
        return code, errors
