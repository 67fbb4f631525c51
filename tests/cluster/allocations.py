"""What is around a job over several hosts: adapters of fast networks there and what the user has told MPI of them, allocations of
Slurm (its variables are set here), and trials of `ckpt check` over hosts."""
import glob
import json
import os
import shutil
import signal
import subprocess
import unittest

import over_hosts
import adapter  # of tests/support: over_hosts has put it into the path
from over_hosts import CKPT, ON, clean, wait_for


class Allocation:
    """Variables of an allocation, as sbatch would have set them."""

    def allocate(self, nodes, cpus, **more):
        wanted = {"SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": nodes, "SLURM_JOB_CPUS_PER_NODE": cpus, "SLURM_MPI_TYPE": "pmi2", **more}
        before = {name: os.environ.get(name) for name in wanted}
        os.environ.update(wanted)

        def put_back():
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
        self.addCleanup(put_back)


class OverHosts(over_hosts.OverHosts):
    def program(self, name, text):
        path = f"{self.dir}/{name}"
        with open(path, "w", encoding="ascii") as f:
            f.write(text)
        os.chmod(path, 0o700)
        return path

    def command(self, *words, code=0, **variables):
        done = subprocess.run(words, capture_output=True, text=True, cwd=self.dir, env={**clean(), **variables}, timeout=240, check=False)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def on(self, hosts="h1,h2"):
        return ["--hosts", hosts, "--launch", self.launch or self.hosts.launch]


@unittest.skipIf(adapter.missing(), str(adapter.missing()))
class Adapters(OverHosts):
    def put_adapter(self, host):
        done = self.hosts.run(host, "sh", "-ec", adapter.lines(self.dir + "/dev") + " true")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_not_used(self):
        """Said before the job starts, and MPI there is told to go without them."""
        self.put_adapter("h2")
        done = subprocess.run([CKPT, "hosts", "--launch", self.hosts.launch, "h1,h2"], capture_output=True, text=True)
        self.assertIn(f"h2 has {adapter.PATH}, which no checkpoint can hold: MPI is told to use TCP", done.stdout)
        look = "echo $OMPI_MCA_smsc $OMPI_MCA_coll $UCX_TLS $FI_PROVIDER"
        job = self.run_job("sh", "-c", f"{look}; {ON} h2 '{look}'")
        self.assertEqual(job.wait(240), 0, self.said())
        self.said()
        self.assertEqual(self.texts["out"][0].decode(), "\n^xpmem,knem ^hcoll tcp,self,sysv,posix,cma tcp\n")
        self.assertEqual(self.texts["out"][1].count(b"MPI is told to use TCP"), 1)

    def test_what_the_user_has_said(self):
        """It stays, of the environment in which the job was started and of MPI's files; what leads to an adapter is refused."""
        self.put_adapter("h1")
        os.mkdir(self.dir + "/.openmpi")
        self.program(".openmpi/mca-params.conf", "# mine\n pml = ob1\ncoll=^tuned\n")
        self.program("ucx.conf", "UCX_TLS=tcp\n")
        self.head = ("env", f"HOME={self.dir}", "OMPI_MCA_btl=^vader,uct", "FI_PROVIDER=sockets", "OMPI_MCA_smsc=cma")
        self.launch = self.hosts.launch + " env -u OMPI_MCA_btl -u FI_PROVIDER -u OMPI_MCA_smsc"  # as ssh does it
        job = self.run_job("sh", "-c", "for v in OMPI_MCA_pml OMPI_MCA_btl OMPI_MCA_coll OMPI_MCA_smsc UCX_TLS FI_PROVIDER; do printenv $v || echo none; done")
        self.assertEqual(job.wait(240), 0, self.said())
        self.said()
        self.assertEqual(self.texts["out"][0].decode().split(), ["none", "^vader,uct,openib,ofi,usnic", "^tuned,hcoll", "cma", "none", "sockets"])
        launcher = self.program("mpirun", "#!/bin/sh\necho started\n")
        run = [CKPT, "run", *self.on(), "--dir", "images", "--"]
        said = self.command(*run, launcher, "--mca", "btl", "openib,self", "-np", "2", "./app", code=78)
        self.assertIn("OMPI_MCA_btl=openib,self (the command line): has MPI use " + adapter.PATH + " of h1", said)
        self.assertNotIn("started", said)
        said = self.command(*run, "sh", "-c", "echo started", UCX_TLS="rc,sm")
        self.assertIn("ckpt: UCX_TLS=rc,sm (the environment) has MPI use", said)
        self.assertIn("started", said)


class Allocations(Allocation, OverHosts):
    count = 3

    def test_what_srun_has_started_is_missed(self):
        """By its name, for its processes would be in no part."""
        os.symlink(shutil.which("sleep"), self.dir + "/srun")
        job = self.run_job("sh", "-c", f"{self.dir}/srun 1001; true")
        wait_for("it", lambda: [p for p, w in self.hosts.processes("h1") if w.startswith(self.dir + "/srun 1001")])
        self.leads(job.pid)
        done = self.now(job.pid, ok=False)
        self.assertEqual(done.returncode, 76, done.stderr)
        self.assertIn("(srun): what it has started is outside of the job", done.stderr)
        self.assertEqual(glob.glob(self.images + "/*.hosts"), [])

    def test_srun_without_an_allocation_is_refused(self):
        job = self.run_job("/usr/bin/srun", "./app")
        self.assertEqual(job.wait(240), 78, self.said())
        self.assertIn("srun: no allocation of Slurm is here", self.said())

    def test_at_a_prompt_on_a_login_node(self):
        """The one node of the allocation is another host: mpirun starts there. On that node itself it starts there too, as always."""
        self.allocate("h2", "2")
        launcher = self.program("mpirun", "#!/bin/sh\nhostname\necho ${CKPT_HOSTS#*:}\n")
        run = [CKPT, "run", "--launch", self.hosts.launch, "--dir", "images", "--", launcher, "-np", "2", "./app"]
        self.assertEqual(self.command(*run), "h2\nh2\n")
        self.assertEqual(self.command(*run, SLURMD_NODENAME="h2"), os.uname().nodename + "\n\n")

    def test_on_this_host_alone(self):
        """Though others are in the allocation: for --to, or because the user wants it."""
        self.allocate("h[1-3]", "2(x3)")
        launcher = self.program("mpirun", "#!/bin/sh\nhostname\n")
        to, program = ("--to", "cat > /dev/null"), ("--", launcher, "-np", "2", "./app")
        self.assertIn("--hosts none", self.command(CKPT, "run", *to, *program, code=78))
        self.assertEqual(self.command(CKPT, "run", "--hosts", "none", *to, *program), os.uname().nodename + "\n")
        self.assertIn("--recover: is of a job over hosts", self.command(CKPT, "run", "--hosts", "none", "--recover", *program, code=64))


class Trials(OverHosts):
    """`ckpt check --hosts`."""

    def check_at_work(self, kind, count, *program, code):
        """What it says of this kind, of a program that makes the file `at_work`."""
        words = [CKPT, "check", "--json", "--when", "at_work", *self.on(), "--", *program]
        done = subprocess.run(words, capture_output=True, text=True, cwd=self.dir, env=clean(), timeout=240, check=False)
        os.remove(self.dir + "/at_work")
        self.assertEqual(glob.glob(self.dir + "/ckpt-check-*"), [])
        self.assertIn("{", done.stdout, done.stderr)
        findings = json.JSONDecoder().raw_decode(done.stdout[done.stdout.index("{"):])[0]["findings"]
        found = [f["detail"] for f in findings if f["id"] == kind]
        self.assertEqual((done.returncode, len(found)), (code, count), findings)
        return found

    def test_all_that_images_say(self):
        """What comes back changed, and each reason why nothing does, of all hosts."""
        self.program("faults.py", "import ctypes, time\nkUserfaultfd = 323\nassert ctypes.CDLL(None).syscall(kUserfaultfd, 0) >= 0\nopen('at_work', 'w').close()\ntime.sleep(1000)\n")
        notes = self.check_at_work("note", 1, "sh", "-c", f"{ON} h2 python3 faults.py", code=0)
        self.assertRegex(notes[0], r"^h2: process \d+ \(python3\): .*userfaultfd")
        # A datagram that is not whole yet (UDP_CORK): nobody can read it.
        self.program("corked.py", "import os, socket, sys, time\nwhile len(sys.argv) > 2 and not os.path.exists(sys.argv[2]): time.sleep(0.01)\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\ns.connect(('127.0.0.1', 5002))\n"
                     "s.setsockopt(socket.IPPROTO_UDP, 1, 1)\ns.send(b'half')\nopen(sys.argv[1], 'w').close()\ntime.sleep(1000)\n")
        found = self.check_at_work("no_restart", 2, "sh", "-c", f"{ON} h2 python3 corked.py there & python3 corked.py at_work there; true", code=76)
        self.assertEqual(sorted(detail[:12] for detail in found), ["h1: process ", "h2: process "], found)

    def test_interrupted(self):
        """Nothing of the trial is left, on any host."""
        trial = self.start([CKPT, "check", "--after", "100s", *self.on(), "--", "sh", "-c", f"{ON} h2 sleep 1234"])

        def sleeps():
            return [p for name in self.hosts.names for p, w in self.hosts.processes(name) if w == "sleep 1234"]
        wait_for(self.said, lambda: sleeps() or trial.poll() is not None)
        self.assertTrue(glob.glob(self.dir + "/ckpt-check-*/images/h2"))
        trial.send_signal(signal.SIGINT)
        self.assertEqual(trial.wait(240), -signal.SIGINT, self.said())
        self.assertEqual(sleeps(), [])
        self.assertEqual(glob.glob(self.dir + "/ckpt-check-*"), [])


if __name__ == "__main__":
    unittest.main()
