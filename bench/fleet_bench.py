#!/usr/bin/env python3
"""What a shared Redis is worth to several servers, and what it costs them, beside a plain client of the
same store in the same run.

usage: fleet_bench.py [KVASIR] [--model M] [--rounds 3] [--only MEASURE,...] [--json]

MEASURE is one of load, proxy, codec, s3, stop, break, kill, drip, idle, events and fleet; trouble stands for
stop, break, kill and drip. The model is the shape qwen2-0.5b with random weights in Q8_0, or M. Server A reads
prompts of 4,080 tokens; server B, which starts with nothing, is asked for one with 16 tokens more:
  remote    what A read comes from the store,
  pool      the same prompt is in B's memory,
  cold      another prompt is computed.
`get` is what a plain client needs for the same values on one connection, `open` what two processes need to
decrypt so many bytes (openssl speed, AES-256-GCM). `proxy`: through 1 Gbit/s and 5 ms. `codec`: what A wrote
compressed beside what it wrote raw, through the same, in bf16 and f16. `s3`: `remote`, `pool` and `get` with
moto, a store of S3 in Python, on the same CPUs; left out where it is not installed. `stop`, `break`,
`kill`, `drip`: in the middle of a load the store stops, breaks off, is gone or gives a byte a second. `idle`: a server with a store that has
nothing for it, beside one without. `events`: KV events with a subscriber, beside none. `fleet`: 40 chats about
6 documents, three servers with a store to which sglang-router sends them in turn, beside one server; the first
run installs the router from PyPI in build/fleet-routers; where it cannot, requests go to the servers in turn.
Figures are medians. Exit status 1 when an answer's receipt is not what it must be; a missed target is shown,
not an error.
"""
import argparse
import collections
import concurrent.futures
import http.client
import json
import os
import pathlib
import random
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
import s3_server  # noqa: E402
from pypi_programs import SGLANG_ROUTER, SglangRouter, install  # noqa: E402
from redis_server import Redis, free_port  # noqa: E402
from store_proxy import Proxy  # noqa: E402

FLAGS = ["--threads", "2", "--disk", "none"]
ROUTERS = ROOT / "build/fleet-routers"
WORDS = ("lake stone paper river candle window garden silver house letter morning station yellow music winter hand "
         "story water friend table north number little bridge").split()


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
        for _ in range(3000):
            state = self.call("GET", "/v1/cache")["cache"]["remote"]
            if state["state"] == "on":
                return state
            time.sleep(0.1)
        check(False, f"the store is not on: {state}")

    def has_flushed(self):
        """Shares what was read. False: on a busy machine the store seemed late, and was left alone; now it is on."""
        try:
            self.flush()
        except SystemExit as refused:
            print(refused, file=sys.stderr)
            self.wait_on()
            return False
        return True

    def __exit__(self, *_):
        super().__exit__()
        shutil.rmtree(self.home, ignore_errors=True)


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
        self.prompts, self.names = [], []  # in Redis

    def pool(self, mib):
        return ["--kv-memory", f"{round(mib * self.kv_bytes / (12 << 10))}MiB"]

    def read_by_a(self, store, count=8):
        """A reads one prompt more for each round of each measure, and shares it. The prompts, and the names of each
        one's values."""
        prompts, names, known = [], [], set(store.records())
        with Machine(self, "--remote-compression", "none", store=store.url, pool=768) as a:
            a.wait_on()
            for i in range(4 * count):
                if len(prompts) == count:
                    break
                ids = tokens(i, PROMPT - NEW)
                check(a.prepare(ids)["computed"] == PROMPT - NEW, "A found something")
                has_flushed, now = a.has_flushed(), set(store.records())
                if has_flushed and len(now - known) == (PROMPT - NEW) // 16:
                    prompts.append(ids)
                    names.append(sorted(now - known))
                known = now
        check(len(prompts) == count, f"of {4 * count} prompts {len(prompts)} were stored whole")
        return prompts, names

    def get(self, i):
        """Seconds in which a plain client reads the values of a prompt, and their bytes."""
        ask = b"".join(b"*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n" % (len(n), n) for n in self.names[i])
        with socket.create_connection(("127.0.0.1", self.redis.port)) as s, s.makefile("rb", 1 << 20) as replies:
            start = time.perf_counter()
            s.sendall(ask)
            size = sum(len(self.redis.read(replies)) for _ in self.names[i])
            return time.perf_counter() - start, size


def first_tokens(bench, url, prompts, cold=True):
    """Seconds by name of B with the store at this address, which has these prompts."""
    times, number, fills = collections.defaultdict(list), 100, iter(range(2000, 4000))
    for i in range(bench.rounds):
        ids = prompts[i % len(prompts)]
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


def get_objects(store, names, connections=4):
    """Seconds in which a plain client reads these objects, and their bytes. Requests are signed before."""
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials
    signer = S3SigV4Auth(Credentials(store.key_id, store.secret), "s3", s3_server.REGION)

    def signed(name):
        request = AWSRequest("GET", f"http://127.0.0.1:{store.port}/{s3_server.BUCKET}/{name}")
        signer.add_auth(request)
        return f"/{s3_server.BUCKET}/{name}", dict(request.headers)

    def read(requests):
        connection = http.client.HTTPConnection("127.0.0.1", store.port)
        size = 0
        for path, headers in requests:
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            size += len(response.read())
            check(response.status == 200, f"{path}: {response.status}")
        return size

    requests = [signed(name) for name in names]
    with concurrent.futures.ThreadPoolExecutor(connections) as pool:
        start = time.perf_counter()
        size = sum(pool.map(read, [requests[i::connections] for i in range(connections)]))
        return time.perf_counter() - start, size


def s3_rows(bench):
    """What a store of S3 gives, beside a plain client of it."""
    store = s3_server.S3()
    os.environ.update(store.environment)
    try:
        prompts, names = bench.read_by_a(store, bench.rounds)
        seconds = first_tokens(bench, store.url, prompts, cold=False)
        gets = [get_objects(store, names[i]) for i in range(bench.rounds)]
    finally:
        store.stop()
    get, size = statistics.median(s for s, _ in gets), gets[0][1]
    most = seconds["pool"] + 1.3 * (get + size / decrypted_bytes_per_second()) + 0.01
    return [("s3_get_ms", get * 1e3, None, "", f"{size / MIB:.0f} MiB by a plain client of moto"),
            ("s3_remote_ms", seconds["remote"] * 1e3, seconds["remote"] <= most, f"<= {most * 1e3:.1f}",
             f"pool + 1.3 x (get + open) + 10 ms; {seconds.get('remote missed', 0)} of {bench.rounds} missed")]


def coded_ratios(bench, url, kv_format):
    """TTFT of B, and bytes in the store, of what A wrote compressed, divided by those of what it wrote raw."""
    flags, kinds = ("--kv-format", kv_format), ("none", "zstd")
    prompts = {how: tokens(800 + i, PROMPT - NEW) for i, how in enumerate(kinds)}
    times, sizes = {how: [] for how in kinds}, {}
    for how in kinds:
        known = set(bench.redis.records())
        with Machine(bench, *flags, "--remote-compression", how, store=bench.redis.url, pool=768) as a:
            a.wait_on()
            a.prepare(prompts[how])
            a.flush()
        sizes[how] = sum(bench.redis.ask("STRLEN", name) for name in set(bench.redis.records()) - known)
    for i in range(bench.rounds):
        for how in kinds if i % 2 else reversed(kinds):
            with Machine(bench, *flags, store=url, pool=64) as b:
                fill_pool(b, iter(range(4000, 4200)))
                b.wait_on()
                ttft_ms, _, _, receipt = Client(b).complete(prompts[how] + tokens(900 + i, NEW))
                if receipt["reused"]["remote"] < PROMPT - NEW:
                    print(f"round {i}: {kv_format} {how}: {receipt['reused']} {receipt['miss']}", file=sys.stderr)
                times[how].append(ttft_ms)
    return statistics.median(times["zstd"]) / statistics.median(times["none"]), sizes["zstd"] / sizes["none"]


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
    """Milliseconds to the first token, and a neighbour's gaps, where the store fails amid a load; and beside it
    those of a prompt that is computed."""
    proxy = Proxy(bench.redis.port)
    result = {}
    cold = tokens(8000 + 1000 * i + ord(kind[0]), PROMPT)  # not another kind's: the store has what that one read
    try:
        with Machine(bench, store=proxy.url) as b:
            fill_pool(b, iter(range(5000 + 100 * i, 5100 + 100 * i)))
            b.wait_on()
            for name, ids in (("cold", cold), (kind, bench.prompts[i % 8] + tokens(7100 + i, NEW))):
                if name == kind:
                    proxy.trouble, proxy.trouble_after = kind, 8 * MIB
                begun, gaps = threading.Event(), []
                neighbour = threading.Thread(target=lambda: gaps.extend(
                    gaps_of(Client(b), tokens(7200 + 10 * i + (name == kind), 32), 96, begun)))
                neighbour.start()
                begun.wait()
                ttft_ms, _, _, receipt = Client(b).complete(ids)
                neighbour.join()
                check(name == kind or receipt["computed"] == PROMPT, f"cold: {receipt}")
                result[name] = (ttft_ms, gaps, receipt)
    finally:
        proxy.close()
    return result


def trouble_rows(bench, kind):
    results = [trouble(bench, kind, i) for i in range(bench.rounds)]
    ttft_ms, cold_ms = (statistics.median(r[name][0] for r in results) for name in (kind, "cold"))
    itl_ms, beside_ms = (p99([gap for r in results for gap in r[name][1]]) for name in (kind, "cold"))
    found = statistics.median(r[kind][2]["reused"]["remote"] for r in results)
    reasons = sorted({(r[kind][2]["miss"] or {}).get("reason", "none") for r in results})
    most_ms = 1.05 * cold_ms + 50
    return [(f"{kind}_ttft_ms", ttft_ms, ttft_ms <= most_ms, f"<= {most_ms:.1f}",
             f"1.05 x computing ({cold_ms:.1f}) + 50; {found:.0f} tokens came, then: {', '.join(reasons)}"),
            (f"{kind}_itl_p99_ms", itl_ms, itl_ms <= 1.1 * beside_ms, f"<= {1.1 * beside_ms:.1f}",
             f"a neighbour's; 1.1 x beside computing ({beside_ms:.1f})")]


def cold_ratio(bench, machine, begun):
    """Tokens a second of cold prompts and their answers on `machine`, divided by a plain one's; in turn."""
    times = {True: [], False: []}
    with machine as on, Machine(bench, pool=512) as off:
        begun(on)
        clients = {True: Client(on), False: Client(off)}
        for server in (on, off):
            server.prepare(tokens(299, 512))
        for i in range(4 * bench.rounds):
            for is_on in ((True, False) if i % 2 else (False, True)):
                start = time.perf_counter()
                receipt = clients[is_on].complete(tokens(300 + 2 * i + is_on, 2048), max_tokens=64)[3]
                times[is_on].append(time.perf_counter() - start)
                check(receipt["computed"] == 2048, f"cold: {receipt}")
    return statistics.median(times[False]) / statistics.median(times[True])


def idle_ratio(bench):
    return cold_ratio(bench, Machine(bench, store=bench.redis.url, pool=512), Machine.wait_on)


def events_ratio(bench):
    """The same with KV events and a subscriber that reads them."""
    import zmq  # only this measure needs it
    address = f"tcp://127.0.0.1:{free_port()}"
    subscriber = zmq.Context.instance().socket(zmq.SUB)
    subscriber.connect(address)
    subscriber.subscribe(b"")
    received = []

    def read():
        while True:
            received.append(subscriber.recv_multipart())

    threading.Thread(target=read, daemon=True).start()
    ratio = cold_ratio(bench, Machine(bench, "--kv-events", address, pool=512), lambda _: None)
    check(len(received) > 4 * bench.rounds, f"{len(received)} batches of events")
    return ratio


def words(number, count):
    draw = random.Random(number)
    return f"{number}: " + " ".join(draw.choice(WORDS) for _ in range(count))


def chats(ask):
    """The share of the prompts' tokens of 40 chats about 6 documents that are not computed. Prompts are texts,
    since sglang-router takes no ids."""
    asked = computed = turn = 0
    open_chats = [words(i % 6, 740) + words(200 + i, 8) for i in range(40)]
    for _ in range(4):
        for i, text in enumerate(open_chats):
            answer = ask({"model": "default", "prompt": text, "max_tokens": 8, "ignore_eos": True, "temperature": 0})
            turn += 1
            asked += answer["kvasir"]["prompt_tokens"]
            computed += answer["kvasir"]["computed"]
            open_chats[i] = text + answer["choices"][0]["text"] + words(300 + turn, 6)
    print(f"fleet: {asked / turn:.0f} tokens a prompt", file=sys.stderr)
    return 1 - computed / asked


def complete_at(servers):
    """A function that asks these servers in turn."""
    turn = iter(range(1 << 30))
    return lambda body: servers[next(turn) % len(servers)].call("POST", "/v1/completions", body)


def fleet_row(bench):
    shape, bench.model = bench.model, []  # the bundled one: shares do not depend on its size
    try:
        with Machine(bench, pool=512) as one:
            alone = chats(complete_at([one]))
        with Machine(bench, store=bench.redis.url, pool=512) as a, \
                Machine(bench, store=bench.redis.url, pool=512) as b, \
                Machine(bench, store=bench.redis.url, pool=512) as c:
            for server in (a, b, c):
                server.wait_on()
            if install(ROUTERS, [SGLANG_ROUTER]):
                router = SglangRouter(ROUTERS, [f"http://127.0.0.1:{server.address[1]}" for server in (a, b, c)])
                try:
                    three, how = chats(lambda body: router.post("/v1/completions", body)), f"of {SGLANG_ROUTER}"
                finally:
                    router.stop()
            else:
                three, how = chats(complete_at([a, b, c])), "asked in turn, without a router"
    finally:
        bench.model = shape
    return ("fleet_ratio", three / alone, three >= 0.95 * alone, ">= 0.95",
            f"hit tokens of three servers {how} ({three:.3f}) / of one ({alone:.3f})")


TROUBLE = ("stop", "break", "kill", "drip")
MEASURES = ("load", "proxy", "codec", "s3", *TROUBLE, "idle", "events", "fleet")


def measures(bench, only):
    """Yields the rows of each measure when it is done."""
    if only & {"load", "proxy", *TROUBLE}:
        bench.prompts, bench.names = bench.read_by_a(bench.redis)
    if only & {"load", "proxy"}:
        seconds = first_tokens(bench, bench.redis.url, bench.prompts)
        cold = seconds["cold"]
    if "load" in only:
        gets = [bench.get(i) for i in range(bench.rounds)]
        get, size = statistics.median(s for s, _ in gets), gets[0][1]
        opening = size / decrypted_bytes_per_second()
        most = seconds["pool"] + 1.3 * (get + opening) + 0.01
        payload = bench.kv_bytes * (PROMPT - NEW)
        yield [
            ("pool_ms", seconds["pool"] * 1e3, None, "", f"{PROMPT} tokens, all but {NEW} resident"),
            ("get_ms", get * 1e3, None, "", f"{size / MIB:.0f} MiB by a plain client, {size / get / 1e9:.2f} GB/s"),
            ("open_ms", opening * 1e3, None, "", "so many bytes decrypted by two processes"),
            ("remote_ms", seconds["remote"] * 1e3, seconds["remote"] <= most, f"<= {most * 1e3:.1f}",
             f"pool + 1.3 x (get + open) + 10 ms; {seconds.get('remote missed', 0)} of {bench.rounds} missed"),
            ("times_faster", cold / seconds["remote"], cold >= 20 * seconds["remote"], ">= 20", "cold / remote"),
            ("wire_ratio", size / payload, size <= 1.02 * payload, "<= 1.02", "bytes of values / of KV")]
    if "proxy" in only:
        proxy = Proxy(bench.redis.port, speed=125e6, delay=0.005)
        slow = first_tokens(bench, proxy.url, bench.prompts, cold=False)["remote"]
        proxy.close()
        yield [("proxy_ratio", slow / cold, slow <= 0.25 * cold, "<= 0.25", "1 Gbit/s and 5 ms: remote / cold")]
    for kv_format, most in (("bf16", 0.75), ("f16", 0.92)) if "codec" in only else ():
        proxy = Proxy(bench.redis.port, speed=125e6, delay=0.005)
        ratio, size = coded_ratios(bench, proxy.url, kv_format)
        proxy.close()
        yield [(f"{kv_format}_ratio", ratio, ratio <= most, f"<= {most}",
                f"TTFT through the same: compressed / raw; bytes {size:.2f}")]
    if "s3" in only and s3_server.is_installed():
        yield s3_rows(bench)
    for kind in (kind for kind in TROUBLE if kind in only):
        yield trouble_rows(bench, kind)
    if "idle" in only:
        ratio = idle_ratio(bench)
        yield [("idle_ratio", ratio, ratio >= 0.98, ">= 0.98", "tokens/s with a store / without")]
    if "events" in only:
        ratio = events_ratio(bench)
        yield [("events_ratio", ratio, ratio >= 0.995, ">= 0.995", "tokens/s with KV events / without")]
    if "fleet" in only:
        yield [fleet_row(bench)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("kvasir", nargs="?", default=os.environ.get("KVASIR_BINARY", ROOT / "build/release/kvasir"))
    parser.add_argument("--model", help="instead of the shape")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join(MEASURES), help="some of the measures")
    parser.add_argument("--json", action="store_true", help="one object instead of lines")
    arguments = parser.parse_args()
    only = set(arguments.only.replace("trouble", ",".join(TROUBLE)).split(","))
    if unknown := only - set(MEASURES):
        parser.error(f"--only: no measure {', '.join(sorted(unknown))}; there are {', '.join(MEASURES)}")
    bench, rows = Bench(arguments), []
    try:
        for some in measures(bench, only):
            rows += some
            if not arguments.json:
                show(some, False)
                sys.stdout.flush()
    finally:
        bench.redis.stop()
        shutil.rmtree(bench.home, ignore_errors=True)
    if arguments.json:
        show(rows, True)


if __name__ == "__main__":
    main()
