#!/usr/bin/env python3
"""scripts/settings_docs.py finds a document that lags behind the table, and mends nothing else."""
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../scripts"))
import settings_docs

TABLE = [{"variable": "CKPT_A", "option": "--a", "value": "N", "meaning": "what a is", "accepts": "0 or 1",
          "default": "0", "when_empty": "", "document": "", "by_run": True, "by_now": False, "by_readers": False},
         {"variable": "CKPT_B", "option": "", "value": "FILE", "meaning": "what b|c is", "accepts": "a path",
          "default": "", "when_empty": "none", "document": "docs/b.md", "by_run": False, "by_now": False,
          "by_readers": False}]


def page(names, inside):
    text = "by hand\n"
    for name in names:
        begin, end = settings_docs.marks(settings_docs.LIBRARY, name)
        text += f"{begin}\n{inside}{end}\ndetails of {name}\n"
    return text


class Documents(unittest.TestCase):
    def setUp(self):
        self.wanted = settings_docs.blocks(TABLE)

    def rewrite(self, text):
        return settings_docs.rewrite(text, settings_docs.LIBRARY, self.wanted)

    def test_what_is_old_is_replaced_and_the_rest_stays(self):
        new = self.rewrite(page(["CKPT_A", "CKPT_B"], "old\n"))
        self.assertNotIn("old", new)
        for kept in ["by hand\n", "\ndetails of CKPT_A\n", "\ndetails of CKPT_B\n"]:
            self.assertIn(kept, new)
        self.assertIn(".It Ev CKPT_A Ns = Ns Ar N\nWhat a is.\nAccepts 0 or 1.\nDefault: 0.\n", new)
        self.assertIn("Default: none.\n", new)

    def test_what_is_right_stays(self):
        new = self.rewrite(page(["CKPT_A", "CKPT_B"], ""))
        self.assertEqual(new, self.rewrite(new))

    def test_a_setting_that_a_page_lacks_or_has_beside_the_table_is_found(self):
        for names in [["CKPT_A"], ["CKPT_B", "CKPT_A"], ["CKPT_A", "CKPT_B", "CKPT_C"]]:
            with self.assertRaises(ValueError):
                self.rewrite(page(names, ""))

    def test_a_table_of_the_readme_keeps_its_columns(self):
        for row in settings_docs.readme_table(TABLE):
            self.assertEqual(5, row.replace("\\|", "").count("|"), row)


if __name__ == "__main__":
    unittest.main()
