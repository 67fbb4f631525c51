"""ckpt back of a job: all its processes go back to one instant, or nothing is changed and one line says why."""

import json
import os
import subprocess
import sys
import unittest

from support import CkptTest, LIBRARY, UNSUPPORTED, clean_environment

# A parent and a child, which do what a line says. The child is told by a pipe, and answers by another.
JOB = r"""
import json, mmap, os, signal, socket, sys, threading, time
memory = mmap.mmap(-1, 1 << 20)
state = {"n": 0}
pipe = os.pipe()
def serve(read, write):
    while True:
        line = read()
        if not line: break
        try:
            result = eval(line)
        except Exception as error:
            result = repr(error)
        write(repr(result) + "\n")
ask, answer = os.pipe(), os.pipe()
BEFORE
child = os.fork()
if child == 0:
    os.close(ask[1]); os.close(answer[0])
    commands = os.fdopen(ask[0], "r", buffering=1)
    serve(commands.readline, lambda text: os.write(answer[1], text.encode()))
    os._exit(0)
os.close(ask[0]); os.close(answer[1])
answers = os.fdopen(answer[0], "r")
def tell(line):
    os.write(ask[1], (line + "\n").encode())
    return eval(answers.readline())
AFTER
serve(sys.stdin.readline, lambda text: os.write(1, text.encode()))
"""


class BackOfJob(CkptTest):
    def start(self, before="", after="", **settings):
        env = clean_environment(LD_PRELOAD=LIBRARY, CKPT_DIR=self.path("images"), **settings)
        source = JOB.replace("BEFORE", before).replace("AFTER", after)
        program = subprocess.Popen([sys.executable, "-u", "-c", source], env=env, cwd=self.directory, text=True,
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)

        def end():
            try:
                os.killpg(program.pid, 9)
            except ProcessLookupError:
                pass
            program.wait()
            program.stdin.close()
            program.stdout.close()
        self.addCleanup(end)
        self.program = program
        self.assertEqual(self.do("1 + 1"), 2)
        self.child = self.do("child")
        self.assertEqual(self.tell("2 + 1"), 3)
        return program.pid

    def do(self, line):
        self.program.stdin.write(line + "\n")
        self.program.stdin.flush()
        answer = self.program.stdout.readline()
        self.assertNotEqual(answer, "", f"it has ended when it was told: {line}")
        return eval(answer)

    def tell(self, line):
        return self.do(f"tell({line!r})")

    def now(self):
        answer = self.ckpt("now", "--json", self.program.pid)
        self.assertEqual(answer.returncode, 0, answer.stderr)
        return json.loads(answer.stdout)["job"]

    def back(self, *more, of=None):
        answer = self.ckpt("back", "--json", *more, of or self.program.pid)
        self.assertEqual(answer.returncode, 0, answer.stderr)
        return json.loads(answer.stdout)

    def descriptors(self):
        return {pid: {int(fd): os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
                for pid in (self.program.pid, self.child)}

    def test_memory_and_pipe_of_two(self):
        for increments in ("0", "8"):
            with self.subTest(increments=increments):
                self.start(CKPT_INCREMENTS=increments)
                self.do("state.update(n=1)")
                self.tell("state.update(n=2)")
                self.tell("memory.__setitem__(slice(0, 5), b'first')")
                self.tell("os.write(pipe[1], b'in the pipe')")
                before = self.descriptors()
                job = self.now()
                self.do("state.update(n=10, more=bytearray(20_000_000))")
                self.tell("state.update(n=20, more=bytearray(20_000_000))")
                self.do("memory.__setitem__(slice(0, 5), b'later')")
                self.tell("memory.__setitem__(slice(70000, 70005), b'later')")
                self.assertEqual(self.do("os.read(pipe[0], 6)"), b"in the")
                self.tell("os.write(pipe[1], b' and more')")
                said = self.back()
                self.assertEqual((said["members"], said["ended"], said["directory"]), (2, 0, job))
                self.assertEqual(self.do("state['n'], 'more' in state"), (1, False))
                self.assertEqual(self.tell("state['n'], 'more' in state"), (2, False))
                self.assertEqual(self.do("memory[0:5]"), b"first")
                self.assertEqual(self.tell("memory[0:5], memory[70000:70005]"), (b"first", bytes(5)))
                self.assertEqual(self.do("os.read(pipe[0], 100)"), b"in the pipe")
                self.assertEqual(self.descriptors(), before)
                # Again, and by the directory.
                self.do("state.update(n=3)")
                self.back(of=job)
                self.assertEqual(self.do("state['n'], os.read(pipe[0], 100)"), (1, b"in the pipe"))
                self.assertEqual(self.tell("state['n']"), 2)


if __name__ == "__main__":
    unittest.main()
