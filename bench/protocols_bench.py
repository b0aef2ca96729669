#!/usr/bin/env python3
"""What agents' protocols cost beside a chat completion, and what one changing line costs a turn.

usage: protocols_bench.py [KVASIR] [--gguf M] [--llama-server PROGRAM] [--rounds 5]
                          [--only agents,streams,counts,embeddings] [--json]

`agents`: a generated head of 24 tools and a long system text (80 KB), as coding agents send it, whose first
system block differs with each session. Two sessions speak /v1/messages, where that block is the gateway's,
and two put it into a chat completion; then ten turns with a late system message and a mark that wanders.
`streams`: 8 streams at once of each protocol, rounds in turn with /v1/chat/completions. `counts`:
/v1/messages/count_tokens of 100 KB whose pieces are known. `embeddings`: 256 texts of 64 tokens after 64
shared ones (needs --gguf M), beside llama.cpp's server, if given. Figures are medians. Exit status 1 when a
receipt is not what it must be; a missed target is shown, not an error.
"""
import argparse
import concurrent.futures
import http.client
import json
import os
import pathlib
import random
import shutil
import statistics
import tempfile
import time

from llama_server import LlamaServer
from serve_bench import ROOT, Server, check, show

WORDS = ("read write file path line text search match edit list task shell command output folder change branch commit "
         "test build error result name value number string object array option default").split()
CONTEXT = 65536  # tokens: the bundled model has a vocabulary of 1,024, so that 80 KB are many
BLOCK = 16
QUESTION = "Where is the brass key?"
OPENING = ("message_start", "ping", "response.created", "response.in_progress")  # before a token


def sentence(draw, words):
    return " ".join(draw.choice(WORDS) for _ in range(words))


def call(server, path, body):
    """(seconds to the first piece of text, seconds, what all objects of the answer have, the last counting)"""
    connection = http.client.HTTPConnection(*server.address, timeout=900)
    begin = time.perf_counter()
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    pieces = []  # read while the clock runs, understood afterwards
    while piece := response.read1(1 << 16):
        pieces.append((time.perf_counter() - begin, piece))
    seconds = time.perf_counter() - begin
    first_s, last, rest = None, {}, b""
    for at, piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        lines += [rest] if piece is pieces[-1][1] else []
        for line in lines:
            line = line.removeprefix(b"data: ").strip()
            if line.startswith(b"{"):
                event = json.loads(line)
                first_s = first_s or (at if event.get("type") not in OPENING else None)
                last |= event | event.get("response", {})
    connection.close()
    check(response.status == 200, f"{path}: {response.status} {last}")
    return first_s, seconds, last


class Agent:
    """A coding agent with 80 KB of tools and system text; the first line of its system text is a session's."""

    def __init__(self, server):
        self.server, draw = server, random.Random(1)
        self.tools = [{"name": f"Tool{i}", "description": sentence(draw, 240), "input_schema": {
            "type": "object", "properties": {f"{draw.choice(WORDS)}_{k}": {"type": "string",
                                                                        "description": sentence(draw, 24)}
                                             for k in range(6)}}} for i in range(24)]
        self.system = ". ".join(sentence(draw, 12) for _ in range(190))

    @staticmethod
    def line(session):
        return f"x-anthropic-billing-header: cc_version=2.1.197.{session:03x};"

    def messages(self, session, turns):
        system = [{"type": "text", "text": self.line(session)},
                  {"type": "text", "text": self.system, "cache_control": {"type": "ephemeral"}}]
        return call(self.server, "/v1/messages",
                    {"model": "default", "max_tokens": 4, "temperature": 0, "stream": True, "tools": self.tools,
                     "system": system, "messages": turns})

    def chat(self, session):
        functions = [{"type": "function", "function": {"name": tool["name"], "description": tool["description"],
                                                       "parameters": tool["input_schema"]}} for tool in self.tools]
        return call(self.server, "/v1/chat/completions",
                    {"max_tokens": 4, "temperature": 0, "stream": True, "stream_options": {"include_usage": True},
                     "tools": functions, "messages": [
                         {"role": "system", "content": self.line(session) + "\n" + self.system},
                         {"role": "user", "content": QUESTION}]})


def user(text, **fields):
    return {"role": "user", "content": [{"type": "text", "text": text, **fields}]}


def long_model(home):
    """The bundled model with positions for 80 KB, and a template that shows tools after the first message."""
    model = shutil.copytree(ROOT / "models/kvasir-demo", pathlib.Path(home) / "model")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": CONTEXT}))
    path = model / "tokenizer_config.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["chat_template"] = tokenizer["chat_template"].replace(
        "+ message['content'] +", "+ message['content'] + ((tools | tojson) if tools and loop.first else '') +")
    path.write_text(json.dumps(tokenizer))
    return str(model)


def agents(kvasir):
    with tempfile.TemporaryDirectory() as home, Server(kvasir, "--model", long_model(home)) as server:
        agent = Agent(server)
        turns = [user(QUESTION)]
        agent.messages(0x1ad, turns)
        first_s, _, last = agent.messages(0x2be, turns)
        second = last["kvasir"]["computed"]
        agent.chat(0x1ad)
        chat_s, _, last = agent.chat(0x2be)
        chat = last["kvasir"]
        check(chat.get("volatile"), f"the line that costs the turn is not named: {chat}")
        draw, over, before = random.Random(2), [], None
        for turn in range(10):
            turns = [dict(t, content=[{k: v for k, v in part.items() if k != "cache_control"}
                                      for part in t["content"]]) if t["role"] == "user" else t for t in turns]
            turns += [{"role": "assistant", "content": sentence(draw, 30)}, user(sentence(draw, 40))]
            if turn == 2:
                turns.append({"role": "system", "content": "Answer in short sentences."})
            turns[-1 if turn != 2 else -2]["content"][0]["cache_control"] = {"type": "ephemeral"}
            receipt = agent.messages(0x300 + turn, turns)[2]["kvasir"]
            if before:
                over.append(receipt["computed"] - (receipt["prompt_tokens"] - before))
            before = receipt["prompt_tokens"]
    return [("second_session", second, second <= 2 * BLOCK, f"<= {2 * BLOCK}",
             f"computed of {chat['prompt_tokens']} tokens by a second session, /v1/messages"),
            ("second_chat", chat["computed"], None, "", "computed where the line is in a chat completion"),
            ("first_token_ratio", chat_s / first_s, chat_s >= 50 * first_s, ">= 50",
             f"first token: chat completion {chat_s:.1f} s / messages {first_s * 1e3:.0f} ms"),
            ("turn_over", max(over), max(over) <= BLOCK, f"<= {BLOCK}",
             "computed tokens of a turn beyond its new text, the most of ten turns")]


def asks(path, question, tokens):
    """The body of a stream of at most `tokens` tokens."""
    turns = [{"role": "user", "content": question}]
    if path == "/v1/messages":
        return {"model": "default", "messages": turns, "max_tokens": tokens, "temperature": 0, "stream": True}
    if path == "/v1/responses":
        return {"input": question, "max_output_tokens": tokens, "temperature": 0, "stream": True, "store": False}
    if path == "/api/chat":
        return {"model": "default", "messages": turns, "options": {"num_predict": tokens, "temperature": 0}}
    return {"messages": turns, "max_tokens": tokens, "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True}}


def generated(last):
    """Tokens of an answer."""
    usage = last.get("usage") or {}
    return usage.get("completion_tokens") or usage.get("output_tokens") or last["eval_count"]


def long_questions(server, count, tokens):
    """Questions whose answers have `tokens` tokens: the bundled model ends most of its answers after six."""
    draw, found = random.Random(4), []
    for _ in range(400):
        question = sentence(draw, 40)
        body = asks("/v1/chat/completions", question, tokens)
        if generated(call(server, "/v1/chat/completions", body)[2]) == tokens:
            found.append(question)
        if len(found) == count:
            return found
    raise SystemExit(f"protocols_bench: only {len(found)} of 400 questions have answers of {tokens} tokens")


def streams(kvasir, gguf, rounds, tokens=160):
    """Tokens a second of 8 streams, and the server's CPU for each, which other programs do not change."""
    paths = ("/v1/chat/completions", "/v1/messages", "/v1/responses", "/api/chat")
    speeds, cpu = {path: [] for path in paths}, {path: [] for path in paths}
    model = ("--model", gguf) if gguf else ()
    with Server(kvasir, *model, "--parallel", "8") as server, concurrent.futures.ThreadPoolExecutor(8) as pool:
        clock = (~server.process.pid << 3) | 2  # the CPU time of a process, as clock_getcpuclockid(3) makes it
        questions = long_questions(server, 8, tokens)
        for i in range(4 * rounds + 1):
            for path in paths[i % 4:] + paths[:i % 4]:
                bodies = [asks(path, question, tokens) for question in questions]
                begin, cpu_begin = time.perf_counter(), time.clock_gettime(clock)
                ends = list(pool.map(lambda body: call(server, path, body)[2], bodies))
                seconds = time.perf_counter() - begin
                counted = [generated(end) for end in ends]
                check(counted == [tokens] * 8, f"{path}: the answers have {counted} tokens")
                if i:  # the first round computes the prompts
                    speeds[path].append(8 * tokens / seconds)
                    cpu[path].append((time.clock_gettime(clock) - cpu_begin) / 8 / tokens * 1e6)
    chat_speed, chat_cpu = (statistics.median(of[paths[0]]) for of in (speeds, cpu))
    rows = []
    for path in paths[1:]:
        name = path.strip("/").replace("/", "_")
        ratio = statistics.median(a / b for a, b in zip(speeds[path], speeds[paths[0]]))
        rows.append((name, ratio, ratio >= 0.97, ">= 0.97",
                     f"tokens/s of 8 streams / of chat completions ({chat_speed:.0f})"))
        ratio = statistics.median(a / b for a, b in zip(cpu[paths[0]], cpu[path]))
        rows.append((name + "_cpu", ratio, None, "",
                     f"server's CPU for a token of chat completions ({chat_cpu:.1f} us) / for one of these"))
    return rows


def counts(kvasir, rounds):
    draw, times = random.Random(3), []
    turns = [user(sentence(draw, 150)) if i % 2 == 0 else {"role": "assistant", "content": sentence(draw, 150)}
             for i in range(113)]
    body = {"model": "default", "messages": turns}
    with Server(kvasir) as server:
        for _ in range(rounds * 4 + 2):
            times.append(call(server, "/v1/messages/count_tokens", body)[1])
    ms = statistics.median(times[2:]) * 1e3
    return [("count_tokens_ms", ms, ms <= 5, "<= 5", f"ms for {len(json.dumps(body)) / 1e3:.0f} KB, pieces known")]


def embeddings(kvasir, gguf, peer, rounds):
    draw, times, rows = random.Random(4), {"kvasir": [], "peer": []}, []

    def texts():
        shared = [draw.randrange(1000, 20000) for _ in range(64)]
        return [shared + [draw.randrange(1000, 20000) for _ in range(64)] for _ in range(256)]

    def measure(server, name, ids):
        _, seconds, answer = call(server, "/v1/embeddings", {"model": "default", "input": ids})
        check(len(answer["data"]) == len(ids), f"{name}: {len(answer['data'])} embeddings")
        times[name].append(seconds)
        return answer

    with Server(kvasir, "--model", gguf, "--pooling", "last", "--threads", "2") as server:
        for _ in range(rounds):
            ids = texts()
            computed = measure(server, "kvasir", ids)["kvasir"]["computed"]
            if peer:
                with LlamaServer(peer, gguf, flags=("--embeddings", "--pooling", "last", "-b", "2048")) as other:
                    call(other, "/v1/embeddings", {"input": texts()[:8]})  # warms it up
                    measure(other, "peer", ids)
    rows.append(("embeddings_computed", computed, computed <= 64 + 256 * 65, f"<= {64 + 256 * 65}",
                 "tokens computed of 256 texts of 128"))
    if peer:
        peer_s, own_s = statistics.median(times["peer"]), statistics.median(times["kvasir"])
        rows.append(("embeddings_ratio", peer_s / own_s, peer_s >= own_s, ">= 1",
                     f"llama-server {peer_s:.2f} s / kvasir {own_s:.2f} s"))
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kvasir", nargs="?", default=os.environ.get("KVASIR_BINARY", ROOT / "build/release/kvasir"))
    parser.add_argument("--gguf", help="a GGUF file of a decoder, for embeddings")
    parser.add_argument("--llama-server", help="llama.cpp's server, beside which embeddings are measured")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="agents,streams,counts,embeddings")
    parser.add_argument("--json", action="store_true", help="one object instead of lines")
    arguments = parser.parse_args()
    only, rows = arguments.only.split(","), []
    if "agents" in only:
        rows += agents(arguments.kvasir)
    if "streams" in only:
        rows += streams(arguments.kvasir, arguments.gguf, arguments.rounds)
    if "counts" in only:
        rows += counts(arguments.kvasir, arguments.rounds)
    if "embeddings" in only and arguments.gguf:
        rows += embeddings(arguments.kvasir, arguments.gguf, arguments.llama_server, arguments.rounds)
    show(rows, arguments.json)


if __name__ == "__main__":
    main()
