#!/usr/bin/env python3
"""Rewritten history: which misses a template causes, and next turns that were prepared.

    server_prepare_test.py [KVASIR_BINARY] [unittest arguments]
"""

import json
import random
import tempfile
import time
import unittest

from server_harness import ROOT, Server, check_answer, user
import server_thinking_test

SHARED = ROOT.parent / "shared" / "data" / "hf-tokenizers"
GREEDY = {"temperature": 0, "max_tokens": 12}
CHATML = ("{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}")
# Old answers are marked: each turn is rewritten, whatever the answer says.
MARKED = ("{% for m in messages %}{{ '<|' + m['role'] + '|>' }}"
          "{% if m['role'] == 'assistant' and not loop.last %}{{ 'said ' }}{% endif %}"
          "{{ m['content'] + '<|end|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}")
# The number of messages stands at the last one of the user.
MOVED = ("{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] }}"
         "{% if loop.revindex == 1 %}{{ ' of ' ~ messages | length }}{% endif %}{{ '<|end|>' }}{% endfor %}"
         "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}")
TRIMMED = CHATML.replace("m['content']", "(m['content'] | trim)")


def templates():
    """Name -> source of every template at hand."""
    found = {"chatml": CHATML, "marked": MARKED, "moved": MOVED, "trimmed": TRIMMED,
             "stripped": server_thinking_test.StrippedThinking.TEMPLATE}
    for path in sorted([*SHARED.glob("**/tokenizer_config.json"), *SHARED.glob("**/chat_template.*"),
                        *(ROOT / "models").glob("*/tokenizer_config.json")]):
        text = path.read_text(encoding="utf-8")
        source = text if path.suffix == ".jinja" else json.loads(text).get("chat_template")
        if isinstance(source, str):
            found[f"{path.parent.name}/{path.name}"] = source
    return found


class WithTemplate(unittest.TestCase):
    def start(self, source, *flags):
        file = tempfile.NamedTemporaryFile("w", suffix=".jinja", encoding="utf-8")
        self.addCleanup(file.close)
        file.write(source)
        file.flush()
        self.server = Server("--chat-template-file", file.name, *flags)
        self.addCleanup(self.server.stop)
        return self.server

    def rendering(self, messages):
        status, _, answer = self.server.request("POST", "/apply-template", {"messages": messages})
        return answer["prompt"] if status == 200 else None

    def prepared(self):
        return self.server.metric("kvasir_prepared_tokens_total")

    def until_prepared(self, before):
        """Until the engine has done all that it prepares."""
        self.server.until("prepared tokens", lambda: self.prepared() > before)
        self.server.until("no pinned block", lambda: self.server.metric('kvasir_blocks{state="pinned"}') == 0)


class TemplateRewrote(WithTemplate):
    def conversation(self, rng):
        answers = ["Fine.", "Yes, it is.", "<think>\nA thought.\n</think>\n\nFine.", " Indeed. ", "</think>So."]
        messages = [{"role": "system", "content": "Be kind."}] if rng.random() < 0.5 else []
        for turn in range(rng.randint(1, 3)):
            messages.append({"role": "user", "content": f"Question {turn}: {rng.choice(['where', 'who', 'why'])}?"})
            messages.append({"role": "assistant", "content": rng.choice(answers)})
        return messages + [{"role": "user", "content": "And then?"}]

    def test_it_is_reported_exactly_where_it_is_so(self):
        seen = {True: 0, False: 0}
        for name, source in templates().items():
            with self.subTest(template=name):
                self.start(source)
                stable = self.server.get("/props")["prefix_stable"]
                rng = random.Random(name)
                for number in range(6):
                    self.check_conversation(self.conversation(rng), f"{name} {number}", stable, seen)
                self.server.stop()
        self.assertGreater(min(seen.values()), 10, seen)

    def check_conversation(self, messages, salt, stable, seen):
        whole = self.rendering(messages)
        last = max(i for i, m in enumerate(messages) if m["role"] == "assistant")
        asked = self.rendering(messages[:last])
        if whole is None or asked is None:
            return  # the template does not take such a chat
        generated = asked + messages[last]["content"]
        rewritten = not whole.startswith(generated)
        if stable:
            self.assertFalse(rewritten and "think" not in generated, (whole, generated))
        # Put the last turn into the cache, as if the answer had been generated.
        tokens = self.server.post("/tokenize", {"content": generated + "."})["tokens"]
        self.server.post("/v1/completions", {"prompt": tokens, "max_tokens": 0, "cache_salt": salt})
        before = self.server.metric('kvasir_misses_total{reason="template_rewrote"}')
        receipt = self.server.post("/v1/chat/completions", {
            "messages": messages, "max_tokens": 1, "cache_salt": salt})["kvasir"]
        reason = receipt["miss"]["reason"] if receipt["miss"] else None
        reported = reason == "template_rewrote"
        seen[reported] += 1
        self.assertEqual(self.server.metric('kvasir_misses_total{reason="template_rewrote"}') - before, reported)
        if reason == "cold":
            return  # it begins otherwise already
        self.assertEqual(reported, rewritten, (receipt["miss"], generated, whole))

    def test_probes_say_which_templates_are_stable(self):
        for source, stable in ((CHATML, True), (TRIMMED, True), (MARKED, False), (MOVED, False),
                               (server_thinking_test.StrippedThinking.TEMPLATE, False)):
            self.start(source)
            self.assertIs(self.server.get("/props")["prefix_stable"], stable, source)
            self.server.stop()

    def test_an_edit_is_not_the_template(self):
        self.start(MARKED)
        chat = [*user("Who are you?"), {"role": "assistant", "content": "I am Kvasir."}, *user("And then?")]
        self.server.post("/v1/chat/completions", {"messages": chat, **GREEDY})
        chat[0]["content"] = "Who am I?"
        miss = self.server.post("/v1/chat/completions", {"messages": chat, **GREEDY})["kvasir"]["miss"]
        self.assertEqual((miss["reason"], miss["message_index"]), ("diverged", 0))


class Sessions(WithTemplate):
    def make(self, **body):
        status, _, made = self.server.request("POST", "/v1/sessions", {"sampling": GREEDY, **body})
        self.assertEqual(status, 201, made)
        self.assertEqual(made["prepare"], body.get("prepare", False))
        return "/v1/sessions/" + made["id"]

    def turns(self, path, prepares, texts):
        """(answers, receipts) of turns; waits for what is prepared."""
        answers, receipts = [], []
        for text in texts:
            before = self.prepared()
            result = self.server.post(path + "/generate", {"messages": user(text)})
            answers.append(result["choices"][0]["message"]["content"])
            receipts.append(result["kvasir"])
            if prepares:
                self.until_prepared(before)
        return answers, receipts

    BLOCK = 16  # tokens
    TEXTS = ["Anna lives in Oslo. Where does Anna live?", "Who are you?", "And Anna?"]

    def test_a_prepared_turn_computes_its_own_message_only(self):
        self.start(MARKED)
        plain, receipts = self.turns(self.make(cache={"disk": False}), False, self.TEXTS)
        for receipt in receipts[1:]:
            self.assertEqual(receipt["miss"]["reason"], "template_rewrote", receipt)
        self.server.request("DELETE", "/v1/cache")
        path = self.make(prepare=True)
        answers, receipts = self.turns(path, True, self.TEXTS)
        check_answer(self, answers, plain)
        for receipt, text in zip(receipts[1:], self.TEXTS[1:]):
            own = len(self.server.post("/tokenize", {"content": f"<|user|>{text}<|end|><|assistant|>"})["tokens"])
            self.assertLessEqual(receipt["computed"], own + 2, receipt)
        self.assertGreater(self.prepared(), 0)

    def test_forget_covers_what_was_prepared(self):
        self.start(MARKED)
        path = self.make(prepare=True)
        self.turns(path, True, self.TEXTS[:1])
        shown = self.server.get(path)["messages"]
        erased = self.server.post(path + "/forget", {"index": 1})
        self.assertEqual(len(shown), 2)
        # The answer is in the cache neither as it was generated nor as the next turn would have shown it.
        asked = len(self.server.post("/tokenize", {"content": self.rendering(user(self.TEXTS[0]))})["tokens"])
        self.assertLess(self.server.metric("kvasir_cached_tokens"), asked, erased)

    def test_a_delete_covers_what_was_prepared(self):
        """Its text parts from what the session has read within the first message."""
        self.start(MOVED)
        path = self.make(prepare=True)
        self.turns(path, True, self.TEXTS[:1])
        self.assertGreaterEqual(self.server.metric("kvasir_cached_tokens"), self.BLOCK)
        status, _, erased = self.server.request("DELETE", path)
        self.assertEqual(status, 200, erased)
        self.assertLess(self.server.metric("kvasir_cached_tokens"), self.BLOCK, erased)

    def test_the_same_bytes_in_other_ids_are_retokenized(self):
        self.start(CHATML)
        path = self.make(ids="canonical", sampling={"temperature": 2, "seed": 7, "max_tokens": 32, "ignore_eos": True})
        reasons = set()
        for turn in range(12):
            result = self.server.post(path + "/generate", {"messages": user(f"Tell me of {turn}.")})
            miss = result["kvasir"]["miss"]
            reasons.add(miss["reason"] if miss else None)
        self.assertIn("retokenized", reasons)
        self.assertNotIn("template_rewrote", reasons)


class ChatCompletions(WithTemplate):
    def ask(self, messages, **fields):
        return self.server.post("/v1/chat/completions", {"messages": messages, **GREEDY, **fields})

    def turn(self, chat, text, **fields):
        chat += user(text)
        result = self.ask(chat, **fields)
        chat.append({"role": "assistant", "content": result["choices"][0]["message"]["content"]})
        return result["kvasir"]

    def test_the_flag_prepares_chat_completions(self):
        self.start(MARKED, "--prepare")
        chat = []
        self.turn(chat, "Anna lives in Oslo. Where does Anna live?")
        self.until_prepared(0)
        receipt = self.turn(chat, "Who are you?")
        own = len(self.server.post("/tokenize", {"content": "<|user|>Who are you?<|end|><|assistant|>"})["tokens"])
        self.assertLessEqual(receipt["computed"], own + 2, receipt)
        self.assertIn("kvasir_prepared_tokens_total", self.server.get("/metrics"))

    def prepared_with(self, flags, before):
        """Prepared tokens of the turns in `before`, which prepare nothing, and of one that does, after them."""
        self.start(MARKED, *flags)
        for fields in before:
            self.turn([], "Who are you?", **fields)
        if flags:
            self.turn([], "And Anna?")
        else:
            path = self.server.request("POST", "/v1/sessions", {"sampling": GREEDY, "prepare": True})[2]["id"]
            self.server.post(f"/v1/sessions/{path}/generate", {"messages": user("And Anna?")})
        self.until_prepared(0)
        prepared = self.prepared()
        self.server.stop()
        return prepared

    def test_nothing_is_prepared_of_what_shares_nothing(self):
        alone = self.prepared_with(["--prepare"], [])
        self.assertEqual(self.prepared_with(["--prepare"], [{"cache_prompt": False}, {"max_tokens": 0}]), alone)

    def test_it_is_off_without_the_flag(self):
        self.assertEqual(self.prepared_with([], [{}]), self.prepared_with([], []))

    def test_a_drain_does_not_wait_for_it(self):
        self.start(MARKED, "--prepare")
        self.turn([], "Where? " * 200)
        begin = time.monotonic()
        self.server.interrupt()
        self.assertEqual(self.server.wait(), 0)
        self.assertLess(time.monotonic() - begin, 20)


if __name__ == "__main__":
    unittest.main()
