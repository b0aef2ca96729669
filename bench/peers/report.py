"""The table of compare.py's samples: medians, ratios, and the share of what the machine allows."""

import dataclasses
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


def goal(row, target):
    """(ratio to the best peer, share of the bound) that the project asks of a row on a target."""
    amx, vnni = target == "amx", target == "avx512vnni"
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
    """Returns of each engine and row only the version that was measured last."""
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
    return spreads.get(engines.Row("decode", 0, row.weights, shape=row.shape).name, {})


TESTS = ("prefill", "decode", "shared", "hog")
WEIGHTS = ("Q8_0", "Q4_0", "Q4_K_M", "BF16")


def place(name):
    """Where a row stands in the table."""
    row = engines.row_of(name)
    weights = WEIGHTS.index(row.weights) if row.weights in WEIGHTS else len(WEIGHTS)
    return row.shape, TESTS.index(row.test), row.amount, weights, row.kv


@dataclasses.dataclass
class Measured:
    """A row of the table."""

    row: engines.Row
    speeds: dict  # engine: (median, least, most), tokens/s
    alone: dict  # the same of decode without busy neighbours
    read_gb_s: float
    bound: float | None  # tokens/s; none for rows beside busy processes
    ratio_goal: float | None
    share_goal: float | None

    @property
    def best_peer(self):
        return max((v[0] for e, v in self.speeds.items() if e != "kvasir"), default=None)

    @property
    def ratio(self):
        best = self.best_peer
        return self.speeds["kvasir"][0] / best if "kvasir" in self.speeds and best else None

    def share(self, speed):
        return speed / self.bound if speed and self.bound else None

    @property
    def own_share(self):
        return self.share(self.speeds.get("kvasir", (None,))[0])

    def speed_cell(self, engine):
        if engine not in self.speeds:
            return "-"
        median, least, most = self.speeds[engine]
        text = f"{median:.1f} ({least:.1f}-{most:.1f})"
        if self.row.test == "hog" and engine in self.alone:
            text += f", {100 * median / self.alone[engine][0]:.0f}% of alone"
        return text

    def cells(self):
        shares = [self.own_share, self.share(self.best_peer)]
        return [
            self.row.name,
            *(self.speed_cell(e) for e in engines.ENGINES),
            two_digits(self.ratio),
            two_digits(self.ratio_goal),
            "-" if self.bound is None else f"{self.bound:.1f}",
            "-" if self.bound is None else " / ".join(map(percent, shares)),
            percent(self.share_goal),
            f"{self.read_gb_s:.1f}",
        ]


def two_digits(x):
    return "-" if x is None else f"{x:.2f}"


def percent(x):
    return "-" if x is None else f"{100 * x:.0f}%"


def target_of(data):
    """The instruction set that Kvasir ran on in these samples; without any, the CPU's best one."""
    targets = {s["target"] for s in data["samples"] if "target" in s}
    if len(targets) > 1:
        raise ValueError(f"samples of several targets in one file: {', '.join(sorted(targets))}")
    limits = data["machine"]["limits"]
    best = "amx" if "int8 amx" in limits else "avx512vnni" if "int8 vnni zmm" in limits else "avx2"
    return targets.pop() if targets else best


def measured_rows(data):
    """In the order of the table."""
    samples, target = newest(data["samples"]), target_of(data)
    by_row = {}
    for s in samples:
        by_row.setdefault(s["row"], []).append(s)
    spreads = {
        name: {
            e: spread([s for s in of_row if s["engine"] == e])
            for e in engines.ENGINES
            if any(s["engine"] == e for s in of_row)
        }
        for name, of_row in by_row.items()
    }
    rows = []
    for name in sorted(by_row, key=place):
        row = engines.row_of(name)
        read = statistics.median(x for s in by_row[name] for x in s["read_gb_s"])
        most = None
        if row.test != "hog":
            model = gguf.Model(**data["models"][row.model])
            most = bound(row, model, data["machine"]["limits"], target, read)
        goals = goal(row, target)
        rows.append(Measured(row, spreads[name], alone(row, spreads), read, most, *goals))
    return rows


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


def markdown(head, rows):
    return "\n".join("| " + " | ".join(r) + " |" for r in [head, ["---"] * len(head), *rows])


def table(data):
    return markdown(HEAD, [m.cells() for m in measured_rows(data)])
