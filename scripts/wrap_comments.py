#!/usr/bin/env python3
"""Wraps comments longer than 110 columns: wrap_comments.py [--check] FILES, then clang-format -i. With --check it names them, and changes
nothing (ctest -R house.format). Tables, drawings, raw strings, and words that are longer than a line stay as they are."""
import re
import sys

MOST = 110
KEY = re.compile(r"[A-Za-z][\w ,]*:\s{2,}(?=\S)|(Owner|Callers|Never|Source|Contract): +(?=\S)|[-*•] +(?=\S)|\d+[.)] +(?=\S)")
COLUMNS = re.compile(r"\S {3,}\S")


def parse(line):
    """(what precedes the text, the blanks before it, text) of a line that is a comment alone; None: it is none."""
    m = re.match(r"(\s*//+)( *)(.*)$", line) or re.match(r"(\s*\*(?!/))( +)(.*)$", line) or re.match(r"(\s*/\*)( +)(.*)$", line)
    return m.groups() if m else None


def body(text):
    """Without the word that it begins with, as in "Owner:     libckpt_rt"."""
    m = KEY.match(text)
    return text[m.end():] if m else text


def is_table(text):
    return bool(re.search(r"[─│┌┐└┘├┤┬┴┼◄►▲▼]|──|->  |<--|-->", text) or text.startswith("|") or COLUMNS.search(body(text)))


def raw_lines(text):
    """Numbers of lines in which a raw string is or goes on."""
    found = set()
    for m in re.finditer(r'R"(\w*)\(.*?\)\1"', text, re.S):
        found |= set(range(text.count("\n", 0, m.start()), text.count("\n", 0, m.end()) + 1))
    return found


def break_at(line, least):
    """The last blank at which the line may end: not in `quoted words`, nor ahead of the end of the comment."""
    part = line[least:]
    quoted = [(least + m.start(), least + m.end()) for m in re.finditer(r"`[^`]*`", part)] if part.count("`") % 2 == 0 else []
    best = last = -1
    for i in range(least, min(MOST, len(line) - 1) + 1):
        if line[i] == " " and not line[i:].strip().startswith("*/"):
            last = i
            if not any(start < i < end for start, end in quoted):
                best = i
    return best if best >= 70 else last


def trailing(line):
    """Where a comment behind code begins; -1: there is none, or no room for one below it."""
    at = line.find("  // ")
    return at + 2 if 0 < at <= 78 and line[:at].strip() and line[:at].count('"') % 2 == 0 else -1


def wrap(text):
    lines, skip = text.split("\n"), raw_lines(text)
    out, number, table = [], 0, False
    queue = [(i, line) for i, line in enumerate(lines)]
    while number < len(queue):
        origin, line = queue[number]
        number += 1
        parsed = parse(line)
        in_code = parsed is None
        if not in_code:
            deep = len(parsed[1]) >= 4 and table
            table = is_table(parsed[2]) or deep
        else:
            table = False
        if len(line) <= MOST or line.endswith("\\") or origin in skip or (table and not in_code):
            out.append(line)
            continue
        if in_code:
            at = trailing(line)
            cut = break_at(line, at + 3) if at >= 0 else -1
            if cut < 0:
                out.append(line)
                continue
            out.append(line[:cut].rstrip())
            queue.insert(number, (origin, " " * at + "// " + line[cut:].strip()))
            continue
        before, blanks, words = parsed
        key = KEY.match(words)
        hang = len(blanks) + (key.end() if key else 0)
        follows = parse(queue[number][1]) if number < len(queue) else None
        # "Owner: base. Callers: ..." may go on below its first word.
        if key and key.group(1) and not words[key.start():key.end()].endswith("  ") and not (follows and len(follows[1]) == hang):
            hang = len(blanks)
        cut = break_at(line, len(before) + hang + 1)
        if cut < 0:
            out.append(line)
            continue
        rest = line[cut:].strip()
        after = before.replace("/*", " *") if before.rstrip().endswith("/*") else before
        out.append(line[:cut].rstrip())
        if (follows and follows[0] == after and len(follows[1]) == hang and follows[2].strip() and not KEY.match(follows[2])
                and not is_table(follows[2]) and not rest.endswith("*/") and queue[number][0] not in skip
                and not follows[2].startswith(("*/", "NOLINT", "clang-format", "|"))):
            queue[number] = (queue[number][0], after + " " * hang + rest + " " + follows[2])
        else:
            queue.insert(number, (origin, after + " " * hang + rest))
    return "\n".join(out)


def too_long(text):
    """Numbers and text of comment lines that are to be wrapped."""
    skip, table = raw_lines(text), False
    for i, line in enumerate(text.split("\n")):
        parsed = parse(line)
        table = parsed is not None and (is_table(parsed[2]) or (table and len(parsed[1]) >= 4))
        if len(line) <= MOST or i in skip or table or line.endswith("\\"):
            continue
        if parsed is not None and break_at(line, len(parsed[0]) + len(parsed[1]) + 1) >= 0:
            yield i + 1, line
        elif parsed is None and trailing(line) >= 0 and break_at(line, trailing(line) + 3) >= 0:
            yield i + 1, line


def main():
    bad = 0
    for path in [p for p in sys.argv[1:] if p != "--check"]:
        with open(path, encoding="utf-8") as f:
            text = f.read()
        if "--check" in sys.argv:
            for number, line in too_long(text):
                print(f"{path}:{number}: a comment of {len(line)} columns; {MOST} at most")
                bad = 1
        elif (new := wrap(text)) != text:
            with open(path, "w", encoding="utf-8") as f:
                f.write(new)
    return bad


if __name__ == "__main__":
    sys.exit(main())
