#!/usr/bin/env python3
"""Write a synthetic decoder-only model (random weights, real shape) twice: as a Hugging Face folder
and as a GGUF file.

    make_model.py llama-1b OUT [--seed 0] [--no-hf] [--no-gguf]

OUT/config.json, model.safetensors (bf16), tokenizer.json ... and OUT/model-bf16.gguf hold the same
numbers (the GGUF has q and k rows permuted for llama.cpp's rotary layout and its norms and biases
in f32). Of gemma3-1b, phi3-mini and qwen3-moe-2b only the GGUF file is written. Weights are
normal(0, 0.02), norms are one; the same shape and seed always give the same bytes. One tensor at a
time is in memory (323 MiB at most). Needs numpy only.

The tokenizer is byte-level with no merges worth the name: an ASCII text of n characters is n
tokens. Ids 0..255 are the bytes, the rest are filler words, the last two are bos and eos.
"""

import argparse
import json
import os
import struct
import zlib

import numpy as np

SHAPES = {  # the public configurations of the models they are named after; rope scaling is left out
    "llama-1b": dict(
        arch="llama",
        layers=16,
        hidden=2048,
        heads=32,
        kv_heads=8,
        head_dim=64,
        ffn=8192,
        vocab=128256,
        theta=500000.0,
        eps=1e-5,
        context=131072,
        bias=False,
    ),  # Llama-3.2-1B
    "qwen2-0.5b": dict(
        arch="qwen2",
        layers=24,
        hidden=896,
        heads=14,
        kv_heads=2,
        head_dim=64,
        ffn=4864,
        vocab=151936,
        theta=1000000.0,
        eps=1e-6,
        context=131072,
        bias=True,
    ),  # Qwen2.5-0.5B
    "gemma3-1b": dict(
        arch="gemma3",
        layers=26,
        hidden=1152,
        heads=4,
        kv_heads=1,
        head_dim=256,
        ffn=6912,
        vocab=262144,
        theta=1000000.0,
        eps=1e-6,
        context=32768,
        window=512,
    ),  # Gemma 3 1B; readers know that each sixth layer is full, and the other layers' theta
    "phi3-mini": dict(
        arch="phi3",
        layers=32,
        hidden=3072,
        heads=32,
        kv_heads=32,
        head_dim=96,
        ffn=8192,
        vocab=32064,
        theta=10000.0,
        eps=1e-5,
        context=4096,
        window=2047,
    ),  # Phi-3-mini-4k
    "qwen3-moe-2b": dict(
        arch="qwen3moe",
        layers=24,
        hidden=1024,
        heads=16,
        kv_heads=4,
        head_dim=64,
        ffn=3072,
        experts=64,
        experts_used=8,
        expert_ffn=384,
        vocab=151936,
        theta=1000000.0,
        eps=1e-6,
        context=32768,
    ),  # Qwen3-30B-A3B in small
    "tiny": dict(
        arch="llama",
        layers=2,
        hidden=256,
        heads=4,
        kv_heads=2,
        head_dim=64,
        ffn=512,
        vocab=1024,
        theta=10000.0,
        eps=1e-5,
        context=8192,
        bias=False,
    ),  # for trying the scripts
}
MAX_CHUNK = 1 << 24  # numbers generated at once
MERGED = "\u0120 \u0100"  # readers insist on one merge: a space and a zero byte, in no text


def tensors(s):
    """(hf name, gguf name, shape, kind), in file order; hf names of llama and qwen2 alone."""
    h = s["hidden"]
    layer = {"gemma3": gemma3_layer, "phi3": phi3_layer, "qwen3moe": qwen3moe_layer}.get(s["arch"])
    yield "model.embed_tokens.weight", "token_embd.weight", (s["vocab"], h), "plain"
    for i in range(s["layers"]):
        if layer:
            for name, shape in layer(s):
                kind = "norm" if "norm" in name else "plain"
                yield None, f"blk.{i}.{name}.weight", shape, kind
        else:
            yield from llama_layer(s, i)
    yield "model.norm.weight", "output_norm.weight", (h,), "norm"
    if s["arch"] == "phi3":
        yield None, "output.weight", (s["vocab"], h), "plain"


def llama_layer(s, i):
    h, q, kv = s["hidden"], s["heads"] * s["head_dim"], s["kv_heads"] * s["head_dim"]
    hf, gg = f"model.layers.{i}.", f"blk.{i}."
    yield hf + "input_layernorm.weight", gg + "attn_norm.weight", (h,), "norm"
    for name, rows in (("q", q), ("k", kv), ("v", kv)):
        rotary = s["arch"] == "llama" and name != "v"
        yield hf + f"self_attn.{name}_proj.weight", gg + f"attn_{name}.weight", (rows, h), (
            name if rotary else "plain"
        )
        if s["bias"]:
            yield hf + f"self_attn.{name}_proj.bias", gg + f"attn_{name}.bias", (rows,), "bias"
    yield hf + "self_attn.o_proj.weight", gg + "attn_output.weight", (h, q), "plain"
    yield hf + "post_attention_layernorm.weight", gg + "ffn_norm.weight", (h,), "norm"
    yield hf + "mlp.gate_proj.weight", gg + "ffn_gate.weight", (s["ffn"], h), "plain"
    yield hf + "mlp.up_proj.weight", gg + "ffn_up.weight", (s["ffn"], h), "plain"
    yield hf + "mlp.down_proj.weight", gg + "ffn_down.weight", (h, s["ffn"]), "plain"


def attention(s):
    """(gguf name, shape) of projections and norms of q and k."""
    h, q, kv = s["hidden"], s["heads"] * s["head_dim"], s["kv_heads"] * s["head_dim"]
    yield "attn_norm", (h,)
    yield from (("attn_q", (q, h)), ("attn_k", (kv, h)), ("attn_v", (kv, h)))
    yield from (("attn_q_norm", (s["head_dim"],)), ("attn_k_norm", (s["head_dim"],)))
    yield "attn_output", (h, q)


def gemma3_layer(s):
    h, ffn = s["hidden"], s["ffn"]
    yield from attention(s)
    yield from (("post_attention_norm", (h,)), ("ffn_norm", (h,)))
    yield from (("ffn_gate", (ffn, h)), ("ffn_up", (ffn, h)), ("ffn_down", (h, ffn)))
    yield "post_ffw_norm", (h,)


def phi3_layer(s):
    h, q, kv = s["hidden"], s["heads"] * s["head_dim"], s["kv_heads"] * s["head_dim"]
    yield from (("attn_norm", (h,)), ("attn_qkv", (q + 2 * kv, h)), ("attn_output", (h, q)))
    yield from (("ffn_norm", (h,)), ("ffn_up", (2 * s["ffn"], h)), ("ffn_down", (h, s["ffn"])))


def qwen3moe_layer(s):
    h, n, ffn = s["hidden"], s["experts"], s["expert_ffn"]
    yield from attention(s)
    yield from (("ffn_norm", (h,)), ("ffn_gate_inp", (n, h)))
    yield from (("ffn_gate_exps", (n, ffn, h)), ("ffn_up_exps", (n, ffn, h)))
    yield "ffn_down_exps", (n, h, ffn)


def values(name, shape, kind, seed):
    """The tensor in float32, already rounded to bf16, in chunks of whole rows."""
    random = np.random.Generator(np.random.Philox(key=[seed, zlib.crc32(name.encode())]))
    rows, width = shape[0], int(np.prod(shape[1:]))
    step = max(1, MAX_CHUNK // width)
    for begin in range(0, rows, step):
        size = (min(step, rows - begin),) + shape[1:]
        x = (
            np.ones(size, np.float32)
            if kind == "norm"
            else random.standard_normal(size, np.float32) * np.float32(0.02)
        )
        bits = x.view(np.uint32)
        bits += 0x7FFF + ((bits >> 16) & 1)  # round to nearest even
        bits &= 0xFFFF0000
        yield x


def bf16(x):
    return (x.view(np.uint32) >> 16).astype(np.uint16).tobytes()


def vocabulary(size):
    """GPT-2's printable stand-ins for the 256 bytes, filler words, bos, eos."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [b for b in range(256) if b not in printable]
    byte = {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(hidden)}
    return (
        [byte[b] for b in range(256)]
        + [MERGED.replace(" ", "")]
        + [f"\u0120w{i}" for i in range(1, size - 258)]
        + ["<|bos|>", "<|eos|>"]
    )


def write_hf(s, out, seed):
    llama = s["arch"] == "llama"
    vocab = vocabulary(s["vocab"])
    bos, eos = s["vocab"] - 2, s["vocab"] - 1
    config = {
        "architectures": ["LlamaForCausalLM" if llama else "Qwen2ForCausalLM"],
        "model_type": s["arch"],
        "hidden_size": s["hidden"],
        "intermediate_size": s["ffn"],
        "num_hidden_layers": s["layers"],
        "num_attention_heads": s["heads"],
        "num_key_value_heads": s["kv_heads"],
        "head_dim": s["head_dim"],
        "vocab_size": s["vocab"],
        "max_position_embeddings": s["context"],
        "rms_norm_eps": s["eps"],
        "hidden_act": "silu",
        "rope_theta": s["theta"],
        "rope_parameters": {"rope_type": "default", "rope_theta": s["theta"]},
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "attention_bias": False,
        "bos_token_id": bos,
        "eos_token_id": eos,
    }
    added = [
        dict(
            id=i,
            content=vocab[i],
            single_word=False,
            lstrip=False,
            rstrip=False,
            normalized=False,
            special=True,
        )
        for i in (bos, eos)
    ]
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    tokenizer = {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "post_processor": None,
        "truncation": None,
        "padding": None,
        "model": {
            "type": "BPE",
            "vocab": {t: i for i, t in enumerate(vocab)},
            "merges": [],
            "unk_token": None,
            "dropout": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
        },
    }
    template = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\\n' }}{% endfor %}"
    small = {
        "config.json": config,
        "tokenizer.json": tokenizer,
        "generation_config.json": {"bos_token_id": bos, "eos_token_id": eos},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": vocab[bos],
            "eos_token": vocab[eos],
            "model_max_length": s["context"],
            "chat_template": template,
        },
    }
    for name, content in small.items():
        with open(os.path.join(out, name), "w", encoding="utf-8") as f:
            json.dump(
                content, f, ensure_ascii=False, indent=None if name == "tokenizer.json" else 1
            )

    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, _, shape, _ in tensors(s):
        end = offset + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with open(os.path.join(out, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head)
        for name, _, shape, kind in tensors(s):
            for x in values(name, shape, kind, seed):
                f.write(bf16(x))


def gguf_value(v):
    if isinstance(v, str):
        b = v.encode()
        return 8, struct.pack("<Q", len(b)) + b
    if isinstance(v, bool):
        return 7, struct.pack("<?", v)
    if isinstance(v, int):
        return 4, struct.pack("<I", v)
    if isinstance(v, float):
        return 6, struct.pack("<f", v)
    if isinstance(v, np.ndarray):
        return 9, struct.pack("<IQ", 5, len(v)) + v.astype("<i4").tobytes()
    return 9, struct.pack("<IQ", 8, len(v)) + b"".join(gguf_value(t)[1] for t in v)


def in_f32(name, shape):
    """As llama.cpp's converter: norms, biases and routers stay exact."""
    return len(shape) == 1 or "ffn_gate_inp" in name


def write_gguf(s, path, seed):
    a = s["arch"]
    types = np.ones(s["vocab"], np.int32)
    types[-2:] = 3  # control tokens
    keys = {
        "general.architecture": a,
        "general.name": os.path.basename(path),
        "general.file_type": 32,
        "general.alignment": 32,
        f"{a}.context_length": s["context"],
        f"{a}.embedding_length": s["hidden"],
        f"{a}.block_count": s["layers"],
        f"{a}.feed_forward_length": s["ffn"],
        f"{a}.attention.head_count": s["heads"],
        f"{a}.attention.head_count_kv": s["kv_heads"],
        f"{a}.attention.layer_norm_rms_epsilon": s["eps"],
        f"{a}.rope.freq_base": s["theta"],
        f"{a}.rope.dimension_count": s["head_dim"],
        f"{a}.attention.key_length": s["head_dim"],
        f"{a}.attention.value_length": s["head_dim"],
        f"{a}.vocab_size": s["vocab"],
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": vocabulary(s["vocab"]),
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": [MERGED],
        "tokenizer.ggml.bos_token_id": s["vocab"] - 2,
        "tokenizer.ggml.eos_token_id": s["vocab"] - 1,
        "tokenizer.ggml.add_bos_token": False,
    }
    if "window" in s:
        keys[f"{a}.attention.sliding_window"] = s["window"]
    if "experts" in s:
        keys[f"{a}.expert_count"] = s["experts"]
        keys[f"{a}.expert_used_count"] = s["experts_used"]
        keys[f"{a}.expert_feed_forward_length"] = s["expert_ffn"]
    all_tensors = list(tensors(s))
    head = b"GGUF" + struct.pack("<IQQ", 3, len(all_tensors), len(keys))
    for key, v in keys.items():
        kind, data = gguf_value(v)
        head += gguf_value(key)[1] + struct.pack("<I", kind) + data
    offset = 0
    for _, name, shape, _ in all_tensors:
        f32 = in_f32(name, shape)
        head += (
            gguf_value(name)[1]
            + struct.pack("<I", len(shape))
            + struct.pack(f"<{len(shape)}Q", *reversed(shape))
        )
        head += struct.pack("<IQ", 0 if f32 else 30, offset)
        offset += int(np.prod(shape)) * (4 if f32 else 2)
        offset += -offset % 32
    with open(path, "wb") as f:
        f.write(head + b"\0" * (-len(head) % 32))
        for hf, name, shape, kind in all_tensors:
            for x in values(hf or name, shape, kind, seed):
                if kind in "qk":  # halves of a head -> neighbouring pairs
                    x = x.reshape(-1, 2, s["head_dim"] // 2, shape[1]).swapaxes(1, 2).reshape(shape)
                f.write(x.tobytes() if in_f32(name, shape) else bf16(np.ascontiguousarray(x)))
            f.write(b"\0" * (-f.tell() % 32))


def main():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("shape", choices=SHAPES)
    p.add_argument("out")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--no-hf", action="store_true")
    p.add_argument("--no-gguf", action="store_true")
    o = p.parse_args()
    os.makedirs(o.out, exist_ok=True)
    if not o.no_hf and SHAPES[o.shape]["arch"] in ("llama", "qwen2"):
        write_hf(SHAPES[o.shape], o.out, o.seed)
    if not o.no_gguf:
        write_gguf(SHAPES[o.shape], os.path.join(o.out, "model-bf16.gguf"), o.seed)


if __name__ == "__main__":
    main()
