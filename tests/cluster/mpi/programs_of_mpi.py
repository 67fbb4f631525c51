"""Programs of MPI as the distribution has them, over three hosts: checkpointed, killed on all hosts, brought back on three others, killed and
brought back on two. Prints a row for each, of which docs/hosts.md has the table.
  CKPT_LONG=1 programs_of_mpi.py [-v]      what is not installed is passed over: gromacs hpcc lammps netpipe-openmpi netpipe-mpich2
"""
import glob
import os
import re
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from over_hosts import OverHosts, wait_for  # noqa: E402

HOSTS, LIVES = "h1,h2,h3", ("h4,h5,h6", "h2,h1")
MELT = """units lj
atom_style atomic
lattice fcc 0.8442
region box block 0 16 0 16 0 16
create_box 1 box
create_atoms 1 box
mass 1 1.0
velocity all create 3.0 87287 loop geom
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
neighbor 0.3 bin
neigh_modify every 20 delay 0 check no
fix 1 all nve
thermo 50
thermo_modify flush yes
run 1500
"""
# 1,488 molecules of water in a box of 3.6 nm.
WATER = """#include "oplsaa.ff/forcefield.itp"
#include "oplsaa.ff/spce.itp"
[ system ]
water
[ molecules ]
"""
CALM = "integrator = steep\nnsteps = 100\n"
DYNAMICS = """integrator = md
dt = 0.002
nsteps = 600
nstlog = 20
nstcalcenergy = 20
coulombtype = PME
gen-vel = yes
gen-temp = 300
gen-seed = 7
"""
CUT_OFF = "rcoulomb = 0.9\nrvdw = 0.9\n"
OPEN_MPI = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--mca", "btl", "vader,tcp,self", "--mca", "pml", "ob1", "--mca",
            "mpi_yield_when_idle", "1"]


class ProgramsOfMpi(OverHosts):
    count = 6

    def setUp(self):
        if os.environ.get("CKPT_LONG") != "1":
            self.skipTest("CKPT_LONG=1")
        super().setUp()
        os.mkdir(self.dir + "/t")

    def needs(self, *programs):
        missing = [p for p in programs if shutil.which(p) is None]
        if missing:
            self.skipTest("not here: " + ", ".join(missing))

    def open_mpi(self, hosts, ranks):
        return [*OPEN_MPI, "--mca", "orte_tmpdir_base", self.dir + "/t", "-H", hosts, "-np", str(ranks)]

    def lives(self, title, words, marks, done, ends=True):
        """marks: what it has said, in all of its lives, when a checkpoint is taken. done: whether all is there in the end."""
        job, name, rows = self.run_job(*words, hosts=HOSTS), "out", []
        for mark, hosts in zip(marks, LIVES):
            wait_for(lambda m=mark, n=name: f"{m} of {n}: {self.said(n)}", lambda m=mark, n=name, j=job: m() or j.poll() is not None)
            self.assertIsNone(job.poll(), self.said(name))
            self.leads(job.pid)
            taken = self.now(job.pid)
            parts = glob.glob(f"{self.images}/h*/*.{taken['id']:06}.job") or glob.glob(f"{self.images}/h*/*.job")
            held = sum(os.lstat(os.path.join(folder, f)).st_blocks * 512 for part in parts for folder, _, files in os.walk(part) for f in files)
            rows.append((taken["stop_ns"] / 1e6, held / 1e6))
            self.kill_all(job)
            name = f"on {hosts}"
            job = self.start([os.environ["CKPT_RESTART"], self.images, "--hosts", hosts, "--launch", self.hosts.launch], name)
        wait_for(lambda: "the end: " + self.said(name), lambda: done(name) or job.poll() is not None)
        if ends:
            self.assertEqual(job.wait(240), 0, self.said(name))
        self.assertTrue(done(name), self.said(name))
        print(f"\n| {title} | " + " | ".join(f"{pause:.0f} ms, {size:.0f} MB" for pause, size in rows) + " |", flush=True)

    def says(self, text):
        return lambda: any(text.encode() in said for both in self.texts.values() for said in both)

    def test_lammps(self):
        """Its energies, line by line, are those of an uninterrupted run."""
        self.needs("lmp", "mpirun.openmpi")
        with open(self.dir + "/in.melt", "w", encoding="ascii") as f:
            f.write(MELT)
        row = re.compile(r"^ +\d+( +-?\d+(\.\d+)?){5} *$", re.M)
        words = lambda hosts: [*self.open_mpi(hosts, 6), "lmp", "-in", "in.melt", "-log", "none"]
        whole = self.run_job(*words("h1:2,h2:2,h3:2"), hosts=HOSTS)
        self.assertEqual(whole.wait(240), 0, self.said())
        self.said()
        rows = [m.group() for m in row.finditer(self.texts.pop("out")[0].decode())]
        self.assertEqual(len(rows), 31)
        shutil.rmtree(self.images)
        of = lambda n: rows[n].rstrip()
        self.lives("LAMMPS 20220106, Lennard-Jones melt, 16,384 atoms | Open MPI 4.1.4, 6", words("h1:2,h2:2,h3:2"),
                   [self.says(of(5)), self.says(of(15))], lambda name: "Total wall time" in self.said(name))
        said = [m.group() for name in self.texts for m in row.finditer(self.texts[name][0].decode())]
        self.assertEqual(sorted(set(said), key=lambda r: int(r.split()[0])), rows)

    def gromacs(self, *words):
        # Its tools are nicer than anything else unless told otherwise.
        done = subprocess.run(["gmx", "-quiet", words[0], "-nice", "0", *words[1:]], cwd=self.dir, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)

    def water(self):
        for name, text in (("topol.top", WATER), ("calm.mdp", CALM + CUT_OFF), ("run.mdp", DYNAMICS + CUT_OFF)):
            with open(f"{self.dir}/{name}", "w", encoding="ascii") as f:
                f.write(text)
        self.gromacs("solvate", "-cs", "spc216.gro", "-box", "3.6", "3.6", "3.6", "-o", "water.gro", "-p", "topol.top")
        self.gromacs("grompp", "-f", "calm.mdp", "-c", "water.gro", "-p", "topol.top", "-o", "calm.tpr")
        self.gromacs("mdrun", "-deffnm", "calm", "-ntmpi", "1", "-ntomp", "1")
        self.gromacs("grompp", "-f", "run.mdp", "-c", "calm.gro", "-p", "topol.top", "-o", "run.tpr")

    def test_gromacs(self):
        """Molecular dynamics with PME: all energies in its log, and where all atoms are in the end, are those of an uninterrupted run, to the last digit.
        The checkpoints are at two instants of each of three runs."""
        self.needs("gmx", "gmx_mpi", "mpirun.openmpi")
        self.water()

        def words(name):
            return [*self.open_mpi("h1:2,h2:2,h3:2", 6), "gmx_mpi", "-quiet", "mdrun", "-s", "run.tpr", "-ntomp", "1", "-npme", "0", "-dlb", "no",
                    "-notunepme", "-reprod", "-v", "-stepout", "20", "-cpt", "1000", "-cpo", f"{name}.cpt", "-g", f"{name}.log", "-c", f"{name}.gro", "-e", f"{name}.edr", "-o", f"{name}.trr"]

        def found(name):
            with open(f"{self.dir}/{name}.log", encoding="ascii", errors="replace") as f:
                energies = [block.split("\n\n")[0] for block in f.read().split("Energies (kJ/mol)")[1:]]
            with open(f"{self.dir}/{name}.gro", encoding="ascii") as f:
                return energies, f.read()
        whole = self.run_job(*words("whole"), hosts=HOSTS)
        self.assertEqual(whole.wait(240), 0, self.said())
        expected = found("whole")
        self.assertGreater(len(expected[0]), 30)
        for number, marks in enumerate(((40, 200), (100, 360), (220, 480))):
            with self.subTest(marks=marks):
                shutil.rmtree(self.images)
                self.texts.clear()
                self.lives("GROMACS 2022.5, 1,488 molecules of water, PME | Open MPI 4.1.4, 6", words(f"run{number}"),
                           [self.says(f"step {mark}, ") for mark in marks], lambda name: "Performance:" in self.said(name))
                self.assertEqual(found(f"run{number}"), expected)

    def test_hpcc(self):
        """All of its own checks pass."""
        self.needs("hpcc", "mpirun.openmpi")
        with open("/usr/share/doc/hpcc/examples/_hpccinf.txt", encoding="ascii") as f:
            lines = f.read().splitlines()
        for number, text in ((6, "600 Ns"), (11, "2 Ps"), (12, "3 Qs")):
            lines[number - 1] = text
        with open(self.dir + "/hpccinf.txt", "w", encoding="ascii") as f:
            f.write("\n".join(lines) + "\n")

        def written(text):
            def look():
                try:
                    with open(self.dir + "/hpccoutf.txt", encoding="ascii") as f:
                        return text in f.read()
                except OSError:
                    return False
            return look
        self.lives("HPCC 1.5.0, N = 600 | Open MPI 4.1.4, 6", [*self.open_mpi("h1:2,h2:2,h3:2", 6), "hpcc"],
                   [written("Begin of MPIRandomAccess section"), written("Begin of HPL section")], lambda _: written("End of HPC Challenge tests.")())
        with open(self.dir + "/hpccoutf.txt", encoding="ascii") as f:
            text = f.read()
        self.assertIn("\nSuccess=1\n", text)
        self.assertIn("PASSED", text)
        self.assertNotIn("FAILED", text)

    def netpipe(self, title, words, ends):
        last = lambda name: "8388605 bytes" in self.said(name) or "8388611 bytes" in self.said(name)
        self.lives(title, words, [self.says(" 1021 bytes"), self.says(" 65533 bytes")], last, ends)
        self.assertNotIn("ntegrity check failed", self.said())

    def test_netpipe_open_mpi(self):
        self.needs("NPopenmpi", "mpirun.openmpi")
        self.netpipe("NetPIPE 3.7.2, to 8 MiB | Open MPI 4.1.4, 2", [*self.open_mpi("h1:1,h2:1", 2), "NPopenmpi", "-u", "8388608"], True)

    def test_netpipe_mpich(self):
        self.needs("NPmpich2", "mpirun.mpich")
        self.netpipe("NetPIPE 3.7.2, to 8 MiB | MPICH 4.0.2, 2", ["mpirun.mpich", "-hosts", "h1:1,h2:1", "-n", "2", "NPmpich2", "-u", "8388608"], False)


if __name__ == "__main__":
    unittest.main()
