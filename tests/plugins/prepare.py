"""What plug-ins do ahead of a checkpoint: on a thread of their own, with a limit, and with messages from one member to another."""
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

CKPT, RESTART, MEET = (os.environ[n] for n in ("CKPT", "CKPT_RESTART", "CKPT_MEET_PLUGIN"))


def wait_for(what, condition, seconds=60):
    end = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > end:
            raise AssertionError("not in time: " + what)
        time.sleep(0.01)
    return found


class Prepare(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="ckpt-prepare.")
        self.addCleanup(shutil.rmtree, self.dir, True)
        os.mkdir(self.dir + "/meet")
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("CKPT") and k != "LD_PRELOAD"}
        self.environment["CKPT_MEET"] = self.dir + "/meet"
        self.environment["CKPT_PREPARE_TIMEOUT"] = "30s"  # of one process: the host may take a processor away for seconds

    def start(self, script, *options):
        """A job in a session of its own, which ends when there is a file `end`."""
        job = subprocess.Popen([CKPT, "run", "--dir", self.dir + "/images", "--stop-timeout", "20s", "--plugins", MEET, *options, "--", "sh", "-c", script],
                               env=self.environment, cwd=self.dir, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
        self.addCleanup(self.end, job)
        return job

    def end(self, job):
        try:
            os.killpg(job.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        job.wait()
        job.stdout.close()
        job.stderr.close()

    def now(self, pid):
        return subprocess.run([CKPT, "now", str(pid)], capture_output=True, text=True, env=self.environment, timeout=120, check=False)

    def file(self, name, text=None):
        path = f"{self.dir}/meet/{name}"
        if text is None:
            os.unlink(path)
        else:
            with open(path, "w", encoding="ascii") as f:
                f.write(text)

    def log(self, what):
        """Lines of the plug-ins with that word: {pid: the rest of the last one}."""
        lines = {}
        try:
            with open(self.dir + "/meet/log", encoding="ascii") as f:
                for line in f:
                    pid, word, *rest = line.split()
                    if word == what:
                        lines[int(pid)] = " ".join(rest)
        except FileNotFoundError:
            pass
        return lines

    def count(self, what):
        try:
            with open(self.dir + "/meet/log", encoding="ascii") as f:
                return sum(line.split()[1] == what for line in f)
        except FileNotFoundError:
            return 0

    # Four processes: sh, two of its forks that execute nothing, and one that another program has become. None makes more of them: one
    # that came too late for the rounds would have the checkpoint taken again.
    FAMILY = "w() { while [ ! -e end ]; do :; done; }; w & w & cat < /dev/zero > /dev/null & child=$!; echo there; w; kill $child; wait; echo over"

    def start_family(self):
        job = self.start(self.FAMILY)
        self.assertEqual(job.stdout.readline(), "there\n")

        def has_executed():
            with open(f"/proc/{job.pid}/task/{job.pid}/children", encoding="ascii") as f:
                children = f.read().split()
            for child in children:
                with open(f"/proc/{child}/comm", encoding="ascii") as f:
                    if f.read() == "cat\n":
                        return True
            return False
        # One that executes after the checkpoint hears no more of it.
        wait_for("cat", has_executed)
        return job

    def test_members_greet_each_other(self):
        job = self.start_family()
        taken = self.now(job.pid)
        self.assertEqual(taken.returncode, 0, taken.stderr)
        durable = wait_for("all have heard", lambda: len(found := self.log("durable")) == 4 and found)
        for pid, said in durable.items():
            met, right, mail = int(said.split()[1]), said.split()[3], int(said.split()[5])
            self.assertEqual(met, 3, durable)
            self.assertEqual((right, mail), ("right", 2 * met), durable)
        self.assertEqual(self.log("abandoned"), {})
        self.end(job)
        for pid in durable:  # else the second life has ids of its own (a namespace)
            wait_for("its end", lambda pid=pid: not os.path.exists(f"/proc/{pid}"))
        back = subprocess.Popen([RESTART, "--json", self.dir + "/images"], env=self.environment, cwd=self.dir, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                text=True, start_new_session=True)
        self.addCleanup(self.end, back)
        returned = wait_for("all are back", lambda: len(found := self.log("back")) == 4 and found)
        for pid, said in returned.items():
            self.assertEqual(said, durable[pid])
        report = json.loads(next(line for line in back.stderr if line.startswith("{")))
        # Again in the second life: the thread that prepares has come back with the others.
        taken = self.now(report["outer_pids"][0])
        self.assertEqual(taken.returncode, 0, taken.stderr)
        open(self.dir + "/end", "w", encoding="ascii").close()
        said = back.communicate(timeout=60)
        self.assertEqual(back.returncode, 0, said)
        self.assertIn("over\n", said[0])
        self.assertFalse([note for note in report["notes"] if "mail is lost" in note])

    ALONE = "echo there; while [ ! -e end ]; do :; done; echo over"

    def hears_of(self, checkpoints):
        """On a thread of its own, after the answer: a program that ends at once hears no more of it."""
        wait_for("it hears of it", lambda: self.count("durable") == checkpoints)

    def finish(self, job):
        open(self.dir + "/end", "w", encoding="ascii").close()
        said = job.communicate(timeout=60)
        self.assertEqual((job.returncode, said[0]), (0, "over\n"), said)

    def test_it_refuses(self):
        job = self.start(self.ALONE)
        self.assertEqual(job.stdout.readline(), "there\n")
        self.file("refuse", "the transport is just being set up")
        taken = self.now(job.pid)
        self.assertEqual(taken.returncode, 69, taken.stderr)
        self.assertIn("plug-in meet: the transport is just being set up", taken.stderr)
        wait_for("it hears of it", lambda: self.count("abandoned") == 1)
        self.assertFalse([n for n in os.listdir(self.dir + "/images") if n.endswith(".ckpt")])
        self.file("refuse")
        self.assertEqual(self.now(job.pid).returncode, 0)
        self.hears_of(1)
        self.finish(job)
        self.assertEqual((self.count("abandoned"), self.count("durable")), (1, 1))

    def test_one_member_refuses_for_all(self):
        job = self.start_family()
        self.file("refuse", "not now")
        taken = self.now(job.pid)
        self.assertEqual(taken.returncode, 69, taken.stderr)
        self.assertIn("plug-in meet: not now", taken.stderr)
        self.assertFalse([n for n in os.listdir(self.dir + "/images") if n.endswith(".job")])
        self.file("refuse")
        self.assertEqual(self.now(job.pid).returncode, 0)

    def test_it_takes_too_long(self):
        job = self.start(self.ALONE, "--prepare-timeout", "300ms")
        self.assertEqual(job.stdout.readline(), "there\n")
        self.file("hang", "")
        for _ in range(2):  # the second finds it busy with the first
            taken = self.now(job.pid)
            self.assertEqual(taken.returncode, 75, taken.stderr)
            self.assertIn("CKPT_PREPARE_TIMEOUT", taken.stderr)
        self.assertEqual(self.count("abandoned"), 0)
        self.file("hang")
        wait_for("it hears of it", lambda: self.count("abandoned") == 1)
        # Given up is what the program does not notice.
        self.finish(job)
        self.assertEqual(self.count("abandoned"), 1)

    def test_without_end(self):
        job = self.start_family()
        self.file("chatter", "")
        taken = self.now(job.pid)
        self.assertEqual(taken.returncode, 75, taken.stderr)
        self.assertIn("after 32 rounds", taken.stderr)
        self.file("chatter")
        self.assertEqual(self.now(job.pid).returncode, 0)

    def test_libc_may_be_called(self):
        """The program is nearly always inside malloc; the plug-in allocates and opens files."""
        self.environment["PYTHONMALLOC"] = "malloc"
        program = ("import os, threading\n"
                   "def busy():\n"
                   " while not os.path.exists('end'): [bytearray(1000) for _ in range(1000)]\n"
                   "threads = [threading.Thread(target=busy) for _ in range(3)]\n"
                   "[t.start() for t in threads]; print('there', flush=True); [t.join() for t in threads]; print('over')")
        job = subprocess.Popen([CKPT, "run", "--dir", self.dir + "/images", "--stop-timeout", "20s", "--plugins", MEET, "--", "python3", "-c", program],
                               env=self.environment, cwd=self.dir, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
        self.addCleanup(self.end, job)
        self.assertEqual(job.stdout.readline(), "there\n")
        for _ in range(5):
            taken = self.now(job.pid)
            self.assertEqual(taken.returncode, 0, taken.stderr)
        self.hears_of(5)
        self.finish(job)
        self.assertEqual(self.count("durable"), 5)


if __name__ == "__main__":
    unittest.main()
