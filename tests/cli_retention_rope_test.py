#!/usr/bin/env python3
"""sinks+window past the trained length, by each kind of RoPE that may pass it: logits of every token are those of numpy's
float64, in which a query asks the sinks from position budget - 1.

    cli_retention_rope_test.py [KVASIR_BINARY] [unittest arguments]
"""
import json
import os
import sys
import tempfile
from unittest import mock

import numpy

import cli_support
from cli_support import ROOT, SMALL, CliTest, ids_text

sys.dont_write_bytecode = True  # of tools/, which is part of the source
sys.path.insert(0, str(ROOT / "tools"))
import make_goldens
import model_reference

BUDGET, SINKS = 32, 4
TOKENS = 500  # of models that were trained for 256
MODELS = {"tiny-mqa": "linear", "tiny-yarn": "yarn", "tiny-gqa": "llama3", "tiny-bias": "default", "tiny-smollm3": "default"}


class Streaming:
    """Stands for `rotate` and `attention` of the reference: the first keeps for the second what is to be rotated."""

    def __init__(self, sinks_are_asked_from):
        self.sinks_are_asked_from = sinks_are_asked_from
        self.rope = None

    def rotate(self, x, _, rope):
        self.rope = rope
        return x

    def turned(self, x, config, positions):
        if self.rope is None:  # a layer without RoPE
            return x
        angle = numpy.outer(positions, model_reference.inverse_frequencies(config["rotated_dims"], self.rope, TOKENS))
        cos, sin = (f(angle) * self.rope.get("attention_factor", 1.0) for f in (numpy.cos, numpy.sin))
        a, b = numpy.split(x, 2, -1)
        return numpy.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    def attention(self, q, k, v, config, _):
        place = numpy.arange(q.shape[1])
        group = q.shape[0] // k.shape[0]
        k, v = numpy.repeat(self.turned(k, config, place), group, 0), numpy.repeat(v, group, 0)
        of_place, of_sinks = (self.turned(q, config, positions) @ k.transpose(0, 2, 1) / config["attention_divisor"]
                              for positions in (place, numpy.minimum(place, self.sinks_are_asked_from)))
        self.rope = None
        row, column = place[:, None], place[None, :]
        is_sink = (column < SINKS) & (row >= BUDGET)
        is_seen = (column <= row) & (is_sink | (row < BUDGET) | (row - column < BUDGET - SINKS))
        scores = numpy.where(is_seen, numpy.where(is_sink, of_sinks, of_place), -numpy.inf)
        weights = numpy.exp(scores - scores.max(-1, keepdims=True))
        return weights / weights.sum(-1, keepdims=True) @ v


class PastTheTrainedLength(CliTest):
    def reference(self, folder, config, ids, sinks_are_asked_from):
        streaming = Streaming(sinks_are_asked_from)
        with mock.patch.multiple(model_reference, rotate=streaming.rotate, attention=streaming.attention):
            return model_reference.forward(make_goldens.reference_config(config), make_goldens.read_safetensors(folder), ids)[0]

    def test_logits_of_every_token_are_numpys(self):
        for name, rope in MODELS.items():
            with self.subTest(model=name), tempfile.TemporaryDirectory() as scratch:
                folder = ROOT / "tests/data" / name
                config = json.loads((folder / "config.json").read_text())
                scaling = config.get("rope_parameters") or config.get("rope_scaling") or {"rope_type": "default"}
                self.assertEqual((scaling["rope_type"], config["max_position_embeddings"]), (rope, 256))
                ids = [(i * 7 + i * i // 5 + 3) % config["vocab_size"] for i in range(TOKENS)]
                path = os.path.join(scratch, "x.npy")
                self.ok("logits", "--model", folder, "--ids", ids_text(ids), "--kv-format", "f32", *SMALL, "--retention",
                        f"sinks+window:budget={BUDGET},sinks={SINKS}", "--exact-tokens", 0, "--positions", "all", "--out", path)
                rows = numpy.load(path)
                self.assertLess(numpy.abs(rows - self.reference(folder, config, ids, BUDGET - 1)).max(), 5e-4)
                # From their own positions the sinks would be too far away to be the same.
                self.assertGreater(numpy.abs(rows - self.reference(folder, config, ids, TOKENS))[256:].max(), 0.05)


if __name__ == "__main__":
    cli_support.main()
