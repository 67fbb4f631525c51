"""examples/slurm/restartable.sbatch under a Slurm of four nodes, each in namespaces of its own: an MPI program starts on three, a node
goes into maintenance, the job is put back into the queue and goes on on the three others. Skipped where Slurm is not installed."""
import os
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import mpi  # noqa: E402
from over_hosts import CKPT, wait_for  # noqa: E402

TOOLS = ("slurmctld", "slurmd", "munged", "sbatch", "scontrol")
MISSING = [t for t in TOOLS if shutil.which(t, path=os.environ.get("PATH", "") + ":/usr/sbin") is None]
HERE = os.path.dirname(os.path.abspath(__file__))

CONF = """ClusterName=tests
SlurmctldHost={controller}({network}.254)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={dir}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={dir}/state
SlurmdSpoolDir={dir}/spool.%n
SlurmctldPidFile={dir}/slurmctld.pid
SlurmdPidFile={dir}/slurmd.%n.pid
SlurmctldLogFile={dir}/slurmctld.log
SlurmdLogFile={dir}/slurmd.%n.log
SlurmctldPort={port}
SlurmdPort={next_port}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/linear
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SchedulerParameters=batch_sched_delay=0,sched_interval=1
SlurmdParameters=config_overrides
KillWait=5
{nodes}
PartitionName=all Nodes=ALL Default=YES State=UP
"""


@unittest.skipUnless(mpi.LONG, "CKPT_LONG=1")
@unittest.skipIf(MISSING, "not here: " + " ".join(MISSING))
class Slurm(mpi.OpenMpi):
    count = 4

    def setUp(self):
        super().setUp()
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(("CKPT", "SLURM", "OMPI"))}
        self.environment["CKPT_STOP_TIMEOUT"] = "30s"  # of one thread: the host may take a processor away for seconds
        self.environment.update(SLURM_CONF=self.dir + "/slurm.conf", PATH=os.path.dirname(CKPT) + ":/usr/sbin:" + os.environ["PATH"])
        self.daemons = []
        self.addCleanup(self.end_daemons)
        self.start_slurm()

    def daemon(self, *words):
        with open(self.dir + "/daemons.log", "ab") as log:
            self.daemons.append(subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment))

    def end_daemons(self):
        for d in self.daemons:
            d.terminate()
        for d in self.daemons:
            try:
                d.wait(10)
            except subprocess.TimeoutExpired:
                d.kill()
                d.wait()

    def start_slurm(self):
        os.makedirs(self.dir + "/munge", 0o700)
        with open(self.dir + "/munge/key", "wb", opener=lambda p, f: os.open(p, f, 0o600)) as f:
            f.write(os.urandom(64))
        os.mkdir(self.dir + "/state")
        os.chmod(self.dir, 0o755)
        self.daemon("munged", "--foreground", "--force", "--key-file", self.dir + "/munge/key", "--socket", self.dir + "/munge.socket",
                    "--pid-file", self.dir + "/munge/pid", "--log-file", self.dir + "/munge/log", "--seed-file", self.dir + "/munge/seed")
        wait_for("munged", lambda: os.path.exists(self.dir + "/munge.socket"))
        nodes = "\n".join(f"NodeName={n} NodeAddr={self.hosts.address(n)} CPUs=2 State=UNKNOWN" for n in self.hosts.names)
        port = 20000 + os.getpid() % 6000 * 2  # below those that the kernel gives to connections
        with open(self.dir + "/slurm.conf", "w", encoding="ascii") as f:
            f.write(CONF.format(controller=os.uname().nodename.split(".")[0], network=self.hosts.network, dir=self.dir, port=port, next_port=port + 1,
                                nodes=nodes))
        self.daemon("slurmctld", "-D")
        for name in self.hosts.names:
            self.daemon(*self.hosts.enter(name), "slurmd", "-D", "-N", name)
        wait_for("four idle nodes", lambda: self.slurm("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == "4")

    def slurm(self, *words):
        return subprocess.run(words, capture_output=True, text=True, env=self.environment, cwd=self.dir, check=False, timeout=240).stdout

    def output(self, job):
        try:
            with open(f"{self.dir}/slurm-{job}.out", encoding="ascii", errors="replace") as f:
                return f.read()
        except OSError:
            return ""

    def log(self):
        text = ""
        for name in sorted(os.listdir(self.dir)):
            if name.endswith((".log", ".out")):
                with open(f"{self.dir}/{name}", encoding="ascii", errors="replace") as f:
                    text += f"== {name}\n" + f.read()[-1500:]
        return text

    def comes_to_tenth(self, job, tenth):
        line = f"round {tenth * (self.rounds // 10 + 1)}\n"
        try:
            wait_for(f"tenth {tenth}", lambda: line in self.output(job))
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.log()}") from error

    def state(self, job):
        return self.slurm("squeue", "-h", "-j", job, "-o", "%T").strip()

    def batch_words(self):
        words = [w for w in self.words() if not w.startswith("h1:")]
        words.remove("-H")
        return words

    def test_put_back_and_on_other_nodes(self):
        script = os.path.join(HERE, "../../../examples/slurm/restartable.sbatch")
        self.compile_program()
        self.allow(3)
        words = self.batch_words()
        job = self.slurm("sbatch", "--parsable", script, *words, "./ring", str(self.rounds), self.dir + "/go").strip()
        self.comes_to_tenth(job, 1)
        self.slurm("scontrol", "update", "nodename=h1", "state=drain", "reason=maintenance")
        self.slurm("scancel", "--batch", "--signal=USR1", job)
        self.allow(10)
        try:
            wait_for("the end of the job", lambda: " ranks\n" in self.output(job))
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.slurm('scontrol', 'show', 'job', job)} {self.log()}") from error
        whole = mpi.expected(self.rounds, self.ranks)
        said = [line for line in self.output(job).splitlines(True) if line.startswith(("round", "total"))]
        self.assertEqual("".join(dict.fromkeys(said)), whole, self.log())
        self.assertIn("NodeList=h[2-4]\n", self.slurm("scontrol", "show", "job", job), self.log())


COMPARED = r"""#!/bin/bash
#SBATCH --nodes=3 --ntasks=6
# The same line to Slurm's srun and, after `ckpt run --`, to ours.
both() {
  echo "== $*"; "$@" > real 2> real.err; echo "$?" >> real
  ckpt run --dir "$PWD/images" -- "$@" > ours 2> ours.err; echo "$?" >> ours
  # Which tasks are named in one line is a matter of time.
  for f in real ours; do sort $f > $f.sorted; done
  for f in real.err ours.err; do grep -v 'StepId=\|STEP\|Job step aborted' $f | sed 's/: tasks\? [0-9,-]*:/:/' | sort -u > $f.sorted; done
  cmp -s real.sorted ours.sorted && cmp -s real.err.sorted ours.err.sorted ||
    { echo "DIFFER"; diff real.sorted ours.sorted; diff real.err.sorted ours.err.sorted; }
}
both srun -l sh -c 'echo $SLURM_PROCID $SLURM_LOCALID $SLURM_NODEID $SLURMD_NODENAME $SLURM_GTIDS $SLURM_NTASKS $SLURM_NNODES; exit $SLURM_PROCID'
both srun -N3 -n5 -m cyclic -l sh -c 'echo $SLURM_NODEID $SLURM_TASKS_PER_NODE $SLURM_DISTRIBUTION $SLURM_STEP_NODELIST $SLURM_CPUS_ON_NODE $PWD'
both srun -N2 -n4 -w h2,h3 sh -c 'hostname; echo $SLURM_JOB_NODELIST $SLURM_JOB_ID $SLURM_JOB_NUM_NODES $SLURM_STEP_NUM_TASKS'
both srun -N1 -n2 -r1 sh -c 'hostname; kill -9 $$'
both srun -N2 -n2 -K sh -c '[ $SLURM_PROCID = 1 ] && exit 5; exec sleep 1000'
both srun -N2 -n2 -l printf 'no end'
both srun -N1 -n1 --export=A=b,PWD /bin/sh -c 'echo $A $PWD ${HOME-none}'
both srun -N1 -n2 -i1 --export=NONE,A=b /bin/sh -c 'echo $A ${HOME-none} $SLURM_PROCID; /bin/cat'
srun env > real; ckpt run --dir "$PWD/images" -- srun env > ours
for f in real ours; do grep -o '^\(SLURM\|PMI\)[A-Z_]*' $f | sort -u > $f.names; done
# Where its own srun listens, and what is of heterogeneous jobs.
echo "missing:" $(comm -23 real.names ours.names | grep -v 'SLURM_\(SRUN_COMM_.*\|LAUNCH_NODE_IPADDR\|STEP_LAUNCHER_PORT\|.*_PACK_GROUP_\)$')
echo "all compared"
# mpirun has the nodes too, with nothing said of hosts; and a trial is made on all of them.
for mpirun in "mpirun.openmpi --allow-run-as-root --mca orte_tmpdir_base $PWD/t" mpirun.mpich; do
  echo "mpirun:" $(ckpt run --dir "$PWD/images" -- $mpirun -np 6 hostname | sort | uniq -c)
done
ckpt check --after 200ms -- srun sleep 1000; echo "checked: $?"
"""


class SlurmSrun(Slurm):
    """srun, of whose place ckpt-srun comes."""
    launcher, compiler = "mpicc.mpich", "mpicc.mpich"
    rounds, ranks = 1000, 3
    ends = mpi.Mpich.ends

    def batch_words(self):
        return ["srun", "--mpi=pmi2"]

    def test_as_slurms(self):
        with open(self.dir + "/compared", "w", encoding="ascii") as f:
            f.write(COMPARED)
        job = self.slurm("sbatch", "--parsable", "--wait", self.dir + "/compared").strip()
        said = self.output(job)
        self.assertNotIn("DIFFER", said)
        self.assertIn("missing:\nall compared\n", said)
        self.assertEqual(said.count("mpirun: 2 h1 2 h2 2 h3\n"), 2, said)
        self.assertIn("a job on 3 hosts", said)
        self.assertIn("checked: 0\n", said)


for name in dir(mpi.OpenMpi):
    if name.startswith("test_"):
        setattr(Slurm, name, None)  # without Slurm they are mpi.py's

if __name__ == "__main__":
    unittest.main(argv=[__file__, *(sys.argv[1:] or ["Slurm", "SlurmSrun"]), "-v"])
