#!/usr/bin/env python3
"""Write an encoder-decoder model with random weights in the shape of M2M-100, as a Hugging Face
folder and, with --ctranslate2, as CTranslate2's own converter makes it of that folder, in int8:
OUT2, and OUT2-encoder for its Encoder.

    make_translation_model.py m2m100-418m OUT --pieces ../shared/goldens/m2m100 [--ctranslate2 OUT2]

--pieces: a folder with a sentencepiece.bpe.model and its vocab.json. Tokens that vocab.json lacks up
to the shape's vocabulary are filler words. Weights are normal, f16; those of the layers are twice as
large as what keeps a row's length, so that an answer does not repeat its last token for ever. The
same shape and seed always give the same bytes. Needs numpy; --ctranslate2 also needs ctranslate2,
torch and transformers.
"""

import argparse
import json
import pathlib
import shutil
import struct
import types
import zlib

import numpy as np

LANGUAGES = (
    "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha "
    "he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne "
    "nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo "
    "xh yi yo zh zu"
).split()
MADE_UP = 8
SHAPES = {
    "m2m100-418m": dict(hidden=1024, layers=12, heads=16, ffn=4096, vocab=128112, positions=1024),
    "m2m100-1.2b": dict(hidden=1024, layers=24, heads=16, ffn=8192, vocab=128112, positions=1024),
    "tiny": dict(hidden=64, layers=2, heads=4, ffn=128, vocab=2048, positions=256),
}


def tensors(s):
    """(name, shape) in the order of the file."""
    h, ffn = s["hidden"], s["ffn"]

    def norm(name):
        yield from ((f"{name}.weight", (h,)), (f"{name}.bias", (h,)))

    def linear(name, outputs, inputs):
        yield from ((f"{name}.weight", (outputs, inputs)), (f"{name}.bias", (outputs,)))

    def attention(name):
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            yield from linear(f"{name}.{part}", h, h)
        yield from norm(f"{name}_layer_norm")

    yield "model.shared.weight", (s["vocab"], h)
    for side in ("encoder", "decoder"):
        for layer in range(s["layers"]):
            at = f"model.{side}.layers.{layer}"
            yield from attention(f"{at}.self_attn")
            if side == "decoder":
                yield from attention(f"{at}.encoder_attn")
            yield from linear(f"{at}.fc1", ffn, h)
            yield from linear(f"{at}.fc2", h, ffn)
            yield from norm(f"{at}.final_layer_norm")
        yield from norm(f"model.{side}.layer_norm")


def values(name, shape, seed):
    if "norm" in name:
        return np.full(shape, name.endswith("weight"), np.float16)
    random = np.random.Generator(np.random.Philox(key=[seed, zlib.crc32(name.encode())]))
    if name.endswith("bias"):
        scale = 0.02
    else:
        gain = 1 if "shared" in name else 2 if "q_proj" in name or "k_proj" in name else 4
        scale = gain * shape[-1] ** -0.5
    x = random.standard_normal(shape, np.float32) * np.float32(scale)
    if "fc2.weight" in name:
        x -= x.mean(axis=1, keepdims=True)  # else the means of relu give all rows one direction
    return x.astype(np.float16)


def vocabulary(s, pieces):
    known = json.loads((pieces / "vocab.json").read_text(encoding="utf-8"))
    filler = s["vocab"] - len(LANGUAGES) - MADE_UP - len(known)
    return list(known) + [f"\u2581w{i}" for i in range(filler)]


def write_hf(s, out, pieces, seed):
    config = {
        "architectures": ["M2M100ForConditionalGeneration"],
        "model_type": "m2m_100",
        "vocab_size": s["vocab"],
        "d_model": s["hidden"],
        "activation_function": "relu",
        "max_position_embeddings": s["positions"],
        "scale_embedding": True,
        "bos_token_id": 0,
        "pad_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 2,
        "tie_word_embeddings": True,
        "is_encoder_decoder": True,
        "dtype": "float16",
    }
    for side in ("encoder", "decoder"):
        config[f"{side}_layers"] = s["layers"]
        config[f"{side}_attention_heads"] = s["heads"]
        config[f"{side}_ffn_dim"] = s["ffn"]
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(config, indent=1))
    tokens = {t: i for i, t in enumerate(vocabulary(s, pieces))}
    (out / "vocab.json").write_text(json.dumps(tokens, ensure_ascii=False), encoding="utf-8")
    for name in ("sentencepiece.bpe.model", "tokenizer_config.json"):
        shutil.copyfile(pieces / name, out / name)
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in tensors(s):
        end = offset + 2 * int(np.prod(shape))
        header[name] = {"dtype": "F16", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with open(out / "model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head)
        for name, shape in tensors(s):
            f.write(values(name, shape, seed).tobytes())


def convert(folder, out):
    from ctranslate2.converters import transformers as converters
    from ctranslate2.specs import transformer_spec

    known = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    tokens = [
        *known,
        *(f"__{code}__" for code in LANGUAGES),
        *(f"madeupword{i}" for i in range(MADE_UP)),
    ]

    class Loader(type(converters._MODEL_LOADERS["M2M100Config"])):
        def get_vocabulary(self, model, tokenizer):
            return list(tokens)

    class Converter(converters.TransformersConverter):
        def load_tokenizer(self, *_args, **_kwargs):
            return types.SimpleNamespace(
                bos_token="<s>",
                eos_token="</s>",
                unk_token="<unk>",
                pad_token="<pad>",
                convert_ids_to_tokens=tokens.__getitem__,
            )

    converters._MODEL_LOADERS["M2M100Config"] = Loader()
    Converter(str(folder)).convert(str(out), quantization="int8", force=True)
    loaded = Converter(str(folder))._load()
    encoder = transformer_spec.TransformerEncoderModelSpec(loaded.encoder)
    encoder.register_vocabulary(tokens)
    encoder.config.unk_token = "<unk>"
    encoder.validate()
    encoder.optimize(quantization="int8")
    at = out.with_name(out.name + "-encoder")
    at.mkdir(exist_ok=True)
    encoder.save(str(at))


def main():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("shape", choices=SHAPES)
    p.add_argument("out", type=pathlib.Path)
    p.add_argument("--pieces", type=pathlib.Path, required=True)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--ctranslate2", type=pathlib.Path)
    p.add_argument("--no-hf", action="store_true", help="OUT is there already")
    o = p.parse_args()
    if not o.no_hf:
        write_hf(SHAPES[o.shape], o.out, o.pieces, o.seed)
    if o.ctranslate2:
        convert(o.out, o.ctranslate2)


if __name__ == "__main__":
    main()
