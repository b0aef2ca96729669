#!/usr/bin/env python3
"""Writes tests/data/ct2-tiny: a random M2M-100 in the layout of the Hub, and what CTranslate2's converter makes of it.

    make_ct2_goldens.py [--out tests/data/ct2-tiny]     (needs torch, transformers 5 and ctranslate2 4.8)

hf/ has config.json and model.safetensors; float32, float16, bfloat16, int16, int8 and int8_float16 have model.bin,
config.json and shared_vocabulary.json. Encoder and decoder have different depths and widths.
"""

import argparse
import pathlib
import shutil
import types

import torch
from ctranslate2.converters import transformers as converters
from transformers import M2M100Config, M2M100ForConditionalGeneration

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOKENS = ["<s>", "<pad>", "</s>", "<unk>"] + [f"\u2581t{i}" for i in range(33)]
TYPES = ("float32", "float16", "bfloat16", "int16", "int8", "int8_float16")


def make_model():
    torch.manual_seed(21)
    model = M2M100ForConditionalGeneration(M2M100Config(
        vocab_size=len(TOKENS), d_model=12, encoder_layers=2, decoder_layers=1, encoder_attention_heads=3,
        decoder_attention_heads=3, encoder_ffn_dim=20, decoder_ffn_dim=28, max_position_embeddings=14,
        activation_function="gelu"))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3)
    return model


class Loader(type(converters._MODEL_LOADERS["M2M100Config"])):
    def get_vocabulary(self, model, tokenizer):
        return list(TOKENS)


class Converter(converters.TransformersConverter):
    def load_tokenizer(self, *_args, **_kwargs):
        return types.SimpleNamespace(bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="<pad>",
                                     convert_ids_to_tokens=TOKENS.__getitem__)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "tests/data/ct2-tiny")
    args = parser.parse_args()
    shutil.rmtree(args.out, ignore_errors=True)
    make_model().save_pretrained(args.out / "hf")
    (args.out / "hf/generation_config.json").unlink(missing_ok=True)
    converters._MODEL_LOADERS["M2M100Config"] = Loader()
    for kind in TYPES:
        Converter(str(args.out / "hf")).convert(str(args.out / kind), quantization=kind)


if __name__ == "__main__":
    main()
