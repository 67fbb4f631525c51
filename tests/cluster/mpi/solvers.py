"""Solvers by MPI over three hosts, in C, Fortran and Python, and one file that all ranks write: checkpointed, killed on all hosts, brought
back on others, on fewer, where they were, on one, and on three again: five generations. What they print is compared with an uninterrupted run.
  CKPT_LONG=1 solvers.py [OpenMpi|Mpich] [-v]
"""
import os
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from over_hosts import CKPT, OverHosts, clean, wait_for  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
HOSTS = "h1,h2,h3"
# (tenth in which a checkpoint is taken, hosts on which it comes back)
LIVES = ((1, "h4,h5,h6"), (2, "h2,h1"), (4, HOSTS), (5, "h6"), (7, "h3,h1,h5"))


class Solvers(OverHosts):
    count = 6

    def setUp(self):
        if os.environ.get("CKPT_LONG") != "1":
            self.skipTest("CKPT_LONG=1")
        super().setUp()
        os.mkdir(self.dir + "/t")

    def compiled(self, compiler, source):
        if shutil.which(compiler) is None:
            self.skipTest(f"not here: {compiler}")
        program = self.dir + "/" + source.split(".")[0]
        subprocess.run([compiler, "-O1", "-o", program, os.path.join(HERE, source)], check=True, cwd=self.dir)
        return program

    def uninterrupted(self, program):
        """On this machine, without us."""
        done = subprocess.run([*self.alone, *program], capture_output=True, text=True, timeout=300, env=clean(), cwd=self.dir, check=False,
                              stdin=subprocess.DEVNULL)
        self.assertTrue(done.stdout.endswith("done\n"), done.stdout + done.stderr)
        return done.stdout

    def lives(self, *program):
        whole = self.uninterrupted(program)
        lines = whole.splitlines(keepends=True)
        job, name, said = self.run_job(*self.words(), *program, hosts=HOSTS), "out", []
        text = lambda: self.texts[name][0].decode()
        for life, (tenth, hosts) in enumerate(LIVES):
            def is_there():
                self.assertIsNone(job.poll(), self.said(name))
                return lines[tenth - 1] in text()
            wait_for(lambda: f"tenth {tenth} of {name}: {text()}", is_there)
            self.leads(job.pid)
            self.now(job.pid)
            self.kill_all(job)
            said.append(text())
            name = f"life {life + 2}"
            job = self.start([os.environ["CKPT_RESTART"], self.images, "--hosts", hosts, "--launch", self.hosts.launch], name)
        wait_for(lambda: "the end: " + text(), lambda: text().endswith("done\n") or job.poll() is not None)
        if self.ends:
            self.assertEqual(job.wait(240), 0, self.said(name))
        else:
            self.kill_all(job)
        said.append(text())
        covered = 0
        for part in said:
            at = whole.find(part)
            self.assertTrue(0 <= at <= covered, (part, whole))
            covered = max(covered, at + len(part))
        self.assertEqual(covered, len(whole), said)


    def python(self, library, rounds, path=None):
        words = [*(("env", "PYTHONPATH=" + path) if path is not None else ()), "/usr/bin/python3"]
        found = subprocess.run([*words, "-c", "from mpi4py import MPI; print(MPI.Get_library_version())"], check=False, capture_output=True, text=True, env=clean())
        if library not in found.stdout:
            self.skipTest("not here: mpi4py of /usr/bin/python3 above " + library)
        self.lives(*words, os.path.join(HERE, "heat.py"), rounds)


class OpenMpi(Solvers):
    ends = True
    alone = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-np", "6"]

    def words(self):
        return ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--mca", "btl", "vader,tcp,self", "--mca", "pml", "ob1",
                "--mca", "mpi_yield_when_idle", "1", "--mca", "orte_tmpdir_base", self.dir + "/t", "-H", "h1:2,h2:2,h3:2", "-np", "6"]

    def test_fortran(self):
        self.lives(self.compiled("mpif90.openmpi", "heat.f90"), "8000")

    def test_python(self):
        self.python("Open MPI", "600")

    def test_file(self):
        self.lives(self.compiled("mpicc.openmpi", "mpi_file.c"), "400", self.dir + "/file")


class Mpich(Solvers):
    # MPI_Finalize of 4.0.2 hangs now and then, without ckpt too (mpi.py).
    ends = False
    alone = ["mpirun.mpich", "-n", "3"]

    def words(self):
        return ["mpirun.mpich", "-hosts", "h1:1,h2:1,h3:1", "-n", "3"]

    def test_fortran(self):
        self.lives(self.compiled("mpif90.mpich", "heat.f90"), "4000")

    def test_python(self):
        """The distribution's mpi4py is above Open MPI. MPICC=mpicc.mpich pip install --no-binary mpi4py --target DIR mpi4py makes this one; CKPT_MPI4PY=DIR."""
        self.python("MPICH", "400", os.environ.get("CKPT_MPI4PY", "/nonexistent"))

    def test_file(self):
        self.lives(self.compiled("mpicc.mpich", "mpi_file.c"), "300", self.dir + "/file")


if __name__ == "__main__":
    unittest.main()
