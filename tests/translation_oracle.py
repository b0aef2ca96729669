#!/usr/bin/env python3
"""Compares the tokenizers of translation models with transformers' M2M100Tokenizer and NllbTokenizer.

    translation_oracle.py --tool build/tests/text_tool [--shared ../shared]
    translation_oracle.py --write-golden       (trains tests/data/translation anew; needs transformers)

Without transformers and sentencepiece only tests/data/translation is compared, whose ids were written by them: two
folders of one small SentencePiece model. With them, a model of 8,000 pieces (nmt_nfkc) is trained on ../shared's texts,
and the ids and texts of about 1 MB of lines in many scripts are compared: M2M-100's folder, NLLB's with a tokenizer.json
that transformers saved, and NLLB's with the SentencePiece model alone. Exits 1 where something differs.

transformers makes a tokenizer.json of a SentencePiece model, and `tokenizers` normalises by graphemes and keeps a space
at the end; it also gives <mask> an id before the languages, where the published models have it after them. Kvasir reads
the model alone as SentencePiece does and numbers as the published models do, so these ids are compared with
SentencePiece's.
"""

import argparse
import json
import pathlib
import random
import sys
import tempfile

import text_oracle

try:
    import sentencepiece
    from transformers import M2M100Tokenizer, NllbTokenizer
    from transformers.models.nllb.tokenization_nllb import FAIRSEQ_LANGUAGE_CODES
except ImportError:
    sentencepiece = None

ROOT = pathlib.Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests/data/translation"
SPECIALS = ["<s>", "<pad>", "</s>", "<unk>"]
MARKS = ("__", "</s>", "<s>", "<unk>", "<pad>", "<mask>", "_Latn")  # transformers reads tokens in texts; Kvasir never
# A few of nmt_nfkc's rules, so that the table is small: code points, what they become.
RULES = [("FF21", "41"), ("FF22", "42"), ("FB01", "66 69"), ("2026", "2E 2E 2E"), ("3000", "20"), ("00A0", "20"),
         ("0009", "20"), ("000A", "20"), ("2581", "20"), ("0065 0301", "E9"), ("0041 030A", "C5"), ("200B", "20"),
         ("0001", ""), ("00AD", ""), ("FEFF", ""), ("00BD", "31 2044 32"), ("2460", "31")]


def shared_lines(shared):
    lines = []
    for path in sorted((shared / "data/xquad").glob("*.json")):
        for entry in json.loads(path.read_text(encoding="utf-8"))["data"]:
            for paragraph in entry["paragraphs"]:
                lines.append(paragraph["context"])
                lines += [question["question"] for question in paragraph["qas"]]
    for path in sorted((shared / "data/prose").glob("*.txt")):
        lines += path.read_text(encoding="utf-8")[:150000].splitlines()
    for path in sorted((shared / "data/gguf-vocabs").glob("*.inp")):
        lines += path.read_text(encoding="utf-8", errors="replace").splitlines()
    return [line for line in lines if line.strip()]


def train(lines, folder, pieces, **options):
    (folder / "lines.txt").write_text("\n".join(lines), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "lines.txt"), model_prefix=str(folder / "spm"), model_type="bpe", vocab_size=pieces,
        minloglevel=2, num_threads=2, max_sentence_length=100000, **options)
    (folder / "lines.txt").unlink()
    (folder / "spm.vocab").unlink()
    return (folder / "spm.model").rename(folder / "sentencepiece.bpe.model")


def pieces_of(model):
    spm = sentencepiece.SentencePieceProcessor(model_file=str(model))
    return spm, [spm.id_to_piece(i) for i in range(spm.get_piece_size())]


def make_m2m(model, folder, left_out=0):
    """A folder as the Hub has M2M-100's. left_out: so many pieces have no id."""
    folder.mkdir(exist_ok=True)
    _, pieces = pieces_of(model)
    pieces = pieces[3:3 + 40] + pieces[3 + 40 + left_out:]
    vocab = {piece: i for i, piece in enumerate(SPECIALS + pieces)}
    (folder / "sentencepiece.bpe.model").write_bytes(model.read_bytes())
    (folder / "vocab.json").write_text(json.dumps(vocab))
    (folder / "tokenizer_config.json").write_text(json.dumps({"num_madeup_words": 5}))
    (folder / "config.json").write_text(json.dumps({"vocab_size": len(vocab) + 105}))
    return folder


def make_nllb(model, folder, legacy):
    folder.mkdir(exist_ok=True)
    _, pieces = pieces_of(model)
    (folder / "sentencepiece.bpe.model").write_bytes(model.read_bytes())
    (folder / "tokenizer_config.json").write_text(json.dumps({"legacy_behaviour": legacy}))
    (folder / "config.json").write_text(json.dumps({"vocab_size": len(pieces) + 1 + 202 + 1}))
    return folder


def m2m_ids(folder, texts, language):
    config = json.loads((folder / "config.json").read_text())
    oracle = M2M100Tokenizer(str(folder / "vocab.json"), str(folder / "sentencepiece.bpe.model"), src_lang=language,
                             num_madeup_words=5)
    assert oracle.get_lang_id("zu") + 5 == config["vocab_size"] - 1
    ids = [oracle(text).input_ids for text in texts]
    # transformers 5 does not know the languages as special tokens.
    return ids, [oracle.decode(one[1:], skip_special_tokens=True) for one in ids]


def spm_nllb_ids(folder, texts, language):
    """By SentencePiece; languages as transformers numbers them."""
    spm, pieces = pieces_of(folder / "sentencepiece.bpe.model")
    mark = len(pieces) + 1 + FAIRSEQ_LANGUAGE_CODES.index(language)
    legacy = json.loads((folder / "tokenizer_config.json").read_text())["legacy_behaviour"]
    ids = [[i + 1 if i else 3 for i in spm.encode(text)] for text in texts]
    decoded = [spm.decode([i - 1 if i != 3 else 0 for i in one]) for one in ids]
    return [one + [2, mark] if legacy else [mark] + one + [2] for one in ids], decoded


def saved_nllb(model, folder, legacy):
    """A folder with the tokenizer.json that transformers makes of the model, and its tokenizer."""
    with tempfile.TemporaryDirectory() as name:
        source = pathlib.Path(name)
        (source / "sentencepiece.bpe.model").write_bytes(model.read_bytes())
        (source / "config.json").write_text('{"model_type": "m2m_100"}')
        (source / "tokenizer_config.json").write_text('{"tokenizer_class": "NllbTokenizer"}')
        oracle = NllbTokenizer.from_pretrained(str(source), src_lang="deu_Latn", legacy_behaviour=legacy,
                                               extra_special_tokens=FAIRSEQ_LANGUAGE_CODES)
    oracle.save_pretrained(str(folder))
    return oracle


def compare(tool, name, folder, texts, language, expected, decoded):
    answers = text_oracle.ask(tool, [{"tokenizer": str(folder), "source": language, "text": text} for text in texts])
    differ = 0
    for text, ids, back, answer in zip(texts, expected, decoded, answers, strict=True):
        # What stands for an unknown token in SentencePiece's texts is not in ours.
        bad = answer.get("ids") != ids or answer["decoded"] != answer["streamed"]
        bad = bad or (back is not None and answer["decoded"].strip() != back.replace(" \u2047 ", "").strip())
        differ += bad
        if bad and differ <= 3:
            print(json.dumps({"text": text, "expected": ids, "decoded": back, "got": answer}), file=sys.stderr)
    print(f"{name}: {len(texts)} texts, {sum(len(t.encode()) for t in texts)} bytes, differ {differ}")
    return differ


def compare_golden(tool):
    differ = 0
    for name in ("m2m", "nllb"):
        cases = [json.loads(line) for line in (GOLDEN / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]
        texts, ids, decoded = ([case[key] for case in cases] for key in ("text", "ids", "decoded"))
        differ += compare(tool, f"tests/data/translation/{name}", GOLDEN / name, texts, cases[0]["language"], ids,
                          decoded)
    return differ


def random_texts(count, seed, prose):
    rng = random.Random(seed)
    texts = (text_oracle.make_text(rng, [], prose) for _ in range(count))
    return [text for text in texts if text_oracle.known(text) and "\0" not in text and
            not any(mark in text for mark in MARKS)]


def compare_transformers(tool, shared):
    lines = shared_lines(shared)
    prose = text_oracle.load_prose(shared)
    rng = random.Random(1)
    rng.shuffle(lines)
    texts, size = random_texts(1500, 2, prose), 0
    for line in lines:
        if size < 900000 and not any(mark in line for mark in MARKS):
            texts.append(line)
            size += len(line.encode())
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        model = train(lines[:8000], folder, 8000, character_coverage=0.999, normalization_rule_name="nmt_nfkc")
        m2m = make_m2m(model, folder / "m2m")
        differ = compare(tool, "M2M-100", m2m, texts, "de", *m2m_ids(m2m, texts, "de"))
        m2m = make_m2m(model, folder / "fewer", left_out=9)
        few = texts[:3000]
        differ += compare(tool, "M2M-100, 9 pieces without an id", m2m, few, "zh", *m2m_ids(m2m, few, "zh"))
        for legacy in (False, True):
            nllb = make_nllb(model, folder / f"nllb{legacy}", legacy)
            some = few if legacy else texts
            differ += compare(tool, f"NLLB, SentencePiece, legacy {legacy}", nllb, some, "deu_Latn",
                              *spm_nllb_ids(nllb, some, "deu_Latn"))
            saved = folder / f"saved{legacy}"
            oracle = saved_nllb(model, saved, legacy)
            ids = [oracle(text).input_ids for text in some]
            decoded = [None if 3 in one else oracle.decode(one, skip_special_tokens=True) for one in ids]
            differ += compare(tool, f"NLLB, tokenizer.json, legacy {legacy}", saved, some, "deu_Latn", ids, decoded)
    return differ


def write_golden():
    texts = random_texts(120, 3, [])
    lines = [line for path in sorted((ROOT / "docs").glob("*.md")) for line in path.read_text().splitlines() if line]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        rules = folder / "rules.tsv"
        rules.write_text("".join(f"{a}\t{b}\n" for a, b in RULES))
        letters = "".join(sorted({c for piece in text_oracle.PIECES for c in piece if c > "\x80"}))
        # One line for each, since what is rare would else be left out.
        model = train(lines + [letters] * 3, folder, 900, character_coverage=1.0,
                      normalization_rule_tsv=str(rules))
        make_m2m(model, GOLDEN / "m2m")
        make_nllb(model, GOLDEN / "nllb", False)
    for name, language, ids_of in (("m2m", "en", m2m_ids), ("nllb", "eng_Latn", spm_nllb_ids)):
        ids, decoded = ids_of(GOLDEN / name, texts, language)
        with open(GOLDEN / f"{name}.jsonl", "w", encoding="utf-8") as out:
            for text, one, back in zip(texts, ids, decoded):
                out.write(json.dumps({"language": language, "text": text, "ids": one, "decoded": back}) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tool", type=pathlib.Path)
    parser.add_argument("--shared", type=pathlib.Path)
    parser.add_argument("--write-golden", action="store_true")
    args = parser.parse_args()
    if args.write_golden:
        GOLDEN.mkdir(parents=True, exist_ok=True)
        return write_golden()
    differ = compare_golden(args.tool)
    if sentencepiece is None:
        print("no transformers or sentencepiece: only tests/data/translation was compared")
    elif args.shared and (args.shared / "data/xquad").is_dir():
        differ += compare_transformers(args.tool, args.shared)
    print(f"differ {differ}")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
