"""Checkpoints of jobs: who is in them, what they hold, processes born and dying, the timer of the first process."""

import glob
import json
import os
import signal
import threading
import time
import unittest

from capture_support import SHORT, BUSY, PIPELINE, stat_of, name_of, handles_requests, tree, wait_for, Job


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
        for mode in ("realtime", "realtime-large", "standing", "concurrent", "sequential", "fork"):
            with self.subTest(mode=mode):
                child, _ = self.with_cat(options=["--mode", mode])
                answer = self.now(child.pid)
                # Without full userfaultfd (an ordinary user, most often) fork takes their place.
                self.assertIn(answer["mode"], [mode, "fork"] if os.geteuid() != 0 else [mode])
                self.assertEqual(answer["members"], 2)
                self.assertEqual(self.run_ckpt("verify", answer["job"]).returncode, 0)
                os.kill(child.pid, signal.SIGKILL)


class Busy(Job):
    def test_processes_born_and_dying(self):
        for how in ("fork", "fork-exec", "vfork", "spawn", "system", "popen", "clone", "syscall", "raw", "raw-vfork"):
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

        def coordinators():
            try:
                with open(os.path.join(self.images, "ckpt_rt.log")) as f:
                    return [line.split(" pid ")[1].split(":")[0] for line in f if ": job " in line]
            except OSError:
                return []
        # One that nobody has heard of for two intervals, since the machine stood still, is no first process any more: for once.
        wait_for(f"six checkpoints in a row by the first process, {child.pid}", lambda: coordinators()[-6:] == [str(child.pid)] * 6,
                 said=lambda: f"led by {coordinators()}")
        # The first process goes; the others have one timer again.
        os.kill(child.pid, signal.SIGKILL)
        before = self.newest()
        wait_for("checkpoints of those that are left", lambda: self.newest() >= before + 2)
        for pid in members[1:]:
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    unittest.main()
