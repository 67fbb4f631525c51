"""Parts in the memory of keepers, with redundancy: hosts die, and the job comes back from those that are left."""
import glob
import json
import os
import subprocess
import unittest

from hosts_support import DAMAGED, IO, NOT_FOUND, NUMBERS, UNAVAILABLE, WRITES, CKPT, KeptHosts, clean, wait_for

POINTS = ("exchange.begun", "exchange.listens", "exchange.told", "exchange.batch", "exchange.checks", "exchange.half", "exchange.named")


class Redundancy(KeptHosts):
    count = 5

    def test_a_host_dies_and_a_spare_takes_its_place(self):
        job = self.run_kept("--redundancy", "parity")
        answer = self.now(job.pid)
        self.assertEqual(answer["hosts"], 3)
        first = [len(self.held(h)) for h in ("h1", "h2", "h3")]
        self.assertEqual(first, [1, 1, 1])
        # No image is on a disk.
        self.assertEqual(glob.glob(self.images + "/**/*.ckpt", recursive=True), [])
        self.now(job.pid)
        self.check_exchanges_stay(job)
        self.end_job(job)
        self.hosts.crash("h2")
        second = self.bring_back("h1,h4,h3", "second")
        self.running("h4", NUMBERS)
        self.leads(second.pid)
        self.assertIn("the part of h2 was computed", self.said("second"))
        # Protected again, on the hosts of now: another may be lost.
        self.now(second.pid)
        self.end_job(second)
        self.lose_keeper("h3")
        third = self.bring_back("h1,h4,h3", "third")
        self.running("h3", "/usr/bin/python3")
        self.check_end(third, "third")

    def exchanges(self):
        return [[pid for pid, words in self.hosts.processes(h) if words.endswith("keeper-exchange")] for h in ("h1", "h2", "h3")]

    def connections(self):
        return [self.hosts.run(h, "sh", "-c", f"ls -l /proc/{pids[0]}/fd | grep -o 'socket:.*'").stdout for h, pids in zip(("h1", "h2", "h3"), self.exchanges())]

    def check_exchanges_stay(self, job):
        """What makes checks serves one checkpoint after the other, with the connections that it has; where it ends in between, another one does."""
        before, connections = self.exchanges(), self.connections()
        self.assertEqual([len(pids) for pids in before], [1, 1, 1])
        self.now(job.pid)
        self.assertEqual(self.exchanges(), before)
        self.assertEqual(self.connections(), connections)
        self.hosts.run("h2", "kill", "-9", str(before[1][0]))
        wait_for("its end", lambda: self.exchanges()[1] == [])
        self.now(job.pid)
        after = self.exchanges()
        self.assertEqual([after[0], after[2], len(after[1])], [before[0], before[2], 1])

    def parts_of(self, host):
        """Of the host's keeper: checkpoint, bytes of its part, bytes of its checks."""
        pid = self.keeper_pid(host)
        checks = self.hosts.run(host, "sh", "-c", f"stat -c '%n %s' /proc/{pid}/fd/*/*.checks").stdout.split()
        sizes = {os.path.basename(name)[:-len(".checks")]: int(size) for name, size in zip(checks[::2], checks[1::2])}
        return [(one["name"], one["bytes"], sizes[one["name"][:-len(".job")]]) for one in sorted(self.held(host), key=lambda one: one["name"])]

    def check_first_line(self, host):
        """Of checks: their sums are over it, and checks of older binaries are computed again. It stays as it is."""
        lines = self.hosts.run(host, "sh", "-c", f"head -qn1 /proc/{self.keeper_pid(host)}/fd/*/*.checks").stdout.splitlines()
        self.assertEqual([set(json.loads(line)) for line in lines], [{"scheme", "hosts", "self", "part"}] * 3)

    def test_increments(self):
        """Checks are made of what was written since. Any host may be lost, with all that its newest part builds on."""
        job = self.run_kept("--redundancy", "parity", "--increments", "2")
        self.all_wait()
        for _ in range(3):
            self.now(job.pid)
        for host in ("h1", "h2", "h3"):
            parts = self.parts_of(host)
            self.assertEqual(len(parts), 3, parts)
            self.assertLess(parts[2][2], parts[0][2] / 2, parts)
            self.check_first_line(host)
        # Its program writes nothing.
        self.assertLess(parts[1][1], parts[0][1] / 2, parts)
        self.assertEqual(len(glob.glob(self.images + "/*.hosts")), 3)
        self.end_job(job)
        self.hosts.crash("h2")
        again = self.bring_back("h1,h4,h3", "again")
        self.running("h4", NUMBERS)
        self.leads(again.pid)
        self.assertEqual(self.said("again").count("the part of h2 was computed"), 1)
        # A full one, and what is older goes on all hosts; then increments again, and a full one after two.
        wanted = [1, 2, 3, 1]
        for count in wanted:
            self.now(again.pid)
            # After the answer: nobody waits for it.
            wait_for("older ones go", lambda c=count: len(glob.glob(self.images + "/*.hosts")) == c)
            for host in ("h1", "h4", "h3"):
                wait_for("what is older goes", lambda h=host, c=count: len(self.parts_of(h)) == c)
        self.now(again.pid)
        self.end_job(again)
        self.lose_keeper("h1")
        self.check_end(self.bring_back("h1,h4,h3", "third"), "third")

    def sizes(self, host, suffix):
        pid = self.keeper_pid(host)
        return [int(size) for size in self.hosts.run(host, "sh", "-c", f"stat -c %s /proc/{pid}/fd/*/*.{suffix}").stdout.split()]

    def files_of(self, host):
        """What the .hosts files say of its part."""
        found = []
        for path in sorted(glob.glob(self.images + "/*.hosts")):
            with open(path, encoding="utf-8") as f:
                found.append(json.load(f)["redundancy"]["parts"][int(host[1:]) - 1]["files"])
        return found

    def test_words_travel_and_checks_are_on_one_host(self):
        """Of increments only the words that differ are protected. What is lost of them comes back, and the host with the checks too."""
        job = self.run_kept("--redundancy", "parity", "--checks-on", "h4", hosts="h1,h2,h3,h4", idle=WRITES)
        self.all_wait()
        for _ in range(3):
            self.now(job.pid)
        # Of h4 there is nothing to say: its images are about as long as what differences are made of at all.
        self.assertEqual(len(self.sizes("h3", "words")), 2, (self.held("h3"), self.files_of("h3")))
        with open(sorted(glob.glob(self.images + "/*.hosts"))[-1], encoding="utf-8") as f:
            part = json.load(f)["redundancy"]["parts"][2]
        # Of the images that have some: small ones go whole, and how much was written between two checkpoints is a matter of time.
        words = [(f[1], f[6]) for f in part["files"] if f[6] != 0]
        self.assertLess(sum(w for _, w in words), sum(whole for whole, _ in words) / 4, part)
        self.assertNotEqual(words, [])
        # Of all others there is one cycle of checks: one block and what is before it.
        first = [max(self.sizes(h, "checks")) for h in ("h1", "h2", "h3", "h4")]
        self.assertEqual(first[:3], [(256 + 4) << 10] * 3)
        self.assertGreater(first[3], 4 << 20)
        status = json.loads(self.hosts.run("h4", CKPT, "keeper", "status", "--json").stdout)
        newest = max(status["held"], key=lambda one: one["time_ns"])["name"]
        self.assertEqual(status["redundancy"], [{"newest": newest, "scheme": "parity", "parts": 4, "may_be_lost": 1}])
        self.end_job(job)
        self.lose_keeper("h3")
        again = self.bring_back("h1,h2,h3,h4", "again")
        self.running("h3", "/usr/bin/python3")
        self.leads(again.pid)
        self.assertEqual(len(self.sizes("h3", "words")), 2)
        for _ in range(2):
            self.now(again.pid)
        self.assertEqual(max(self.sizes("h1", "checks")), first[0])
        self.end_job(again)
        self.lose_keeper("h4")
        self.check_end(self.bring_back("h1,h2,h3,h4", "third"), "third")

    def test_full_images_are_compared_too(self):
        """Each is complete in its keeper; what travels is what differs from the first. What is lost comes back from the first and that."""
        job = self.run_kept("--redundancy", "parity", "--increments", "0", "--differences", "all", idle=WRITES)
        self.all_wait()
        for _ in range(3):
            self.now(job.pid)
        wait_for("older ones go", lambda: len(glob.glob(self.images + "/*.hosts")) == 2)
        records = []
        for path in sorted(glob.glob(self.images + "/*.hosts")):
            with open(path, encoding="utf-8") as f:
                records.append(json.load(f))
        self.assertEqual([one["redundancy"]["needs"] for one in records], [[], [records[0]["id"]]])
        ground, newest = (one["redundancy"]["parts"][2] for one in records)
        self.assertEqual(sum(f[6] for f in ground["files"]), 0)
        # Full: the program's memory is in it.
        self.assertGreater(newest["held"], 3 << 20)
        self.assertLess(newest["bytes"], newest["held"] / 2, newest)
        self.end_job(job)
        self.lose_keeper("h3")
        again = self.bring_back(self.on, "again")
        self.running("h3", "/usr/bin/python3")
        self.leads(again.pid)
        # The first of this life travels whole, and the one before it goes with the next.
        for count in (1, 2, 2):
            self.now(again.pid)
            wait_for("older ones go", lambda c=count: len(glob.glob(self.images + "/*.hosts")) == c)
        self.end_job(again)
        self.lose_keeper("h2")
        # The ground is damaged: nothing is computed from it.
        pid = self.keeper_pid("h1")
        [ground, *_] = sorted(self.hosts.run("h1", "sh", "-c", f"ls /proc/{pid}/fd/*/*.checks").stdout.split(), key=os.path.basename)
        byte = self.hosts.run("h1", "sh", "-c", f"dd if={ground} bs=1 skip=5000 count=1 | tee {self.dir}/byte | od -An -tx1").stdout
        self.assertNotEqual(byte, "")
        self.hosts.run("h1", "sh", "-c", f"printf x | dd of={ground} bs=1 seek=5000 conv=notrunc", check=True)
        self.refused(DAMAGED, [".checks", "is not what this checkpoint has there"], self.on)
        self.hosts.run("h1", "sh", "-c", f"dd if={self.dir}/byte of={ground} bs=1 seek=5000 conv=notrunc", check=True)
        self.check_end(self.bring_back(self.on, "third"), "third")

    def test_a_needed_checkpoint_is_damaged(self):
        """The newest is an increment: its full one is refused by its sum before anything is computed from it."""
        job = self.run_kept("--redundancy", "parity")
        for _ in range(2):
            self.now(job.pid)
        pid = self.keeper_pid("h1")
        checks = sorted(self.hosts.run("h1", "sh", "-c", f"ls /proc/{pid}/fd/*/*.checks").stdout.split(), key=os.path.basename)[0]
        self.end_job(job)
        self.hosts.run("h1", "sh", "-c", f"printf x | dd of={checks} bs=1 seek=5000 conv=notrunc", check=True)
        self.lose_keeper("h2")
        self.refused(DAMAGED, [".checks", "is not what this checkpoint has there"], self.on)
        for record in sorted(glob.glob(self.images + "/*.hosts"))[:1]:
            os.unlink(record)
        self.refused(NOT_FOUND, [".hosts"], self.on)

    def test_a_checkpoint_by_the_clock_after_a_restart(self):
        job = self.run_kept("--redundancy", "parity", "--every", "300ms")
        self.now(job.pid)
        self.end_job(job)
        again = self.bring_back(self.on, "again")
        self.running("h2", NUMBERS)
        newest = sorted(glob.glob(self.images + "/*.hosts"))[-1]
        wait_for(lambda: "a checkpoint by the clock\n" + self.said("again"), lambda: sorted(glob.glob(self.images + "/*.hosts"))[-1] > newest)
        self.check_end(again, "again")

    def test_the_head_hears_while_checks_are_made(self):
        """An exchange that stands still: users are heard, the end is obeyed, and no host is in doubt."""
        self.head = ("env", "CKPT_TEST_POINT=exchange.checks@host1.2=stop")
        job = self.run_kept("--redundancy", "parity")
        self.head = ()
        self.now(job.pid)
        asking = [subprocess.Popen([CKPT, "now", "--json", str(job.pid)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   env=clean()) for _ in range(2)]
        [stopped] = self.stopped_at_the_point("h2", *asking)
        # Behind the program, and not where a program that keeps all processors leaves it none (IDL).
        self.assertEqual(self.hosts.run("h2", "ps", "-o", "cls=,ni=", "-p", str(stopped)).stdout.split(), ["B", "10"])
        job.terminate()
        wait_for(lambda: "the end of the head\n" + self.said(), lambda: job.poll() is not None)
        self.assertEqual(job.returncode, 128 + 15)
        self.hosts.run("h2", "kill", "-CONT", str(stopped))
        for one in asking:
            _, error = one.communicate(timeout=240)
            self.assertNotEqual(one.returncode, 0, error)
        self.assertEqual(len(glob.glob(self.images + "/*.hosts")), 1)
        self.check_end(self.bring_back(self.on, "again"), "again")

    def test_each_code_gives_back_what_it_says(self):
        for code, lost in (("rs:1+2", ("h1", "h3")), ("evenodd", ("h2", "h3")), ("rs:2+1", ("h1",))):
            with self.subTest(code=code):
                job = self.run_kept("--redundancy", code)
                self.now(job.pid)
                self.end_job(job)
                for host in lost:
                    self.lose_keeper(host)
                again = self.bring_back(self.on, "again")
                self.check_end(again, "again")
                os.unlink(self.dir + "/go")
                for host in ("h1", "h2", "h3"):
                    self.hosts.run(host, CKPT, "keeper", "stop")
                subprocess.run(["rm", "-rf", self.images], check=True)

    @unittest.skipUnless(os.environ.get("CKPT_LONG"), "minutes: CKPT_LONG=1")
    def test_who_dies_while_checks_are_made(self):
        """At each step of the exchange, each of those that take part, alone and two at a time: the older checkpoint stays and comes back."""
        for point in POINTS:
            for who in ("exchange", "keeper", "agent", "host"):
                for victims in (("h2",), ("h2", "h3")):
                    with self.subTest(point=point, who=who, victims=victims), self.hosts_anew():
                        self.die_at(point, who, victims)

    @unittest.skipUnless(os.environ.get("CKPT_LONG"), "minutes: CKPT_LONG=1")
    def test_who_dies_while_full_images_are_compared(self):
        """The same, with a checkpoint that has a ground."""
        for point in POINTS:
            if point == "exchange.batch":
                continue  # words that differ are one batch
            for who in ("exchange", "keeper", "host"):
                with self.subTest(point=point, who=who), self.hosts_anew():
                    self.die_at(point, who, ("h2",), "--increments", "0", "--differences", "all")

    def give_up(self, before):
        """Each host is told that a checkpoint has failed, and gives its part up, while the head answers. before: what each held."""
        for host, held in before.items():
            wait_for(lambda h=host: f"what {h} gives up: {self.held(h)}", lambda h=host, was=held: self.held(h) == was)

    def kill(self, who, host):
        if who == "host":
            self.hosts.crash(host)
            return
        pids = [pid for pid, words in self.hosts.processes(host) if words.endswith({"exchange": "keeper-exchange"}.get(who, "ckpt agent"))]
        keeper = self.keeper_pid(host)
        for pid in [keeper] if who == "keeper" else [pid for pid in pids if pid != keeper]:
            self.hosts.run(host, "kill", "-9", str(pid))

    def die_at(self, point, who, victims, *options):
        self.head = ("env", f"CKPT_TEST_POINT={point}@host1.2=stop")
        more = ("--differences", "none") if point == "exchange.batch" else ()  # words that differ are one batch
        job = self.run_kept("--redundancy", "parity" if len(victims) == 1 else "rs:1+2", *more, *options)
        self.head = ()
        self.now(job.pid)
        before = {h: self.held(h) for h in ("h1", "h2", "h3")}
        asking = subprocess.Popen([CKPT, "now", str(job.pid)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean())
        [stopped] = self.stopped_at_the_point("h2", asking)
        for victim in reversed(victims):
            self.kill(who, victim)
        if who == "keeper":
            self.hosts.run("h2", "kill", "-CONT", str(stopped))
        _, error = asking.communicate(timeout=240)
        if asking.returncode == 0:
            # Behind its last look whether the keeper is there, an exchange has done its work: the checkpoint counts.
            self.assertEqual((point, who), ("exchange.named", "keeper"))
        else:
            self.assertRegex(error, r"\Ackpt: h\d: [^\n]+\n\Z")
            # Where the job ends with that its agent does.
            self.give_up({h: held for h, held in before.items() if who == "exchange" or h not in victims})
        if who == "exchange":
            self.now(job.pid)  # the job goes on, and the next one is complete
        self.end_job(job)
        where = {"h2": "h4", "h3": "h5"} if who == "host" else {}
        names = ",".join(where.get(h, h) if h in victims else h for h in ("h1", "h2", "h3"))
        self.check_end(self.bring_back(names, "again"), "again")

    @unittest.skipUnless(os.environ.get("CKPT_LONG"), "minutes: CKPT_LONG=1")
    def test_who_dies_while_a_part_is_computed(self):
        """At each step, on the host that gets the part and on one that gives blocks: what was there stays, and the next try has it."""
        for point in POINTS:
            for who in ("exchange", "keeper", "agent"):
                for at in ((1, "h2"), (0, "h1")):
                    if at[0] == 0 and point in ("exchange.checks", "exchange.half", "exchange.named"):
                        continue  # who gives blocks makes no file
                    with self.subTest(point=point, who=who, at=at), self.hosts_anew():
                        self.die_while_computing(point, who, *at)

    def test_nothing_of_a_failed_checkpoint_stays_when_the_job_ends(self):
        """A host dies while checks are made, and the processes of another give nothing up any more: its agent does, when it has ended them."""
        self.head = ("env", "CKPT_TEST_POINT=exchange.told@host1.2=stop")
        job = self.run_kept("--redundancy", "parity")
        self.head = ()
        self.now(job.pid)
        before = {h: self.held(h) for h in ("h1", "h3")}
        with subprocess.Popen([CKPT, "now", str(job.pid)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean()) as asking:
            self.stopped_at_the_point("h2", asking)
            for pid, words in self.hosts.processes("h3"):
                if "ckpt-on --serve" in words or words.startswith("/usr/bin/python3"):
                    self.hosts.run("h3", "kill", "-STOP", str(pid), check=True)
            self.assertEqual(len(self.held("h3")), 2)
            self.hosts.crash("h2")
            _, error = asking.communicate(timeout=240)
        self.assertNotEqual(asking.returncode, 0, error)
        wait_for(lambda: "its end\n" + self.said(), lambda: job.poll() is not None)
        self.give_up(before)
        self.check_end(self.bring_back("h1,h4,h3", "again"), "again")

    def die_while_computing(self, point, who, number, host):
        job = self.run_kept("--redundancy", "rs:1+2")
        self.now(job.pid)
        self.end_job(job)
        self.lose_keeper("h2")
        self.head = ("env", f"CKPT_TEST_POINT={point}@lost{number}.1=stop")
        back = self.bring_back(self.on, "back")
        self.head = ()
        [stopped] = wait_for(lambda: "the point\n" + self.said("back"), lambda: self.stopped(host))
        self.kill(who, host)
        self.hosts.run(host, "kill", "-CONT", str(stopped))
        wait_for(lambda: "its end\n" + self.said("back"), lambda: back.poll() is not None)
        self.assertNotEqual(back.returncode, 0)
        self.assertRegex(self.said("back"), r"h\d: ")
        for h in {"h1", "h3"} - ({host} if who == "keeper" else set()):
            self.assertEqual(len(self.held(h)), 1)
        again = self.bring_back(self.on, "again")
        self.check_end(again, "again")

    def test_too_many_are_gone(self):
        job = self.run_kept("--redundancy", "parity")
        self.now(job.pid)
        self.end_job(job)
        for host in ("h2", "h3"):
            self.lose_keeper(host)
        self.refused(NOT_FOUND, ["h2, h3", "more than parity gives back"], self.on)

    def test_checks_of_another_checkpoint_are_refused(self):
        job = self.run_kept("--redundancy", "parity", "--increments", "0")
        self.now(job.pid)
        pid = self.keeper_pid("h1")
        [checks] = self.hosts.run("h1", "sh", "-c", f"ls /proc/{pid}/fd/*/*.checks").stdout.split()[:1]
        saved = self.hosts.run("h1", "sh", "-c", f"cp {checks} {self.dir}/stale && echo saved").stdout
        self.assertEqual(saved, "saved\n")
        self.now(job.pid)
        self.end_job(job)
        # That of the older stays until the next exchange.
        newer = sorted(self.hosts.run("h1", "sh", "-c", f"ls /proc/{pid}/fd/*/*.checks").stdout.split(), key=os.path.basename)[-1]
        self.assertNotEqual(os.path.basename(newer), os.path.basename(checks))
        self.hosts.run("h1", "cp", f"{self.dir}/stale", newer, check=True)
        self.lose_keeper("h2")
        self.refused(DAMAGED, [".checks", "is not what this checkpoint has there"], self.on)
        # What was begun for the lost host goes.
        self.give_up({"h2": []})

    def test_a_keeper_ends_or_is_full(self):
        job = self.run_kept("--redundancy", "parity", memory="128M")
        self.now(job.pid)
        before = {h: self.held(h) for h in ("h1", "h2", "h3")}
        # Nearly full: the part has room, its checks do not.
        pid = self.keeper_pid("h3")
        free = 128 - 8
        self.hosts.run("h3", "sh", "-c", f"head -c {free}M /dev/zero > $(dirname $(ls -d /proc/{pid}/fd/*/*.job | head -1))/filler", check=False)
        done = self.now(job.pid, ok=False)
        self.assertEqual(done.returncode, IO, done.stderr)
        self.assertIn("memory", done.stderr)
        self.give_up(before)
        self.lose_keeper("h3")
        done = self.now(job.pid, ok=False)
        self.assertEqual(done.returncode, UNAVAILABLE, done.stderr)
        self.assertIn("keeper:main", done.stderr)
        # The job goes on, and what was complete comes back.
        self.end_job(job)
        self.check_end(self.bring_back(self.on, "again"), "again")


if __name__ == "__main__":
    unittest.main()
