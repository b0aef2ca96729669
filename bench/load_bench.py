#!/usr/bin/env python3
"""`kvasir serve` under load, as bench/load and clients see it.

usage: load_bench.py [--json] [--rows R,...] [--model M | --shape S] [--llama-server PROGRAM]
                     [--seconds 300] [--data DIR] KVASIR LOAD

  burst         16 cold requests that share 2,048 tokens, 8 at once
  chats         chats whose answers' lengths are not known
  long_prompt   a prompt of 8,000 tokens while 4 streams decode
  neighbours    a quiet tenant beside one that floods the server
  overload      an open loop at three times what the server can do, for --seconds
  estimates     first tokens beside what was estimated at arrival, at 0.8 of capacity
  http          8 streams over HTTP beside the same 8 through Engine::Submit (bench/submit_bench)
  streams       200 streams at once
  tracing       every request traced, beside none

The chats and the 200 streams need a model with text, the bundled one; the rest runs on a shape, or on
the file M, which is what --llama-server needs. Lengths of overload and estimates come from the Azure
trace in DIR. Starts a server on 127.0.0.1 for each row and prints each figure beside its target. What
a figure is compared with runs in the same call. Exit status 1 when an answer is not what it must be; a
missed target is shown, not an error.
"""
import argparse
import http.client
import http.server
import json
import pathlib
import random
import re
import statistics
import subprocess
import tempfile
import threading
import time

from llama_server import LlamaServer
from serve_bench import Server, check

ROOT = pathlib.Path(__file__).resolve().parent.parent
MOST_OWN_CPU = 0.05  # above it the generator may have delayed what it measured
KEYS = ["--api-key", "quiet", "--api-key", "busy"]
LONG, STREAMS, TARGET_MS = 8000, 4, 200


class Collector(http.server.ThreadingHTTPServer):
    """Takes spans and counts its requests."""

    def __init__(self):
        self.taken = 0
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                self.rfile.read(int(self.headers["Content-Length"]))
                collector.taken += 1
                self.send_response(200)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_):
                pass

        super().__init__(("127.0.0.1", 0), Handler)

    def __enter__(self):
        self.thread = threading.Thread(target=self.serve_forever)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.thread.join()
        self.server_close()


def stream(address, prompt, max_tokens):
    """Monotonic seconds at which the request went out, and at which each token came."""
    connection = http.client.HTTPConnection(*address, timeout=600)
    sent = time.monotonic()
    connection.request("POST", "/v1/completions", json.dumps(
        {"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "temperature": 0, "stream": True}),
        {"Content-Type": "application/json"})
    response = connection.getresponse()
    check(response.status == 200, f"a stream was answered with {response.status}")
    times = []
    for line in response:
        if line.startswith(b"data: {") and json.loads(line[6:]).get("choices"):
            times.append(time.monotonic())
    return sent, times


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * share))]


ROWS = ("burst", "chats", "long_prompt", "neighbours", "overload", "estimates", "http", "streams", "tracing")


class Bench:
    pool = "4MiB"  # 3,900 tokens of the bundled model, whose context is 2,048

    def __init__(self, arguments):
        self.kvasir, self.program = arguments.kvasir, arguments.load
        self.model = ["--model", arguments.model] if arguments.model else ["--shape", arguments.shape]
        self.shape, self.gguf, self.llama_server = arguments.shape, arguments.model, arguments.llama_server
        self.seconds = arguments.seconds
        self.azure = ["--workload", "azure", "--trace", arguments.data / "azure-llm-2023" / "AzureLLMInferenceTrace_conv.csv",
                      "--scale", "0.1", "--max-total", 1024, "--shuffle"]
        self._capacity = None

    def row(self, measure):
        """The figures of a row, each with the generator's largest share of a core meanwhile."""
        self.own_cpu_share = 0
        return [(*figure, self.own_cpu_share) for figure in measure()]

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
        yield ("burst_to_parts", ratio, ratio <= 1.1, "<= 1.1",
               f"{cold['seconds']:.2f} s for 16 cold requests that share 2,048 tokens; {warm['seconds']:.2f} s for "
               f"16 that find these, {alone:.2f} s for a prompt alone")
        if not self.llama_server:
            return
        with LlamaServer(self.llama_server, self.gguf) as server:
            theirs = self.load(server, *flags, "--wait", 1800)["seconds"]
        ratio = theirs / cold["seconds"]
        yield ("llama_server_to_burst", ratio, ratio >= 5, ">= 5", f"llama-server takes {theirs:.2f} s for the cold burst")

    def chats(self):
        """Chats without max_tokens, in a pool for two contexts: the length of an answer is not known."""
        flags = ["--workload", "chats", "--chat", "--requests", 64, "--temperature", 3, "--vocab", 1000,
                 "--whole"]
        speed = {}
        with tempfile.TemporaryDirectory() as folder:
            lengths = pathlib.Path(folder) / "lengths"
            for name, admission, more in (("unknown", "expected", ["--lengths-out", lengths]),
                                          ("known", "expected", ["--lengths", lengths]), ("full", "full", [])):
                with Server(self.kvasir, "--admission", admission, "--kv-memory", self.pool,
                            "--generation-config", "none") as server:
                    speed[name] = self.load(server, *flags, *more)["tokens_per_s"]
        ratio = speed["unknown"] / speed["full"]
        yield ("chats_expected_to_full", ratio, ratio >= 1.2, ">= 1.2",
               f"{speed['unknown']:.0f} and {speed['full']:.0f} tokens/s of the bundled model's answers, no max_tokens")
        ratio = speed["unknown"] / speed["known"]
        yield ("chats_to_known_lengths", ratio, ratio >= 0.8, ">= 0.8",
               f"{speed['known']:.0f} tokens/s of the same chats with their answers' lengths as max_tokens")

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
        yield ("quiet_ttft_beside_a_flood", ratio, ratio <= 8, "<= 8",
               f"p50 {beside['ttft_ms']['p50']:.0f} ms beside 16 clients of another key, "
               f"{alone['ttft_ms']['p50']:.0f} ms alone; p95 {beside['ttft_ms']['p95']:.0f} and "
               f"{alone['ttft_ms']['p95']:.0f}")

    def beside_streams(self, server):
        """Gaps of streams (ms) while a long prompt is computed beside them, and its time to first token (s)."""
        draw = random.Random(3)
        results = [None] * STREAMS

        def run(i):
            prompt = [draw.randrange(5, 30000) for _ in range(64)]
            results[i] = stream(server.address, prompt, 700)

        threads = [threading.Thread(target=run, args=(i,)) for i in range(STREAMS)]
        for thread in threads:
            thread.start()
        time.sleep(3)
        sent, times = stream(server.address, [draw.randrange(5, 30000) for _ in range(LONG)], 2)
        for thread in threads:
            thread.join()
        gaps = [(b - a) * 1e3 for _, t in results for a, b in zip(t, t[1:]) if b > sent and a < times[0]]
        check(all(t[-1] > times[0] for _, t in results), "a stream ended before the long prompt was computed")
        return gaps, times[0] - sent

    def long_prompt(self):
        size = ["--ctx-size", LONG + 64]
        gaps, ttft = {}, {}
        for target in (TARGET_MS, 0):
            with self.serve(*map(str, size), "--target-itl-ms", str(target)) as server:
                self.learn_step_times(server)
                gaps[target], ttft[target] = self.beside_streams(server)
        p99 = percentile(gaps[TARGET_MS], 0.99)
        yield ("itl_p99_to_target", p99 / TARGET_MS, p99 <= 1.25 * TARGET_MS, "<= 1.25",
               f"p99 {p99:.0f} ms between tokens of {STREAMS} streams beside {LONG:,} new tokens; "
               f"{percentile(gaps[0], 0.99):.0f} ms without a target")
        ratio = ttft[TARGET_MS] / ttft[0]
        yield ("long_ttft_to_no_target", ratio, ratio <= 1.6, "<= 1.6",
               f"first token of the long prompt after {ttft[TARGET_MS]:.2f} s, {ttft[0]:.2f} s without a target")
        if not self.llama_server:
            return
        with LlamaServer(self.llama_server, self.gguf) as server:
            theirs, first = self.beside_streams(server)
        yield ("llama_server_itl_p99_ms", percentile(theirs, 0.99), None, "", f"its long prompt takes {first:.2f} s")

    @staticmethod
    def learn_step_times(server):
        """The step times that chunks are chosen by are learned first."""
        draw = random.Random(4)
        for _ in range(2):
            stream(server.address, [draw.randrange(5, 30000) for _ in range(1024)], 32)

    def capacity(self):
        """Requests a second that 8 clients get through, one after another."""
        if self._capacity is None:
            with self.serve() as server:
                self.load(server, *self.azure, "--requests", 40)
                self._capacity = self.load(server, *self.azure, "--requests", 120, "--seed", 2)["requests_per_s"]
        return self._capacity

    def open_loop(self, server, share, seconds):
        rate = share * self.capacity()
        return self.load(server, *self.azure, "--requests", max(1, int(rate * seconds)), "--rate", f"{rate:.4f}",
                         "--slo-ttft-ms", 2000)

    def overload(self):
        # A server whose users wait two seconds refuses what would start later.
        flags = ["--max-queue-ms", "1500"]
        sweep = {}
        for share in (0.5, 0.75, 1.0, 1.25, 1.5):
            with self.serve(*flags) as server:
                sweep[share] = self.open_loop(server, share, self.seconds / 5)["goodput_per_s"]
        with self.serve(*flags) as server:
            report = self.open_loop(server, 3, self.seconds)
            state = self.state(server)
            plan = state["total_bytes"] + state["process_bytes"]
        best = max(sweep, key=sweep.get)
        ratio = report["goodput_per_s"] / sweep[best]
        yield ("goodput_at_3x", ratio, ratio >= 0.9, ">= 0.9",
               f"{report['goodput_per_s']:.2f} good requests/s of {3 * self.capacity():.2f} sent for {self.seconds} s; at "
               f"best {sweep[best]:.2f}, at {best} of {self.capacity():.2f}; {report['finished']} of "
               f"{report['requests']} finished, refused: {report['refusals']}")
        p99 = report["refusal_ms"]["p99"]
        yield ("refusal_p99_ms", p99, p99 <= 50, "<= 50", f"p50 {report['refusal_ms']['p50']:.1f} ms")
        ratio = report["server_peak_rss_bytes"] / plan
        yield ("rss_to_plan", ratio, ratio <= 1.02, "<= 1.02",
               f"{report['server_peak_rss_bytes'] / 2**20:.0f} MiB resident at most, {plan / 2**20:.0f} MiB planned")

    @staticmethod
    def state(server):
        connection = http.client.HTTPConnection(*server.address, timeout=60)
        connection.request("GET", "/v1/cache")
        return json.loads(connection.getresponse().read())

    def estimates(self):
        with self.serve() as server:
            self.open_loop(server, 0.8, 60)  # learns
            before = self.ratios(server)
            self.open_loop(server, 0.8, 120)
            after = self.ratios(server)
        counts = {bound: after[bound] - before[bound] for bound in after}

        def within(low, high):
            return (counts[high] - counts[low]) / counts[float("inf")]

        share = within(0.8, 1.25)
        yield ("estimates_within_1.25x", share, share >= 0.5, ">= 0.5",
               f"of {counts[float('inf')]:.0f} first tokens at 0.8 of capacity")
        share = within(0.5, 2.0)
        yield ("estimates_within_2x", share, share >= 0.9, ">= 0.9", "of the same")

    @staticmethod
    def ratios(server):
        """Requests by the bound of real time over estimate, cumulated."""
        connection = http.client.HTTPConnection(*server.address, timeout=60)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        found = re.findall(r'^kvasir_estimate_ratio_bucket\{([^}]*)\} (\S+)$', text, re.M)
        return {float(re.search(r'le="([^"]*)"', labels)[1].replace("+Inf", "inf")): float(count)
                for labels, count in found if 'of="ttft"' in labels}

    def http(self):
        """8 prompts of 256 tokens and answers of 512, the first token to the last."""
        program = pathlib.Path(self.program).parent / "submit_bench"
        ratios, speeds = [], []
        with tempfile.NamedTemporaryFile("w") as lengths:
            lengths.write("512\n" * 8)
            lengths.flush()
            for _ in range(5):
                out = subprocess.run([program, self.shape, "512", "2"], stdout=subprocess.PIPE, text=True, check=True)
                alone = json.loads(out.stdout)["tokens_per_s"]
                with Server(self.kvasir, "--shape", self.shape, "--threads", "2") as server:
                    report = self.load(server, "--workload", "tenants", "--requests", 8, "--lengths", lengths.name)
                speeds.append((report["tokens_per_s"], alone))
                ratios.append(speeds[-1][0] / alone)
        ratio = statistics.median(ratios)
        yield ("http_to_submit", ratio, ratio >= 0.97, ">= 0.97",
               "tokens/s over HTTP and through Engine::Submit: " + ", ".join(f"{a:.1f} and {b:.1f}" for a, b in speeds))

    def streams(self):
        with Server(self.kvasir, "--max-queued", "256", "--generation-config", "none") as server:
            report = self.load(server, "--workload", "tenants", "--requests", 200, "--concurrency", 200)
        self.own_cpu_share = 0  # what fails is counted, not timed
        yield ("streams_that_fail", report["requests"] - report["finished"], report["finished"] == 200, "0",
               f"of 200 at once; {report['tokens_per_s']:.0f} tokens/s at least")

    def tracing(self):
        flags = ["--workload", "tenants", "--requests", 48]
        ratios = []
        with Collector() as collector:
            url = f"http://127.0.0.1:{collector.server_port}/v1/traces"
            for turn in range(11):
                speed = {}
                for traced in ((True, False), (False, True))[turn % 2]:
                    more = ["--otlp-traces-endpoint", url] if traced else []
                    with self.serve(*more) as server:
                        speed[traced] = self.load(server, *flags)["tokens_per_s"]
                ratios.append(speed[True] / speed[False])
            check(collector.taken > 0, "the collector got no spans")
        ratio = statistics.median(ratios)
        yield ("traced_to_untraced", ratio, ratio >= 0.99, ">= 0.99",
               "tokens/s with every request traced; rounds " + ", ".join(f"{r:.3f}" for r in ratios))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one object instead of lines")
    parser.add_argument("--rows", default=",".join(ROWS), help="which of them (default: all)")
    parser.add_argument("--model", help="a model instead of a shape")
    parser.add_argument("--shape", default="llama-100m")
    parser.add_argument("--llama-server", help="the peer's program, measured beside on the same model file")
    parser.add_argument("--seconds", type=int, default=300, help="of the overload; its sweep takes as long again")
    parser.add_argument("--data", type=pathlib.Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("kvasir")
    parser.add_argument("load")
    arguments = parser.parse_args()
    rows = arguments.rows.split(",")
    if unknown := set(rows) - set(ROWS):
        parser.error(f"--rows: unknown {', '.join(sorted(unknown))} (known: {', '.join(ROWS)})")
    if arguments.llama_server and not arguments.model:
        parser.error("--llama-server needs --model, a GGUF file that it reads too")
    bench, all_figures = Bench(arguments), {}
    for row in rows:
        if row in ("overload", "estimates") and not arguments.data.is_dir():
            print(f"skipped {row}: no trace in {arguments.data}")
            continue
        for name, value, met, target, what, own in bench.row(getattr(bench, row)):
            all_figures[name] = {"value": value, "met": met, "target": target, "what": what, "own_cpu_share": own}
            if not arguments.json:
                verdict = "VOID" if own > MOST_OWN_CPU else {True: "ok", False: "MISSED", None: ""}[met]
                print(f"{verdict:<7}{name:<26} {value:8.3f}  target {target:<8} {what}; generator {own:.1%} of a core",
                      flush=True)
    if arguments.json:
        print(json.dumps(all_figures, indent=2))


if __name__ == "__main__":
    main()
