#!/usr/bin/env python3
"""Compares Kvasir's tokenizer with PyPI `tokenizers` on generated texts and ids.

    text_oracle.py --tool build/tests/text_tool [--shared ../shared] [--cases 400] [--seed 1]
    text_oracle.py --write-golden tests/data/tokenizer     (needs no tool)

Encodes (with and without special tokens added and parsed), decodes (the ids of the texts and random
ids) and streams. Prints a line for each tokenizer and `cases N differ M`; exits 1 if M is not 0.

Characters that Unicode 14 does not know are left out: PCRE2 and utf8proc of Debian 12 know that
version, `tokenizers` a later one.
"""

import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import unicodedata

import template_oracle
from tokenizers import Tokenizer

ROOT = pathlib.Path(__file__).resolve().parent.parent

PIECES = [
    "Hello", "world", "it's", "we'LL", "I'M", "don't", "x=1;", "12345", "3.14", "1,000", "½", "²³",
    "naïve", "café", "cafe\u0301", "Å", "A\u030a", "\ufb01ne", "ＡＢＣ", "ſ", "\u212a", "Straße",
    "日本語", "吾輩は猫である。", "中文字符", "한국어", "한국", "العربية", "עברית", "हिन्दी", "ไทย",
    "🙂", "👩‍👩‍👧", "🇯🇵", "👍🏽", "e\u0301\u0323", "q\u0323\u0307", "\u0307\u0323", "\u200b", "\u200d", "\ufeff", "\u00ad",
    "_", "__init__", "a_b", "->", "!!!", "...", "—", "«»", "`code`", "\\n", "<|end|>", "<s>", "</s>",
    "<unk>", "<pad>", "<mask>", "<0x0A>", "▁", "▁▁a", "Ġ", "ĠHello", "Ċ", "[INST]", "<|im_end|>",
]
SPACES = [" ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", " \n", "\n ", "\u00a0", "\u3000", "\u2003",
          "\u180e", "\u2028", "\x0b", "\x0c", "\x85", " " * 17, " " * 40, "\t" * 5, "\n" * 4]
CONTROLS = [chr(c) for c in range(1, 32)] + ["\x7f", "\x80", "\x9f", "\0", "\ufffd", "\ufffe", "\U0010ffff"]


def known(text):
    return all(unicodedata.category(c) not in ("Cs",) and
               (unicodedata.category(c) != "Cn" or c in "\ufffe\U0010ffff") for c in text)


def random_char(rng):
    while True:
        top = rng.choice([0x80, 0x250, 0x800, 0x3100, 0xA000, 0x10000, 0x20000, 0x110000])
        c = chr(rng.randrange(top))
        if unicodedata.category(c) not in ("Cs", "Cn"):
            return c


def make_text(rng, specials, prose):
    kind = rng.randrange(10)
    if kind <= 2 and prose:
        text = rng.choice(prose)
        at = rng.randrange(max(1, len(text) - 400))
        return text[at:at + rng.randrange(1, 400)]
    if kind == 3:
        return "".join(random_char(rng) for _ in range(rng.randrange(1, 60)))
    if kind == 4:
        return bytes(rng.randrange(256) for _ in range(rng.randrange(1, 80))).decode("utf-8", "replace")
    if kind == 5:
        return "".join(rng.choice(SPACES) for _ in range(rng.randrange(1, 12)))
    if kind == 6:
        letter = rng.choice(["a", " ", "é", "日", "!", "0", "\n", "e\u0301", "🙂", "ab"])
        return letter * rng.randrange(1, 300)
    out = []
    for _ in range(rng.randrange(1, 25)):
        pool = rng.randrange(9)
        if pool == 0 and specials:
            out.append(rng.choice(specials))
        elif pool <= 4:
            out.append(rng.choice(PIECES))
        elif pool <= 6:
            out.append(rng.choice(SPACES))
        elif pool == 7:
            out.append(rng.choice(CONTROLS))
        else:
            out.append(random_char(rng))
    return "".join(out)


def load_prose(shared):
    texts = ["The quick brown fox jumps over the lazy dog. " * 20]
    if shared:
        for path in sorted((shared / "data" / "prose").glob("*.txt")):
            texts.append(path.read_text(encoding="utf-8")[:200000])
    return [t for t in texts if t]


def repaired(path):
    """The file as `tokenizers` can load it: merges whose tokens hold spaces become pairs."""
    data = json.loads(path.read_text(encoding="utf-8"))
    vocab, merges = data["model"]["vocab"], data["model"]["merges"]
    if all(isinstance(m, list) or m.count(" ") == 1 for m in merges):
        return path.read_text(encoding="utf-8")
    pairs = []
    for merge in merges:
        splits = [(merge[:i], merge[i + 1:]) for i, c in enumerate(merge) if c == " "]
        pairs.append(next((s for s in splits if s[0] in vocab and s[1] in vocab and "".join(s) in vocab),
                          splits[0]))
    data["model"]["merges"] = pairs
    return json.dumps(data)


def tokenizer_files(shared):
    files = [ROOT / "models" / "kvasir-demo" / "tokenizer.json"]
    if shared:
        files += sorted((shared / "goldens").glob("*/tokenizer.json"))
        files.append(shared / "data" / "story656k" / "tokenizer.json")
        files += sorted((shared / "data" / "hf-tokenizers").rglob("tokenizer.json"))
    return [f for f in files if f.exists()]


def cases_of(path, count, rng, prose):
    """(request, what the answer must be) pairs."""
    oracle = Tokenizer.from_str(repaired(path))
    oracle.no_truncation()
    oracle.no_padding()
    added = oracle.get_added_tokens_decoder()
    specials = [t.content for t in added.values()]
    # `tokenizers` 0.23 decodes an added token that its normalizer changes to the changed text and
    # then does not know it as special; Kvasir writes the token and skips it. Not compared.
    changed = {i for i, t in added.items() if t.normalized and oracle.normalizer and
               oracle.normalizer.normalize_str(t.content) != t.content}
    size = oracle.get_vocab_size()
    cases = []
    for _ in range(count):
        request = {"tokenizer": str(path)}
        if rng.randrange(4) == 0:
            ids = [rng.randrange(size + 3) for _ in range(rng.randrange(40))]
            if rng.randrange(3) == 0:  # runs of byte tokens, whole and broken
                text = make_text(rng, [], prose).encode()
                start = rng.randrange(4)
                byte_ids = [oracle.token_to_id(f"<0x{b:02X}>") for b in text[start:start + 100]]
                ids += [i for i in byte_ids if i is not None]
            request["ids"] = [i for i in ids if i not in changed]
            expected = {"ids": request["ids"]}
        else:
            text = make_text(rng, specials, prose)
            if not known(text):
                continue
            request["text"] = text
            request["add_special"] = bool(rng.randrange(2))
            request["parse_special"] = rng.randrange(4) > 0
            oracle.encode_special_tokens = not request["parse_special"]
            expected = {"ids": oracle.encode(text, add_special_tokens=request["add_special"]).ids}
        if not changed.intersection(expected["ids"]):
            for name, skip in (("decoded", True), ("decoded_all", False)):
                text = oracle.decode(expected["ids"], skip_special_tokens=skip)
                expected[name] = text
                expected["streamed" + name[7:]] = text
        cases.append((request, expected))
    return cases


def ask(tool, requests):
    with tempfile.TemporaryFile("w+") as source:
        source.writelines(json.dumps(r) + "\n" for r in requests)
        source.seek(0)
        run = subprocess.run([tool], stdin=source, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in run.stdout.splitlines()]


def compare(tool, shared, count, seed):
    prose = load_prose(shared)
    total = differ = shown = 0
    for path in tokenizer_files(shared):
        model = json.loads(path.read_text(encoding="utf-8"))["model"]
        if model.get("type", "BPE") != "BPE" or not isinstance(model["vocab"], dict):
            answer = ask(tool, [{"tokenizer": str(path), "text": "a"}])[0]
            refused = "not supported" in answer.get("error", "")
            print(f"{path}: not BPE, {'refused' if refused else 'NOT REFUSED'}")
            total += 1
            differ += not refused
            continue
        cases = cases_of(path, count, random.Random(f"{seed} {path.parent.name}"), prose)
        wrong = 0
        for (request, expected), answer in zip(cases, ask(tool, [r for r, _ in cases]), strict=True):
            bad = {k: (v, answer.get(k, answer.get("error"))) for k, v in expected.items() if answer.get(k) != v}
            # What it decodes, it streams, oracle or not.
            for tail in ("", "_all"):
                if answer.get("decoded" + tail) != answer.get("streamed" + tail):
                    bad["streamed" + tail] = (answer.get("decoded" + tail), answer.get("streamed" + tail))
            if bad:
                wrong += 1
                shown += 1
                if shown <= 8:
                    print(json.dumps({"request": request, "expected and got": bad}), file=sys.stderr)
        print(f"{path}: cases {len(cases)} differ {wrong}")
        total += len(cases)
        differ += wrong
    chats, wrong = compare_chats(tool, shared, count, seed)
    total += chats
    differ += wrong
    print(f"cases {total} differ {differ}")
    return 1 if differ or total == 0 else 0


# Tokens that models have and that are not special. Of the second, a template may write some itself.
IN_TEXT = ["<table>", "</table>", "<think>", "</think>", "<tool_call>", "</tool_call>"]
MARKS = ["<tool_response>", "</tool_response>", "<|turn|>"]


def chat_models(shared, folder):
    """(tokenizer.json with those tokens, chat template) pairs."""
    data = json.loads((ROOT / "models/kvasir-demo/tokenizer.json").read_text(encoding="utf-8"))
    first = max([token["id"] for token in data["added_tokens"]] + list(data["model"]["vocab"].values())) + 1
    flags = dict.fromkeys(("special", "single_word", "lstrip", "rstrip", "normalized"), False)
    data["added_tokens"] += [{"id": first + i, "content": text} | flags for i, text in enumerate(IN_TEXT + MARKS)]
    data["added_tokens"] += [{"id": first + 50 + i, "content": text} | flags | {"special": True}
                             for i, text in enumerate(("<|im_start|>", "<|im_end|>"))]
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(data))
    configs = [ROOT / "models/kvasir-demo/tokenizer_config.json"]
    if shared:
        configs += sorted((shared / "data/hf-tokenizers").glob("*/tokenizer_config.json"))
    for config in configs:
        template = json.loads(config.read_text(encoding="utf-8")).get("chat_template")
        if isinstance(template, str):
            yield config, path, template


def make_message(rng, prose, texts):
    parts = [rng.choice(texts) if rng.randrange(2) else make_text(rng, [], prose) for _ in range(rng.randrange(1, 6))]
    return "x" + "".join(part for part in parts if known(part)) + "x"


def compare_chats(tool, shared, count, seed):
    """Chats have the ids of transformers (its template, then its tokenizer), as long as no message has a special token
    or a mark; where one does, there are no more of them than without that text."""
    prose = load_prose(shared)
    total = differ = 0
    with tempfile.TemporaryDirectory() as folder:
        for config, path, template in chat_models(shared, pathlib.Path(folder)):
            rng = random.Random(f"{seed} {config}")
            oracle = Tokenizer.from_file(str(path))
            added = oracle.get_added_tokens_decoder()
            marks = [text for text in MARKS if text in template or text.startswith("<|")]
            refused = [token.content for token in added.values() if token.special] + marks
            in_text = IN_TEXT + [text for text in MARKS if text not in marks]
            refused_ids = {oracle.token_to_id(text) for text in refused}
            requests, expected = [], []
            for i in range(count // 4):
                texts = refused + in_text if i % 2 else in_text
                contents = [make_message(rng, prose, texts) for _ in range(3)]
                is_forged = any(mark in content for mark in refused for content in contents)
                messages = [{"role": role, "content": content}
                            for role, content in zip(("user", "assistant", "user"), contents)]
                plain = [message | {"content": "x"} for message in messages]
                case = {"template": template, "messages": plain if is_forged else messages,
                        "add_generation_prompt": True, "bos": "", "eos": ""}
                rendered = template_oracle.expected(case).get("rendered")
                if rendered is None:
                    continue
                requests.append({"tokenizer": str(path), "template": template, "messages": messages})
                expected.append((is_forged, oracle.encode(rendered, add_special_tokens=False).ids))
            wrong = 0
            for request, (is_forged, want), answer in zip(requests, expected, ask(tool, requests), strict=True):
                got = answer.get("ids", [])
                if is_forged:
                    got, want = ([id for id in ids if id in refused_ids] for ids in (got, want))
                if got != want:
                    wrong += 1
                    print(json.dumps({"request": request, "expected": want, "got": answer}), file=sys.stderr)
            forged = sum(is_forged for is_forged, _ in expected)
            print(f"{config}: chats {len(expected)}, {forged} with marks, differ {wrong}")
            total += len(expected)
            differ += wrong
    return total, differ


def write_golden(folder):
    """Texts and ids of the bundled model's tokenizer, for checkouts without `tokenizers`."""
    path = ROOT / "models" / "kvasir-demo" / "tokenizer.json"
    cases = cases_of(path, 160, random.Random("golden"), load_prose(None))
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "kvasir-demo.jsonl", "w", encoding="utf-8") as out:
        for request, expected in cases:
            del request["tokenizer"]
            out.write(json.dumps({**request, **expected}) + "\n")
    print(f"{len(cases)} cases in {folder / 'kvasir-demo.jsonl'}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", help="the binary text_tool")
    parser.add_argument("--shared", type=pathlib.Path, default=ROOT.parent / "shared")
    parser.add_argument("--cases", type=int, default=400, help="for each tokenizer")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write-golden", type=pathlib.Path, metavar="FOLDER")
    args = parser.parse_args()
    if args.write_golden:
        write_golden(args.write_golden)
        return 0
    if not args.tool:
        parser.error("--tool is missing")
    return compare(args.tool, args.shared if args.shared.exists() else None, args.cases, args.seed)


if __name__ == "__main__":
    sys.exit(main())
