#!/usr/bin/env python3
"""What a session adds: `generate` beside the same /v1/chat/completions, for answers of one token to new
questions. Rounds alternate; each generate is on a fork of the conversation, so that no round makes it
longer. The forks are made first: the same calls come before both. A ratio is that of the medians. One JSON line per length of conversation.
Exit status 1 when the answers differ or a generate computes more (a missed target is only shown, because
machines differ).

usage: session_bench.py KVASIR [--rounds 600]
"""
import argparse
import http.client
import json
import re
import statistics
import subprocess
import time

TURNS = (1, 6)
TARGET = 1.02  # of the chat completion
SAMPLING = {"temperature": 0, "max_tokens": 1}


class Server:
    def __init__(self, kvasir, sessions):
        self.process = subprocess.Popen(
            [kvasir, "serve", "--port", "0", "--disk", "none", "--kv-memory", "128MiB", "--sessions", str(sessions),
             "--session-memory", "1GiB"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            found = re.search(r"listening on http://127\.0\.0\.1:(\d+)", line)
            if found:
                break
        self.connection = http.client.HTTPConnection("127.0.0.1", int(found[1]))

    def call(self, path, body):
        """(seconds, answer)"""
        data = json.dumps(body)
        begin = time.perf_counter()
        self.connection.request("POST", path, data)
        text = self.connection.getresponse().read()
        return time.perf_counter() - begin, json.loads(text)

    def stop(self):
        self.connection.close()
        self.process.terminate()
        for _ in self.process.stderr:  # its pipe must not fill up
            pass
        self.process.wait()


def measure(server, turns, rounds):
    """(seconds of chat completions, seconds of generates)"""
    history = [{"role": role, "content": f"My name is Mira and I live in Oslo. Turn {i}."}
               for i in range(turns) for role in ("user", "assistant")]
    session = server.call("/v1/sessions", {"messages": history, "sampling": SAMPLING})[1]["id"]
    forks = [server.call(f"/v1/sessions/{session}/fork", {})[1]["id"] for _ in range(rounds)]
    chats, generates = [], []
    for i, fork in enumerate(forks):
        # Questions of one length, each new to the cache.
        asked = [[{"role": "user", "content": f"Where do I live now? {way} {i:04}"}] for way in "ab"]
        calls = [("/v1/chat/completions", {"messages": history + asked[0], **SAMPLING}),
                 (f"/v1/sessions/{fork}/generate", {"messages": asked[1]})]
        if i % 2:
            calls.reverse()
        answers = [server.call(path, body) for path, body in calls]
        if i % 2:
            answers.reverse()
        (chat_s, chat), (generate_s, answer) = answers
        chats.append(chat_s)
        generates.append(generate_s)
        if answer["usage"]["prompt_tokens"] != chat["usage"]["prompt_tokens"]:
            raise SystemExit(f"prompts differ: {chat} {answer}")
        if answer["kvasir"]["computed"] > chat["kvasir"]["computed"]:
            raise SystemExit(f"a generate computes more: {chat} {answer}")
    return chats[rounds // 10:], generates[rounds // 10:]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kvasir")
    parser.add_argument("--rounds", type=int, default=600)
    args = parser.parse_args()
    server = Server(args.kvasir, (args.rounds + 1) * len(TURNS))
    try:
        for turns in TURNS:
            chat, generate = (statistics.median(s) * 1e3 for s in measure(server, turns, args.rounds))
            print(json.dumps({"bench": "session", "turns": turns, "rounds": args.rounds, "chat_ms": round(chat, 3),
                              "generate_ms": round(generate, 3), "ratio": round(generate / chat, 3),
                              "target": TARGET}))
    finally:
        server.stop()


if __name__ == "__main__":
    main()
