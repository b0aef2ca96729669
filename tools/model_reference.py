"""Decoder-only models in float64 numpy, one readable function per step: what the goldens in tests/data are made with.

Weights are a dict of arrays under Llama's Hugging Face names (`as_llama` renames and splits those of other families), already
rounded to what the file stores. `config` is what make_goldens.reference_config reads from a config.json.
"""
import math

import numpy as np


def rms_norm(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def layer_norm(x, weight, bias, eps):
    d = x - x.mean(-1, keepdims=True)
    return d / np.sqrt((d * d).mean(-1, keepdims=True) + eps) * weight + bias


def norm(weights, name, x, config):
    if name + ".bias" in weights:
        return layer_norm(x, weights[name + ".weight"], weights[name + ".bias"], config["eps"])
    return rms_norm(x, config["norm_offset"] + weights[name + ".weight"], config["eps"])


def activate(kind, x):
    if kind == "silu":
        return x / (1 + np.exp(-x))
    if kind == "relu":
        return np.maximum(x, 0)
    if kind == "gelu":
        return 0.5 * x * (1 + np.vectorize(math.erf)(x / np.sqrt(2)))
    assert kind in ("gelu_new", "gelu_pytorch_tanh"), kind
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x ** 3)))


def yarn(rope, inv):
    """Peng et al., 2023, as transformers computes it: pairs that turn often in the original context stay as they are, slow
    ones are divided by factor, between lies a ramp over the pairs."""
    dim = 2 * len(inv)

    def pair_of_turns(turns):
        return dim * math.log(rope["original_max_positions"] / (turns * 2 * math.pi)) / (2 * math.log(rope["theta"]))

    low, high = pair_of_turns(rope["beta_fast"]), pair_of_turns(rope["beta_slow"])
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = np.clip((np.arange(len(inv)) - low) / (high - low + (0.001 if low == high else 0)), 0, 1)
    return inv / rope["factor"] * ramp + inv * (1 - ramp)


def inverse_frequencies(dim, rope, tokens):
    """For a sequence of so many tokens: all of longrope's depend on its length."""
    inv = 1.0 / rope["theta"] ** (np.arange(0, dim, 2) / dim)
    if rope["type"] == "longrope":
        return inv / np.float32(rope["long_factor" if tokens > rope["original_max_positions"] else "short_factor"])
    if rope["type"] == "linear":
        return inv / rope["factor"]
    if rope["type"] == "yarn":
        return yarn(rope, inv)
    if rope["type"] == "llama3":
        # Llama 3.1 model card: long wavelengths are divided by factor, short ones stay, between: a ramp.
        wavelength = 2 * np.pi / inv
        low = rope["original_max_positions"] / rope["low_freq_factor"]
        high = rope["original_max_positions"] / rope["high_freq_factor"]
        ramp = (rope["original_max_positions"] / wavelength - rope["low_freq_factor"]) / (
            rope["high_freq_factor"] - rope["low_freq_factor"])
        middle = (1 - ramp) * inv / rope["factor"] + ramp * inv
        return np.where(wavelength > low, inv / rope["factor"], np.where(wavelength < high, inv, middle))
    return inv


def rotate(x, config, rope):
    """x [heads, tokens, head_dim]; of the first rotated_dims, element i is paired with i + rotated_dims/2."""
    angle = np.outer(np.arange(x.shape[1]), inverse_frequencies(config["rotated_dims"], rope, x.shape[1]))
    cos, sin = (f(angle) * rope.get("attention_factor", 1.0) for f in (np.cos, np.sin))
    half = config["rotated_dims"] // 2
    a, b, rest = x[..., :half], x[..., half:2 * half], x[..., 2 * half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], -1)


def linear(weights, name, x):
    y = x @ weights[name + ".weight"].T
    return y + weights[name + ".bias"] if name + ".bias" in weights else y


def soft_cap(cap, x):
    return x if cap is None else cap * np.tanh(x / cap)


def attention(q, k, v, config, window):
    """q [heads, tokens, dim], k and v [kv_heads, tokens, dim]: causal, grouped queries; of a window of 0 all tokens."""
    group = q.shape[0] // k.shape[0]
    k, v = np.repeat(k, group, 0), np.repeat(v, group, 0)
    scores = soft_cap(config["attention_softcap"], q @ k.transpose(0, 2, 1) / config["attention_divisor"])
    seen = np.tril(np.ones(scores.shape[-2:], bool))
    if window:
        seen &= ~np.tril(seen, -window)
    scores = np.where(seen, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


def as_llama(config, weights):
    """The weights of any family, in float64: GPT-2's and Phi-3's fused tensors apart, all under Llama's names."""
    named = {}
    sizes = [config["heads"] * config["head_dim"]] + 2 * [config["kv_heads"] * config["head_dim"]]
    gpt2 = {"wte": "model.embed_tokens", "wpe": "positions", "ln_f": "model.norm", "lm_head": "lm_head",
            "ln_1": "input_layernorm", "ln_2": "post_attention_layernorm", "attn.c_proj": "self_attn.o_proj",
            "mlp.c_fc": "mlp.up_proj", "mlp.c_proj": "mlp.down_proj", "attn.c_attn": "self_attn.qkv_proj"}
    for name, w in weights.items():
        w = w.astype(np.float64)
        stem, kind = name.removeprefix("transformer.").removeprefix("language_model.").rsplit(".", 1)
        at = ""
        if config["family"] == "gpt2":
            if stem.startswith("h."):
                layer, stem = stem.removeprefix("h.").split(".", 1)
                at = f"model.layers.{layer}."
                w = w.T if w.ndim == 2 else w
            stem = gpt2[stem]
        stem = at + stem
        if config["family"] == "mixtral":
            for theirs, ours in (("block_sparse_moe", "mlp"), (".w1", ".gate_proj"), (".w3", ".up_proj"), (".w2", ".down_proj")):
                stem = stem.replace(theirs, ours)
        parts = [(stem, w)]
        if stem.endswith("qkv_proj"):
            parts = zip((stem.replace("qkv_proj", f"{p}_proj") for p in "qkv"), np.split(w, np.cumsum(sizes)[:2]))
        elif stem.endswith("gate_up_proj"):
            parts = zip((stem.replace("gate_up", p) for p in ("gate", "up")), np.split(w, 2))
        named |= {f"{part}.{kind}": x for part, x in parts}
    return named


def experts(config, weights, at, h):
    """The sum of the FFNs of each row's experts by their weights: softmax over all, or over the chosen alone."""
    logits = h @ weights[at + "gate.weight"].T
    out = np.zeros_like(h)
    for row, x in enumerate(logits):
        chosen = np.sort(np.argsort(-x, kind="stable")[:config["experts_chosen"]])
        p = np.exp(x - x.max())
        p = p / (p[chosen] if config["norm_experts"] else p).sum()
        for i in chosen:
            gate, up, down = (weights[f"{at}experts.{i}.{name}_proj.weight"] for name in ("gate", "up", "down"))
            out[row] += p[i] * (down @ (activate(config["activation"], gate @ h[row]) * (up @ h[row])))
    return out


def ffn(config, weights, at, h):
    if at + "gate.weight" in weights:
        return experts(config, weights, at, h)
    up = linear(weights, at + "up_proj", h)
    if at + "gate_proj.weight" in weights:
        up = activate(config["activation"], linear(weights, at + "gate_proj", h)) * up
    else:
        up = activate(config["activation"], up)
    return linear(weights, at + "down_proj", up)


def branches(config, at):
    """The norms before and after attention, and before and after the FFN; None: there is none."""
    if config["norms_behind"] == "too":
        names = ("input", "post_attention", "pre_feedforward", "post_feedforward")
        return [f"{at}{name}_layernorm" for name in names]
    if config["norms_behind"]:
        return None, at + "post_attention_layernorm", None, at + "post_feedforward_layernorm"
    return at + "input_layernorm", None, at + "post_attention_layernorm", None


def forward(config, weights, ids):
    """Logits [tokens, vocab] and, per layer, K (after RoPE) and V [kv_heads, tokens, head_dim]."""
    weights = as_llama(config, weights)
    x = weights["model.embed_tokens.weight"][ids] * config["embedding_multiplier"]
    if "positions.weight" in weights:
        x = x + weights["positions.weight"][:len(ids)]
    kv = []
    heads = lambda y: y.reshape(len(ids), -1, config["head_dim"]).transpose(1, 0, 2)
    maybe = lambda name, y: y if name is None else norm(weights, name, y, config)
    for layer in range(config["num_layers"]):
        at = f"model.layers.{layer}."
        before_attention, behind_attention, before_ffn, behind_ffn = branches(config, at)
        h = maybe(before_attention, x)
        q, k, v = (linear(weights, f"{at}self_attn.{p}_proj", h) for p in "qkv")
        if config["head_norm"] == "all":
            q, k = (norm(weights, f"{at}self_attn.{p}_norm", y, config) for p, y in (("q", q), ("k", k)))
        q, k, v = heads(q), heads(k), heads(v)
        if config["head_norm"] == "each":
            q, k = (norm(weights, f"{at}self_attn.{p}_norm", y, config) for p, y in (("q", q), ("k", k)))
        window = config["windows"][layer]
        if config["rotated_layers"][layer]:
            rope = config["local_rope"] if window and config["local_rope"] else config["rope"]
            q, k = rotate(q, config, rope), rotate(k, config, rope)
        kv.append((k, v))
        out = attention(q, k, v, config, window).transpose(1, 0, 2).reshape(len(ids), -1)
        out = linear(weights, at + "self_attn.o_proj", out)
        x = x + config["residual_multiplier"] * maybe(behind_attention, out)
        h = maybe(before_ffn, x)
        x = x + config["residual_multiplier"] * maybe(behind_ffn, ffn(config, weights, at + "mlp.", h))
    x = norm(weights, "model.norm", x, config)
    head = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
    return soft_cap(config["logits_softcap"], x @ head.T / config["logits_scaling"]), kv


def greedy(config, weights, ids, count):
    """The next `count` tokens, and how far the best logit was ahead each time."""
    ids, margins = list(ids), []
    for _ in range(count):
        logits = forward(config, weights, ids)[0][-1]
        second, best = np.argsort(logits)[-2:]
        ids.append(int(best))
        margins.append(float(logits[best] - logits[second]))
    return ids[-count:], margins
