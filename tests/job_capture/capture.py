"""Checkpoints of jobs: who is in them, what is refused, processes born and dying, kills at named points."""

import glob
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import unittest

CKPT = os.environ["CKPT"]
STATIC = os.environ["CKPT_STATIC"]
SHORT = os.environ["CKPT_SHORT"]
VFORK = os.environ["CKPT_VFORK"]
# Somebody does not stop, which takes so long to notice. All others must have stopped by then, also on a busy machine.
STOP_TIMEOUT = "1500ms"
BUSY = "i=0; while :; do i=$((i+1)); done"
# Numbered lines through two pipes; the last counts them, and says so when one is missing or comes twice.
PIPELINE = """
(i=0; while :; do i=$((i+1)); echo $i || exit; done) | cat |
(n=0; while read l; do n=$((n+1)); [ "$l" = "$n" ] || { echo "wrong: $l instead of $n"; exit 1; }; done)
"""


def clean(**more):
    env = {k: v for k, v in os.environ.items() if not k.startswith("CKPT") and k != "LD_PRELOAD"}
    env.update(more)
    return env


def stat_of(pid):
    """(ppid, state) of a process, or None."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            fields = f.read().rpartition(")")[2].split()
        return int(fields[1]), fields[0]
    except OSError:
        return None


def name_of(pid):
    with open(f"/proc/{pid}/comm") as f:
        return f.read().strip()


def handles_requests(pid):
    """The library in it has installed its handler: exec takes it away, the constructor brings it back."""
    with open(f"/proc/{pid}/status") as f:
        caught = next(int(line.split()[1], 16) for line in f if line.startswith("SigCgt:"))
    return caught >> (60 - 1) & 1 == 1


def processor_time(pid):
    with open(f"/proc/{pid}/stat") as f:
        return sum(int(x) for x in f.read().rpartition(")")[2].split()[11:13])


def tree(root):
    """pids of root, which is the first, and of its living descendants. A child's may be the lower number."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (s := stat_of(name)) and s[1] not in "ZX":
            parents.setdefault(s[0], []).append(int(name))
    found, left = [], [root]
    while left:
        pid = left.pop()
        found.append(pid)
        left += parents.get(pid, [])
    return [root] + sorted(found[1:])


def wait_for(what, condition, seconds=120, said=lambda: ""):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not in time: {what} {said()}")
        time.sleep(0.01)


class Job(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.mkdtemp(prefix="ckpt-job-")
        self.images = os.path.join(self.directory, "images")
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)

    def start(self, *command, options=(), env=None, ready=None):
        """`ckpt run` of the command; killed with all it made at the end."""
        child = subprocess.Popen([CKPT, "run", "--dir", self.images, *options, "--", *command],
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                 env=env or clean(), start_new_session=True, text=True)

        def end():
            for pid in tree(child.pid):
                try:
                    os.kill(pid, signal.SIGKILL)
                except OSError:
                    pass
            try:
                os.killpg(child.pid, signal.SIGKILL)
            except OSError:
                pass
            child.wait()
            for stream in (child.stdin, child.stdout, child.stderr):
                stream.close()

        self.addCleanup(end)
        if ready is not None:
            self.assertEqual(child.stdout.readline().strip(), ready)
        return child

    def run_ckpt(self, *args):
        return subprocess.run([CKPT, *map(str, args)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=120, env=clean())

    def now(self, pid, *options):
        done = self.run_ckpt("now", "--json", *options, pid)
        self.assertEqual(done.returncode, 0, done.stderr + self.log())
        return json.loads(done.stdout)

    def log(self):
        try:
            with open(os.path.join(self.images, "ckpt_rt.log")) as f:
                return f.read()[-4000:]
        except OSError:
            return ""

    def manifest(self, answer):
        with open(os.path.join(answer["job"], "manifest.json")) as f:
            return json.load(f)

    def leftovers(self):
        return [n for n in os.listdir(self.images) if n.endswith(".tmp")]

    def settle(self, pid, count):
        wait_for(f"{count} processes below {pid}", lambda: len(tree(pid)) == count)
        return tree(pid)

    def settle_named(self, pid, *names):
        """The process and those below it, by name, when each runs its own program and the library in it is ready."""
        found = []

        def ready():
            found[:] = tree(pid)
            try:
                return sorted(map(name_of, found)) == sorted(names) and all(map(handles_requests, found))
            except OSError:  # it has ended meanwhile
                return False

        wait_for(f"{names} below {pid}", ready)
        return {name_of(p): p for p in found}

    def with_cat(self, **options):
        """bash, and the cat below it that runs."""
        child = self.start("bash", "-c", "echo up; cat; :", ready="up", **options)
        return child, self.settle_named(child.pid, "bash", "cat")["cat"]


class Born(Job):
    """A child belongs to the job from its first instruction, however it was made."""

    WAYS = {"first", "fork", "_Fork", "clone", "handler", "thread", "vfork", "spawn", "fork-vfork", "grandchild", "threads"}

    def born(self, **options):
        child = self.start(os.environ["CKPT_BORN"], **options)
        lines = [child.stdout.readline().split() for _ in self.WAYS]
        pids = {how: int(pid) for how, pid in lines}
        self.assertEqual(set(pids), self.WAYS)
        return pids

    def test_all_are_members(self):
        pids = self.born()
        for asked in ("first", "clone", "threads"):
            taken = self.now(pids[asked])
            images = {int(os.path.basename(p).split(".")[0]) for p in glob.glob(taken["job"] + "/*.ckpt")}
            self.assertLessEqual(set(pids.values()), images)

    def test_each_alone(self):
        for how, pid in self.born().items():
            with self.subTest(how):
                taken = self.now(pid, "--only")
                self.assertIn(f".{pid}.", taken["image"])

    def test_each_alone_by_fork(self):
        for how, pid in self.born(options=("--mode", "fork")).items():
            with self.subTest(how):
                self.assertIn(f".{pid}.", self.now(pid, "--only")["image"])

    def test_children_made_while_images_are_written(self):
        pids = self.born(options=("--every", "300ms"))
        for _ in range(5):
            self.now(pids["fork"])
        for pid in pids.values():
            self.assertIsNotNone(stat_of(pid))


class Capture(Job):
    def test_pipeline_is_one_checkpoint(self):
        child = self.start("bash", "-c", PIPELINE + "; :")
        self.settle_named(child.pid, "bash", "bash", "bash", "cat")
        members = tree(child.pid)
        # Of any member; the numbers go on.
        for sequence, asked in enumerate([child.pid, members[-1]], 1):
            answer = self.now(asked)
            self.assertEqual(answer["members"], 4)
            manifest = self.manifest(answer)
            self.assertEqual(manifest["sequence"], sequence)
            self.assertEqual([m["pid"] for m in manifest["members"]][0], child.pid)
            self.assertEqual(sorted(m["pid"] for m in manifest["members"]), sorted(members))
            self.assertEqual(manifest["root"], child.pid)
            self.assertEqual(os.stat(answer["job"]).st_mode & 0o7777, 0o700)
            for name in os.listdir(answer["job"]):
                path = os.path.join(answer["job"], name)
                self.assertEqual(os.stat(path).st_mode & 0o7777, 0o700 if os.path.isdir(path) else 0o600, name)
            self.assertEqual(self.run_ckpt("verify", answer["job"]).returncode, 0)
        self.assertEqual(self.leftovers(), [])
        self.assertEqual(tree(child.pid), members)  # all go on

    def test_open_files_that_are_shared(self):
        child = self.start("bash", "-c", f"exec 7>>{self.directory}/log; cat <&0 >&7 & exec 8>>{self.directory}/log;"
                                         " echo $!; cat >&8; :")
        first = int(child.stdout.readline())
        self.settle_named(child.pid, "bash", "cat", "cat")
        answer = self.now(child.pid)
        images = {}
        for m in self.manifest(answer)["members"]:
            shown = self.run_ckpt("show", "--json", f"{answer['job']}/{m['pid']}")
            self.assertEqual(shown.returncode, 0, shown.stderr)
            images[m["pid"]] = {d["fd"]: d["open_file"] for d in json.loads(shown.stdout)["descriptors"]}
        same = {}
        for i, description in enumerate(self.manifest(answer)["descriptions"]):
            for user in description["users"]:
                same[user["pid"], user["open_file"]] = i
        group = lambda pid, fd: same.get((pid, images[pid][fd]))
        root, second = child.pid, next(p for p in images if p not in (child.pid, first))
        # As the kernel's own /proc has it: 7 was there before the first cat, 8 came between both.
        self.assertIsNotNone(group(root, 7))
        self.assertEqual(group(first, 1), group(root, 7))
        self.assertEqual(group(second, 1), group(root, 8))
        self.assertNotEqual(group(root, 7), group(root, 8))

    def test_who_has_ended_and_who_lost_its_parent(self):
        # The orphan has a session of its own; the zombie's parent does not wait.
        script = (f"(setsid sh -c 'echo $$ > {self.directory}/orphan; exec sleep 1000' & ) ; python3 -c 'import os,time\n"
                  "p=os.fork()\n"
                  "if p==0: os._exit(7)\n"
                  "os.waitid(os.P_PID,p,os.WEXITED|os.WNOWAIT)\n"
                  "print(\"up\",flush=True)\n"
                  "time.sleep(1000)' ; :")
        child = self.start("bash", "-c", script, ready="up")

        def sleeps():
            with open(os.path.join(self.directory, "orphan"), "a+") as f:
                f.seek(0)
                pid = f.read().strip()
            return pid and name_of(pid) == "sleep" and handles_requests(pid)

        wait_for("the orphan", sleeps)
        answer = self.now(child.pid)
        by_name = {}
        for m in self.manifest(answer)["members"]:
            by_name.setdefault((m["name"], m["state"]), []).append(m)
        zombie = by_name["python3", "zombie"][0]
        self.assertEqual(os.waitstatus_to_exitcode(zombie["exit_status"]), 7)
        self.assertNotIn("image", zombie)
        orphan = by_name["sleep", "running"][0]
        self.assertTrue(orphan["orphan"])
        self.assertEqual(orphan["sid"], orphan["pid"])
        os.kill(orphan["pid"], signal.SIGKILL)
        self.assertEqual(answer["members_ended"], 1)

    def test_only_takes_one(self):
        child, cat = self.with_cat()
        answer = self.now(cat, "--only")
        self.assertNotIn("job", answer)
        self.assertEqual(glob.glob(self.images + "/*.job"), [])

    def test_old_ones_go(self):
        child, _ = self.with_cat()
        for _ in range(4):
            self.now(child.pid)
        self.assertEqual(sorted(os.path.basename(p) for p in glob.glob(self.images + "/*.job")),
                         ["bash.000003.job", "bash.000004.job"])

    def test_increments(self):
        child, _ = self.with_cat(options=["--increments", "3"])
        answers = [self.now(child.pid) for _ in range(3)]
        if answers[0]["mode"] == "fork":
            self.skipTest("no increments in mode fork")
        self.assertEqual([a["parent_sequence"] for a in answers], [0, 1, 2])
        self.assertTrue(os.path.isdir(answers[0]["job"]))  # the others need it
        for m in self.manifest(answers[2])["members"]:
            verified = self.run_ckpt("verify", f"{answers[2]['job']}/{m['pid']}")
            self.assertEqual(verified.returncode, 0, verified.stderr)

    def test_every_mode(self):
        for mode in ("realtime", "realtime-large", "concurrent", "sequential", "fork"):
            with self.subTest(mode=mode):
                child, _ = self.with_cat(options=["--mode", mode])
                answer = self.now(child.pid)
                # Without full userfaultfd (an ordinary user, most often) fork takes their place.
                self.assertIn(answer["mode"], [mode, "fork"] if os.geteuid() != 0 else [mode])
                self.assertEqual(answer["members"], 2)
                self.assertEqual(self.run_ckpt("verify", answer["job"]).returncode, 0)
                os.kill(child.pid, signal.SIGKILL)


class Refused(Job):
    def refuse(self, pid, code, *words, options=()):
        done = self.run_ckpt("now", *options, pid)
        self.assertEqual(done.returncode, code, done.stderr)
        for word in words:
            self.assertIn(str(word), done.stderr)
        self.assertEqual(glob.glob(self.images + "/*.job"), [])
        self.assertEqual(self.leftovers(), [])

    def test_static_program(self):
        child = self.start("bash", "-c", f"echo up; {STATIC}; :", ready="up")
        self.settle(child.pid, 2)
        static = tree(child.pid)[1]
        wait_for("the program", lambda: name_of(static) == "job_static_prog")
        self.refuse(child.pid, 78, static, "job_static_prog", "--leave-out")
        for leave_out in (str(static), "job_static_prog", "all"):
            answer = self.now(child.pid, "--leave-out", leave_out)
            self.assertEqual((answer["members"], answer["members_left_out"]), (1, 1))
            self.assertEqual([(l["pid"], l["reason"]) for l in self.manifest(answer)["left_out"]],
                             [(static, "static")])

    def test_cleared_environment(self):
        child = self.start("bash", "-c", "echo up; env -i /bin/cat; :", ready="up")
        self.settle(child.pid, 2)
        wait_for("cat", lambda: name_of(tree(child.pid)[1]) == "cat")
        self.refuse(child.pid, 78, tree(child.pid)[1], "cat", "without libckpt_rt.so")

    def test_stopped_member(self):
        child, cat = self.with_cat()
        os.kill(cat, signal.SIGSTOP)
        wait_for("stop", lambda: stat_of(cat)[1] == "T")
        self.now(child.pid)
        wait_for("stop", lambda: stat_of(cat)[1] == "T")
        os.kill(cat, signal.SIGCONT)
        self.now(child.pid)

    def test_streaming(self):
        child, _ = self.with_cat(options=["--to", "cat >/dev/null"])
        done = self.run_ckpt("now", child.pid)
        self.assertEqual(done.returncode, 78, done.stderr)
        self.assertIn("--only", done.stderr)


    def test_member_that_is_stopped_meanwhile(self):
        """It takes its part all the same, and stays stopped."""
        for point in ("joined", "prepared", "held", "stopped", "standing", "sampled"):
            with self.subTest(point=point):
                child, cat = self.with_cat(options=["--stop-timeout", STOP_TIMEOUT],
                                           env=clean(CKPT_TEST_POINT=f"member.{point}@cat=stop"))
                self.now(child.pid)
                wait_for("stop", lambda: stat_of(cat)[1] == "T")
                os.kill(cat, signal.SIGCONT)
                self.now(child.pid)
                self.assertEqual(self.leftovers(), [])

    def test_member_that_is_killed_in_the_stop(self):
        """The others learn at once that the attempt is over, and stand no longer: not until their deadlines."""
        child = self.start("bash", "-c", "sleep 1000 & tail -f /dev/null & sleep 1000 & echo up; wait; :", ready="up",
                           options=["--stop-timeout", "60s"], env=clean(CKPT_TEST_POINT="member.sampled@tail=kill"))
        self.settle_named(child.pid, "bash", "sleep", "tail", "sleep")
        began = time.monotonic()
        answer = self.now(child.pid)
        self.assertLess(time.monotonic() - began, 50, self.log())
        self.assertEqual(answer["members"], 3, self.log())  # of another attempt, without the one that was killed

    def test_leader_that_is_stopped(self):
        """The others go on without it."""
        for point in ("standing", "sampled"):
            with self.subTest(point=point):
                child = self.start("bash", "-c", f"echo up; sleep 1000 & {BUSY}", ready="up",
                                   options=["--stop-timeout", STOP_TIMEOUT],
                                   env=clean(CKPT_TEST_POINT=f"leader.{point}@sleep=stop"))
                names = self.settle_named(child.pid, "bash", "sleep")
                bash, sleep = names["bash"], names["sleep"]
                asker = subprocess.Popen([CKPT, "now", str(sleep)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                         text=True, env=clean())
                wait_for("stop", lambda: stat_of(sleep)[1] == "T")
                before = processor_time(bash)
                wait_for("bash goes on", lambda: processor_time(bash) > before + 10)
                os.kill(sleep, signal.SIGCONT)
                asker.communicate(timeout=60)
                self.now(bash)
                self.assertEqual(self.leftovers(), [])


    def test_child_with_its_parents_memory(self):
        """Its handler is its parent's: nothing is asked of it, and no signal sent, before it has a program of its own."""
        child = self.start(VFORK, "sleep", "0.5", ready="up", env=clean(CKPT_TEST_POINT="leader.looked=stop"))
        wait_for("vfork", lambda: len(tree(child.pid)) == 2)
        sleep = tree(child.pid)[1]
        asker = subprocess.Popen([CKPT, "now", "--json", str(child.pid)], stdout=subprocess.PIPE, text=True, env=clean())
        wait_for("leader", lambda: "ckpt_rt" in {name_of(f"{child.pid}/task/{t}") for t in os.listdir(f"/proc/{child.pid}/task")})
        time.sleep(0.3)  # the leader looks every few milliseconds
        self.assertNotIn("T", {stat_of(f"{child.pid}/task/{t}")[1] for t in os.listdir(f"/proc/{child.pid}/task")})
        child.stdin.write("x")
        child.stdin.flush()
        wait_for("stop", lambda: stat_of(child.pid)[1] == "T")
        self.assertEqual(name_of(sleep), "sleep")
        os.kill(child.pid, signal.SIGCONT)
        self.assertEqual(json.loads(asker.communicate(timeout=60)[0])["members"], 2, self.log())
        self.assertEqual(child.stdout.read(), "0\n")


class Busy(Job):
    def test_processes_born_and_dying(self):
        for how in ("fork", "fork-exec", "vfork", "spawn", "clone"):
            with self.subTest(how=how):
                child = self.start(SHORT, how, ready="up")
                for _ in range(5):
                    answer = self.now(child.pid)
                    if "job" in answer:
                        self.assertEqual(self.run_ckpt("verify", answer["job"]).returncode, 0)
                child.stdin.close()
                self.assertRegex(child.stdout.read(), r"\A\d+\n\Z")
                self.assertEqual(child.wait(), 0)
                self.assertEqual(self.leftovers(), [])

    def test_no_line_is_lost(self):
        child = self.start("bash", "-c", PIPELINE + "; :")
        self.settle_named(child.pid, "bash", "bash", "bash", "cat")
        members = tree(child.pid)
        for i in range(10):
            self.now(members[i % 4])
        self.assertEqual(tree(child.pid), members)
        os.kill(members[1], signal.SIGTERM)
        self.assertEqual(child.stdout.read(), "")

    def test_two_at_once(self):
        child = self.start("bash", "-c", f"echo up; sh -c '{BUSY}' & sh -c '{BUSY}' & cat; :", ready="up")
        self.settle_named(child.pid, "bash", "sh", "sh", "cat")
        members = tree(child.pid)
        results = []
        threads = [threading.Thread(target=lambda p=pid: results.append(self.run_ckpt("now", "--json", p)))
                   for pid in members]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual([r.returncode for r in results], [0] * 4, [r.stderr for r in results])
        self.assertEqual(sorted(json.loads(r.stdout)["sequence"] for r in results), [1, 2, 3, 4])
        self.assertEqual(tree(child.pid), members)


class Interval(Job):
    def newest(self):
        return max([0] + [int(p.split(".")[-2]) for p in glob.glob(self.images + "/*.job")])

    def test_one_timer_and_an_heir(self):
        child = self.start("bash", "-c", "sleep 1000 & sleep 1000 & echo up; wait; :", ready="up", options=["--every", "500ms"])
        self.settle_named(child.pid, "bash", "sleep", "sleep")
        members = tree(child.pid)

        def leaders():
            try:
                with open(os.path.join(self.images, "ckpt_rt.log")) as f:
                    return [line.split(" pid ")[1].split(":")[0] for line in f if ": job " in line]
            except OSError:
                return []
        # One that nobody has heard of for two intervals, since the machine stood still, is no first process any more: for once.
        wait_for(f"six checkpoints in a row by the first process, {child.pid}", lambda: leaders()[-6:] == [str(child.pid)] * 6,
                 said=lambda: f"led by {leaders()}")
        # The first process goes; the others have one timer again.
        os.kill(child.pid, signal.SIGKILL)
        before = self.newest()
        wait_for("checkpoints of those that are left", lambda: self.newest() >= before + 2)
        for pid in members[1:]:
            os.kill(pid, signal.SIGKILL)


class Kill(Job):
    MEMBER = ["joined", "prepared", "held", "stopped", "standing", "sampled", "go", "image", "written", "done"]
    LEADER = ["asked", "armed", "prepared", "held", "stop", "stopped", "standing", "sampled", "go", "image",
              "written", "manifest", "renamed"]
    SETTINGS = {}

    def kill_at(self, point, program, asked):
        """bash, which runs, with cat and sleep below; `program` kills itself at the point."""
        env = clean(CKPT_TEST_POINT=f"{point}@{program}=kill:2", **self.SETTINGS)
        child = self.start("bash", "-c", f"echo up; sleep 1000 & cat & {BUSY}", ready="up", env=env)
        names = self.settle_named(child.pid, "bash", "cat", "sleep")
        first = self.now(names[asked])
        done = self.run_ckpt("now", "--json", names[asked])
        wait_for(f"death at {point}", lambda: (stat_of(names[program]) or (0, "Z"))[1] in "ZX")
        self.check_rest(first, done, names, program)

    def check_rest(self, first, done, names, program):
        alive = [p for n, p in names.items() if n != program]
        # Whoever computes goes on to compute; nobody stands.
        if program != "bash":
            before = processor_time(names["bash"])
            wait_for("bash goes on", lambda: processor_time(names["bash"]) > before)
        # What has its final name is whole; what is left of others goes with the next checkpoint at the latest.
        self.assertTrue(os.path.isdir(first["job"]))
        for job in glob.glob(self.images + "/*.job"):
            verified = self.run_ckpt("verify", job)
            self.assertEqual(verified.returncode, 0, verified.stderr)
        if done.returncode == 0:
            self.assertTrue(os.path.isdir(json.loads(done.stdout)["job"]))
        answer = self.now(alive[0])
        self.assertIn(alive[0], [m["pid"] for m in self.manifest(answer)["members"]])
        self.assertEqual(self.leftovers(), [])
        for pid in alive:
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.images)

    def test_members(self):
        for point in self.MEMBER:
            with self.subTest(point=point):
                self.kill_at("member." + point, "cat", "bash")

    def test_coordinator(self):
        for point in self.LEADER:
            with self.subTest(point=point):
                self.kill_at("leader." + point, "sleep", "sleep")


class KillGuarded(Kill):
    """The same where the thread that writes handles its own fault: the guard is open while all stand."""

    MEMBER = ["standing", "sampled", "go"]
    LEADER = ["standing", "sampled", "go"]
    SETTINGS = {"CKPT_FAULTS": "in-thread"}


if __name__ == "__main__":
    unittest.main()
