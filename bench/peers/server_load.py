"""How fast a server decodes sequences that share a prefix, all together. Standard library only."""

import concurrent.futures
import http.client
import json
import random
import re
import subprocess
import threading
import time

OWN_TOKENS = 16
VOCAB = 256  # prompt ids are below this: bytes, in every tokenizer of make_model.py


def ask(address, prompt, answer_tokens, began=None):
    """Seconds (monotonic) at which each token of the answer arrived."""
    connection = http.client.HTTPConnection(*address, timeout=600)
    body = {
        "model": "default",
        "prompt": prompt,
        "max_tokens": answer_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    if began:
        began.wait()
    connection.request(
        "POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"}
    )
    response = connection.getresponse()
    if response.status != 200:
        raise RuntimeError(f"{response.status} {response.read(500)}")
    times = []
    for line in response:
        if line.startswith(b"data: ") and b"[DONE]" not in line:
            if json.loads(line[6:]).get("choices"):
                times.append(time.monotonic())
    connection.close()
    return times


def together(times, answer_tokens):
    """Tokens per second while all sequences were decoding. An event may carry several tokens; each
    answer has answer_tokens in all, and the last event says when they were there."""
    begin = max(t[0] for t in times)
    end = min(t[-1] for t in times)
    if end <= begin:
        raise RuntimeError("the sequences never ran together")
    tokens = sum(answer_tokens * sum(begin < x <= end for x in t) / len(t) for t in times)
    return tokens / (end - begin)


def decode_together(command, shared_tokens, sequences, answer_tokens, repeats=2):
    r = random.Random(20240917)
    prompt = [r.randrange(VOCAB) for _ in range(shared_tokens)]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        address = None
        for line in server.stderr:
            if found := re.search(r"listening on http://([\d.]+):(\d+)", line):
                address = (found[1], int(found[2]))
                break
        if not address:
            raise RuntimeError(f"{' '.join(command)}: ended before it listened")
        threading.Thread(target=server.stderr.read, daemon=True).start()
        ask(address, prompt, 1)
        speeds = []
        for _ in range(repeats):
            began = threading.Barrier(sequences)
            own = [[r.randrange(VOCAB) for _ in range(OWN_TOKENS)] for _ in range(sequences)]
            with concurrent.futures.ThreadPoolExecutor(sequences) as pool:
                times = list(
                    pool.map(lambda tail: ask(address, prompt + tail, answer_tokens, began), own)
                )
            speeds.append(together(times, answer_tokens))
        return {"tok_s": speeds}
    finally:
        server.terminate()
        server.wait(timeout=60)
