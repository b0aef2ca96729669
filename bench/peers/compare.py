#!/usr/bin/env python3
"""Kvasir and its peers side by side on this machine: one process, one row, one engine at a time.

    compare.py --peers ~/.cache/kvasir-peers --models models --rows 'prefill-512|decode-0'
    compare.py --report                           # docs/performance.md and its figure
    compare.py --report bench/results/FILE.json   # the table of one file, printed

Needs peers built by build.sh, models made by make_models.sh, and build/release/bench/limits. The
rows are TEST-AMOUNT/WEIGHTS/KV: prefill of that many tokens, decode at that depth, eight sequences
that share a prefix of that length, decode beside that many busy processes; --rows is a regular
expression over those names. With --shape NAME (models of make_models.sh in another shape than
llama-1b) they are NAME/TEST-AMOUNT/WEIGHTS/KV. In each round the engines take turns, and memory bandwidth is read
before and after each. Every sample is kept at once in --out, so a run may be stopped and started
again: it goes on with what is missing. Samples of another version of an engine do not count;
--fresh drops those of the chosen rows.

--wrap CMD: put before each measurement (a lock, say); one takes less than a minute, prompts of
16K tokens aside.
"""

import argparse
import contextlib
import dataclasses
import datetime
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys

import engines
import page
import report

ROOT = pathlib.Path(__file__).resolve().parents[2]
READ_MIB = "1024"


def all_rows(shape):
    """In the order of the report."""
    return [dataclasses.replace(row, shape=shape) for row in rows_of_one_shape()]


def rows_of_one_shape():
    for weights in report.WEIGHTS:
        for tokens in (512, 2048, 4096, 16384):
            yield engines.Row("prefill", tokens, weights)
        for depth in (0, 4096, 16384, 32768):
            for kv in ("f16", "q8_0", "q4_0") if depth else ("f16",):
                yield engines.Row("decode", depth, weights, kv)
        yield engines.Row("shared", 2048, weights)
        for hogs in (1, 2):
            yield engines.Row("hog", hogs, weights)


def limits(o, *flags):
    out = engines.run([o.limits, "--json", "--threads", str(o.threads), *flags])
    return json.loads(out)


def bandwidth(o):
    [read] = limits(o, "--only", "read", "--mib", READ_MIB, "--repeats", "3")["limits"]
    return read["median"]


def measure_one(o, name, row):
    """In a new process and session, with the highest priority that the kernel allows."""
    for step in (
        os.setsid,
        lambda: pathlib.Path("/proc/self/autogroup").write_text("-20"),
        lambda: os.nice(-20),
    ):
        with contextlib.suppress(OSError):  # not root, or has it: else the machine must be quiet
            step()
    sample = {"read_gb_s": [bandwidth(o)]}
    hogs = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(row.amount if row.test == "hog" else 0)
    ]
    try:
        sample |= engines.engine_of(name, o, model_path(o, row)).measure(row)
    finally:
        for hog in hogs:
            hog.send_signal(signal.SIGKILL)
            hog.wait()
    sample["read_gb_s"].append(bandwidth(o))
    return sample


def model_path(o, row):
    return os.path.join(o.models, f"{row.weights}.gguf")


def child(o, what):
    """Runs this script again for one measurement, with the command of --wrap before it."""
    command = [
        *shlex.split(o.wrap),
        sys.executable,
        os.path.abspath(__file__),
        *o.passed_on,
        "--one",
        what,
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise RuntimeError(f"{what}: exit {done.returncode}")
    return json.loads(done.stdout)


FEATURES = "avx2 avx_vnni avx512bw avx512_vnni avx512_bf16 amx_int8 amx_bf16 asimddp".split()


def cpu_info(key):
    """The first CPU's entry in /proc/cpuinfo."""
    for line in open("/proc/cpuinfo"):
        if line.startswith(key):
            return line.split(":", 1)[1].strip()
    return "unknown"


def default_out(cpu):
    slug = re.sub(r"[^a-z0-9]+", "-", re.sub(r"\(.*?\)|processor|cpu", "", cpu.lower())).strip("-")
    return ROOT / "bench/results" / f"{slug}-{datetime.date.today().isoformat()}.json"


class Results:
    """The file of samples; written anew, whole, after each."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.data = json.loads(self.path.read_text()) if self.path.exists() else {"samples": []}

    def save(self):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_suffix(".part")
        head = {k: v for k, v in self.data.items() if k != "samples"}
        lines = ",\n  ".join(json.dumps(s) for s in self.data["samples"])
        part.write_text(json.dumps(head, indent=1)[:-2] + f',\n "samples": [\n  {lines}\n ]\n}}\n')
        part.replace(self.path)

    def has(self, key):
        return any(all(s.get(k) == v for k, v in key.items()) for s in self.data["samples"])

    def drop(self, rows):
        self.data["samples"] = [s for s in self.data["samples"] if s["row"] not in rows]


def compare(o):
    results = Results(o.out or default_out(cpu_info("model name")))
    rows = [r for r in all_rows(o.shape) if re.search(o.rows, r.name)]
    if not rows:
        raise SystemExit(f"--rows {o.rows}: matches none; the names are like decode-4096/Q8_0/q8_0")
    if o.fresh:
        results.drop({r.name for r in rows})
    if "machine" not in results.data:
        measured = child(o, "limits")
        results.data["machine"] = {
            "cpu": measured["cpu"],
            "threads": measured["threads"],
            "features": [f for f in FEATURES if f in cpu_info("flags").split()],
            "limits": {l.pop("limit"): l for l in measured["limits"]},
        }
    versions = {e: engines.engine_of(e, o, "").version() for e in o.engines}
    models = results.data.setdefault("models", {})
    for row in rows:
        models.setdefault(row.model, vars(report.gguf.read(model_path(o, row))))
    for round_number in range(o.rounds):
        for row in rows:
            turn = round_number % len(o.engines)
            for name in o.engines[turn:] + o.engines[:turn]:
                key = {
                    "row": row.name,
                    "engine": name,
                    "round": round_number,
                    "version": versions[name],
                }
                if results.has(key):
                    continue
                try:
                    sample = child(o, f"{name} {row.name}")
                except (RuntimeError, ValueError) as e:
                    print(f"{row.name} {name}: {e}", file=sys.stderr)
                    continue
                now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
                results.data["samples"].append({**key, **sample, "when": now})
                results.save()
                print(
                    f"{row.name} {name}: {sample['tok_s']}, read {sample['read_gb_s']} GB/s",
                    file=sys.stderr,
                )
    print(report.table(results.data))


def parse():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument(
        "--report",
        metavar="FILE",
        nargs="?",
        const="",
        help="write docs/performance.md and its figure from bench/results, or print FILE's table",
    )
    p.add_argument("--peers", default="", help="the cache folder of build.sh")
    p.add_argument(
        "--models", default="", help="a folder of Q8_0.gguf, Q4_0.gguf, Q4_K_M.gguf, BF16.gguf"
    )
    p.add_argument("--shape", default="", help="of --models, where it is not llama-1b")
    p.add_argument("--kvasir", default=str(ROOT / "build/release/kvasir"))
    p.add_argument("--kvasir-flag", action="append", default=[], help="one more flag for kvasir")
    p.add_argument("--limits", default=str(ROOT / "build/release/bench/limits"))
    p.add_argument("--engines", default=",".join(engines.ENGINES))
    p.add_argument("--rows", default="")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("--out", default="", help="default: bench/results/CPU-DATE.json")
    p.add_argument("--wrap", default="")
    p.add_argument("--fresh", action="store_true")
    p.add_argument("--one", help=argparse.SUPPRESS)
    o = p.parse_args()
    o.engines = o.engines.split(",")
    o.passed_on = [
        f"--{name.replace('_', '-')}={value}"
        for name in ("peers", "models", "kvasir", "limits", "threads")
        for value in [getattr(o, name)]
    ]
    o.passed_on += [f"--kvasir-flag={flag}" for flag in o.kvasir_flag]
    return o


def main():
    o = parse()
    if o.report == "":
        for path in page.write():
            print(f"wrote {path.relative_to(ROOT)}")
    elif o.report:
        print(report.table(json.loads(pathlib.Path(o.report).read_text())))
    elif o.one == "limits":
        print(json.dumps(limits(o)))
    elif o.one:
        name, row = o.one.split()
        print(json.dumps(measure_one(o, name, engines.row_of(row))))
    else:
        compare(o)


if __name__ == "__main__":
    main()
