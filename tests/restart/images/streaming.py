#!/usr/bin/env python3
"""Images through pipes: to a command, out of `ckpt cat`, into `ckpt-restart -`."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

BUILD = os.environ["CKPT_BUILD"]
CKPT, RESTART, MAKE_CHAIN = (os.path.join(BUILD, "bin", n) for n in ("ckpt", "ckpt-restart", "make_chain"))
OK, USAGE, DAMAGED, NOT_FOUND, CANNOT_CREATE, IO = 0, 64, 65, 66, 73, 74

# Goes on when a file appears: its standard input is not at hand when that was the image.
PROGRAM = """
import mmap, os, random, sys, time, zlib
memory = mmap.mmap(-1, 8 << 20)
for at in range(0, len(memory), 4096):
    memory[at:at + 2048] = random.Random(at).randbytes(2048)
print('up', flush=True)
while not os.path.exists('go'):
    time.sleep(0.005)
try:
    children = os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    children = None
print(zlib.crc32(memory), children, os.readlink('/proc/self/fd/0'), flush=True)
"""


def environment(**more):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("CKPT") and k != "LD_PRELOAD"}
    clean["CKPT_STOP_TIMEOUT"] = "30s"  # of one thread: the host may take a processor away for seconds
    clean.update(more)
    return clean


class Streaming(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.mkdtemp(prefix="ckpt stream-")  # with a space
        self.addCleanup(shutil.rmtree, self.directory)
        self.images = self.path("images")

    def path(self, name):
        return os.path.join(self.directory, name)

    def run_(self, *command, code=OK, stdin=subprocess.DEVNULL, **kwargs):
        done = subprocess.run(command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120,
                              env=kwargs.pop("env", environment()), cwd=self.directory, **kwargs)
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stdout if code == OK else done.stderr.decode()

    def start(self, *options, mode="auto"):
        """The program below `ckpt run`, ended with the test."""
        child = subprocess.Popen([CKPT, "run", "--dir", self.images, "--mode", mode, *options, "--", "/usr/bin/python3", "-c",
                                  PROGRAM], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, cwd=self.directory,
                                 env=environment())
        self.addCleanup(child.stdout.close)
        self.addCleanup(child.wait)
        self.addCleanup(child.kill)
        self.assertEqual(child.stdout.readline(), b"up\n")
        return child

    def now(self, child, code=OK):
        said = self.run_(CKPT, "now", "--json", str(child.pid), code=code)
        return json.loads(said) if code == OK else said

    def finish(self, child):
        """Lets it go on; what it says."""
        open(self.path("go"), "w").close()
        crc, children, standard_input = child.stdout.readline().decode().split(" ", 2)
        self.assertEqual(children, "None", "it sees a child that it did not make")
        child.wait(60)
        os.unlink(self.path("go"))
        return crc, standard_input.strip()

    def image(self):
        """An image in self.images; what the program says at its end."""
        child = self.start()
        self.now(child)
        return self.finish(child)[0]

    def comes_back(self, shell, crc):
        """`shell` restarts the program from a pipe."""
        child = subprocess.Popen(["/bin/bash", "-o", "pipefail", "-c", shell], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, cwd=self.directory, env=environment(CKPT=CKPT, RESTART=RESTART))
        try:
            open(self.path("go"), "w").close()
            said = child.stdout.readline().decode().split()
            self.assertEqual(child.wait(60), 0, child.stderr.read())
        finally:
            os.unlink(self.path("go"))
            child.kill()
            child.communicate()
        self.assertEqual(said, [crc, "None", "/dev/null"])

    # To a command.

    def test_to_a_file_in_every_mode(self):
        for mode in ("realtime", "fork", "sequential"):
            with self.subTest(mode=mode):
                child = self.start("--to", 'cat > "$CKPT_IMAGE_NAME" && echo done $CKPT_SEQUENCE $CKPT_PID >&2', mode=mode)
                if mode == "realtime" and b"realtime" not in self.run_(CKPT, "stat", str(child.pid)):
                    self.skipTest("no mode realtime here")
                first, second = self.now(child), self.now(child)
                self.assertEqual([first["sequence"], second["sequence"], second["mode"]], [1, 2, mode])
                for cost in (first, second):
                    self.assertEqual(os.path.getsize(self.path(cost["image"])), cost["bytes_written"])
                    self.assertEqual(os.stat(self.path(cost["image"])).st_mode & 0o777, 0o600)
                    self.run_(CKPT, "verify", cost["image"])
                with open(os.path.join(self.images, "ckpt_rt.log")) as log:
                    self.assertIn(f"done 2 {child.pid}", log.read())
                crc = self.finish(child)[0]
                self.comes_back(f"exec $RESTART - < {second['image']}", crc)

    def test_environment_of_the_command(self):
        child = self.start("--to", 'cat > /dev/null; env > "$CKPT_PROGRAM.env"; grep -E "Sig(Blk|Ign)" /proc/self/status > signals; '
                           'ls /proc/self/fd > descriptors', "--every", "1h")
        cost = self.now(child)
        with open(self.path("python3.env")) as f:
            ours = dict(line.strip().split("=", 1) for line in f if line.startswith(("CKPT_", "LD_PRELOAD")))
        self.assertEqual(sorted(ours), ["CKPT_IMAGE_NAME", "CKPT_PID", "CKPT_PROGRAM", "CKPT_RUN_ID", "CKPT_SEQUENCE"])
        self.assertEqual((ours["CKPT_IMAGE_NAME"], ours["CKPT_PID"]), (cost["image"], str(child.pid)))
        with open(self.path("signals")) as f:
            self.assertEqual({line.split()[1] for line in f}, {"0" * 16})
        with open(self.path("descriptors")) as f:
            self.assertLessEqual({int(n) for n in f}, {0, 1, 2, 3})  # 3: ls reads the directory
        self.finish(child)

    # At the end of a command its descriptors are closed first, and the program gives it a tenth of a second from there on. So another
    # process has the pipe open until the command has ended and has been waited for.
    ENDED_WHEN_NOBODY_READS = 'exec 3<&0; while grep -sq "^State:.[^ZX]" /proc/$PPID/status; do sleep 0.01; done & '

    def test_what_a_failing_command_says(self):
        for to, words in (("cat > /dev/null; exit 3", ["ended with status 3: cat > /dev/null"]),
                          ("cat > /dev/null; kill -9 $$", ["killed by signal 9"]),
                          ("no-such-command-here", ["ended with status 127"]),
                          (self.ENDED_WHEN_NOBODY_READS + "head -c 100000 > /dev/null; exit 5", ["ended with status 5 before it had read the image"]),
                          (self.ENDED_WHEN_NOBODY_READS + "exit 0", ["ended with status 0 before it had read the image"])):
            for mode in ("auto", "fork"):
                with self.subTest(to=to, mode=mode):
                    child = self.start("--to", to, mode=mode)
                    said = self.now(child, code=IO)
                    for word in words:
                        self.assertIn(word, said)
                    with open(os.path.join(self.images, "ckpt_rt.log")) as log:
                        self.assertIn(words[0], log.read())
                    # The program has noticed nothing.
                    self.finish(child)

    def test_a_command_that_reads_no_more_and_lives_on(self):
        for mode in ("auto", "fork"):
            with self.subTest(mode=mode):
                child = self.start("--to", "head -c 100000 > /dev/null; exec <&-; trap : TERM; while :; do sleep 600; done", mode=mode)
                self.assertIn("reads no more, and has not ended", self.now(child, code=IO))
                self.finish(child)

    # Out of `ckpt cat` and into `ckpt-restart -`.

    def test_from_a_pipe(self):
        crc = self.image()
        self.comes_back('"$CKPT" cat images | "$RESTART" -', crc)
        self.comes_back('cat images/*.ckpt | "$RESTART" -', crc)
        # As through ssh: another process on each side of a pipe of its own.
        self.comes_back('"$CKPT" cat --compress zstd images | sh -c "cat" | sh -c "exec \\"$RESTART\\" -"', crc)
        self.comes_back('"$CKPT" cat --compress lz4 - < images/*.ckpt | "$CKPT" cat - | "$RESTART" -', crc)
        # What is before it in the file is not the image.
        self.comes_back('(echo before; cat images/*.ckpt) > file; (read line; exec "$RESTART" -) < file', crc)

    def test_looking_into_a_pipe(self):
        self.image()
        shown = json.loads(self.run_(CKPT, "show", "--json", "images"))
        for tool in ("show --json", "verify --json"):
            said = json.loads(self.run_("/bin/bash", "-c", f'cat images/*.ckpt | "$0" {tool} -', CKPT))
            if tool.startswith("show"):
                self.assertEqual(said["sequence"], shown["sequence"])
            else:
                self.assertTrue(said[0]["ok"])
        sent = self.run_(CKPT, "cat", "images")
        with open(self.path("sent.ckpt"), "wb") as f:
            f.write(sent)
        self.run_(CKPT, "verify", "sent.ckpt")
        self.run_(CKPT, "diff", "images", "sent.ckpt")

    def test_a_chain_becomes_full(self):
        child = self.start("--keep", "0")
        self.now(child)
        self.now(child)
        crc = self.finish(child)[0]
        self.run_(MAKE_CHAIN, "images")
        newest = next(f for f in os.listdir(self.images) if f.endswith(".000002.ckpt"))
        with open(os.path.join(self.images, newest), "rb") as f:
            self.assertIn("increment", self.run_(RESTART, "-", stdin=f, code=NOT_FOUND))
        self.comes_back('"$CKPT" cat images | "$RESTART" -', crc)

    def test_what_is_cut_or_no_image_is_refused(self):
        self.image()
        whole = self.run_(CKPT, "cat", "images")
        for cut in (0, 1, 11, 4095, 4096, 8192, 100000, len(whole) // 2, len(whole) - 4096, len(whole) - 1):
            with self.subTest(cut=cut):
                for command in ([RESTART, "-"], [CKPT, "verify", "-"], [CKPT, "cat", "-"]):
                    done = subprocess.run(command, input=whole[:cut], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60,
                                          env=environment())
                    self.assertEqual((done.returncode, done.stdout), (DAMAGED, b""), (command, done.stderr))
                    self.assertRegex(done.stderr.decode(), r"\A[^\n]*standard input[^\n]+\n\Z")
        self.assertIn("appended", self.check_input(whole + b"x", DAMAGED))
        self.assertIn("not a ckpt_rt image", self.check_input(b"x" * 10_000_000, DAMAGED))
        damaged = bytearray(whole)
        damaged[len(whole) // 2] ^= 1
        self.check_input(bytes(damaged), DAMAGED)

    def check_input(self, data, code, **variables):
        """In one line, by ckpt-restart."""
        done = subprocess.run([RESTART, "-"], input=data, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60,
                              env=environment(**variables))
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertRegex(done.stderr.decode(), r"\Ackpt-restart: [^\n]+\n\Z")
        return done.stderr.decode()

    def test_no_room_and_no_readers(self):
        self.image()
        whole = self.run_(CKPT, "cat", "images")
        self.assertIn("TMPDIR", self.check_input(whole, CANNOT_CREATE, TMPDIR=self.path("none")))
        said = self.run_("/bin/bash", "-c", '"$0" cat images | head -c 5000 > /dev/null; exit ${PIPESTATUS[0]}', CKPT, code=IO)
        self.assertIn("standard output: closed", said)
        said = self.run_("/bin/bash", "-c", '"$0" cat images > /dev/full', CKPT, code=IO)
        self.assertIn("ENOSPC", said)
        self.assertIn("no such image", self.run_(CKPT, "cat", "none", code=NOT_FOUND))
        self.assertIn("--compress", self.run_(CKPT, "cat", "--compress", "zip", "images", code=USAGE))

    @unittest.skipUnless(os.geteuid() == 0, "mounts")
    def test_a_full_file_system(self):
        self.image()
        os.mkdir(self.path("small"))
        said = self.run_("unshare", "-m", "/bin/bash", "-c",
                         'mount -t tmpfs -o size=1M none small && cat images/*.ckpt | TMPDIR=small "$0" -', RESTART, code=IO)
        self.assertIn("no room", said)
        self.assertIn("TMPDIR", said)


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    unittest.main()
