#!/usr/bin/env python3
"""Makes the small golden models of tests/data: random Llamas of odd sizes, and what they compute in float64.

    tools/make_goldens.py                     writes tests/data/tiny-*
    tools/make_goldens.py --check FOLDER      compares the reference with golden.* of a Hugging Face folder

Needs numpy only. Layout of golden.json and golden.npz: see tests/data/README.md.
"""
import json
import struct
import sys
from pathlib import Path

import numpy as np

from llama_reference import forward, greedy

ROOT = Path(__file__).resolve().parent.parent
LENGTHS = [1, 7, 33, 130]
GREEDY_TOKENS = 16
PROBES = [63, 64, 65, 100, 128]  # positions of the longest prompt: around tiles of 64 tokens
MIN_MARGIN = 0.02

# Sizes that are not multiples of 8, each RoPE type, each way to share heads, each stored type.
MODELS = {
    "tiny-gqa": dict(seed=1, vocab=61, hidden=42, layers=2, heads=6, kv_heads=2, head_dim=14, ffn=52,
                     dtype="bf16", tied=True, biases=False, shards=1, style=4, gguf=False,
                     rope=dict(type="llama3", theta=500000.0, factor=8.0, low_freq_factor=1.0,
                               high_freq_factor=4.0, original_max_positions=32)),
    "tiny-mqa": dict(seed=1, vocab=77, hidden=30, layers=2, heads=3, kv_heads=1, head_dim=10, ffn=44,
                     dtype="f16", tied=False, biases=False, shards=2, style=5, gguf=True,
                     rope=dict(type="linear", theta=10000.0, factor=2.0)),
    "tiny-bias": dict(seed=1, vocab=67, hidden=28, layers=2, heads=4, kv_heads=4, head_dim=6, ffn=36,
                      dtype="f32", tied=False, biases=True, shards=1, style=5, gguf=False,
                      rope=dict(type="default", theta=10000.0)),
}


def to_stored(x, dtype):
    """x rounded to dtype: its value in float64 and its bytes."""
    if dtype == "f32":
        y = x.astype("<f4")
        return y.astype(np.float64), y.tobytes()
    if dtype == "f16":
        y = x.astype("<f2")
        return y.astype(np.float64), y.tobytes()
    bits = x.astype("<f4").view("<u4").astype(np.uint64)
    bits = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")  # to nearest even
    return (bits.astype("<u4") << 16).view("<f4").astype(np.float64), bits.tobytes()


def from_stored(raw, dtype, shape):
    kind = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}[dtype]
    values = np.frombuffer(raw, kind)
    if dtype == "BF16":
        values = (values.astype("<u4") << 16).view("<f4")
    return values.reshape(shape).astype(np.float64)


def random_weights(spec):
    """Scaled so that logits spread over about 4 and attention looks at some tokens more than others."""
    rng = np.random.default_rng(spec["seed"])
    hidden, q, kv = spec["hidden"], spec["heads"] * spec["head_dim"], spec["kv_heads"] * spec["head_dim"]
    shapes = {"self_attn.q_proj": (q, hidden), "self_attn.k_proj": (kv, hidden),
              "self_attn.v_proj": (kv, hidden), "self_attn.o_proj": (hidden, q),
              "mlp.gate_proj": (spec["ffn"], hidden), "mlp.up_proj": (spec["ffn"], hidden),
              "mlp.down_proj": (hidden, spec["ffn"])}
    weights = {"model.embed_tokens.weight": rng.normal(0, 0.6, (spec["vocab"], hidden))}
    for layer in range(spec["layers"]):
        at = f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{at}{norm}.weight"] = rng.normal(1, 0.1, hidden)
        for name, (rows, columns) in shapes.items():
            gain = 1.6 if name[-6:] in ("q_proj", "k_proj") else 1.0
            weights[f"{at}{name}.weight"] = rng.normal(0, gain / columns**0.5, (rows, columns))
            if spec["biases"]:
                weights[f"{at}{name}.bias"] = rng.normal(0, 0.2, rows)
    weights["model.norm.weight"] = rng.normal(1, 0.1, hidden)
    if not spec["tied"]:
        weights["lm_head.weight"] = rng.normal(0, 0.6, (spec["vocab"], hidden))
    return weights


def write_safetensors(path, tensors):
    """tensors: name -> (dtype, shape, bytes)."""
    header, offset = {}, 0
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype.upper(), "shape": list(shape), "data_offsets": [offset, offset + len(raw)]}
        offset += len(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(raw for _, _, raw in tensors.values()))


def read_safetensors(folder):
    weights = {}
    for path in sorted(folder.glob("*.safetensors")):
        raw = path.read_bytes()
        length = struct.unpack_from("<Q", raw)[0]
        for name, t in json.loads(raw[8:8 + length]).items():
            if name != "__metadata__":
                begin, end = (8 + length + o for o in t["data_offsets"])
                weights[name] = from_stored(raw[begin:end], t["dtype"], t["shape"])
    return weights


GGUF_NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
              "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
              "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
              "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
              "mlp.down_proj": "ffn_down"}


def gguf_name(name):
    stem, kind = name.rsplit(".", 1)
    if stem.startswith("model.layers."):
        layer, rest = stem.removeprefix("model.layers.").split(".", 1)
        return f"blk.{layer}.{GGUF_NAMES[rest]}.{kind}"
    return f"{GGUF_NAMES[stem]}.{kind}"


def gguf_value(value):
    if isinstance(value, str):
        return struct.pack("<IQ", 8, len(value)) + value.encode()
    return struct.pack("<If", 6, value) if isinstance(value, float) else struct.pack("<II", 4, value)


def write_gguf(path, spec, weights):
    """Version 3 as llama.cpp's converter writes it: rows of Wq and Wk interleaved, norms in f32."""
    keys = {"general.architecture": "llama", "general.name": path.parent.name, "general.alignment": 32,
            "llama.block_count": spec["layers"], "llama.context_length": 256,
            "llama.embedding_length": spec["hidden"], "llama.feed_forward_length": spec["ffn"],
            "llama.attention.head_count": spec["heads"], "llama.attention.head_count_kv": spec["kv_heads"],
            "llama.attention.key_length": spec["head_dim"], "llama.attention.value_length": spec["head_dim"],
            "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.rope.freq_base": spec["rope"]["theta"],
            "llama.rope.dimension_count": spec["head_dim"], "llama.vocab_size": spec["vocab"],
            "llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": spec["rope"]["factor"]}
    infos, data = b"", b""
    for name, x in weights.items():
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            x = x.reshape(-1, 2, spec["head_dim"] // 2, x.shape[1]).swapaxes(1, 2).reshape(x.shape)
        dtype = "f32" if x.ndim == 1 else spec["dtype"]
        raw = to_stored(x, dtype)[1]
        short = gguf_name(name).encode()
        dims = x.shape[::-1]
        infos += struct.pack("<Q", len(short)) + short + struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
        infos += struct.pack("<IQ", {"f32": 0, "f16": 1, "bf16": 30}[dtype], len(data))
        data += raw + b"\0" * (-len(raw) % 32)
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(weights), len(keys))
    for key, value in keys.items():
        head += struct.pack("<Q", len(key)) + key.encode() + gguf_value(value)
    head += infos
    path.write_bytes(head + b"\0" * (-len(head) % 32) + data)


def hf_config(spec):
    """config.json in the style of transformers 4 or 5."""
    rope = spec["rope"]
    scaling = {"rope_type": rope["type"]}
    for key in ("factor", "low_freq_factor", "high_freq_factor"):
        if key in rope:
            scaling[key] = rope[key]
    if "original_max_positions" in rope:
        scaling["original_max_position_embeddings"] = rope["original_max_positions"]
    dtype = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}[spec["dtype"]]
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": spec["vocab"],
              "hidden_size": spec["hidden"], "intermediate_size": spec["ffn"],
              "num_hidden_layers": spec["layers"], "num_attention_heads": spec["heads"],
              "num_key_value_heads": spec["kv_heads"], "head_dim": spec["head_dim"], "hidden_act": "silu",
              "rms_norm_eps": 1e-5, "max_position_embeddings": 256, "attention_bias": spec["biases"],
              "mlp_bias": spec["biases"], "tie_word_embeddings": spec["tied"]}
    if spec["style"] == 4:
        return config | {"torch_dtype": dtype, "rope_theta": rope["theta"], "rope_scaling": scaling}
    return config | {"dtype": dtype, "rope_parameters": scaling | {"rope_theta": rope["theta"]}}


def reference_config(config):
    """What the reference needs, from either style of config.json."""
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    return {"num_layers": config["num_hidden_layers"], "eps": config["rms_norm_eps"],
            "head_dim": config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"],
            "rope": {"type": rope.get("rope_type", rope.get("type", "default")),
                     "theta": rope.get("rope_theta", config.get("rope_theta", 10000.0)),
                     "original_max_positions": rope.get("original_max_position_embeddings"),
                     **{k: rope[k] for k in ("factor", "low_freq_factor", "high_freq_factor") if k in rope}}}


def write_weights(folder, spec, weights):
    tensors = {n: (spec["dtype"], w.shape, to_stored(w, spec["dtype"])[1]) for n, w in weights.items()}
    if spec["shards"] == 1:
        write_safetensors(folder / "model.safetensors", tensors)
        return
    names, shards, where = list(tensors), spec["shards"], {}
    for i in range(shards):
        part = names[i * len(names) // shards:(i + 1) * len(names) // shards]
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        write_safetensors(folder / file, {n: tensors[n] for n in part})
        where |= dict.fromkeys(part, file)
    total = sum(len(raw) for _, _, raw in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


def goldens(config, weights, vocab, seed):
    rng = np.random.default_rng(seed + 1000)
    prompts, arrays = [], {}
    for i, length in enumerate(LENGTHS):
        ids = rng.integers(0, vocab, length).tolist()
        logits, kv = forward(config, weights, ids)
        arrays[f"p{i}.last"] = logits[-1]
        prompt = {"ids": ids}
        if length == 33:
            arrays[f"p{i}.all"] = logits
            for layer in (0, config["num_layers"] - 1):
                arrays[f"kv.layer{layer}.k"], arrays[f"kv.layer{layer}.v"] = kv[layer]
        elif length > 64:
            prompt["probe_positions"] = PROBES
            arrays[f"p{i}.probe"] = logits[PROBES]
        tokens, margins = greedy(config, weights, ids, GREEDY_TOKENS)
        if min(margins) < MIN_MARGIN:
            raise SystemExit(f"margin {min(margins):.4f} at length {length}: take another seed than {seed}")
        prompts.append(prompt | {"greedy": {"ids": tokens, "margin": [round(m, 4) for m in margins]}})
    golden = {"arithmetic": "float64", "prompts": prompts,
              "kv": {"prompt": "p2", "layers": [0, config["num_layers"] - 1]}}
    return golden, {name: a.astype("<f4") for name, a in arrays.items()}


def make(name):
    spec = MODELS[name]
    folder = ROOT / "tests/data" / name
    folder.mkdir(parents=True, exist_ok=True)
    weights = {n: to_stored(w, spec["dtype"])[0] for n, w in random_weights(spec).items()}
    config = hf_config(spec)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    write_weights(folder, spec, weights)
    if spec["gguf"]:
        write_gguf(folder / f"model-{spec['dtype']}.gguf", spec, weights)
    golden, arrays = goldens(reference_config(config), weights, spec["vocab"], spec["seed"])
    (folder / "golden.json").write_text(json.dumps(golden) + "\n")
    np.savez(folder / "golden.npz", **arrays)
    size = sum(f.stat().st_size for f in folder.iterdir())
    spread = np.concatenate([a.ravel() for n, a in arrays.items() if n[0] == "p"]).std()
    print(f"{name}: {size} bytes, logits spread over {spread:.2f}")


def check(folder):
    config = reference_config(json.loads((folder / "config.json").read_text()))
    weights, arrays, worst = read_safetensors(folder), np.load(folder / "golden.npz"), 0.0
    prompts = json.loads((folder / "golden.json").read_text())["prompts"]
    for i, prompt in enumerate(prompts):
        logits = forward(config, weights, prompt["ids"])[0]
        worst = max(worst, abs(logits[-1] - arrays[f"p{i}.last"]).max())
    print(f"{folder}: {len(prompts)} prompts, largest difference {worst:.1e}")
    return 0 if worst < 2e-6 else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--check"]:
        sys.exit(check(Path(sys.argv[2])))
    for model in MODELS:
        make(model)
