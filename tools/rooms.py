#!/usr/bin/env python3
"""Draws the rooms of src/ (tools/layers.txt) as docs/rooms.svg: a room stands above all that it may include.

    tools/rooms.py           draws
    tools/rooms.py --check   exit status 1 where the picture is not that of tools/layers.txt
"""
import html
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs/rooms.svg"
WIDTH, ROW, HIGH, GAP, MOST_IN_ROW = 1200, 106, 66, 12, 6
COLUMN = (WIDTH - GAP) / MOST_IN_ROW


def read_rooms():
    """Room -> (rooms it sees, what it holds)."""
    rooms = {}
    for line in (ROOT / "tools/layers.txt").read_text().splitlines():
        rule, _, holds = line.partition("#")
        name, _, seen = rule.partition(":")
        if name.strip() and not name.strip().endswith(" tests"):
            rooms[name.strip()] = (set(seen.split()), holds.strip())
    return rooms


def rows_of(rooms):
    """Lists of names, from the bottom up: each room is above all it sees."""
    height = {}
    for name, (seen, _) in rooms.items():  # a room's line comes after those of what it sees
        height[name] = 1 + max((height[other] for other in seen), default=-1)
    for name in reversed(rooms):  # as high as what sees it allows: arrows are short
        above = [height[other] for other, (seen, _) in rooms.items() if name in seen]
        height[name] = min(above) - 1 if above else height[name]
    rows = [[] for _ in range(max(height.values()) + 1)]
    for name in rooms:
        rows[height[name]].append(name)
    return rows


def direct(rooms, name):
    """What it sees and nothing that it sees does: arrows that say something new."""
    seen = rooms[name][0]
    return [other for other in seen if not any(other in rooms[third][0] for third in seen)]


def wrapped(text, width=27):
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) >= width:
            lines.append("")
        lines[-1] += (" " if lines[-1] else "") + word
    return lines


def draw(rooms):
    rows = rows_of(rooms)
    place, shapes = {}, []
    high = len(rows) * ROW + GAP
    for level, row in enumerate(rows):
        left = (WIDTH - len(row) * COLUMN + GAP) / 2
        for i, name in enumerate(row):
            place[name] = (left + i * COLUMN, high - (level + 1) * ROW)
    for name in rooms:
        x, y = place[name]
        for other in sorted(direct(rooms, name)):
            to_x, to_y = place[other]
            shapes.append(f'<line x1="{x + (COLUMN - GAP) / 2:.0f}" y1="{y + HIGH + 12:.0f}" '
                          f'x2="{to_x + (COLUMN - GAP) / 2:.0f}" y2="{to_y:.0f}"/>')
    for name, (_, holds) in rooms.items():
        x, y = place[name]
        shapes.append(f'<rect x="{x:.0f}" y="{y:.0f}" width="{COLUMN - GAP:.0f}" height="{HIGH + 12}" rx="6"/>')
        shapes.append(f'<text class="name" x="{x + 10:.0f}" y="{y + 19:.0f}">{name}</text>')
        for i, line in enumerate(wrapped(holds)):
            shapes.append(f'<text x="{x + 10:.0f}" y="{y + 36 + 14 * i:.0f}">{html.escape(line)}</text>')
    style = ("rect{fill:#f6f8fa;stroke:#57606a}line{stroke:#8c959f;stroke-width:1.3}"
             "text{font:12px sans-serif;fill:#24292f}.name{font:bold 14px sans-serif}")
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {high}" width="{WIDTH}" height="{high}">\n'
            f'<title>The rooms of src/, each above what it may include (tools/rooms.py)</title>\n<style>{style}</style>\n'
            f'<rect width="{WIDTH}" height="{high}" style="fill:#fff;stroke:none"/>\n' + "\n".join(shapes) + "\n</svg>\n")


def main():
    picture = draw(read_rooms())
    if sys.argv[1:] == ["--check"]:
        fresh = PICTURE.exists() and PICTURE.read_text() == picture
        print("rooms: docs/rooms.svg is", "fresh" if fresh else "not that of tools/layers.txt: run tools/rooms.py")
        return 0 if fresh else 1
    PICTURE.write_text(picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
