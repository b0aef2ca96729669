"""Adapters as GGUF files, with the names and the order of rows that llama.cpp's convert_lora_to_gguf.py writes."""

import json
import struct

import numpy as np

NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
         "mlp.down_proj": "ffn_down"}
UINT32, FLOAT32, STRING, ALIGNMENT = 4, 6, 8, 32


def read_safetensors(path):
    """Yields (name, array) of a file whose tensors are all F32."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    for name, entry in json.loads(data[8:8 + size]).items():
        if name == "__metadata__":
            continue
        assert entry["dtype"] == "F32", (name, entry)
        begin, end = entry["data_offsets"]
        yield name, np.frombuffer(data[8 + size + begin:8 + size + end], "<f4").reshape(entry["shape"])


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def as_stored(name, array, config):
    """(name, array) as the file has them: rows of B of q and k go from (half, pair) of a head to (pair, half)."""
    layer, _, rest = name.removeprefix("base_model.model.model.layers.").partition(".")
    module, _, half = rest.removesuffix(".weight").rpartition(".lora_")
    heads = {"self_attn.q_proj": "num_attention_heads", "self_attn.k_proj": "num_key_value_heads"}.get(module)
    if heads and half == "B":
        array = array.reshape(config[heads], 2, -1, array.shape[1]).swapaxes(1, 2).reshape(array.shape)
    return f"blk.{layer}.{NAMES[module]}.weight.lora_{half.lower()}", np.ascontiguousarray(array)


def write_gguf_adapter(folder, base, path):
    """Writes the PEFT adapter of `folder`, of the Llama in `base`, to the file `path`."""
    config = json.loads((base / "config.json").read_text())
    adapter = json.loads((folder / "adapter_config.json").read_text())
    tensors = [as_stored(name, array, config) for name, array in
               read_safetensors(folder / "adapter_model.safetensors")]
    entries = [("general.type", STRING, text("adapter")), ("general.architecture", STRING, text("llama")),
               ("general.alignment", UINT32, struct.pack("<I", ALIGNMENT)), ("adapter.type", STRING, text("lora")),
               ("adapter.lora.alpha", FLOAT32, struct.pack("<f", adapter["lora_alpha"]))]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(entries))
    for key, kind, value in entries:
        head += text(key) + struct.pack("<I", kind) + value
    data = b""
    for name, array in tensors:
        head += text(name) + struct.pack("<IQQIQ", 2, *reversed(array.shape), 0, len(data))
        data += array.tobytes()
        data += bytes(-len(data) % ALIGNMENT)
    path.write_bytes(head + bytes(-len(head) % ALIGNMENT) + data)
    return path
