#!/usr/bin/env python3
"""Writes tests/data/beam_search.json: what transformers' beam search finds on random problems.

    make_beam_goldens.py [--out tests/data/beam_search.json]     (needs torch and transformers 5)

The logits are a hash of the last token and the length (src/sampling/beam_search_test.cc has it too), so that no weights are
kept. A problem is left out where transformers kept a beam of -1e9, because too few tokens were allowed, and where a
little noise changes what is found: there rounding decides.
"""

import argparse
import json
import pathlib
import random

import torch
from transformers import GenerationConfig, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

ROOT = pathlib.Path(__file__).resolve().parent.parent
MASK = 0xffffffff


def logits_of(problem, length, last):
    x = (problem["seed"] + 977 * length + 7919 * last + 104729 * torch.arange(problem["vocab"])) & MASK
    for _ in range(2):
        x = ((x ^ (x >> 16)) * 0x45d9f3b) & MASK
    x ^= x >> 16
    logits = (x & 0xffff).float() * problem["scale"] / 65536
    logits[2] += problem["end_bias"]
    return logits + problem.get("noise", 0) * torch.rand(problem["vocab"])


class Scripted(PreTrainedModel, GenerationMixin):
    config_class = PretrainedConfig

    def __init__(self, problem):
        super().__init__(PretrainedConfig(vocab_size=problem["vocab"], num_hidden_layers=1))
        self.problem = problem
        self.unused = torch.nn.Parameter(torch.zeros(1))

    def forward(self, input_ids, **_):
        rows = [logits_of(self.problem, len(ids), int(ids[-1])) for ids in input_ids]
        return CausalLMOutput(logits=torch.stack(rows)[:, None, :])

    def prepare_inputs_for_generation(self, input_ids, **_):
        return {"input_ids": input_ids}


def solve(problem):
    stopping = {"false": False, "true": True, "never": "never"}[problem["early_stopping"]]
    config = GenerationConfig(
        num_beams=problem["beams"], num_return_sequences=problem["beams"], do_sample=False, use_cache=False,
        length_penalty=problem["length_penalty"], early_stopping=stopping, max_new_tokens=problem["max_tokens"],
        min_new_tokens=problem["min_tokens"] or None, no_repeat_ngram_size=problem["no_repeat_ngram_size"],
        repetition_penalty=problem["repetition_penalty"], forced_bos_token_id=problem["forced"], bos_token_id=0,
        eos_token_id=2, pad_token_id=1, return_dict_in_generate=True, output_scores=True)
    out = Scripted(problem).generate(torch.tensor([[2]]), generation_config=config)
    found = []
    for ids, score in zip(out.sequences.tolist(), out.sequences_scores.tolist()):
        end = ids.index(2, 1) + 1 if 2 in ids[1:] else len(ids)
        found.append({"ids": ids[:end], "score": round(score, 7)})
    return found


def is_clear(problem):
    """Whether the same is found with a little noise, and without beams of -1e9."""
    found = [one["ids"] for one in problem["hypotheses"]]
    noisy = (solve(problem | {"noise": 1e-4}) for _ in range(4))
    return min(one["score"] for one in problem["hypotheses"]) > -1e6 and all(
        [one["ids"] for one in other] == found for other in noisy)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "tests/data/beam_search.json")
    args = parser.parse_args()
    rng = random.Random(1)
    problems = []
    while len(problems) < 200:
        most = rng.randrange(2, 14)
        problem = {
            "seed": rng.randrange(1 << 31), "vocab": rng.choice([40, 150, 400]), "scale": rng.randrange(2, 12),
            "end_bias": rng.randrange(8),
            "beams": rng.choice([2, 3, 4, 5, 5, 8, 16]), "length_penalty": rng.choice([0.5, 1.0, 1.0, 1.5, 2.0, 0.0, -0.5]),
            "early_stopping": rng.choice(["false", "true", "never"]), "max_tokens": most,
            "min_tokens": rng.choice([0, 0, rng.randrange(most)]), "no_repeat_ngram_size": rng.choice([0, 0, 1, 2, 3]),
            "repetition_penalty": rng.choice([1.0, 1.0, 0.75, 1.5]), "forced": rng.choice([None, rng.randrange(3, 40)])}
        problem["hypotheses"] = solve(problem)
        if is_clear(problem):
            problems.append(problem)
    args.out.write_text("[\n" + ",\n".join(json.dumps(problem) for problem in problems) + "\n]\n")
    ended = sum(one["ids"][-1] == 2 for problem in problems for one in problem["hypotheses"])
    print(f"{len(problems)} problems, {sum(len(p['hypotheses']) for p in problems)} hypotheses, {ended} ended")


if __name__ == "__main__":
    main()
