"""Programs that watch files (inotify): killed and brought back, they go on watching."""

import signal
import time

from support import *

RESTART = os.path.join(os.path.dirname(CKPT), "ckpt-restart")


class Watches(CkptTest):
    def follow(self, user):
        """tail -f, with lines that come before, between and behind a checkpoint, kill -9 and a restart."""
        images, log, out = self.path("images"), self.path("log"), self.path("out")
        preexec = None
        if user:
            os.chown(self.directory, 65534, 65534)
            preexec = as_nobody
            try:
                subprocess.run([CKPT, "--version"], preexec_fn=preexec, capture_output=True, check=True)
            except OSError:
                self.skipTest("nobody cannot reach the build directory")

        def add(line):
            with open(log, "a", encoding="ascii") as f:
                f.write(line + "\n")

        def wait_for(text, child):
            deadline = time.monotonic() + 60
            while True:
                with open(out, encoding="ascii") as f:
                    got = f.read()
                if got == text:
                    return
                self.assertIsNone(child.poll(), got)
                self.assertLess(time.monotonic(), deadline, f"{got!r}, wanted {text!r}")
                time.sleep(0.01)

        def start(*command):
            with open(out, "a", encoding="ascii") as f:
                if user:
                    os.fchown(f.fileno(), 65534, 65534)
                child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=f, stderr=subprocess.PIPE, text=True,
                                         env=clean_environment(), preexec_fn=preexec)
            self.addCleanup(child.communicate)
            self.addCleanup(child.kill)
            return child

        add("one")
        child = start(CKPT, "run", "--dir", images, "--", "tail", "-n", "+1", "-f", log)
        wait_for("one\n", child)
        add("two")
        wait_for("one\ntwo\n", child)
        cost = load(self.ckpt("now", child.pid, "--json"))
        self.assertEqual([n for n in cost.get("notes", []) if "inotify" in n], [])
        child.kill()
        child.wait()
        add("three")
        child = start(RESTART, "--json", images)
        # What is written before it runs is no event for it.
        report = json.loads(next(line for line in child.stderr if line.startswith("{")))
        self.assertTrue(report["ok"], report)
        self.addCleanup(os.kill, report["outer_pid"], signal.SIGKILL)
        add("four")
        wait_for("one\ntwo\nthree\nfour\n", child)
        add("five")
        wait_for("one\ntwo\nthree\nfour\nfive\n", child)

    @unittest.skipUnless(ROOT, "is one")
    def test_as_root(self):
        self.follow(False)

    def test_as_user(self):
        # The files' handles are not for users: the noted names are all there is.
        self.follow(ROOT)


if __name__ == "__main__":
    unittest.main()
