#!/usr/bin/env python3
"""Lines of prompts that change, and what is read again because of them.

    server_volatile_test.py [KVASIR_BINARY] [unittest arguments]
"""

import re
import unittest

from server_harness import Server, WithServer

RULES = [f"Rule {i}: keep the {word} in the drawer number {i}." for i, word in enumerate(
    "key lamp book cup pen box coin ring map rope sock spoon stone shell shoe brush comb tape thread nail".split())]
CHAT = "/v1/chat/completions"


def system(**changed):
    """RULES, with other text in the lines of these numbers (`l3="other"`)."""
    lines = list(RULES)
    for name, text in changed.items():
        lines[int(name[1:])] = text
    return "\n".join(lines)


class Lines(WithServer):
    flags = ("--api-key", "alpha", "--api-key", "beta", "--admin-key", "root", "--temperature", "0")

    def post(self, path, body, key="alpha"):
        status, _, answer = self.server.request("POST", path, body, {"x-api-key": key})
        self.assertIn(status, (200, 201), answer)
        return answer

    def ask(self, text, key="alpha", question="Where is the key?", history=(), path=CHAT, **fields):
        messages = [{"role": "system", "content": text}, *history, {"role": "user", "content": question}]
        return self.post(path, {"messages": messages, "max_tokens": 4, **fields}, key)["kvasir"]

    def setUp(self):
        for key in ("alpha", "beta"):
            self.assertEqual(self.server.request("DELETE", "/v1/cache", None, {"x-api-key": key})[0], 200)

    def metric(self):
        text = self.server.request("GET", "/metrics", None, {"x-api-key": "root"})[2]
        return int(re.search(r"^kvasir_volatile_tokens_total (\d+)", text, re.M)[1])

    def test_the_line_is_named(self):
        self.assertNotIn("volatile", self.ask(system(l0="Session 3f1")))
        counted = 0
        for number in (0, 7):
            before = self.metric()
            receipt = self.ask(system(**{"l0": "Session 3f1", f"l{number}": "Session a07"}))
            [line] = receipt["volatile"]
            self.assertEqual((line["message_index"], line["line"]), (0, number))
            self.assertGreaterEqual(line["repeated_tokens"], 64)
            self.assertLess(line["repeated_tokens"], receipt["computed"])
            self.assertIn(receipt["miss"]["reason"], ("cold", "diverged"))
            self.assertEqual(self.metric() - before, line["repeated_tokens"])
            counted += 1
        self.assertEqual(counted, 2)
        self.server.until("a warning", lambda: any("a line of prompts changes" in one for one in self.server.log))
        self.assertEqual(sum("a line of prompts changes" in one for one in self.server.log), 1, "one a minute")
        self.assertFalse(any("Session" in one for one in self.server.log), "no text")

    def test_lines_that_were_added_or_are_gone(self):
        self.ask("\n".join(RULES))
        lines = self.ask("It is Monday.\nWelcome.\n" + "\n".join(RULES))["volatile"]
        self.assertEqual([line["line"] for line in lines], [0, 1])
        self.assertEqual(lines[0]["repeated_tokens"], 0, "the next line changed too")
        self.ask("Noon.\n" + "\n".join(RULES[:2] + RULES[5:]))
        [line] = self.ask("Noon.\n" + "\n".join(RULES[:2] + RULES[6:]))["volatile"]
        self.assertEqual(line["line"], 3)

    def test_two_lines_far_from_each_other(self):
        long = "\n".join([system(), *(f"Also {i}: the door of room {i} stays shut at night." for i in range(12))])
        self.ask(long)
        lines = self.ask(long.replace("Rule 2:", "Noon 2:").replace("Also 1:", "Noon 1:"))["volatile"]
        self.assertEqual([line["line"] for line in lines], [2, 21])

    def test_what_is_new_is_not_volatile(self):
        self.ask(system())
        self.assertNotIn("volatile", self.ask(system(), question="Where is the lamp?"))
        self.assertNotIn("volatile", self.ask(system()))
        history = [{"role": "user", "content": "Where is the key?"}, {"role": "assistant", "content": "In 0."}]
        self.assertNotIn("volatile", self.ask(system(), history=history, question="And the cup?"))
        five = system(l0="a b", l1="c d", l2="e f", l3="g h", l4="i j")
        self.assertNotIn("volatile", self.ask(five), "five lines are another text")
        self.assertNotIn("volatile", self.ask("You are kind.\nHello."))

    def test_a_line_of_the_user(self):
        text = "Day 1\n" + system()
        self.ask("Be kind.", question=text)
        [line] = self.ask("Be kind.", question=text.replace("Day 1", "Day 2"))["volatile"]
        self.assertEqual((line["message_index"], line["line"]), (1, 0))

    def test_no_tenant_hears_of_another_and_no_salt(self):
        self.ask(system(l0="Session 3f1"))
        self.assertNotIn("volatile", self.ask(system(l0="Session a07"), key="beta"))
        self.assertNotIn("volatile", self.ask(system(l0="Session a08"), cache_salt="s"))
        self.assertIn("volatile", self.ask(system(l0="Session a09")))
        self.assertIn("volatile", self.ask(system(l0="Session a10"), cache_salt="s"))

    def test_an_erase_and_a_forget_take_them(self):
        self.ask(system(l0="Session 3f1"))
        self.server.request("DELETE", "/v1/cache", None, {"x-api-key": "alpha"})
        self.assertNotIn("volatile", self.ask(system(l0="Session a07")))
        made = self.post("/v1/sessions", {"messages": [{"role": "user", "content": "My word is blue."}]})
        self.post(f"/v1/sessions/{made['id']}/forget", {"index": 0})
        self.assertNotIn("volatile", self.ask(system(l0="Session a08")))

    def test_a_delete_takes_the_callers_alone(self):
        """A deleted session or stored response may be the chat that has the line."""
        for kind, body in (("sessions", {"messages": [{"role": "user", "content": "My word is blue."}]}),
                           ("responses", {"model": "default", "input": "My word is blue.", "max_output_tokens": 16})):
            with self.subTest(kind):
                for key in ("alpha", "beta"):
                    self.ask(system(l0=f"Session 3f1 {kind}"), key=key)
                    self.assertIn("volatile", self.ask(system(l0=f"Session a07 {kind}"), key=key))
                made = self.post(f"/v1/{kind}", body)
                gone = self.server.request("DELETE", f"/v1/{kind}/{made['id']}", None, {"x-api-key": "alpha"})
                self.assertEqual((gone[0], gone[2]["deleted"]), (200, True))
                self.assertNotIn("volatile", self.ask(system(l0=f"Session a08 {kind}")))
                self.assertIn("volatile", self.ask(system(l0=f"Session a08 {kind}"), key="beta"))

    def test_what_keeps_nothing_is_not_compared(self):
        self.ask(system(l0="Session 3f1"), cache_prompt=False)
        self.assertNotIn("volatile", self.ask(system(l0="Session a07")))

    def test_other_chat_paths(self):
        blocks = [{"type": "text", "text": system(l0="Session 3f1")}]
        asked = {"model": "default", "max_tokens": 4, "messages": [{"role": "user", "content": "Where is the key?"}]}
        self.post("/v1/messages", {**asked, "system": blocks})
        blocks[0]["text"] = system(l0="Session a07")
        self.assertEqual(self.post("/v1/messages", {**asked, "system": blocks})["kvasir"]["volatile"][0]["line"], 0)
        response = self.post("/v1/responses", {"model": "default", "max_output_tokens": 16, "store": False,
                                               "instructions": system(l0="Session b07"), "input": "Hello?"})
        self.assertEqual(response["kvasir"]["volatile"][0]["line"], 0)
        ollama = self.post("/api/chat", {"model": "default", "stream": False, "options": {"num_predict": 4},
                                         "messages": [{"role": "system", "content": system(l0="Session c07")},
                                                      {"role": "user", "content": "Hello?"}]})
        self.assertEqual(ollama["kvasir"]["volatile"][0]["line"], 0)
        made = self.post("/v1/sessions", {"messages": [{"role": "system", "content": system(l0="Session d07")}]})
        answer = self.post(f"/v1/sessions/{made['id']}/generate",
                           {"messages": [{"role": "user", "content": "Hello?"}], "max_tokens": 4})
        self.assertEqual(answer["kvasir"]["volatile"][0]["line"], 0)


class Cure(WithServer):
    flags = ("--temperature", "0", "--drop-lines", "id", "--move-lines", "^Mood: ")

    def ask(self, text, question="Where is the key?", **fields):
        messages = [{"role": "system", "content": text}, {"role": "user", "content": question}]
        return self.server.post(CHAT, {"messages": messages, "max_tokens": 4, **fields})["kvasir"]

    def test_a_prompt_without_the_lines_is_found(self):
        first = self.ask(f"Session ID: 3f1\nMood: good\n{system()}")
        self.assertEqual(first["cured"], {"dropped": 1, "moved": 1})
        second = self.ask(f"Session ID: a07\nMood: bad\n{system()}")
        self.assertLess(second["computed"], 40)
        self.assertNotIn("volatile", second)
        plain = self.ask(system(), question="Where is the key?\n\nMood: bad")
        self.assertNotIn("cured", plain)
        self.assertEqual(plain["computed"], 0, "it is the same prompt")
        self.assertEqual(plain["prompt_tokens"], second["prompt_tokens"])

    def test_a_request_names_more(self):
        dated = f"Today's date: 2026-03-31\n{system()}"
        self.assertEqual(self.ask(dated, move_lines=["date"])["cured"], {"dropped": 0, "moved": 1})
        self.assertEqual(self.ask(dated, drop_lines=["date"])["cured"], {"dropped": 1, "moved": 0})
        self.assertNotIn("cured", self.ask(dated))
        self.assertEqual(self.ask("You are kind.", question=dated).get("cured"), None, "lines of the system alone")
        count = {"messages": [{"role": "system", "content": dated}, {"role": "user", "content": "a"}]}
        shown = self.server.post("/apply-template", {**count, "drop_lines": ["date"]})["prompt"]
        self.assertNotIn("2026", shown)

    def test_it_is_the_same_on_all_paths(self):
        text = f"Session ID: 3f1\nMood: good\n{system()}"
        self.ask(text)
        message = self.server.post("/v1/messages", {"model": "default", "max_tokens": 4, "system": text,
                                                    "messages": [{"role": "user", "content": "Where is the key?"}]})
        self.assertEqual(message["kvasir"]["cured"], {"dropped": 1, "moved": 1})
        self.assertEqual(message["kvasir"]["computed"], 0)
        made = self.server.request("POST", "/v1/sessions", {"messages": [{"role": "system", "content": text}],
                                                            "drop_lines": ["date"]})[2]
        answer = self.server.post(f"/v1/sessions/{made['id']}/generate",
                                  {"messages": [{"role": "user", "content": "Where is the key?"}], "max_tokens": 4})
        self.assertEqual(answer["kvasir"]["cured"], {"dropped": 1, "moved": 1})
        for store in (True, False):
            response = self.server.post("/v1/responses", {
                "model": "default", "max_output_tokens": 16, "store": store, "drop_lines": ["date"],
                "instructions": f"{text}\nDate: 2026-03-31", "input": "Where is the key?"})
            self.assertEqual(response["kvasir"]["cured"], {"dropped": 2, "moved": 1})

    def test_wrong_rules(self):
        body = {"messages": [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}], "max_tokens": 1}
        for rules, param in [("date", "drop_lines"), (["^a"], "drop_lines[0]"), ([3], "drop_lines[0]"),
                             (["date", "mood"], "drop_lines[1]")]:
            self.refused(CHAT, {**body, "drop_lines": rules}, param=param)
        self.refused("/v1/sessions", {"messages": body["messages"], "move_lines": ["mood"]}, param="move_lines[0]")

    def test_a_pattern_that_takes_too_long_is_the_messages_error(self):
        with Server("--drop-lines", "(a+)+$") as server:
            status, _, answer = server.request("POST", CHAT, {"messages": [
                {"role": "system", "content": "kind\n" + "a" * 5000 + "b"}, {"role": "user", "content": "b"}]})
            self.assertEqual(status, 400)
            self.assertEqual(answer["error"]["param"], "messages[0].content")


class WithoutMemory(unittest.TestCase):
    def test_nothing_is_named(self):
        with Server("--head-memory", "0") as server:
            for name in ("3f1", "a07"):
                body = {"messages": [{"role": "system", "content": system(l0=name)},
                                     {"role": "user", "content": "Hello?"}], "max_tokens": 2}
                self.assertNotIn("volatile", server.post(CHAT, body)["kvasir"])


if __name__ == "__main__":
    unittest.main()
