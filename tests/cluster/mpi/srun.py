"""`ckpt run -- srun`: ckpt-srun in the place of srun, over several hosts, without Slurm: its variables are set here.
  srun.py Streams [-v]    what tasks are told, their streams and ends
  srun.py PmixRanks [-v]  the same of Open MPI, by srun --mpi=pmix
  srun.py Ranks [-v]      MPICH started by srun --mpi=pmi2: killed on all hosts, brought back on others
"""
import ctypes.util
import os
import shutil
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import mpi  # noqa: E402
from allocations import Allocation  # noqa: E402
from over_hosts import CKPT, ON, OverHosts, clean, wait_for  # noqa: E402


class Streams(Allocation, OverHosts):
    count = 3

    def setUp(self):
        super().setUp()
        self.allocate("h[1-3]", "2(x3)", SLURM_NTASKS="6")

    def srun(self, *words, code=0, inside=None):
        """By `ckpt run`, or in a script of the job, in which srun is found by its name."""
        program = ["srun", *words] if inside is None else ["sh", "-c", inside]
        job = self.run_job(*program, hosts="h1,h2,h3")
        self.assertEqual(job.wait(240), code, self.said())
        self.said()
        return [t.decode() for t in self.texts["out"]]

    def test_what_tasks_are_told(self):
        look = ("echo $SLURM_PROCID $SLURM_LOCALID $SLURM_NODEID $SLURMD_NODENAME `hostname` $SLURM_NTASKS $SLURM_STEP_ID $SLURM_GTIDS "
                "$SLURM_TASKS_PER_NODE $SLURM_CPUS_ON_NODE $PMI_RANK $PMI_SIZE; [ $SLURM_TASK_PID = $$ ] && [ -e /proc/self/fd/$PMI_FD ]")
        out, err = self.srun("-l", "sh", "-c", look)
        self.assertEqual(err, "")
        self.assertEqual(sorted(out.splitlines()),
                         [f"{t}: {t} {t % 2} {t // 2} h{t // 2 + 1} h{t // 2 + 1} 6 0 {t // 2 * 2},{t // 2 * 2 + 1} 2(x3) 2 {t} 6" for t in range(6)])

    def test_in_a_script(self):
        """Steps have numbers, nodes are chosen, a task's standard input is a pipe's, exit codes are the largest."""
        script = ("srun -N2 -n2 -w h2,h3 -m cyclic sh -c 'echo $SLURM_STEP_ID $SLURM_NODEID `hostname`'; echo $?;"
                  "seq 200000 | srun -n4 --mpi=none sh -c '[ -z \"$PMI_FD\" ] && sum' | sort | uniq -c;"
                  "srun -n4 -o out.%t sh -c 'echo $SLURM_PROCID $SLURM_STEP_ID; exit $SLURM_PROCID'; echo $?;"
                  "srun -n2 sh -c 'kill -9 $$'; echo $?; srun -n3 -i1 head -c2 <<< ab || srun -n1 -c1 true;"
                  # Nobody reads on: the task is told, and what it says elsewhere is heard.
                  "srun -n1 sh -c 'yes; seq 20000 >&2; echo ended >&2' 2> heard | head -n1; tail -n1 heard")
        out, err = self.srun(inside=script.replace("<<< ab", "< /etc/passwd"))
        said = out.splitlines()
        self.assertEqual(sorted(said[:2]), ["0 0 h2", "0 1 h3"])
        self.assertEqual(said[2], "0")
        self.assertEqual(len([line for line in said if line.strip().startswith("4 ")]), 1, out)
        self.assertEqual(said[4:6], ["3", "137"], out)
        self.assertEqual(said[6:], ["roy", "ended"], out)
        for t in range(4):
            with open(f"{self.dir}/out.{t}", encoding="ascii") as f:
                self.assertEqual(f.read(), f"{t} 2\n")
        self.assertIn("srun: error: h1: task 1: Exited with exit code 1", err)
        self.assertEqual(err.count("Killed"), 2, err)

    def test_what_a_script_hands_on(self):
        """To tasks on all hosts: the mask of new files, limits, and what it preloads."""
        script = ("umask 027; ulimit -S -c 0; export LD_PRELOAD=libm.so.6:$LD_PRELOAD;"
                  "srun -n3 sh -c 'echo `umask` `ulimit -S -c` $LD_PRELOAD'")
        out, err = self.srun(inside=script)
        said = out.splitlines()
        self.assertEqual(len(said), 3, err)
        for line in said:
            self.assertTrue(line.startswith("0027 0 libm.so.6:"), line)
            self.assertEqual(line.count("libckpt_rt.so"), 1)

    def test_refused_before_the_start(self):
        for words, said in ((["--pty", "bash"], "--pty"), (["--mpi=lam", "./app"], "--mpi=lam"), (["-N4-5", "./app"], "more nodes"), (["-w", "h9", "./app"], "h9 is not in this allocation"),
                            (["-n2"], "no program given")):
            done = subprocess.run([CKPT, "run", "--hosts", "h1,h2,h3", "--launch", self.hosts.launch, "--dir", self.images, "--", "srun", *words],
                                  capture_output=True, text=True)
            self.assertIn(done.returncode, (64, 78))
            self.assertIn(said, done.stderr)
            self.assertFalse(os.path.exists(self.images))

    def test_signals(self):
        """One that srun gets goes to the tasks; an end of one task ends all with --kill-on-bad-exit."""
        script = (f"srun -n3 sh -c 'trap \"echo got; exit 4\" USR1; echo here; touch {self.dir}/$SLURM_PROCID; while :; do sleep 0.05; done' & "
                  f"while [ `ls {self.dir}/[012] 2>/dev/null | wc -l` != 3 ]; do sleep 0.05; done; kill -USR1 $!; wait $!; echo $?; "
                  "srun -K -n3 sh -c '[ $SLURM_PROCID = 1 ] && exit 5; sleep 1000'; echo $?")
        out, err = self.srun(inside=script)
        # What one task says may overtake what another one has said.
        said = out.splitlines()
        self.assertEqual((sorted(said[:6]), said[6:]), (["got"] * 3 + ["here"] * 3, ["4", "143"]), err)
        self.assertIn("Terminating StepId=77.1", err)

    def command(self, *words, code=0, **variables):
        done = subprocess.run(words, capture_output=True, text=True, cwd=self.dir, env={**clean(), **variables}, timeout=240, check=False)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def program(self, name, text):
        path = f"{self.dir}/{name}"
        with open(path, "w", encoding="ascii") as f:
            f.write("#!/bin/sh\n" + text)
        os.chmod(path, 0o700)
        return path

    def test_mpirun_takes_the_nodes(self):
        """As srun does, and the restart too, without a word of hosts; not in a task of srun, which is one of many."""
        self.images += " it's $(touch expanded)"
        launcher = self.program("mpirun", f"echo ${{CKPT_HOSTS#*:}}; [ -z \"$CKPT_HOSTS\" ] || {ON} h3 hostname; touch there; until [ -e go ]; do sleep 0.05; done; echo end\n")
        run = [CKPT, "run", "--launch", self.hosts.launch, "--dir", self.images, "--", launcher, "-np", "6", "./app"]
        os.environ["SLURM_STEP_ID"] = "4294967291"  # of a batch script
        self.addCleanup(os.environ.pop, "SLURM_STEP_ID")
        job = self.start(run)
        wait_for(self.said, lambda: os.path.exists(self.dir + "/there") or job.poll() is not None)
        self.leads(job.pid)
        self.assertEqual(self.now(job.pid)["hosts"], 3)
        self.kill_all(job)
        self.assertEqual(self.texts["out"][0], b"h1\nh3\n")
        # As ssh does it: a shell there reads the words.
        shell = self.program("shell", f'host=$1; shift; exec {self.hosts.launch.format(host="$host")} sh -c "$*"\n')
        restart = [os.environ["CKPT_RESTART"], "--launch", shell, self.images]
        self.assertIn("all that a restart needs is on h1, h2, h3", self.command(*restart, "--check", "--eager", "--trust"))
        self.assertIn("name hosts for it", self.command(*restart, "--check", code=64, SLURM_STEP_ID="0"))
        self.assertIn("--json", self.command(*restart, "--json", code=64))
        self.assertFalse([w for name in self.hosts.names for _, w in self.hosts.processes(name) if "./app" in w])
        self.program("go", "")
        again = self.start(restart, "again")
        self.assertEqual(again.wait(240), 0, self.said("again"))
        self.said("again")
        self.assertEqual(self.texts["again"][0], b"end\n")
        self.assertFalse(os.path.exists(self.dir + "/expanded"))
        # Of a part that is gone a check says so.
        shutil.rmtree(self.images + "/h2")
        self.assertIn("h2: the part of h2 is not there", self.command(*restart, "--check", code=66))
        self.assertEqual(self.command(*run[:-1], SLURM_STEP_ID="0"), "\nend\n")

    def test_checked(self):
        """What can be saved, and what not, is said before a job is started that matters."""
        on = ["--hosts", "h1,h2,h3", "--launch", self.hosts.launch, "--"]
        check, late, at_work = ([CKPT, "check", *when, *on] for when in ((), ("--after", "1000s"), ("--when", self.dir + "/at_work")))

        def all_at_work(tasks):
            """What the first task waits for, and says: until then connections of the step may just be made."""
            there = " && ".join(f"[ -e there.{t} ]" for t in range(tasks))
            return f"if [ $SLURM_PROCID = 0 ]; then until {there}; do sleep 0.05; done; : > at_work; fi"
        said = self.command(*at_work, "srun", "-n6", "sh", "-c", f": > there.$SLURM_PROCID; {all_at_work(6)}; exec sleep 1234")
        self.assertIn("a job on 3 hosts", said)
        self.assertIn("all that it needs is on the hosts", said)
        made = ["at_work", *(f"there.{t}" for t in range(6))]
        self.assertEqual(sorted(os.listdir(self.dir)), made)
        for name in made:
            os.unlink(f"{self.dir}/{name}")
        self.assertFalse([w for name in self.hosts.names for _, w in self.hosts.processes(name) if "sleep 1234" in w])
        self.assertIn("--pty", self.command(*check, "srun", "--pty", "sh", code=78))
        self.assertIn("it had ended before the checkpoint, with 3", self.command(*late, "srun", "-n2", "sh", "-c", "exit 3", code=75))
        with open(self.dir + "/alone.c", "w", encoding="ascii") as f:
            f.write("#include <fcntl.h>\n#include <unistd.h>\nint main(int n, char** words) { if (n > 1) close(creat(words[1], 0600)); pause(); }\n")
        subprocess.run(["cc", "-static", "-o", self.dir + "/alone", self.dir + "/alone.c"], check=True)
        for words in (["srun", "-n2", "./alone"], ["mpirun", "-np", "2", "./alone"]):
            self.assertIn("statically linked", self.command(*check, *words, code=78))
        self.assertIn("no program given", self.command(CKPT, "check", "--hosts", "h1,h2", code=64))
        # Words that are no programs: values of options, arguments.
        launcher = self.program("mpirun", "exit 0\n")
        for words in (["--report-bindings", "./sim", "./alone"], ["-genv", "A", "./alone", "./sim"], ["--not-known", "sh", "./alone"]):
            self.command(CKPT, "run", "--dir", "images", "--", launcher, "-np", "2", *words, SLURM_STEP_ID="0")
        # Whom only the checkpoint finds.
        self.assertIn("alone", self.command(*at_work, "srun", "-n2", "sh", "-c", f"./alone there.$SLURM_PROCID & {all_at_work(2)}; wait", code=78))


class Ranks(Allocation, mpi.Mpi):
    count, hosts_of_job = 6, "h1,h2,h3"
    launcher, compiler = "mpicc.mpich", "mpicc.mpich"
    rounds, ranks = 1000, 3
    ends = mpi.Mpich.ends

    def setUp(self):
        super().setUp()
        self.allocate("h[1-3]", "2(x3)", SLURM_NTASKS="3")

    def words(self):
        # A script of the job, as long as its step runs: it is restarted with it, and has the step's exit code.
        return ["sh", "-c", 'srun --mpi=pmi2 "$@"; code=$?; echo "step $SLURM_JOB_ID ended" >&2; exit $code', "sh"]

    def test_on_others(self):
        self.live_and_die([1, 5], ["h4,h5,h6", "h2,h3,h1"], 1)


@unittest.skipIf(ctypes.util.find_library("pmix") is None, "libpmix is not here")
class PmixRanks(Ranks):
    """Open MPI, whose ranks find the PMIx server of ckpt-srun on their node."""
    launcher, compiler = "mpicc.openmpi", "mpicc.openmpi"
    rounds, ranks = 3000, 6
    ends = True

    def setUp(self):
        super().setUp()
        self.allocate("h[1-3]", "2(x3)", SLURM_NTASKS="6")

    def words(self):
        told = f"OMPI_MCA_btl=vader,tcp,self OMPI_MCA_pml=ob1 OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_orte_tmpdir_base={self.dir}/t"
        return ["sh", "-c", f"export {told}; " + 'srun --mpi=pmix "$@"; code=$?; echo "step $SLURM_JOB_ID ended" >&2; exit $code', "sh"]


if __name__ == "__main__":
    unittest.main()
