#!/usr/bin/env python3
"""Compares golden.* of tests/data/tiny-* with what transformers computes from the same folders in float64.

    tools/check_goldens.py [FOLDER...]

Needs torch and transformers, which no test does: run it when tools/model_reference.py or a spec has changed.
"""
import json
import sys
from pathlib import Path

import numpy as np
import torch
import transformers

ROOT = Path(__file__).resolve().parent.parent
TOLERANCE = 5e-5  # transformers computes norms, softmax and rotary angles in float32 whatever the weights are


def worst_difference(folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager",
                                                              experts_implementation="eager")
    model.generation_config.eos_token_id = None
    arrays, worst = np.load(folder / "golden.npz"), 0.0
    golden = json.loads((folder / "golden.json").read_text())
    for i, prompt in enumerate(golden["prompts"]):
        with torch.no_grad():
            run = model.eval()(input_ids=torch.tensor([prompt["ids"]]), use_cache=True)
        logits = run.logits[0].numpy()
        want = prompt["greedy"]["ids"]
        prompt_ids = torch.tensor([prompt["ids"]])
        answer = model.generate(prompt_ids, attention_mask=torch.ones_like(prompt_ids), max_new_tokens=len(want), do_sample=False)
        got = answer[0, len(prompt["ids"]):].tolist()
        assert got == want, f"{folder.name}: prompt {i}: transformers' greedy ids are {got}, the golden's {want}"
        worst = max(worst, abs(logits[-1] - arrays[f"p{i}.last"]).max())
        if f"p{i}.all" in arrays:
            worst = max(worst, abs(logits - arrays[f"p{i}.all"]).max())
        if golden["kv"]["prompt"] == f"p{i}":
            for layer in golden["kv"]["layers"]:
                cached = run.past_key_values.layers[layer]
                for kind, x in (("k", cached.keys), ("v", cached.values)):
                    x = x[0].numpy()  # a layer with a window keeps only what the next token sees
                    worst = max(worst, abs(x - arrays[f"kv.layer{layer}.{kind}"][:, -x.shape[1]:]).max())
    return worst


failed = []
for folder in map(Path, sys.argv[1:] or sorted((ROOT / "tests/data").glob("tiny-*"))):
    difference = worst_difference(folder)
    print(f"{folder.name}: largest difference {difference:.1e}")
    if not difference < TOLERANCE:
        failed.append(folder.name)
sys.exit(f"off by more than {TOLERANCE}: {', '.join(failed)}" if failed else 0)
