#!/usr/bin/env python3
"""Draws one_checkpoint.svg and restart_processes.svg beside this file. `--check`: fails if they are not up to date."""

import html
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
FONT = 'font-family="DejaVu Sans, Verdana, sans-serif"'
INK, RUN, STAND, FAULT, COPY, WRITE, PAPER = "#222", "#8ecae6", "#e63946", "#f4a261", "#90be6d", "#b8a1d9", "#fff"


class Sheet:
    """A drawing made of boxes, lines and words; units are pixels."""

    def __init__(self, width, height):
        self.size = (width, height)
        self.parts = [
            f'<rect width="{width}" height="{height}" fill="{PAPER}"/>',
            '<defs><marker id="tip" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
            f'<path d="M0,1 L7,4 L0,7" fill="none" stroke="{INK}"/></marker></defs>',
        ]

    def box(self, x, y, w, h, fill, words="", size=12):
        self.parts.append(f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="3" fill="{fill}" stroke="{INK}" '
                          'stroke-width="0.7"/>')
        if words:
            self.text(x + w / 2, y + h / 2 + size * 0.35, words, size, "middle")

    def text(self, x, y, words, size=12, anchor="start", weight="normal"):
        self.parts.append(f'<text x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}" font-weight="{weight}" '
                          f'{FONT} fill="{INK}">{html.escape(words)}</text>')

    def line(self, x1, y1, x2, y2, dash="", tip=False):
        self.parts.append(f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{INK}" stroke-width="1"'
                          + (f' stroke-dasharray="{dash}"' if dash else "")
                          + (' marker-end="url(#tip)"' if tip else "") + "/>")

    def __str__(self):
        w, h = self.size
        return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" width="{w}" height="{h}">\n'
                + "\n".join(self.parts) + "\n</svg>\n")


def one_checkpoint():
    sheet = Sheet(960, 360)
    left, stop, go, end = 150, 420, 470, 800
    for name, y in (("thread 1", 70), ("thread 2", 110), ("agent, copier", 170), ("serving thread", 210), ("writer", 250)):
        sheet.text(left - 12, y + 17, name, 13, "end")
    for y in (70, 110):
        sheet.box(left, y, stop - left, 26, RUN, "runs")
        sheet.box(stop, y, go - stop, 26, STAND, "stands")
        sheet.box(go, y, 930 - go, 26, RUN, "runs on")
    for x, y in ((230, 70), (330, 110), (520, 70), (560, 110), (610, 70), (650, 110)):
        sheet.box(x, y, 7, 26, FAULT)
        sheet.line(x + 3, y + 26, x + 3, 210, "2 2")
    sheet.box(left, 170, 90, 26, "#eee", "prepare")
    sheet.box(left + 90, 170, stop - left - 90, 26, COPY, "arm: protect in passes")
    sheet.box(stop, 170, go - stop, 26, STAND, "sample")
    sheet.box(go, 170, 230, 26, COPY, "sequential copies")
    sheet.box(left + 60, 210, stop - left - 60, 26, FAULT, "unprotect, note dirty")
    sheet.box(go, 210, 230, 26, FAULT, "forced copies")
    sheet.box(go, 250, 270, 26, WRITE, "pool to disk")
    sheet.box(go + 270, 250, 60, 26, WRITE, "commit")
    for x, words in ((left, "request"), (stop, "stop"), (go, "go"), (end, "durable")):
        sheet.line(x, 50, x, 300, "4 3")
        sheet.text(x, 42, words, 13, "middle", "bold")
    sheet.line(stop, 316, go, 316, tip=True)
    sheet.text((stop + go) / 2, 338, "the pause: independent of memory", 13, "middle")
    sheet.text(left, 20, "One checkpoint: time runs to the right", 15, weight="bold")
    sheet.box(725, 316, 12, 12, FAULT)
    sheet.text(743, 327, "a thread writes a protected page")
    return sheet


def restart_processes():
    sheet = Sheet(960, 300)
    sheet.text(20, 24, "The processes of a restart", 15, weight="bold")
    sheet.box(20, 60, 200, 60, "#eee", "ckpt-restart")
    sheet.text(20, 140, "checks image and machine,", 12)
    sheet.text(20, 156, "waits, passes signals on", 12)
    sheet.box(300, 60, 160, 60, "#eee", "init (pid 1)")
    sheet.text(380, 140, "only in a pid namespace:", 12, "middle")
    sheet.text(380, 156, "reaps, tells how it ends", 12, "middle")
    sheet.box(540, 40, 400, 100, RUN)
    sheet.text(740, 58, "the program's process, with its old pid", 13, "middle", "bold")
    for i, words in enumerate(("C++ code", "restorer", "the library", "program")):
        sheet.box(550 + i * 97, 72, 90, 34, COPY if i < 3 else RUN, words, 10)
        if i:
            sheet.line(550 + i * 97 - 7, 89, 550 + i * 97, 89, tip=True)
    for i, words in enumerate(("descriptors", "memory, mm", "signals, threads", "goes on")):
        sheet.text(595 + i * 97, 126, words, 10, "middle")
    sheet.line(220, 90, 300, 90, tip=True)
    sheet.line(460, 90, 540, 90, tip=True)
    sheet.box(300, 200, 160, 50, FAULT, "loader")
    sheet.text(480, 220, "lazy restart: answers first touches from the image and", 12)
    sheet.text(480, 238, "brings the rest meanwhile; ends when all is there", 12)
    sheet.line(215, 120, 330, 200, tip=True)
    sheet.box(60, 220, 160, 50, FAULT, "sentry")
    sheet.text(140, 288, "kills the program if the loader fails", 12, "middle")
    sheet.line(300, 240, 220, 244, tip=True)
    return sheet


def main():
    status = 0
    for name, drawing in (("one_checkpoint.svg", one_checkpoint()), ("restart_processes.svg", restart_processes())):
        path = HERE / name
        if "--check" in sys.argv:
            if not path.exists() or path.read_text() != str(drawing):
                print(f"{path}: not what draw.py draws; run docs/drawings/draw.py", file=sys.stderr)
                status = 1
        else:
            path.write_text(str(drawing))
    return status


sys.exit(main())
