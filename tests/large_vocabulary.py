"""A model with random weights and a vocabulary of any size, whose tokens share their beginnings as
those of real vocabularies do; and grammars that few tokens follow alike."""

import json
import pathlib
import random
import shutil
import struct

import numpy

DEMO = pathlib.Path(__file__).resolve().parent.parent / "models/kvasir-demo"
HIDDEN, WIDE, LAYERS, HEADS, KV_HEADS = 64, 128, 2, 2, 1


def make_model(folder, vocab_size):
    """The demo model's tokenizer with more tokens; returns the folder."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = json.loads((DEMO / "config.json").read_text())
    config |= {"vocab_size": vocab_size, "hidden_size": HIDDEN, "intermediate_size": WIDE, "num_hidden_layers": LAYERS,
               "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HIDDEN // HEADS}
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer_config.json", "generation_config.json"):
        shutil.copy(DEMO / name, folder)
    tokenizer = json.loads((DEMO / "tokenizer.json").read_text())
    vocab, rng = tokenizer["model"]["vocab"], random.Random(7)
    words = [w for w in vocab if not w.startswith("<|")]
    letters = [c for c in words if len(c) == 1]
    while len(vocab) < vocab_size:
        words.append(rng.choice(words) + rng.choice(letters if rng.random() < 0.5 else words))
        if len(words[-1]) > 24 or vocab.setdefault(words[-1], len(vocab)) != len(vocab) - 1:
            words.pop()
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    shapes = {"model.embed_tokens.weight": (vocab_size, HIDDEN), "model.norm.weight": (HIDDEN,)}
    for i in range(LAYERS):
        head = HIDDEN // HEADS
        for name, shape in {"input_layernorm": (HIDDEN,), "post_attention_layernorm": (HIDDEN,),
                            "mlp.down_proj": (HIDDEN, WIDE), "mlp.gate_proj": (WIDE, HIDDEN),
                            "mlp.up_proj": (WIDE, HIDDEN), "self_attn.q_proj": (HIDDEN, HIDDEN),
                            "self_attn.o_proj": (HIDDEN, HIDDEN), "self_attn.k_proj": (KV_HEADS * head, HIDDEN),
                            "self_attn.v_proj": (KV_HEADS * head, HIDDEN)}.items():
            shapes[f"model.layers.{i}.{name}.weight"] = shape
    values, header, data = numpy.random.default_rng(7), {}, b""
    for name, shape in shapes.items():
        numbers = numpy.ones(shape) if len(shape) == 1 else values.normal(0, 0.15, shape)
        bits = numbers.astype("<f4").view("<u4") >> 16
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [len(data), len(data) + 2 * bits.size]}
        data += bits.astype("<u2").tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    return folder


def hostile_grammar(num_rules=480, num_ranges=4, seed=7):
    """GBNF of rules of random classes that call each other."""
    rng = random.Random(seed)

    def one_of():
        firsts = [rng.randrange(0xA1, 0x3000) for _ in range(num_ranges)]
        return "[" + "".join(f"\\u{first:04x}-\\u{first + rng.randrange(40):04x}" for first in firsts) + "a-z ]"
    rules = [f"r{i} ::= " + " | ".join(f"{one_of()} r{rng.randrange(num_rules)}?" for _ in range(3))
             for i in range(num_rules)]
    return "root ::= r0+\n" + "\n".join(rules) + "\n"
