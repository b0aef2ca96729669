#!/usr/bin/env python3
"""Concurrent clients change their own sessions and shared ones, on a pool that holds one of them.

    server_sessions_load_test.py [KVASIR_BINARY]

10,000 operations, or KVASIR_OPERATIONS of them (for a slow build). Afterwards no block is pinned, deleted
sessions have given back their memory, and what each client's session says is what the client made of it.
"""

import collections
import concurrent.futures
import os
import random
import sys
import time
import unittest

from server_harness import Server, post_bytes, user

OPERATIONS = int(os.environ.get("KVASIR_OPERATIONS", 10_000))
CLIENTS = 8
FLAGS = ("--kv-memory", "1MiB", "--ctx-size", "512", "--sessions", "64")
GREEDY = {"temperature": 0, "max_tokens": 4}
SHARED_STATUSES = (200, 201, 400, 404, 429)  # others change a shared session meanwhile


class Client:
    """Its own session, what that should say, and calls on shared ones."""

    def __init__(self, server, shared, seed):
        self.server, self.shared = server, shared
        self.random = random.Random(seed)
        self.counts = collections.Counter()
        self.twins = []  # (ids, text) of greedy answers
        self.begin(f"I am client {seed}. My name is Mira. " * self.random.randint(1, 6))

    def call(self, method, path, body=None, statuses=(200, 201)):
        status, _, answer = self.server.request(method, path, body)
        assert status in statuses, (method, path, body, status, answer)
        return answer

    def begin(self, text):
        made = self.call("POST", "/v1/sessions", {"sampling": GREEDY, "system": "You are brief.",
                                                  "max_context": 400, "on_full": "drop_oldest_turns",
                                                  "messages": user(text)})
        self.path = "/v1/sessions/" + made["id"]
        self.said = ["You are brief.", text]

    def step(self, number):
        names = ["append", "edit", "truncate", "generate", "generate", "forget", "part", "fork", "system",
                 "hang_up", "share", "share", "show", "delete"]
        name = self.random.choice(names)
        self.counts[name] += 1
        getattr(self, name)(number)
        if number % 10 == 0:
            self.check()

    def check(self):
        shown = self.call("GET", self.path)
        assert [m["content"] for m in shown["messages"]] == self.said, (shown, self.said)

    def show(self, _):
        self.check()

    def append(self, number):
        self.call("POST", self.path + "/messages", {"messages": user(f"a{number}")})
        self.said.append(f"a{number}")

    def edit(self, number):
        at, keeps = self.random.randrange(len(self.said)), self.random.random() < 0.7
        self.call("PUT", f"{self.path}/messages/{at}", {"content": f"e{number}", "keep_later": keeps})
        self.said = self.said[:at] + [f"e{number}"] + (self.said[at + 1:] if keeps else [])

    def truncate(self, _):
        count = self.random.randint(min(2, len(self.said)), len(self.said))
        self.call("POST", self.path + "/truncate", {"messages": count})
        self.said = self.said[:count]

    def generate(self, number):
        self.call("POST", self.path + "/messages", {"messages": user(f"What is my name, {number}?")})
        self.said.append(f"What is my name, {number}?")
        ids = self.call("GET", self.path + "?ids=true")["ids"]
        sampled = self.random.random() < 0.3
        answer = self.call("POST", self.path + "/generate", {"temperature": 1, "seed": number} if sampled else {})
        text = answer["choices"][0]["message"]["content"]
        self.said.append(text)
        assert answer["kvasir"]["prompt_tokens"] == len(ids)
        if not sampled and self.random.random() < 0.25:
            self.twins.append((ids, text))

    def forget(self, _):
        at = self.random.randrange(len(self.said))
        self.call("POST", self.path + "/forget", {"index": at})
        del self.said[at]
        if not self.said:
            self.call("POST", self.path + "/messages", {"messages": user("again")})
            self.said.append("again")

    def part(self, _):
        at = self.random.randrange(len(self.said))
        text = self.said[at]
        if not text:
            return
        begin = self.random.randrange(len(text))
        end = self.random.randint(begin + 1, len(text))
        self.call("POST", self.path + "/forget", {"index": at, "begin": begin, "end": end})
        self.said[at] = text[:begin] + text[end:]

    def fork(self, _):
        """Two forks answer in turn; the pool holds one of them."""
        made = self.call("POST", self.path + "/fork", {}, (201, 429))
        if "error" in made:  # the store is full
            return
        other = "/v1/sessions/" + made["id"]
        answers = [self.call("POST", path + "/generate", {"messages": user("What is my name?")})
                   for path in (self.path, other)]
        texts = [a["choices"][0]["message"]["content"] for a in answers]
        assert texts[0] == texts[1], texts
        self.said += ["What is my name?", texts[0]]
        self.call("DELETE", other)

    def system(self, number):
        had = self.call("GET", self.path)["messages"]
        self.call("PUT", self.path + "/system", {"content": f"s{number}"})
        is_there = bool(had) and had[0]["role"] == "system"
        self.said = [f"s{number}"] + self.said[1 if is_there else 0:]

    def hang_up(self, number):
        """The client leaves while the call waits, computes or streams: the session is as it was."""
        stream = self.random.random() < 0.7
        with self.server.open() as s:
            s.sendall(post_bytes(self.path + "/generate", {
                "messages": user(f"h{number}"), "stream": stream, "max_tokens": 200, "ignore_eos": True}))
            if stream and self.random.random() < 0.5:
                s.recv(self.random.choice([1, 400]))
            elif self.random.random() < 0.5:
                time.sleep(self.random.random() * 0.01)
        # The next call waits for its turn. The answer may have been complete before the client left.
        shown = self.call("POST", self.path + "/truncate", {"messages": len(self.said)})
        assert shown["messages"] == len(self.said)

    def shared_call(self, path):
        kind = self.random.randrange(6)
        if kind == 0:
            return "POST", path + "/generate", {"messages": user("What is my name?")}
        if kind == 1:
            return "POST", path + "/forget", {"index": 2}
        if kind == 2:
            return "POST", path + "/truncate", {"messages": 2}
        if kind == 3:
            return "PUT", path + "/messages/1", {"content": "My name is Ada.", "keep_later": True}
        if kind == 4:
            return "GET", path + "?ids=true", None
        return "POST", path + "/messages", {"messages": user("And you?")}

    def share(self, _):
        self.call(*self.shared_call(self.random.choice(self.shared)), statuses=SHARED_STATUSES)

    def delete(self, number):
        self.call("DELETE", self.path)
        self.call("GET", self.path, statuses=(404,))
        self.begin(f"Now I am {number}.")


class LoadTest(unittest.TestCase):
    def test_concurrent_clients_leave_nothing_behind(self):
        seed = 19
        with Server(*FLAGS) as server:
            empty = server.metric("kvasir_session_memory_bytes")
            made = [server.request("POST", "/v1/sessions", {"messages": user("My name is Mira."), "sampling": GREEDY})
                    for _ in range(2)]
            paths = ["/v1/sessions/" + answer["id"] for _, _, answer in made]
            begin = time.monotonic()

            def run(index):
                client = Client(server, paths, seed * 1000 + index)
                for number in range(OPERATIONS // CLIENTS):
                    client.step(number)
                client.check()
                client.call("DELETE", client.path)
                return client

            with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
                clients = list(pool.map(run, range(CLIENTS)))
            for path in paths:
                self.assertEqual(server.request("DELETE", path)[0], 200)
            server.until("no pinned block", lambda: server.metric('kvasir_blocks{state="pinned"}') == 0)
            server.until("memory given back", lambda: server.metric("kvasir_session_memory_bytes") == empty)
            self.assertEqual(server.get("/v1/sessions")["data"], [])
            twins = [twin for client in clients for twin in client.twins]
            self.assertGreater(len(twins), 10)
            for ids, text in random.Random(seed).sample(twins, min(len(twins), 60)):
                answer = server.post("/v1/completions", {"prompt": ids, "cache_prompt": False, **GREEDY})
                self.assertEqual(answer["kvasir"]["computed"], len(ids))
                self.assertEqual(answer["choices"][0]["text"], text)
            counts = sum((client.counts for client in clients), collections.Counter())
            print(f"seed {seed}: {counts.total()} operations in {time.monotonic() - begin:.1f} s, "
                  f"{len(twins)} greedy answers kept to compare, {dict(counts)}", file=sys.stderr)


if __name__ == "__main__":
    unittest.main()
