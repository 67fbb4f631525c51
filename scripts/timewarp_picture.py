#!/usr/bin/env python3
"""Draws docs/timewarp_straggler.svg: python3 scripts/timewarp_picture.py > docs/timewarp_straggler.svg"""


def box(time, row, colour, text):
    x, y = 40 + time * 70, 30 + row * 70
    return (f'<rect x="{x - 16}" y="{y - 13}" width="32" height="26" rx="4" fill="{colour}" stroke="#444"/>'
            f'<text x="{x}" y="{y + 5}" text-anchor="middle">{text}</text>')


def arrow(from_time, from_row, to_time, to_row, dash=""):
    return (f'<line x1="{56 + from_time * 70}" y1="{30 + from_row * 70}" x2="{24 + to_time * 70}" y2="{30 + to_row * 70}" '
            f'stroke="#444" {dash} marker-end="url(#head)"/>')


print('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 200" font-family="sans-serif" font-size="14">'
      '<defs><marker id="head" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto"><path d="M0,0 L8,4 L0,8 z"/>'
      '</marker></defs><rect width="640" height="200" fill="#fff"/>'
      '<text x="4" y="16" fill="#666">thread 0</text><text x="4" y="86" fill="#666">thread 1</text>')
print(box(2, 0, "#bfe3c0", "A"), arrow(2, 0, 4, 1), box(4, 1, "#ffd27f", "B"), box(5, 1, "#f5b7b1", "C"),
      arrow(5, 1, 7, 0, 'stroke-dasharray="5 4"'), box(7, 0, "#f5b7b1", "D"))
print('<line x1="20" y1="150" x2="620" y2="150" stroke="#444" marker-end="url(#head)"/>')
for t in range(1, 9):
    print(f'<text x="{40 + t * 70}" y="168" text-anchor="middle">{t}</text>')
print('<text x="320" y="190" text-anchor="middle" fill="#666">virtual time: B comes late; C is undone, its message D is '
      'cancelled</text></svg>')
