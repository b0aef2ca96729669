#!/usr/bin/env python3
"""golden_test.py NAME | FOLDER: compares what `kvasir` computes for a golden model with float64.

Logits of last, all and probe positions within 5e-4, K and V within 2e-4 (KV stored as f32), greedy ids
equal. Quantised files compute with activations of 8 bits: the direction of the logits (cosine above
0.995) and the greedy ids whose margin is large. Models of tests/data and models/ are always there; those of ../shared are skipped without it.
"""
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from lora_files import write_gguf_adapter

ROOT = Path(os.environ["KVASIR_ROOT"])
SHARED = Path(os.environ["KVASIR_SHARED"])
TOOLS = Path(os.environ["KVASIR_TOOLS"])
LOGITS_TOLERANCE, KV_TOLERANCE = 5e-4, 2e-4
KV_MEMORY = ["--kv-memory", "32MiB"]  # 2 GiB of blocks of 2 KiB have an index that takes longer than the tests
COSINE, LARGE_MARGIN = 0.995, 1.4  # twice what 8 bits of activations cost at most

DATA, GOLDENS, REAL = ROOT / "tests/data", SHARED / "goldens", SHARED / "data"
# Name: golden folder, models within it ("": the folder itself).
MODELS = {
    "tiny-gqa": (DATA / "tiny-gqa", [""]),
    "tiny-mqa": (DATA / "tiny-mqa", ["", "model-f16.gguf"]),
    "tiny-bias": (DATA / "tiny-bias", [""]),
    "tiny-yarn": (DATA / "tiny-yarn", [""]),
    "tiny-qwen2": (DATA / "tiny-qwen2", ["", "model-f16.gguf"]),
    "tiny-qwen3": (DATA / "tiny-qwen3", ["", "model-bf16.gguf"]),
    "tiny-granite": (DATA / "tiny-granite", ["", "model-bf16.gguf"]),
    "tiny-olmo2": (DATA / "tiny-olmo2", ["", "model-bf16.gguf"]),
    "tiny-smollm3": (DATA / "tiny-smollm3", ["", "model-f16.gguf"]),
    "tiny-phi3": (DATA / "tiny-phi3", ["", "model-f16.gguf"]),
    "tiny-longrope": (DATA / "tiny-longrope", ["", "model-f16.gguf"]),
    "tiny-gelu": (DATA / "tiny-gelu", [""]),
    "tiny-gpt2": (DATA / "tiny-gpt2", ["", "model-f16.gguf"]),
    "tiny-mistral": (DATA / "tiny-mistral", ["", "model-bf16.gguf"]),
    "tiny-ministral": (DATA / "tiny-ministral", [""]),
    "tiny-qwen2-window": (DATA / "tiny-qwen2-window", [""]),
    "tiny-gemma2": (DATA / "tiny-gemma2", ["", "model-bf16.gguf"]),
    "tiny-gemma3": (DATA / "tiny-gemma3", ["", "model-bf16.gguf"]),
    "tiny-gemma3-vision": (DATA / "tiny-gemma3-vision", [""]),
    "tiny-mixtral": (DATA / "tiny-mixtral", ["", "model-bf16.gguf"]),
    "tiny-qwen3-moe": (DATA / "tiny-qwen3-moe", [""]),
    "tiny-qwen3-moe-norm": (DATA / "tiny-qwen3-moe-norm", ["", "model-bf16.gguf"]),
    "kvasir-demo": (ROOT / "models/kvasir-demo", [""]),
    "llama-gqa": (GOLDENS / "llama-gqa", [""]),
    "llama-gqa-gguf": (GOLDENS / "llama-gqa", ["model-bf16.gguf"]),
    "llama-gqa-lora-a": (GOLDENS / "llama-gqa/lora-a", ["..", "../model-bf16.gguf"]),
    "llama-gqa-lora-b": (GOLDENS / "llama-gqa/lora-b", ["..", "../model-bf16.gguf"]),
    "llama-mha": (GOLDENS / "llama-mha", [""]),
    "llama-mha-gguf": (GOLDENS / "llama-mha", ["model-f32.gguf"]),
    "llama-quant": (GOLDENS / "llama-quant", [""]),
    "llama-quant-gguf": (GOLDENS / "llama-quant", [f"model-{name}.gguf" for name in (
        "Q8_0", "Q4_0", "Q4_K_M", "Q5_K_M", "Q6_K", "IQ4_NL")]),
    "qwen2": (GOLDENS / "qwen2", [""]),
    "qwen2-gguf": (GOLDENS / "qwen2", ["model-f16.gguf"]),
    "qwen3": (GOLDENS / "qwen3", [""]),
    "qwen3-gguf": (GOLDENS / "qwen3", ["model-bf16.gguf"]),
    "mistral-window": (GOLDENS / "mistral-window", [""]),
    "gemma2": (GOLDENS / "gemma2", [""]),
    "gemma3": (GOLDENS / "gemma3", [""]),
    "gemma3-gguf": (GOLDENS / "gemma3", ["model-f32.gguf"]),
    "mixtral": (GOLDENS / "mixtral", [""]),
    "qwen3-moe": (GOLDENS / "qwen3-moe", [""]),
    "phi3": (GOLDENS / "phi3", [""]),
    "gpt2": (GOLDENS / "gpt2", [""]),
    "m2m100-tiny": (DATA / "m2m100-tiny", [""]),
    "m2m100-random": (DATA / "m2m100-random", sorted(f.name for f in (DATA / "m2m100-random").glob("*"))),
    "m2m100": (GOLDENS / "m2m100", [""]),
    "stories260K": (REAL / "stories260K", ["tinyllamas-stories-260k-f32.gguf"]),
    "story656k": (REAL / "story656k", [""]),
}


class Engine:
    """Runs the commands of one model, with separate folders."""

    def __init__(self, model, scratch, flags=()):
        self.model, self.scratch, self.flags = model, Path(scratch), flags
        self.env = os.environ | {"XDG_CACHE_HOME": scratch, "XDG_STATE_HOME": scratch}
        self.worst = {}

    def call(self, command, ids, *flags):
        words = [os.environ["KVASIR_BINARY"], command, "--model", str(self.model), "--kv-format", "f32", *KV_MEMORY,
                 "--ids", ",".join(map(str, ids)), *self.flags, *flags]
        done = subprocess.run(words, env=self.env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{' '.join(words)}: exit {done.returncode}\n{done.stderr}"
        return done.stdout

    def logits(self, ids, *flags):
        out = self.scratch / "logits.npy"
        self.call("logits", ids, "--out", str(out), *flags)
        logits = np.load(out)
        assert logits.dtype == np.float32, logits.dtype
        return logits

    def greedy(self, ids, count):
        flags = ["--max-tokens", str(count), "--temperature", "0", "--ignore-eos", "--json"]
        return json.loads(self.call("run", ids, *flags))["tokens"]

    def translate(self, ids, target, count):
        words = [os.environ["KVASIR_BINARY"], "translate", "--model", str(self.model), "--kv-format", "f32", *KV_MEMORY,
                 "--source-ids", ",".join(map(str, ids)), "--target-id", str(target), "--max-tokens", str(count), "--json"]
        done = subprocess.run(words, env=self.env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{' '.join(words)}: exit {done.returncode}\n{done.stderr}"
        return json.loads(done.stdout)

    def close(self, what, got, want, tolerance):
        assert got.shape == want.shape, f"{what}: shape {got.shape}, expected {want.shape}"
        difference = float(abs(got - want).max())
        kind = "kv" if what.startswith("kv.") else "logits"
        self.worst[kind] = max(self.worst.get(kind, 0.0), difference)
        assert difference <= tolerance, f"{what}: off by {difference:.2e}, tolerance {tolerance:.0e}"


def check_kv(engine, golden, arrays):
    """K (after RoPE) and V in the blocks."""
    ids = golden["prompts"][int(golden["kv"]["prompt"][1:])]["ids"]
    done = subprocess.run([TOOLS / "kv_tool", engine.model, ",".join(map(str, ids))], env=engine.env,
                          capture_output=True, check=True, timeout=300)
    shape = np.frombuffer(done.stdout[:16], "<u4")  # layers, kv_heads, tokens, head_dim
    kv = np.frombuffer(done.stdout[16:], "<f4").reshape(shape[0], 2, *shape[1:])
    for layer in golden["kv"]["layers"]:
        for i, part in enumerate("kv"):
            name = f"kv.layer{layer}.{part}"
            engine.close(name, kv[layer, i], arrays[name], KV_TOLERANCE)


def check_selftest(engine):
    """Hit, miss, chunked, batched, forked: every logit of the tiny models, bit for bit."""
    # In memory where there is room: on a disk it waits for that most of its time.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        done = subprocess.run([os.environ["KVASIR_BINARY"], "selftest", "--model", str(engine.model)],
                              env=engine.env | {"TMPDIR": folder}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and " differ 0 " in done.stdout, done.stdout + done.stderr


def check_arrays(engine, folder):
    """golden.json with prompts of ids, golden.npz with arrays by name."""
    golden = json.loads((folder / "golden.json").read_text())
    arrays = np.load(folder / "golden.npz")
    for i, prompt in enumerate(golden["prompts"]):
        ids = prompt["ids"]
        logits = engine.logits(ids, "--positions", "all")
        for flags in (["--chunk", "5"], ["--chunk", "16"], ["--warm"]):
            last = engine.logits(ids, "--positions", "last", *flags)
            assert last.tobytes() == logits[-1:].tobytes(), f"p{i}: {flags} gives other bits"
        engine.close(f"p{i}.last", logits[-1], arrays[f"p{i}.last"], LOGITS_TOLERANCE)
        if f"p{i}.all" in arrays:
            engine.close(f"p{i}.all", logits, arrays[f"p{i}.all"], LOGITS_TOLERANCE)
        if f"p{i}.probe" in arrays:
            probes = logits[prompt["probe_positions"]]
            engine.close(f"p{i}.probe", probes, arrays[f"p{i}.probe"], LOGITS_TOLERANCE)
        want = prompt["greedy"]["ids"]
        got = engine.greedy(ids, len(want))
        assert got == want, f"p{i}: greedy {got}, expected {want}"
    if not engine.flags:
        check_kv(engine, golden, arrays)
    if folder.parent == DATA and engine.model == folder:  # its other files have the same layers
        check_selftest(engine)
    return len(golden["prompts"])


def check_quantised(engine, folder):
    """golden-Q.json and golden-Q.npz of model-Q.gguf, whose numbers are exactly the file's."""
    name = engine.model.stem.removeprefix("model-")
    golden = json.loads((folder / f"golden-{name}.json").read_text())
    arrays = np.load(folder / f"golden-{name}.npz")
    cosines, checked = [], 0
    for i, prompt in enumerate(golden["prompts"]):
        ids, greedy = prompt["ids"], prompt["greedy"]
        logits = engine.logits(ids + greedy["ids"][:-1], "--positions", "all")
        for flags in (["--chunk", "5"], ["--warm"]):
            last = engine.logits(ids, "--positions", "last", *flags)
            assert last[0].tobytes() == logits[len(ids) - 1].tobytes(), f"p{i}: {flags} gives other bits"
        rows = [(logits[len(ids) - 1], arrays[f"p{i}.last"])]
        if f"p{i}.probe" in arrays:
            rows += zip(logits[prompt["probe_positions"]], arrays[f"p{i}.probe"])
        for got, want in rows:
            got, want = got.astype(np.float64), want.ravel().astype(np.float64)
            cosines.append(got @ want / np.sqrt((got @ got) * (want @ want)))
            assert cosines[-1] > COSINE, f"p{i}: cosine {cosines[-1]}"
        for step, (want, margin) in enumerate(zip(greedy["ids"], greedy["margin"])):
            if margin > LARGE_MARGIN:
                got = int(logits[len(ids) - 1 + step].argmax())
                assert got == want, f"p{i}: step {step} gives {got}, expected {want} by {margin}"
                checked += 1
    assert checked >= 20, checked
    engine.worst["1 - cosine"] = 1 - min(cosines)
    return len(golden["prompts"])


def check_translation(engine, _):
    """Sources with their greedy answers, and logits of each answer, teacher-forced."""
    golden = json.loads((engine.model / "golden.json").read_text())
    arrays = np.load(engine.model / "golden.npz")
    for i, source in enumerate(golden["sources"]):
        ids, answer = source["ids"], source["greedy"]["ids"]
        flags = ["--source-ids", ",".join(map(str, ids))]
        logits = engine.logits(answer[:-1], "--positions", "all", *flags)
        engine.close(f"s{i}.greedy_logits", logits, arrays[f"s{i}.greedy_logits"], LOGITS_TOLERANCE)
        for more in (["--chunk", "1"], ["--chunk", "5"], ["--warm"], ["--threads", "1"], ["--cache", "sequence"]):
            last = engine.logits(answer[:-1], "--positions", "last", *flags, *more)
            assert last.tobytes() == logits[-1:].tobytes(), f"s{i}: {more} gives other bits"
        most = source.get("max_new_tokens") or golden["max_new_tokens"]
        out = engine.translate(ids, source["forced_bos_token_id"], most)
        assert out["tokens"] == answer, f"s{i}: greedy {out['tokens']}, expected {answer}"
        assert out["receipt"]["source_tokens"] == len(ids) and out["receipt"]["source_reused"] == 0, out
        assert out["receipt"]["miss"]["reason"] == "cold", out
    if engine.model.parent == DATA:
        check_selftest(engine)
    return len(golden["sources"])


def check_stories(engine, folder):
    """Logits of every position of prompt and greedy answer; ids include the prompt."""
    golden = json.loads((folder / "golden.json").read_text())
    arrays = np.load(folder / "golden_logits_f64.npz")
    for i, prompt in enumerate(golden["prompts"]):
        ids, start = prompt["greedy_ids"], len(prompt["prompt_ids"])
        engine.close(f"p{i}", engine.logits(ids, "--positions", "all"), arrays[f"p{i}"], LOGITS_TOLERANCE)
        got = engine.greedy(ids[:start], len(ids) - start)
        assert got == ids[start:], f"p{i}: greedy {got}, expected {ids[start:]}"
    return len(golden["prompts"])


def check_demo(engine, folder):
    golden = json.loads((folder / "golden.json").read_text())
    for prompt in golden["prompts"]:
        ids, values = np.array(prompt["top8"]).T
        logits = engine.logits(prompt["ids"], "--positions", "last")[0]
        engine.close(prompt["name"], logits[ids.astype(int)], values, LOGITS_TOLERANCE)
        got = engine.greedy(prompt["ids"], len(prompt["greedy"]))
        assert got == prompt["greedy"], f"{prompt['name']}: greedy {got}, expected {prompt['greedy']}"
    return len(golden["prompts"])


def flags_of(folder, scratch):
    """The flags with which a golden holds: an adapter's is the same from its PEFT folder and as GGUF."""
    if not (folder / "adapter_config.json").exists():
        return [[]]
    gguf = write_gguf_adapter(folder, folder.parent, scratch / f"{folder.name}.gguf")
    return [["--lora", str(folder)], ["--lora", str(gguf)]]


def main(name):
    """A model of the table, or a folder with golden.json, its safetensors and its GGUF files."""
    found = Path(name)
    folder, models = MODELS.get(name) or (found, [""] + sorted(file.name for file in found.glob("*.gguf")))
    if not folder.is_dir():
        print(f"skipped: needs {folder}")
        return 77
    check = {"kvasir-demo": check_demo, "llama-quant-gguf": check_quantised,
             "m2m100": check_translation, "m2m100-tiny": check_translation, "m2m100-random": check_translation,
             "stories260K": check_stories, "story656k": check_stories}
    for model in models:
        with tempfile.TemporaryDirectory() as scratch:
            for flags in flags_of(folder, Path(scratch)):
                engine = Engine(folder / model if model else folder, scratch, flags)
                prompts = check.get(name, check_arrays)(engine, folder)
                off = ", ".join(f"{what} off by {worst:.1e}" for what, worst in engine.worst.items())
                print(" ".join([str(folder / model), *flags]) + f": {prompts} prompts, {off}, greedy ids equal")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
