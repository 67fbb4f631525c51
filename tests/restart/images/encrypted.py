#!/usr/bin/env python3
"""Encrypted images of a real program: only with their key, in every mode and by every command, and no trace of it."""

import glob
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

BUILD = os.environ["CKPT_BUILD"]
CKPT, RESTART = (os.path.join(BUILD, "bin", n) for n in ("ckpt", "ckpt-restart"))
OK, DAMAGED, NOT_FOUND, PERMISSION = 0, 65, 66, 77

PROGRAM = """
import mmap, os, random, time, zlib
memory = mmap.mmap(-1, 4 << 20)
for at in range(0, len(memory), 4096):
    memory[at:at + 2048] = random.Random(at).randbytes(2048)
memory[:29] = b'what nobody else may ever see'
print('up', flush=True)
while not os.path.exists('go'):
    time.sleep(0.005)
print(zlib.crc32(memory), flush=True)
"""


def environment(**more):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("CKPT") and k != "LD_PRELOAD"}
    clean["CKPT_STOP_TIMEOUT"] = "30s"  # of one thread: the host may take a processor away for seconds
    clean.update(more)
    return clean


class Encrypted(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.mkdtemp(prefix="ckpt-key-")
        self.addCleanup(shutil.rmtree, self.directory)
        self.key = self.key_file("key", os.urandom(32))
        self.other = self.key_file("other", os.urandom(32).hex().encode() + b"\n")

    def path(self, name):
        return os.path.join(self.directory, name)

    def key_file(self, name, content, mode=0o600):
        with open(self.path(name), "wb") as f:
            f.write(content)
        os.chmod(self.path(name), mode)
        return self.path(name)

    def run_(self, *command, code=OK, **variables):
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120,
                              cwd=self.directory, env=environment(**variables))
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        if code != OK:
            self.assertRegex(done.stderr.decode(), r"\A[^\n]+\n\Z")
        return (done.stdout if code == OK else done.stderr).decode(errors="replace")

    def start(self, *command):
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, cwd=self.directory, env=environment())
        self.addCleanup(child.stdout.close)
        self.addCleanup(child.wait)
        self.addCleanup(child.kill)
        return child

    def program(self, *options):
        child = self.start(CKPT, "run", "--dir", "images", "--key-file", "key", *options, "--", "/usr/bin/python3", "-c", PROGRAM)
        self.assertEqual(child.stdout.readline(), b"up\n")
        return child

    def finish(self, child):
        with open(self.path("go"), "w"):
            pass
        said = child.stdout.readline().strip()
        self.assertEqual(child.wait(60), 0)
        os.unlink(self.path("go"))
        return said

    def now(self, pid):
        return json.loads(self.run_(CKPT, "now", "--json", str(pid)))

    def test_every_mode_and_again(self):
        with open(self.key, "rb") as f:
            raw = f.read()
        for mode in ("realtime", "fork", "sequential"):
            with self.subTest(mode=mode):
                child = self.program("--mode", mode, "--keep", "1", "--compress", "lz4" if mode == "fork" else "none")
                self.now(child.pid)
                cost = self.now(child.pid)
                said = self.finish(child)
                # Older ones are pruned though nothing of them can be read without the key.
                self.assertEqual(glob.glob(self.path("images/*.ckpt")), [cost["image"]])
                with open(cost["image"], "rb") as f:
                    image = f.read()
                self.assertEqual(len(image), cost["bytes_written"])
                path = b"PATH=" + os.environb[b"PATH"]
                for secret in (b"what nobody else", path):
                    self.assertNotIn(secret, image)
                # Nor is the key in what is encrypted.
                self.run_(CKPT, "core", "--key-file", "key", "-o", "core", cost["image"])
                with open(self.path("core"), "rb") as f:
                    core = f.read()
                self.assertIn(b"what nobody else", core)
                self.assertIn(path, core)
                for secret in (raw, hashlib.blake2b(raw, digest_size=32).digest()):
                    self.assertNotIn(secret, core)
                os.unlink(self.path("core"))

                self.assertIn("give its key", self.run_(RESTART, cost["image"], code=PERMISSION))
                back = self.start(RESTART, "--key-file", "key", cost["image"])
                self.assertEqual(self.finish(back), said)
                shutil.rmtree(self.path("images"))

    def test_every_command(self):
        child = self.program("--keep", "0")
        self.now(child.pid)
        image = self.now(child.pid)["image"]
        said = self.finish(child)
        self.key_file("plain", b"")
        for command in (["show"], ["verify"], ["core", "-o", "x"], ["cat"], ["compact"]):
            with self.subTest(command=command):
                self.assertIn("encrypted; give its key", self.run_(CKPT, *command, image, code=PERMISSION))
                self.assertIn("another key", self.run_(CKPT, *command, image, code=PERMISSION, CKPT_KEY_FILE=self.other))
                self.assertIn("cannot be opened", self.run_(CKPT, *command, "--key-file", "none", image, code=NOT_FOUND))
                self.assertIn("no key: shorter", self.run_(CKPT, *command, "--key-file", "plain", image, code=PERMISSION))
                self.run_(CKPT, *command, "--key-file", "key", image)
                self.run_(CKPT, *command, image, CKPT_KEY_FILE=self.key)
        self.run_(CKPT, "diff", "--key-file", "key", image, image)
        self.assertEqual([r["state"] for r in json.loads(self.run_(CKPT, "ls", "--json", "images"))], ["locked"] * 2)
        self.assertEqual([r["state"] for r in json.loads(self.run_(CKPT, "ls", "--json", "--key-file", "key", "images"))],
                         ["complete"] * 2)
        for restart in ([RESTART], [RESTART, "--check"]):
            self.assertIn("give its key", self.run_(*restart, "images", code=PERMISSION))
            self.assertIn("another key", self.run_(*restart, "--key-file", "other", "images", code=PERMISSION))
        # Sent, it stays encrypted.
        with open(self.path("sent"), "wb") as f:
            subprocess.run([CKPT, "cat", "--key-file", "key", image], stdout=f, check=True, env=environment(), cwd=self.directory)
        self.assertIn("give its key", self.run_(CKPT, "verify", "sent", code=PERMISSION))
        back = self.start("/bin/sh", "-c", 'exec "$0" --key-file key - < sent', RESTART)
        self.assertEqual(self.finish(back), said)
        self.run_(CKPT, "gc", "--keep", "1", "--key-file", "key", "images")
        self.assertEqual(len(glob.glob(self.path("images/*.ckpt"))), 1)

    def test_bad_keys_before_the_program_starts(self):
        for name, content, mode, word in (("short", b"x" * 31, 0o600, "shorter"), ("open", b"x" * 32, 0o644, "chmod 600"),
                                          ("group", b"x" * 32, 0o660, "mode 0660")):
            with self.subTest(name=name):
                self.key_file(name, content, mode)
                line = self.run_(CKPT, "run", "--dir", "images", "--key-file", name, "--", "touch", "started", code=PERMISSION)
                self.assertIn(name, line)
                self.assertIn(word, line)
                self.assertFalse(os.path.exists(self.path("started")))
        self.run_(CKPT, "run", "--key-file", "none", "--", "touch", "started", code=NOT_FOUND)

    def test_a_key_that_is_gone_is_a_failed_checkpoint(self):
        child = self.program()
        self.now(child.pid)
        os.rename(self.key, self.path("moved"))
        self.assertIn("key", self.run_(CKPT, "now", str(child.pid), code=NOT_FOUND))
        os.rename(self.path("moved"), self.key)
        self.now(child.pid)
        self.finish(child)

    def test_to_a_command(self):
        child = self.program("--to", 'cat > "$CKPT_SEQUENCE.ckpt"')
        self.now(child.pid)
        said = self.finish(child)
        self.assertIn("give its key", self.run_(CKPT, "verify", "1.ckpt", code=PERMISSION))
        back = self.start("/bin/sh", "-c", 'cat 1.ckpt | "$0" --key-file key -', RESTART)
        self.assertEqual(self.finish(back), said)


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    unittest.main()
