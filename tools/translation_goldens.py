#!/usr/bin/env python3
"""Makes tests/data/m2m100-tiny: a random encoder-decoder model of odd sizes, and what it computes in float64.

    tools/translation_goldens.py                  writes it; prints how far logits move without each feature
    tools/translation_goldens.py --check FOLDER   compares the reference with golden.* of a Hugging Face folder

Needs numpy only. golden.json and golden.npz are laid out as those of ../shared/goldens/m2m100 (tests/data/README.md).
"""
import json
import sys
from pathlib import Path

import numpy as np

from make_goldens import MIN_MARGIN, ROOT, read_safetensors, to_stored, write_safetensors
from model_reference import activate, layer_norm

NAME = "m2m100-tiny"
EPS = 1e-5
SEED = 3
GREEDY_TOKENS = 16
LENGTHS = [7, 1, 33, 270]  # of sources; the last one is longer than a span of attention
CONFIG = dict(
    architectures=["M2M100ForConditionalGeneration"], model_type="m2m_100", vocab_size=71, d_model=36,
    encoder_layers=3, encoder_attention_heads=3, encoder_ffn_dim=44, decoder_layers=2, decoder_attention_heads=2,
    decoder_ffn_dim=52, activation_function="gelu", max_position_embeddings=300, scale_embedding=True, pad_token_id=1,
    bos_token_id=0, eos_token_id=2, decoder_start_token_id=2, tie_word_embeddings=True, is_encoder_decoder=True,
    dtype="float16")
FEATURES = {"gelu": dict(activation_function="relu"), "scale_embedding": dict(scale_embedding=False),
            "the first position": dict(pad_token_id=0)}


def linear(weights, name, x):
    return x @ weights[name + ".weight"].T + weights[name + ".bias"]


def normed(weights, name, x):
    return layer_norm(x, weights[name + ".weight"], weights[name + ".bias"], EPS)


def split(x, heads):
    """[heads, tokens, head_dim]"""
    return x.reshape(len(x), heads, -1).transpose(1, 0, 2)


def attend(weights, name, q_rows, k, v, heads, causal):
    q = split(linear(weights, name + ".q_proj", q_rows), heads)
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
    if causal:
        scores = np.where(np.tril(np.ones(scores.shape[1:], bool)), scores, -np.inf)
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    out = scores / scores.sum(-1, keepdims=True) @ v
    return linear(weights, name + ".out_proj", out.transpose(1, 0, 2).reshape(len(q_rows), -1))


def key_values(weights, name, rows, heads):
    return [split(linear(weights, f"{name}.{part}_proj", rows), heads) for part in "kv"]


def ffn(config, weights, at, x):
    h = normed(weights, at + "final_layer_norm", x)
    return linear(weights, at + "fc2", activate(config["activation_function"], linear(weights, at + "fc1", h)))


def embed(config, weights, ids):
    width = config["d_model"]
    half = width // 2
    position = np.arange(len(ids)) + config["pad_token_id"] + 1
    angles = position[:, None] * np.exp(np.arange(half) * -(np.log(10000) / (half - 1)))
    scale = np.sqrt(width) if config["scale_embedding"] else 1.0
    return weights["model.shared.weight"][ids] * scale + np.concatenate([np.sin(angles), np.cos(angles)], 1)


def encode(config, weights, ids):
    x, heads = embed(config, weights, ids), config["encoder_attention_heads"]
    for layer in range(config["encoder_layers"]):
        at = f"model.encoder.layers.{layer}."
        h = normed(weights, at + "self_attn_layer_norm", x)
        k, v = key_values(weights, at + "self_attn", h, heads)
        x = x + attend(weights, at + "self_attn", h, k, v, heads, causal=False)
        x = x + ffn(config, weights, at, x)
    return normed(weights, "model.encoder.layer_norm", x)


def decode(config, weights, encoded, ids):
    """Logits of all positions, and K and V by layer: of the tokens, then of the source."""
    x, heads, own, cross = embed(config, weights, ids), config["decoder_attention_heads"], [], []
    for layer in range(config["decoder_layers"]):
        at = f"model.decoder.layers.{layer}."
        h = normed(weights, at + "self_attn_layer_norm", x)
        own.append(key_values(weights, at + "self_attn", h, heads))
        x = x + attend(weights, at + "self_attn", h, *own[-1], heads, causal=True)
        h = normed(weights, at + "encoder_attn_layer_norm", x)
        cross.append(key_values(weights, at + "encoder_attn", encoded, heads))
        x = x + attend(weights, at + "encoder_attn", h, *cross[-1], heads, causal=False)
        x = x + ffn(config, weights, at, x)
    return normed(weights, "model.decoder.layer_norm", x) @ weights["model.shared.weight"].T, own, cross


def greedy(config, weights, encoded, target):
    """The start token, the forced one, and what follows up to the end or GREEDY_TOKENS; margins of the free steps."""
    ids, margins = [config["decoder_start_token_id"], target], []
    while len(ids) <= GREEDY_TOKENS and ids[-1] != config["eos_token_id"]:
        logits = decode(config, weights, encoded, ids)[0][-1]
        best = np.argsort(-logits)[:2]
        ids.append(int(best[0]))
        margins.append(round(float(logits[best[0]] - logits[best[1]]), 4))
    return ids, margins


def shapes(config):
    width = config["d_model"]
    for half in ("encoder", "decoder"):
        inner = config[half + "_ffn_dim"]
        for layer in range(config[half + "_layers"]):
            at = f"model.{half}.layers.{layer}."
            attentions = ["self_attn"] + ["encoder_attn"] * (half == "decoder")
            for name in attentions:
                yield at + name + "_layer_norm", (width,)
                for part in "qkv":
                    yield f"{at}{name}.{part}_proj", (width, width)
                yield at + name + ".out_proj", (width, width)
            yield at + "final_layer_norm", (width,)
            yield at + "fc1", (inner, width)
            yield at + "fc2", (width, inner)
        yield f"model.{half}.layer_norm", (width,)


def random_weights(config):
    rng = np.random.default_rng(SEED)
    weights = {"model.shared.weight": rng.normal(0, 0.6, (config["vocab_size"], config["d_model"]))}
    for name, shape in shapes(config):
        if len(shape) == 1:
            weights[name + ".weight"] = 1 + rng.normal(0, 0.2, shape)
        else:
            weights[name + ".weight"] = rng.normal(0, 1.5 / np.sqrt(shape[1]), shape)
        weights[name + ".bias"] = rng.normal(0, 0.3, shape[0])
    return weights


def arrays_of(config, weights, index, source):
    encoded = encode(config, weights, source["ids"])
    logits, own, cross = decode(config, weights, encoded, source["greedy"]["ids"][:-1])
    arrays = {f"s{index}.greedy_logits": logits}
    if index == 0:
        arrays["s0.encoder"] = encoded
        for kind, layers in (("self", own), ("cross", cross)):
            arrays[f"s0.{kind}.layer0.k"], arrays[f"s0.{kind}.layer0.v"] = layers[0]
    return arrays


def all_arrays(config, weights, sources):
    arrays = {}
    for i, source in enumerate(sources):
        arrays |= arrays_of(config, weights, i, source)
    return arrays


def make():
    folder = ROOT / "tests/data" / NAME
    folder.mkdir(parents=True, exist_ok=True)
    stored = {name: (to_stored(w, "f16"), w.shape) for name, w in random_weights(CONFIG).items()}
    weights = {name: rounded for name, ((rounded, _), _) in stored.items()}
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=1) + "\n")
    write_safetensors(folder / "model.safetensors",
                      {name: ("F16", shape, raw) for name, ((_, raw), shape) in stored.items()})
    rng, sources = np.random.default_rng(SEED + 1000), []
    for length in LENGTHS:
        ids = rng.integers(3, CONFIG["vocab_size"], length - 1).tolist() + [2]
        target = int(rng.integers(3, CONFIG["vocab_size"]))
        tokens, margins = greedy(CONFIG, weights, encode(CONFIG, weights, ids), target)
        if margins and min(margins) < MIN_MARGIN:
            raise SystemExit(f"margin {min(margins):.4f} at length {length}: take another seed than {SEED}")
        sources.append({"ids": ids, "forced_bos_token_id": target, "greedy": {"ids": tokens, "margin": margins}})
    arrays = all_arrays(CONFIG, weights, sources)
    (folder / "golden.json").write_text(
        json.dumps({"arithmetic": "float64", "max_new_tokens": GREEDY_TOKENS, "sources": sources}) + "\n")
    np.savez(folder / "golden.npz", **{name: a.astype("<f4") for name, a in arrays.items()})
    print(f"{NAME}: {sum(f.stat().st_size for f in folder.iterdir())} bytes; answers of "
          f"{[len(s['greedy']['ids']) for s in sources]} tokens")
    for feature, change in FEATURES.items():
        other = all_arrays(CONFIG | change, weights, sources)
        moved = max(abs(other[n] - arrays[n]).max() for n in arrays if n.endswith("logits"))
        print(f"{NAME}: without {feature}, logits move by {moved:.2g}")
        if moved < 0.05:
            raise SystemExit(f"{NAME}: without {feature}, logits move by {moved:.1e} only")


def check(folder):
    config = json.loads((folder / "config.json").read_text())
    weights, arrays = read_safetensors(folder), np.load(folder / "golden.npz")
    golden = json.loads((folder / "golden.json").read_text())
    ours = all_arrays(config, weights, golden["sources"])
    assert set(ours) == set(arrays.files), set(ours) ^ set(arrays.files)
    worst = max(abs(ours[name] - arrays[name]).max() for name in ours)
    print(f"{folder}: {len(golden['sources'])} sources, largest difference {worst:.1e}")
    return 0 if worst < 2e-6 else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--check"]:
        sys.exit(check(Path(sys.argv[2])))
    make()
