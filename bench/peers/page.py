"""docs/performance.md and the figures beside it, from the samples in bench/results.

The page is text with generated parts: what stands between `<!-- generated: NAME -->` and
`<!-- end: NAME -->`. All files of bench/results become sections; of one CPU and target only the
newest file. Those of bench/results/translation become tables in the same way, one of each CPU.
"""

import json
import pathlib
import re
import textwrap

import bars
import engines
import report
import translation_report

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench/results"
PAGE = ROOT / "docs/performance.md"
FIGURE = ROOT / "docs/shared-prefix.svg"

PART = re.compile(r"(<!-- generated: ([^\n]*?) -->\n).*?(<!-- end: \2 -->\n)", re.DOTALL)


class Section:
    """The samples of one CPU and target."""

    def __init__(self, path):
        self.file = path.name
        self.data = json.loads(path.read_text())
        self.rows = report.measured_rows(self.data)
        self.target = report.target_of(self.data)
        cpu = self.data["machine"]["cpu"]
        self.cpu = re.sub(r"\((R|TM)\)| Processor$", "", cpu).strip()
        self.title = f"{self.cpu}, target {self.target}"
        self.latest = max(s["when"] for s in self.data["samples"])
        self.earlier = []  # names of older files of the same CPU and target

    def row(self, name):
        return next((m for m in self.rows if m.row.name == name), None)

    def versions(self):
        by_engine = {}
        for s in report.newest(self.data["samples"]):
            by_engine.setdefault(s["engine"], {}).setdefault(s["version"], set()).add(s["row"])
        texts = []
        for engine in engines.ENGINES:
            versions = by_engine.get(engine, {})
            for version, rows in sorted(versions.items()):
                name = version if version.startswith(engine) else f"{engine} {version}"
                texts.append(name + (f" ({short(rows)})" if len(versions) > 1 else ""))
        return "; ".join(texts)


def short(rows):
    """Names of rows without weights and KV, each once, in the order of the table."""
    return ", ".join(dict.fromkeys(engines.row_of(n).title for n in sorted(rows, key=report.place)))


def sections(folder=RESULTS):
    by_machine = {}
    for path in sorted(folder.glob("*.json")):
        section = Section(path)
        by_machine.setdefault((section.cpu, section.target), []).append(section)
    chosen = []
    for same in by_machine.values():
        *older, newest = sorted(same, key=lambda s: s.latest)
        newest.earlier = [s.file for s in older]
        chosen.append(newest)
    return sorted(chosen, key=lambda s: (-len(s.rows), s.title))


def glance(found):
    """A few rows of all sections side by side, as ratios to the best peer."""
    names = [f"{test}/{w}/f16" for test in ("prefill-512", "prefill-4096", "decode-0",
                                            "decode-4096", "decode-16384", "shared-2048")
             for w in ("Q8_0", "Q4_0", "BF16")]
    names = [n for n in names if any(s.row(n) for s in found)]
    rows = [
        [n, *(report.two_digits(s.row(n).ratio) if s.row(n) else "-" for s in found)]
        for n in names
    ]
    return report.markdown(["row", *(s.title for s in found)], rows) + "\n"


def limits_table(section):
    machine = section.data["machine"]
    rows = [
        [name, l["unit"], *(f"{l[key]:,.1f}" for key in ("median", "min", "max"))]
        for name, l in machine["limits"].items()
    ]
    head = [f"limit, {machine['threads']} threads", "unit", "median", "least", "most"]
    return report.markdown(head, rows)


def met(rows, value, wanted):
    """How many rows with a goal reach it, as the table shows both: two digits, per cent."""
    asked = [m for m in rows if wanted(m) is not None and value(m) is not None]
    reached = [m for m in asked if round(value(m), 2) >= round(wanted(m), 2)]
    return f"{len(reached)} of {len(asked)} rows that have one"


def slower(rows):
    slower = [f"{m.row.name} ({m.ratio:.2f})" for m in rows if m.ratio and m.ratio < 1]
    return ", ".join(slower) or "none"


def section_text(section):
    days = sorted({s["when"][:10] for s in section.data["samples"]})
    rounds = 1 + max(s["round"] for s in section.data["samples"])
    ratios = met(section.rows, lambda m: m.ratio, lambda m: m.ratio_goal)
    shares = met(section.rows, lambda m: m.own_share, lambda m: m.share_goal)
    earlier = "".join(f"; earlier: [{n}](../bench/results/{n})" for n in section.earlier)
    facts = [
        f"Samples: [{section.file}](../bench/results/{section.file}){earlier}.",
        f"Date: {' to '.join(dict.fromkeys((days[0], days[-1])))}. Rounds: {rounds}.",
        f"CPU: {section.data['machine']['cpu']}, with {', '.join(section.data['machine']['features'])}.",
        f"Versions: {section.versions()}.",
        f"Slower than the best peer: {slower(section.rows)}.",
        f"The goal of the ratio is reached by {ratios}; the goal of the share by {shares}.",
    ]
    lines = [f"### {section.title}", "", *(folded(f) for f in facts), ""]
    return "\n".join([*lines, report.table(section.data), "", limits_table(section), ""])


def folded(fact):
    """A line of a list, within the 120 columns of docs."""
    return textwrap.fill(
        fact,
        120,
        initial_indent="- ",
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def translations(folder=RESULTS / "translation"):
    """The newest file of each CPU: what is missed first, then its table."""
    newest = {}
    for path in sorted(folder.glob("*.json")):
        data = json.loads(path.read_text())
        newest[data["machine"]["cpu"]] = (path.name, data)
    texts = []
    for name, data in newest.values():
        link = f"Samples: [{name}](../bench/results/translation/{name})."
        lines = [*map(folded, [*translation_report.facts(data), link])]
        texts.append("\n".join([*lines, "", translation_report.table(data), ""]))
    return "\n".join(texts)


def parts(found):
    """Name of a generated part: its text."""
    return {
        "ratios to the best peer": glance(found),
        "translation": translations(),
        "sections": "\n".join(section_text(s) for s in found),
    }


def written(text, found):
    """`text` with its generated parts as they should be. ValueError names a part that is unknown,
    missing or not closed."""
    made = parts(found)
    seen = [name for _, name, _ in PART.findall(text)]
    if sorted(seen) != sorted(made) or text.count("<!-- generated:") != len(seen):
        raise ValueError(f"the page has the parts {seen}; it must have {list(made)}, each closed")
    return PART.sub(lambda m: m[1] + "\n" + made[m[2]] + "\n" + m[3], text)


def figure(found):
    """Eight sequences that share a prefix: Kvasir beside llama.cpp, of each section that has both."""
    groups = []
    for section in found:
        for m in section.rows:
            if m.row.test == "shared" and {"kvasir", "llama.cpp"} <= m.speeds.keys():
                speeds = [m.speeds[e] for e in ("kvasir", "llama.cpp")]
                groups.append((f"{section.cpu}, {m.row.weights}", speeds))
    title = f"{engines.SEQUENCES} sequences that share a prefix of {engines.SHARED_TOKENS:,} tokens"
    threads = " or ".join(str(n) for n in sorted({s.data["machine"]["threads"] for s in found}))
    note = f"Tokens/s of all together; shape of Llama-3.2-1B, {threads} threads; thin lines: least to most."
    return bars.draw(title, note, ("Kvasir, through its server", "llama.cpp, batched bench"), groups)


def write():
    found = sections()
    PAGE.write_text(written(PAGE.read_text(), found))
    FIGURE.write_text(figure(found))
    return [PAGE, FIGURE]
