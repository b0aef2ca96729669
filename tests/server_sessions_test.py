#!/usr/bin/env python3
"""Sessions over HTTP: conversations that are edited, forked and forgotten, and what each call costs.

    server_sessions_test.py [KVASIR_BINARY] [unittest arguments]
"""

import concurrent.futures
import http.client
import json
import random
import time
import unittest

from server_harness import WAIT_S, Server, most_s, sse, user
from session_calls import FACT, GREEDY, Calls


class SessionsTest(Calls):
    # --- what the endpoints do

    def test_a_conversation_end_to_end(self):
        made = self.call("POST", "/v1/sessions", {
            "system": "You are kind.", "messages": user(FACT), "metadata": {"who": "Mira"},
            "sampling": GREEDY}, 201)
        self.assertEqual(made["object"], "session")
        self.assertEqual(made["messages"], 2)
        self.assertEqual(made["metadata"], {"who": "Mira"})
        self.assertEqual(made["sampling"], GREEDY)
        self.assertEqual((made["ids"], made["on_full"], made["prepare"]), ("exact", "reject", False))
        self.assertLessEqual(abs(made["created"] - time.time()), 60)
        path = "/v1/sessions/" + made["id"]
        answer = self.generate(path)
        self.assertEqual(answer["object"], "chat.completion")
        self.assertEqual(answer["session"], {"id": made["id"], "index": 2})
        self.assertEqual(answer["kvasir"]["prompt_tokens"], made["tokens"])
        text = answer["choices"][0]["message"]["content"]
        shown = self.show(path)
        self.assertEqual([m["role"] for m in shown["messages"]], ["system", "user", "assistant"])
        self.assertEqual([m["generated"] for m in shown["messages"]], [False, False, True])
        self.assertEqual([m["index"] for m in shown["messages"]], [0, 1, 2])
        self.assertEqual(shown["messages"][2]["content"], text)
        self.assertTrue(all(m["tokens"] > 0 for m in shown["messages"]))
        appended = self.call("POST", path + "/messages", {"messages": user("What is my name?")})
        self.assertEqual((appended["id"], appended["messages"]), (made["id"], 4))
        answer = self.generate(path)
        self.assertIn("Mira", answer["choices"][0]["message"]["content"])
        self.assertGreater(answer["kvasir"]["reused"]["pool"], 0)
        self.assertEqual(self.show(path)["messages"][4]["content"], answer["choices"][0]["message"]["content"])

    def test_the_answer_is_that_of_the_chat_completion(self):
        for stream in [False, True]:
            path = self.make(messages=user(FACT))
            body = GREEDY | {"messages": user(FACT), "seed": 1, "logprobs": True, "top_logprobs": 2}
            chat = self.server.post("/v1/chat/completions", body)["choices"][0]
            more = {"logprobs": True, "top_logprobs": 2, "seed": 1, "stream": stream}
            if not stream:
                answer = self.generate(path, **more)["choices"][0]
                self.assertEqual(answer["message"], chat["message"])
                self.assertEqual(answer["logprobs"], chat["logprobs"])
                continue
            _, _, raw = self.server.request("POST", path + "/generate", more)
            events, done = sse(raw)
            self.assertTrue(done)
            self.assertEqual({json.dumps(e["session"]) for e in events},
                             {json.dumps({"id": path[-37:], "index": 1})})
            text = "".join(e["choices"][0]["delta"].get("content", "") for e in events if e["choices"])
            self.assertEqual(text, chat["message"]["content"])
            self.assertEqual(self.texts(path), [FACT, text])

    def test_the_prompt_has_the_ids_that_were_generated(self):
        path = self.make(messages=user(FACT))
        for turn in range(4):
            before = self.show(path, ids=True)["ids"]
            answer = self.generate(path, temperature=1.5, seed=turn, max_tokens=30, return_token_ids=True)
            self.assertEqual(answer["kvasir"]["prompt_tokens"], len(before))
            ids = answer["choices"][0]["token_ids"]
            if answer["choices"][0]["finish_reason"] == "stop":
                ids = ids[:-1]
            after = self.show(path, ids=True)["ids"]
            self.assertEqual(after[:len(before) + len(ids)], before + ids)
            self.call("POST", path + "/messages", {"messages": user(f"And now {turn}?")})
            # Only what is new is computed.
            whole = self.show(path, ids=True)["ids"]
            rendered = self.server.post("/apply-template", {"messages": [
                {"role": m["role"], "content": m["content"]} for m in self.show(path)["messages"]]})
            decoded = self.server.post("/detokenize", {"tokens": whole})["content"]
            self.assertEqual(decoded, rendered["prompt"])
            tail = self.generate(self.fork(path), max_tokens=1)["kvasir"]
            self.assertLessEqual(tail["computed"], len(whole) - len(before) - len(ids) + 1, tail)

    def test_text_that_was_encoded_before_has_the_same_ids(self):
        """A chat again and again, as a completion and as a session, and after its pieces were erased."""
        messages = [{"role": "user" if i % 2 == 0 else "assistant", "content": f"{FACT} {i} <|end|> W\u00f6rter"}
                    for i in range(9)]
        text = self.server.post("/apply-template", {"messages": messages})["prompt"]
        seen = []
        for _ in range(3):
            path = self.make(messages=messages)
            seen.append(self.show(path, ids=True)["ids"])
            self.assertEqual(self.server.post("/detokenize", {"tokens": seen[0]})["content"], text)
            chat = self.server.post("/v1/chat/completions", {"messages": messages} | GREEDY)
            self.assertEqual(chat["usage"]["prompt_tokens"], len(seen[0]))
            self.assertEqual(self.call("DELETE", path)["deleted"], True)
        self.assertEqual(seen[1:], seen[:1] * 2)

    def test_canonical_ids_are_those_of_the_chat_completion(self):
        path = self.make(messages=user(FACT), ids="canonical")
        self.generate(path, temperature=2, seed=5, max_tokens=40)
        self.call("POST", path + "/messages", {"messages": user("Go on.")})
        shown = self.show(path, ids=True)
        messages = [{"role": m["role"], "content": m["content"]} for m in shown["messages"]]
        text = self.server.post("/apply-template", {"messages": messages})["prompt"]
        self.assertEqual(shown["ids"], self.server.post("/tokenize", {"content": text})["tokens"])

    def test_twin_a_session_reads_its_ids(self):
        """Logits equal those of /v1/completions on the session's ids with the cache off."""
        rng = random.Random(3)
        path = self.make(system="You are brief.", messages=user(FACT))
        for turn in range(24):
            change = rng.choice(["append", "edit", "keep", "truncate", "fork", "forget", "part", "system"])
            count = self.show(path)
            messages = count["messages"]
            users = [m["index"] for m in messages if m["role"] == "user"]
            if change == "append" or len(messages) < 3:
                pass
            elif change in ("edit", "keep"):
                self.call("PUT", f"{path}/messages/{rng.choice(users)}",
                          {"content": f"My name is Ada{turn}.", "keep_later": change == "keep"})
            elif change == "truncate":
                self.call("POST", path + "/truncate", {"messages": rng.choice(users) + 1})
            elif change == "fork":
                path = self.fork(path, messages=rng.choice(users) + 1)
            elif change == "forget":
                self.call("POST", path + "/forget", {"index": rng.choice(users)})
            elif change == "part":
                index = rng.choice(users)
                length = len(messages[index]["content"])
                begin = rng.randrange(length)
                self.call("POST", path + "/forget", {"index": index, "begin": begin,
                                                     "end": rng.randint(begin + 1, length)})
            else:
                self.call("PUT", path + "/system", {"content": f"You are a poet {turn}."})
            self.call("POST", path + "/messages", {"messages": user(f"What is my name {turn}?")})
            ids = self.show(path, ids=True)["ids"]
            answer = self.generate(path, max_tokens=6, logprobs=True, top_logprobs=5)
            self.assertEqual(answer["usage"]["prompt_tokens"], len(ids))
            twin = self.server.post("/v1/completions", {
                "prompt": ids, "max_tokens": 6, "temperature": 0, "logprobs": 5, "cache_prompt": False,
                "ignore_eos": False})
            self.assertEqual(twin["kvasir"]["computed"], len(ids))
            mine = [t["logprob"] for t in answer["choices"][0]["logprobs"]["content"]]
            self.assertEqual(mine, twin["choices"][0]["logprobs"]["token_logprobs"], change)
            self.assertEqual(answer["choices"][0]["message"]["content"], twin["choices"][0]["text"])

    def test_an_edit_computes_what_follows_it(self):
        rng = random.Random(7)
        words = "river stone light paper green seven amber cloud garden silver window market".split()
        long = lambda: " ".join(rng.choice(words) for _ in range(60)) + "."
        messages = [{"role": "user" if i % 2 == 0 else "assistant", "content": long()} for i in range(11)]
        path = self.make(system="You are brief.", messages=messages)
        self.generate(path, max_tokens=1)
        before = self.show(path, ids=True)["ids"]
        self.call("PUT", path + "/messages/5", {"content": "Something else.", "keep_later": True})
        self.call("POST", path + "/truncate", {"messages": 12})
        after = self.show(path, ids=True)["ids"]
        same = next(i for i, (a, b) in enumerate(zip(before, after)) if a != b)
        receipt = self.generate(path, max_tokens=1)["kvasir"]
        self.assertEqual(receipt["computed"], len(after) - same, receipt)
        self.assertEqual(receipt["miss"]["message_index"], 5)
        self.assertEqual(receipt["miss"]["at_token"], same)

    def test_edit_drops_later_messages_unless_they_are_kept(self):
        path = self.make(messages=[{"role": r, "content": c} for r, c in
                                   [("user", "a"), ("assistant", "b"), ("user", "c")]])
        kept = self.call("PUT", path + "/messages/0", {"content": "A", "keep_later": True})
        self.assertEqual(kept["messages"], 3)
        self.assertEqual(self.texts(path), ["A", "b", "c"])
        self.call("PUT", path + "/messages/1", {"content": "B"})
        self.assertEqual(self.texts(path), ["A", "B"])
        self.call("PUT", path + "/system", {"content": "S"})
        self.assertEqual(self.texts(path), ["S", "A", "B"])
        self.call("PUT", path + "/system", {"content": "T"})
        self.assertEqual([m["role"] for m in self.show(path)["messages"]], ["system", "user", "assistant"])
        self.assertEqual(self.texts(path), ["T", "A", "B"])

    def test_forks_go_their_own_ways(self):
        path = self.make(system="Short.", messages=user(FACT))
        self.generate(path)
        fork = self.fork(path, messages=2)
        whole = self.fork(path)
        self.assertEqual(self.state(whole), self.state(path))
        self.assertEqual(self.texts(fork), self.texts(path)[:2])
        before = self.state(path)
        self.generate(fork, temperature=1, seed=1)
        self.call("PUT", fork + "/messages/1", {"content": "other"})
        self.assertEqual(self.state(path), before)

    def test_segments_name_parts_in_code_points(self):
        text = "é🙂 secret x"
        path = self.make(messages=[{"role": "user", "content": text, "segments": [
            {"name": "tail", "begin": 10, "end": 11}, {"name": "secret", "begin": 3, "end": 9}]}])
        segments = self.show(path)["messages"][0]["segments"]
        self.assertEqual(segments, [{"name": "secret", "begin": 3, "end": 9}, {"name": "tail", "begin": 10, "end": 11}])
        answer = self.call("POST", path + "/forget", {"segment": "secret"})
        self.assertEqual(set(answer), {"id", "object", "messages", "durable", "erased_blocks", "erased_tokens",
                                       "kept_shared"})
        message = self.show(path)["messages"][0]
        self.assertEqual(message["content"], "é🙂  x")
        self.assertEqual(message["segments"], [{"name": "tail", "begin": 4, "end": 5}])
        self.bad("POST", path + "/forget", {"segment": "secret"}, "segment", 404)
        self.call("POST", path + "/forget", {"index": 0, "begin": 0, "end": 2})
        self.assertEqual(self.texts(path), ["  x"])

    def test_forget_takes_kv_too(self):
        secret = "The code of the safe is 4711. " * 8
        path = self.make(system="You are brief.", messages=user(secret))
        self.generate(path, max_tokens=2)
        ids = self.show(path, ids=True)["ids"]
        for _ in range(2):
            warm = self.server.post("/v1/completions", {"prompt": ids, "max_tokens": 0})["kvasir"]
        self.assertEqual(warm["computed"], 0)
        answer = self.call("POST", path + "/forget", {"index": 1})
        self.assertGreater(answer["erased_blocks"], 0)
        self.assertEqual(answer["kept_shared"], 0)
        cold = self.server.post("/v1/completions", {"prompt": ids, "max_tokens": 0})["kvasir"]
        self.assertLess(sum(cold["reused"].values()), 40, cold)
        # With the word before it: random ids have any digits.
        self.assertNotIn("is 4711", json.dumps(self.show(path)))
        self.assertNotIn("is 4711", "".join(self.server.log))

    def test_forget_keeps_what_another_session_contains(self):
        text = "Everybody may know that the meeting is on Tuesday at noon. " * 6
        path = self.make(messages=user(text))
        self.generate(path, max_tokens=2)
        other = self.fork(path)
        ids = self.show(path, ids=True)["ids"]
        answer = self.call("POST", path + "/forget", {"index": 0})
        self.assertGreater(answer["kept_shared"], 0)
        self.assertEqual(self.texts(other)[0], text)
        again = self.server.post("/v1/completions", {"prompt": ids, "max_tokens": 0})["kvasir"]
        self.assertGreater(sum(again["reused"].values()), len(ids) // 2)

    def test_an_edited_session_keeps_its_blocks_when_a_fork_goes(self):
        path = self.make(messages=user("Who was at the lake on Sunday? " * 4))
        self.generate(path, max_tokens=2)
        fork = self.fork(path, messages=1)
        self.call("PUT", path + "/messages/0", {"content": "Where was everybody on Sunday? " * 4})
        self.generate(path, max_tokens=2)
        ids = self.show(path, ids=True)["ids"]
        self.call("DELETE", fork)
        again = self.server.post("/v1/completions", {"prompt": ids, "max_tokens": 0})["kvasir"]
        self.assertGreater(sum(again["reused"].values()), len(ids) // 2, again)

    def test_forget_finds_what_an_edit_left(self):
        secret = "The code of the other safe is 9876543. " * 8
        path = self.make(messages=[{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello."},
                                   {"role": "user", "content": secret}])
        self.generate(path, max_tokens=2)
        old = self.show(path, ids=True)["ids"]
        self.call("PUT", path + "/messages/0", {"content": "Good day.", "keep_later": True})
        self.call("POST", path + "/truncate", {"messages": 3})
        self.generate(path, max_tokens=2)
        self.call("POST", path + "/forget", {"index": 2})
        cold = self.server.post("/v1/completions", {"prompt": old, "max_tokens": 0})["kvasir"]
        self.assertLess(sum(cold["reused"].values()), 64, cold)

    def test_delete_forgets_everything(self):
        path = self.make(messages=user("Delete me, all of it, please. " * 10))
        self.generate(path, max_tokens=2)
        ids = self.show(path, ids=True)["ids"]
        answer = self.call("DELETE", path)
        self.assertTrue(answer["deleted"])
        self.assertGreater(answer["erased_blocks"], 0)
        cold = self.server.post("/v1/completions", {"prompt": ids, "max_tokens": 0})["kvasir"]
        self.assertGreater(cold["computed"], len(ids) - 16)  # others begin with the same special tokens
        self.bad("GET", path, None, status=404)
        self.bad("DELETE", path, None, status=404)

    def hang_up(self, path, **body):
        s = self.stream(path, **body)
        s.close()
        shown = self.show(path)["messages"]
        self.call("POST", path + "/truncate", {"messages": len(shown)})  # waits until the turn is free

    def prompt_of(self, messages):
        """The ids of a prompt that was never read."""
        path = self.make(messages=messages)
        ids = self.show(path, ids=True)["ids"]
        self.call("DELETE", path)
        return ids

    def assert_nobody_has(self, ids):
        cold = self.server.post("/v1/completions", {"prompt": ids, "max_tokens": 0})["kvasir"]
        self.assertLess(sum(cold["reused"].values()), 32, cold)

    def test_a_delete_leaves_chats_that_begin_alike(self):
        def chat(n):
            body = GREEDY | {"max_tokens": 4, "messages": [
                {"role": "system", "content": "Library desk rules. " * 12},
                {"role": "user", "content": f"{n * 7919} " + "word " * 40}]}
            return self.server.post("/v1/chat/completions", body)["kvasir"]

        for n in range(20):
            chat(n)
        for system in (None, "Library desk rules. " * 12):  # a BOS alone is shared; a system text
            more = {"system": system} if system else {}
            path = self.make(messages=user("zebra"), **more)
            self.generate(path, max_tokens=3)
            fork = self.fork(path)
            for gone in (fork, path):
                self.assertTrue(self.call("DELETE", gone)["deleted"])
                for n in (3, 17):
                    self.assertLessEqual(chat(n)["computed"], 1)

    def test_delete_forgets_a_message_whose_answer_nobody_waited_for(self):
        secret = user("No one has read that the code of the attic is 5551234. " * 8)
        ids = self.prompt_of(secret)
        path = self.make()
        self.hang_up(path, messages=secret)
        self.assertEqual(self.texts(path), [])
        self.assertGreater(self.call("DELETE", path)["erased_blocks"], 0)
        self.assert_nobody_has(ids)

    def test_forget_finds_what_an_answer_read_that_nobody_waited_for(self):
        secret = user("Attics and cellars: the code of the cellar is 5551234. " * 8)
        ids = self.prompt_of(secret)
        path = self.make(messages=secret)
        self.hang_up(path)
        self.call("PUT", path + "/messages/0", {"content": "Quiet."})
        self.assertGreater(self.call("POST", path + "/forget", {"index": 0})["erased_blocks"], 0)
        self.assert_nobody_has(ids)

    def test_list_pages(self):
        paths = [self.make() for _ in range(5)]
        page = self.call("GET", "/v1/sessions?limit=3")
        self.assertEqual(["/v1/sessions/" + s["id"] for s in page["data"]], paths[:1:-1])
        self.assertTrue(page["has_more"])
        rest = self.call("GET", f"/v1/sessions?limit=2&after={page['last_id']}")
        self.assertEqual(["/v1/sessions/" + s["id"] for s in rest["data"]], paths[1::-1])
        for query in ["limit=0", "limit=101", "limit=x"]:
            self.bad("GET", "/v1/sessions?" + query, None, "limit")
        self.bad("GET", "/v1/sessions?after=sess_x", None, status=404)

    def test_tools_and_fields_of_messages_reach_the_template(self):
        calls = [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"z\": 1}"}}]
        path = self.make(messages=[{"role": "user", "content": "x"},
                                   {"role": "assistant", "tool_calls": calls},
                                   {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "9"}]}])
        messages = self.show(path)["messages"]
        self.assertEqual(messages[1]["tool_calls"], calls)
        self.assertEqual((messages[2]["tool_call_id"], messages[2]["content"]), ("c1", "9"))
        self.assertEqual(messages[1]["content"], "")

    def test_defaults_and_what_generate_says(self):
        path = self.make(messages=user(FACT), sampling={"temperature": 0, "max_tokens": 3, "stop": ["zzz"]})
        answer = self.generate(path)
        self.assertEqual(answer["usage"]["completion_tokens"], 3)
        self.call("POST", path + "/truncate", {"messages": 1})
        answer = self.generate(path, max_tokens=5, unknown_field=1)
        self.assertEqual(answer["usage"]["completion_tokens"], 5)
        self.assertEqual(answer["kvasir"]["ignored"], ["unknown_field"])
        made = self.call("POST", "/v1/sessions", {"temperature": 0, "system": "Hi."}, 201)
        self.assertEqual(made["ignored"], ["temperature"])
        of = "/v1/sessions/" + made["id"]
        for method, path, body, status in (("POST", of + "/messages", {"messages": user(FACT)}, 200),
                                           ("PUT", of + "/messages/1", {"content": "Hi."}, 200),
                                           ("PUT", of + "/system", {"content": "Hello."}, 200),
                                           ("POST", of + "/fork", {}, 201), ("POST", of + "/truncate", {"messages": 1}, 200)):
            changed = self.call(method, path, body | {"colour": "blue"}, status)
            self.assertEqual(changed["ignored"], ["colour"], path)
        parts = [{"type": "text", "text": "Hi."}, {"type": "text", "text": "You.", "cache_control": {"type": "ephemeral"}}]
        for method, path, body, place in (
                ("POST", of + "/messages", {"messages": [{"role": "user", "content": parts}]}, "messages[0].content[1]"),
                ("PUT", of + "/messages/1", {"content": parts}, "content[1]"),
                ("PUT", of + "/messages/1", {"content": parts, "forget": True}, "content[1]"),
                ("PUT", of + "/system", {"content": parts}, "content[1]")):
            self.assertEqual(self.call(method, path, body)["ignored"], [place + ".cache_control"], path)
        segments = [{"name": "a", "begin": 0, "end": 1, "colour": 1}]
        changed = self.call("PUT", of + "/messages/1", {"content": parts, "segments": segments})
        self.assertEqual(changed["ignored"], ["content[1].cache_control", "segments[0].colour"])

    # --- bad input

    def test_create_names_the_wrong_field(self):
        for body, param in [
                ({"messages": 5}, "messages"), ({"messages": [5]}, "messages[0]"),
                ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
                ({"messages": [{"role": "user"}]}, "messages[0].content"),
                ({"system": 3}, "system"), ({"tools": {}}, "tools"), ({"chat_template_kwargs": []}, "chat_template_kwargs"),
                ({"sampling": []}, "sampling"), ({"sampling": {"temperature": -1}}, "sampling.temperature"),
                ({"sampling": {"n": 2}}, "sampling.n"), ({"sampling": {"messages": []}}, "sampling.messages"),
                ({"sampling": {"grammar": 5}}, "sampling.grammar"),
                ({"max_context": 0}, "max_context"), ({"max_context": 10**9}, "max_context"),
                ({"on_full": "crash"}, "on_full"), ({"ids": 3}, "ids"), ({"ids": "some"}, "ids"),
                ({"prepare": 1}, "prepare"), ({"cache": 5}, "cache"),
                ({"metadata": {"a": 1}}, "metadata"), ({"metadata": []}, "metadata"),
                ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
                ({"system": "a", "messages": [{"role": "system", "content": "b"}]}, "system"),
        ]:
            self.bad("POST", "/v1/sessions", body, param)
        self.bad("POST", "/v1/sessions", {"model": "none"}, "model", 404)
        self.bad("POST", "/v1/sessions", b"{")

    def test_segments_must_be_parts_of_their_content(self):
        def body(*segments):
            return {"messages": [{"role": "user", "content": "abcdef", "segments": list(segments)}]}
        for segments in [[{"name": "a", "begin": 0, "end": 7}], [{"name": "a", "begin": 3, "end": 3}],
                         [{"name": "a", "begin": 0, "end": 3}, {"name": "b", "begin": 2, "end": 4}], [5],
                         [{"name": "", "begin": 0, "end": 1}], [{"begin": 0, "end": 1}],
                         [{"name": "a", "begin": -1, "end": 1}]]:
            self.bad("POST", "/v1/sessions", body(*segments))
        self.bad("POST", "/v1/sessions", body({"name": "a", "begin": 0, "end": 1}, {"name": "a", "begin": 1, "end": 2}),
                 "segments")
        path = self.make(**body({"name": "a", "begin": 0, "end": 1}))
        before = self.state(path)
        self.bad("POST", path + "/messages", body({"name": "a", "begin": 0, "end": 1}), "segments")
        self.assertEqual(self.state(path), before)

    def test_bad_calls_change_nothing(self):
        path = self.make(system="S.", messages=user("abc"))
        before = self.state(path)
        for method, end, body, param in [
                ("POST", "/messages", {}, "messages"), ("POST", "/messages", {"messages": []}, "messages"),
                ("POST", "/messages", {"messages": [{"role": "user", "content": "ok"}, {"role": "x"}]}, "messages[1].role"),
                ("PUT", "/messages/2", {"content": "x"}, "index"), ("PUT", "/messages/x", {"content": "x"}, "index"),
                ("PUT", "/messages/-3", {"content": "x"}, "index"),
                ("PUT", "/messages/99999999999999999999", {"content": "x"}, "index"),
                ("PUT", "/messages/1", {}, "content"), ("PUT", "/messages/1", {"content": 5}, "content"),
                ("PUT", "/messages/1", {"content": "x", "keep_later": 3}, "keep_later"),
                ("PUT", "/system", {}, "content"), ("PUT", "/system", {"content": [1]}, "content"),
                ("POST", "/truncate", {}, "messages"), ("POST", "/truncate", {"messages": 3}, "messages"),
                ("POST", "/truncate", {"messages": -1}, "messages"), ("POST", "/fork", {"messages": 3}, "messages"),
                ("POST", "/fork", {"messages": "all"}, "messages"),
                ("POST", "/forget", {}, "index"), ("POST", "/forget", {"index": 2}, "index"),
                ("POST", "/forget", {"index": 1, "begin": 0}, "end"), ("POST", "/forget", {"index": 1, "end": 1}, "begin"),
                ("POST", "/forget", {"index": 1, "begin": 2, "end": 2}, "end"),
                ("POST", "/forget", {"index": 1, "begin": 0, "end": 4}, "end"),
                ("POST", "/forget", {"index": 1, "segment": "x"}, "segment"),
                ("POST", "/generate", {"n": 2}, "n"), ("POST", "/generate", {"temperature": "hot"}, "temperature"),
                ("POST", "/generate", {"tools": []}, "tools"), ("POST", "/generate", {"keep_partial": 1}, "keep_partial"),
                ("POST", "/generate", {"messages": [{"role": "assistant", "content": "x"}]}, "messages"),
                ("POST", "/generate", {"messages": 5}, "messages"),
        ]:
            self.bad(method, path + end, body, param)
            self.assertEqual(self.state(path), before, (method, end, body))
        self.bad("POST", path + "/forget", {"segment": "x"}, "segment", 404)
        self.call("DELETE", path + "/messages", None, 405)
        self.call("GET", path + "/nothing", None, 404)
        self.bad("GET", path + "?ids=perhaps", None, "ids")

    def test_a_generate_with_nothing_to_answer(self):
        self.bad("POST", self.make() + "/generate", {}, "messages")
        self.bad("POST", self.make(system="S") + "/generate", {}, "messages")
        path = self.make(messages=user(FACT))
        self.generate(path)
        self.bad("POST", path + "/generate", {}, "messages")

    def test_unknown_and_malformed_ids_are_404(self):
        for name in ["sess_" + "0" * 32, "sess_", "x", "%2e%2e", "sess_" + "0" * 5000]:
            for method, end, body in [("GET", "", None), ("DELETE", "", None), ("POST", "/messages", {"messages": user("x")}),
                                      ("PUT", "/messages/0", {"content": "x"}), ("PUT", "/system", {"content": "x"}),
                                      ("POST", "/generate", {}), ("POST", "/fork", {}), ("POST", "/truncate", {"messages": 0}),
                                      ("POST", "/forget", {"index": 0})]:
                self.bad(method, f"/v1/sessions/{name}{end}", body, status=404, code="not_found")

    def test_large_bodies_are_refused(self):
        path = self.make(messages=user("x"))
        self.bad("POST", path + "/messages", {"messages": user("x" * (10 << 20))}, status=413)
        self.bad("POST", path + "/messages", {"messages": user("x") * 100_000}, status=413)
        self.assertEqual(self.texts(path), ["x"])

    # --- a bounded context

    def test_a_full_context_is_refused_with_its_numbers(self):
        path = self.make(max_context=60, messages=user("One two three."))
        self.call("POST", path + "/messages", {"messages": user("four five six " * 30)})
        message = self.bad("POST", path + "/generate", {}, "max_context", code="context_full")
        self.assertRegex(message, r"has \d+ tokens.*60")
        self.bad("POST", "/v1/sessions", {"max_context": 8, "system": "You are a very helpful assistant. " * 4},
                 code="context_full")
        self.bad("POST", "/v1/sessions", {"max_context": 8, "on_full": "drop_oldest_turns",
                                          "system": "You are a very helpful assistant. " * 4}, code="context_full")

    def test_the_answer_stays_within_max_context(self):
        path = self.make(max_context=60, messages=user("Say something."))
        answer = self.generate(path, max_tokens=1000, ignore_eos=True)
        self.assertEqual(answer["choices"][0]["finish_reason"], "length")
        self.assertEqual(answer["usage"]["total_tokens"], 60)

    def test_the_oldest_turns_are_dropped(self):
        path = self.make(max_context=120, on_full="drop_oldest_turns", system="You are brief.")
        dropped, drops = 0, 0
        for turn in range(20):
            answer = self.generate(path, f"Tell me of number {turn} and nothing else.", max_tokens=8)
            receipt = answer["kvasir"]
            self.assertLess(receipt["prompt_tokens"], 120)
            if receipt["dropped_messages"] != dropped:
                self.assertLessEqual(receipt["prompt_tokens"], 90)
                drops += 1
            self.assertGreaterEqual(receipt["dropped_messages"], dropped)
            dropped = receipt["dropped_messages"]
        self.assertGreater(drops, 1)
        self.assertLess(drops, 10)
        shown = self.show(path, ids=True)
        self.assertEqual(len(shown["messages"]), 41)
        messages = [{"role": m["role"], "content": m["content"]} for m in shown["messages"]]
        text = self.server.post("/detokenize", {"tokens": shown["ids"]})["content"]
        kept = [messages[:1] + messages[1 + more:] for more in range(dropped, len(messages) - 1)]
        self.assertIn(text, [self.server.post("/apply-template", {"messages": m, "add_generation_prompt": True})["prompt"] for m in kept])

    def test_many_clients_at_once(self):
        shared = self.make(messages=user(FACT))

        def client(seed):
            rng = random.Random(seed)
            path = self.make(messages=user(f"I am client {seed}."))
            said = [f"I am client {seed}."]
            for step in range(40):
                kind = rng.randrange(6)
                if kind == 0:
                    self.call("POST", path + "/messages", {"messages": user(f"s{step}")})
                    said.append(f"s{step}")
                elif kind == 1:
                    at = rng.randrange(len(said))
                    self.call("PUT", f"{path}/messages/{at}", {"content": f"e{step}", "keep_later": True})
                    said[at] = f"e{step}"
                elif kind == 2 and len(said) > 2:
                    count = rng.randint(1, len(said))
                    self.call("POST", path + "/truncate", {"messages": count})
                    said = said[:count]
                elif kind == 3:
                    answer = self.generate(path, f"g{step}", max_tokens=3)
                    said += [f"g{step}", answer["choices"][0]["message"]["content"]]
                elif kind == 4 and len(said) > 1:
                    at = rng.randrange(len(said))
                    self.call("POST", path + "/forget", {"index": at})
                    del said[at]
                else:
                    status, _, _ = self.server.request("POST", shared + "/messages", {"messages": user(f"c{seed}")})
                    assert status in (200, 429), status
                self.assertEqual(self.texts(path), said)
            self.call("DELETE", path)

        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            for done in [pool.submit(client, seed) for seed in range(6)]:
                done.result()
        self.assert_no_pins()

    def test_two_forks_on_a_pool_that_holds_one(self):
        with Server("--kv-memory", "1MiB", "--ctx-size", "512") as server:
            def call(method, path, body=None):
                status, _, answer = server.request(method, path, body)
                self.assertIn(status, (200, 201), answer)
                return answer
            text = "The harbour was quiet that day. " * 20
            first = "/v1/sessions/" + call("POST", "/v1/sessions", {"messages": user(text), "sampling": GREEDY})["id"]
            second = "/v1/sessions/" + call("POST", first + "/fork", {})["id"]
            for path, word in [(first, "red"), (second, "blue")]:
                call("PUT", path + "/messages/0", {"content": word + " " + text})
            answers = {}
            for turn in range(3):
                for path in (first, second):
                    answer = call("POST", path + "/generate", {"max_tokens": 4})["choices"][0]["message"]["content"]
                    self.assertEqual(answers.setdefault(path, answer), answer)
                    call("POST", path + "/truncate", {"messages": 1})

    def test_fork_and_append_are_quick(self):
        path = self.make(messages=[{"role": "user" if i % 2 == 0 else "assistant", "content": "word " * 60}
                                   for i in range(25)])
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=WAIT_S)

        def timed(end, body):
            data, times = json.dumps(body), []
            for _ in range(30):
                begin = time.perf_counter()
                connection.request("POST", path + end, data)
                connection.getresponse().read()
                times.append(time.perf_counter() - begin)
            return sorted(times)[3]

        self.assertLess(timed("/fork", {}), most_s(0.005))
        self.assertLess(timed("/messages", {"messages": user("x")}), most_s(0.005))

    def test_page_of_the_cache_has_the_budget(self):
        state = self.server.get("/v1/cache")
        self.assertEqual(state["session_bytes"], 64 << 20)


if __name__ == "__main__":
    unittest.main()
