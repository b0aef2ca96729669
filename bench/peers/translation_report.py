"""The table of ctranslate2_bench.py's samples: medians, ratios, and the share of what memory allows."""

import statistics

import make_translation_model
import report

GOALS = {
    "greedy-1": 1.2,
    "beams-1": 1.2,
    "beams-64": 1.1,
    "encoder-16x60": 1.0,
    "lines-greedy": 1.1,
}
SHARE_GOAL = 0.8
OTHER_ROWS = ("first-16x60", "memory-64")
I8_BITS = 9  # of a number, with its share of scale and minimum
HEAD = ["row", "kvasir", "CTranslate2", "ratio", "goal", "share of the bound", "goal"]


def speeds(row, engine):
    """(median, least, most), tokens per second."""
    every = sorted(row["tokens"] / seconds for seconds in row[engine])
    return statistics.median(every), every[0], every[-1]


def ratio(row):
    return speeds(row, "kvasir")[0] / speeds(row, "ctranslate2")[0]


def step_bytes(model):
    """Bytes of a decoder's step: its matrices and the head, as i8."""
    h, ffn = model["d_model"], model["decoder_ffn_dim"]
    numbers = model["decoder_layers"] * (6 * h * h + 2 * h * ffn) + model["vocab_size"] * h
    return numbers * I8_BITS / 8


def share(data, row):
    """A step's speed, of that at which memory gives its bytes; K and V are less than 1% of them."""
    if "read_gb_s" not in row:
        return None
    bound = max(row["read_gb_s"]) * 1e9 / step_bytes(data["model"])
    return row["num_steps"] / statistics.median(row["steps"]) / bound


def cell(row, engine):
    median, least, most = speeds(row, engine)
    return f"{median:.1f} ({least:.1f}-{most:.1f})"


def table(data):
    rows = []
    for name, row in data["rows"].items():
        if "tokens" not in row:
            continue
        of_bound = share(data, row)
        rows.append([
            name, cell(row, "kvasir"), cell(row, "ctranslate2"),
            report.two_digits(ratio(row)), report.two_digits(GOALS.get(name)),
            report.percent(of_bound), report.percent(SHARE_GOAL if of_bound else None),
        ])  # fmt: skip
    return report.markdown(HEAD, rows)


def mib(number):
    return f"{number / (1 << 20):.0f} MiB"


def missed(data):
    """Says in words which rows miss their goals."""
    found = []
    for name, row in data["rows"].items():
        if name in GOALS and round(ratio(row), 2) < GOALS[name]:
            found.append(f"{name}, {ratio(row):.2f} of {GOALS[name]:.2f}")
        of_bound = share(data, row) if "tokens" in row else None
        if of_bound and round(of_bound, 2) < SHARE_GOAL:
            found.append(f"{name}, {of_bound:.0%} of the bound instead of {SHARE_GOAL:.0%}")
    return found


def facts(data):
    """Lines of a list, without the dash."""
    rows = data["rows"]
    days = sorted({row["when"][:10] for row in rows.values()})
    versions = sorted({v for row in rows.values() for v in row["version"].items()})
    yield f"Missed: {'; '.join(missed(data)) or 'nothing'}."
    absent = [name for name in (*GOALS, *OTHER_ROWS) if name not in rows]
    if absent:
        yield f"Not measured: {', '.join(absent)}."
    machine = data["machine"]
    when = " to ".join(dict.fromkeys((days[0], days[-1])))
    yield f"{machine['cpu']}, {machine['threads']} threads, {when}."
    names = {"ctranslate2": "CTranslate2 ", "kvasir": ""}
    yield f"Versions: {', '.join(names[engine] + version for engine, version in versions)}."
    if "beams-64" in rows:
        row = rows["beams-64"]
        setting = row["setting"]
        first, again = (statistics.median(row[key]) for key in ("kvasir", "again"))
        yield (
            f"CTranslate2's best setting of beams-64: {setting['workers']} workers, max_batch_size "
            f"{setting['batch']}, batch type {setting['type']}."
        )
        yield (
            f"The same 64 sentences again: {row['encoder_passes_again']} encoder passes, "
            f"{again / first:.2f} of the first time."
        )
    if "encoder-16x60" in rows:
        row = rows["encoder-16x60"]
        less = statistics.median(row["ctranslate2"]) / statistics.median(row["one_layer"])
        yield (
            f"encoder-16x60 without all but one layer's K and V of the decoder: {less:.2f} of "
            "CTranslate2, which computes none."
        )
    if "memory-64" in rows:
        row = rows["memory-64"]
        beyond = {e: row["resident"][e] - row["weights"][e] for e in row["resident"]}
        yield (
            f"Resident memory beyond the weights while beams-64 runs: Kvasir {mib(beyond['kvasir'])}, "
            f"CTranslate2 {mib(beyond['ctranslate2'])}; Kvasir's plan is "
            f"{mib(row['plan'] - row['weights']['kvasir'])} at most."
        )
