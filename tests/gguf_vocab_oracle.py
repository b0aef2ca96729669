#!/usr/bin/env python3
"""Compares the vocabularies of GGUF files with PyPI `tokenizers` built from the same vocabulary, on 1 MB of mixed text.

    gguf_vocab_oracle.py --tool build/tests/text_tool [--shared ../shared] [--part N] [--speed] [FILE.gguf...]

The patterns are written down here a second time, as tokenizer.json files have them. With --part N the text is the first
Nth of each source. With --speed both also encode the text on one thread, the best of three times, and the ratio is
printed. Exits 1 where ids differ, 77 without ../shared.
"""

import argparse
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
DEEPSEEK_V3 = (r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
               r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*" + SPACES)
# Patterns of which no vocabulary is at hand: tried with GPT-2's.
OTHERS = ("command-r", "dbrx", "deepseek-v3", "gpt-4o", "olmo", "phi-2", "smollm", "tekken")
# Kinds that Kvasir does not read (docs/text.md).
NOT_READ = ("bert", "t5", "rwkv")
CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"


def read_metadata(path):
    """The metadata of a GGUF file of version 2 or 3, without the prefix tokenizer.ggml."""
    data, at = path.read_bytes(), 16

    def take(layout):
        nonlocal at
        values = struct.unpack_from("<" + layout, data, at)
        at += struct.calcsize("<" + layout)
        return values[0]

    def string():
        nonlocal at
        size = take("Q")
        at += size
        return data[at - size:at].decode()

    def value(kind):
        if kind == 8:
            return string()
        if kind == 9:
            inner, count = take("I"), take("Q")
            return [value(inner) for _ in range(count)]
        return take(SCALARS[kind])

    pairs = {}
    for _ in range(take("Q")):
        key = string()
        pairs[key.removeprefix("tokenizer.ggml.")] = value(take("I"))
    return pairs


def split(*patterns):
    return [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]


def words_of(pre):
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    digits = pre_tokenizers.Digits(individual_digits=True)
    three = split("[0-9][0-9][0-9]")
    letters = SUFFIX + r"|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*" + SPACES
    cased = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s"
             r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s"
             r"|%s| ?[^\s\p{L}\p{N}]+[\r\n/]*" + SPACES)
    steps = {
        "default": [*split(r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+"), *three, plain],
        "gpt-2": [gpt2],
        "mpt": [gpt2],
        "llama-bpe": [*split(letters % r"\p{N}{1,3}"), plain],
        "qwen2": [*split(letters % r"\p{N}"), plain],
        "starcoder": [digits, gpt2],
        "refact": [digits, gpt2],
        "falcon": [pre_tokenizers.Punctuation("contiguous"), gpt2, pre_tokenizers.Digits(individual_digits=False),
                   *three],
        "phi-2": [gpt2],
        "olmo": [gpt2],
        "smollm": [digits, gpt2],
        "command-r": [digits, gpt2],
        "dbrx": [*split(letters % r"\p{N}{1,3}"), plain],
        "tekken": [*split(cased % ("", "", r"\p{N}")), plain],
        "gpt-4o": [*split(cased % (SUFFIX + "?", SUFFIX + "?", r"\p{N}{1,3}")), plain],
        "deepseek-v3": [*split(r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", DEEPSEEK_V3), plain],
        # The model's own file lists the letters of this class one by one.
        "deepseek-llm": [*split(r"[\r\n]", r"\s?[\p{Lu}\p{Ll}\p{Lt}]+",
                                "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+", r"\s+$", CJK),
                         digits, plain],
        "deepseek-coder": [*split(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK), digits, plain],
    }
    return pre_tokenizers.Sequence(steps[pre])  # a pattern that is not written down here ends the test


def bpe_of(keys, vocab):
    model = models.BPE(vocab, [tuple(merge.split(" ", 1)) for merge in keys["merges"]],
                       ignore_merges=keys.get("pre") in ("llama-bpe", "tekken"))
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = words_of(keys.get("pre", "default"))
    if keys.get("pre") in ("qwen2", "mpt", "olmo", "command-r"):
        tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def pieces_of(keys, vocab):
    """As transformers makes merges of a SentencePiece model."""
    made = {token for token, kind in zip(keys["tokens"], keys["token_type"]) if kind in (1, 4)}
    merges = []
    for token in made:
        parts = [(token[:i], token[i:]) for i in range(1, len(token))]
        found = [pair for pair in parts if pair[0] in made and pair[1] in made]
        found.sort(key=lambda pair: (vocab[pair[0]], vocab[pair[1]]))
        merges += [(keys["scores"][vocab[token]], -vocab[token], pair) for pair in found]
    merges.sort(key=lambda merge: merge[:2], reverse=True)
    tokenizer = Tokenizer(models.BPE(vocab, [pair for _, _, pair in merges], unk_token="<unk>", fuse_unk=True,
                                     byte_fallback=True))
    prefix = [normalizers.Prepend("\u2581")] if keys.get("add_space_prefix", True) else []
    tokenizer.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", "\u2581")])
    return tokenizer


def oracle_of(path):
    keys = read_metadata(path)
    vocab = {token: id for id, token in enumerate(keys["tokens"])}
    if keys["model"] in NOT_READ:
        return None
    tokenizer = bpe_of(keys, vocab) if keys["model"] == "gpt2" else pieces_of(keys, vocab)
    for id, (token, kind) in enumerate(zip(keys["tokens"], keys["token_type"])):
        if kind in (2, 3, 4) and token != f"[PAD{id}]":
            added = AddedToken(token, normalized=False, special=kind != 4)
            (tokenizer.add_tokens if kind == 4 else tokenizer.add_special_tokens)([added])
    return tokenizer


def with_pattern(source, pre, folder):
    """A copy of a GGUF file without tensors, with another pattern."""
    data, key = source.read_bytes(), b"tokenizer.ggml.pre" + struct.pack("<I", 8)
    at = data.index(key) + len(key)
    size = struct.unpack_from("<Q", data, at)[0]
    path = folder / f"gpt-2-{pre}.gguf"
    path.write_bytes(data[:at] + struct.pack("<Q", len(pre)) + pre.encode() + data[at + 8 + size:])
    return path


def mixed_text(shared, part):
    """1 MB, or the first of so many parts of it: English, German, Spanish, Chinese and Japanese prose, and code."""
    data = shared / "data"
    parts = [(data / "prose/wikitext-2.valid.txt", 250), (data / "prose/botchan.txt", 100),
             (data / "prose/wagahaiwa_nekodearu.txt", 150), (data / "prose/tinyshakespeare.txt", 100)]
    text = [path.read_bytes()[:size * 1000 // part].decode(errors="ignore") for path, size in parts]
    for language in ("de", "es", "zh", "en"):
        articles = json.loads((data / f"xquad/xquad.{language}.json").read_text())["data"]
        prose = " ".join(p["context"] for article in articles for p in article["paragraphs"])
        text.append(prose.encode()[:75000 // part].decode(errors="ignore"))
    code = "\n".join(path.read_text() for path in sorted((ROOT / "src").glob("*/*.cc")))
    text.append(code.encode()[:100000 // part].decode(errors="ignore"))
    return "".join(text)


def seconds_of(tokenizer, text):
    best = float("inf")
    for _ in range(3):
        begin = time.perf_counter()
        tokenizer.encode(text, add_special_tokens=False)
        best = min(best, time.perf_counter() - begin)
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tool", required=True)
    parser.add_argument("--shared", type=pathlib.Path, default=ROOT.parent / "shared")
    parser.add_argument("--part", type=int, default=1)
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    args = parser.parse_args()
    vocabularies = args.shared / "data/gguf-vocabs"
    if not vocabularies.exists():
        print(f"skipped: needs {vocabularies}")
        return 77
    goldens = args.shared / "goldens"
    files = args.files or [*sorted(vocabularies.glob("*.gguf")), goldens / "llama-gqa/model-bf16.gguf",
                           goldens / "qwen2/model-f16.gguf", goldens / "gemma3/model-f32.gguf"]
    text = mixed_text(args.shared, args.part)
    folder = tempfile.TemporaryDirectory()
    if not args.files:
        gpt2 = vocabularies / "ggml-vocab-gpt-2.gguf"
        files += [with_pattern(gpt2, pre, pathlib.Path(folder.name)) for pre in OTHERS]
    differ = compared = 0
    for path in files:
        oracle = oracle_of(path)
        if oracle is None:
            request = json.dumps({"tokenizer": str(path), "text": "a"})
            run = subprocess.run([args.tool], input=request + "\n", capture_output=True, text=True, check=True)
            refused = "which is not read" in json.loads(run.stdout).get("error", "")
            print(f"{path}: not compared, {'refused' if refused else 'NOT REFUSED'}")
            differ += not refused
            continue
        want = oracle.encode(text, add_special_tokens=False).ids
        request = json.dumps({"tokenizer": str(path), "text": text, "add_special": False})
        run = subprocess.run([args.tool], input=request + "\n", capture_output=True, text=True, check=True)
        got = json.loads(run.stdout)
        same = got.get("ids") == want
        line = f"{path}: {len(want)} ids, {'equal' if same else 'DIFFERENT ' + got.get('error', '')}"
        if args.speed:
            with tempfile.NamedTemporaryFile("w", suffix=".txt") as source:
                source.write(text)
                source.flush()
                speed = subprocess.run([args.tool, "speed", str(path), source.name], capture_output=True, text=True,
                                       check=True)
            ours = float(speed.stdout.split()[-1])
            theirs = len(text.encode()) / seconds_of(oracle, text) / 1e6
            line += f"; {ours:.1f} MB/s, tokenizers {theirs:.1f} MB/s, {ours / theirs:.1f}x"
        print(line, flush=True)
        compared += 1
        differ += not same
    print(f"vocabularies {compared} differ {differ}")
    return 1 if differ or compared == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
