"""The driver of bench/diskless: its arguments, and the page that it draws of what was measured. Measures nothing."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

BUILD = os.path.abspath(os.environ["CKPT_BUILD"])
DIRECTORY = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "bench", "diskless")
sys.path.insert(0, DIRECTORY)
sys.dont_write_bytecode = True
import study  # noqa: E402
from study_jobs import PROGRAMS, VARIANTS  # noqa: E402

SYSTEM_PYTHON = "/usr/bin/python3"  # apt puts matplotlib there


def row(program, variant, scheme="4+1"):
    r = {"program": program, "variant": variant, "scheme": scheme, "rate": "asis", "time": 10.0, "checkpoints": 2}
    if variant == "BASE":
        return r
    r.update(latency=0.5, pause=0.01, sent=50 << 20, size=30 << 20, recovery=1.5, measured_overhead=0.2, overhead=0.2)
    return {**r, "plan": study.expected(BUILD, scheme, 10.0, r)}


class StudyTest(unittest.TestCase):
    def call(self, *words):
        return subprocess.run([SYSTEM_PYTHON, f"{DIRECTORY}/study.py", *words], capture_output=True, text=True, check=False)

    def test_wrong_arguments(self):
        for words in ([], [BUILD, "--variants", "NONE"], [BUILD, "--programs", "cell,ring"], [BUILD, "--schemes", "3+1"]):
            self.assertEqual(self.call(*words).returncode, 64, words)

    def test_the_plan_is_that_of_the_equations(self):
        """PSTSWM of the paper's table 4, C-FORK: 17 hosts there, five here, so the failures of each are as many more."""
        r = {"variant": "C-FORK", "overhead": 35.9, "latency": 66.0, "recovery": 66.3}
        hours, study.MTBF_HOURS = study.MTBF_HOURS, study.MTBF_HOURS * 5 / 17
        try:
            plan = study.expected(BUILD, "4+1", 5610, r)
        finally:
            study.MTBF_HOURS = hours
        self.assertAlmostEqual(plan["interval"], 3251, delta=20)
        self.assertAlmostEqual(plan["ratio"], 0.0229, delta=0.0005)

    @unittest.skipIf(subprocess.run([SYSTEM_PYTHON, "-c", "import matplotlib"], capture_output=True, check=False).returncode, "no matplotlib here")
    def test_the_page(self):
        with tempfile.TemporaryDirectory() as directory:
            rows = [row(p, v) for p in PROGRAMS for v in VARIANTS if (p, v) != ("pcg", "DISK-FORK")]
            failure = {"program": "pcg", "variant": "DISK-FORK", "scheme": "4+1", "rate": "asis", "why": "a <reason>"}
            with open(f"{directory}/study.json", "w", encoding="ascii") as f:
                json.dump({"rows": rows, "failures": [failure], "command": "x", "date": "2026-11-24", "load": 0.5, "machine": "m",
                           "left_out": [{"program": "mat", "variant": "INC", "scheme": "4+2", "rate": "1gbit"}]}, f)
            done = self.call(BUILD, directory, "--draw")
            self.assertEqual(done.returncode, 1, done.stderr)  # one failed
            with open(f"{directory}/study.html", encoding="utf-8") as f:
                page = f.read()
            for word in ("PSTSWM", "LZ4-INC-FORK", "a &lt;reason&gt;", "T_nockp", "1gbit 4+2 mat INC"):
                self.assertIn(word, page)
            with open(f"{directory}/study0_4.svg", encoding="utf-8") as f:
                drawn = f.read()
            for variant in VARIANTS:  # none without a colour
                if variant != "BASE":
                    self.assertIn(f"<!-- {variant} -->", drawn)
            for figure in (2, 3, 4, 5):
                self.assertTrue(os.path.exists(f"{directory}/study0_{figure}.svg"))


if __name__ == "__main__":
    unittest.main()
