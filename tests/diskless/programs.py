"""The MPI programs of bench/diskless, each under the launchers that are here: verified, with the same output under each; killed with a
checkpoint in hand and brought back, with the same output; and found wrong where a message was damaged on its way.
  programs.py [-v] nbody|mat|cell|pcg|pstswm      CKPT_LONG=1: brought back under MPICH too
"""
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "jobs"))
from job_tree import BUILD, Tree, adopt_orphans, environment  # noqa: E402

RANKS = 4  # mat needs a square
ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
LAUNCHERS = {
    "openmpi": ["mpirun.openmpi", "--oversubscribe", "--mca", "btl", "vader,tcp,self", "--mca", "pml", "ob1", "--mca",
                "mpi_yield_when_idle", "1", "-np", str(RANKS)],
    "mpich": ["mpirun.mpich", "-n", str(RANKS)],
}
# Sizes for some hundredths of a second; what makes it longer; what a wrong argument is.
PROGRAMS = {
    "nbody": (["--particles", "1000"], "--steps", 5),
    "mat": (["--size", "128"], "--rounds", 2),
    "cell": (["--size", "512"], "--generations", 20),
    "pcg": (["--size", "32", "--iterations", "1000"], "--rounds", 1),  # it needs 60; a damaged one would try for minutes
    "pstswm": (["--latitudes", "16", "--layers", "2"], "--steps", 10),
}
LONGER = {"nbody": 30, "mat": 200, "cell": 100, "pcg": 20, "pstswm": 100}
# The ranks of MPICH wait without giving up the processor: with more ranks than processors that takes long.
BROUGHT_BACK = ["openmpi", "mpich"] if os.environ.get("CKPT_LONG") == "1" else ["openmpi"]
NAME = None


def words(mpi, work, *more):
    size, option, _ = PROGRAMS[NAME]
    return [*LAUNCHERS[mpi], f"{BUILD}/bench/diskless/{mpi}/{NAME}", *size, option, str(work), *more]


def run(command, **more):
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, env=environment(**ROOT, **more))


class Programs(unittest.TestCase):
    def here(self):
        return [mpi for mpi, words_of in LAUNCHERS.items()
                if shutil.which(words_of[0]) and os.path.exists(f"{BUILD}/bench/diskless/{mpi}/{NAME}")]

    def setUp(self):
        if not self.here():
            self.skipTest(f"{NAME} was not built: no MPI, or no Fortran of it")

    def test_verified_and_the_same_under_each(self):
        outputs = {}
        for mpi in self.here():
            done = run(words(mpi, PROGRAMS[NAME][2]))
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertTrue(done.stdout.endswith("verified\n"), done.stdout)
            outputs[mpi] = done.stdout
        self.assertEqual(len(set(outputs.values())), 1, outputs)

    def test_a_damaged_message_is_found(self):
        with tempfile.TemporaryDirectory() as directory:
            mpi = self.here()[0]
            library = f"{directory}/damage.so"
            subprocess.run([f"mpicc.{mpi}", "-O1", "-shared", "-fPIC", "-o", library, f"{HERE}/damage.c"], check=True)
            command = words(mpi, PROGRAMS[NAME][2])
            program = command.index(f"{BUILD}/bench/diskless/{mpi}/{NAME}")
            done = run([*command[:program], "env", f"LD_PRELOAD={library}", *command[program:]])
            self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
            self.assertEqual(done.stdout.split()[-1], "WRONG")

    def test_wrong_arguments(self):
        mpi = self.here()[0]
        program = f"{BUILD}/bench/diskless/{mpi}/{NAME}"
        for wrong in (["--nothing", "1"], [PROGRAMS[NAME][1], "many"], [PROGRAMS[NAME][1], "0"]):
            done = run([program, *wrong])
            self.assertEqual(done.returncode, 64, done.stdout + done.stderr)
        done = run([program, "--help"])
        self.assertEqual(done.returncode, 0)
        self.assertIn("Exit codes", done.stdout)

    def live_and_die(self, mpi):
        """False: it had ended before its checkpoint."""
        tree = Tree(NAME, ["env", *(f"{k}={v}" for k, v in ROOT.items()), *words(mpi, self.work)])
        failed = True
        try:
            tree.run()
            pid = tree.child.pid
            while tree.output().count(b"\n") < 2 and tree.child.poll() is None:
                time.sleep(0.01)
            image = tree.checkpoint(pid, may_end=True)
            if image is not None:
                tree.kill()
                tree.restart(image)
                code, output = tree.finish()
                self.assertEqual((code, output.decode()), (0, self.whole.stdout), tree.said())
            failed = False
            return image is not None
        finally:
            tree.close(failed)

    def test_killed_and_brought_back(self):
        for mpi in [m for m in self.here() if m in BROUGHT_BACK]:
            with self.subTest(mpi=mpi):
                self.work = LONGER[NAME] * PROGRAMS[NAME][2]
                while True:
                    self.whole = run(words(mpi, self.work))
                    self.assertEqual(self.whole.returncode, 0, self.whole.stderr)
                    if self.live_and_die(mpi):
                        break
                    self.work *= 4


if __name__ == "__main__":
    adopt_orphans()
    NAME = sys.argv.pop()
    unittest.main()
