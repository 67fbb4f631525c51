"""Has a program stopped at a named point (base/checks/named_points.h)?

The thread that comes to the point stops there, and most others with it; but not one that is in a page fault inside the kernel: it stops
when the page is served, by a thread of ours, which has stopped (docs/kernel_notes.md). The first thread, whose state is the
process's, may be that one.
"""
import contextlib
import glob


def is_any_stopped(pid):
    for task in glob.glob(f"/proc/{pid}/task/*/stat"):
        with contextlib.suppress(OSError), open(task, encoding="utf-8") as stat:  # else it has ended
            if stat.read().rpartition(")")[2].split()[0] == "T":
                return True
    return False
