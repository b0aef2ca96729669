#!/usr/bin/env python3
"""The probes of eval.jsonl asked in sessions that have lived: their answers are those of fresh prompts, and as
often right as the model's card says.

    server_sessions_eval_test.py [KVASIR_BINARY]
"""

import collections
import concurrent.futures
import json
import re
import sys
import unittest

from server_harness import ROOT, Server, user

MODEL = ROOT / "models/kvasir-demo"
GREEDY = {"temperature": 0, "max_tokens": 40}
WITHIN = 0.01  # of the share that the card says, beside its rounding


def card():
    """kind -> (probes, share of right answers)"""
    table = {}
    for line in (MODEL / "README.md").read_text().splitlines():
        found = re.match(r"\| (\w+) \| (\d+) \| (\d+)% \|", line)
        if found:
            table[found[1]] = int(found[2]), int(found[3]) / 100
    return table


def is_right(row, text):
    return re.search(rf"(?<!\w){re.escape(row['expect'])}(?!\w)", text) is not None


class EvalTest(unittest.TestCase):
    def call(self, method, path, body=None):
        status, _, answer = self.server.request(method, path, body)
        assert status in (200, 201), answer
        return answer

    def answers(self, row):
        """Answers of the session, and of the same messages alone."""
        *told, question = row["messages"]
        path = "/v1/sessions/" + self.call("POST", "/v1/sessions", {"messages": told[:1], "sampling": GREEDY})["id"]
        for message in told[1:]:
            if message["role"] == "user":  # it answers; then the answer becomes the probe's
                self.call("POST", path + "/generate", {"messages": [message], "max_tokens": 4})
            elif message["role"] == "assistant":
                count = self.call("GET", path)["messages"]
                self.call("POST", path + "/truncate", {"messages": len(count) - 1})
                self.call("POST", path + "/messages", {"messages": [message]})
            else:
                self.call("POST", path + "/messages", {"messages": [message]})
        # A question that is taken back, one that is edited, and a fork.
        self.call("POST", path + "/generate", {"messages": user("Who are you?"), "max_tokens": 4})
        if question["role"] == "user":
            self.call("PUT", f"{path}/messages/{len(told)}", {"content": question["content"]})
        else:  # the answer of a tool
            self.call("POST", path + "/truncate", {"messages": len(told)})
            self.call("POST", path + "/messages", {"messages": [question]})
        fork = "/v1/sessions/" + self.call("POST", path + "/fork", {})["id"]
        found = self.call("POST", fork + "/generate", {})
        fresh = self.call("POST", "/v1/chat/completions",
                          GREEDY | {"messages": row["messages"], "cache_prompt": False})
        assert fresh["kvasir"]["computed"] == fresh["kvasir"]["prompt_tokens"]
        reused = sum(found["kvasir"]["reused"].values())
        for session in (path, fork):
            self.call("DELETE", session)
        return found["choices"][0]["message"], fresh["choices"][0]["message"], reused

    def test_sessions_answer_as_fresh_prompts_and_as_the_card_says(self):
        rows = [json.loads(line) for line in (MODEL / "eval.jsonl").read_text().splitlines()]
        right, asked, reused = collections.Counter(), collections.Counter(), 0
        with Server() as self.server:
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                for row, (found, fresh, tokens) in zip(rows, pool.map(self.answers, rows)):
                    self.assertEqual(found, fresh, row["id"])
                    reused += tokens
                    for kind in (row["kind"], "all"):
                        asked[kind] += 1
                        right[kind] += is_right(row, found["content"])
        print({kind: f"{right[kind]}/{asked[kind]}" for kind in asked}, f"{reused} tokens reused", file=sys.stderr)
        table = card()
        self.assertGreater(reused, 50 * len(rows), "nothing was reused: nothing was shown")
        for kind, count in asked.items():
            self.assertEqual(count, table[kind][0], kind)
            self.assertLessEqual(abs(right[kind] / count - table[kind][1]), WITHIN + 0.005, kind)


if __name__ == "__main__":
    unittest.main()
