#!/usr/bin/env python3
"""Compares adapters with `peft`, which computes the same models in float64.

    KVASIR_BINARY=build/release/kvasir peft_oracle.py [unittest arguments]

Small random models and adapters are made for each case. It runs in the clients' Python (clients_python.py), and is
skipped (77) where its packages cannot be installed.
"""

import os
import pathlib
import subprocess
import tempfile
import unittest

from clients_python import run_in_own_environment

if __name__ == "__main__":
    run_in_own_environment()

import gguf  # noqa: E402: in the environment of the clients
import numpy as np
import peft
import torch
import transformers

transformers.utils.logging.disable_progress_bar()
BINARY = os.environ["KVASIR_BINARY"]
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
TOLERANCE = 5e-4
# Quantised bases compute with activations of 8 bits: the direction of all logits, and of what adapters change.
COSINE, CHANGE_COSINE = 0.999, 0.99
HIDDEN, HEADS, KV_HEADS, INNER, LAYERS, VOCAB = 64, 4, 2, 96, 3, 160
IDS = [int(i) for i in np.random.default_rng(5).integers(0, VOCAB, 50)]


def base_model(family="Llama", **more):
    torch.manual_seed(11)
    sizes = {"vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": LAYERS,
             "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "max_position_embeddings": 256,
             "tie_word_embeddings": False}
    if family == "GPT2":
        sizes = {"vocab_size": VOCAB, "n_embd": HIDDEN, "n_layer": LAYERS, "n_head": HEADS, "n_positions": 256}
    config = getattr(transformers, f"{family}Config")(
        **sizes, initializer_range=0.15, bos_token_id=1, eos_token_id=2, pad_token_id=0, **more)
    head = "GPT2LMHeadModel" if family == "GPT2" else f"{family}ForCausalLM"
    model = getattr(transformers, head)(config)
    if family == "Mixtral":
        model.set_experts_implementation("eager")  # the other one has no float64
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(weight, std=0.1)
    return model


def add_adapter(model, folder, name="default", seed=3, **fields):
    """Adds a random adapter to a model, and saves it in `folder`; returns the model with it."""
    torch.manual_seed(seed)
    config = peft.LoraConfig(**({"r": 8, "lora_alpha": 16, "target_modules": ALL, "init_lora_weights": False,
                                 "task_type": "CAUSAL_LM"} | fields))
    if isinstance(model, peft.PeftModel):
        model.add_adapter(name, config)
    else:
        model = peft.get_peft_model(model, config, adapter_name=name)
    for key, weight in model.named_parameters():
        if f".lora_B.{name}." in key:
            torch.nn.init.normal_(weight, std=0.15)
    model.save_pretrained(folder, selected_adapters=[name])
    return model


def logits_of(model):
    model = model.double().eval()
    with torch.inference_mode():
        return model(torch.tensor([IDS])).logits[0].numpy()


def kvasir(model, *flags):
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "logits.npy"
        env = os.environ | {"XDG_CACHE_HOME": folder, "XDG_STATE_HOME": folder}
        done = subprocess.run([BINARY, "logits", "--model", model, "--kv-format", "f32", "--kv-memory", "32MiB", "--ids",
                               ",".join(map(str, IDS)), "--positions", "all", "--out", out, *flags], env=env,
                              capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return np.load(out)


def write_gguf(model, path, kind):
    """Writes a Llama with weights of a quantised type, and gives the model the numbers that the file has."""
    writer = gguf.GGUFWriter(path, "llama")
    config = model.config
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(VOCAB)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, LAYERS)
    for name, weight in model.named_parameters():
        stored = names.get_name(name, try_suffixes=(".weight",))
        numbers = weight.detach().float().numpy()
        if numbers.ndim == 1:
            writer.add_tensor(stored, numbers)
            continue
        heads = HEADS if "q_proj" in name else KV_HEADS if "k_proj" in name else None
        if heads:  # the rows of a head: (half, pair) become (pair, half)
            numbers = numbers.reshape(heads, 2, -1, HIDDEN).swapaxes(1, 2).reshape(-1, HIDDEN)
        packed = gguf.quants.quantize(np.ascontiguousarray(numbers), kind)
        writer.add_tensor(stored, packed, raw_dtype=kind)
        numbers = gguf.quants.dequantize(packed, kind)
        if heads:
            numbers = numbers.reshape(heads, -1, 2, HIDDEN).swapaxes(1, 2).reshape(-1, HIDDEN)
        weight.data = torch.tensor(np.ascontiguousarray(numbers))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def cosine(one, other):
    return float((one * other).sum() / np.sqrt((one**2).sum() * (other**2).sum()))


class PeftTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)

    def save(self, model):
        model.save_pretrained(self.folder / "model")
        return self.folder / "model"

    def check(self, got, want, base):
        self.assertGreater(abs(want - base).max(), 0.05, "the adapter changes nothing: nothing is shown")
        off = float(abs(got - want).max())
        self.assertLessEqual(off, TOLERANCE)
        print(f"{self._testMethodName}: off by {off:.1e}; the adapter changes logits by {abs(want - base).max():.2f}")

    def compare(self, family="Llama", sizes=None, **fields):
        model = base_model(family, **(sizes or {}))
        path = self.save(model)
        base = logits_of(model)
        self.assertLessEqual(abs(kvasir(path) - base).max(), TOLERANCE, "the model alone")
        adapted = add_adapter(model.float(), self.folder / "a", **fields)
        self.check(kvasir(path, "--lora", self.folder / "a"), logits_of(adapted), base)

    def test_all_targets(self):
        self.compare()

    def test_rslora(self):
        self.compare(use_rslora=True, r=5)

    def test_patterns_of_ranks_and_alphas(self):
        self.compare(rank_pattern={"q_proj": 3, r"^model.layers.1.mlp": 12}, alpha_pattern={"down_proj": 40, "k_proj": 2})

    def test_patterns_with_rslora(self):
        self.compare(use_rslora=True, rank_pattern={"v_proj": 2}, alpha_pattern={r"layers.2.self_attn.o_proj": 5})

    def test_some_layers_and_targets(self):
        self.compare(target_modules=["q_proj", "up_proj"], layers_to_transform=[0, 2])

    def test_targets_named_all_linear(self):
        self.compare(target_modules="all-linear")

    def test_qwen2_whose_attention_has_biases(self):
        self.compare("Qwen2")

    def test_qwen3_whose_q_and_k_have_norms(self):
        self.compare("Qwen3")

    def test_fused_matrices_of_phi3(self):
        self.compare("Phi3", target_modules=["qkv_proj", "o_proj", "gate_up_proj", "down_proj"])

    def test_gpt2_whose_matrices_are_stored_transposed(self):
        self.compare("GPT2", target_modules=["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True)

    def test_gemma2_whose_branches_end_with_norms(self):
        self.compare("Gemma2", {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 16})

    def test_attention_of_mixtral(self):
        self.compare("Mixtral", {"num_local_experts": 4}, target_modules=ALL[:4])

    def test_two_at_their_scales(self):
        model = base_model()
        path = self.save(model)
        base = logits_of(model)
        both = add_adapter(model.float(), self.folder / "x", "x", seed=1)
        both = add_adapter(both, self.folder / "y", "y", seed=2, r=4, target_modules=["q_proj", "v_proj", "down_proj"])
        both.base_model.set_adapter(["x", "y"])
        for layer in both.modules():
            if isinstance(layer, peft.tuners.lora.LoraLayer):
                for name, scale in ("x", 0.5), ("y", 1.5):
                    if name in layer.scaling:
                        layer.set_scale(name, scale)
        got = kvasir(path, "--lora-scaled", f"{self.folder / 'x/x'}:0.5,{self.folder / 'y/y'}:1.5")
        self.check(got, logits_of(both), base)

    def test_quantised_bases(self):
        for kind in gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_0:
            with self.subTest(kind.name):
                model = base_model()
                path = self.folder / f"model-{kind.name}.gguf"
                write_gguf(model, path, kind)
                base, got_base = logits_of(model), kvasir(path)
                adapted = add_adapter(model.float(), self.folder / kind.name)
                want, got = logits_of(adapted), kvasir(path, "--lora", self.folder / kind.name)
                self.assertGreater(cosine(got_base, base), COSINE, "the model alone")
                self.assertGreater(cosine(got, want), COSINE)
                change = cosine(got - got_base, want - base)
                self.assertGreater(change, CHANGE_COSINE)
                print(f"{kind.name}: cosine {cosine(got, want):.5f}, of the change {change:.5f}")


if __name__ == "__main__":
    unittest.main()
