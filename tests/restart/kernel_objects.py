#!/usr/bin/env python3
"""Kernel objects of one process: each comes back as it was, or the checkpoint says that it will not and no restart is
promised."""

import json
import os
import signal
import subprocess
import sys
import unittest

from stepped_program import CKPT, environment
from stepped_test import NOT_RESTARTABLE, SteppedTest, needs_root


class Verdicts(SteppedTest):
    """What no restart can bring back is said by the checkpoint, by the list, and by the restart."""

    def says_no(self, word):
        code, said = self.now()
        self.assertEqual(code, NOT_RESTARTABLE, said)
        self.assertEqual(said["restartable"], False)
        self.assertIn(word, " ".join(said["why_not_restartable"]))
        listed = json.loads(subprocess.run([CKPT, "ls", "--json", self.images], capture_output=True, check=True).stdout)
        self.assertEqual([(i["state"], i["restartable"]) for i in listed][-1], ("no restart", False))
        shown = json.loads(subprocess.run([CKPT, "show", "--json", self.images], capture_output=True, check=True).stdout)
        self.assertEqual(shown["restartable"], False)
        code, verdict = self.verify_restartable()
        self.assertEqual((code, verdict["ok"], verdict["restartable"]), (NOT_RESTARTABLE, True, False))
        code, text = self.refused()
        self.assertEqual(code, NOT_RESTARTABLE)
        self.assertIn(word, text)

    def test_one_that_can_be(self):
        self.start()
        self.assertEqual(self.checkpoint(), [])
        self.assertEqual(self.verify_restartable()[1]["restartable"], True)
        # What the image cannot know.
        self.do("f = open('file', 'w+b')")
        self.checkpoint()
        os.unlink(self.path("file"))
        code, verdict = self.verify_restartable()
        self.assertEqual((code, verdict["restartable"]), (72, False))
        self.assertIn("file", verdict["problem"])
        self.assertEqual(os.path.exists(self.path("file")), False)

    def test_io_uring(self):
        self.start()
        ring = self.ask("call(425, 4, ctypes.create_string_buffer(120))")
        if not ring.isdigit():
            self.skipTest("no io_uring here: " + ring)
        self.says_no("io_uring")
        self.do("m = libc.mmap(None, 4096, 3, 1, %s, 0)" % ring)
        self.says_no("io_uring")
        # No longer, and older images are still there.
        self.do("call(11, m, 4096)", "os.close(%s)" % ring)
        self.assertEqual(self.come_back(), [])

    def test_what_cannot_be_restarted_does_not_replace_what_can(self):
        self.start(CKPT_KEEP="1")
        self.checkpoint()
        ring = self.ask("call(425, 4, ctypes.create_string_buffer(120))")
        if not ring.isdigit():
            self.skipTest("no io_uring here: " + ring)
        self.assertEqual(self.now()[0], NOT_RESTARTABLE)
        self.assertEqual(len([f for f in os.listdir(self.images) if f.endswith(".ckpt")]), 2)


class ProcFiles(SteppedTest):
    def test_of_itself(self):
        self.start()
        self.do("a = open('/proc/self/status'); b = open('/proc/%d/maps' % os.getpid()); c = os.open('/proc/self', os.O_RDONLY)",
                "d = os.open('/proc/self/task', os.O_RDONLY); e = open('/proc/self/mem', 'r+b'); a.readline()")
        for options in ([], ["--namespaces", "always"]):
            self.assertEqual(self.come_back(*options), [])
            pid = self.ask("os.getpid()")
            self.assertEqual(self.ask("a.seek(0) or [l for l in a if l.startswith('Pid')]"), "['Pid:\\t%s\\n']" % pid)
            self.assertEqual(self.ask("b.seek(0) or 'python' in b.read()"), "True")
            self.assertEqual(self.ask("'status' in os.listdir(c) and os.listdir(d)"), "['%s']" % pid)
            self.do("x = ctypes.create_string_buffer(b'before'); e.seek(ctypes.addressof(x)); e.write(b'after!'); e.flush()")
            self.assertEqual(self.ask("x.value"), "b'after!'")

    def test_of_a_descriptor_of_itself(self):
        self.start()
        self.do("z = open('file', 'w')", "info = open('/proc/self/fdinfo/%d' % z.fileno())")
        self.assertEqual(self.come_back(), [])
        self.do("z.write('12345'); z.flush()")
        self.assertIn("pos:\\t5", self.ask("info.seek(0) or info.read()"))

    def test_of_a_thread(self):
        self.start()
        self.do("t = threading.Thread(target=lambda: select.select([], [], []), daemon=True); t.start()",
                "f = open('/proc/self/task/%d/comm' % t.native_id)")
        self.assertIn("thread", " ".join(self.come_back()))
        self.assertEqual(self.ask("f.read()"), "''")

    def test_of_another_process(self):
        self.start()
        with subprocess.Popen(["sleep", "1000"]) as other:
            self.do("f = open('/proc/%d/stat')" % other.pid)
            notes = self.checkpoint()
            other.kill()
        self.assertIn(str(other.pid), " ".join(notes))
        self.kill_program()
        self.restart()
        self.assertEqual(self.ask("f.read()"), "''")


class Addresses(SteppedTest):
    LISTENS = "x = socket.create_connection(s.getsockname()[:2]); y = s.accept()[0]; x.sendall(b'hello')"

    def test_port_that_waits(self):
        self.start()
        self.do("s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen()",
                "c = socket.create_connection(s.getsockname()); a = s.accept()[0]; a.close(); c.recv(1); c.close()")
        self.stays("s.getsockname(), s.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)")
        self.do(self.LISTENS)
        self.assertEqual(self.ask("y.recv(10)"), "b'hello'")

    def test_port_that_somebody_listens_on_is_refused(self):
        self.start()
        self.do("s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen()")
        port = int(self.ask("s.getsockname()[1]"))
        self.checkpoint()
        self.kill_program()
        with subprocess.Popen([sys.executable, "-c", "import socket, sys; s = socket.socket(); s.bind(('127.0.0.1', %d)); s.listen(); "
                               "print('up', flush=True); sys.stdin.read()" % port], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
            other.stdout.readline()
            code, text = self.refused()
            other.stdin.close()
        self.assertEqual(code, 69)
        self.assertIn("port %d" % port, text)

    def test_address_that_is_not_here(self):
        self.start()
        if self.ask("attempt(lambda: socket.socket(socket.AF_INET6).bind(('::1', 0)))") != "None":
            self.skipTest("no IPv6 here")
        self.do("s = socket.socket(socket.AF_INET6, socket.SOCK_STREAM); s.setsockopt(41, 78, 1); s.bind(('2001:db8::17', 0)); s.listen()")
        self.stays("s.getsockname(), s.getsockopt(41, 78)")

    def test_name_whose_directory_is_gone(self):
        self.start()
        for listens in ("True", "False"):
            self.do("os.mkdir('d'); s = socket.socket(socket.AF_UNIX); s.bind(os.path.abspath('d/name')); %s and s.listen()" % listens,
                    "os.unlink('d/name'); os.rmdir('d')")
            self.come_back()
            self.assertIn("d/name", " ".join(self.notes))
            self.assertEqual(self.ask("s.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == %s" % listens), "True")


if __name__ == "__main__":
    sys.exit(unittest.main())
