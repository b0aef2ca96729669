"""A Llama in float64 numpy, one readable function per step; the goldens in tests/data come from it.

Weights are a dict of arrays under their Hugging Face names, already rounded to what the file stores.
"""
import numpy as np


def rms_norm(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def inverse_frequencies(config):
    dim, rope = config["head_dim"], config["rope"]
    inv = 1.0 / rope["theta"] ** (np.arange(0, dim, 2) / dim)
    if rope["type"] == "linear":
        return inv / rope["factor"]
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


def rotate(x, config):
    """x [heads, tokens, head_dim]; element i is paired with i + head_dim/2."""
    angle = np.outer(np.arange(x.shape[1]), inverse_frequencies(config))
    cos, sin = np.cos(angle), np.sin(angle)
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def linear(weights, name, x):
    y = x @ weights[name + ".weight"].T
    return y + weights[name + ".bias"] if name + ".bias" in weights else y


def attention(q, k, v):
    """q [heads, tokens, dim], k and v [kv_heads, tokens, dim]: causal, grouped queries."""
    group = q.shape[0] // k.shape[0]
    k, v = np.repeat(k, group, 0), np.repeat(v, group, 0)
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
    scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


def forward(config, weights, ids):
    """Logits [tokens, vocab] and, per layer, K (after RoPE) and V [kv_heads, tokens, head_dim]."""
    weights = {name: w.astype(np.float64) for name, w in weights.items()}
    x = weights["model.embed_tokens.weight"][ids]
    kv = []
    heads = lambda y: y.reshape(len(ids), -1, config["head_dim"]).transpose(1, 0, 2)
    for layer in range(config["num_layers"]):
        at = f"model.layers.{layer}."
        h = rms_norm(x, weights[at + "input_layernorm.weight"], config["eps"])
        q, k, v = (heads(linear(weights, f"{at}self_attn.{p}_proj", h)) for p in "qkv")
        q, k = rotate(q, config), rotate(k, config)
        kv.append((k, v))
        out = attention(q, k, v).transpose(1, 0, 2).reshape(len(ids), -1)
        x = x + linear(weights, at + "self_attn.o_proj", out)
        h = rms_norm(x, weights[at + "post_attention_layernorm.weight"], config["eps"])
        gate = linear(weights, at + "mlp.gate_proj", h)
        x = x + linear(weights, at + "mlp.down_proj",
                       gate / (1 + np.exp(-gate)) * linear(weights, at + "mlp.up_proj", h))
    x = rms_norm(x, weights["model.norm.weight"], config["eps"])
    head = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
    return x @ head.T, kv


def greedy(config, weights, ids, count):
    """The next `count` tokens, and how far the best logit was ahead each time."""
    ids, margins = list(ids), []
    for _ in range(count):
        logits = forward(config, weights, ids)[0][-1]
        second, best = np.argsort(logits)[-2:]
        ids.append(int(best))
        margins.append(float(logits[best] - logits[second]))
    return ids[-count:], margins
