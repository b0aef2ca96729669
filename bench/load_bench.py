#!/usr/bin/env python3
"""`kvasir serve` under load, as bench/load sees it: a burst with a shared beginning, chats whose
answers' lengths nobody knows, and two tenants of which one floods the server. The chats need a model
with text, the bundled one; the rest runs on a shape.

usage: load_bench.py [--json] [--model M | --shape S] KVASIR LOAD

Starts a server on 127.0.0.1 for each row and prints each figure beside its target. What a figure is
compared with runs in the same call. Exit status 1 when an answer is not what it must be; a missed
target is shown, not an error.
"""
import argparse
import json
import subprocess

from serve_bench import Server, check

MOST_OWN_CPU = 0.05  # above it the generator may have delayed what it measured
KEYS = ["--api-key", "quiet", "--api-key", "busy"]


class Bench:
    pool = "4MiB"  # 3,900 tokens of the bundled model, whose context is 2,048

    def __init__(self, arguments):
        self.kvasir, self.program = arguments.kvasir, arguments.load
        self.model = ["--model", arguments.model] if arguments.model else ["--shape", arguments.shape]

    def row(self, measure):
        """The figure, and the generator's largest share of a core meanwhile."""
        self.own_cpu_share = 0
        return *measure(), self.own_cpu_share

    def serve(self, *flags):
        return Server(self.kvasir, *self.model, *flags)

    def start(self, server, *flags):
        command = [self.program, "--json", "--url", "http://{}:{}".format(*server.address),
                   "--pid", str(server.process.pid), *map(str, flags)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def finish(self, process):
        report = json.loads(process.communicate()[0])
        self.own_cpu_share = max(self.own_cpu_share, report["own_cpu_share"])
        check(report["broken"] == 0, f"broken answers: {report}")
        return report

    def load(self, server, *flags):
        return self.finish(self.start(server, *flags))

    def burst(self):
        """16 requests, 8 at once, on a cold server, and 16 others that find the shared part there."""
        flags = ["--workload", "burst", "--max-total", 4224, "--concurrency", 8, "--vocab", 30000]
        with self.serve() as server:
            cold = self.load(server, *flags)
            warm = self.load(server, *flags, "--seed", 2)
        with self.serve() as server:
            alone = self.load(server, *flags, "--requests", 1)["ttft_ms"]["p50"] / 1e3
        for report, shared in (cold, 2048), (warm, 0):
            computed = report["prompt_tokens"] - report["cached_tokens"]
            check(computed == shared + 16 * 64, f"a burst computed {computed} tokens")
        ratio = cold["seconds"] / (alone + warm["seconds"])
        return ("burst_to_parts", ratio, ratio <= 1.1, "<= 1.1",
                f"{cold['seconds']:.2f} s for 16 cold requests that share 2,048 tokens; {warm['seconds']:.2f} s for "
                f"16 that find these, {alone:.2f} s for a prompt alone")

    def chats(self):
        """Chats without max_tokens, in a pool for two contexts: the length of an answer is not known."""
        reports = {}
        for admission in ("full", "expected"):
            with Server(self.kvasir, "--admission", admission, "--kv-memory", self.pool,
                        "--generation-config", "none") as server:
                reports[admission] = self.load(server, "--workload", "chats", "--chat", "--requests", 48, "--temperature", 3,
                                               "--vocab", 1000)
        speed = {name: report["tokens_per_s"] for name, report in reports.items()}
        ratio = speed["expected"] / speed["full"]
        return ("chats_expected_to_full", ratio, ratio >= 1.2, ">= 1.2",
                f"{speed['expected']:.0f} and {speed['full']:.0f} tokens/s of the bundled model's answers")

    def neighbours(self):
        """A quiet tenant alone, and beside one that keeps eight requests waiting."""
        flags = ["--workload", "tenants", "--requests", 12, "--concurrency", 1, "--api-key", "quiet"]
        flood = ["--workload", "tenants", "--requests", 4000, "--concurrency", 16, "--api-key", "busy", "--seed", 9]
        with self.serve(*KEYS, "--admin-key", "a") as server:
            alone = self.load(server, *flags, "--seed", 1)
            busy = self.start(server, *flood)
            try:
                beside = self.load(server, *flags, "--seed", 2)
            finally:
                busy.kill()
                busy.communicate()
        ratio = beside["ttft_ms"]["p50"] / alone["ttft_ms"]["p50"]
        return ("quiet_ttft_beside_a_flood", ratio, ratio <= 8, "<= 8",
                f"p50 {beside['ttft_ms']['p50']:.0f} ms beside 16 clients of another key, "
                f"{alone['ttft_ms']['p50']:.0f} ms alone; p95 {beside['ttft_ms']['p95']:.0f} and "
                f"{alone['ttft_ms']['p95']:.0f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one object instead of lines")
    parser.add_argument("--model", help="a model instead of a shape")
    parser.add_argument("--shape", default="llama-100m")
    parser.add_argument("kvasir")
    parser.add_argument("load")
    bench = Bench(arguments := parser.parse_args())
    figures = [bench.row(measure) for measure in (bench.burst, bench.chats, bench.neighbours)]
    if arguments.json:
        print(json.dumps({name: {"value": value, "met": met, "target": target, "what": what, "own_cpu_share": own}
                          for name, value, met, target, what, own in figures}, indent=2))
        return
    for name, value, met, target, what, own in figures:
        verdict = "VOID" if own > MOST_OWN_CPU else "ok" if met else "MISSED"
        print(f"{verdict:<7}{name:<26} {value:8.3f}  target {target:<8} {what}; generator {own:.1%} of a core")


if __name__ == "__main__":
    main()
