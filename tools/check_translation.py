#!/usr/bin/env python3
"""Random encoder-decoder models (M2M-100): what Kvasir computes for them against transformers.

    tools/check_translation.py --kvasir build/release/kvasir [--models 300] [--seed 1]
    tools/check_translation.py --write      makes tests/data/m2m100-random and nllb-tiny

Needs torch and transformers 5, which no test does. Sizes are odd where a size may be; the halves differ in layers, heads
and FFN; activations, stored types, names of the shared embedding, scale_embedding, the padding token and the start token
vary. transformers computes in float64 from the stored weights; a source is drawn again where a choice between two
tokens or hypotheses is so close that float32 may decide otherwise.
"""
import argparse
import copy
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import M2M100Config, M2M100ForConditionalGeneration

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
WRITTEN = ROOT / "tests/data/m2m100-random"
SHARED_NAMES = ["model.shared.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight",
                "lm_head.weight"]
STORED = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
MARGIN, SCORE_GAP = 0.01, 1e-4
EOS = 2


def random_config(rng, small):
    """A configuration that Kvasir takes: sinusoids need an even width, and heads an even size."""
    heads = [rng.randint(1, 4 if small else 7) for _ in range(2)]
    width = 2 * heads[0] * heads[1] * rng.randint(1, max(1, (8 if small else 40) // (heads[0] * heads[1])))
    width = max(width, 4 * heads[0] * heads[1]) if width < 4 else width
    layers = 2 if small else 5
    config = dict(
        architectures=["M2M100ForConditionalGeneration"], model_type="m2m_100", is_encoder_decoder=True,
        vocab_size=rng.randint(23, 60 if small else 400), d_model=width,
        encoder_layers=rng.randint(1, layers), decoder_layers=rng.randint(1, layers),
        encoder_attention_heads=heads[0], decoder_attention_heads=heads[1],
        encoder_ffn_dim=rng.randint(1, 40 if small else 170), decoder_ffn_dim=rng.randint(1, 40 if small else 170),
        activation_function=rng.choice(["relu", "gelu"]), scale_embedding=rng.random() < 0.5,
        max_position_embeddings=rng.randint(48, 90 if small else 330), pad_token_id=rng.choice([0, 1, 1, 1, 3, 7]),
        bos_token_id=0, eos_token_id=EOS, decoder_start_token_id=rng.choice([2, 2, 2, 0, 9]), tie_word_embeddings=True,
        dtype=rng.choice(list(STORED)))
    if config["decoder_start_token_id"] == config["pad_token_id"]:
        config["decoder_start_token_id"] = EOS
    names = rng.sample(SHARED_NAMES, rng.randint(1, 4))
    return config, names


def random_model(config, seed):
    """transformers' model in float64 with weights of the stored type."""
    torch.manual_seed(seed)
    model = M2M100ForConditionalGeneration(M2M100Config(**config, attn_implementation="eager")).eval().double()
    stored = STORED[config["dtype"]]
    with torch.no_grad():
        for name, p in model.named_parameters():  # the shared embedding comes once
            if name.startswith("model.shared"):
                p.copy_(torch.randn_like(p) * 3 / config["d_model"] ** 0.5)
            elif p.dim() == 2:
                p.copy_(torch.randn_like(p) * 1.3 / p.shape[1] ** 0.5)
            else:
                norm = "norm.weight" in name
                p.copy_(torch.randn_like(p) * 0.25 + (1 if norm else 0))
        # The end is likely enough for hypotheses to end at many lengths.
        bias, table = model.model.decoder.layer_norm.bias, model.model.shared.weight
        # No model makes padding likely, and transformers gives it another position than Kvasir.
        table[config["pad_token_id"]] -= bias * 20 / (bias @ bias)
        table[EOS] += bias * (5 + seed % 6) / (bias @ bias)
        for p in model.parameters():
            p.copy_(p.to(stored).double())
    return model


def save(folder, config, names, model):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    stored = STORED[config["dtype"]]
    tensors = {name: p.detach().to(stored).contiguous() for name, p in model.named_parameters()}
    embedding = tensors.pop("model.shared.weight")
    tensors |= {name: embedding.clone() for name in names}
    save_file(tensors, folder / "model.safetensors")


def clean(row, config):
    """A row of generate() without its padding, which follows the end."""
    end = next((i for i, token in enumerate(row) if i > 1 and token == EOS), len(row) - 1)
    return row[:end + 1]


def greedy(model, config, ids, target, count):
    """Ids as golden.json has them, margins of the free steps, and teacher-forced logits."""
    source = torch.tensor([ids])
    with torch.no_grad():
        out = model.generate(source, attention_mask=torch.ones_like(source), forced_bos_token_id=target,
                             max_new_tokens=count, do_sample=False, num_beams=1)
        tokens = clean(out[0].tolist(), config)
        run = model(input_ids=source, attention_mask=torch.ones_like(source),
                    decoder_input_ids=torch.tensor([tokens[:-1]]))
    logits = run.logits[0]
    top = logits.topk(2).values
    return tokens, (top[:, 0] - top[:, 1])[1:].tolist(), logits.numpy()


def search(model, config, ids, target, count, how):
    """All hypotheses, the best first: [(ids, score)]."""
    source = torch.tensor([ids])
    with torch.no_grad():
        out = model.generate(
            source, attention_mask=torch.ones_like(source), forced_bos_token_id=target, max_new_tokens=count,
            do_sample=False, num_beams=how["beams"], num_return_sequences=how["n"],
            length_penalty=how["length_penalty"], min_new_tokens=how["min_tokens"] or None,
            early_stopping={"true": True, "false": False, "never": "never"}[how["early_stopping"]],
            repetition_penalty=how["repetition_penalty"], return_dict_in_generate=True, output_scores=True)
    return [(clean(row, config), score) for row, score in
            zip(out.sequences.tolist(), out.sequences_scores.tolist())]


def noisy(model, seed):
    """The model with weights that are off by what float32 may cost."""
    other = copy.deepcopy(model)
    torch.manual_seed(seed)
    with torch.no_grad():
        for p in other.parameters():
            p.mul_(1 + 1e-6 * torch.randn_like(p))
    return other


def beams_of(model, others, config, rng, ids, target, count, kinds):
    """Searches whose hypotheses a little noise does not change, with what transformers finds."""
    found = []
    for _ in range(kinds * 8):
        beams = rng.randint(2, min(16, config["vocab_size"] // 2 - 1))
        how = {"beams": beams, "n": rng.randint(1, beams), "length_penalty": round(rng.uniform(0.5, 2), 3),
               "early_stopping": rng.choice(["true", "false", "never"]),
               "min_tokens": rng.choice([0, 0, min(5, count)]),
               "repetition_penalty": rng.choice([1.0, 1.0, round(rng.uniform(0.5, 2), 3)])}
        best = search(model, config, ids, target, count, how)
        again = [search(other, config, ids, target, count, how) for other in others]
        gaps = [a[1] - b[1] for a, b in zip(best, best[1:])]
        if (any([row[0] for row in one] != [row[0] for row in best] for one in again) or min(gaps, default=1) < SCORE_GAP
                or any(config["pad_token_id"] in row[0][1:] or row[1] < -1e6 for row in best)):
            continue
        found.append(how | {"hypotheses": [{"tokens": row, "score": round(score, 6)} for row, score in best]})
        if len(found) == kinds:
            break
    return found


def random_source(rng, config, longest):
    usable = [i for i in range(config["vocab_size"]) if i != config["pad_token_id"]]
    count = rng.choice([1, 2, rng.randint(3, longest), rng.randint(3, longest)])
    return [rng.choice(usable) for _ in range(count)], rng.choice([i for i in usable if i != EOS])


def sources_of(model, config, rng, small):
    """Two sources, their greedy answers, and logits by name."""
    sources, arrays = [], {}
    longest = min(24 if small else 300, config["max_position_embeddings"])
    for _ in range(60):
        ids, target = random_source(rng, config, longest)
        count = rng.randint(2, 12 if small else 24)
        tokens, margins, logits = greedy(model, config, ids, target, count)
        # Positions of padding tokens are not counted in transformers; no model writes them.
        if config["pad_token_id"] in tokens[1:] or (margins and min(margins) < MARGIN):
            continue
        arrays[f"s{len(sources)}.greedy_logits"] = logits
        sources.append({"ids": ids, "forced_bos_token_id": target, "max_new_tokens": count,
                        "greedy": {"ids": tokens, "margin": [round(m, 4) for m in margins]}})
        if len(sources) == 2:
            break
    return sources, arrays


def make(seed, small):
    """A configuration, the names of its embedding, the model, golden.json and golden.npz."""
    rng = random.Random(seed)
    config, names = random_config(rng, small)
    model = random_model(config, seed)
    sources, arrays = sources_of(model, config, rng, small)
    others = [noisy(model, seed + i) for i in range(2)]
    for source in sources:
        source["beams"] = beams_of(model, others, config, rng, source["ids"], source["forced_bos_token_id"],
                                   source["max_new_tokens"], 2)
    golden = {"arithmetic": "float64", "sources": sources}
    return config, names, model, golden, arrays


def write(count):
    total = 0
    for index in range(count):
        config, names, model, golden, arrays = make(7000 + index, small=True)
        folder = WRITTEN / f"{index:02}"
        assert golden["sources"], folder
        save(folder, config, names, model)
        (folder / "golden.json").write_text(json.dumps(golden) + "\n")
        np.savez_compressed(folder / "golden.npz", **{name: a.astype("<f4") for name, a in arrays.items()})
        total += sum(f.stat().st_size for f in folder.iterdir())
        print(folder, {k: config[k] for k in config if k not in ("architectures", "model_type", "is_encoder_decoder")}, names)
    print(f"{count} models, {total} bytes")


NLLB_TEXTS = ["Kvasir reads the source once.", "The cache is empty.", "A block has 16 tokens; the tail has fewer.",
              "Numbers: 12345, 67 and 8.9", "é à ü — … ½", "which model is it?", "no token is computed twice",
              "It keeps the keys of each tenant apart.", "x", "Memory has a cap, and every reuse is explained."]
NLLB_PAIRS = [("eng_Latn", "fra_Latn"), ("deu_Latn", "zho_Hans"), ("arb_Arab", "eng_Latn")]


def write_nllb():
    """A random NLLB with the tokenizer.json that transformers saves; golden.json has texts too. `plain`: of the
    folder with the SentencePiece model alone, whose languages have other numbers (tests/translation_oracle.py)."""
    import translation_oracle as oracle
    folder, plain = ROOT / "tests/data/nllb-tiny", ROOT / "tests/data/translation/nllb"
    tokenizer = oracle.saved_nllb(plain / "sentencepiece.bpe.model", folder, False)
    (folder / "special_tokens_map.json").unlink(missing_ok=True)
    vocab = json.loads((plain / "config.json").read_text())["vocab_size"]
    config = dict(
        architectures=["M2M100ForConditionalGeneration"], model_type="m2m_100", is_encoder_decoder=True,
        vocab_size=vocab, d_model=12, encoder_layers=2, decoder_layers=2, encoder_attention_heads=3,
        decoder_attention_heads=2, encoder_ffn_dim=23, decoder_ffn_dim=17, activation_function="relu",
        scale_embedding=True, max_position_embeddings=128, pad_token_id=1, bos_token_id=0, eos_token_id=EOS,
        decoder_start_token_id=2, tie_word_embeddings=True, dtype="float16")
    model = random_model(config, 13)
    save(folder, config, ["model.shared.weight"], model)
    _, pieces = oracle.pieces_of(plain / "sentencepiece.bpe.model")
    texts = {"sources": [], "plain": []}
    for source, target in NLLB_PAIRS:
        tokenizer.src_lang = source
        plain_ids, _ = oracle.spm_nllb_ids(plain, NLLB_TEXTS, source)
        for text, spm_ids in zip(NLLB_TEXTS, plain_ids):
            first = len(pieces) + 1 + oracle.FAIRSEQ_LANGUAGE_CODES.index(target)
            for kind, ids, forced in (("sources", tokenizer(text).input_ids, tokenizer.convert_tokens_to_ids(target)),
                                      ("plain", spm_ids, first)):
                tokens, margins, _ = greedy(model, config, ids, forced, 20)
                if min(margins, default=1) >= MARGIN and config["pad_token_id"] not in tokens:
                    texts[kind].append({"text": text, "source": source, "target": target, "ids": ids,
                                        "tokens": tokens})
    assert min(map(len, texts.values())) >= 10, {kind: len(cases) for kind, cases in texts.items()}
    (folder / "golden.json").write_text(json.dumps({"max_new_tokens": 20, **texts}) + "\n")
    print(folder, {kind: len(cases) for kind, cases in texts.items()}, [(f.name, f.stat().st_size) for f in folder.iterdir()])


def check(args):
    os.environ |= {"KVASIR_BINARY": str(args.kvasir.resolve()), "KVASIR_ROOT": str(ROOT),
                   "KVASIR_SHARED": str(ROOT.parent / "shared"), "KVASIR_TOOLS": ""}
    import golden_test
    worst, checked, failed = {}, 0, []
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory() as scratch:
        for index in range(args.models):
            seed = args.seed * 1_000_000 + index
            config, names, model, golden, arrays = make(seed, small=False)
            folder = Path(name) / str(seed)
            save(folder, config, names, model)
            (folder / "golden.json").write_text(json.dumps(golden))
            np.savez(folder / "golden.npz", **{n: a.astype("<f4") for n, a in arrays.items()})
            engine = golden_test.Engine(folder, scratch)
            try:
                checked += golden_test.check_translation(engine, folder)
            except AssertionError as error:
                failed.append(seed)
                print(f"seed {seed}: {config} {names}: {error}")
            for what, off in engine.worst.items():
                worst[what] = max(worst.get(what, 0.0), off)
        off = ", ".join(f"{what} off by {value:.1e}" for what, value in worst.items())
        print(f"{args.models} models, {checked} sources, {off}, failed {len(failed)} {failed}", flush=True)
        if not args.engine_test.exists():
            return 1 if failed else 0
        beams = subprocess.run([args.engine_test, "--gtest_filter=EngineTranslation.RandomModelsSayWhatTransformersSays"],
                               env=os.environ | {"KVASIR_TRANSLATION_GOLDENS": name})
        return 1 if failed else beams.returncode


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kvasir", type=Path, default=ROOT / "build/release/kvasir")
    parser.add_argument("--engine-test", type=Path, default=ROOT / "build/release/tests/engine_translation_test",
                        help="runs the beam searches, all at once")
    parser.add_argument("--models", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="12 small models for tests/data/m2m100-random")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.write:
        write(12)
        return write_nllb()
    return check(args)


if __name__ == "__main__":
    sys.exit(main())
