#!/usr/bin/env python3
"""Writes tests/data/ct2-tiny: a random M2M-100 in the layout of the Hub, and what CTranslate2's converter makes of it.

    make_ct2_goldens.py [--out tests/data/ct2-tiny]     (needs torch, transformers 5 and ctranslate2 4.8)

hf/ has config.json and model.safetensors; float32, float16, bfloat16, int16, int8 and int8_float16 have model.bin,
config.json and shared_vocabulary.json. Encoder and decoder have different depths and widths.

pair/ is a random Transformer with two vocabularies and a SentencePiece model for each; golden.json has what CTranslate2
answers in float32: greedy, and the hypotheses of 4 beams.
"""

import argparse
import json
import pathlib
import random
import shutil
import types

import ctranslate2
import numpy as np
import sentencepiece
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


WORDS = {"source": "der hund ist gross und wo wohnt er denn noch heute mit ihnen allen zusammen",
         "target": "the dog is tall where does it live now today among all of them together then"}


def tokens_of(side, folder):
    """Trains SIDE.spm over random sentences. Its pieces as a toolkit numbers them: others than the model does."""
    rng, words, path = random.Random(7), WORDS[side].split(), folder / f"{side}.spm"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(" ".join(rng.choices(words, k=6)) for _ in range(300)), model_prefix=str(folder / side),
        vocab_size=35 if side == "source" else 31, normalization_rule_name="identity", minloglevel=2)
    (folder / f"{side}.model").rename(path)
    (folder / f"{side}.vocab").unlink()
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(path))
    texts = [pieces.id_to_piece(i) for i in range(3, pieces.vocab_size())]
    return pieces, ["<blank>", "<s>", "</s>", *sorted(texts), "<unk>"]


def random_pair_spec(tokens):
    """Pre-norm, with sinusoids that no file holds, and a head apart whose bias makes ends likely."""
    rng, hidden, ffn = np.random.default_rng(90), 12, 20
    spec = ctranslate2.specs.TransformerSpec.from_config((2, 2), 3, activation=ctranslate2.specs.Activation.GELU)

    def linear(layer, rows, columns):
        layer.weight = rng.normal(0, 2.2 / columns**0.5, (rows, columns)).astype("f4")
        layer.bias = rng.normal(0, 0.2, rows).astype("f4")

    def norm(layer):
        layer.gamma, layer.beta = (rng.normal(at, 0.2, hidden).astype("f4") for at in (1, 0))

    for side, half, embeddings in (("source", spec.encoder, spec.encoder.embeddings[0]),
                                   ("target", spec.decoder, spec.decoder.embeddings)):
        embeddings.weight = rng.normal(0, 2, (len(tokens[side]), hidden)).astype("f4")
        norm(half.layer_norm)
        for layer in half.layer:
            for attention in [layer.self_attention] + ([layer.attention] if side == "target" else []):
                norm(attention.layer_norm)
                rows = (3, 1) if attention is layer.self_attention else (1, 2, 1)
                for part, times in zip(attention.linear, rows, strict=True):
                    linear(part, times * hidden, hidden)
            norm(layer.ffn.layer_norm)
            linear(layer.ffn.linear_0, ffn, hidden)
            linear(layer.ffn.linear_1, hidden, ffn)
    linear(spec.decoder.projection, len(tokens["target"]), hidden)
    spec.decoder.projection.bias[2] += 2.5
    spec.register_source_vocabulary(tokens["source"])
    spec.register_target_vocabulary(tokens["target"])
    spec.config.add_source_eos = True
    return spec


def write_pair(folder):
    folder.mkdir(parents=True)
    pieces, tokens = {}, {}
    for side in WORDS:
        pieces[side], tokens[side] = tokens_of(side, folder)
    spec = random_pair_spec(tokens)
    spec.validate()
    spec.optimize()
    spec.save(str(folder))
    translator = ctranslate2.Translator(str(folder), compute_type="float32")
    rng, cases = random.Random(9), []
    for count in (1, 2, 3, 4, 5, 6, 7, 8, 9, 12):
        text = " ".join(rng.choices(WORDS["source"].split(), k=count))
        source = pieces["source"].encode(text, out_type=str)
        case = {"text": text, "source_tokens": len(source) + 1}
        for name, beams in (("greedy", 1), ("beams", 4)):
            found = translator.translate_batch([source], beam_size=beams, num_hypotheses=beams, return_scores=True,
                                               max_decoding_length=24,
                                               min_decoding_length=0)[0]
            case[name] = [{"text": pieces["target"].decode(hypothesis), "score": round(score, 6),
                           "tokens": [tokens["target"].index(token) for token in hypothesis]}
                          for hypothesis, score in zip(found.hypotheses, found.scores, strict=True)]
        cases.append(case)
    (folder / "golden.json").write_text(json.dumps(cases, indent=1) + "\n")


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
    write_pair(args.out / "pair")


if __name__ == "__main__":
    main()
