"""ckpt plan: how often, from figures that are given or measured."""

import json
import unittest

from support import CkptTest, NOT_FOUND, USAGE


class PlanTest(CkptTest):
    def plan(self, *args):
        answer = self.ckpt("plan", "--json", *args)
        self.assertEqual(answer.returncode, 0, answer.stderr)
        return json.loads(answer.stdout)

    def test_given_figures(self):
        disk = self.plan("--mtbf", "24h", "--overhead", "5ms", "--latency", "2s", "--recovery", "3s")["schemes"][0]
        # Young: the root of 2 O MTBF.
        self.assertAlmostEqual(disk["interval_ns"] / 1e9, (2 * 0.005 * 86400) ** 0.5, delta=0.5)
        self.assertGreater(disk["overhead_ratio"], 0)

    def test_schemes_and_plot(self):
        path = self.path("plan.svg")
        plan = self.plan("--mtbf", "720h", "--overhead", "5ms", "--latency", "20s", "--hosts", "4", "--network", "1G",
                         "--size", "1G", "--written", "10M", "--plot", path)
        self.assertEqual([s["where"] for s in plan["schemes"]], ["disk", "mirror", "parity", "evenodd", "rs:4+2"])
        self.assertEqual([s["hosts"] for s in plan["schemes"]], [4, 4, 5, 6, 6])
        with open(path, encoding="utf-8") as f:
            text = f.read()
        self.assertTrue(text.startswith("<svg") and text.rstrip().endswith("</svg>"))
        self.assertEqual(text.count("<polyline"), 5)

    def test_a_plot_of_what_never_gets_done(self):
        # A recovery of so many times the time between failures that its cost has no number.
        path = self.path("plan.svg")
        disk = self.plan("--mtbf", "1s", "--overhead", "5ms", "--latency", "2000s", "--plot", path)["schemes"][0]
        self.assertIsNone(disk["overhead_ratio"])
        with open(path, encoding="utf-8") as f:
            text = f.read()
        self.assertTrue(text.rstrip().endswith("</svg>"))
        self.assertNotRegex(text, "inf|nan")

    def test_refusals(self):
        self.refuse(USAGE, "cost", "plan", "--mtbf", "24h")
        self.refuse(USAGE, "--mtbf", "plan", "--mtbf", "0s", "--overhead", "1s")
        self.refuse(USAGE, "rs:4+2", "plan", "--mtbf", "24h", "--overhead", "1s", "--hosts", "4", "--network", "1G", "--size",
                    "1G", "--redundancy", "raid")
        self.refuse(NOT_FOUND, "ckpt_rt.log", "plan", "--mtbf", "24h", self.directory)


if __name__ == "__main__":
    unittest.main()
