#!/usr/bin/env python3
"""scripts/check_includes.py finds what it is for: small trees with one fault each."""
import os
import re
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../scripts"))
import check_includes

ROOMS = [("base", ""), ("libckpt_rt/core", "base"), ("libckpt_rt/stop", "libckpt_rt/core")]
RULES = f'#include "{check_includes.RULES}"\n'


class Includes(unittest.TestCase):
    def check(self, files, find=check_includes.violations):
        with tempfile.TemporaryDirectory() as root:
            for path, text in files.items():
                os.makedirs(os.path.join(root, os.path.dirname(path)), exist_ok=True)
                with open(os.path.join(root, path), "w", encoding="utf-8") as f:
                    f.write(text)
            return list(find(root, ROOMS))

    def test_down_is_allowed(self):
        self.assertEqual([], self.check({
            "base/a.h": "#include <errno.h>\n",
            check_includes.RULES: "",
            "libckpt_rt/core/b.h": '#include "base/a.h"\n',
            "libckpt_rt/stop/c.cc": '#include "libckpt_rt/core/b.h"\n#include "base/a.h"\n' + RULES}))

    def test_a_table_with_a_cycle(self):
        rooms = [("base", "cli"), ("cli", "base")]
        with tempfile.TemporaryDirectory() as root:
            self.assertEqual(["the table: base names cli, which is not above it"], check_includes.violations(root, rooms))

    def test_a_way_around(self):
        found = self.check({"cli/x.h": "", "base/a.h": '#include "../cli/x.h"\n', "base/b.h": '#include "a.h"\n'})
        self.assertEqual(["base/a.h: includes ../cli/x.h, not by its path from the root", "base/b.h: includes a.h, not by its path from the root"], found)

    def test_up_is_not(self):
        found = self.check({
            check_includes.RULES: "",
            "libckpt_rt/stop/c.h": "",
            "libckpt_rt/core/b.h": '#include "libckpt_rt/stop/c.h"\n'})
        self.assertEqual(1, len(found))
        self.assertIn("libckpt_rt/core/b.h: includes libckpt_rt/stop/c.h", found[0])

    def test_a_room_that_the_table_does_not_name_is_above(self):
        found = self.check({"cli/x.h": "", "base/a.h": '#include "cli/x.h"\n'})
        self.assertEqual(1, len(found))

    def test_a_file_without_a_room(self):
        found = self.check({"libckpt_rt/loose.cc": RULES, "new/place.h": "", "top.h": "", "tests/a.c": "", "build-x/b.cc": "", "base/a.h": "",
                            "new/words.md": "", check_includes.RULES: ""}, check_includes.without_a_room)
        self.assertEqual(["libckpt_rt/loose.cc: is in no room of the table", "new/place.h: is in no room of the table"], found)

    def test_folders_that_include_each_other(self):
        """One folder's header and the other's source file are enough."""
        files = {"base/a.h": "", "base/a.cc": '#include "base/low/b.h"\n', "base/low/b.h": '#include "base/a.h"\n', "base/alone/c.h": '#include "base/a.h"\n'}
        one_floor = ["base base/low"]
        self.assertEqual([], self.check(files, lambda root, rooms: check_includes.unnamed_cycles(root, rooms, one_floor)))
        found = self.check(files, lambda root, rooms: check_includes.unnamed_cycles(root, rooms, []))
        self.assertEqual(["folders that include each other, and are no floor of ONE_FLOOR: base base/low"], found)
        files["base/a.cc"] = '#include "base/low/b.h"\n#include "base/alone/c.h"\n'
        self.assertEqual(2, len(self.check(files, lambda root, rooms: check_includes.unnamed_cycles(root, rooms, one_floor))))
        del files["base/a.cc"]
        found = self.check(files, lambda root, rooms: check_includes.unnamed_cycles(root, rooms, one_floor))
        self.assertEqual(["ONE_FLOOR: these do not include each other, or not only these: base base/low"], found)

    def test_the_rules_come_last(self):
        files = {check_includes.RULES: "", "libckpt_rt/core/b.h": "",
                 "libckpt_rt/core/b.cc": RULES + '#include "libckpt_rt/core/b.h"\n'}
        self.assertEqual(1, len(self.check(files)))
        files["libckpt_rt/core/b.cc"] = '#include "libckpt_rt/core/b.h"\n'
        self.assertEqual(1, len(self.check(files)))

    def test_the_rules_hold_below_the_library_too(self):
        for room, rules in check_includes.IN_PROGRAM.items():
            with self.subTest(room=room):
                self.assertEqual([], self.check({rules: "", f"{room}/b.cc": f'#include "{rules}"\n'}))
                found = self.check({rules: "", "base/a.h": "", f"{room}/b.cc": '#include "base/a.h"\n'})
                self.assertEqual([f"{room}/b.cc: its last include is not {rules}"], found)

    def test_rooms_of_restart_and_of_the_command_do_not_include_each_other(self):
        for lower, upper in [("restart/channels", "restart/descriptors"), ("restart/plan", "restart/tree"), ("restart/plan", "restart/feed"),
                             ("restart/feed", "restart"), ("restart/job", "restart"), ("cli/image", "cli/program"), ("cli/ask", "cli/hosts"),
                             ("cli/ask", "cli/program"), ("cli/keeper", "cli/hosts"), ("cli/back", "cli/hosts"), ("cli/hosts", "cli/program")]:
            with self.subTest(lower=lower, upper=upper), tempfile.TemporaryDirectory() as root:
                for room in (lower, upper):
                    os.makedirs(os.path.join(root, room), exist_ok=True)
                with open(os.path.join(root, lower, "low.h"), "w", encoding="utf-8") as f:
                    f.write(f'#include "{upper}/high.h"\n')
                with open(os.path.join(root, upper, "high.h"), "w", encoding="utf-8") as f:
                    f.write("")
                self.assertEqual([f"{lower}/low.h: includes {upper}/high.h, which {lower} may not"], check_includes.violations(root))

    def test_floors_of_a_job_lie_between(self):
        rooms = ROOMS + [("job/session", "libckpt_rt/stop"), ("libckpt_rt/checkpoint", "job/session")]
        files = {check_includes.RULES: "", "job/session/s.h": "", "libckpt_rt/core/b.h": "", "job/format/f.h": "",
                 "libckpt_rt/checkpoint/c.h": '#include "job/session/s.h"\n#include "libckpt_rt/core/b.h"\n',
                 "job/session/s.cc": '#include "job/session/s.h"\n' + RULES}
        with tempfile.TemporaryDirectory() as root:
            for path, text in files.items():
                os.makedirs(os.path.join(root, os.path.dirname(path)), exist_ok=True)
                with open(os.path.join(root, path), "w", encoding="utf-8") as f:
                    f.write(text)
            self.assertEqual([], check_includes.violations(root, rooms))
            for wrong in ['#include "libckpt_rt/checkpoint/c.h"\n' + RULES, '#include "job/session/s.h"\n']:
                with open(os.path.join(root, "job/session/s.cc"), "w", encoding="utf-8") as f:
                    f.write(wrong)
                self.assertEqual(1, len(check_includes.violations(root, rooms)), wrong)


class Tree(unittest.TestCase):
    def test_the_architecture_names_every_room(self):
        with open(os.path.join(check_includes.ROOT, "docs", "architecture.md"), encoding="utf-8") as f:
            tree = f.read().split("```")[1]
        rooms = {part for room, _ in check_includes.ROOMS for part in room.split("/")[:2]}
        for folder in ("libckpt_rt", "libckpt_rt/interpose", "libckpt_rt/capture"):
            path = os.path.join(check_includes.ROOT, folder)
            rooms |= {name for name in os.listdir(path) if os.path.isdir(os.path.join(path, name))}
        self.assertEqual([], sorted(name for name in rooms if not re.search(rf"\b{name}\b", tree)))


if __name__ == "__main__":
    unittest.main()
