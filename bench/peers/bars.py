"""A picture of horizontal bars in groups, as SVG without scripts and without embedded fonts."""

import html

WIDTH, LEFT, RIGHT = 900, 190, 90
TOP, BAR, BETWEEN, BOTTOM = 104, 20, 14, 16
COLOURS = ("#0072b2", "#a8a29e")
STYLE = (
    'text{font:13px system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif;fill:#374151}'
    ".head{font-size:18px;font-weight:600;fill:#111827}.note{font-size:12px;fill:#6b7280}"
)


def text(x, y, words, **attributes):
    more = "".join(f' {k.rstrip("_").replace("_", "-")}="{v}"' for k, v in attributes.items())
    return f'<text x="{x:.1f}" y="{y:.1f}"{more}>{html.escape(words)}</text>'


def rectangle(x, y, width, height, colour):
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'
    )


def draw(title, note, names, groups):
    """groups: (label, a (median, least, most) for each of `names`), top to bottom."""
    longest = max(most for _, speeds in groups for _, _, most in speeds)
    scale = (WIDTH - LEFT - RIGHT) / longest
    height = TOP + len(groups) * (len(names) * BAR + BETWEEN) + BOTTOM
    shapes = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" role="img">',
        f"<title>{html.escape(title)}</title>",
        f"<style>{STYLE}</style>",
        rectangle(0, 0, WIDTH, height, "#ffffff"),
        text(20, 32, title, class_="head"),
        text(20, 54, note, class_="note"),
    ]
    for i, name in enumerate(names):
        shapes += [
            rectangle(LEFT + 240 * i, 70, 12, 12, COLOURS[i]),
            text(LEFT + 240 * i + 18, 81, name),
        ]
    y = TOP
    for label, speeds in groups:
        shapes.append(text(LEFT - 10, y + BAR + 4, label, text_anchor="end"))
        for i, (median, least, most) in enumerate(speeds):
            middle = y + BAR / 2
            shapes += [
                rectangle(LEFT, y + 1, median * scale, BAR - 2, COLOURS[i]),
                rectangle(LEFT + least * scale, middle - 0.75, (most - least) * scale, 1.5, "#111827"),
                text(LEFT + most * scale + 6, middle + 4.5, f"{median:.1f}"),
            ]
            y += BAR
        y += BETWEEN
    return "\n".join([*shapes, "</svg>", ""])
