#!/usr/bin/env python3
"""Kvasir beside CTranslate2 on a model of make_translation_model.py: the same random weights, i8 here
and int8 there, the same threads and beams, and every answer has 32 tokens. The two take turns.

    ctranslate2_bench.py HF_FOLDER CT2_FOLDER [--rows REGEX] [--rounds 5] [--out FILE.json]

The environment: pip install ctranslate2 sentencepiece. Needs build/release/kvasir and bench/ limits,
translation_bench and encoder_bench beside it. Samples are seconds of the same work. After each row
--out (default: bench/results/translation/CPU-DATE.json) is written; a row that is measured again
replaces what it has. `compare.py --report` makes the tables of docs/performance.md of it. The rows:

  greedy-1, beams-1    one sentence of 32 tokens, alone; `steps`: the same once more, whose source
                       is cached, so that only the decoder's steps are left
  beams-64             64 sentences of 5 to 60 tokens at once, at the best of --batches there;
                       `again`: the same sources once more, which are cached then
  encoder-16x60        the encoder alone; Kvasir's also computes the decoder's K and V of the sources:
                       `one_layer` is its time when the decoder has one layer
  first-16x60          the encoder and the first token after the language
  lines-greedy         --lines lines, `kvasir translate` beside translate_iterable, file to file
  memory-64            the most resident bytes while beams-64 runs
"""

import argparse
import datetime
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import threading
import time

import compare
import engines
import translation_report

ROOT = compare.ROOT
TOKENS, BEAMS, SEED = 32, 5, 20240917  # tokens of an answer, its language included
SOURCE, TARGET, END = "__en__", "__fr__", "</s>"


class Texts:
    """Sentences of words that are one piece each, so that their tokens can be counted."""

    def __init__(self, folder):
        import sentencepiece

        pieces = sentencepiece.SentencePieceProcessor(
            model_file=str(folder / "sentencepiece.bpe.model")
        )
        known = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
        codes = translation_report.make_translation_model.LANGUAGES
        self.ids = known | {f"__{code}__": len(known) + i for i, code in enumerate(codes)}
        self.words = [
            word
            for word in (pieces.id_to_piece(i)[1:] for i in range(pieces.get_piece_size()))
            if word.isascii() and word.isalpha() and "\u2581" + word in known
            and pieces.encode(word, out_type=str) == ["\u2581" + word]
        ]  # fmt: skip

    def sentence(self, draw, tokens):
        """Words; with language and end its source has so many tokens."""
        return draw.choices(self.words, k=tokens - 2)

    def source(self, words):
        return [SOURCE, *("\u2581" + word for word in words), END]

    def source_ids(self, words):
        return [self.ids[token] for token in self.source(words)]

    def prompt_ids(self):
        return [self.ids[END], self.ids[TARGET]]


class Child:
    """A process that answers each line of its input with one."""

    def __init__(self, command, says_hello=True):
        self.process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.hello = self.read() if says_hello else None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait(timeout=60)

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.process.args[0]}: ended")
        return json.loads(line)

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self.read()


def peer(o, workers=1, model="translator"):
    return Child(
        [sys.executable, os.path.abspath(__file__), o.hf, o.ct2, "--serve", model]
        + ["--threads", o.threads, "--workers", workers]
    )


def kvasir(o):
    return Child(
        [o.bin / "bench/translation_bench", o.hf, "--weights", "i8", "--threads", o.threads]
        + ["--parallel", o.parallel, "--kv-memory", o.kv_memory]
    )


def serve(o):
    """CTranslate2: for each line of JSON from stdin, translates or encodes, and prints seconds."""
    import ctranslate2

    threads = {"inter_threads": o.workers, "intra_threads": max(1, o.threads // o.workers)}
    if o.serve == "encoder":
        encoder = ctranslate2.Encoder(f"{o.ct2}-encoder", compute_type="int8", **threads)
    else:
        translator = ctranslate2.Translator(str(o.ct2), compute_type="int8", **threads)
    print(json.dumps({"version": ctranslate2.__version__}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        sources = asked["sources"]
        begin = time.perf_counter()
        if o.serve == "encoder":
            encoder.forward_batch(sources)
            print(json.dumps({"seconds": time.perf_counter() - begin}), flush=True)
            continue
        options = {
            "beam_size": asked["beams"],
            "min_decoding_length": asked["tokens"],
            "max_decoding_length": asked["tokens"],
            "max_batch_size": asked.get("batch", 0),
            "batch_type": asked.get("type", "examples"),
        }
        prefixes = [[TARGET]] * len(sources)
        if asked.get("iterable"):
            results = list(translator.translate_iterable(sources, prefixes, **options))
        else:
            results = translator.translate_batch(sources, prefixes, **options)
        seconds = time.perf_counter() - begin
        if any(len(r.hypotheses[0]) != asked["tokens"] for r in results):
            raise RuntimeError("an answer has another number of tokens")
        print(json.dumps({"seconds": seconds}), flush=True)


def in_turn(rounds, *sides):
    """A list of samples of each; the first of each is left out."""
    samples = [[] for _ in sides]
    for number in range(rounds + 1):
        for i in range(len(sides))[:: -1 if number % 2 else 1]:
            value = sides[i](number)
            if number:
                samples[i].append(round(value, 6))
    return {"kvasir": samples[0], "ctranslate2": samples[1]}


def ask_kvasir(child, texts, sentences, beams, tokens=TOKENS):
    answer = child.ask(
        sources=[texts.source_ids(s) for s in sentences],
        prompt=texts.prompt_ids(),
        beams=beams,
        tokens=tokens - 1,
    )
    if answer["tokens"] != (tokens - 1) * len(sentences):
        raise RuntimeError(f"{answer['tokens']} tokens in {len(sentences)} answers")
    return answer


def ask_peer(child, texts, sentences, beams, tokens=TOKENS, **more):
    sources = [texts.source(s) for s in sentences]
    return child.ask(sources=sources, beams=beams, tokens=tokens, **more)["seconds"]


def alone(o, texts, beams):
    draw = random.Random(SEED)
    sentences = [[texts.sentence(draw, 32)] for _ in range(o.rounds + 1)]
    read, steps = [compare.bandwidth(o)], []
    with kvasir(o) as own, peer(o) as other:

        def twice(number):
            first, second = (ask_kvasir(own, texts, sentences[number], beams) for _ in range(2))
            if second["encoder_passes"]:
                raise RuntimeError("a source was not cached")
            steps.append(second["seconds"])
            return first["seconds"]

        samples = in_turn(
            o.rounds, twice, lambda i: ask_peer(other, texts, sentences[i], beams)
        )
    read.append(compare.bandwidth(o))
    more = {"steps": steps[1:], "num_steps": TOKENS - 1, "read_gb_s": read}
    return {"tokens": TOKENS, **samples, **more, **about(own, other)}


def about(own, other):
    return {
        "version": {"ctranslate2": other.hello["version"]},
        "target": (own.hello or {}).get("target"),
    }


def many(texts, sentences=64):
    draw = random.Random(SEED)
    return [texts.sentence(draw, draw.randint(5, 60)) for _ in range(sentences)]


def best_setting(o, texts, sentences, beams, iterable=False):
    """CTranslate2's fastest of --batches, and all that were tried: [seconds, setting]."""
    tried = []
    for workers in dict.fromkeys((1, o.threads)):
        with peer(o, workers) as other:
            for setting in o.batches.split(","):
                size, kind = setting.split(":")
                chosen = {"batch": int(size), "type": kind, "iterable": iterable}
                seconds = ask_peer(other, texts, sentences, beams, **chosen)
                tried.append([round(seconds, 3), {"workers": workers, **chosen}])
                print(*tried[-1], file=sys.stderr)
    return min(tried, key=lambda t: t[0])[1], tried


def together(o, texts):
    sentences = many(texts)
    setting, tried = best_setting(o, texts, sentences, BEAMS)
    again, passes = [], []
    workers = setting.pop("workers")
    with kvasir(o) as own, peer(o, workers) as other:

        def twice(number):
            # Each round's first words are others, so that its sources are new.
            new = [[texts.words[number], *s[1:]] for s in sentences]
            seconds = ask_kvasir(own, texts, new, BEAMS)["seconds"]
            second = ask_kvasir(own, texts, new, BEAMS)
            again.append(second["seconds"])
            passes.append(second["encoder_passes"])
            return seconds

        samples = in_turn(
            o.rounds, twice, lambda _: ask_peer(other, texts, sentences, BEAMS, **setting)
        )
    return {
        "tokens": TOKENS * len(sentences),
        **samples,
        "again": again[1:],
        "encoder_passes_again": max(passes[1:]),
        "setting": {"workers": workers, **setting},
        "tried": tried,
        **about(own, other),
    }


def encoder(o, texts):
    draw = random.Random(SEED)
    sources = [texts.source(texts.sentence(draw, 60)) for _ in range(16)]
    command = [o.bin / "bench/encoder_bench", o.hf, "--weights", "i8", "--threads", o.threads]
    one_layer = []
    with (
        Child(command, says_hello=False) as own,
        Child([*command, "--decoder-layers", 1], says_hello=False) as less,
        peer(o, model="encoder") as other,
    ):

        def both(_):
            one_layer.append(less.ask()["seconds"])
            return own.ask()["seconds"]

        samples = in_turn(
            o.rounds * 2, both, lambda _: other.ask(sources=sources)["seconds"]
        )
    return {"tokens": 16 * 60, **samples, "one_layer": one_layer[1:], **about(own, other)}


def first(o, texts):
    draw = random.Random(SEED)
    batches = [[texts.sentence(draw, 60) for _ in range(16)] for _ in range(o.rounds * 2 + 1)]
    with kvasir(o) as own, peer(o) as other:
        samples = in_turn(
            o.rounds * 2,
            lambda i: ask_kvasir(own, texts, batches[i], 1, tokens=2)["seconds"],
            lambda i: ask_peer(other, texts, batches[i], 1, tokens=2),
        )
    return {"tokens": 16 * 60, **samples, **about(own, other)}


def lines(o, texts):
    sentences = many(texts, o.lines)
    setting, tried = best_setting(o, texts, sentences[:128], 1, iterable=True)
    workers = setting.pop("workers")
    with tempfile.TemporaryDirectory() as folder, peer(o, workers) as other:
        empty, full = pathlib.Path(folder, "empty.txt"), pathlib.Path(folder, "lines.txt")
        empty.write_text("")
        full.write_text("".join(" ".join(s) + "\n" for s in sentences))

        def command(file):
            begin = time.perf_counter()
            with open(pathlib.Path(folder, "out"), "w", encoding="utf-8") as out:
                subprocess.run(
                    [o.bin / "kvasir", "translate", "--model", o.hf, "--weights", "i8"]
                    + ["--source", "en", "--target", "fr", "--max-tokens", str(TOKENS)]
                    + ["--threads", str(o.threads), "--parallel", str(o.lines_parallel), file],
                    stdout=out,
                    check=True,
                )
            return time.perf_counter() - begin

        # Less the time of a start, which the other one made before.
        samples = in_turn(
            1,
            lambda number: command(full) - command(empty) if number else 0,
            lambda number: ask_peer(other, texts, sentences, 1, **setting) if number else 0,
        )
    return {
        "tokens": TOKENS * len(sentences),
        **samples,
        "setting": {"workers": workers, **setting},
        "tried": tried,
        **about(other, other),
    }


class Watch:
    """The most resident memory of a process inside a `with` block."""

    def __init__(self, pid):
        self.status, self.most, self.ends = pathlib.Path(f"/proc/{pid}/status"), 0, threading.Event()

    def __enter__(self):
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
        return self

    def run(self):
        while not self.ends.wait(0.02):
            kib = re.search(r"(?m)^VmRSS:\s+(\d+) kB$", self.status.read_text())
            self.most = max(self.most, int(kib[1]) * 1024)

    def __exit__(self, *_):
        self.ends.set()
        self.thread.join()


def memory(o, texts):
    sentences = many(texts)
    with kvasir(o) as own, Watch(own.process.pid) as own_watch:
        ask_kvasir(own, texts, sentences, BEAMS)
    with peer(o) as other, Watch(other.process.pid) as other_watch:
        ask_peer(other, texts, sentences, BEAMS)
    return {
        "resident": {"kvasir": own_watch.most, "ctranslate2": other_watch.most},
        "weights": {
            "kvasir": own.hello["plan"]["weights"],
            "ctranslate2": (o.ct2 / "model.bin").stat().st_size,
        },
        "plan": own.hello["plan"]["total"],
        **about(own, other),
    }


ROWS = {
    "greedy-1": lambda o, t: alone(o, t, 1),
    "beams-1": lambda o, t: alone(o, t, BEAMS),
    "beams-64": together,
    "encoder-16x60": encoder,
    "first-16x60": first,
    "lines-greedy": lines,
    "memory-64": memory,
}


def version():
    """The commit that is checked out; the bench programs do not say theirs."""
    return "kvasir " + engines.run(["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"]).strip()


def save(o, name, row):
    data = json.loads(o.out.read_text()) if o.out.exists() else {"rows": {}}
    config = json.loads((o.hf / "config.json").read_text())
    data["machine"] = {"cpu": compare.cpu_info("model name"), "threads": o.threads}
    data["model"] = {
        key: config[key]
        for key in ("d_model", "decoder_layers", "encoder_layers", "decoder_ffn_dim", "vocab_size")
    }
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    row["version"]["kvasir"] = version()
    data["rows"][name] = {**row, "when": now}
    o.out.parent.mkdir(parents=True, exist_ok=True)
    head = json.dumps({k: v for k, v in data.items() if k != "rows"}, indent=1)[:-2]
    rows = ",\n  ".join(f"{json.dumps(n)}: {json.dumps(r)}" for n, r in data["rows"].items())
    o.out.write_text(f'{head},\n "rows": {{\n  {rows}\n }}\n}}\n')
    print(translation_report.table(data))


def parse():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("hf", type=pathlib.Path)
    p.add_argument("ct2", type=pathlib.Path)
    p.add_argument("--bin", default=ROOT / "build/release", type=pathlib.Path)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--parallel", type=int, default=320)
    p.add_argument("--kv-memory", type=int, default=1 << 30)
    p.add_argument("--lines", type=int, default=1000)
    p.add_argument("--lines-parallel", type=int, default=64)
    p.add_argument("--batches", default="16:examples,64:examples,2048:tokens")
    p.add_argument("--rows", default="")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--out", type=pathlib.Path)
    p.add_argument("--serve", choices=("translator", "encoder"), help=argparse.SUPPRESS)
    p.add_argument("--workers", type=int, default=1, help=argparse.SUPPRESS)
    o = p.parse_args()
    o.limits = str(o.bin / "bench/limits")
    o.out = o.out or (
        compare.default_out(compare.cpu_info("model name")).parent
        / "translation"
        / compare.default_out(compare.cpu_info("model name")).name
    )
    return o


def main():
    o = parse()
    if o.serve:
        return serve(o)
    texts = Texts(o.hf)
    for name, measure in ROWS.items():
        if re.search(o.rows, name):
            save(o, name, measure(o, texts))


if __name__ == "__main__":
    main()
