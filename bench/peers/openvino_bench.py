#!/usr/bin/env python3
"""Prefill and decode speed of OpenVINO GenAI on a model exported for it; not one of compare.py's
engines, because it has different formats. Prints one JSON line: all samples in tokens per second.

    openvino_bench.py MODEL_FOLDER --threads 2 --kv u8 --prompt 512 [--decode 32] [--repeats 3]

The environment and the export (5 GB on disk, 10 minutes):

    python3 -m venv ov && ov/bin/pip install openvino-genai 'optimum-intel[openvino]'
    ov/bin/optimum-cli export openvino -m MODEL --task text-generation-with-past \\
      --weight-format int8 MODEL_FOLDER

Prefill counts the time to the first token; decode the tokens after it, at a depth of --prompt.
"""

import argparse
import json
import random

import numpy
import openvino
import openvino_genai


def main():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("model")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--kv", choices=("f16", "u8", "f32"), default="u8", help="u8 is its default")
    p.add_argument("--prompt", type=int, default=512)
    p.add_argument("--decode", type=int, default=32)
    p.add_argument("--repeats", type=int, default=3)
    o = p.parse_args()
    pipeline = openvino_genai.LLMPipeline(
        o.model,
        "CPU",
        INFERENCE_NUM_THREADS=o.threads,
        ENABLE_CPU_PINNING=True,
        KV_CACHE_PRECISION=o.kv,
    )
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = o.decode + 1
    config.ignore_eos = True
    config.do_sample = False
    prefill, decode = [], []
    for repeat in range(o.repeats + 1):  # the first one warms up
        r = random.Random(repeat)  # another prompt each time: it has a prefix cache
        ids = numpy.array([[r.randrange(256) for _ in range(o.prompt)]], dtype=numpy.int64)
        inputs = openvino_genai.TokenizedInputs(
            openvino.Tensor(ids), openvino.Tensor(numpy.ones_like(ids))
        )
        metrics = pipeline.generate(inputs, config).perf_metrics
        if repeat > 0 or o.repeats == 0:
            prefill.append(round(o.prompt / metrics.get_ttft().mean * 1e3, 2))
            decode.append(round(1e3 / metrics.get_tpot().mean, 2))
    print(json.dumps({"prefill": prefill, "decode": decode, "prompt": o.prompt, "kv": o.kv}))


if __name__ == "__main__":
    main()
