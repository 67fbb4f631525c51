#!/usr/bin/env python3
"""scripts/wrap_comments.py wraps what is text, and nothing else."""
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../scripts"))
import wrap_comments

WORDS = "word " * 30


class Comments(unittest.TestCase):
    def wrapped(self, text):
        new = wrap_comments.wrap(text)
        self.assertEqual(wrap_comments.wrap(new), new, "not the same twice")
        self.assertEqual(new.replace("//", "").replace("*", "").split(), text.replace("//", "").replace("*", "").split())
        self.assertEqual(list(wrap_comments.too_long(new)), [])
        return new.split("\n")

    def test_text_flows_into_the_next_line(self):
        lines = self.wrapped(f"  // {WORDS}end.\n  // Next sentence.\n  int a;")
        self.assertEqual([len(line) <= 110 for line in lines], [True] * 3)
        self.assertTrue(lines[1].endswith("end. Next sentence."), lines)

    def test_what_an_owner_is_stays_below_it(self):
        lines = self.wrapped(f"// Owner:     {WORDS}\n// Callers:   nobody.")
        self.assertTrue(lines[1].startswith("//            word"), lines)
        self.assertEqual(lines[2], "// Callers:   nobody.")

    def test_a_block_comment(self):
        lines = self.wrapped(f"/* {WORDS}end. */\nint a;")
        self.assertTrue(lines[1].startswith(" * word") and lines[1].endswith("end. */"), lines)

    def test_behind_code(self):
        lines = self.wrapped(f"  kHold,  // {WORDS}")
        self.assertTrue(lines[1].startswith("          // word"), lines)

    def test_others_stay(self):
        for text in (f"//   order   what is to be done   {WORDS}", f"//   kFree ──start()──► {WORDS}", f'  text("{WORDS}");',
                     f'auto t = R"(\n// {WORDS}\n)";', "// https://example.org/" + "x" * 120):
            with self.subTest(text):
                self.assertEqual(wrap_comments.wrap(text), text)
                self.assertEqual(list(wrap_comments.too_long(text)), [])

    def test_too_long_is_named(self):
        self.assertEqual([number for number, _ in wrap_comments.too_long(f"int a;\n// {WORDS}\n")], [2])


if __name__ == "__main__":
    sys.exit(unittest.main())
