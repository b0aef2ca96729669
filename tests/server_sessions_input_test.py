#!/usr/bin/env python3
"""Bad input of sessions that server_sessions_test.py has not: templates without an end, messages that are too large
or too many, calls while an answer streams, what is gone already, and clients that leave in the middle of a call.

    server_sessions_input_test.py [KVASIR_BINARY]
"""

import json
import tempfile
import time
import unittest

from server_harness import Server, most_s, post_bytes, user
from session_calls import GREEDY, Calls

ENDLESS = "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}{{ messages[0].content }}"
DEEP = "".join("{% if true %}" for _ in range(100_000)) + "x" + "".join("{% endif %}" for _ in range(100_000))
NESTED = ("{% set ns = namespace(v='x') %}{% for i in range(100000) %}{% set ns.v = [ns.v] %}{% endfor %}"
          "{{ ns.v }}{% for m in messages %}{{ m.content }}{% endfor %}")
GROWING = "{% set ns = namespace(v='xy') %}{% for i in range(60) %}{% set ns.v = ns.v ~ ns.v %}{% endfor %}{{ ns.v }}"


def template(text):
    file = tempfile.NamedTemporaryFile("w", suffix=".jinja")
    file.write(text)
    file.flush()
    return file


class TemplatesTest(unittest.TestCase):
    def test_endless_and_deep_templates_are_errors_of_the_call(self):
        for text in (ENDLESS, NESTED, GROWING):
            with template(text) as file, Server("--chat-template-file", file.name) as server:
                begin = time.monotonic()
                status, _, made = server.request("POST", "/v1/sessions", {"messages": user("hello"), "sampling": GREEDY})
                self.assertIn(status, (201, 400), made)
                if status == 201:  # the prompt is not read before it is asked for
                    path = "/v1/sessions/" + made["id"]
                    status, _, refused = server.request("POST", path + "/generate", {"messages": user("more")})
                    self.assertEqual(status, 400, refused)
                    self.assertIn("template", json.dumps(refused))
                    shown = server.get(path)
                    self.assertEqual([m["content"] for m in shown["messages"]], ["hello"])
                    status, _, refused = server.request("POST", path + "/forget", {"index": 0})
                    self.assertEqual(status, 200, refused)
                    self.assertEqual(server.request("DELETE", path)[0], 200)
                self.assertLess(time.monotonic() - begin, most_s(30))
                self.assertEqual(server.metric("kvasir_session_memory_bytes"), 0)
                self.assertEqual(server.metric('kvasir_blocks{state="pinned"}'), 0)

    def test_forget_of_a_message_that_takes_no_tokens(self):
        text = "{% for m in messages %}{{ m.content }}{% endfor %}"
        with template(text) as file, Server("--chat-template-file", file.name) as server:
            made = server.request("POST", "/v1/sessions", {"messages": user("hello")})[2]
            path = "/v1/sessions/" + made["id"]
            server.post(path + "/generate", {"max_tokens": 0})
            for index in (1, 0):
                self.assertEqual(server.post(path + "/forget", {"index": index})["messages"], index)

    def test_forget_where_the_system_message_stands_in_the_last_turn(self):
        text = ("{% for m in messages %}{% if m.role != 'system' %}[{{ m.role }}] {{ m.content }}"
                "{% if loop.last %} :: {{ messages[0].content }}{% endif %}\n{% endif %}{% endfor %}")
        secret = "The code of the attic is 5551234 and no one knows it. " * 6
        with template(text) as file, Server("--chat-template-file", file.name) as server:
            for part in ({}, {"begin": 3, "end": len(secret)}):
                made = server.request("POST", "/v1/sessions", {"system": "Be kind.", "messages": user(secret)})[2]
                path = "/v1/sessions/" + made["id"]
                server.post(path + "/generate", {"messages": user("Hm?"), "max_tokens": 2})
                ids = server.get(path + "?ids=true")["ids"]
                server.post(path + "/forget", {"index": 1} | part)
                again = server.post("/v1/completions", {"prompt": ids, "max_tokens": 0})["kvasir"]
                self.assertLess(sum(again["reused"].values()), 16, again)
                self.assertEqual(server.request("DELETE", "/v1/cache")[0], 200)

    def test_a_template_of_too_many_levels_is_refused_at_the_start(self):
        with template(DEEP) as file, self.assertRaises(RuntimeError) as raised:
            Server("--chat-template-file", file.name)
        self.assertIn("template", str(raised.exception))


class LargeTest(Calls):
    def test_a_hundred_thousand_messages(self):
        """Text that can be kept and fits no context: the session can be read, made smaller and deleted."""
        path = self.make(messages=user("x"))
        for _ in range(5):
            self.call("POST", path + "/messages", {"messages": user("y") * 20_000})
        begin = time.monotonic()
        message = self.bad("POST", path + "/generate", {"messages": user("z")}, "max_context", code="context_full")
        self.assertRegex(message, r"has more than \d+ tokens")
        self.call("POST", path + "/forget", {"index": 100_000})
        self.assertLess(time.monotonic() - begin, most_s(10))
        shown = self.show(path)["messages"]
        self.assertEqual((len(shown), shown[-1]["content"]), (100_000, "y"))
        status, _, answer = self.server.request("POST", path + "/messages", {"messages": user("y" * 1000) * 8000})
        self.assertEqual(status, 200, answer)
        for _ in range(3):
            status, _, answer = self.server.request("POST", path + "/messages", {"messages": user("y" * 900) * 8000})
            if status != 200:
                break
        self.assertEqual(status, 429, answer)
        self.call("POST", path + "/truncate", {"messages": 1})
        self.generate(path, max_tokens=1)
        self.call("DELETE", path)
        self.server.until("memory given back", lambda: self.server.metric("kvasir_session_memory_bytes") == 0)

    def test_a_text_far_beyond_the_context(self):
        """More than the 4 contexts and 65,536 tokens whose number is counted."""
        def fill(path):
            for half in range(2):
                turns = [[{"role": "user", "content": f"This is turn {half * 500 + n}. " + "word " * 150},
                          {"role": "assistant", "content": f"I have read turn {half * 500 + n}."}] for n in range(500)]
                self.call("POST", path + "/messages", {"messages": sum(turns, [])})
            self.assertIsNone(self.call("POST", path + "/messages", {"messages": user("Which is next?")})["tokens"])

        refused = self.make(max_context=1000)
        fill(refused)
        message = self.bad("POST", refused + "/generate", {}, "max_context", code="context_full")
        self.assertRegex(message, r"has more than \d{5} tokens.*1000.*drop_oldest_turns")

        path = self.make(max_context=1000, on_full="drop_oldest_turns", system="You are brief.")
        fill(path)
        begin = time.monotonic()
        receipt = self.generate(path, max_tokens=8)["kvasir"]
        self.assertLess(time.monotonic() - begin, most_s(5))
        dropped = receipt["dropped_messages"]
        shown = self.show(path, ids=True)
        self.assertEqual(len(shown["messages"]), 2003)
        # A turn more would be more than three quarters.
        per_turn = shown["messages"][-4]["tokens"] + shown["messages"][-5]["tokens"]
        self.assertLessEqual(receipt["prompt_tokens"], 750)
        self.assertGreater(receipt["prompt_tokens"] + per_turn, 750)
        messages = [{"role": m["role"], "content": m["content"]} for m in shown["messages"]]
        said = self.server.post("/apply-template", {"messages": messages[:1] + messages[1 + dropped:],
                                                    "continue_final_message": False})["prompt"]
        self.assertEqual(self.server.post("/detokenize", {"tokens": shown["ids"]})["content"], said)
        again = self.generate(path, "And then?", max_tokens=8)["kvasir"]
        self.assertEqual(again["dropped_messages"], dropped)
        self.assertLess(again["computed"], 40)

        alone = self.make(max_context=1000, on_full="drop_oldest_turns")
        self.call("POST", alone + "/messages", {"messages": user("word " * 90_000)})
        message = self.bad("POST", alone + "/generate", {}, "max_context", code="context_full")
        self.assertRegex(message, r"has more than \d{5} tokens.*its last turn alone is too long")
        self.call("PUT", alone + "/messages/0", {"content": "Hello."})
        self.generate(alone, max_tokens=1)

    def test_a_body_of_10_mb_and_one_of_100000_messages(self):
        for body in ({"messages": user("x" * (10 << 20))}, {"messages": user("x") * 100_000},
                     {"system": "x" * (10 << 20)}):
            self.bad("POST", "/v1/sessions", body, status=413)
        path = self.make(messages=user("x"))
        for method, end, body in [("PUT", "/messages/0", {"content": "x" * (10 << 20)}),
                                  ("PUT", "/system", {"content": "x" * (10 << 20)}),
                                  ("POST", "/generate", {"messages": user("x" * (10 << 20))})]:
            self.bad(method, path + end, body, status=413)
            self.assertEqual(self.texts(path), ["x"])
        self.call("DELETE", path)

    def test_what_is_gone_is_gone(self):
        path = self.make(messages=[{"role": "user", "content": "one two", "segments": [
            {"name": "s", "begin": 0, "end": 3}]}, {"role": "user", "content": "three"}])
        self.call("POST", path + "/forget", {"segment": "s"})
        self.bad("POST", path + "/forget", {"segment": "s"}, "segment", 404)
        self.call("POST", path + "/forget", {"index": 1})
        self.bad("POST", path + "/forget", {"index": 1}, "index")
        self.call("POST", path + "/truncate", {"messages": 0})
        self.bad("POST", path + "/forget", {"index": 0}, "index")
        self.bad("PUT", path + "/messages/0", {"content": "x"}, "index")
        self.call("DELETE", path)
        for method, end, body in [("POST", "/forget", {"index": 0}), ("POST", "/fork", {}), ("DELETE", "", None),
                                  ("POST", "/generate", {}), ("PUT", "/system", {"content": "x"})]:
            self.bad(method, path + end, body, status=404, code="not_found")


class LeavingTest(Calls):
    flags = ("--cache", "none")  # each token takes longer than the one before

    def test_an_edit_while_an_answer_streams_waits_for_it(self):
        path = self.make(messages=user("hello"))
        running = self.stream(path, max_tokens=80)
        edited = self.call("PUT", path + "/messages/0", {"content": "bye", "keep_later": True})
        self.assertEqual(edited["messages"], 2)
        running.close()
        texts = self.texts(path)
        self.assertEqual((len(texts), texts[0]), (2, "bye"))
        self.assert_no_pins()

    def test_a_client_that_leaves_in_any_call_leaves_all_or_nothing(self):
        path = self.make(messages=user("hello"))
        calls = [("POST", "/generate", {"messages": user("a"), "max_tokens": 100, "ignore_eos": True}),
                 ("POST", "/messages", {"messages": user("b")}), ("POST", "/fork", {}),
                 ("POST", "/forget", {"index": 0}), ("POST", "/truncate", {"messages": 1})]
        for _, end, body in calls:
            whole = post_bytes(path + end, body)
            # In the head, in the body, and after the whole request.
            for size in (20, len(whole) - 1, len(whole)):
                with self.server.open() as s:
                    s.sendall(whole[:size])
        # What was sent as a whole may be done or not; the session answers after it.
        self.call("POST", path + "/truncate", {"messages": 0})
        self.assertEqual(self.texts(path), [])
        self.generate(path, "What is my name?", max_tokens=2)
        for session in self.call("GET", "/v1/sessions?limit=100")["data"]:
            self.call("DELETE", "/v1/sessions/" + session["id"])
        self.assert_no_pins()
        self.server.until("memory given back", lambda: self.server.metric("kvasir_session_memory_bytes") == 0)


if __name__ == "__main__":
    unittest.main()
