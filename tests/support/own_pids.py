"""Process numbers of the test's own.

A program that comes back wants the numbers that it had, and has them in a namespace if another process was given one of them meanwhile, as
happens on a machine that makes many processes. A test that asks it by its number needs them to be free.
"""
import os
import subprocess
import sys


def enter_own_pids():
    """Executes this test anew in a pid namespace, below a shell that waits for orphans. Without the right to it, nothing is done."""
    mark = "CKPT_TEST_OWN_PIDS"
    words = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", '"$@"; exit $?', "sh"]
    if os.environ.pop(mark, None) is not None or subprocess.run([*words, "true"], stderr=subprocess.DEVNULL, check=False).returncode != 0:
        return
    os.environ[mark] = "1"
    os.execvp(words[0], [*words, sys.executable, *sys.argv])
