#!/usr/bin/env python3
"""The distributions that /completion draws from are those of a llama-server beside it, for each list of samplers.

    KVASIR_LLAMA_SERVER=PATH KVASIR_BINARY=build/release/kvasir llama_server_oracle.py [MODEL.gguf]

Skipped (77) without a llama-server. Both serve the same GGUF file; what is compared are the tokens that may be drawn
first after random ids, and their probabilities (`post_sampling_probs`).
"""
import http.client
import json
import os
import pathlib
import random
import subprocess
import sys
import time

LLAMA_SERVER = os.environ.get("KVASIR_LLAMA_SERVER", "")
SHARED = pathlib.Path(os.environ.get("KVASIR_SHARED", pathlib.Path(__file__).resolve().parent.parent.parent / "shared"))
MODEL = sys.argv.pop(1) if len(sys.argv) > 1 else str(SHARED / "goldens/qwen2/model-f16.gguf")
if not os.path.exists(LLAMA_SERVER) or not os.path.exists(MODEL):
    print("skipped: needs KVASIR_LLAMA_SERVER, the path of a llama-server, and a GGUF file")
    sys.exit(77)

from server_harness import WAIT_S, Server, listening_port  # noqa: E402: it reads the arguments

PROMPTS, NEAR = 12, 0.02
CASES = {
    "defaults": {},
    "a high temperature": {"temperature": 2, "top_k": 10, "top_p": 0.8, "min_p": 0.02},
    "a low temperature": {"temperature": 0.3, "top_k": 15, "top_p": 0.9, "min_p": 0.1},
    "no top_k": {"temperature": 1.7, "top_k": 0, "top_p": 0.5, "min_p": 0},
    "temperature first": {"samplers": ["temperature", "top_k", "top_p"], "temperature": 1.4, "top_k": 12, "top_p": 0.7},
    "llama.vim's chat": {"samplers": ["min_p", "temperature"], "min_p": 0.1, "temperature": 1.4},
    "llama.vim": {"samplers": ["top_k", "top_p", "infill"], "top_k": 40, "top_p": 0.9},
    "infill, then temperature": {"samplers": ["top_k", "top_p", "infill", "temperature"], "top_k": 40, "top_p": 0.99,
                                 "temperature": 0.5},
    "penalties": {"repeat_penalty": 1.3, "presence_penalty": 0.5, "temperature": 1.2, "top_k": 10}}


def ask(port, method, path, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
    response = connection.getresponse()
    answer = json.loads(response.read())
    connection.close()
    return response.status, answer


def probabilities(port, body):
    """By id; None where llama-server says none: the token is not a whole character."""
    status, answer = ask(port, "POST", "/completion", body)
    assert status == 200, (body, answer)
    found = answer.get("completion_probabilities")
    return {one["id"]: one["prob"] for one in found[0]["top_probs"] if one["prob"] > 0} if found else None


def main():
    wrong, compared = 0, 0
    process = subprocess.Popen([LLAMA_SERVER, "-m", MODEL, "--port", "0", "-c", "256", "-t", "1", "-ctk", "f32",
                                "-ctv", "f32", "-fa", "off"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with Server("--model", MODEL, "--kv-format", "f32") as server:
            for _ in range(10 * WAIT_S):
                port = listening_port(process.pid)
                try:
                    if port and ask(port, "GET", "/health")[0] == 200:
                        break
                except OSError:
                    pass
                time.sleep(0.1)
            choice = random.Random(4)
            prompts = [[choice.randrange(5, 500) for _ in range(12)] for _ in range(PROMPTS)]
            for name, fields in CASES.items():
                worst = 0
                for prompt in prompts:
                    body = {"prompt": prompt, "n_predict": 1, "n_probs": 20, "post_sampling_probs": True, "seed": 1,
                            **fields}
                    theirs, ours = probabilities(port, body), probabilities(server.port, body)
                    if not theirs or not ours:
                        continue
                    compared += 1
                    worst = max([worst, *(abs(theirs.get(id, 0) - ours.get(id, 0)) for id in {*theirs, *ours})])
                wrong += worst > NEAR
                print(f"{name}: probabilities differ by at most {worst:.4f}")
    finally:
        process.terminate()
        process.wait(WAIT_S)
    assert compared > len(CASES) * PROMPTS // 2, compared
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
