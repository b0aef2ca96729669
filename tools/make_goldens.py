#!/usr/bin/env python3
"""Makes the small golden models of tests/data: random models of odd sizes, and what they compute in float64.

    tools/make_goldens.py [NAME...]           writes tests/data/tiny-*; prints how far logits move without each feature
    tools/make_goldens.py --check FOLDER      compares the reference with golden.* of a Hugging Face folder

Needs numpy only. Layout of golden.json and golden.npz: see tests/data/README.md. Over 600 lines: the models are one
table, read side by side.
"""
import json
import struct
import sys
from pathlib import Path

import numpy as np

from model_reference import forward, greedy

ROOT = Path(__file__).resolve().parent.parent
LENGTHS = [1, 7, 33, 130]
GREEDY_TOKENS = 16
PROBES = [63, 64, 65, 100, 128]  # positions of the longest prompt: around tiles of 64 tokens
MIN_MARGIN = 0.02
CONTEXT = 256
SCALING = ("factor", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "truncate", "attention_factor",
           "short_factor", "long_factor")

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
    "tiny-yarn": dict(seed=1, vocab=71, hidden=28, layers=2, heads=2, kv_heads=1, head_dim=14, ffn=36,
                      dtype="f16", tied=False, biases=False, shards=1, style=4, gguf=False,
                      rope=dict(type="yarn", theta=10000.0, factor=4.0, original_max_positions=32,
                                beta_fast=6.0, beta_slow=0.5, truncate=False),
                      config=dict(hidden_act="relu"),
                      features={"yarn": dict(rope_scaling=dict(rope_type="linear", factor=4.0)),
                                "truncate": ("rope_scaling", dict(truncate=True)),
                                "attention factor": ("rope_scaling", dict(attention_factor=1.0)),
                                "relu": dict(hidden_act="silu")}),
    "tiny-qwen2": dict(seed=1, family="qwen2", vocab=61, hidden=30, layers=2, heads=3, kv_heads=1, head_dim=10, ffn=44,
                       dtype="f16", tied=True, biases="qkv", shards=1, style=4, gguf=True,
                       rope=dict(type="default", theta=1000000.0),
                       config=dict(use_sliding_window=False, sliding_window=64, max_window_layers=1)),
    "tiny-mistral": dict(seed=4, family="mistral", vocab=61, hidden=30, layers=2, heads=3, kv_heads=1, head_dim=12, ffn=44,
                         dtype="bf16", tied=False, biases=False, shards=1, style=4, gguf=True,
                         rope=dict(type="default", theta=10000.0), config=dict(sliding_window=17),
                         features={"window": dict(sliding_window=None),
                                   "one token of the window": dict(sliding_window=18)}),
    "tiny-ministral": dict(seed=1, family="ministral", vocab=61, hidden=30, layers=3, heads=3, kv_heads=1, head_dim=12,
                           ffn=44, dtype="f16", tied=True, biases=False, shards=1, style=5, gguf=False,
                           rope=dict(type="default", theta=10000.0),
                           config=dict(sliding_window=20, layer_types=[
                               "sliding_attention", "full_attention", "sliding_attention"]),
                           features={"layer_types": dict(layer_types=None),
                                     "one token of the window": dict(sliding_window=21)}),
    "tiny-qwen2-window": dict(seed=1, family="qwen2", vocab=61, hidden=30, layers=3, heads=3, kv_heads=1, head_dim=10,
                              ffn=44, dtype="f16", tied=True, biases="qkv", shards=1, style=4, gguf=False,
                              rope=dict(type="default", theta=1000000.0),
                              config=dict(use_sliding_window=True, sliding_window=48, max_window_layers=1),
                              features={"use_sliding_window": dict(use_sliding_window=False),
                                        "max_window_layers": dict(max_window_layers=0)}),
    "tiny-qwen3": dict(seed=1, family="qwen3", vocab=61, hidden=26, layers=2, heads=3, kv_heads=1, head_dim=12, ffn=36,
                       dtype="bf16", tied=False, biases=False, shards=1, style=5, gguf=True,
                       rope=dict(type="default", theta=1000000.0)),
    "tiny-granite": dict(seed=1, family="granite", vocab=67, hidden=28, layers=2, heads=2, kv_heads=1, head_dim=14, ffn=44,
                         dtype="bf16", tied=False, biases=False, shards=1, style=4, gguf=True,
                         rope=dict(type="default", theta=10000.0),
                         config=dict(embedding_multiplier=3.0, attention_multiplier=0.13,
                                     residual_multiplier=0.6, logits_scaling=0.7),
                         features={"embedding_multiplier": dict(embedding_multiplier=1.0),
                                   "attention_multiplier": dict(attention_multiplier=14**-0.5),
                                   "residual_multiplier": dict(residual_multiplier=1.0),
                                   "logits_scaling": dict(logits_scaling=1.0)}),
    "tiny-olmo2": dict(seed=3, family="olmo2", vocab=61, hidden=36, layers=2, heads=3, kv_heads=3, head_dim=12, ffn=52,
                       dtype="bf16", tied=False, biases=False, shards=1, style=5, gguf=True,
                       rope=dict(type="default", theta=500000.0)),
    "tiny-smollm3": dict(seed=1, family="smollm3", vocab=61, hidden=24, layers=5, heads=4, kv_heads=2, head_dim=6, ffn=36,
                         dtype="f16", tied=True, biases=False, shards=1, style=5, gguf=True,
                         rope=dict(type="default", theta=2000000.0),
                         features={"layers without RoPE": dict(no_rope_layers=[1, 1, 1, 1, 1]),
                                   "which layers": dict(no_rope_layers=[1, 1, 0, 1, 1])}),
    "tiny-phi3": dict(seed=3, family="phi3", vocab=67, hidden=40, layers=2, heads=4, kv_heads=2, head_dim=10, ffn=52,
                      dtype="f16", tied=False, biases=False, shards=1, style=4, gguf=True,
                      rope=dict(type="default", theta=10000.0),
                      config=dict(partial_rotary_factor=0.6, sliding_window=256, pad_token_id=0,
                                  original_max_position_embeddings=256),
                      features={"partial rotary": dict(partial_rotary_factor=1.0)}),
    # Prompts at and around the original context; the answer to the one of 25 tokens grows past it.
    "tiny-longrope": dict(seed=2, family="phi3", vocab=61, hidden=42, layers=2, heads=3, kv_heads=1, head_dim=14, ffn=44,
                          dtype="f16", tied=False, biases=False, shards=1, style=4, gguf=True,
                          lengths=[1, 7, 25, 32, 33, 130],
                          rope=dict(type="longrope", theta=10000.0, short_factor=[1.0, 1.05, 1.15, 1.3, 1.5],
                                    long_factor=[1.1, 1.7, 3.0, 5.5, 8.0]),
                          config=dict(partial_rotary_factor=0.72, original_max_position_embeddings=32, sliding_window=None),
                          features={"long factors": ("rope_scaling", dict(long_factor=[1.0, 1.05, 1.15, 1.3, 1.5])),
                                    "short factors": ("rope_scaling", dict(short_factor=[1.1, 1.7, 3.0, 5.5, 8.0])),
                                    "attention factor": ("rope_scaling", dict(attention_factor=1.0)),
                                    "the original context": dict(original_max_position_embeddings=33)}),
    "tiny-gelu": dict(seed=2, vocab=61, hidden=28, layers=2, heads=2, kv_heads=1, head_dim=14, ffn=44, dtype="f16",
                      tied=False, biases=False, shards=1, style=5, gguf=False, rope=dict(type="default", theta=10000.0),
                      gain=2.0, least_tolerances=5, config=dict(hidden_act="gelu"),
                      features={"gelu": dict(hidden_act="silu"), "erf": dict(hidden_act="gelu_pytorch_tanh")}),
    "tiny-gpt2": dict(seed=1, family="gpt2", vocab=61, hidden=28, layers=2, heads=2, kv_heads=2, head_dim=14, ffn=112,
                      dtype="f16", tied=True, biases=True, shards=1, style=5, gguf=True,
                      rope=dict(type="default", theta=10000.0),
                      features={"gelu_new": dict(activation_function="relu")}),
}
# Gemma's windows, soft-caps and its own defaults are always switched on.
GEMMA2 = dict(sliding_window=64, attn_logit_softcapping=4.0, final_logit_softcapping=9.0, query_pre_attn_scalar=10)
MODELS["tiny-gemma2"] = dict(
    seed=1, family="gemma2", vocab=61, hidden=28, layers=3, heads=4, kv_heads=2, head_dim=10, ffn=36, dtype="bf16",
    tied=True, biases=False, shards=1, style=4, gguf=True, rope=dict(type="default", theta=10000.0), config=GEMMA2,
    features={"window": dict(sliding_window=256), "one token of the window": dict(sliding_window=65),
              "attention soft-cap": dict(attn_logit_softcapping=None),
              "logits soft-cap": dict(final_logit_softcapping=None),
              "query_pre_attn_scalar": dict(query_pre_attn_scalar=6),
              "gelu": dict(hidden_activation="silu"),
              "which layers": dict(layer_types=["full_attention", "sliding_attention", "full_attention"])})
MODELS["tiny-gemma3"] = dict(
    seed=1, family="gemma3", vocab=61, hidden=24, layers=7, heads=2, kv_heads=1, head_dim=14, ffn=36, dtype="bf16",
    tied=True, biases=False, shards=1, style=5, gguf=True, rope=dict(type="default", theta=1000000.0),
    config=dict(sliding_window=17, query_pre_attn_scalar=14),
    features={"window": dict(sliding_window=256), "one token of the window": dict(sliding_window=18),
              "pattern": dict(sliding_window_pattern=7),
              "local RoPE": ("rope_parameters", dict(sliding_attention=dict(rope_type="default", rope_theta=1000000.0)))})
MODELS["tiny-gemma3-vision"] = dict(
    seed=1, family="gemma3", vocab=61, hidden=24, layers=3, heads=2, kv_heads=1, head_dim=14, ffn=36, dtype="f16",
    tied=True, biases=False, shards=1, style=4, gguf=False, nested=True,
    rope=dict(type="linear", theta=50000.0, factor=4.0),
    config=dict(sliding_window=48, sliding_window_pattern=2, query_pre_attn_scalar=20, rope_local_base_freq=100.0),
    features={"query_pre_attn_scalar": dict(query_pre_attn_scalar=14), "linear scaling": dict(rope_scaling=None),
              "local RoPE": dict(rope_local_base_freq=50000.0), "pattern": dict(sliding_window_pattern=3)})
MODELS["tiny-mixtral"] = dict(
    seed=3, family="mixtral", vocab=61, hidden=30, layers=2, heads=3, kv_heads=1, head_dim=10, ffn=44, dtype="bf16",
    tied=False, biases=False, shards=1, style=4, gguf=True, rope=dict(type="default", theta=10000.0),
    config=dict(num_local_experts=5, num_experts_per_tok=2, sliding_window=17),
    features={"window": dict(sliding_window=None), "experts of a token": dict(num_experts_per_tok=1),
              "weights of the chosen alone": dict(norm_topk_prob=False)})
MODELS["tiny-qwen3-moe"] = dict(
    seed=1, family="qwen3_moe", vocab=61, hidden=26, layers=5, heads=3, kv_heads=1, head_dim=12, ffn=44, dtype="f16",
    tied=True, biases=False, shards=2, style=5, gguf=False, rope=dict(type="default", theta=1000000.0),
    config=dict(num_experts=9, num_experts_per_tok=3, moe_intermediate_size=20, norm_topk_prob=False,
                mlp_only_layers=[3], decoder_sparse_step=2),
    features={"experts of a token": dict(num_experts_per_tok=2), "norm_topk_prob": dict(norm_topk_prob=True)})
MODELS["tiny-qwen3-moe-norm"] = MODELS["tiny-qwen3-moe"] | dict(
    layers=2, dtype="bf16", style=4, shards=1, gguf=True,
    config=dict(num_local_experts=6, num_experts_per_tok=4, moe_intermediate_size=20, norm_topk_prob=True),
    features={"experts of a token": dict(num_experts_per_tok=2), "norm_topk_prob": dict(norm_topk_prob=False)})
# Norms around the branches of a layer, and the class of config.json.
BEFORE = ("input_layernorm", "post_attention_layernorm")
AFTER = ("post_attention_layernorm", "post_feedforward_layernorm")
NORMS = {"olmo2": AFTER, "gemma2": ("input_layernorm", "pre_feedforward_layernorm") + AFTER}
NORMS["gemma3"] = NORMS["gemma2"]
GEMMAS = ("gemma2", "gemma3")
CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM",
           "granite": "GraniteForCausalLM", "olmo2": "Olmo2ForCausalLM", "smollm3": "SmolLM3ForCausalLM",
           "phi3": "Phi3ForCausalLM", "gpt2": "GPT2LMHeadModel", "mistral": "MistralForCausalLM",
           "ministral": "MinistralForCausalLM",
           "gemma2": "Gemma2ForCausalLM", "gemma3": "Gemma3ForCausalLM", "mixtral": "MixtralForCausalLM",
           "qwen3_moe": "Qwen3MoeForCausalLM"}
HEAD_NORMS = {"qwen3": "each", "olmo2": "all", "gemma3": "each", "qwen3_moe": "each"}
INTERLEAVED = ("llama", "granite", "smollm3", "mistral", "mixtral")  # in GGUF, rows of Wq and Wk


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


def expert_layers(config, layers):
    """Whether each layer has experts."""
    if "num_experts_per_tok" not in config:
        return [False] * layers
    dense, step = config.get("mlp_only_layers") or [], config.get("decoder_sparse_step", 1)
    return [i not in dense and (i + 1) % step == 0 for i in range(layers)]


def expert_shapes(spec):
    """Tensors of a layer with experts, under Qwen's names."""
    config, hidden = spec["config"], spec["hidden"]
    ffn, count = config.get("moe_intermediate_size", spec["ffn"]), config.get("num_experts", config.get("num_local_experts"))
    shapes = {"mlp.gate": (count, hidden)}
    for i in range(count):
        shapes |= {f"mlp.experts.{i}.gate_proj": (ffn, hidden), f"mlp.experts.{i}.up_proj": (ffn, hidden),
                   f"mlp.experts.{i}.down_proj": (hidden, ffn)}
    return shapes


def random_weights(spec):
    """Scaled so that logits spread over about 4 and attention looks at some tokens more than others. Llama's names."""
    family = spec.get("family", "llama")
    rng = np.random.default_rng(spec["seed"])
    hidden, q, kv = spec["hidden"], spec["heads"] * spec["head_dim"], spec["kv_heads"] * spec["head_dim"]
    shapes = {"self_attn.q_proj": (q, hidden), "self_attn.k_proj": (kv, hidden),
              "self_attn.v_proj": (kv, hidden), "self_attn.o_proj": (hidden, q),
              "mlp.gate_proj": (spec["ffn"], hidden), "mlp.up_proj": (spec["ffn"], hidden),
              "mlp.down_proj": (hidden, spec["ffn"])}
    has_bias = lambda name: spec["biases"] is True or (spec["biases"] == "qkv" and name[-6:] in ("q_proj", "k_proj", "v_proj"))
    offset = 0 if family in GEMMAS else 1  # Gemma's files hold norms less 1
    weights = {"model.embed_tokens.weight": rng.normal(0, 0.6, (spec["vocab"], hidden))}
    if family == "gpt2":
        del shapes["mlp.gate_proj"]
        weights["positions.weight"] = rng.normal(0, 0.4, (CONTEXT, hidden))
    for layer in range(spec["layers"]):
        at = f"model.layers.{layer}."
        for norm in NORMS.get(family, BEFORE):
            weights[f"{at}{norm}.weight"] = rng.normal(offset, 0.1, hidden)
            if family == "gpt2":
                weights[f"{at}{norm}.bias"] = rng.normal(0, 0.2, hidden)
        if family in HEAD_NORMS:
            for name, size in (("q", q), ("k", kv)):
                size = spec["head_dim"] if HEAD_NORMS[family] == "each" else size
                weights[f"{at}self_attn.{name}_norm.weight"] = rng.normal(offset + 0.3, 0.3, size)
        of_layer = shapes
        if expert_layers(spec.get("config", {}), spec["layers"])[layer]:
            of_layer = {n: s for n, s in shapes.items() if not n.startswith("mlp.")} | expert_shapes(spec)
        for name, (rows, columns) in of_layer.items():
            gain = 1.6 if name[-6:] in ("q_proj", "k_proj") else spec.get("gain", 1.0)
            weights[f"{at}{name}.weight"] = rng.normal(0, gain / columns**0.5, (rows, columns))
            if has_bias(name):
                weights[f"{at}{name}.bias"] = rng.normal(0, 0.2, rows)
    weights["model.norm.weight"] = rng.normal(offset, 0.1, hidden)
    if family == "gpt2":
        weights["model.norm.bias"] = rng.normal(0, 0.2, hidden)
    if not spec["tied"]:
        weights["lm_head.weight"] = rng.normal(0, 0.6, (spec["vocab"], hidden))
    return weights


def as_hf(spec, weights):
    """Under the names of the family, fused and turned as its files have them."""
    family = spec.get("family", "llama")
    if spec.get("nested"):
        return {"language_model." + name: w for name, w in weights.items()}
    if family == "mixtral":
        for ours, theirs in (("mlp.", "block_sparse_moe."), ("gate_proj", "w1"), ("up_proj", "w3"), ("down_proj", "w2")):
            weights = {name.replace(ours, theirs): w for name, w in weights.items()}
        return weights
    if family not in ("phi3", "gpt2"):
        return weights
    named, fused = {}, {}
    gpt2 = {"model.embed_tokens": "wte", "positions": "wpe", "model.norm": "ln_f", "input_layernorm": "ln_1",
            "post_attention_layernorm": "ln_2", "self_attn.o_proj": "attn.c_proj", "mlp.up_proj": "mlp.c_fc",
            "mlp.down_proj": "mlp.c_proj", "self_attn.qkv_proj": "attn.c_attn"}
    for name, w in weights.items():
        stem, kind = name.rsplit(".", 1)
        for part, whole in (("self_attn.%s_proj", "qkv"), ("mlp.%s_proj", ("gate", "up"))):
            parts = [part % p for p in whole]
            found = [p for p in parts if stem.endswith(p)]
            if found and (family == "phi3" or whole == "qkv"):
                stem = stem.removesuffix(found[0]) + part % ("qkv" if whole == "qkv" else "gate_up")
                w = fused[stem + kind] = np.concatenate([fused[stem + kind], w]) if stem + kind in fused else w
        if family == "gpt2":
            layer = ""
            if stem.startswith("model.layers."):
                number, stem = stem.removeprefix("model.layers.").split(".", 1)
                layer = f"h.{number}."
                w = np.ascontiguousarray(w.T)
            stem = layer + gpt2[stem]
        named[f"{stem}.{kind}"] = w
    return named


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


GGUF_NAMES = {"rope_factors_short": "rope_factors_short", "rope_factors_long": "rope_factors_long", "model.embed_tokens": "token_embd", "positions": "position_embd",
              "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
              "self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up", "model.norm": "output_norm", "lm_head": "output",
              "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
              "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
              "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
              "mlp.down_proj": "ffn_down", "mlp.gate": "ffn_gate_inp", "mlp.experts.gate_proj": "ffn_gate_exps",
              "mlp.experts.up_proj": "ffn_up_exps", "mlp.experts.down_proj": "ffn_down_exps"}


BEHIND_GGUF = {"post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm",
               "pre_feedforward_layernorm": "ffn_norm"}


def gguf_name(name, family):
    stem, kind = name.rsplit(".", 1)
    if stem.startswith("model.layers."):
        layer, rest = stem.removeprefix("model.layers.").split(".", 1)
        names = GGUF_NAMES | (BEHIND_GGUF if family in NORMS else {})
        return f"blk.{layer}.{names[rest]}.{kind}"
    return f"{GGUF_NAMES[stem]}.{kind}"


def gguf_value(value):
    if isinstance(value, str):
        return struct.pack("<IQ", 8, len(value)) + value.encode()
    return struct.pack("<If", 6, value) if isinstance(value, float) else struct.pack("<II", 4, value)


def longrope_attention_factor(factor, original):
    return float(np.sqrt(1 + np.log(factor) / np.log(original))) if factor > 1 else 1.0


def gguf_keys(path, spec):
    """Metadata as llama.cpp's converter names it."""
    family, config = spec.get("family", "llama"), spec.get("config", {})
    keys = {"block_count": spec["layers"], "context_length": CONTEXT, "embedding_length": spec["hidden"],
            "feed_forward_length": spec["ffn"], "attention.head_count": spec["heads"]}
    if family == "gpt2":
        keys["attention.layer_norm_epsilon"] = 1e-5
    else:
        keys |= {"attention.head_count_kv": spec["kv_heads"], "attention.key_length": spec["head_dim"],
                 "attention.value_length": spec["head_dim"], "attention.layer_norm_rms_epsilon": 1e-5,
                 "rope.freq_base": spec["rope"]["theta"],
                 "rope.dimension_count": int(spec["head_dim"] * config.get("partial_rotary_factor", 1)),
                 "vocab_size": spec["vocab"]}
    if spec["rope"]["type"] == "linear":
        keys |= {"rope.scaling.type": "linear", "rope.scaling.factor": spec["rope"]["factor"]}
    if spec["rope"]["type"] == "longrope":
        original = config["original_max_position_embeddings"]
        keys |= {"rope.scaling.original_context_length": original,
                 "rope.scaling.attn_factor": longrope_attention_factor(CONTEXT / original, original)}
    if family == "granite":
        keys |= {"attention.scale": config["attention_multiplier"], "embedding_scale": config["embedding_multiplier"],
                 "residual_scale": config["residual_multiplier"], "logit_scale": config["logits_scaling"]}
    if family in ("mixtral", "qwen3_moe"):
        keys |= {"expert_count": config["num_local_experts"], "expert_used_count": config["num_experts_per_tok"]}
    if family == "qwen3_moe":
        keys["expert_feed_forward_length"] = config["moe_intermediate_size"]
    family = {"mistral": "llama", "mixtral": "llama", "qwen3_moe": "qwen3moe"}.get(family, family)
    if family in ("llama", *GEMMAS) and "sliding_window" in config:
        keys["attention.sliding_window"] = config["sliding_window"]
    if family == "gemma2":
        keys |= {"attn_logit_softcapping": config["attn_logit_softcapping"],
                 "final_logit_softcapping": config["final_logit_softcapping"]}
    if family == "gemma3":
        keys["rope.freq_base_swa"] = 10000.0
    general = {"general.architecture": family, "general.name": path.parent.name, "general.alignment": 32}
    return general | {f"{family}.{key}": value for key, value in keys.items()}


def joined_experts(weights):
    """GGUF has one tensor of three dimensions for a matrix of all experts of a layer."""
    named = {}
    for name, w in weights.items():
        at, _, rest = name.partition(".experts.")
        if rest:
            name, w = f"{at}.experts.{rest.split('.', 1)[1]}", w[None]
            w = np.concatenate([named[name], w]) if name in named else w
        named[name] = w
    return named


def fused_gguf(spec, weights):
    """Phi-3's and GPT-2's tensors are fused in GGUF too; GPT-2's are [out, in] there."""
    family = spec.get("family", "llama")
    if family == "phi3":
        return as_hf(spec, weights)
    if family in ("mixtral", "qwen3_moe"):
        return joined_experts(weights)
    if family != "gpt2":
        return weights
    named = {}
    for name, w in weights.items():
        stem, kind = name.rsplit(".", 1)
        if stem.endswith(("q_proj", "k_proj", "v_proj")):
            name = f"{stem[:-6]}qkv_proj.{kind}"
            w = np.concatenate([named[name], w]) if name in named else w
        named[name] = w
    return named


def write_gguf(path, spec, weights):
    """Version 3 as llama.cpp's converter writes it: rows of Wq and Wk interleaved for some families, norms in f32."""
    family, keys = spec.get("family", "llama"), gguf_keys(path, spec)
    weights = fused_gguf(spec, weights)
    for kind in ("short", "long"):
        if f"{kind}_factor" in spec["rope"]:
            weights[f"rope_factors_{kind}.weight"] = np.array(spec["rope"][f"{kind}_factor"])
    infos, data = b"", b""
    for name, x in weights.items():
        if family in INTERLEAVED and name.endswith(("q_proj.weight", "k_proj.weight")):
            x = x.reshape(-1, 2, spec["head_dim"] // 2, x.shape[1]).swapaxes(1, 2).reshape(x.shape)
        if family in GEMMAS and name.endswith("norm.weight"):
            x = x + 1
        whole = x.ndim == 1 or name.startswith("positions") or name.endswith("mlp.gate.weight")
        dtype = "f32" if whole else spec["dtype"]
        raw = to_stored(x, dtype)[1]
        short = gguf_name(name, family).encode()
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
    for key in SCALING:
        if key in rope:
            scaling[key] = rope[key]
    if "original_max_positions" in rope:
        scaling["original_max_position_embeddings"] = rope["original_max_positions"]
    dtype = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}[spec["dtype"]]
    family = spec.get("family", "llama")
    if family == "gpt2":
        return {"architectures": [CLASSES[family]], "model_type": family, "vocab_size": spec["vocab"],
                "n_embd": spec["hidden"], "n_layer": spec["layers"], "n_head": spec["heads"], "n_inner": None,
                "n_positions": CONTEXT, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new", "dtype": dtype,
                "bos_token_id": 0, "eos_token_id": 0}
    config = {"architectures": [CLASSES[family]], "model_type": family, "vocab_size": spec["vocab"],
              "hidden_size": spec["hidden"], "intermediate_size": spec["ffn"],
              "num_hidden_layers": spec["layers"], "num_attention_heads": spec["heads"],
              "num_key_value_heads": spec["kv_heads"], "head_dim": spec["head_dim"], "hidden_act": "silu",
              "rms_norm_eps": 1e-5, "max_position_embeddings": CONTEXT, "attention_bias": spec["biases"],
              "mlp_bias": spec["biases"], "tie_word_embeddings": spec["tied"]} | spec.get("config", {})
    if family in GEMMAS:
        config["hidden_activation"] = "gelu_pytorch_tanh"
        del config["hidden_act"], config["attention_bias"]
    if family != "llama":
        del config["mlp_bias"]
        config |= {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
        if spec["biases"] == "qkv" or family == "phi3":
            del config["attention_bias"]
    if spec.get("nested"):
        config = {"model_type": "gemma3_text"} | {k: config[k] for k in config if k not in ("architectures", "model_type")}
        text = config | {"rope_theta": rope["theta"], "rope_scaling": scaling}
        vision = {"model_type": "siglip_vision_model", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
                  "num_attention_heads": 1, "image_size": 28, "patch_size": 14}
        return {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "mm_tokens_per_image": 4,
                "text_config": text, "torch_dtype": dtype, "vision_config": vision}
    if family == "gemma3":
        return config | {"dtype": dtype, "model_type": "gemma3_text", "rope_parameters": {
            "full_attention": scaling | {"rope_theta": rope["theta"]},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}}
    if spec["style"] == 4:
        return config | {"torch_dtype": dtype, "rope_theta": rope["theta"], "rope_scaling": scaling}
    return config | {"dtype": dtype, "rope_parameters": scaling | {"rope_theta": rope["theta"]}}


def reference_windows(family, config, layers):
    """The tokens that each layer sees; 0: all."""
    slides = {"mistral": lambda i: True, "ministral": lambda i: True, "mixtral": lambda i: True, "phi3": lambda i: True,
              "gemma2": lambda i: i % 2 == 0,
              "gemma3": lambda i: (i + 1) % config.get("sliding_window_pattern", 6) != 0,
              "qwen2": lambda i: config.get("use_sliding_window") and i >= config["max_window_layers"]}
    rule = slides.get(family, lambda i: False)
    types = config.get("layer_types") or ["sliding_attention" if rule(i) else "full_attention" for i in range(layers)]
    return [(config.get("sliding_window") or 0) * (kind == "sliding_attention") for kind in types]


def reference_config(config):
    """What the reference needs, from either style of config.json."""
    config = config | config.get("text_config", {})
    family = config["model_type"].removesuffix("_text")
    gemma = family in GEMMAS
    find = lambda name, other=None, default=None: config.get(name, config.get(other, default))
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    local = {"type": "default", "theta": config.get("rope_local_base_freq", 10000.0)} if family == "gemma3" else None
    if "full_attention" in rope:
        local["theta"] = rope["sliding_attention"]["rope_theta"]
        rope = rope["full_attention"]
    heads = find("num_attention_heads", "n_head")
    layers = find("num_hidden_layers", "n_layer")
    head_dim = config.get("head_dim") or find("hidden_size", "n_embd") // heads
    partial = rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    nope = [int((i + 1) % 4 != 0) for i in range(layers)] if family == "smollm3" else [int(family != "gpt2")] * layers
    scaling = {"type": rope.get("rope_type", rope.get("type", "default")),
               "theta": rope.get("rope_theta", config.get("rope_theta", 10000.0)),
               "original_max_positions": rope.get("original_max_position_embeddings"),
               **{k: rope[k] for k in SCALING if k in rope}}
    if scaling["type"] == "yarn":
        scaling.setdefault("attention_factor", 0.1 * np.log(scaling["factor"]) + 1)
        scaling = {"beta_fast": 32.0, "beta_slow": 1.0} | scaling
    if scaling["type"] == "longrope":
        original = scaling["original_max_positions"] = config["original_max_position_embeddings"]
        factor = config["max_position_embeddings"] / original
        scaling.setdefault("attention_factor", longrope_attention_factor(factor, original))
    multiplier = config.get("attention_multiplier", 1.0) if family == "granite" else None
    divisor = np.sqrt(config["query_pre_attn_scalar"] if gemma else head_dim)
    return {"family": family, "num_layers": layers, "heads": heads, "head_dim": head_dim,
            "kv_heads": config.get("num_key_value_heads", heads), "eps": find("rms_norm_eps", "layer_norm_epsilon"),
            "activation": config.get("hidden_activation") or find("hidden_act", "activation_function", "silu"),
            "rope": scaling, "local_rope": local, "windows": reference_windows(family, config, layers),
            "rotated_dims": int(head_dim * partial), "rotated_layers": config.get("no_rope_layers") or nope,
            "head_norm": HEAD_NORMS.get(family), "norms_behind": "too" if gemma else family == "olmo2",
            "norm_offset": 1 if gemma else 0,
            "attention_softcap": config.get("attn_logit_softcapping"),
            "logits_softcap": config.get("final_logit_softcapping"),
            "embedding_multiplier": config["hidden_size"]**0.5 if gemma else config.get("embedding_multiplier", 1.0),
            "residual_multiplier": config.get("residual_multiplier", 1.0),
            "logits_scaling": config.get("logits_scaling", 1.0),
            "experts_chosen": config.get("num_experts_per_tok"),
            "norm_experts": config.get("norm_topk_prob", family == "mixtral"),
            "attention_divisor": 1 / multiplier if multiplier else divisor}


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


def goldens(config, weights, vocab, seed, lengths):
    rng = np.random.default_rng(seed + 1000)
    prompts, arrays = [], {}
    for i, length in enumerate(lengths):
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
              "kv": {"prompt": f"p{lengths.index(33)}", "layers": [0, config["num_layers"] - 1]}}
    return golden, {name: a.astype("<f4") for name, a in arrays.items()}


def print_features(name, config, weights, golden, arrays):
    """Each feature switched off once: logits that hardly move would not tell a loader that forgets it."""
    for feature, change in MODELS[name].get("features", {}).items():
        config = config | config.pop("text_config", {})
        other = config | change if isinstance(change, dict) else config | {change[0]: config[change[0]] | change[1]}
        moved = max(abs(forward(reference_config(other), weights, p["ids"])[0][-1] - arrays[f"p{i}.last"]).max()
                    for i, p in enumerate(golden["prompts"]))
        if moved < MODELS[name].get("least_tolerances", 100) * 5e-4:
            raise SystemExit(f"{name}: without {feature}, logits move by {moved:.1e} only")
        print(f"{name}: without {feature}, logits move by {moved:.2g}")


def make(name):
    spec = MODELS[name]
    folder = ROOT / "tests/data" / name
    folder.mkdir(parents=True, exist_ok=True)
    weights = {n: to_stored(w, spec["dtype"])[0] for n, w in random_weights(spec).items()}
    config = hf_config(spec)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    stored = as_hf(spec, weights)
    write_weights(folder, spec, stored)
    if spec["gguf"]:
        write_gguf(folder / f"model-{spec['dtype']}.gguf", spec, weights)
    golden, arrays = goldens(reference_config(config), stored, spec["vocab"], spec["seed"],
                             spec.get("lengths", LENGTHS))
    (folder / "golden.json").write_text(json.dumps(golden) + "\n")
    np.savez(folder / "golden.npz", **arrays)
    size = sum(f.stat().st_size for f in folder.iterdir())
    spread = np.concatenate([a.ravel() for n, a in arrays.items() if n[0] == "p"]).std()
    print(f"{name}: {size} bytes, logits spread over {spread:.2f}")
    print_features(name, config, stored, golden, arrays)


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
    for model in sys.argv[1:] or MODELS:
        make(model)
