#!/usr/bin/env python3
"""What the disk tier of kvasir serve is worth and what it costs, beside what this machine's disk and
processor need for the same bytes in the same run.

usage: disk_bench.py [KVASIR] [--model M [--llama-server PROGRAM]] [--rounds 3] [--scratch DIR] [--json]

The model is the shape qwen2-0.5b with random weights in Q8_0, or M. A prompt of 4,096 ids, of which the
last 16 are new, is streamed
  pool      with the rest resident,
  dropped   after kill -9 and a restart, the page cache of all segments dropped,
  warm      the same, with the segments in the page cache,
  cold      with nothing known of it.
`read` is what two threads need for the bytes of its records by requests of 1 MiB, page cache dropped;
`open` to read them from the page cache and to decrypt them (openssl speed, AES-256-GCM, two processes).
With --llama-server, that program with the same GGUF file saves a slot of 2,048 tokens, starts anew and
restores it, by hand; Kvasir only starts anew. Figures are medians. Exit status 1 when an answer or its receipt is not what it must be; a missed target
is shown, not an error. Three rounds take about ten minutes where a prompt is computed at 230 tokens/s.
"""
import argparse
import concurrent.futures
import http.client
import itertools
import json
import os
import pathlib
import random
import re
import shutil
import signal
import statistics
import subprocess
import tempfile
import threading
import time

from llama_server import LlamaServer
from serve_bench import Client, Server, check, show

ROOT = pathlib.Path(__file__).resolve().parent.parent
SEED = 20261124
PROMPT, NEW, RESTORED = 4096, 16, 2048
MIB = 1 << 20
CLIENTS = 8
WAIT_S = 1800  # eight prompts at once
FLAGS = ["--threads", "2", "--ctx-size", "4352", "--max-queue-ms", "1800000"]


def tokens(number, count):
    """The first one is another one for each number: two prompts share not even a partial block."""
    draw = random.Random(SEED + number)
    return [5 + number] + [draw.randrange(5, 1000) for _ in range(count - 1)]


class DiskServer(Server):
    def __init__(self, bench, *flags, disk=True):
        where = ["--disk", str(bench.folder), "--disk-cap", "4GiB"] if disk else ["--disk", "none"]
        super().__init__(bench.kvasir, *bench.model, *FLAGS, *where, *flags)

    def call(self, method, path, body=None):
        connection = http.client.HTTPConnection(*self.address, timeout=WAIT_S)
        connection.request(method, path, json.dumps(body) if body is not None else None)
        response = connection.getresponse()
        answer = json.loads(response.read())
        check(response.status == 200, f"{path}: {response.status} {answer}")
        connection.close()
        return answer

    def prepare(self, ids):
        """Computes a prompt and answers nothing."""
        return self.call("POST", "/v1/completions", {"prompt": ids, "max_tokens": 0})["kvasir"]

    def flush(self):
        return self.call("POST", "/v1/cache/flush", {})

    def kill(self):
        self.process.kill()
        self.process.wait()

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=60)


class Bench:
    def __init__(self, arguments):
        self.kvasir = str(arguments.kvasir)
        self.rounds = arguments.rounds
        self.gguf = arguments.model
        self.model = (["--model", arguments.model] if arguments.model
                      else ["--shape", "qwen2-0.5b", "--weights", "q8_0"])
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="disk-bench-", dir=arguments.scratch))
        self.folder = self.home / "kv"
        os.environ["XDG_STATE_HOME"] = str(self.home / "state")
        os.environ["XDG_CACHE_HOME"] = str(self.home / "cache")

        plan = subprocess.run([self.kvasir, "plan", "--json", *self.model], capture_output=True, check=True, text=True)
        self.kv_scale = json.loads(plan.stdout)["kv_bytes_per_token"] / (12 << 10)

    def pool(self, mib):
        """Flags of a pool that holds as many tokens as so many MiB do at qwen2-0.5b's 12 KiB a token."""
        return ["--kv-memory", f"{round(mib * self.kv_scale)}MiB"]

    def segments(self):
        return sorted(self.folder.glob("*/seg-*.kvs"))

    def drop_page_cache(self):
        for path in self.segments():
            fd = os.open(path, os.O_RDONLY)
            os.fdatasync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)

    def read(self, num_bytes):
        """Seconds in which two threads read so many bytes of the segments, by requests of 1 MiB."""
        places = [(path, at) for path in self.segments() for at in range(0, path.stat().st_size, MIB)]
        places = places[:-(-num_bytes // MIB)]
        check(len(places) * MIB >= num_bytes, "the segments hold less than a prompt")

        def half(mine):
            fds, buffer = {}, bytearray(MIB)
            for path, at in mine:
                if path not in fds:
                    fds[path] = os.open(path, os.O_RDONLY)
                os.preadv(fds[path], [buffer], at)
            for fd in fds.values():
                os.close(fd)

        middle = len(places) // 2
        threads = [threading.Thread(target=half, args=(part,)) for part in (places[:middle], places[middle:])]
        start = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return (time.perf_counter() - start) * num_bytes / (len(places) * MIB)


def decrypted_bytes_per_second():
    done = subprocess.run(["openssl", "speed", "-mr", "-seconds", "1", "-bytes", "196608", "-multi", "2", "-decrypt",
                           "-evp", "aes-256-gcm"], capture_output=True, text=True, check=True)
    sums = re.findall(r"(?m)^\+F:\d+:AES-256-GCM:([\d.]+)$", done.stdout)
    check(len(sums) == 1, f"openssl speed: {done.stdout}")
    return float(sums[0])


def fill_pool(server, numbers):
    """Uses the pool's memory for the first time: on a virtual machine with memory that its host gives page by
    page this takes up to 10 us for 4 KiB, which would be measured instead of the tier."""
    left = server.call("GET", "/v1/cache")["max_tokens"]
    for first in range(0, left, 2048):
        server.prepare(tokens(next(numbers), min(2048, left - first)))
    server.flush()


def first_tokens(bench):
    """Seconds by name, and the bytes of a prompt's records; receipts are checked."""
    stored = [tokens(number, PROMPT - NEW) for number in range(CLIENTS)]
    with DiskServer(bench, *bench.pool(768)) as server:
        with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(server.prepare, stored))
        server.flush()
        state = server.call("GET", "/v1/cache")
        disk = state["cache"]["disk"]
        num_blocks = (PROMPT - NEW) // state["block_tokens"]
        check(disk["blocks"] == CLIENTS * num_blocks, f"of {CLIENTS * num_blocks} blocks {disk['blocks']} are stored")
        server.kill()
    num_bytes = num_blocks * disk["used_bytes"] // disk["blocks"]
    times = {name: [] for name in ("dropped", "warm", "pool", "cold", "read", "read warm")}
    number, fills = 100, itertools.count(2000)
    for i in range(bench.rounds):
        ids = stored[i % CLIENTS]
        for name in ("dropped", "warm"):
            with DiskServer(bench, *bench.pool(64)) as server:
                client = Client(server)
                fill_pool(server, fills)
                bench.drop_page_cache()
                if name == "dropped":
                    times["read"].append(bench.read(num_bytes))
                    bench.drop_page_cache()
                else:
                    for path in bench.segments():
                        path.read_bytes()
                    times["read warm"].append(bench.read(num_bytes))
                for which, source in ((name, "disk"), ("pool", "pool")):
                    number += 1
                    ttft_ms, _, _, receipt = client.complete(ids + tokens(number, NEW))
                    times[which].append(ttft_ms / 1e3)
                    check(receipt["reused"][source] >= PROMPT - NEW, f"{which}: {receipt}")
                    check(receipt["computed"] <= NEW, f"{which}: {receipt}")
                if name == "dropped":
                    number += 1
                    ttft_ms, _, _, receipt = client.complete(tokens(number, PROMPT))
                    times["cold"].append(ttft_ms / 1e3)
                    check(receipt["computed"] == PROMPT, f"cold: {receipt}")
                server.kill()
    medians = {name: statistics.median(values) for name, values in times.items()}
    medians["open"] = medians.pop("read warm") + num_bytes / decrypted_bytes_per_second()
    return medians, num_bytes


def prefill_ratio(bench):
    """Speed of a cold prompt while the tier writes, divided by that without a tier; in turn."""
    times = {True: [], False: []}
    memory = bench.pool(512)
    with DiskServer(bench, *memory) as on, DiskServer(bench, *memory, disk=False) as off:
        clients = {True: Client(on), False: Client(off)}
        written = on.call("GET", "/v1/cache")["cache"]["disk"]["written_today_bytes"]
        for server in (on, off):
            server.prepare(tokens(299, 512))
        for i in range(bench.rounds):
            for has_disk in ((True, False) if i % 2 else (False, True)):
                ids = tokens(300 + 2 * i + has_disk, PROMPT)
                ttft_ms, _, _, receipt = clients[has_disk].complete(ids, max_tokens=1)
                check(receipt["computed"] == PROMPT, f"prefill: {receipt}")
                times[has_disk].append(ttft_ms)
        on.flush()
        check(on.call("GET", "/v1/cache")["cache"]["disk"]["written_today_bytes"] > written, "nothing was written")
    return statistics.median(times[False]) / statistics.median(times[True])


def decode_ratio(bench):
    """Speed of a decoding sequence while another client loads without pause, divided by that alone."""
    prompts = [tokens(400 + i, 2049) for i in range(6)]
    with DiskServer(bench, *bench.pool(128)) as server:  # 10,900 tokens; the prompts have 12,300
        for ids in prompts:
            server.prepare(ids)
            server.flush()
        client, speeds, loaded = Client(server), {True: [], False: []}, [0]
        for i in range(bench.rounds):
            for loads in ((False, True) if i % 2 else (True, False)):
                stop = threading.Event()

                def load(stop=stop):
                    while not stop.is_set():
                        for ids in prompts:
                            loaded[0] += server.prepare(ids)["reused"]["disk"]
                            if stop.is_set():
                                return

                thread = threading.Thread(target=load)
                if loads:
                    thread.start()
                _, _, _, receipt = client.complete(tokens(500 + 2 * i + loads, 64), max_tokens=200)
                stop.set()
                if loads:
                    thread.join()
                speeds[loads].append(1 / receipt["tpot_ms"])
    check(loaded[0] > 0, "nothing was loaded meanwhile")
    return statistics.median(speeds[True]) / statistics.median(speeds[False]), loaded[0]


def computed_share(bench):
    """A working set of four pools, asked twice in turn: the share of the second round that is computed."""
    with DiskServer(bench, *bench.pool(64)) as server:
        num_tokens = server.call("GET", "/v1/cache")["max_tokens"]
        prompts = [tokens(600 + i, 2056) for i in range(-(-4 * num_tokens // 2056))]
        for ids in prompts:
            server.prepare(ids)
            server.flush()
        receipts = [server.prepare(ids) for ids in prompts]
    asked = sum(receipt["prompt_tokens"] for receipt in receipts)
    return sum(receipt["computed"] for receipt in receipts) / asked, asked


def restored(bench, program):
    """Seconds from a question after 2,048 stored tokens to its first token, page cache warm: ours, and
    llama-server's with the restoring of its slot."""
    times = {"kvasir": [], "llama-server": []}
    flags = ["--slot-save-path", str(bench.home) + "/"]
    ids = tokens(800, RESTORED - NEW)
    with DiskServer(bench, *bench.pool(256)) as server:
        server.prepare(ids)
        server.flush()
        server.kill()
    fills = itertools.count(4000)
    with LlamaServer(program, bench.gguf, 1, 4096, flags) as server:
        peer = LlamaClient(server)
        peer.call("/completion", {"prompt": ids, "n_predict": 0, "cache_prompt": True})
        check(peer.call("/slots/0?action=save", {"filename": "slot"})["n_saved"] >= len(ids) - 1, "llama-server: save")
    for i in range(bench.rounds):
        asked = ids + tokens(801 + i, NEW)
        with DiskServer(bench, *bench.pool(64)) as server:
            client = Client(server)
            fill_pool(server, fills)
            for path in bench.segments():
                path.read_bytes()
            ttft_ms, _, _, receipt = client.complete(asked)
            check(receipt["reused"]["disk"] >= RESTORED - NEW - 16, f"restored: {receipt}")
            times["kvasir"].append(ttft_ms / 1e3)
            server.kill()
        with LlamaServer(program, bench.gguf, 1, 4096, flags) as server:
            peer = LlamaClient(server)
            peer.call("/completion", {"prompt": [5], "n_predict": 1, "cache_prompt": False})
            (bench.home / "slot").read_bytes()
            start = time.perf_counter()
            peer.call("/slots/0?action=restore", {"filename": "slot"})
            computed = peer.first_token({"prompt": asked, "n_predict": 4, "cache_prompt": True})
            times["llama-server"].append(peer.first_ns * 1e-9 - start)
            check(computed <= NEW + 1, f"llama-server computed {computed} tokens")
    return {name: statistics.median(values) for name, values in times.items()}


class LlamaClient:
    def __init__(self, server):
        self.connection = http.client.HTTPConnection(*server.address, timeout=WAIT_S)
        self.connection.connect()

    def send(self, path, body):
        self.connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = self.connection.getresponse()
        check(response.status == 200, f"llama-server: {path}: {response.status}")
        return response

    def call(self, path, body):
        return json.loads(self.send(path, body).read())

    def first_token(self, body):
        """Notes when the first event came; returns how many tokens of the prompt were computed."""
        response, self.first_ns, last = self.send("/completion", {**body, "stream": True}), None, b""
        while line := response.readline():
            if line.startswith(b"data: "):
                self.first_ns = self.first_ns or time.perf_counter_ns()
                last = line
        return json.loads(last[6:])["timings"]["prompt_n"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("kvasir", nargs="?", default=os.environ.get("KVASIR_BINARY", ROOT / "build/release/kvasir"))
    parser.add_argument("--model", help="instead of the shape")
    parser.add_argument("--llama-server", help="the peer's program; needs --model, a GGUF file that it reads too")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scratch", default=os.environ.get("TMPDIR", "/var/tmp"),
                        help="a folder on the disk to measure; takes up to 3 GiB")
    parser.add_argument("--json", action="store_true", help="one object instead of lines")
    arguments = parser.parse_args()
    if arguments.llama_server and not arguments.model:
        parser.error("--llama-server needs --model, a GGUF file that it reads too")
    bench = Bench(arguments)
    try:
        seconds, num_bytes = first_tokens(bench)
        prefill = prefill_ratio(bench)
        decode, loaded = decode_ratio(bench)
        computed, asked = computed_share(bench)
        by_hand = restored(bench, arguments.llama_server) if arguments.llama_server else None
    finally:
        shutil.rmtree(bench.home)

    ms = {name: value * 1e3 for name, value in seconds.items()}
    dropped, warm = ms["pool"] + 1.25 * ms["read"] + 5, ms["pool"] + 1.5 * ms["open"] + 3
    size = f"{num_bytes / MIB:.0f} MiB of records"
    rows = [
        ("pool_ms", ms["pool"], None, "", f"{PROMPT} tokens, all but {NEW} resident"),
        ("read_ms", ms["read"], None, "", f"{size}, page cache dropped: {num_bytes / seconds['read'] / 1e9:.2f} GB/s"),
        ("open_ms", ms["open"], None, "", f"{size}, read from the page cache and decrypted"),
        ("dropped_ms", ms["dropped"], ms["dropped"] <= dropped, f"<= {dropped:.1f}", "pool + 1.25 x read + 5 ms"),
        ("warm_ms", ms["warm"], ms["warm"] <= warm, f"<= {warm:.1f}", "pool + 1.5 x open + 3 ms"),
        ("cold_ms", ms["cold"], None, "", f"computed, {PROMPT / seconds['cold']:.0f} tokens/s"),
        ("times_faster_dropped", ms["cold"] / ms["dropped"], ms["cold"] >= 25 * ms["dropped"], ">= 25",
         "cold / dropped"),
        ("times_faster_warm", ms["cold"] / ms["warm"], None, "", "cold / warm"),
        ("prefill_ratio", prefill, prefill >= 0.98, ">= 0.98", "a cold prompt: --disk none / the tier writes"),
        ("decode_ratio", decode, decode >= 0.85, ">= 0.85", f"while {loaded} tokens are loaded / alone"),
        ("computed_share", computed, computed <= 0.02, "<= 0.02",
         f"of {asked} tokens, four pools, asked a second time in turn"),
    ]
    if by_hand:
        ratio = by_hand["kvasir"] / by_hand["llama-server"]
        rows.append(("restored_ratio", ratio, ratio <= 0.8, "<= 0.8",
                     f"{RESTORED} tokens, page cache warm: {by_hand['kvasir'] * 1e3:.1f} ms; llama-server restores and "
                     f"answers in {by_hand['llama-server'] * 1e3:.1f} ms"))
    show(rows, arguments.json)


if __name__ == "__main__":
    main()
