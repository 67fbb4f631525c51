"""Arguments, help and version of every subcommand."""

import re
import unittest

from support import *

COMMANDS = ["run", "now", "back", "plan", "hosts", "gather", "migrate", "keeper", "stat", "ls", "show", "diff", "core", "verify", "cat", "compact",
            "gc", "check", "backtrace"]
RESTART = os.path.join(BUILD, "bin", "ckpt-restart")


class Usage(CkptTest):
    def test_help_names_every_command_and_the_exit_codes(self):
        result = self.ckpt("--help")
        self.assertEqual(result.returncode, OK)
        for command in COMMANDS:
            self.assertIn(command, result.stdout)
        self.assertIn("Exit codes:", result.stdout)

    def test_help_and_version_of_each_command(self):
        for command in COMMANDS:
            with self.subTest(command):
                result = self.ckpt(command, "--help")
                self.assertEqual(result.returncode, OK)
                self.assertIn("Exit codes:", result.stdout)
                self.assertRegex(self.ckpt(command, "--version").stdout, r"\Ackpt \d+\.\d+\.\d+\n\Z")
        self.assertRegex(self.ckpt("--version").stdout, r"\Ackpt \d+\.\d+\.\d+\n\Z")

    def test_man_page_of_each_command(self):
        man = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "docs", "man")
        commands = re.findall(r"^  ([a-z]+) ", self.ckpt("--help").stdout.split("\nSubcommands:\n")[1], re.M)
        self.assertGreater(len(commands), 15)
        with open(f"{man}/ckpt.1", encoding="utf-8") as f:
            page = f.read()
        for command in commands:
            with self.subTest(command):
                self.assertTrue(os.path.exists(f"{man}/ckpt-{command}.1"))
                self.assertIn(f"\n.Ss ckpt {command}\n", page)

    def test_help_of_restart_names_every_exit_code(self):
        said = subprocess.run([RESTART, "--help"], stdout=subprocess.PIPE, text=True, env=clean_environment())
        self.assertEqual(said.returncode, OK)
        self.assertIn("--namespaces WHEN:{auto,never,always}", said.stdout)
        with open(os.path.join(os.path.dirname(__file__), "..", "..", "docs", "exit_codes.md")) as table:
            rows = re.findall(r"^\| (\d\d) \|[^|]*\|[^|]*\|([^|]*)\|$", table.read(), re.M)
        codes = [code for code, meaning in rows if meaning.strip()]
        self.assertGreater(len(codes), 10)
        for code in codes:
            self.assertRegex(said.stdout, rf"\b{code} ")

    def test_wrong_arguments_of_restart(self):
        for words in ([], ["--lazy", "--eager", "x"], ["--namespaces", "sometimes", "x"], ["--no-such-option", "x"]):
            with self.subTest(words):
                said = subprocess.run([RESTART, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                      env=clean_environment())
                self.assertEqual(said.returncode, USAGE)
                self.assertEqual(said.stdout, "")
                self.assertRegex(said.stderr, r"\Ackpt-restart: [^\n]+ \(see ckpt-restart --help\)\n\Z")

    def test_wrong_arguments(self):
        self.refuse(USAGE, "ckpt --help")
        self.refuse(USAGE, "--help", "frobnicate")
        self.refuse(USAGE, "--help", "--no-such-option")
        for command in COMMANDS:
            with self.subTest(command):
                self.refuse(USAGE, f"ckpt {command} --help", command, "--no-such-option")
        for command in ["now", "stat", "show", "verify", "backtrace"]:
            with self.subTest(command):
                self.refuse(USAGE, f"ckpt {command} --help", command)

        self.refuse(USAGE, "at most 1024", "gc", "--keep", "1025", ".")

    def test_words_that_are_no_command(self):
        """The word is named."""
        for words, named in ((["foo"], "foo: no such command or option (see ckpt --help)"),
                             (["restart", "images"], "restart: no such command or option (see ckpt --help, and ckpt-restart --help)"),
                             (["keeper", "foo"], "foo: no such command or option (see ckpt keeper --help)")):
            with self.subTest(words):
                result = self.ckpt(*words)
                self.assertEqual((result.returncode, result.stderr), (USAGE, f"ckpt: {named}\n"))

    def test_pids_that_are_none(self):
        for command in ["now", "stat", "backtrace"]:
            for pid in ["abc", "0", "12x", "", "99999999999999999999", "1.5"]:
                with self.subTest(command=command, pid=pid):
                    self.refuse(USAGE, "is not a process id", command, pid)
            with self.subTest(command=command, pid="-1"):
                self.refuse(USAGE, "-1", command, "-1")

    def test_bad_timeout(self):
        self.refuse(USAGE, "--timeout", "now", "1", "--timeout", "soon")
        self.refuse(USAGE, "--timeout", "now", "1", "--timeout", "0")


if __name__ == "__main__":
    unittest.main()
