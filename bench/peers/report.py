"""The table of compare.py's samples: medians, ratios, and the share of what the machine allows."""

import statistics

import engines
import gguf

FLOAT_WEIGHTS = ("BF16", "F16", "F32")
FOUR_BITS = ("Q4_0", "Q4_K_M")


def peaks_of(target, weights, kv):
    """Names of the limits of a target of Kvasir: of products with weights, of attention's."""
    wide = "zmm" if "512" in target or "amx" in target else "ymm"
    vnni = "vnni" in target or "amx" in target
    attention = f"f32 fma {wide}"
    if kv != "f16":
        attention = f"int16 {'vnni' if vnni else 'madd'} {wide}"
    if weights in FLOAT_WEIGHTS:
        return f"f32 fma {wide}", attention
    if "amx" in target:
        return "int8 amx, k of 32", attention
    if vnni:
        return f"int8 vnni {wide}", attention
    return f"int8 maddubs+{'paddw' if weights in FOUR_BITS else 'madd'} {wide}", attention


def bound(row, model, limits, target, read_gb_s):
    """Tokens per second that the machine allows, by what it can read and multiply."""
    weights_peak, attention_peak = (
        limits.get(name, {"median": float("inf")})["median"] * 1e9
        for name in peaks_of(target, row.weights, row.kv)
    )
    if row.test == "prefill":
        operations = 2 * (model.body_products * row.amount + model.head_products)
        attention = model.attention_operations(row.amount / 2) * row.amount
        return row.amount / (operations / weights_peak + attention / attention_peak)
    # A step reads all weights once, and a shared prefix once for all that share it.
    seen = engines.SHARED_TOKENS if row.test == "shared" else row.depth
    sequences = engines.SEQUENCES if row.test == "shared" else 1
    read = read_gb_s * 1e9
    attention = sequences * model.attention_operations(seen) / attention_peak
    seconds = model.weight_bytes / read + max(model.kv_bytes(seen, row.kv) / read, attention)
    return sequences / seconds


def goal(row, limits):
    """(ratio to the best peer, share of the bound) that the project asks of a row."""
    amx, vnni = "int8 amx" in limits, "int8 vnni zmm" in limits
    if row.test == "prefill":
        if row.weights in FLOAT_WEIGHTS:
            return None, 0.8 if row.amount <= 2048 else None
        if row.amount > 2048:
            return (1.25 if row.amount == 4096 else None), 0.6
        if amx:
            return 1.0, None
        if vnni:
            return (1.2 if row.weights == "Q8_0" else 1.15), 0.6
        return (1.0 if row.weights == "Q8_0" else 1.05), 0.5
    if row.test == "decode" and row.depth == 0:
        ratio = 1.0 if row.weights == "Q8_0" else 1.03 if row.weights == "BF16" else 1.05
        return ratio, 0.88
    if row.test == "decode" and row.depth == 4096:
        return 1.05, 0.85
    if row.test == "decode":
        return (1.6 if row.kv == "f16" else 1.15), 0.78
    return (1.25, None) if row.test == "shared" else (None, None)


def newest(samples):
    """Of each engine and row only the version that was measured last."""
    latest = {}
    for s in samples:
        key = (s["row"], s["engine"])
        if key not in latest or s["when"] >= latest[key]["when"]:
            latest[key] = s
    return [s for s in samples if s["version"] == latest[s["row"], s["engine"]]["version"]]


def spread(samples):
    """(median of the rounds' medians, least, most)."""
    every = [x for s in samples for x in s["tok_s"]]
    return statistics.median(statistics.median(s["tok_s"]) for s in samples), min(every), max(every)


def alone(row, spreads):
    """The same engine's decode without the busy neighbours."""
    return spreads.get(engines.Row("decode", 0, row.weights).name, {})


TESTS = ("prefill", "decode", "shared", "hog")
WEIGHTS = ("Q8_0", "Q4_0", "Q4_K_M", "BF16")


def place(name):
    """Where a row stands in the table."""
    row = engines.row_of(name)
    weights = WEIGHTS.index(row.weights) if row.weights in WEIGHTS else len(WEIGHTS)
    return TESTS.index(row.test), row.amount, weights, row.kv


def line(row, spreads, samples, data):
    mine = spreads[row.name]
    limits = data["machine"]["limits"]
    read = statistics.median(x for s in samples for x in s["read_gb_s"])
    target = next((s["target"] for s in samples if "target" in s), None)
    best = max((v[0] for e, v in mine.items() if e != "kvasir"), default=None)
    cells = [row.name]
    for engine in engines.ENGINES:
        text = "-"
        if engine in mine:
            median, least, most = mine[engine]
            text = f"{median:.1f} ({least:.1f}-{most:.1f})"
            if row.test == "hog" and engine in alone(row, spreads):
                text += f", {100 * median / alone(row, spreads)[engine][0]:.0f}% of alone"
        cells.append(text)
    ratio_goal, share_goal = goal(row, limits)
    ratio = mine["kvasir"][0] / best if "kvasir" in mine and best else None
    cells.append("-" if ratio is None else f"{ratio:.2f}")
    cells.append("-" if ratio_goal is None else f"{ratio_goal:.2f}")
    if row.test == "hog":
        return cells + ["-", "-", "-", f"{read:.1f}"]
    assumed = target or (
        "amx" if "int8 amx" in limits else "avx512_vnni" if "int8 vnni zmm" in limits else "avx2"
    )
    most = bound(row, gguf.Model(**data["models"][row.weights]), limits, assumed, read)
    cells.append(f"{most:.1f}")
    share = [f"{100 * v / most:.0f}%" for v in (mine.get("kvasir", (None,))[0], best) if v]
    cells.append(" / ".join(share))
    cells.append("-" if share_goal is None else f"{100 * share_goal:.0f}%")
    return cells + [f"{read:.1f}"]


HEAD = [
    "row",
    *engines.ENGINES,
    "ratio to the best",
    "goal",
    "bound",
    "share: Kvasir / best peer",
    "goal",
    "GB/s",
]


def table(data):
    samples = newest(data["samples"])
    names = sorted({s["row"] for s in samples}, key=place)
    by_row = {n: [s for s in samples if s["row"] == n] for n in names}
    spreads = {
        n: {
            e: spread([s for s in by_row[n] if s["engine"] == e])
            for e in engines.ENGINES
            if any(s["engine"] == e for s in by_row[n])
        }
        for n in names
    }
    rows = [line(engines.row_of(n), spreads, by_row[n], data) for n in names]
    return "\n".join("| " + " | ".join(r) + " |" for r in [HEAD, ["---"] * len(HEAD), *rows])
