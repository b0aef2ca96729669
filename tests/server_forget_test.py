#!/usr/bin/env python3
"""What people ask a session to forget: turns, ranges and messages from the end, what an edit or a truncate takes back.

    server_forget_test.py [KVASIR_BINARY] [unittest arguments]
"""

import json
import unittest

from disk_server import WithHome
from server_harness import Server, user
from session_calls import GREEDY, Calls

WORDS = ["lake", "stone", "paper", "river", "candle", "window", "garden", "silver"]


def text(n):
    """A text that no other one begins with, of some blocks."""
    return f"{WORDS[n % 8]} {n}: " + f"The {WORDS[(n * 3 + 1) % 8]} number {n * 7919} is in the {WORDS[n % 8]}. " * 6


def conversation(turns):
    messages = [{"role": "system", "content": "You are brief."}]
    for n in range(turns):
        messages += user(text(n)) + [{"role": "assistant", "content": f"Noted, {n}."}]
    return messages


class ForgetTest(Calls):
    def read(self, turns):
        """A session with these turns, all of which it has read, and the ids of its prompt. No other says the same."""
        self.call("DELETE", "/v1/cache")
        path = self.make(messages=conversation(turns) + user("And now?"))
        self.generate(path, max_tokens=2)
        self.call("POST", path + "/truncate", {"messages": 1 + 2 * turns})
        return path, self.show(path, ids=True)["ids"]

    def forget(self, path, **body):
        return self.call("POST", path + "/forget", body)

    def reused(self, ids):
        answer = self.server.post("/v1/completions", {"prompt": ids, "max_tokens": 0})["kvasir"]
        return sum(answer["reused"].values())

    def end_of(self, path, index):
        """How many tokens of the prompt come before the end of a message."""
        return sum(m["tokens"] for m in self.show(path)["messages"][:index + 1])

    def test_the_last_turns(self):
        path, ids = self.read(4)
        kept = self.end_of(path, 6)
        answer = self.forget(path, last=1)
        self.assertEqual(set(answer), {"id", "object", "messages", "durable", "erased_blocks", "erased_tokens",
                                       "kept_shared"})
        self.assertEqual((answer["messages"], answer["object"]), (7, "session.forgotten"))
        self.assertGreater(answer["erased_blocks"], 0)
        self.assertEqual(self.texts(path)[-1], "Noted, 2.")
        reused = self.reused(ids)
        self.assertLessEqual(reused, kept + 8)  # and what the template writes before the text
        self.assertGreater(reused, kept - 32)   # no more than a block of what is before it
        path, ids = self.read(4)
        kept = self.end_of(path, 2)
        self.assertEqual(self.forget(path, last=3)["messages"], 3)
        self.assertEqual(self.texts(path), ["You are brief.", text(0), "Noted, 0."])
        self.assertLessEqual(self.reused(ids), kept + 8)

    def test_messages_are_counted_from_the_end(self):
        path, ids = self.read(3)
        kept = self.end_of(path, 5)
        self.assertEqual(self.forget(path, index=-1)["messages"], 6)
        self.assertEqual(self.texts(path)[-1], text(2))
        self.assertLessEqual(self.reused(ids), kept + 8)
        self.forget(path, index=-6)
        self.assertEqual(self.texts(path)[0], text(0))
        self.forget(path, index=-1, begin=0, end=5)
        self.assertEqual(self.texts(path)[-1], text(2)[5:])

    def test_ranges(self):
        path, ids = self.read(4)
        kept = self.end_of(path, 2)
        answer = self.forget(path, **{"from": 3, "to": 6})
        self.assertEqual(answer["messages"], 5)
        self.assertEqual(self.texts(path), ["You are brief.", text(0), "Noted, 0.", text(3), "Noted, 3."])
        reused = self.reused(ids)
        self.assertLessEqual(reused, kept + 8)
        self.assertGreater(reused, kept - 32)
        self.forget(path, **{"from": -2, "to": -1})
        self.assertEqual(self.texts(path), ["You are brief.", text(0), "Noted, 0."])
        self.forget(path, **{"from": 1})
        self.assertEqual(self.texts(path), ["You are brief."])
        self.forget(path, **{"from": 0, "to": 0})
        self.assertEqual(self.texts(path), [])

    def test_a_range_is_found_where_an_edit_left_it(self):
        path, old = self.read(3)
        self.call("PUT", path + "/messages/1", {"content": "Nothing at all.", "keep_later": True})
        self.call("POST", path + "/messages", {"messages": user("And then?")})
        self.generate(path, max_tokens=2)
        self.call("POST", path + "/truncate", {"messages": 7})
        new = self.show(path, ids=True)["ids"]
        self.assertGreater(min(self.reused(old), self.reused(new)), len(new) // 2)
        self.forget(path, **{"from": 3, "to": 6})
        self.assertEqual(self.texts(path), ["You are brief.", "Nothing at all.", "Noted, 0."])
        self.assertLess(self.reused(new), len(new) // 2)
        self.assertLess(self.reused(old), len(old) // 2)

    def test_a_field_that_is_not_known_forgets_nothing(self):
        path, _ = self.read(2)
        texts = self.texts(path)
        for body in ({"from": 1, "until": 2}, {"index": 0, "start": 3, "stop": 5}, {"last": 1, "frm": 1}):
            status, _, answer = self.server.request("POST", path + "/forget", body)
            self.assertEqual(status, 400, answer)
            self.assertIn("is not a field of forget, and nothing is forgotten", answer["error"]["message"])
            self.assertEqual(answer["error"]["param"], next(name for name in ("until", "start", "frm") if name in body))
        self.assertEqual(self.texts(path), texts)

    def test_what_a_fork_says_stays(self):
        path, ids = self.read(3)
        fork = self.fork(path)
        self.assertGreater(self.forget(path, last=2)["kept_shared"], 0)
        self.assertEqual(len(self.texts(fork)), 7)
        self.assertGreater(self.reused(ids), len(ids) - 32)
        self.assertGreater(self.forget(fork, last=3)["erased_blocks"], 0)
        self.assertLessEqual(self.reused(ids), self.end_of(path, 2) + 8)  # what the first session still says

    def chats(self, n):
        """How much is computed of chats that say the same system text and "Hi there", at most of one."""
        return max(self.server.post("/v1/chat/completions", GREEDY | {"max_tokens": 2, "messages": [
            {"role": "system", "content": text(1)}, *user(f"Hi there, {text(i)}")]})["kvasir"]["computed"]
            for i in range(n))

    def test_a_message_that_goes_on_where_a_forgotten_one_ends_stays(self):
        def edit(path):
            self.call("PUT", path + "/messages/1", {"content": "Hello"})

        def truncate(path):
            self.call("POST", path + "/truncate", {"messages": 0})

        def part(path):
            self.forget(path, index=1, begin=0, end=4)

        def forget(path):
            self.forget(path, index=1)

        def last(path):
            self.forget(path, last=1)

        def fork(path):
            self.call("DELETE", self.fork(path, messages=1))

        for said in ("Hi", "Hello", "Hi there, where is the lake? And the stone?"):
            for way in ((), (fork,), (forget,), (last,), (edit,), (truncate,), (edit, forget)) + (
                    ((part,), (part, forget)) if said == "Hello" else ()):
                with self.subTest(said=said, way=[f.__name__ for f in way]):
                    self.call("DELETE", "/v1/cache")
                    self.chats(4)
                    self.assertLess(self.chats(4), 3)
                    path = self.make(system=text(1), messages=user(said))
                    self.generate(path, max_tokens=2)
                    for change in way:
                        change(path)
                        self.assertLess(self.chats(4), 35)  # the block in which they part
                    self.call("DELETE", path)
                    self.assertLess(self.chats(4), 35)  # the block in which they part

    def test_nothing_is_left_of_a_session_after_its_message_was_forgotten(self):
        """Also where a block ends in what the template writes before the message."""
        ways = (lambda path: self.forget(path, index=1),
                lambda path: self.call("POST", path + "/truncate", {"messages": 1, "forget": True}))
        ends = set()
        for n in range(16):
            for way in ways:
                self.call("DELETE", "/v1/cache")
                path = self.make(system="Be brief." + " a" * n, messages=user(text(2)))
                self.generate(path, max_tokens=2)
                ids = self.show(path, ids=True)["ids"]
                ends.add(self.end_of(path, 0) % 16)
                way(path)
                self.call("DELETE", path)
                self.assertEqual(self.reused(ids), 0, n)
        self.assertEqual(ends, set(range(16)))

    def test_an_erase_takes_a_prompt_that_has_the_whole_message(self):
        for erase in (lambda path: self.call("DELETE", path), lambda path: self.forget(path, index=1)):
            self.call("DELETE", "/v1/cache")
            path = self.make(system=text(1), messages=user(text(2)))
            self.generate(path, max_tokens=2)
            ids = self.show(path, ids=True)["ids"][:self.end_of(path, 1)]
            more = self.server.post("/tokenize", {"content": text(3)})["tokens"]
            self.server.post("/v1/completions", {"prompt": ids + more, "max_tokens": 0})
            self.assertGreater(self.reused(ids + more), len(ids))
            erase(path)
            self.assertLess(self.reused(ids + more), len(ids) // 2 + 32)

    def test_a_truncate_forgets_if_it_is_asked_to(self):
        path, ids = self.read(3)
        self.call("POST", path + "/truncate", {"messages": 3, "forget": False})
        self.assertGreater(self.reused(ids), len(ids) - 32)
        path, ids = self.read(3)
        kept = self.end_of(path, 2)
        answer = self.call("POST", path + "/truncate", {"messages": 3, "forget": True, "why": 1})
        self.assertEqual((answer["messages"], answer["object"], answer["ignored"]), (3, "session", ["why"]))
        self.assertGreater(answer["erased_blocks"], 0)
        reused = self.reused(ids)
        self.assertLessEqual(reused, kept + 8)
        self.assertGreater(reused, kept - 32)
        again = self.call("POST", path + "/truncate", {"messages": 3, "forget": True})
        self.assertEqual((again["messages"], again["erased_blocks"], again["erased_tokens"]), (3, 0, 0))

    def test_an_edit_forgets_if_it_is_asked_to(self):
        path, ids = self.read(3)
        kept = self.end_of(path, 2)
        answer = self.call("PUT", path + "/messages/3", {"content": "Other words.", "forget": True})
        self.assertEqual(answer["messages"], 4)
        self.assertGreater(answer["erased_blocks"], 0)
        self.assertEqual(self.texts(path)[-1], "Other words.")
        self.assertLessEqual(self.reused(ids), kept + 8)
        self.assertGreater(self.reused(ids), kept - 32)
        path, ids = self.read(3)
        answer = self.call("PUT", path + "/messages/3", {"content": "Other.", "forget": True, "keep_later": True})
        self.assertEqual(self.texts(path)[3:], ["Other.", "Noted, 1.", text(2), "Noted, 2."])
        self.assertLessEqual(self.reused(ids), kept + 8)

    def test_an_edit_of_the_system_text_forgets_if_it_is_asked_to(self):
        path, ids = self.read(2)
        answer = self.call("PUT", path + "/system", {"content": "You are kind.", "forget": True})
        self.assertEqual((answer["messages"], self.texts(path)[0]), (5, "You are kind."))
        self.assertGreater(answer["erased_blocks"], 0)
        self.assertLess(self.reused(ids), 32)
        path = self.make(messages=user("Hi."))
        answer = self.call("PUT", path + "/system", {"content": "You are kind.", "forget": True})
        self.assertEqual((answer["messages"], answer["erased_blocks"]), (2, 0))

    def test_a_client_that_names_nothing_gets_the_forms(self):
        path = self.make(messages=conversation(1))
        for body in (None, {}, {"to": 1}, {"begin": 0, "end": 1}):
            message = self.bad("POST", path + "/forget", body)
            for form in ('{"last": 1}', '{"index": -1}', '{"from": 3, "to": 4}', '{"segment": "NAME"}'):
                self.assertIn(form, message)
        self.assertEqual(len(self.texts(path)), 3)

    def test_what_is_not_there_is_refused_and_changes_nothing(self):
        path = self.make(messages=conversation(2))
        before = self.state(path)
        for body, param in (({"last": 0}, "last"), ({"last": 3}, "last"), ({"last": -1}, "last"), ({"last": "1"}, "last"),
                            ({"index": 5}, "index"), ({"index": -6}, "index"), ({"index": 1 << 63}, "index"),
                            ({"index": -(1 << 63)}, "index"),
                            ({"from": 5}, "from"), ({"from": 2, "to": 1}, "to"), ({"from": -1, "to": 0}, "to"),
                            ({"from": 0, "to": 9}, "to"), ({"from": 0, "to": -6}, "to"),
                            ({"last": 1, "index": 1}, "last"), ({"last": 1, "to": 1}, "last"),
                            ({"index": 1, "from": 1}, "index"), ({"from": 1, "begin": 0, "end": 1}, "index"),
                            ({"segment": "x", "last": 1}, "segment"), ({"index": -1, "begin": 0, "end": 99}, "end")):
            self.bad("POST", path + "/forget", body, param)
        for method, end, body in (("POST", "/truncate", {"messages": 6, "forget": True}),
                                  ("POST", "/truncate", {"messages": 1, "forget": 1}),
                                  ("PUT", "/messages/9", {"content": "x", "forget": True}),
                                  ("PUT", "/messages/1", {"content": "x", "forget": "yes"}),
                                  ("PUT", "/messages/1", {"forget": True}), ("PUT", "/system", {"content": "x", "forget": 0})):
            self.bad(method, path + end, body)
        self.assertEqual(self.state(path), before)
        message = self.bad("POST", path + "/forget", {"last": 3})
        self.assertIn("3 is more than the 2 turns of the session", message)

    def test_a_fork_does_not_read_forget(self):
        path = self.make(messages=user("Hi."))
        made = self.call("POST", path + "/fork", {"messages": 1, "forget": True}, 201)
        self.assertEqual(made["ignored"], ["forget"])


class ForgetBehindDefaultTextTest(Calls):
    """The template writes a text before the first message; the session has no message of it."""

    flags = ("--chat-template", "You are brief, and you know these tools: " + "lake stone paper " * 20 +
             "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}<|assistant|>")

    def test_nothing_is_left_of_a_session_after_its_first_message_was_forgotten(self):
        for body in ({"index": 0}, {"last": 1}):
            self.call("DELETE", "/v1/cache")
            path = self.make(messages=user(text(2)))
            self.generate(path, max_tokens=2)
            ids = self.show(path, ids=True)["ids"]
            self.call("POST", path + "/forget", body)
            self.call("POST", path + "/truncate", {"messages": 0})
            self.call("DELETE", path)
            answer = self.server.post("/v1/completions", {"prompt": ids, "max_tokens": 0})["kvasir"]
            self.assertEqual(sum(answer["reused"].values()), 0)


class ForgetOnDiskTest(WithHome):
    """What was forgotten is not there after a restart, in the cache and in the session."""

    def test_each_form(self):
        forms = {
            "last": ("POST", "/forget", {"last": 2}),
            "range": ("POST", "/forget", {"from": 3, "to": -1}),
            "truncate": ("POST", "/truncate", {"messages": 3, "forget": True}),
            "edit": ("PUT", "/messages/3", {"content": "Other.", "forget": True}),
        }
        ids, kept = {}, {}
        server = self.serve()
        for n, (form, (method, end, body)) in enumerate(forms.items()):
            messages = conversation(3)
            messages[1]["content"] = f"{form} {n} " + messages[1]["content"]  # else they share it
            _, _, made = server.request("POST", "/v1/sessions", {"messages": messages + user("Go on."), "sampling": GREEDY})
            path = "/v1/sessions/" + made["id"]
            server.post(path + "/generate", {"max_tokens": 2})
            server.post(path + "/truncate", {"messages": 7})
            ids[form] = server.get(path + "?ids=true")["ids"]
            kept[form] = sum(m["tokens"] for m in server.get(path)["messages"][:3])
            server.flush()
            status, _, answer = server.request(method, path + end, body)
            self.assertEqual(status, 200, answer)
            self.assertGreater(answer["erased_blocks"], 0, form)
        server.stop()
        server = self.serve()
        for form in forms:
            receipt = server.post("/v1/completions", {"prompt": ids[form], "max_tokens": 0})["kvasir"]
            self.assertLessEqual(sum(receipt["reused"].values()), kept[form] + 8, form)
            self.assertGreater(receipt["reused"]["disk"], kept[form] - 32, form)
        listed = server.get("/v1/sessions")["data"]
        self.assertEqual(len(listed), len(forms))
        said = json.dumps([server.get("/v1/sessions/" + one["id"]) for one in listed])
        self.assertIn("number 0 is in", said)
        self.assertNotIn("number 7919 is in", said)
        self.assertNotIn("number 15838 is in", said)

    def test_nothing_is_left_of_a_session_after_its_message_was_forgotten(self):
        server = self.serve()
        for n in range(16):
            body = {"system": "Be brief." + " a" * n, "messages": user(text(2)), "sampling": GREEDY}
            _, _, made = server.request("POST", "/v1/sessions", body)
            path = "/v1/sessions/" + made["id"]
            server.post(path + "/generate", {"max_tokens": 2})
            server.flush()
            self.assertEqual(server.request("POST", path + "/forget", {"index": 1})[0], 200)
            self.assertEqual(server.request("DELETE", path)[0], 200)
            self.assertEqual(server.disk()["blocks"], 0, n)

    def test_what_is_on_the_disk_alone_is_counted(self):
        server = self.serve()
        _, _, made = server.request("POST", "/v1/sessions", {"messages": conversation(3) + user("Go on."), "sampling": GREEDY})
        path = "/v1/sessions/" + made["id"]
        server.post(path + "/generate", {"max_tokens": 2})
        server.flush()
        server.stop()
        server = self.serve()
        stored = server.disk()
        status, _, answer = server.request("DELETE", path)
        self.assertEqual((status, answer["erased_blocks"]), (200, 0), answer)
        self.assertGreater(answer["disk_blocks"], 0)
        left = server.disk()
        self.assertEqual(stored["blocks"] - left["blocks"], answer["disk_blocks"])
        self.assertGreater(answer["disk_bytes"], 0)


if __name__ == "__main__":
    unittest.main()
