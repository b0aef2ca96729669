#!/usr/bin/env python3
"""Decode beside busy neighbours: kvasir bench on two CPUs, alone and with one and two processes that
spin there at the same priority. A fair share is 67% and 50% of alone; the aims are 60% and 40%. The
share of a row is the median over rounds, each compared with the run alone in the same round.

usage: neighbour_bench.py KVASIR [--shape llama-100m] [--tokens 32] [--rounds 5] [--json]
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

AIMS = {1: 0.60, 2: 0.40}
SPIN = "while True: pass"


def decode_tok_s(args):
    command = [args.kvasir, "bench", "--shape", args.shape, "-p", "0", "-n", str(args.tokens), "-d", "0",
               "--repeats", str(args.repeats), "--threads", "2", "--json"] + args.more
    done = subprocess.run(command, text=True, capture_output=True, check=True)
    return json.loads(done.stdout)["results"][0]["tok_s"]


def with_hogs(count, measure):
    hogs = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(count)]
    try:
        return measure()
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("kvasir")
    parser.add_argument("--shape", default="llama-100m")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3, help="of the decode in one run; the median counts")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each row, interleaved")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("more", nargs="*", help="more flags of kvasir bench, after --")
    args = parser.parse_args()
    cpus = sorted(os.sched_getaffinity(0))[:2]
    if len(cpus) < 2:
        print("neighbour: needs two CPUs; skipped")
        return 0
    os.sched_setaffinity(0, cpus)  # what is started below inherits it
    speeds = {0: [], 1: [], 2: []}
    for _ in range(args.rounds):
        for hogs in speeds:
            speeds[hogs].append(with_hogs(hogs, lambda: decode_tok_s(args)))
    median = {hogs: statistics.median(values) for hogs, values in speeds.items()}
    rows = [{"hogs": hogs, "tok_s": median[hogs], "tok_s_min": min(values), "tok_s_max": max(values),
             "share_of_alone": statistics.median(map(lambda beside, alone: beside / alone, values, speeds[0])),
             "aim": AIMS.get(hogs)}
            for hogs, values in speeds.items()]
    if args.json:
        print(json.dumps({"shape": args.shape, "tokens": args.tokens, "rounds": args.rounds, "rows": rows},
                         indent=2))
        return 0
    print(f"decode of {args.shape} on two CPUs beside processes that spin ({args.rounds} rounds)")
    for row in rows:
        aim = f"   aim {row['aim']:.0%}" if row["aim"] else ""
        print(f"  {row['hogs']} hogs  {row['tok_s']:8.1f} tok/s ({row['tok_s_min']:.1f} .. {row['tok_s_max']:.1f})"
              f"   {row['share_of_alone']:.0%} of alone{aim}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
