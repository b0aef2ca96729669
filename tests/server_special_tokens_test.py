#!/usr/bin/env python3
"""BOS and EOS of a model reach its chat template and its raw prompts, from any file that states them.

    server_special_tokens_test.py [KVASIR_BINARY] [unittest arguments]
"""

import json
import pathlib
import shutil
import struct
import tempfile
import unittest

from server_harness import ROOT, Server, user

DEMO = ROOT / "models/kvasir-demo"
FACT = "The brass key is in the blue drawer. Where is the brass key?"
ASK = {"messages": user(FACT), "temperature": 0, "max_tokens": 30}
# `+` fails where bos_token is undefined, as the templates of Llama 3 and Mistral do.
BOS = "{{ bos_token + '' }}"
NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name):
    name = name.removesuffix(".weight")
    if name.startswith("model.layers."):
        _, _, layer, part = name.split(".", 3)
        return f"blk.{layer}.{NAMES[part]}.weight"
    return NAMES[name] + ".weight"


def string(text):
    data = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(data)) + data


def value(v):
    """Type and bytes of a metadata value."""
    if isinstance(v, bool):
        return struct.pack("<IB", 7, v)
    if isinstance(v, int):
        return struct.pack("<II", 4, v)
    if isinstance(v, float):
        return struct.pack("<If", 6, v)
    if isinstance(v, list) and v and isinstance(v[0], int):
        return struct.pack("<IIQ", 9, 5, len(v)) + struct.pack(f"<{len(v)}i", *v)
    if isinstance(v, list):
        return struct.pack("<IIQ", 9, 8, len(v)) + b"".join(map(string, v))
    return struct.pack("<I", 8) + string(v)


def interleaved(data, rows, head_dim):
    """Rows of Wq or Wk in the order of GGUF's `llama`: RoPE pairs neighbours."""
    size = len(data) // rows
    order = [head * head_dim + j * (head_dim // 2) + i for head in range(rows // head_dim)
             for i in range(head_dim // 2) for j in range(2)]
    return b"".join(data[row * size:(row + 1) * size] for row in order)


def write_gguf(path, metadata):
    """The bundled model as a GGUF file; `metadata` on top of its figures."""
    config = json.loads((DEMO / "config.json").read_text())
    pairs = {
        "general.architecture": "llama",
        "llama.embedding_length": config["hidden_size"],
        "llama.block_count": config["num_hidden_layers"],
        "llama.attention.head_count": config["num_attention_heads"],
        "llama.attention.head_count_kv": config["num_key_value_heads"],
        "llama.attention.key_length": config["head_dim"],
        "llama.attention.value_length": config["head_dim"],
        "llama.rope.dimension_count": config["head_dim"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.context_length": config["max_position_embeddings"],
        "llama.attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "llama.rope.freq_base": float(config["rope_theta"]),
    } | metadata
    file = (DEMO / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", file[:8])[0]
    header, data = json.loads(file[8:8 + size]), file[8 + size:]
    header.pop("__metadata__", None)
    rows, body = b"", b""
    for name, tensor in header.items():
        begin, end = tensor["data_offsets"]
        content, shape = data[begin:end], tensor["shape"]
        if "q_proj" in name or "k_proj" in name:
            content = interleaved(content, shape[0], config["head_dim"])
        assert tensor["dtype"] == "BF16", tensor
        rows += string(gguf_name(name)) + struct.pack("<I", len(shape))
        rows += b"".join(struct.pack("<Q", n) for n in reversed(shape))
        rows += struct.pack("<IQ", 30, len(body))
        body += content + bytes(-len(content) % 32)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(header), len(pairs))
    head += b"".join(string(key) + value(v) for key, v in pairs.items()) + rows
    path.write_bytes(head + bytes(-len(head) % 32) + body)


def demo_template():
    return json.loads((DEMO / "tokenizer_config.json").read_text())["chat_template"]


def demo_vocabulary():
    vocabulary = json.loads((DEMO / "tokenizer.json").read_text())["model"]["vocab"]
    tokens = [""] * len(vocabulary)
    for text, token in vocabulary.items():
        tokens[token] = text
    return tokens


GGUF_TOKENS = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": demo_vocabulary(),
               "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2}


class SpecialTokens(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="kvasir-tokens-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def start(self, path):
        server = Server("--model", str(path), "--cache-dir", str(self.folder / "cache"))
        self.addCleanup(server.stop)
        return server

    def gguf(self, metadata, config=None):
        path = self.folder / "demo.gguf"
        write_gguf(path, metadata)
        shutil.copy(DEMO / "tokenizer.json", self.folder)
        if config is not None:
            (self.folder / "tokenizer_config.json").write_text(json.dumps(config))
        return self.start(path)

    def folder_of(self, config, **files):
        folder = self.folder / "model"
        shutil.copytree(DEMO, folder)
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        for name, content in files.items():
            (folder / f"{name}.json").write_text(json.dumps(content))
        return self.start(folder)

    def expect(self, server, bos, eos):
        """What the template sees, and that its BOS becomes the one token that it is."""
        prompt = server.post("/apply-template", {"messages": user("Hi")})["prompt"]
        self.assertTrue(prompt.startswith(bos + "["), prompt)
        props = server.get("/props")
        self.assertEqual((props["bos_token"], props["eos_token"]), (bos, eos))
        self.assertEqual(server.post("/tokenize", {"content": bos})["tokens"],
                         [demo_vocabulary().index(bos)] if bos else [])

    def test_gguf_ids_reach_its_template(self):
        server = self.gguf(GGUF_TOKENS | {"tokenizer.chat_template": BOS + "[" + demo_template()})
        self.expect(server, "<|bos|>", "<|end|>")
        server.post("/v1/chat/completions", ASK)

    def test_gguf_answers_as_the_folder_that_it_was_made_of(self):
        want = self.start(DEMO).post("/v1/chat/completions", ASK)
        server = self.gguf(GGUF_TOKENS | {"tokenizer.chat_template": demo_template()})
        got = server.post("/v1/chat/completions", ASK)
        self.assertEqual(got["choices"], want["choices"])
        self.assertEqual(got["usage"]["prompt_tokens"], want["usage"]["prompt_tokens"])

    def test_gguf_ids_without_texts_are_named_by_the_tokenizer(self):
        server = self.gguf({"tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2,
                            "tokenizer.chat_template": BOS + "["})
        self.expect(server, "<|bos|>", "<|end|>")

    def test_tokenizer_config_beside_a_gguf_comes_first(self):
        config = {"bos_token": {"content": "<|system|>", "lstrip": False}, "eos_token": "<|pad|>"}
        server = self.gguf(GGUF_TOKENS | {"tokenizer.chat_template": BOS + "["}, config)
        self.expect(server, "<|system|>", "<|pad|>")

    def test_tokenizer_config_beside_a_gguf_without_a_template_has_one(self):
        config = {"chat_template": BOS + "[from the config"}
        server = self.gguf(GGUF_TOKENS, config)
        self.expect(server, "<|bos|>", "<|end|>")
        prompt = server.post("/apply-template", {"messages": user("Hi")})["prompt"]
        self.assertEqual(prompt, "<|bos|>[from the config")

    def test_a_config_that_says_null_has_no_bos(self):
        config = {"bos_token": None, "eos_token": "<|end|>"}
        server = self.gguf(GGUF_TOKENS | {"tokenizer.chat_template": "{{ bos_token }}["}, config)
        self.expect(server, "", "<|end|>")

    def test_raw_prompts_begin_with_bos_where_the_gguf_says_so(self):
        server = self.gguf(GGUF_TOKENS | {"tokenizer.ggml.add_bos_token": True})
        ids = server.post("/tokenize", {"content": "key", "add_special": True})["tokens"]
        self.assertEqual(ids[0], 1)
        self.assertNotIn(1, server.post("/tokenize", {"content": "key"})["tokens"])

    def test_texts_that_are_missing_or_broken_are_those_of_the_tokenizer(self):
        server = self.gguf({"tokenizer.ggml.tokens": [b"\xff", "a"],
                            "tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 2,
                            "tokenizer.chat_template": BOS + "["})
        self.expect(server, "<|pad|>", "<|end|>")
        server.post("/v1/chat/completions", ASK)

    def test_a_folder_falls_back_to_special_tokens_map(self):
        server = self.folder_of(
            {"chat_template": BOS + "["},
            special_tokens_map={"bos_token": {"content": "<|bos|>"}, "eos_token": "<|end|>"})
        self.expect(server, "<|bos|>", "<|end|>")

    def test_tokenizer_config_comes_before_special_tokens_map(self):
        server = self.folder_of(
            {"chat_template": BOS + "[", "bos_token": "<|bos|>",
             "eos_token": {"content": "<|end|>"}},
            special_tokens_map={"bos_token": "<|pad|>", "eos_token": "<|pad|>"})
        self.expect(server, "<|bos|>", "<|end|>")


if __name__ == "__main__":
    unittest.main()
