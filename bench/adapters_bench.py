#!/usr/bin/env python3
"""What adapters cost: decode, prefill, eight adapters at once, loading; and llama-server beside it.

usage: adapters_bench.py KVASIR MODEL [--weights q8_0] [--llama-server PROGRAM] [--rank 16] [--rounds 5] [--json]

MODEL is a GGUF file of the Llama family, as bench/peers/make_models.sh makes; `--weights` is Kvasir's. The adapters
change all seven matrices of each layer, with random numbers in f16. Base and adapters, and both servers, answer in
turn; the medians count:
  decode     tokens a second of a stream with an adapter over those without
  prefill    the same of a prompt of 1,024 tokens
  mates      tokens a second of 8 streams with 8 adapters over those of 8 streams with one
  requests   8 requests on 4 adapters, 256 tokens of prompt and 32 of answer: over llama-server
  loading    ms of POST /v1/load_lora_adapter beside a stream, and the stream's longest time between tokens over its
             median
"""
import argparse
import concurrent.futures
import contextlib
import json
import pathlib
import statistics
import struct
import sys
import tempfile
import time

import numpy as np

from llama_server import LlamaServer
from serve_bench import Client, Server

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))
import gguf  # noqa: E402  (bench/peers/gguf.py)

NUM_ADAPTERS = 8
TEXT, F32, F16 = 8, 6, 1  # GGUF's types of a key and of a tensor


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


def write_adapter(path, shape, rank, seed):
    """A GGUF adapter for all matrices of a model of this shape: {name: (rows, columns)}."""
    random = np.random.default_rng(seed)
    tensors = []
    for name, (rows, columns) in shape.items():
        tensors.append((name + ".lora_a", random.normal(0, 0.02, (rank, columns)).astype(np.float16)))
        tensors.append((name + ".lora_b", random.normal(0, 0.02, (rows, rank)).astype(np.float16)))
    keys = [(key, TEXT, text(value)) for key, value in (("general.type", "adapter"), ("adapter.type", "lora"),
                                                        ("general.architecture", "llama"))]
    keys.append(("adapter.lora.alpha", F32, struct.pack("<f", 2 * rank)))
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(keys))
    head += b"".join(text(key) + struct.pack("<I", kind) + value for key, kind, value in keys)
    offset = 0
    for name, numbers in tensors:
        head += text(name) + struct.pack("<IQQIQ", 2, numbers.shape[1], numbers.shape[0], F16, offset)
        offset += -(-numbers.nbytes // 32) * 32
    with open(path, "wb") as file:
        file.write(head + b"\0" * (-len(head) % 32))
        for _, numbers in tensors:
            file.write(numbers.tobytes() + b"\0" * (-numbers.nbytes % 32))


def shape_of(path):
    """{name: (rows, columns)} of the matrices that adapters change."""
    with open(path, "rb") as file:
        model = gguf.read(file.name)
    q, kv, ffn = model.heads * model.head_dim, model.kv_heads * model.head_dim, model.ffn
    shape = {}
    for layer in range(model.layers):
        for name, rows, columns in (("attn_q", q, model.hidden), ("attn_k", kv, model.hidden),
                                    ("attn_v", kv, model.hidden), ("attn_output", model.hidden, q),
                                    ("ffn_gate", ffn, model.hidden), ("ffn_up", ffn, model.hidden),
                                    ("ffn_down", model.hidden, ffn)):
            shape[f"blk.{layer}.{name}.weight"] = (rows, columns)
    return shape


def complete(client, prompt, tokens, adapter=None):
    """The answer of /completion; `adapter`: an id, alone."""
    body = {"prompt": prompt, "n_predict": tokens, "ignore_eos": True, "temperature": 0, "cache_prompt": False,
            "lora": [{"id": adapter, "scale": 1.0}] if adapter is not None else []}
    client.connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
    response = client.connection.getresponse()
    answer = json.loads(response.read())
    if response.status != 200:
        raise SystemExit(f"adapters_bench: {response.status} {answer}")
    return answer


def prompt_of(seed, tokens):
    return [int(i) for i in np.random.default_rng(seed).integers(32, 127, tokens)]


def together(server, adapters, prompt_tokens, tokens):
    """Seconds of one request for each of the adapters, sent at once."""
    clients = [Client(server) for _ in adapters]
    prompts = [prompt_of(i, prompt_tokens) for i in range(len(adapters))]
    start = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(len(adapters)) as pool:
        for answer in pool.map(complete, clients, prompts, [tokens] * len(adapters), adapters):
            assert answer["tokens_predicted"] == tokens, answer
    return time.perf_counter() - start


def loading(server, name):
    """(ms to load and unload the adapter beside a stream, its longest time between tokens over the median)"""
    client, admin, times = Client(server), Client(server), []
    body = {"prompt": prompt_of(1, 16), "n_predict": 64, "ignore_eos": True, "temperature": 0, "stream": True}
    client.connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
    response, loads = client.connection.getresponse(), None

    def load():
        start = time.perf_counter()
        for path, body in (("load", {"lora_name": "late", "lora_path": name}), ("unload", {"lora_name": "late"})):
            admin.connection.request("POST", f"/v1/{path}_lora_adapter", json.dumps(body),
                                     {"Content-Type": "application/json"})
            answer = admin.connection.getresponse()
            text = answer.read()
            assert answer.status == 200, text
            if path == "load":
                spent = (time.perf_counter() - start) * 1e3
        return spent

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        while line := response.readline():
            if not line.startswith(b"data: "):
                continue
            times.append(time.perf_counter())
            if len(times) == 16:
                loads = pool.submit(load)
    gaps = [after - before for before, after in zip(times[1:], times[2:])]
    return loads.result(), max(gaps) / statistics.median(gaps)


def measure(o, folder, peer):
    shape = shape_of(o.model)
    paths = [str(folder / f"a{i}.gguf") for i in range(NUM_ADAPTERS + 1)]
    for seed, path in enumerate(paths):
        write_adapter(path, shape, o.rank, seed)
    loras = [word for path in paths[:NUM_ADAPTERS] for word in ("--lora", path)]
    flags = ["--model", o.model, "--threads", "2", "--parallel", "8", "--ctx-size", "4096", "--speculate", "off",
             "--lora-dir", str(folder), "--max-loras", str(NUM_ADAPTERS + 1), "--lora-memory", "1GiB",
             "--lora-init-without-apply", *(["--weights", o.weights] if o.weights else [])]
    figures = {}

    def note(name, value):
        figures.setdefault(name, []).append(value)

    with Server(o.kvasir, *flags, *loras) as server:
        client = Client(server)
        for i in range(o.rounds):
            speeds = {}
            for adapter in (None, 0) if i % 2 else (0, None):
                long = complete(client, prompt_of(i, 1024), 1, adapter)["timings"]
                short = complete(client, prompt_of(i, 8), 48, adapter)["timings"]
                speeds[adapter] = (short["predicted_per_second"], long["prompt_per_second"])
            note("decode", speeds[0][0] / speeds[None][0])
            note("prefill", speeds[0][1] / speeds[None][1])
            one, each = (together(server, which, 8, 32) for which in ([0] * 8, list(range(8))))
            note("mates", one / each)
            ms, gap = loading(server, pathlib.Path(paths[-1]).name)
            note("loading_ms", ms)
            note("loading_gap", gap)
    if not peer:
        return figures
    for i in range(o.rounds):
        spent = {}
        for which in (0, 1) if i % 2 else (1, 0):  # not at once: both use all cores
            made = (Server(o.kvasir, *flags, *loras) if which == 0
                    else LlamaServer(peer, o.model, 8, 8192, [*loras[:8], "--lora-init-without-apply"]))
            with made as server:
                spent[which] = together(server, [j % 4 for j in range(8)], 256, 32)
        note("requests", spent[1] / spent[0])
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kvasir")
    parser.add_argument("model")
    parser.add_argument("--weights")
    parser.add_argument("--llama-server")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    o = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(o, pathlib.Path(folder), o.llama_server)
    if o.json:
        print(json.dumps(figures))
        return
    for name, values in figures.items():
        print(f"{name:12} {statistics.median(values):8.3f} ({min(values):.3f}-{max(values):.3f})")


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        main()
