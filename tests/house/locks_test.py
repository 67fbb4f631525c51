#!/usr/bin/env python3
"""The order of locks in docs/locks.md is the one of base/locks/lock_ranks.h, and each of its ranks is used: so what the document says of a lock is
checked in builds without NDEBUG."""
import os
import re
import unittest

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ROOMS = ("base", "copier", "job", "libckpt_rt")
TABLE = "base/locks/lock_ranks.h"


def read(path):
    with open(os.path.join(SOURCE, path), encoding="utf-8") as f:
        return f.read()


def ranks_of(text):
    """Of `enum class LockRank`, in their order."""
    return re.findall(r"\bk\w+", re.search(r"enum class LockRank[^{]*\{([^}]*)\}", text)[1])


def order_of_table(text):
    """(name, names of what is inside) of each row of kTable."""
    rows = re.findall(r'\{(k\w+),\s*"([^"]+)",\s*(kLeaf|all_below\((?:k\w+)\)|ranks\([^)]*\))\}', text)
    names = {rank: name for rank, name, _ in rows}
    order = []
    for i, (_, name, inside) in enumerate(rows):
        if inside.startswith("all_below"):
            below = [other for _, other, _ in rows[i + 1:]]
        else:
            below = [names[rank] for rank in re.findall(r"\bk\w+", inside) if rank != "kLeaf"]
        order.append((name, below))
    return order


def order_of_document(text):
    """The same of the rows of the document's table."""
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]
    rows = [row for row in rows if row[0] not in ("lock", "---")]
    order = []
    for i, (name, inside, _) in enumerate(rows):
        below = {"leaf": [], "all below": [row[0] for row in rows[i + 1:]]}
        order.append((name, below.get(inside, inside.split(", "))))
    return order


def used_ranks():
    found = {}
    for room in ROOMS:
        for folder, _, files in os.walk(os.path.join(SOURCE, room)):
            for name in files:
                path = os.path.relpath(os.path.join(folder, name), SOURCE)
                if name.endswith((".h", ".cc")) and not path.startswith("base/locks/"):
                    for rank in re.findall(r"\bLockRank::(k\w+)", read(path)):
                        found.setdefault(rank, set()).add(path)
    return found


class Locks(unittest.TestCase):
    def test_the_document_says_what_is_checked(self):
        table = order_of_table(read(TABLE))
        self.assertGreater(len(table), 10)
        self.assertEqual(order_of_document(read("docs/locks.md")), table)

    def test_each_rank_has_a_row_and_a_lock(self):
        ranks = ranks_of(read(TABLE))
        self.assertEqual(len(ranks), len(order_of_table(read(TABLE))))
        self.assertEqual(set(ranks), set(used_ranks()), "a rank that no source names, or a source that names no rank of the enum")

    def test_two_locks_have_two_ranks(self):
        """Of different folders: what the owner's header declares, its source makes new."""
        for rank, paths in used_ranks().items():
            self.assertEqual(len({os.path.dirname(path) for path in paths}), 1, f"{rank}: {sorted(paths)}")

    def test_what_is_compared(self):
        table = '{kA, "a", all_below(kA)},\n{kB, "b lock", ranks(kC,\n     kD)},\n{kC, "c", kLeaf},\n{kD, "d", kLeaf},'
        order = [("a", ["b lock", "c", "d"]), ("b lock", ["c", "d"]), ("c", []), ("d", [])]
        self.assertEqual(order_of_table(table), order)
        document = "| lock | inside | who |\n| --- | --- | --- |\n| a | all below | x |\n| b lock | c, d | y |\n| c | leaf | |\n| d | leaf | |\n"
        self.assertEqual(order_of_document(document), order)
        for old, new in [("| c, d |", "| c |"), ("| d | leaf | |\n", ""), ("| b lock |", "| b |"), ("| c | leaf |", "| c | d |")]:
            self.assertNotEqual(order_of_document(document.replace(old, new)), order)


if __name__ == "__main__":
    unittest.main()
