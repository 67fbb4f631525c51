#!/usr/bin/env python3
"""A program that does what it is told (talk.c) is asked what it is, after it has gone back or was restarted.
  talks.py [CLASS...]       with CKPT_BUILD, the build directory
"""
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
from own_pids import enter_own_pids  # noqa: E402  pylint: disable=wrong-import-position

BUILD = os.environ["CKPT_BUILD"]
CKPT, RESTART = (os.path.join(BUILD, "bin", n) for n in ("ckpt", "ckpt-restart"))
TALK = os.path.join(BUILD, "tests", "back", "talk")
PATIENCE = 90  # seconds, for anything
PR_SET_CHILD_SUBREAPER = 36
NOBODY = 65534


class Talking(unittest.TestCase):
    settings = {}

    def setUp(self):
        # Who has lost his parent becomes ours, and can be waited for: its id is free then.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.directory = tempfile.mkdtemp(prefix="ckpt-talk-")
        # As a script starts it: `ckpt run` gives a job its id, which is to be seen in its mappings otherwise.
        self.start(self.command(), **self.settings, LD_PRELOAD=os.path.join(BUILD, "lib", "libckpt_rt.so"), CKPT_DIR=self.directory)
        self.pid = int(self.ask("pid"))
        self.child = None

    def command(self):
        return [TALK]

    def tearDown(self):
        for pid in (self.pid, self.child):
            if pid:
                self.end(pid)
        self.program.stdin.close()
        self.program.stdout.close()
        shutil.rmtree(self.directory)

    def start(self, command, **more):
        clean = {k: v for k, v in os.environ.items() if not k.startswith("CKPT") and k != "LD_PRELOAD"}
        self.program = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**clean, "CKPT_STOP_TIMEOUT": "30s", **more})

    def ask(self, word):
        self.program.stdin.write(word.encode() + b"\n")
        self.program.stdin.flush()
        ready, _, _ = select.select([self.program.stdout], [], [], PATIENCE)
        self.assertTrue(ready, f"it does not answer to {word}")
        answer = self.program.stdout.readline().decode().strip()
        self.assertNotEqual(answer, "", f"it has ended when it was told: {word}")
        return answer

    def ckpt(self, *arguments, code=0):
        done = subprocess.run([CKPT, *arguments, "--json"], capture_output=True, text=True, timeout=PATIENCE, check=False)
        self.assertEqual(done.returncode, code, f"{arguments}: {done.stderr}")
        return json.loads(done.stdout) if code == 0 else done.stderr

    def restart(self, image):
        self.program.stdin.close()
        self.program.stdout.close()
        self.start([RESTART, "--trust", image])
        self.assertEqual(self.ask("pid"), str(self.pid))

    def make_child(self):
        self.child = int(self.ask("child"))

    def end(self, pid):
        for what in (lambda: os.kill(pid, signal.SIGKILL), lambda: os.waitpid(pid, 0)):
            try:
                what()
            except (ProcessLookupError, ChildProcessError):
                pass
        if pid == self.program.pid:
            self.program.returncode = -signal.SIGKILL

    def job(self):
        return os.path.join(self.directory, "talk.000001.job")


# As sigaltstack(2) takes it: address, flags, bytes.
class AlternateStack(ctypes.Structure):
    _fields_ = [("address", ctypes.c_void_p), ("flags", ctypes.c_int), ("bytes", ctypes.c_size_t)]


class BackFromAlternateStack(Talking):
    """Who executes the program has an alternate signal stack. The program has none, but the kernel keeps flags of it."""
    def setUp(self):
        self.memory = ctypes.create_string_buffer(1 << 16)
        self.set_stack(0)
        super().setUp()
        self.set_stack(2)  # SS_DISABLE

    def set_stack(self, flags):
        stack = AlternateStack(ctypes.addressof(self.memory), flags, len(self.memory))
        self.assertEqual(ctypes.CDLL(None).sigaltstack(ctypes.byref(stack), None), 0)

    def test_a_stack_set_since_is_gone(self):
        self.assertEqual(self.ask("alternate"), "2 0")
        self.ckpt("now", str(self.pid))
        self.assertEqual(self.ask("stack"), "0")
        self.assertEqual(self.ask("alternate"), "0 65536")
        self.ckpt("back", str(self.pid))
        self.assertEqual(self.ask("alternate"), "2 0")
        self.ckpt("now", str(self.pid))


class Back(Talking):
    def test_memory_mapped_after_going_back_is_in_the_next_image(self):
        self.ckpt("now", str(self.pid))
        self.ckpt("back", str(self.pid))
        self.assertEqual(self.ask("map"), "mapped")
        self.ckpt("now", str(self.pid))
        self.ckpt("back", str(self.pid))
        self.assertEqual(self.ask("sum"), str(0x5a * 4096))


    def test_to_a_descriptor_above_its_limit_of_now(self):
        self.assertEqual(self.ask("double"), "100")
        self.ckpt("now", str(self.pid))
        self.assertEqual(self.ask("limit soft"), "0 0")
        self.ckpt("back", str(self.pid))
        self.assertEqual(self.ask("number"), "0")

    def test_shared_memory_that_may_only_be_read(self):
        self.assertEqual(self.ask("shared"), "0")
        self.ckpt("now", str(self.pid))
        self.assertEqual(self.ask("change"), "0 0")
        self.ckpt("back", str(self.pid))
        self.assertEqual(self.ask("read"), f"{ord('A')} 0")

    def test_shared_memory_that_is_written_by_another_mapping(self):
        self.assertEqual(self.ask("views"), str(ord("A")))
        self.ckpt("now", str(self.pid))
        self.ask("fill B")
        self.assertEqual(self.ask("sum"), str(ord("B") * 4096))
        self.ckpt("back", str(self.pid))
        self.assertEqual(self.ask("sum"), str(ord("A") * 4096))

    def test_a_file_without_a_name_that_is_mapped_but_not_open_any_more(self):
        self.ask("views")
        self.ckpt("now", str(self.pid))
        self.assertEqual(self.ask("hide"), "0")
        if os.geteuid() != 0:
            self.assertIn("is not the memory that is mapped", self.ckpt("back", str(self.pid), code=78))
            return
        self.ckpt("back", str(self.pid))
        self.assertEqual(self.ask("stamp"), "1 Z")

    def test_a_full_pipe_that_was_made_smaller(self):
        self.assertEqual(self.ask("pipe"), str(256 << 10))
        self.ckpt("now", str(self.pid))
        self.assertEqual(self.ask("empty"), str(256 << 10))
        self.assertEqual(self.ask("shrink"), "4096")
        self.ckpt("back", str(self.pid))
        self.assertEqual(self.ask("empty"), str(256 << 10))

    def test_what_waited_in_a_connection_of_its_own_was_received(self):
        self.assertEqual(self.ask("tcp"), "0")
        self.assertEqual(self.ask("send"), "sent")
        self.ckpt("now", str(self.pid))
        self.assertEqual(self.ask("send"), "sent")
        # It would send that again, and nobody can take it out alone.
        self.assertIn("more waits", self.ckpt("back", str(self.pid), code=78))
        self.assertEqual(self.ask("take"), "1 x")
        self.ckpt("back", str(self.pid))
        self.assertEqual(self.ask("take"), "1 x")
        self.assertIn("received since", self.ckpt("back", str(self.pid), code=78))
        self.assertEqual(self.ask("send"), "sent")

    def test_timers_made_since_are_gone(self):
        self.ckpt("now", str(self.pid))
        self.assertEqual(self.ask("timers"), "600")
        self.ckpt("back", str(self.pid))
        with open(f"/proc/{self.pid}/timers", encoding="ascii") as f:
            self.assertEqual(f.read(), "")


@unittest.skipIf(os.getuid() != 0, "takes root")
class BackAsUser(Talking):
    """What cannot be had again is refused, and the program goes on."""

    def setUp(self):
        super().setUp()
        self.file = tempfile.NamedTemporaryFile()
        self.file.write(b"x" * 4096)
        self.file.flush()
        os.chmod(self.file.name, 0o644)
        self.addCleanup(self.file.close)

    def ckpt(self, *arguments, code=0):
        return super().ckpt(*arguments, *(["--trust"] if arguments[0] == "back" else []), code=code)

    def test_root_does_not_trust_it(self):
        """The image says which files are opened and written; the program, which image it is."""
        self.ckpt("now", str(self.pid))
        self.assertIn("--trust", super().ckpt("back", str(self.pid), code=77))
        self.ckpt("back", str(self.pid))

    def command(self):
        os.chown(self.directory, NOBODY, NOBODY)
        return ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", TALK]

    def test_a_descriptor_above_its_hard_limit(self):
        self.assertEqual(self.ask("double"), "100")
        number = self.ask("open " + TALK)  # it would be handed over, but does not come so far
        self.ckpt("now", str(self.pid))
        self.assertEqual(self.ask("close " + number), "0")
        self.assertEqual(self.ask("limit hard"), "0 0")
        self.assertIn("ulimit -Hn", self.ckpt("back", str(self.pid), code=69))
        self.assertEqual(self.ask("pid"), str(self.pid))

    def test_a_mapped_file_that_it_may_not_open_any_more(self):
        self.assertEqual(self.ask("library " + self.file.name), "0")
        number = self.ask("open " + TALK)
        self.ckpt("now", str(self.pid))
        self.assertEqual(self.ask("close " + number), "0")
        before = sorted(os.listdir(f"/proc/{self.pid}/fd"))
        self.assertEqual(self.ask("forget"), "0")
        os.chmod(self.file.name, 0o600)
        self.assertIn(self.file.name, self.ckpt("back", str(self.pid), code=72))
        self.assertEqual(self.ask("pid"), str(self.pid))
        self.assertEqual(sorted(os.listdir(f"/proc/{self.pid}/fd")), before)
        os.chmod(self.file.name, 0o644)
        self.ckpt("back", str(self.pid))


class SharedSocket(Talking):
    """All members of a job look at the same socket, at the same time."""

    def test_it_stays_as_it_was_and_all_is_in_the_image(self):
        self.assertEqual(self.ask("queue"), "150")
        sharers = [int(self.ask("sharer")) for _ in range(5)]
        for _ in range(15):
            job = self.ckpt("now", str(self.pid))["job"]
            self.assertEqual(self.ask("options"), "-1 0")
        for pid in (self.pid, *sharers):
            self.end(pid)
        self.restart(job)
        self.assertEqual(self.ask("options"), "-1 0")
        self.assertEqual(self.ask("receive"), "150")


class BackInJob(Talking):
    """To the image of one process of a job: its children live on beside it."""

    def setUp(self):
        super().setUp()
        self.make_child()

    def test_makes_processes_again(self):
        self.ckpt("now", str(self.pid))
        self.ckpt("back", "--only", str(self.pid))
        self.assertEqual(self.ask("fork"), "7")

    def test_stays_connected(self):
        self.ckpt("now", str(self.pid))
        self.assertEqual(self.ask("send"), "sent")
        self.ckpt("back", "--only", str(self.pid))
        # What was sent is sent.
        self.assertEqual(self.ask("hear"), "1 x")
        self.assertEqual(self.ask("send"), "sent")
        self.assertEqual(self.ask("hear"), "1 x")

    def test_checkpoint_alone_afterwards(self):
        self.ckpt("now", str(self.pid))
        self.ckpt("back", "--only", str(self.pid))
        self.ckpt("now", "--only", str(self.pid))
        self.ckpt("now", str(self.pid))
        self.assertEqual(self.ask("fork"), "7")


class BackJob(Talking):
    """All of the job."""

    def setUp(self):
        super().setUp()
        self.make_child()

    def test_makes_processes_again(self):
        self.ckpt("now", str(self.pid))
        self.assertEqual(self.ckpt("back", str(self.pid))["members"], 2)
        self.assertEqual(self.ask("fork"), "7")

    def test_what_was_sent_is_not(self):
        self.ckpt("now", str(self.pid))
        self.assertEqual(self.ask("send"), "sent")
        self.ckpt("back", str(self.child))
        self.assertEqual(self.ask("send"), "sent")
        self.assertEqual(self.ask("hear"), "1 x")

    def test_a_small_room_that_was_full_is_as_it_was(self):
        """What waits is taken out through a larger room, where that takes long."""
        self.assertEqual(self.ask("narrow"), "0")
        self.ckpt("now", str(self.pid))
        self.assertEqual(self.ask("flood"), "1")
        room = self.ask("room")
        self.ckpt("back", str(self.pid))
        self.assertEqual(self.ask("room"), room)

    def test_checkpoint_afterwards(self):
        self.ckpt("now", str(self.pid))
        self.ckpt("back", str(self.pid))
        self.ckpt("now", "--only", str(self.pid))
        self.ckpt("now", str(self.pid))
        self.ckpt("back", str(self.pid))
        self.assertEqual(self.ask("fork"), "7")


class BackWatched(Talking):
    """With a watch only what was written since its image is put back: it has to be that image."""

    settings = {"CKPT_INCREMENTS": "8"}

    def test_to_an_image_of_the_job_with_the_number_of_one_alone(self):
        self.make_child()
        self.ask("map")
        self.ask("fill A")
        self.assertEqual(self.ckpt("now", str(self.pid))["sequence"], 1)
        image = os.path.join(self.job(), f"{self.pid}.ckpt")
        self.ask("fill B")
        self.assertEqual(self.ckpt("now", "--only", str(self.pid))["sequence"], 1)
        self.ckpt("back", str(self.pid), image)
        self.assertEqual(self.ask("sum"), str(ord("A") * 4096))


class Pruned(Talking):
    """Encrypted increments of a job: with another key nobody sees which older ones they need."""

    def setUp(self):
        self.key = tempfile.NamedTemporaryFile()
        self.addCleanup(self.key.close)
        self.change_key()
        self.settings = {"CKPT_INCREMENTS": "8", "CKPT_KEEP": "2", "CKPT_KEY_FILE": self.key.name}
        super().setUp()
        self.make_child()

    def change_key(self):
        self.key.seek(0)
        self.key.write(os.urandom(32))
        self.key.flush()

    def test_what_stays_keeps_what_it_may_need(self):
        first = self.ckpt("now", str(self.pid))["job"]
        self.assertEqual(self.ckpt("now", str(self.pid))["parent_sequence"], 1)
        self.change_key()
        self.assertEqual(self.ckpt("now", str(self.pid))["parent_sequence"], 0)
        self.assertTrue(os.path.isdir(first))


class Restarted(Talking):
    def test_more_files_in_flight_than_descriptors_are_allowed(self):
        self.assertEqual(self.ask("flight"), "40")
        image = self.ckpt("now", str(self.pid))["image"]
        with open(f"/proc/{self.pid}/limits", encoding="ascii") as f:
            self.assertIn(["Max", "open", "files", "45", "1024"], [line.split()[:5] for line in f])
        self.end(self.pid)
        self.restart(image)
        self.assertEqual(self.ask("land"), "40")

    def test_member_takes_a_checkpoint_alone(self):
        self.make_child()
        self.ckpt("now", str(self.pid))
        for pid in (self.pid, self.child):
            self.end(pid)
        self.restart(self.job())
        self.ckpt("now", "--only", str(self.pid))
        self.ckpt("now", "--only", str(self.child))
        self.end(self.child)  # of a job of one, now
        self.assertEqual(self.ask("fork"), "7")
        self.ckpt("now", str(self.pid))

    @unittest.skipIf(os.getuid() != 0, "takes root")
    def test_one_that_gave_up_its_user_takes_a_checkpoint(self):
        """It may not open its own memory: whoever asks hands it over, also when an image was taken with that."""
        self.assertEqual(self.ask("nobody"), "65534")
        image = self.ckpt("now", str(self.pid))["image"]
        self.end(self.pid)
        self.restart(image)
        self.ckpt("now", str(self.pid))


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    enter_own_pids()
    unittest.main()
