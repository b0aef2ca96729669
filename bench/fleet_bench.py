#!/usr/bin/env python3
"""What a shared Redis is worth to several servers, and what it costs them, beside a plain client of the
same store in the same run.

usage: fleet_bench.py [KVASIR] [--model M] [--rounds 3] [--only load,proxy,trouble,idle,fleet] [--json]

The model is the shape qwen2-0.5b with random weights in Q8_0, or M. Server A reads prompts of 4,080
tokens; server B, which starts with nothing, is asked for one with 16 tokens more:
  remote    what A read comes from the store,
  pool      the same prompt is in B's memory,
  cold      another prompt is computed.
`get` is what a plain client needs for the same values on one connection, `open` what two processes need to
decrypt so many bytes (openssl speed, AES-256-GCM). `proxy`: through 1 Gbit/s and 5 ms. `trouble`: the store
stops, breaks off or drips a byte a second in the middle of a load. `idle`: a server with a store that has
nothing for it, beside one without. `fleet`: 40 chats about 6 documents, three servers in turn and a store,
beside one server. Figures are medians. Exit status 1 when an answer's receipt is not what it must be; a
missed target is shown, not an error.
"""
import argparse
import collections
import json
import os
import pathlib
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from disk_bench import MIB, NEW, PROMPT, DiskServer, decrypted_bytes_per_second, fill_pool, tokens
from serve_bench import Client, Server, check, show

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from redis_server import Redis  # noqa: E402

FLAGS = ["--threads", "2", "--disk", "none"]


class Machine(DiskServer):
    """A server with a separate home; without `store` it has no remote tier."""

    def __init__(self, bench, *flags, store=None, pool=128):
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="machine-", dir=bench.home))
        remote = ["--remote", store, "--fleet-secret", str(bench.secret)] if store else []
        Server.__init__(self, bench.kvasir, *bench.model, *FLAGS, *bench.pool(pool), *remote, *flags)

    def __enter__(self):
        os.environ["XDG_STATE_HOME"] = os.environ["XDG_CACHE_HOME"] = str(self.home)
        super().__enter__()
        return self

    def wait_on(self):
        for _ in range(600):
            state = self.call("GET", "/v1/cache")["cache"]["remote"]
            if state["state"] == "on":
                return state
            time.sleep(0.1)
        check(False, f"the store is not on: {state}")

    def __exit__(self, *_):
        super().__exit__()
        shutil.rmtree(self.home, ignore_errors=True)


class Proxy:
    """Between a server and the store: a speed in bytes/s, a delay in s, and from `trouble_after` bytes of a
    connection's answers on one of `stop`, `break`, `drip`. Counts the bytes of answers."""

    def __init__(self, port, speed=None, delay=0.0):
        self.port, self.speed, self.delay = port, speed, delay
        self.trouble, self.trouble_after, self.bytes = None, 0, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client = self.listener.accept()[0]
            except OSError:
                return
            store = socket.create_connection(("127.0.0.1", self.port))
            for end in (client, store):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.join(client, store, False)
            self.join(store, client, True)

    def join(self, source, sink, is_answer):
        queue, ready = collections.deque(), threading.Semaphore(0)

        def read():
            data = b"-"
            while data:
                try:
                    data = source.recv(1 << 18)
                except OSError:
                    data = b""
                queue.append((time.monotonic() + self.delay / 2, data))
                ready.release()

        def write():
            free, passed = 0.0, 0
            while True:
                ready.acquire()
                due, data = queue.popleft()
                now = time.monotonic()
                free = max(free, now) + (len(data) / self.speed if self.speed else 0)
                time.sleep(max(0.0, max(due, free if self.speed else 0) - now))
                passed += len(data) if is_answer else 0
                try:
                    if is_answer and self.trouble and passed > self.trouble_after:
                        if self.trouble == "break":
                            raise OSError
                        for byte in data if self.trouble == "drip" else ():
                            sink.sendall(bytes([byte]))
                            time.sleep(1)
                        continue  # stopped
                    if not data:
                        raise OSError
                    sink.sendall(data)
                    if is_answer:
                        self.bytes += len(data)
                except OSError:
                    for end in (source, sink):
                        end.close()
                    return

        for part in (read, write):
            threading.Thread(target=part, daemon=True).start()

    def close(self):
        self.listener.close()


class Bench:
    def __init__(self, arguments):
        self.kvasir, self.rounds = str(arguments.kvasir), arguments.rounds
        self.model = (["--model", arguments.model] if arguments.model
                      else ["--shape", "qwen2-0.5b", "--weights", "q8_0"])
        self.model += ["--ctx-size", "4352"]
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="fleet-bench-"))
        self.secret = self.home / "fleet.secret"
        subprocess.run([self.kvasir, "key", "fleet", str(self.secret)], check=True, capture_output=True)
        plan = subprocess.run([self.kvasir, "plan", "--json", *self.model], capture_output=True, check=True, text=True)
        self.kv_bytes = json.loads(plan.stdout)["kv_bytes_per_token"]
        self.redis = Redis()
        self.prompts, self.names = [], []

    def pool(self, mib):
        return ["--kv-memory", f"{round(mib * self.kv_bytes / (12 << 10))}MiB"]

    def read_by_a(self):
        """A reads one prompt more for each round of each measure, and shares it."""
        known = set(self.redis.records())
        with Machine(self, store=self.redis.url, pool=768) as a:
            a.wait_on()
            for i in range(8):
                self.prompts.append(tokens(i, PROMPT - NEW))
                check(a.prepare(self.prompts[-1])["computed"] == PROMPT - NEW, "A found something")
                a.flush()
                now = set(self.redis.records())
                self.names.append(sorted(now - known))
                known = now
        check(len(self.names[0]) == (PROMPT - NEW) // 16, f"{len(self.names[0])} values are stored of a prompt")

    def get(self, i):
        """Seconds in which a plain client reads the values of a prompt, and their bytes."""
        ask = b"".join(b"*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n" % (len(n), n) for n in self.names[i])
        with socket.create_connection(("127.0.0.1", self.redis.port)) as s, s.makefile("rb", 1 << 20) as replies:
            start = time.perf_counter()
            s.sendall(ask)
            size = sum(len(self.redis.read(replies)) for _ in self.names[i])
            return time.perf_counter() - start, size


def first_tokens(bench, url, cold=True):
    """Seconds by name of B with the store at this address."""
    times, number, fills = collections.defaultdict(list), 100, iter(range(2000, 4000))
    for i in range(bench.rounds):
        ids = bench.prompts[i % len(bench.prompts)]
        with Machine(bench, store=url) as b:
            client = Client(b)
            fill_pool(b, fills)
            b.wait_on()
            for name in ("remote", "pool"):
                number += 1
                ttft_ms, _, _, receipt = client.complete(ids + tokens(number, NEW))
                times[name].append(ttft_ms / 1e3)
                if receipt["reused"][name] < PROMPT - NEW:
                    print(f"round {i}: {name}: {receipt['reused']} {receipt['miss']}", file=sys.stderr)
                    times[name + " missed"].append(1)
            if cold:
                number += 1
                ttft_ms, _, _, receipt = client.complete(tokens(number, PROMPT))
                times["cold"].append(ttft_ms / 1e3)
                check(receipt["computed"] == PROMPT, f"cold: {receipt}")
    return {name: len(values) if "missed" in name else statistics.median(values) for name, values in times.items()}


def gaps_of(client, ids, num_tokens, begun):
    """Milliseconds between the pieces of a stream; sets `begun` at its first one."""
    body = json.dumps({"prompt": ids, "max_tokens": num_tokens, "ignore_eos": True, "temperature": 0, "stream": True})
    client.connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    response, at, gaps = client.connection.getresponse(), None, []
    while line := response.readline():
        if not line.startswith(b"data: {"):
            continue
        now = time.perf_counter()
        if at:
            gaps.append((now - at) * 1e3)
        at = now
        begun.set()
    return gaps


def p99(values):
    return sorted(values)[int(len(values) * 0.99)]


def trouble(bench, kind, i):
    """Seconds to the first token, and a neighbour's gaps, where the store fails amid a load; and beside it
    those of a prompt that is computed."""
    proxy = Proxy(bench.redis.port)
    result = {}
    try:
        with Machine(bench, store=proxy.url) as b:
            fill_pool(b, iter(range(5000 + 100 * i, 5100 + 100 * i)))
            b.wait_on()
            for name, ids in (("cold", tokens(7000 + i, PROMPT)), (kind, bench.prompts[i % 8] + tokens(7100 + i, NEW))):
                if name == kind:
                    proxy.trouble, proxy.trouble_after = kind, 8 * MIB
                begun, gaps = threading.Event(), []
                neighbour = threading.Thread(target=lambda: gaps.extend(
                    gaps_of(Client(b), tokens(7200 + i, 32), 96, begun)))
                neighbour.start()
                begun.wait()
                ttft_ms = Client(b).complete(ids)[0]
                neighbour.join()
                result[name] = (ttft_ms / 1e3, gaps)
    finally:
        proxy.close()
    return result


def idle_ratio(bench):
    """Tokens a second of cold prompts and their answers: with a store, divided by without; in turn."""
    times = {True: [], False: []}
    with Machine(bench, store=bench.redis.url, pool=512) as on, Machine(bench, pool=512) as off:
        on.wait_on()
        clients = {True: Client(on), False: Client(off)}
        for server in (on, off):
            server.prepare(tokens(299, 512))
        for i in range(2 * bench.rounds):
            for has_store in ((True, False) if i % 2 else (False, True)):
                start = time.perf_counter()
                receipt = clients[has_store].complete(tokens(300 + 2 * i + has_store, 2048), max_tokens=64)[3]
                times[has_store].append(time.perf_counter() - start)
                check(receipt["computed"] == 2048, f"idle: {receipt}")
    return statistics.median(times[False]) / statistics.median(times[True])


def chats(servers):
    """The share of the prompts' tokens of 40 chats about 6 documents that are not computed: each request goes
    to the next server."""
    asked = computed = turn = 0
    open_chats = [tokens(100 + i % 6, 1200) + tokens(200 + i, 20) for i in range(40)]
    for _ in range(4):
        for i, ids in enumerate(open_chats):
            answer = servers[turn % len(servers)].call("POST", "/v1/completions", {
                "prompt": ids, "max_tokens": 8, "ignore_eos": True, "temperature": 0, "return_token_ids": True})
            turn += 1
            asked += answer["kvasir"]["prompt_tokens"]
            computed += answer["kvasir"]["computed"]
            open_chats[i] = ids + answer["choices"][0]["token_ids"] + tokens(300 + turn, 20)
    return 1 - computed / asked


def fleet_shares(bench):
    shape, bench.model = bench.model, []  # the bundled one: shares do not depend on its size
    try:
        with Machine(bench, pool=512) as one:
            alone = chats([one])
        with Machine(bench, store=bench.redis.url, pool=512) as a, \
                Machine(bench, store=bench.redis.url, pool=512) as b, \
                Machine(bench, store=bench.redis.url, pool=512) as c:
            for server in (a, b, c):
                server.wait_on()
            return alone, chats([a, b, c])
    finally:
        bench.model = shape


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("kvasir", nargs="?", default=os.environ.get("KVASIR_BINARY", ROOT / "build/release/kvasir"))
    parser.add_argument("--model", help="instead of the shape")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="load,proxy,trouble,idle,fleet", help="some of the measures")
    parser.add_argument("--json", action="store_true", help="one object instead of lines")
    arguments = parser.parse_args()
    only = arguments.only.split(",")
    bench, rows = Bench(arguments), []
    try:
        if set(only) & {"load", "proxy", "trouble"}:
            bench.read_by_a()
            seconds = first_tokens(bench, bench.redis.url)
            cold = seconds["cold"]
        if "load" in only:
            gets = [bench.get(i) for i in range(bench.rounds)]
            get, size = statistics.median(s for s, _ in gets), gets[0][1]
            opening = size / decrypted_bytes_per_second()
            most = seconds["pool"] + 1.3 * (get + opening) + 0.01
            payload = bench.kv_bytes * (PROMPT - NEW)
            rows += [
                ("pool_ms", seconds["pool"] * 1e3, None, "", f"{PROMPT} tokens, all but {NEW} resident"),
                ("get_ms", get * 1e3, None, "", f"{size / MIB:.0f} MiB by a plain client, {size / get / 1e9:.2f} GB/s"),
                ("open_ms", opening * 1e3, None, "", "so many bytes decrypted by two processes"),
                ("remote_ms", seconds["remote"] * 1e3, seconds["remote"] <= most, f"<= {most * 1e3:.1f}",
                 f"pool + 1.3 x (get + open) + 10 ms; {seconds.get('remote missed', 0)} of {bench.rounds} missed"),
                ("times_faster", cold / seconds["remote"], cold >= 20 * seconds["remote"], ">= 20", "cold / remote"),
                ("wire_ratio", size / payload, size <= 1.02 * payload, "<= 1.02", "bytes of values / of KV")]
        if "proxy" in only:
            proxy = Proxy(bench.redis.port, speed=125e6, delay=0.005)
            slow = first_tokens(bench, proxy.url, cold=False)["remote"]
            proxy.close()
            rows.append(("proxy_ratio", slow / cold, slow <= 0.25 * cold, "<= 0.25", "1 Gbit/s and 5 ms: remote / cold"))
        for kind in ("stop", "break", "drip") if "trouble" in only else ():
            results = [trouble(bench, kind, i) for i in range(bench.rounds)]
            late = statistics.median(r[kind][0] - 1.05 * r["cold"][0] for r in results)
            gaps = [[gap for r in results for gap in r[name][1]] for name in (kind, "cold")]
            ratio = p99(gaps[0]) / p99(gaps[1])
            rows += [(f"{kind}_late_ms", late * 1e3, late <= 0.05, "<= 50", "TTFT - 1.05 x that of computing it"),
                     (f"{kind}_gap_ratio", ratio, ratio <= 1.1, "<= 1.1", "a neighbour's ITL p99 / beside computing")]
        if "idle" in only:
            ratio = idle_ratio(bench)
            rows.append(("idle_ratio", ratio, ratio >= 0.98, ">= 0.98", "tokens/s with a store / without"))
        if "fleet" in only:
            alone, three = fleet_shares(bench)
            rows.append(("fleet_ratio", three / alone, three >= 0.95 * alone, ">= 0.95",
                         f"hit tokens of three servers in turn ({three:.3f}) / of one ({alone:.3f})"))
    finally:
        bench.redis.stop()
        shutil.rmtree(bench.home, ignore_errors=True)
    show(rows, arguments.json)


if __name__ == "__main__":
    main()
